"""What exact noise and secret coins cost: their share of a run, and against plain float64 noise.

    python benchmarks/noise.py --out benchmarks/results/noise-cpu.json

Every draw of noise (SHAKE-256 of a secret key, rounded exactly) and of participation is timed inside a real run; the
same number of values is then drawn by numpy's float64 normal, which is faster and leaks its low-order bits. The
ensemble's steps are alike, so a part of them suffices for the share; the kernel critic runs to its end. Plans that
were saved (`gswgan train --save-plan`) are measured instead with --plan, on machines without dp-accounting.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gswgan import load_data
from gswgan.data import ImageData
from gswgan.methods import make_plan, read_plan
from gswgan.plan.facts import Facts
from gswgan.plan.plan import Plan
from gswgan.privacy import Streams
from gswgan.run.folder import RunFolder
from gswgan.run.loop import run
from record import record

TARGET = 0.05
"""Above this share, the cryptographic noise would be an option and not the default."""


class Clock:
    """Adds up the time inside a function, and the values that it draws."""

    def __init__(self, call: Callable[..., Any]) -> None:
        self.call, self.seconds, self.values = call, 0.0, 0

    def method(self) -> Callable[..., Any]:
        def timed(streams: Streams, shape: Any, *rest: Any) -> Any:
            began = time.perf_counter()
            found = self.call(streams, shape, *rest)
            self.seconds += time.perf_counter() - began
            self.values += int(np.prod(shape))
            return found

        return timed


def measure(plan: Plan, data: ImageData, device: str) -> dict[str, Any]:
    noise, coins = Clock(Streams.rounded_gaussian), Clock(Streams.bernoulli)
    before = Streams.rounded_gaussian, Streams.bernoulli
    Streams.rounded_gaussian, Streams.bernoulli = noise.method(), coins.method()  # type: ignore[method-assign]
    try:
        with tempfile.TemporaryDirectory() as place:
            folder = RunFolder.create(Path(place) / "run", plan)
            began = time.perf_counter()
            assert run(folder, data, device=torch.device(device))
            seconds = time.perf_counter() - began
    finally:
        Streams.rounded_gaussian, Streams.bernoulli = before  # type: ignore[method-assign]
    began = time.perf_counter()
    np.random.default_rng(0).standard_normal(noise.values)
    plain = time.perf_counter() - began
    share = (noise.seconds + coins.seconds) / seconds
    return {
        "preset": plan.preset, "data": plan.facts.data, "device": device, "steps": plan.training.steps,
        "run_seconds": seconds,
        "noise_values": noise.values, "noise_seconds": noise.seconds, "coin_seconds": coins.seconds, "share": share,
        "below_target": share < TARGET, "plain_float64_seconds": plain,
        "nanoseconds_a_value": 1e9 * noise.seconds / noise.values,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--ensemble-steps", type=int, default=60)
    parser.add_argument("--plan", type=Path, action="append", help="a saved plan for --data, instead")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="write the result as JSON")
    options = parser.parse_args()
    data, rows = load_data(options.data), []
    plans = [read_plan(path) for path in options.plan or []] or [
        make_plan(Facts.of(data), preset=preset, steps=steps, device=options.device)
        for preset, steps in (("kernel", None), ("ensemble", options.ensemble_steps))
    ]
    for plan in plans:
        row = measure(plan, data, options.device)
        each = f"{row['nanoseconds_a_value']:.0f} ns a value"
        print(f"{plan.preset}: {row['share']:.2%} of {row['run_seconds']:.1f} s, {each}", flush=True)
        rows.append(row)
    record(options.out, {"target": TARGET, "runs": rows})


if __name__ == "__main__":
    main()
