"""The time of a run is told from a few steps on random numbers; the data is not touched."""

from __future__ import annotations

import itertools

import pytest
import torch

from conftest import tiny_images
from gswgan.methods import make_plan
from gswgan.plan.facts import Facts
from gswgan.run import estimate as timing
from gswgan.run.estimate import STEPS, duration, estimate

CPU = torch.device("cpu")


def test_steps_and_records_are_multiplied_up(monkeypatch) -> None:
    plan = make_plan(Facts.of(tiny_images()), steps=1000)
    ticks = itertools.count(0.0, 0.5)  # each look at the clock is half a second after the last one
    monkeypatch.setattr(timing, "monotonic", lambda: next(ticks))
    found = estimate(plan, CPU)
    assert found is not None
    assert found.step == 0.5
    assert found.release == pytest.approx(0.5 * plan.facts.records / timing.RECORDS)
    assert found.seconds == pytest.approx(500 + found.release)
    assert next(ticks) == (STEPS + 2) * 0.5  # no more steps were taken
    assert "1,000 steps of 500 ms" in str(found)
    assert str(found).startswith("about 8.3 min on this machine (cpu)")


def test_a_critic_whose_steps_need_data_is_not_timed() -> None:
    assert estimate(make_plan(Facts.of(tiny_images()), preset="ensemble", steps=3), CPU) is None


def test_slow_and_fast_steps_are_told_in_milliseconds() -> None:
    slow, fast = (timing.Estimate(release=1.9, step=step, steps=4000, device="cpu") for step in (5.284, 0.0707))
    assert "4,000 steps of 5,284 ms;" in str(slow)
    assert "4,000 steps of 70.7 ms;" in str(fast)


def test_times_in_words() -> None:
    assert [duration(s) for s in (0.01, 3.21, 42, 90, 1200, 7300, 40_000)] == [
        "0.1 s", "3.2 s", "42 s", "1.5 min", "20 min", "2 h", "11 h",
    ]  # fmt: skip
