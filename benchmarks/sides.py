"""What larger images cost the kernel critic: memory and time of a step by side, with all pixels and with averages.

    python benchmarks/sides.py --device cpu --out benchmarks/results/sides-cpu.json

Each case is a process of its own, on random numbers: a release of 5,000 records in 4 classes at epsilon 10, and a few
steps of the generator, as `gswgan train --dry-run` times them.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from gswgan.methods import make_plan
from gswgan.plan.facts import Facts
from gswgan.plan.settings import pick_device
from gswgan.run.estimate import estimate
from record import record

CASES = ((32, 1), (64, 1), (64, 2), (128, 1), (128, 4))
"""Sides of images in colour, and how many of their pixels along a side are averaged."""


def measure(side: int, averaged: int, device: torch.device) -> dict[str, Any]:
    facts = Facts(
        data="made", records=5000, persons=None, classes=4, class_names=tuple("abcd"), labelled=True, image_size=side,
        channels=3,
    )  # fmt: skip
    plan = make_plan(facts, preset="kernel", epsilon=10, delta=1e-5, device=device.type)
    scales = tuple(scale * plan.critic.pooled / averaged for scale in plan.critic.length_scales)
    plan = dataclasses.replace(plan, critic=dataclasses.replace(plan.critic, pooled=averaged, length_scales=scales))
    found = estimate(plan, device)
    assert found is not None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    used = {"gpu_peak_bytes": torch.cuda.max_memory_allocated()} if device.type == "cuda" else {}
    return {
        "side": side,
        "averaged": averaged,
        "step_s": found.step,
        "release_s": found.release,
        "peak_bytes": peak,
    } | used


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--case", type=int, nargs=2, help="one case alone, in this process")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.case is not None:
        print(json.dumps(measure(*options.case, pick_device(options.device))))
        return
    rows = []
    for side, averaged in CASES:
        again = [sys.executable, __file__, "--device", options.device, "--case", str(side), str(averaged)]
        rows.append(json.loads(subprocess.run(again, check=True, capture_output=True, text=True).stdout))
        print(rows[-1], flush=True)
    record(options.out, {"cases": rows})


if __name__ == "__main__":
    main()
