"""How long a CPU takes to draw images with the generators of preset `kernel`, before and after.

    python benchmarks/sample_speed.py --out benchmarks/results/sample-speed-cpu.json

Before: batches of 500, PyTorch's threads inside of each operation. After: `draw_images`. Both draw the same images by
turns, in several rounds, since other processes may take a part of the machine. Recorded are the shortest wall time and
the shortest CPU time (of all threads together) of each, multiplied up to 60,000 images, and the load of the machine
before this program begins: where it is not near zero, wall times are those of a busy machine.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from gswgan.generators import GeneratorSettings, build_network
from gswgan.generators.sampling import BATCH, draw_images, latent_codes
from record import record

GENERATORS = {
    "MNIST at epsilon 10, planned for a CPU": GeneratorSettings(architecture="dcgan", width=16),
    "MNIST at epsilon 1, planned for a CPU": GeneratorSettings(architecture="smooth-resnet", width=16, latent=20),
    "MNIST at epsilon 10, planned for a GPU": GeneratorSettings(architecture="smooth-resnet", width=64),
}

TOTAL = 60_000


@torch.no_grad()
def draw_before(
    network: nn.Module, settings: GeneratorSettings, labels: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    parts = []
    for start in range(0, len(labels), BATCH):
        wanted = torch.from_numpy(labels[start : start + BATCH])
        codes = latent_codes(len(wanted), settings.latent, settings.latent_kind, rng)
        parts.append((network(codes, wanted) * 255).round().clamp(0, 255).to(torch.uint8))
    return torch.cat(parts).numpy()


def measure(draw: Callable[..., np.ndarray], threads: int, *what: Any) -> tuple[np.ndarray, float, float]:
    torch.set_num_threads(threads)
    wall, cpu = time.perf_counter(), time.process_time()
    images = draw(*what, np.random.default_rng(0))
    return images, time.perf_counter() - wall, time.process_time() - cpu


def compare(settings: GeneratorSettings, images: int, rounds: int, threads: int) -> dict[str, Any]:
    torch.manual_seed(0)
    network = build_network(settings, classes=10, channels=1, image_size=28).eval()
    labels = np.arange(images) % 10
    ways = {"before, 1 thread": (draw_before, 1), f"before, {threads} threads": (draw_before, threads),
            f"after, {threads} threads": (draw_images, threads)}  # fmt: skip
    walls: dict[str, list[float]] = {name: [] for name in ways}
    cpus: dict[str, list[float]] = {name: [] for name in ways}
    furthest = 0
    for _ in range(rounds):
        drawn = []
        for name, (draw, allowed) in ways.items():
            found, wall, cpu = measure(draw, allowed, network, settings, labels)
            drawn.append(found.astype(int))
            walls[name].append(wall)
            cpus[name].append(cpu)
        furthest = max(furthest, *(int(abs(other - drawn[0]).max()) for other in drawn[1:]))
    scale = TOTAL / images
    row: dict[str, Any] = {
        name: {"wall_seconds": round(min(walls[name]) * scale, 2), "cpu_seconds": round(min(cpus[name]) * scale, 2)}
        for name in ways
    }
    single, several, after = row.values()
    row["times_faster_than_1_thread"] = round(single["wall_seconds"] / after["wall_seconds"], 2)
    row["times_faster_than_as_many_threads"] = round(several["wall_seconds"] / after["wall_seconds"], 2)
    row["times_less_cpu_time"] = round(several["cpu_seconds"] / after["cpu_seconds"], 2)
    row["largest_difference_in_levels_of_255"] = furthest
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=2000, help="per round")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="write the result as JSON")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    rows = {}
    for name, settings in GENERATORS.items():
        rows[name] = compare(settings, options.images, options.rounds, options.threads)
        print(name, rows[name], flush=True)
    measured = {"images": TOTAL, "images_per_round": options.images, "side": 28, "rounds": options.rounds}
    record(options.out, {**measured, "load_at_the_start": load, "generators": rows})


if __name__ == "__main__":
    main()
