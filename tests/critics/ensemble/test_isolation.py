"""One critic never sees the records of another, and its numbers do not depend on who else takes part."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from ensembles import (
    BATCH,
    COUNT,
    CPU,
    SETTINGS,
    Counting,
    Fakes,
    changed_in_one_record,
    critic_state,
    different,
    fix_participants,
    make,
    play,
    rows_of,
    same,
    threads,  # noqa: F401
)

from conftest import tiny_images
from gswgan.critics.ensemble.partitions import Partitions
from gswgan.data import ImageData


def test_changing_one_record_changes_exactly_one_critic(mechanism_for, stripes: ImageData) -> None:
    """With the released gradients of a first run replayed (here: fakes that depend on nothing private)."""
    record = 17
    first = make(stripes, mechanism_for)
    second = make(changed_in_one_record(stripes, record), mechanism_for)
    (owner,) = [k for k in range(COUNT) if record in first.partitions.table[k].tolist()]
    play(first)
    play(second)
    assert different(first, second) == [owner]
    for k, one, other in zip(first._participants, rows_of(first), rows_of(second)):
        assert torch.equal(one, other) == (k != owner)


def test_the_check_finds_a_critic_that_sees_another_partition(mechanism_for, stripes: ImageData) -> None:
    """The same comparison with a leaking partition: more than one critic changes."""
    leaky = [make(stripes, mechanism_for), make(changed_in_one_record(stripes, 17), mechanism_for)]
    for ensemble in leaky:
        table = ensemble.partitions.table.clone()
        table[:, 0] = 17  # every critic may draw the changed record
        ensemble.partitions = Partitions(table=table, sizes=ensemble.partitions.sizes)
        play(ensemble, steps=10)
    assert len(different(*leaky)) > 1


@pytest.mark.parametrize("threads", [1, 2], indirect=True)
def test_a_critic_is_bit_identical_whoever_takes_part(mechanism_for, stripes: ImageData) -> None:
    """Critic 4 with all others, and with a few: the same weights and the same gradient, bit for bit."""
    results = []
    for others in ([0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11], [8, 11], []):
        ensemble = make(stripes, mechanism_for)
        fix_participants(ensemble, sorted([4, *others]))
        play(ensemble, steps=1)
        results.append((critic_state(ensemble, 4), rows_of(ensemble)[ensemble._participants.tolist().index(4)]))
    for state, row in results[1:]:
        assert same(results[0][0], state)
        assert torch.equal(results[0][1], row)


def test_a_critic_never_sees_another_partition(mechanism_for, stripes: ImageData) -> None:
    ensemble = make(stripes, mechanism_for)
    own = [set(row.tolist()) for row in ensemble.partitions.table]
    assert sum(map(len, own)) == len(set().union(*own)) == 96  # disjoint and exhaustive
    uniform = np.random.default_rng(0).random((COUNT, 500))
    uniform[:, 0], uniform[:, 1] = 0.0, np.nextafter(1.0, 0.0)
    rows = ensemble.records(np.arange(COUNT), uniform)
    for k in range(COUNT):
        assert set(rows[k].tolist()) == own[k]


def test_partitions_of_persons_keep_each_person_together(mechanism_for) -> None:
    persons = np.repeat(np.arange(24), [2, 6] * 12)
    data = dataclasses.replace(tiny_images(96), persons=persons)
    parts = Partitions.of(data, 5, 0, CPU)
    seen: dict[int, int] = {}
    for k in range(5):
        for record in parts.table[k][: parts.sizes[k]].tolist():
            assert seen.setdefault(int(persons[record]), k) == k
    assert len(seen) == 20  # 24 // 5 persons per partition, the remainder unused


def test_a_person_without_records_adds_nothing_and_moves_nobody(mechanism_for, stripes: ImageData) -> None:
    """A client without records has an empty partition, and must not learn from, or answer for, anybody else."""
    ids = tuple(f"client-{k}" for k in range(COUNT))
    whole = dataclasses.replace(stripes, persons=np.arange(stripes.n) % COUNT, person_ids=ids)
    stays = whole.persons != 5
    part = dataclasses.replace(
        whole, images=whole.images[stays], labels=whole.labels[stays], persons=whole.persons[stays]
    )
    first, second = (make(data, mechanism_for, rate=1.0, sampling="all") for data in (whole, part))
    (gone,) = np.flatnonzero(second.partitions.sizes == 0)
    assert set(whole.persons[first.partitions.table[gone].numpy()]) == {5}
    play(first, steps=2)
    play(second, steps=2)
    assert second._participants.tolist() == [k for k in range(COUNT) if k != gone]
    assert torch.equal(rows_of(first)[second._participants], rows_of(second))
    alone = make(dataclasses.replace(part, images=part.images[:0], labels=part.labels[:0], persons=part.persons[:0]),
                 mechanism_for, rate=1.0, sampling="all")  # fmt: skip
    play(alone, steps=1)
    assert len(rows_of(alone)) == 0


def test_padding_neither_drops_nor_repeats_anyone(mechanism_for, stripes: ImageData) -> None:
    """A chunk is filled up with copies, and a copy that counted would double its critic's sensitivity."""
    ensemble = make(stripes, mechanism_for)
    assert 1 < ensemble.chunk < COUNT
    alone = {}
    for k in range(COUNT):
        ensemble._participants = np.array([k])
        (alone[k],) = rows_of(ensemble)  # one critic, one block
    for members in ([3], [0, 5], list(range(ensemble.chunk)), list(range(ensemble.chunk + 1)), list(range(COUNT))):
        ensemble._participants = np.array(members)
        found = rows_of(ensemble)
        assert len(found) == len(members)
        for row, k in zip(found, members):
            assert torch.equal(row, alone[k])


def test_what_fills_up_a_chunk_touches_nobody(mechanism_for, stripes: ImageData) -> None:
    """Padding is spoilt before it learns and before gradients are taken: no critic and no gradient differs."""
    members = [1, 4, 7]
    results = []
    for spoil in (False, True):
        ensemble = make(stripes, mechanism_for)
        fix_participants(ensemble, members)
        assert len(members) < ensemble.chunk
        if spoil:
            original = ensemble._slots_of

            def spoilt(part, real, original=original):
                slots = original(part, real)
                for value in slots.critics.tensors().values():
                    value[real:] = float("nan") if value.is_floating_point() else 10**6
                return slots

            ensemble._slots_of = spoilt
        play(ensemble, steps=2)
        results.append((ensemble.state(), rows_of(ensemble)))
    assert same(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])
    assert len(results[1][1]) == len(members)


def test_where_all_take_part_nothing_is_copied_and_nothing_differs(mechanism_for, stripes: ImageData) -> None:
    everyone, some = make(stripes, mechanism_for, rate=1.0), make(stripes, mechanism_for, rate=1.0)
    assert everyone.chunk == COUNT
    some.chunk = 5  # slots of five
    for ensemble in (everyone, some):
        play(ensemble, steps=2)
    assert "_chunk" not in vars(everyone)
    assert same(everyone.state(), some.state())
    fake, labels = Fakes().fakes(BATCH, "scored")
    order = np.random.default_rng(0).permutation(COUNT)
    for members in (np.arange(COUNT), order, order[:3]):
        expected = torch.cat([some.input_gradients(np.array([k]), fake, labels) for k in members])
        for ensemble in (everyone, some):
            assert torch.equal(ensemble.input_gradients(members, fake, labels), expected)


def test_the_generator_is_asked_alike_whoever_takes_part(mechanism_for, stripes: ImageData) -> None:
    """Fakes move the generator's batch statistics: a step in which nobody takes part must not show there."""
    fakes = Counting()
    for members in ([], [3], list(range(COUNT))):
        ensemble = make(stripes, mechanism_for)
        fix_participants(ensemble, members)
        ensemble.learn(0, fakes)
    assert fakes.asked == 3 * fakes.asked[:1]


class FakesThere(Fakes):
    def fakes(self, count: int, *index: int | str) -> tuple[torch.Tensor, torch.Tensor]:
        images, labels = super().fakes(count, *index)
        return images.cuda(), labels.cuda()


@pytest.mark.gpu
@pytest.mark.parametrize("rate", [0.4, 1.0])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_recorded_on_a_gpu_is_called_on_a_gpu_and_near_the_cpu(
    mechanism_for, stripes: ImageData, monkeypatch, precision: str, rate: float
) -> None:
    """Recorded or called: the same to the last bit, or the coins could be told from others' weights."""
    results = []
    for device, eager in (("cuda", 0), ("cuda", 10**6), ("cpu", 0)):
        monkeypatch.setattr("gswgan.generators.cuda_graphs.EAGER", eager or 3)
        ensemble = make(stripes, mechanism_for, rate=rate, precision=precision, device=torch.device(device))
        fakes = FakesThere() if device == "cuda" else Fakes()
        for step in range(8):
            ensemble.learn(step, fakes)
            rows = [r.clone() for r, _ in ensemble._blocks(*fakes.fakes(BATCH, "scored", step))]
        results.append((ensemble.state(), torch.cat(rows)))
    (recorded, rows), (called, others), (near, exact) = results
    assert same(recorded, called)
    assert torch.equal(rows, others)
    apart = (rows.cpu() - exact).norm() / exact.norm()
    assert apart < (1e-3 if precision == "float32" else 0.3)
    assert torch.equal(recorded["steps"].cpu(), near["steps"])


def test_an_invalid_label_does_not_raise_and_stays_with_its_critic(mechanism_for, stripes: ImageData) -> None:
    labels = stripes.labels.copy()
    labels[17], labels[18] = -7, 10**6
    one, other = make(stripes, mechanism_for), make(dataclasses.replace(stripes, labels=labels), mechanism_for)
    owners = {k for k in range(COUNT) if {17, 18} & set(one.partitions.table[k].tolist())}
    play(one)
    play(other)
    assert set(different(one, other)) <= owners


def test_who_takes_part_changes_and_nobody_else(mechanism_for, stripes: ImageData) -> None:
    ensemble = make(stripes, mechanism_for)
    for step in range(4):
        before = [critic_state(ensemble, k) for k in range(COUNT)]
        ensemble.learn(step, Fakes())
        chosen = set(ensemble.draw_participants(step).tolist())
        assert 0 < len(chosen) < COUNT
        for k in range(COUNT):
            after = critic_state(ensemble, k)
            assert same(before[k], after) == (k not in chosen)
            assert after["steps"] - before[k]["steps"] == (SETTINGS.updates if k in chosen else 0)
