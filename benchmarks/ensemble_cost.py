"""What a step of the ensemble costs as work grows: over K, over the number of participants, over the image size.

    python benchmarks/ensemble_cost.py --device cuda --out benchmarks/results/ensemble-cost-h200.json
    python benchmarks/ensemble_cost.py --device cpu --tiny   # does the script itself work?

A step is that of a training: draw, n_dis updates of each participant, judge, clip, sum, ledger, noise, descend. Made
images (no time depends on the content). `gib` is the most memory that the device held.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gswgan.critics.ensemble.ensemble import Ensemble
from gswgan.critics.ensemble.learners import EnsembleSettings
from gswgan.critics.ensemble.network import CriticShape
from gswgan.data import make_image_data
from gswgan.generators import GeneratorSettings
from gswgan.generators.generator import Generator, OptimizerSettings
from gswgan.privacy import BatchStreams, Contribution, GaussianMechanism, Ledger, Sampled, Streams
from gswgan.privacy.events import Gaussian
from gswgan.run.cuda_graphs import CapturedAround
from record import record

ROWS, CLASSES, RECORDS = 64, 10, 20  # fakes a step; classes; records of a critic


def step(device: torch.device, *, count: int, participants: int, side: int, width: int, steps: int) -> dict[str, Any]:
    """Seconds of a step, after those that record."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    rng, key, folder = np.random.default_rng(0), Streams(bytes(32), "cost"), Path(tempfile.mkdtemp())
    n = RECORDS * count
    images = rng.integers(0, 256, (n, side, side), dtype=np.uint8)
    contribution, rate = Contribution(clip_norm=1.0, rows=ROWS), participants / count
    gaussian = Gaussian(noise_std=10.0, sensitivity=contribution.sensitivity("replace-one"))
    event = Sampled(rate=rate, event=gaussian) if rate < 1 else gaussian
    ledger = Ledger(folder / "ledger", observer="public", context=key.context, journal=folder / "journal")
    settings = EnsembleSettings(
        width=width, learning_batch=64, precision="bfloat16" if device.type == "cuda" else "float32"
    )
    ensemble = Ensemble(
        settings,
        CriticShape(image_size=side, channels=1, classes=CLASSES, width=width),
        GaussianMechanism(contribution=contribution, event=event, ledger=ledger, streams=key),
        count=count, public=key, batches=BatchStreams(key), device=device,
    )  # fmt: skip
    ensemble.prepare(make_image_data(images, np.arange(n) % CLASSES, classes=CLASSES))
    generator = Generator(
        GeneratorSettings(architecture="resnet", width=2 * width), OptimizerSettings(learning_rate=1e-4),
        classes=CLASSES, channels=1, image_size=side, updates=1000, streams=key, device=device,
        mixed_precision=device.type == "cuda",
    )  # fmt: skip

    def plain(codes: torch.Tensor, labels: torch.Tensor) -> None:
        fake = generator(codes, labels)
        generator.descend(fake, ensemble.upstream_gradient(fake, labels))

    around = CapturedAround(generator, ensemble) if device.type == "cuda" else plain
    times = []
    for number in range(8 + steps):
        begin = time.perf_counter()
        ensemble.learn(number, generator)
        around(*generator.latents(ROWS, number))
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    row: dict[str, Any] = {"critics": count, "participants": participants, "side": side, "width": width}
    row |= {"at_once": ensemble.chunk, "step_ms": round(1e3 * float(np.median(times[8:])), 2)}
    if device.type == "cuda":
        row["gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes, to try the script")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    few, width, steps = (8, 4, 2) if args.tiny else (100, 32, 15)
    cases = [{"count": count, "participants": few, "side": 28} for count in (250, 1000, 4000)]
    cases += [{"count": 1000, "participants": part, "side": 28} for part in (few // 4, few // 2, 2 * few, 4 * few)]
    cases += [{"count": 250, "participants": few, "side": side} for side in (16, 32, 64)]
    if args.tiny:
        cases = [{**case, "count": case["count"] // 10} for case in cases]
    rows = []
    for case in cases:
        rows.append(step(torch.device(args.device), **case, width=width, steps=steps))
        print(", ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
        gc.collect()  # critics and what was recorded of them refer to one another
        if args.device == "cuda":
            torch.cuda.empty_cache()
        record(args.out, {"device": args.device, "rows_of_a_release": ROWS, "rows": rows})


if __name__ == "__main__":
    main()
