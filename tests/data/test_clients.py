"""Clients: their parts, who belongs, made-up ones; and that no client ever moves another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from by_client import FORMATS, People, by_id, expected, load_people, made_people, without

from gswgan.data import ImageData, clients, dirichlet_clients, keep_clients, load_data, make_image_data
from gswgan.errors import DataError

PEOPLE = made_people()
ONE = "f0100_08"  # in the middle of the sorted list, with 8 records


def _changed() -> dict[str, People]:
    """The same people, but for what one of them holds."""
    rng = np.random.default_rng(9)
    more = (rng.integers(0, 256, (40, 28, 28), dtype=np.uint8), rng.integers(0, 62, 40))
    images, labels = PEOPLE[ONE]
    return {
        "gone": {person: part for person, part in PEOPLE.items() if person != ONE},
        "other images": {**PEOPLE, ONE: (255 - images, labels)}, "other labels": {**PEOPLE, ONE: (images, 61 - labels)},
        "far more records": {**PEOPLE, ONE: more}, "one record": {**PEOPLE, ONE: (images[:1], labels[:1])},
    }  # fmt: skip


def few_ink(images: np.ndarray, labels: np.ndarray) -> float:
    """Stands in for a public classifier: some number from 0 to 1 that depends on these records alone."""
    return float((images.mean(axis=(1, 2, 3)) > 127.5).mean() * 0.5 + (labels % 2).mean() * 0.5)


CHOICES: dict[str, Callable[[ImageData], ImageData]] = {
    "all": lambda data: data,
    "by records": lambda data: keep_clients(data, min_records=7),
    "by accuracy": lambda data: keep_clients(data, accuracy=(0.5, 1.0), accuracy_of=few_ink),
    "by both": lambda data: keep_clients(data, min_records=5, accuracy=(0.0, 0.6), accuracy_of=few_ink),
}


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("change", _changed())
@pytest.mark.parametrize("kind", FORMATS)
def test_one_client_moves_no_other(kind: str, change: str, choice: str, tmp_path: Path) -> None:
    """Whether they belong, in which order they come, their ids and records: for all others it stays as it was."""
    before = CHOICES[choice](load_people(kind, PEOPLE, tmp_path / "before"))
    after = CHOICES[choice](load_people(kind, _changed()[change], tmp_path / "after"))
    assert without(by_id(after), ONE) == without(by_id(before), ONE)
    if change != "gone":  # from the public list; all else is covered
        assert after.person_ids == before.person_ids
        assert after.number_of_persons == before.number_of_persons == len(PEOPLE)


def test_the_check_catches_a_rank_among_clients() -> None:
    """The better half by accuracy, or the median number of records: what a choice must not be."""

    def better_half(data: ImageData) -> ImageData:
        scores = [few_ink(mine.images, mine.labels) for _, mine in clients(data) if mine.labels is not None]
        return keep_clients(data, accuracy=(float(np.median(scores)), 1.0), accuracy_of=few_ink)

    def median_records(data: ImageData) -> ImageData:
        return keep_clients(data, min_records=int(np.median([mine.n for _, mine in clients(data)])))

    for wrong in (better_half, median_records):
        caught = []
        for people in _changed().values():
            before, after = (wrong(_arrays(some)) for some in (PEOPLE, people))
            caught.append(without(by_id(after), ONE) != without(by_id(before), ONE))
        assert any(caught)


def _arrays(people: People) -> ImageData:
    images = np.concatenate([images for images, _ in people.values()])
    labels = np.concatenate([labels for _, labels in people.values()])
    persons = np.repeat(list(people), [len(labels) for _, labels in people.values()])
    return make_image_data(images, labels, classes=62, persons=persons)


def test_parts_are_whole_and_in_order() -> None:
    data = make_image_data(
        np.arange(6, dtype=np.uint8)[:, None, None].repeat(8, 1).repeat(8, 2), [0, 1, 2, 0, 1, 2], classes=3,
        persons=[12, 5, 12, 107, 5, 12], name="mixed",
    )  # fmt: skip
    found = list(clients(data))
    assert [person for person, _ in found] == ["5", "12", "107"]  # numbers in the order of numbers
    assert [mine.images[:, 0, 0, 0].tolist() for _, mine in found] == [[1, 4], [0, 2, 5], [3]]
    for person, mine in found:
        assert (mine.name, mine.classes, mine.person_ids, mine.number_of_persons) == ("mixed", 3, (person,), 1)
        assert mine.persons.tolist() == [0] * mine.n
    no_labels = make_image_data(data.images[:, 0], persons=["b", "a", "b", "c", "c", "c"])
    assert [(person, mine.n, mine.labels) for person, mine in clients(no_labels)] == [
        ("a", 1, None), ("b", 2, None), ("c", 3, None),
    ]  # fmt: skip


def test_parts_need_persons() -> None:
    with pytest.raises(DataError, match="--group-by"):
        next(clients(load_data("digits")))


def test_who_belongs_by_records() -> None:
    data = _arrays(PEOPLE)
    sizes = {person: mine.n for person, mine in clients(data)}
    assert sorted(sizes.values()) == list(range(3, 12))
    kept = keep_clients(data, min_records=7)
    assert {person: mine.n for person, mine in clients(kept)} == {
        person: size if size >= 7 else 0 for person, size in sizes.items()
    }
    assert (kept.n, kept.left_out, kept.public_records) == (45, 18, 63)
    assert kept.person_ids == data.person_ids
    again = keep_clients(kept, min_records=8)
    assert (again.n, again.left_out, again.public_records) == (38, 25, 63)
    assert keep_clients(data).n == data.n


@pytest.mark.parametrize(
    ("bounds", "belong"),
    [((0.939, 1.0), {"c", "d"}), ((0.0, 0.882), {"a", "b"}), ((0.882, 0.939), {"b", "c"}), ((0.5, 0.881), set())],
)
def test_who_belongs_by_accuracy(bounds: tuple[float, float], belong: set[str]) -> None:
    """The paper's thresholds, which belong to the range themselves. It sees one client's records at a time."""
    accuracy = {0: 0.1, 1: 0.882, 2: 0.939, 3: 1.0}
    values = np.repeat(np.arange(4, dtype=np.uint8), 5)
    data = make_image_data(
        values[:, None, None].repeat(8, 1).repeat(8, 2), np.zeros(20, int), classes=2, persons=list("abcd" * 5)
    )
    data = replace(data, persons=values.astype(np.int64))
    asked = []

    def measured(images: np.ndarray, labels: np.ndarray) -> float:
        assert images.shape == (5, 1, 8, 8)
        assert labels.shape == (5,)
        (value,) = np.unique(images)
        asked.append(value)
        return accuracy[value]

    kept = keep_clients(data, accuracy=bounds, accuracy_of=measured)
    assert {person for person, mine in clients(kept) if mine.n} == belong
    assert asked == [0, 1, 2, 3]


def test_a_client_without_records_is_not_asked() -> None:
    data = keep_clients(_arrays(PEOPLE), min_records=7)
    kept = keep_clients(data, accuracy=(0.0, 1.0), accuracy_of=lambda images, labels: 1.0 if len(images) else 1 / 0)
    assert kept.n == data.n


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_records": 0}, {"min_records": 2.5}, {"min_records": True}, {"accuracy": (0.9, 1.0)},
        {"accuracy_of": few_ink},
        {"accuracy": (0.9, 0.8), "accuracy_of": few_ink}, {"accuracy": (-0.1, 0.8), "accuracy_of": few_ink},
        {"accuracy": (0.5, 1.1), "accuracy_of": few_ink}, {"accuracy": (float("nan"), 1.0), "accuracy_of": few_ink},
    ],
)  # fmt: skip
def test_refused_choices(wrong: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="--"):
        keep_clients(_arrays(PEOPLE), **wrong)


def test_choices_that_need_more_than_the_data_has() -> None:
    with pytest.raises(DataError, match="--group-by"):
        keep_clients(load_data("digits"), min_records=3)
    unlabelled = replace(_arrays(PEOPLE), labels=None)
    with pytest.raises(DataError, match="labels"):
        keep_clients(unlabelled, accuracy=(0.5, 1.0), accuracy_of=few_ink)
    assert keep_clients(unlabelled, min_records=7).n == 45


def test_an_arrays_list_of_persons_is_places_in_sorted_ids() -> None:
    images = np.zeros((3, 8, 8), np.uint8)
    data = make_image_data(images, persons=[2, 0, 2], person_ids=["a", "b", "c"])
    assert [(person, mine.n) for person, mine in clients(data)] == [("a", 1), ("b", 0), ("c", 2)]
    for persons, ids in (
        ([2, 0, 3], ["a", "b", "c"]),
        ([2, 0, -1], ["a", "b", "c"]),
        (["a", "b", "c"], ["a", "b", "c"]),
        ([2, 0, 2], ["b", "a", "c"]),
        ([0, 1, 1], ["a", "a"]),
        ([0, 1, 1], ["a", "b\x1b[2J"]),
    ):
        with pytest.raises(DataError, match="persons"):
            make_image_data(images, persons=persons, person_ids=ids)


def test_dirichlet_clients() -> None:
    digits = load_data("digits")
    data = dirichlet_clients(digits, 50, concentration=0.5, seed=3)
    assert data.images is digits.images
    assert data.person_ids[:2] == ("client-00000", "client-00001")
    assert len(data.person_ids) == 50
    assert list(data.person_ids) == sorted(data.person_ids)
    assert sum(mine.n for _, mine in clients(data)) == digits.n
    again = dirichlet_clients(digits, 50, concentration=0.5, seed=3)
    assert (again.persons == data.persons).all()
    other = dirichlet_clients(digits, 50, concentration=0.5, seed=4)
    assert (other.persons != data.persons).any()


def _shares(concentration: float, number: int = 10) -> np.ndarray:
    """The share of each client in each class, of 20,000 records in 4 classes."""
    labels = np.arange(20_000) % 4
    data = make_image_data(np.zeros((20_000, 8, 8), np.uint8), labels, classes=4)
    found = dirichlet_clients(data, number, concentration=concentration, seed=0)
    table = np.zeros((4, number))
    np.add.at(table, (labels, found.persons), 1)
    return table / 5000


def test_dirichlet_shares_spread_as_the_concentration_says() -> None:
    """The mean share is 1/K for any concentration; sum of squares (1 + a) / (1 + K a) on average."""
    for concentration, low, high in ((1000.0, 0.1, 0.105), (1.0, 0.13, 0.25), (0.05, 0.4, 1.0)):
        shares = _shares(concentration)
        assert np.allclose(shares.sum(axis=1), 1)
        assert low <= (shares**2).sum(axis=1).mean() <= high
    assert not np.allclose(_shares(1.0)[0], _shares(1.0)[1], atol=0.02)  # each class has shares of its own


def test_dirichlet_records_do_not_move_each_other() -> None:
    labels = np.arange(400) % 4
    data = make_image_data(np.zeros((400, 8, 8), np.uint8), labels, classes=4)
    before = dirichlet_clients(data, 20, concentration=0.5, seed=1).persons
    changed = labels.copy()
    changed[7] = (changed[7] + 1) % 4
    after = dirichlet_clients(replace(data, labels=changed), 20, concentration=0.5, seed=1).persons
    assert before is not None
    assert after is not None
    assert (np.delete(before, 7) == np.delete(after, 7)).all()
    fewer = dirichlet_clients(
        replace(data, images=data.images[:300], labels=labels[:300]), 20, concentration=0.5, seed=1
    )
    assert (fewer.persons == before[:300]).all()


def test_a_dirichlet_client_taken_away_leaves_the_others() -> None:
    data = dirichlet_clients(load_data("digits"), 30, concentration=0.3, seed=0)
    sizes = {person: mine.n for person, mine in clients(data)}
    kept = keep_clients(data, min_records=20)
    for person, mine in clients(kept):
        assert mine.n == (sizes[person] if sizes[person] >= 20 else 0)
    assert any(mine.n == 0 for _, mine in clients(kept))


@pytest.mark.parametrize(
    ("number", "concentration", "seed"),
    [(0, 1.0, 0), (2.0, 1.0, 0), (True, 1.0, 0), (100_001, 1.0, 0), (5, 0.0, 0), (5, float("nan"), 0),
     (5, float("inf"), 0), (5, 1.0, -1), (5, 1.0, 0.5), (5, 1.0, True)],
)  # fmt: skip
def test_refused_dirichlet(number: Any, concentration: float, seed: Any) -> None:
    with pytest.raises(DataError, match=r"clients|concentration|seed"):
        dirichlet_clients(load_data("digits"), number, concentration=concentration, seed=seed)


def test_persons_are_not_split_up() -> None:
    with pytest.raises(DataError, match="persons of its own"):
        dirichlet_clients(_arrays(PEOPLE), 5, concentration=1.0, seed=0)


def test_expected_is_sorted() -> None:
    assert by_id(_arrays(PEOPLE)) == expected(PEOPLE)
