"""What a step of preset `refined` costs on a GPU: records x draws per second, over draws, records, width and side.

    python benchmarks/refined_profile.py --out benchmarks/results/refined-cost-h200.json

Each figure is the median of repeated calls between device events, after warm-up. `parts` says where the time of a whole
DP-SGD step goes (gradients, clip and sum, noise, descent), `kernels` where the time of the gradients goes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from gswgan.critics.refined.gradients import Gradients
from gswgan.generators.denoiser import Denoiser
from gswgan.privacy import Streams
from gswgan.privacy.mechanism import GRID_BITS, MARGIN, clip_to_grid
from record import record

DEVICE = torch.device("cuda")
PROTOTYPE = 20_000.0  # records x draws per second


def median_ms(work: Callable[[], Any], repeats: int = 7) -> float:
    for _ in range(5):  # eager calls, recording, one replay
        work()
    torch.cuda.synchronize()
    found = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(end))
    return statistics.median(found)


def batch(records: int, side: int) -> tuple[torch.Tensor, ...]:
    images = torch.randint(0, 256, (records, 1, side, side), dtype=torch.uint8, device=DEVICE)
    labels = torch.randint(0, 10, (records,), device=DEVICE)
    return images, labels, torch.randperm(60_000, device=DEVICE)[:records], torch.tensor(3, device=DEVICE)


def gradients_row(*, records: int, draws: int, width: int, side: int) -> dict[str, Any]:
    denoiser = Denoiser(image_size=side, channels=1, classes=10, width=width).to(DEVICE)
    gradients, inputs = Gradients(denoiser, draws=draws), batch(records, side)
    torch.cuda.reset_peak_memory_stats()
    ms = median_ms(lambda: gradients.of_records(*inputs))
    rows = gradients.of_records(*inputs)
    clip = median_ms(lambda: _sum(rows))
    size = rows.shape[1]
    row = {"records": records, "draws": draws, "width": width, "side": side, "weights": size}
    row |= {"gradients_ms": ms, "clip_and_sum_ms": clip, "gib": torch.cuda.max_memory_allocated() / 2**30}
    row["per_second"] = 1e3 * records * draws / (ms + clip)
    print(row, flush=True)
    return row


def _sum(rows: torch.Tensor) -> torch.Tensor:
    from gswgan.privacy.gpu_clip import clipped_row_sum

    return clipped_row_sum(rows, 1.0, margin=MARGIN, grid_bits=GRID_BITS)


def kernels(records: int, draws: int) -> list[dict[str, Any]]:
    """The device time of the gradients by kernel, eager, in percent."""
    denoiser = Denoiser(image_size=28, channels=1, classes=10, width=32).to(DEVICE)
    gradients, inputs = Gradients(denoiser, draws=draws), batch(records, 28)
    for _ in range(2):
        gradients._record_rows(*inputs)
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        gradients._record_rows(*inputs)
        torch.cuda.synchronize()
    times: dict[str, float] = defaultdict(float)
    for event in profile.key_averages():
        times[event.key[:60]] += event.self_device_time_total
    whole = sum(times.values())
    table = [{"kernel": name, "percent": 100 * value / whole, "ms": value / 1e3} for name, value in times.items()]
    table.sort(key=lambda row: -row["percent"])
    for row in table[:14]:
        print(f"  {row['percent']:5.1f} %  {row['ms']:7.2f} ms  {row['kernel']}", flush=True)
    return table[:14]


def host_parts(width: int) -> dict[str, float]:
    """Milliseconds of what happens outside the GPU in a release of so many numbers, and of the plain clip."""
    streams, scale = Streams(b"k" * 32, "profile"), 2.0**GRID_BITS
    found: dict[str, float] = {}
    for name, work in {
        "words": lambda: streams.words(width, "noise", 1),
        "noise": lambda: streams.rounded_gaussian((1, width), scale, "noise", 1),
        "coins": lambda: streams.bernoulli(60_000, 0.03, "coins", 1),
        "to_the_host": lambda: torch.zeros(1, width, dtype=torch.int64, device=DEVICE).cpu().numpy().tobytes(),
    }.items():
        began = time.perf_counter()
        for _ in range(3):
            work()
        found[name] = (time.perf_counter() - began) / 3 * 1e3
    rows = torch.randn(64, width, device=DEVICE)
    found["plain_clip_of_64_rows"] = median_ms(lambda: clip_to_grid(rows, 1.0).sum(dim=0))
    found["our_clip_of_64_rows"] = median_ms(lambda: _sum(rows))
    print(found, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--short", action="store_true", help="the main figure alone")
    options = parser.parse_args()
    usual = {"records": 352, "draws": 8, "width": 32, "side": 28}
    changes: list[dict[str, int]] = [{}]
    if not options.short:
        changes += [{"draws": 1}, {"draws": 4}, {"draws": 16}, {"records": 88}, {"records": 176}, {"records": 704}]
        changes += [{"width": 16}, {"width": 64, "records": 176}, {"side": 8, "width": 8}, {"side": 32}]
        changes += [{"side": 64, "records": 88}]
    rows = [gradients_row(**(usual | change)) for change in changes]
    table, host = kernels(usual["records"], usual["draws"]), host_parts(rows[0]["weights"])
    best = rows[0]["per_second"]
    print(f"{best:,.0f} records x draws per second, {best / PROTOTYPE:.1f} times the prototype's", flush=True)
    record(options.out, {"rows": rows, "kernels": table, "host_ms": host, "times_the_prototype": best / PROTOTYPE})


if __name__ == "__main__":
    main()
