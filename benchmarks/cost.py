"""What the kernel critic costs as work grows: the release over n, a generator step over D, batch and image size.

    python benchmarks/cost.py --device cpu --features 4096 --out benchmarks/results/cost-cpu.json
    python benchmarks/cost.py --device cuda --out benchmarks/results/cost-h200.json

Made images (random strokes do not matter: no time depends on the content). Each release runs in a process of its own.
`extra_mib` is the peak of that process (or of the GPU) above what it held before the release: data and frequencies.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from gswgan.critics.kernel.critic import KernelCritic
from gswgan.critics.kernel.embedding import embed
from gswgan.critics.kernel.features import KernelSettings, RandomFeatures
from gswgan.data import ImageData
from gswgan.generators import GeneratorSettings
from gswgan.generators.cuda_graphs import Captured
from gswgan.generators.generator import Generator, OptimizerSettings
from gswgan.plan.settings import pick_device
from gswgan.privacy import Contribution, Gaussian, GaussianMechanism, Ledger, Streams
from record import record

CLASSES = 10


def made(number: int, side: int = 28, channels: int = 1) -> ImageData:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (number, channels, side, side), np.uint8)
    names = tuple(str(label) for label in range(CLASSES))
    labels = rng.integers(0, CLASSES, number)
    return ImageData(name="made", images=images, labels=labels, classes=CLASSES, class_names=names)


def settings(features: int, side: int) -> KernelSettings:
    return KernelSettings(features=features, length_scales=(side / 7, side / 14), windows=(0.0, side / 7))


def barrier(folder: str) -> GaussianMechanism:
    contribution = Contribution(clip_norm=1.0, counts=True)
    return GaussianMechanism(
        contribution=contribution,
        event=Gaussian(noise_std=1.0, sensitivity=contribution.sensitivity("replace-one")),
        ledger=Ledger(Path(folder) / "ledger.jsonl", observer="public", context="cost"),
        streams=Streams(bytes(32), "cost"),
    )


def release(number: int, features: int, device: str) -> dict[str, Any]:
    """One release of so many records."""
    data, where = made(number), torch.device(device)
    random_features = RandomFeatures(settings(features, 28), 1, 28, where)
    with TemporaryDirectory() as warm, TemporaryDirectory() as folder:
        embed(made(64), random_features, barrier(warm))  # libraries and kernels are loaded
        before, mechanism = _held(where), barrier(folder)
        began = time.perf_counter()
        embed(data, random_features, mechanism)
        seconds = time.perf_counter() - began
    row = {"n": number, "features": features, "seconds": seconds, "extra_mib": (_peak(where) - before) / 2**20}
    print(
        f"release: n {number:>9,} D {features}: {seconds:8.2f} s, {row['extra_mib']:.0f} MiB above the data", flush=True
    )
    return row


def _held(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return float(torch.cuda.memory_allocated())
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return float(pages * resource.getpagesize())


def _peak(device: torch.device) -> float:
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated())
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def step(features: int, batch: int, side: int, channels: int, device: str, repeats: int) -> dict[str, Any]:
    """A generator step as `train` does it."""
    where = torch.device(device)
    fast = where.type == "cuda"
    generator = Generator(
        GeneratorSettings(architecture="resnet" if fast else "dcgan", width=64 if fast else 16),
        OptimizerSettings(learning_rate=1e-3), classes=CLASSES, channels=channels, image_size=side, updates=1000,
        streams=Streams.public(0), device=where, mixed_precision=fast,
    )  # fmt: skip
    with TemporaryDirectory() as folder:
        random_features = RandomFeatures(settings(features, side), channels, side, where)
        critic = KernelCritic(random_features, barrier(folder), Path(folder) / "embedding", memory=0.99)
        critic.prepare(made(500, side, channels))

        def update(codes: torch.Tensor, labels: torch.Tensor) -> None:
            fake = generator(codes, labels)
            generator.descend(fake, critic.upstream_gradient(fake, labels))

        run = Captured(update) if fast else update
        for number in range(5 + repeats):
            if number == 5:
                if fast:
                    torch.cuda.synchronize()
                began = time.perf_counter()
            run(*generator.latents(batch, number))
        if fast:
            torch.cuda.synchronize()
        milliseconds = (time.perf_counter() - began) / repeats * 1e3
    row = {"features": features, "batch": batch, "side": side, "channels": channels, "ms": milliseconds}
    print(f"step: D {features} batch {batch} {side}x{side}x{channels}: {milliseconds:.2f} ms", flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--features", type=int, default=32768, help="D of the releases")
    parser.add_argument("--records", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--repeats", type=int, default=20, help="steps to average over")
    parser.add_argument("--out", type=Path, help="write the result as JSON")
    options = parser.parse_args()

    device = str(pick_device(options.device))
    context = multiprocessing.get_context("spawn")
    releases = []
    for number in options.records:
        with context.Pool(1) as pool:  # a fresh process: its peak is that of this release alone
            releases.append(pool.apply(release, (number, options.features, device)))
    base = {"features": 32768, "batch": 200, "side": 28, "channels": 1}
    cases = [base | {"features": count} for count in (4096, 16384, 32768, 65536)]
    cases += [base | {"batch": count} for count in (100, 500, 1000)]
    cases += [base | {"side": 16}, base | {"side": 32}, base | {"side": 32, "channels": 3}, base | {"side": 64}]
    steps = [step(**case, device=device, repeats=options.repeats) for case in cases]
    record(options.out, {"threads": torch.get_num_threads(), "releases": releases, "steps": steps})


if __name__ == "__main__":
    main()
