"""Entries and cells: what a benchmark is made of, how long it takes, and its memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("jinja2", reason="needs the extra gswgan[eval]")
pytest.importorskip("matplotlib", reason="needs the extra gswgan[eval]")

from gswgan.benchmark import clock as clocks
from gswgan.benchmark.cells import Cell, Entry, find_entries, make_cells
from gswgan.benchmark.clock import Clock, PeakMemory
from gswgan.errors import PlanError
from gswgan.methods import METHODS


def test_all_is_both_of_gs_wgan_and_every_baseline() -> None:
    names = [entry.name for entry in find_entries(["all"])]
    assert names == ["gswgan:kernel", "gswgan:ensemble", *(name for name in METHODS if name != "gswgan")]
    assert [entry.name for entry in find_entries(["ensemble", "gan", "all"])][:2] == ["gswgan:ensemble", "gan"]
    assert len(find_entries(["all", "gswgan", "kernel", "gan"])) == len(names)


def test_a_preset_is_asked_for_with_its_method() -> None:
    paper, cgan = find_entries(["gswgan:paper", "dp-sgd-gan:dp-cgan"])
    assert (paper.method, paper.preset, paper.calibrated) == ("gswgan", "paper", False)
    assert (cgan.name, cgan.calibrated) == ("dp-sgd-gan:dp-cgan", False)
    assert find_entries(["dp-sgd-gan:revisited"])[0].name == "dp-sgd-gan"
    for wrong in ("paper", "gswgan:nothing", "dp-merf:", "nothing", ""):
        if wrong != "dp-merf:":
            with pytest.raises(PlanError, match="methods"):
                find_entries([wrong])
    with pytest.raises(PlanError, match="at least one"):
        find_entries([])


def test_what_is_not_calibrated_appears_once() -> None:
    entries = find_entries(["kernel", "gswgan:paper", "gan"])
    cells = make_cells(["digits"], entries, [1.0, 10.0], [1, 2])
    assert [(cell.entry.name, cell.epsilon) for cell in cells if cell.seed == 1] == [
        ("gswgan:kernel", 1.0), ("gswgan:kernel", 10.0), ("gswgan:paper", None), ("gan", None),
    ]  # fmt: skip
    assert len(cells) == 8
    assert [cell.seed for cell in cells] == [1] * 4 + [2] * 4
    assert len({cell.folder(Path("x")) for cell in cells}) == 8
    odd = Cell(data="a/../b c", entry=entries[0], epsilon=0.5, seed=1).folder(Path("x"))
    assert odd.parts[:3] == ("x", "runs", "a-..-b-c")


def test_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(clocks.time, "monotonic", lambda: now)
    one, two = Entry(method="gan", preset="default"), Entry(method="g-pate", preset="default")
    cells = [Cell(data="x", entry=entry, epsilon=None, seed=seed) for entry in (one, two) for seed in (1, 2)]
    told: list[tuple[str, float, float]] = []
    clock = Clock({cells[0]: 7.0, **dict.fromkeys(cells[1:])}, lambda *what: told.append(what))
    clock.skip(cells[0])
    assert clock.left() == 21  # as the one that is known
    clock.start(cells[2])
    now = 20.0
    clock.report("step", 0.5)
    assert told[-1][1:] == (20.0, 34.0)  # it is late; the two others take 7 each
    assert clock.stop(failed=False) == 20.0
    assert clock.left() == 27  # 7 of its own kind, 20 of its own kind
    first = Clock(dict.fromkeys(cells), lambda *what: told.append(what))
    first.start(cells[0])
    now = 30.0
    first.report("step", 0.5)
    assert told[-1][1:] == (10.0, 80.0)  # it seems to take 20 s, and so the others
    first.stop(failed=True)
    assert first.left() == 0  # nothing is known


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux tells it")
def test_peak_memory_starts_anew() -> None:
    peak = PeakMemory(torch.device("cpu"))
    low = peak.read()
    big = np.ones(2**25)  # 256 MiB
    high = peak.read()
    assert high - low > 200 * 2**20
    del big
    assert peak.read() > high - 2**23  # what was stays; the kernel counts roughly
    assert PeakMemory(torch.device("cpu")).read() < high - 200 * 2**20
