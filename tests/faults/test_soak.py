"""One process that trains, saves, loads, samples and verifies over and over: memory, files and threads stay level.

An hour of it is recorded in benchmarks/results/soak-cpu.json.
"""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import pytest

from gswgan import GSWGAN, load, load_data
from gswgan.release.pack import pack
from gswgan.release.verify import verify

WARM_UP, ROUNDS, MAX_MB_PER_ROUND = 4, 12, 2.0
"""Memory moves by a few MB from round to round, up and down: over an hour of 59 rounds it did not grow."""


def resident() -> float:
    """Memory of this process, MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


def one_round(number: int, folder: Path) -> None:
    data = load_data("digits")
    for preset, steps in (("kernel", 100), ("ensemble-alone", 10)):
        model = GSWGAN(epsilon=10, preset=preset, steps=steps, seed=number, device="cpu")
        model.fit(data.images[:, 0], data.labels, classes=data.classes, out=folder / preset)
        model.save(folder / f"{preset}-saved")
        pack(folder / preset, folder / f"{preset}-packed")
        assert not verify(folder / f"{preset}-packed").findings
        images, labels = load(folder / f"{preset}-saved", device="cpu").sample(500, seed=number)
        assert len(images) == len(labels) == 500


@pytest.mark.slow
def test_memory_files_and_threads_stay_level(tmp_path: Path) -> None:
    seen = []
    for number in range(WARM_UP + ROUNDS):
        one_round(number, tmp_path / str(number))
        gc.collect()
        seen.append((resident(), len(list(Path("/proc/self/fd").iterdir())), threading.active_count()))
    (memory, files, threads), (later, files_later, threads_later) = seen[WARM_UP - 1], seen[-1]
    assert (files_later, threads_later) == (files, threads)
    assert (later - memory) / ROUNDS <= MAX_MB_PER_ROUND, [round(mb) for mb, _, _ in seen]
