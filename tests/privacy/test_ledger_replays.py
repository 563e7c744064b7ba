"""The same sum again is the same answer; anything else is counted and has other noise."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from gswgan.privacy import Contribution, DrawnOne, Gaussian, GaussianMechanism, Sampled
from gswgan.privacy.ledger import read_ledger
from privacy.conftest import MakeMechanism
from privacy.ledgers import EVENT, open_ledger

ROW = Contribution(clip_norm=1.0)


def answer(mechanism: GaussianMechanism, name: str, value: float) -> bytes:
    rows = torch.full((1, 1, 50), value, dtype=torch.float64)
    return mechanism.answer(name, [(rows, None)], slots=1, width=50).sums.tobytes()


def test_the_same_sum_is_the_same_release_again(make_mechanism: MakeMechanism) -> None:
    first = answer(make_mechanism(ROW, EVENT), "a", 0.1)
    again = make_mechanism(ROW, EVENT)
    assert answer(again, "a", 0.1) == first
    assert answer(again, "a", 0.1) == first
    assert len(again.ledger.entries) == 1


def test_another_sum_is_another_release_with_other_noise(make_mechanism: MakeMechanism) -> None:
    one = np.frombuffer(answer(make_mechanism(ROW, EVENT), "a", 0.1))
    again = make_mechanism(ROW, EVENT)
    two = np.frombuffer(answer(again, "a", 0.1 + 1e-7))
    assert np.abs(one - two).min() > 1e-6  # with the same noise the difference would be 1e-7 everywhere
    assert [(e.name, e.attempt) for e in again.ledger.entries] == [("a", 0), ("a", 1)]
    assert answer(make_mechanism(ROW, EVENT), "a", 0.1) == one.tobytes()  # either may come again, for free
    assert answer(make_mechanism(ROW, EVENT), "a", 0.1 + 1e-7) == two.tobytes()
    assert len(make_mechanism(ROW, EVENT).ledger.entries) == 2


def test_without_a_journal_every_repetition_is_counted(tmp_path: Path) -> None:
    for attempt in range(3):
        assert open_ledger(tmp_path, journal=False).record("a", EVENT, "sum") == attempt
    assert len(open_ledger(tmp_path, journal=False).entries) == 3


def test_a_lost_or_torn_journal_line_is_counted_again(tmp_path: Path, make_mechanism: MakeMechanism) -> None:
    first = answer(make_mechanism(ROW, EVENT), "a", 0.1)
    journal = tmp_path / "run" / "public.journal"
    for attempt, damage in enumerate((lambda: journal.unlink(), lambda: journal.write_text(journal.read_text()[:-3]))):
        damage()
        again = make_mechanism(ROW, EVENT)
        assert answer(again, "a", 0.1) == first  # the same sum has the same noise, counted or not
        assert [(entry.name, entry.attempt) for entry in again.ledger.entries] == [("a", a) for a in range(attempt + 2)]


@pytest.mark.parametrize("releases_before", [0, 1, 3])
def test_copies_give_the_same_sum_the_same_bytes_and_two_sums_independent_noise(
    tmp_path: Path, make_mechanism: MakeMechanism, releases_before: int
) -> None:
    """Two copies of a run, restored from a backup, on machines whose arithmetic differs in the last bits."""
    mechanism = make_mechanism(ROW, EVENT)
    for number in range(releases_before):
        answer(mechanism, "a", 0.01 * number)
    for copy in ("one", "two", "three"):
        shutil.copytree(tmp_path / "run", tmp_path / copy)
    one, two, three = (make_mechanism(ROW, EVENT, folder=copy) for copy in ("one", "two", "three"))
    first, second = (np.frombuffer(answer(copy, "a", value)) for copy, value in ((one, 0.1), (two, 0.1 + 1e-7)))
    assert np.abs(first - second).min() > 1e-6  # with the same noise the difference would be 1e-7 everywhere
    assert abs(np.corrcoef(first - 0.1, second - 0.1)[0, 1]) < 0.7
    assert answer(three, "a", 0.5) != answer(three, "a", 0.1) == first.tobytes()  # whatever came before it


@pytest.mark.parametrize(
    ("contribution", "event"),
    [
        (ROW, Gaussian(noise_std=2.0, sensitivity=2.0)),
        (Contribution(clip_norm=0.5), Gaussian(noise_std=1.0, sensitivity=2.0)),
        (Contribution(clip_norm=0.5), Gaussian(noise_std=0.5, sensitivity=1.0)),
    ],
)
def test_the_same_sum_by_another_mechanism_is_another_release(
    make_mechanism: MakeMechanism, contribution: Contribution, event: Gaussian
) -> None:
    """One name, one sum on the grid, two noise scales with one draw would give the sum away exactly."""
    one = np.frombuffer(answer(make_mechanism(ROW, EVENT), "a", 9.0))
    other = make_mechanism(contribution, event)
    two = np.frombuffer(answer(other, "a", 9.0))
    assert len(other.ledger.entries) == 2
    shift = 50**-0.5  # what a clipped row has in each of 50 coordinates, in clip norms
    one_noise, two_noise = one - shift, two - shift * contribution.clip_norm
    assert abs(np.corrcoef(one_noise, two_noise)[0, 1]) < 0.7


def test_a_second_attempt_is_recorded_without_amplification(tmp_path: Path) -> None:
    """Participation belongs to the step, so a step that is released twice has one coin for both releases."""
    ledger = open_ledger(tmp_path)
    sampled, drawn = Sampled(rate=0.1, event=EVENT), DrawnOne(count=10, event=EVENT)
    for event in (sampled, drawn):
        name = type(event).__name__
        ledger.record(name, event, "one sum")
        ledger.record(name, event, "another sum")
        ledger.record(name, event, "one sum")
    assert [entry.event for entry in ledger.entries] == [sampled, EVENT, drawn, EVENT]
    assert read_ledger(ledger.path)[1] == ledger.entries
