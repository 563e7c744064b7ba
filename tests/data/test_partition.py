"""Parts: disjoint, complete, by index only; and the check itself catches dividing by content."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gswgan.data import ImageData, load_data, make_image_data, partition, partition_persons
from gswgan.errors import DataError

PROPERTY = settings(derandomize=True, deadline=None, max_examples=100)


@PROPERTY
@given(count=st.integers(1, 400), data=st.data())
def test_disjoint_and_complete(count: int, data: st.DataObject) -> None:
    parts = data.draw(st.integers(1, count))
    result = partition(count, parts, seed=data.draw(st.integers(0, 2**70)))
    assert result.indices.shape == (parts, count // parts)
    assert result.remainder.shape == (count % parts,)
    assert result.indices.dtype == result.remainder.dtype == np.int64
    everything = np.concatenate([result.indices.ravel(), result.remainder])
    assert sorted(everything.tolist()) == list(range(count))


@PROPERTY
@given(ids=st.lists(st.integers(0, 30), min_size=1, max_size=200), data=st.data())
def test_every_person_is_in_one_part(ids: list[int], data: st.DataObject) -> None:
    persons = np.unique(ids, return_inverse=True)[1]
    people = int(persons.max()) + 1
    parts = data.draw(st.integers(1, people))
    result = partition_persons(persons, parts, seed=data.draw(st.integers(0, 1000)))
    assert len(result.indices) == parts
    members = [set(persons[indices].tolist()) for indices in result.indices]
    left = set(persons[result.remainder].tolist())
    assert all(len(part) == people // parts for part in members)
    assert left == set(result.remainder_persons.tolist())
    assert len(left) == people % parts
    assert sum(len(part) for part in members) + len(left) == people == len(set.union(left, *members))
    everything = np.concatenate([*result.indices, result.remainder])
    assert sorted(everything.tolist()) == list(range(len(persons)))


@PROPERTY
@given(ids=st.lists(st.integers(0, 12), min_size=1, max_size=60), data=st.data())
def test_the_part_of_a_person_depends_on_the_number_of_persons_alone(ids: list[int], data: st.DataObject) -> None:
    """Whoever has how many records, in whatever order: every person stays where they are."""
    persons = np.unique(ids, return_inverse=True)[1]
    people = int(persons.max()) + 1
    parts, seed = data.draw(st.integers(1, people)), data.draw(st.integers(0, 99))
    extra = data.draw(st.lists(st.integers(0, people - 1), max_size=9))
    others = np.array(data.draw(st.permutations([*persons.tolist(), *extra])))
    before, after = partition_persons(persons, parts, seed=seed), partition_persons(others, parts, seed=seed)
    for one, other in zip([*before.indices, before.remainder], [*after.indices, after.remainder]):
        assert set(persons[one].tolist()) == set(others[other].tolist())


@PROPERTY
@given(count=st.integers(1, 10**6), parts=st.integers(-5, 2 * 10**6), seed=st.integers(-3, 10))
def test_any_request_is_a_partition_or_a_data_error(count: int, parts: int, seed: int) -> None:
    if 1 <= parts <= count and seed >= 0:
        sizes = {len(part) for part in partition(count, parts, seed=seed).indices}
        assert sizes == {count // parts}  # equal, not only nearly: the remainder is left out
    else:
        with pytest.raises(DataError):
            partition(count, parts, seed=seed)


def test_the_seed_decides_and_nothing_else() -> None:
    assert (partition(500, 7, seed=3).indices == partition(500, 7, seed=3).indices).all()
    assert (partition(500, 7, seed=3).indices != partition(500, 7, seed=4).indices).any()
    assert list(inspect.signature(partition).parameters) == ["count", "parts", "seed"]


def test_records_are_shuffled_before_they_are_cut() -> None:
    first = partition(1000, 2, seed=0).indices[0]
    assert 180 < (first < 500).sum() < 320


def test_the_partition_stream_is_not_the_bare_seed() -> None:
    assert (partition(100, 1, seed=5).indices[0] != np.random.default_rng(5).permutation(100)).any()


def _made_data() -> ImageData:
    rng = np.random.default_rng(11)
    return make_image_data(rng.integers(0, 256, (60, 8, 8), dtype=np.uint8), rng.integers(0, 3, 60), classes=3)


def _moves_others(data: ImageData, part: Callable[[ImageData], Sequence[np.ndarray]]) -> bool:
    """Whether some replacement of one record (label and content) puts another record in another part."""

    def part_of(neighbour: ImageData) -> np.ndarray:
        where = np.full(neighbour.n, -1)
        for number, indices in enumerate(part(neighbour)):
            where[indices] = number
        return where

    before = part_of(data)
    for index in range(data.n):
        images, labels = data.images.copy(), data.labels.copy()
        images[index] = 255 - images[index]
        labels[index] = (labels[index] + 1) % data.classes
        after = part_of(make_image_data(np.moveaxis(images, 1, -1), labels, classes=data.classes))
        if np.delete(before != after, index).any():
            return True
    return False


def _stratified(data: ImageData) -> list[np.ndarray]:
    order = np.argsort(data.labels, kind="stable")
    return [order[part::5] for part in range(5)]


def _sorted_by_content(data: ImageData) -> list[np.ndarray]:
    return list(np.argsort(data.images.sum(axis=(1, 2, 3)), kind="stable").reshape(5, -1))


def test_the_partition_does_not_depend_on_labels_or_content() -> None:
    assert not _moves_others(_made_data(), lambda data: list(partition(data.n, 5, seed=1).indices))


@pytest.mark.parametrize("wrong", [_stratified, _sorted_by_content])
def test_the_check_catches_dividing_by_label_or_content(
    wrong: Callable[[ImageData], Sequence[np.ndarray]],
) -> None:
    assert _moves_others(_made_data(), wrong)


def test_more_records_of_one_person_move_no_other_person() -> None:
    persons = np.repeat(np.arange(12), 4)
    more = np.append(persons, 3)
    before, after = partition_persons(persons, 5, seed=2), partition_persons(more, 5, seed=2)
    assert before.remainder_persons.tolist() == after.remainder_persons.tolist()
    for one, other in zip(before.indices, after.indices):
        assert set(persons[one]) == set(more[other])


@pytest.mark.parametrize("parts", [0, -1, 11, 2.0, True])
def test_refused_numbers_of_parts(parts: int) -> None:
    with pytest.raises(DataError, match=r"critics.*--critics"):
        partition(10, parts, seed=0)
    with pytest.raises(DataError, match=r"persons, 10.*--critics"):
        partition_persons(np.arange(10).repeat(3), parts, seed=0)


@pytest.mark.parametrize("seed", [-1, 0.5, True, None])
def test_refused_seed(seed: int) -> None:
    with pytest.raises(DataError, match="seed"):
        partition(10, 2, seed=seed)


@pytest.mark.parametrize("persons", [np.array([1, 2]), np.array([0, 2]), np.zeros(0, int), np.zeros(3)])
def test_refused_persons_for_parts(persons: np.ndarray) -> None:
    with pytest.raises(DataError, match="persons"):
        partition_persons(persons, 1, seed=0)


def test_a_listed_person_without_records_is_refused() -> None:
    """Left out of the count, it would move all others to other parts."""
    persons = np.arange(10).repeat(3)
    assert len(partition_persons(persons, 5, seed=0, number=10).indices) == 5
    for number, some in ((11, persons), (10, persons[persons != 4]), (10, persons[persons != 9])):
        with pytest.raises(DataError, match=r"without records.*kernel critic"):
            partition_persons(some, 5, seed=0, number=number)


def test_where_a_part_is_one_persons_it_may_be_empty_and_moves_nobody() -> None:
    persons = np.arange(10).repeat(3)
    whole = partition_persons(persons, 10, seed=0, number=10)
    for gone in (4, 9):
        some = np.flatnonzero(persons != gone)
        part = partition_persons(persons[some], 10, seed=0, number=10)
        found = [(before.tolist(), some[after].tolist()) for before, after in zip(whole.indices, part.indices)]
        assert sum(before == after for before, after in found) == 9
        assert [(persons[before].tolist(), after) for before, after in found if before != after] == [([gone] * 3, [])]
    assert [len(part) for part in partition_persons(persons[:0], 10, seed=0, number=10).indices] == [0] * 10


def test_digits_divide_as_planned() -> None:
    result = partition(load_data("digits").n, 100, seed=0)
    assert result.indices.shape == (100, 14)
    assert len(result.remainder) == 37
