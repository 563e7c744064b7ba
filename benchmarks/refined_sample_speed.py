"""How long a CPU takes to draw 1,000 images of 28x28 with the denoiser of preset `refined`.

    python benchmarks/refined_sample_speed.py --out benchmarks/results/refined-sample-speed-cpu.json

The weights are those of an untrained network: the time does not depend on them. Recorded are wall and CPU time (of all
threads together) of one draw, and the load of the machine before it: where that is not near zero, other processes took
a part of the wall time.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gswgan.generators import GeneratorSettings, build_network
from gswgan.generators.denoised import EVALUATIONS, latent_size
from gswgan.generators.sampling import draw_images
from record import record

WIDTHS = {"planned for a GPU": 32, "planned for a CPU": 16}
SIDE = 28


def measure(width: int, images: int) -> dict[str, Any]:
    settings = GeneratorSettings(architecture="denoiser", width=width, latent=latent_size(SIDE**2))
    torch.manual_seed(0)
    network = build_network(settings, classes=10, channels=1, image_size=SIDE).eval()
    labels, load = np.arange(images) % 10, os.getloadavg()[0]
    wall, cpu = time.perf_counter(), time.process_time()
    draw_images(network, settings, labels, np.random.default_rng(0))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    weights = sum(value.numel() for value in network.parameters())
    return {"weights": weights, "wall_seconds": round(wall, 1), "cpu_seconds": round(cpu, 1), "load_before": load}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="write the result as JSON")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    found: dict[str, Any] = {"images": options.images, "side": SIDE, "threads": options.threads}
    found |= {"evaluations": EVALUATIONS + 1}
    for name, width in WIDTHS.items():
        found[name] = measure(width, options.images)
        print(name, found[name], flush=True)
    record(options.out, found)


if __name__ == "__main__":
    main()
