"""One release: what it takes, what it refuses, and that the ledger has it first."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from torch import Tensor

from gswgan.privacy import Contribution, Gaussian, GaussianMechanism, Ledger, Sampled, Streams
from gswgan.privacy import mechanism as mechanism_module
from gswgan.privacy.errors import PrivacyError
from gswgan.privacy.ledger import read_ledger
from gswgan.privacy.mechanism import GRID_BITS, ClippedSum, clipped_sum
from privacy.conftest import SECRET, MakeMechanism

RECORD = Contribution(clip_norm=1.0, counts=True)
EVENT = Gaussian(noise_std=1.0, sensitivity=2.0)
UNIT = 2**GRID_BITS


def records(n: int = 40, width: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 1, width, generator=generator), torch.randint(0, 5, (n,), generator=generator)


def test_the_sum_is_the_clipped_sum_by_class_with_its_counts(make_mechanism: MakeMechanism) -> None:
    rows, slot = records()
    total = make_mechanism(RECORD, EVENT)._sum([(rows, slot)], 5, 3)
    expected = np.zeros((5, 4))
    for row, label in zip(rows[:, 0].double().numpy(), slot.tolist()):
        expected[label] += [*(row / max(1.0, float(np.linalg.norm(row)))), 1.0]
    assert np.abs(total / UNIT - expected).max() < 40 * 2 / UNIT
    assert (total[:, 3] == np.bincount(slot, minlength=5) * UNIT).all()


def same_in_any_order(
    total: NDArray[np.int64] | NDArray[np.float32], other: NDArray[np.int64] | NDArray[np.float32]
) -> None:
    assert total.tobytes() == other.tobytes()


def test_sums_of_parts_are_released_as_the_sum_of_all(make_mechanism: MakeMechanism, monkeypatch) -> None:
    rows, slot = records(100)
    whole = make_mechanism(RECORD, EVENT).answer("embedding", [(rows, slot)], slots=5, width=3)
    parts = [clipped_sum([block], RECORD, slots=5, width=3) for block in zip(rows.split(30), slot.split(30))]
    parts += [clipped_sum([], RECORD, slots=5, width=3)]  # a part without records
    total = ClippedSum(contribution=RECORD, total=sum(part.total for part in parts[::-1]))
    released = make_mechanism(RECORD, EVENT).answer("embedding", total, slots=5, width=3)
    assert released.sums.tobytes() == whole.sums.tobytes()  # the same key over the same sum
    assert released.counts.tobytes() == whole.counts.tobytes()
    monkeypatch.setattr(mechanism_module, "NUMBERS_PER_CHUNK", 6)  # two rows clipped at a time
    assert (clipped_sum([(rows, slot)], RECORD, slots=5, width=3).total == total.total).all()


def test_a_sum_of_other_contributions_is_refused_before_anything_is_recorded(make_mechanism: MakeMechanism) -> None:
    rows, slot = records()
    mechanism = make_mechanism(RECORD, EVENT)
    longer = clipped_sum([(rows, slot)], Contribution(clip_norm=2.0, counts=True), slots=5, width=3)
    wider = clipped_sum([(torch.randn(4, 1, 4), slot[:4])], RECORD, slots=5, width=4)
    uncounted = clipped_sum([(torch.randn(4, 1, 4), slot[:4])], Contribution(clip_norm=1.0), slots=5, width=4)
    for wrong in (longer, wider, uncounted):
        with pytest.raises(PrivacyError, match="as was accounted for"):
            mechanism.answer("embedding", wrong, slots=5, width=3)
    assert mechanism.ledger.entries == []


def test_the_sum_does_not_depend_on_order_or_chunks(make_mechanism: MakeMechanism) -> None:
    mechanism = make_mechanism(RECORD, EVENT)
    rows, slot = records(500)
    order = torch.randperm(500, generator=torch.Generator().manual_seed(1))
    total = mechanism._sum([(rows, slot)], 5, 3)
    same_in_any_order(total, mechanism._sum([(rows[order], slot[order])], 5, 3))
    for size in (1, 7, 128):
        chunks = list(zip(rows[order].split(size), slot[order].split(size)))
        same_in_any_order(total, mechanism._sum(chunks, 5, 3))
    single = rows.sum(dim=0).numpy(), torch.stack([c.sum(dim=0) for c in rows[order].split(7)]).sum(dim=0).numpy()
    with pytest.raises(AssertionError):
        same_in_any_order(*single)  # sums in single precision fail the same check


def test_blocks_of_several_rows_go_to_their_own_slots(make_mechanism: MakeMechanism) -> None:
    mechanism = make_mechanism(Contribution(clip_norm=2.0, rows=3), Gaussian(noise_std=1.0, sensitivity=8.0))
    block = torch.arange(18, dtype=torch.float64).reshape(2, 3, 3) / 20
    total = mechanism._sum([(block[:1], None), (block[1:], None)], 3, 3)
    assert np.abs(total / UNIT * 2.0 - block.sum(dim=0).numpy()).max() < 8 / UNIT


@pytest.mark.parametrize("label", [-1, -(2**63), 5, 2**62])
def test_an_invalid_label_contributes_nothing_not_even_a_count(make_mechanism: MakeMechanism, label: int) -> None:
    mechanism = make_mechanism(RECORD, EVENT)
    rows, slot = records()
    total = mechanism._sum([(rows, slot), (rows[:1], torch.tensor([label]))], 5, 3)
    assert (total == mechanism._sum([(rows, slot)], 5, 3)).all()


def test_a_row_that_is_not_finite_counts_and_adds_zero(make_mechanism: MakeMechanism) -> None:
    mechanism = make_mechanism(RECORD, EVENT)
    total = mechanism._sum([(torch.full((2, 1, 3), float("nan")), torch.tensor([1, 1]))], 5, 3)
    assert (total[:, :3] == 0).all()
    assert total[:, 3].tolist() == [0, 2 * UNIT, 0, 0, 0]


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(
    hnp.arrays(np.float32, (3, 1, 2), elements=hnp.from_dtype(np.dtype(np.float32))),
    hnp.arrays(np.int64, (3,), elements=st.integers(-(2**63), 2**63 - 1)),
)
def test_no_value_of_the_data_raises(
    make_mechanism: MakeMechanism, rows: NDArray[np.float32], labels: NDArray[np.int64]
) -> None:
    total = make_mechanism(RECORD, EVENT)._sum([(torch.from_numpy(rows), torch.from_numpy(labels))], 4, 2)
    assert np.abs(total).max() <= 3 * UNIT


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_rows_of_any_precision_are_taken(make_mechanism: MakeMechanism, dtype: torch.dtype) -> None:
    rows, slot = records()
    exact = rows.to(dtype).double()
    mechanism = make_mechanism(RECORD, EVENT)
    assert (mechanism._sum([(rows.to(dtype), slot)], 5, 3) == mechanism._sum([(exact, slot)], 5, 3)).all()


def test_a_release_of_nobody_still_releases_noise_and_is_recorded(make_mechanism: MakeMechanism) -> None:
    mechanism = make_mechanism(RECORD, EVENT)
    for name, blocks in (("none", []), ("empty", [(torch.zeros(0, 1, 3), torch.zeros(0, dtype=torch.int64))])):
        released = mechanism.answer(name, blocks, slots=5, width=3)
        assert (released.sums != 0).all()
        assert (released.counts != 0).all()
    assert [entry.name for entry in mechanism.ledger.entries] == ["none", "empty"]


def test_the_line_is_on_the_disk_before_the_noise_is_drawn(
    make_mechanism: MakeMechanism, monkeypatch: pytest.MonkeyPatch
) -> None:
    mechanism = make_mechanism(RECORD, EVENT)
    original = Streams.words

    def words(self: Streams, count: int, purpose: str, *index: int | str) -> NDArray[np.uint64]:
        if purpose == "noise":
            raise KeyboardInterrupt
        return original(self, count, purpose, *index)

    monkeypatch.setattr(Streams, "words", words)
    with pytest.raises(KeyboardInterrupt):
        mechanism.answer("step 1", [records()], slots=5, width=3)
    _, entries, _ = read_ledger(mechanism.ledger.path)
    assert [(entry.name, entry.event) for entry in entries] == [("step 1", EVENT)]


def test_nothing_is_released_when_the_ledger_cannot_be_written(
    make_mechanism: MakeMechanism, monkeypatch: pytest.MonkeyPatch
) -> None:
    mechanism = make_mechanism(RECORD, EVENT)
    drawn: list[str] = []
    original = Streams.words

    def words(self: Streams, count: int, purpose: str, *index: int | str) -> NDArray[np.uint64]:
        drawn.append(purpose)
        return original(self, count, purpose, *index)

    def full_disk(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(Streams, "words", words)
    monkeypatch.setattr("gswgan.privacy.storage.os.fsync", full_disk)
    with pytest.raises(OSError, match="no space"):
        mechanism.answer("step 1", [], slots=1, width=1)
    assert drawn == []


@pytest.mark.parametrize(
    ("rows", "slot"),
    [
        (torch.zeros(2, 2, 3), None),  # two rows a contribution where one was accounted for
        (torch.zeros(2, 1, 4), torch.zeros(2, dtype=torch.int64)),  # too wide
        (torch.zeros(2, 1, 3), None),  # counts, but no label
    ],
)
def test_a_block_of_another_shape_is_refused_and_not_recorded(
    make_mechanism: MakeMechanism, rows: Tensor, slot: Tensor | None
) -> None:
    mechanism = make_mechanism(RECORD, EVENT)
    with pytest.raises(PrivacyError):
        mechanism.answer("a", [(rows, slot)], slots=5, width=3)
    assert mechanism.ledger.entries == []


def test_several_rows_cannot_share_a_slot(make_mechanism: MakeMechanism) -> None:
    """Rows of one contribution in one slot could add up to more than clip_norm sqrt(rows)."""
    mechanism = make_mechanism(Contribution(clip_norm=1.0, rows=4), Gaussian(noise_std=1.0, sensitivity=4.0))
    with pytest.raises(PrivacyError):
        mechanism.answer("a", [(torch.zeros(1, 4, 3), None)], slots=2, width=3)
    with pytest.raises(PrivacyError):
        mechanism.answer("a", [(torch.zeros(1, 4, 3), torch.tensor([0]))], slots=4, width=3)


def test_the_key_of_another_plan_is_refused(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "public.jsonl", observer="public", context="plan")
    with pytest.raises(PrivacyError):
        GaussianMechanism(contribution=RECORD, event=EVENT, ledger=ledger, streams=Streams(SECRET, "other"))


@pytest.mark.parametrize("event", [EVENT, Sampled(rate=0.1, event=Gaussian(noise_std=1.0, sensitivity=4.0))])
def test_every_answer_is_a_line_with_the_event_of_the_mechanism(
    make_mechanism: MakeMechanism, event: Gaussian | Sampled
) -> None:
    mechanism = make_mechanism(RECORD, event)
    for step in range(3):
        mechanism.answer(f"step {step}", [records()], slots=5, width=3)
    _, entries, _ = read_ledger(mechanism.ledger.path)
    assert [(entry.name, entry.event) for entry in entries] == [(f"step {step}", event) for step in range(3)]


def test_noise_beyond_the_range_of_the_grid_is_refused(make_mechanism: MakeMechanism) -> None:
    with pytest.raises(PrivacyError):
        make_mechanism(RECORD, Gaussian(noise_std=1e12, sensitivity=2.0))
