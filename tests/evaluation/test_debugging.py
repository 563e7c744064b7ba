from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from conftest import lines, tiny_images
from gswgan.data import ImageData, clients
from gswgan.errors import DataError
from gswgan.evaluation import debugging
from gswgan.evaluation.debugging import (
    GROUPS,
    SuspicionRule,
    affected,
    bright_share,
    find_threshold,
    fit_suspicion_rule,
    halves,
    split,
    with_bug,
)


def by_person(persons: int = 10, n: int = 120, seed: int = 0) -> ImageData:
    data = lines(n, seed=seed)
    ids = tuple(f"client-{k}" for k in range(persons))
    return dataclasses.replace(data, persons=np.arange(n) // 3 % persons, person_ids=ids)


def dark(images: np.ndarray, labels: np.ndarray) -> float:
    """A classifier that is right on dark images."""
    return float((images.mean(axis=(1, 2, 3)) < 127).mean())


def test_half_of_the_clients_have_the_bug_by_their_place_alone():
    data = by_person()
    bug, faulty = with_bug(data, seed=0), affected(data, seed=0)
    assert faulty.sum() == 5
    rows = faulty[data.persons]
    assert np.array_equal(bug.images[rows], 255 - data.images[rows])
    assert np.array_equal(bug.images[~rows], data.images[~rows])
    assert np.array_equal(affected(by_person(seed=1), seed=0), faulty)
    assert any(not np.array_equal(affected(data, seed=seed), faulty) for seed in range(1, 5))
    with pytest.raises(DataError, match="person"):
        with_bug(tiny_images(), seed=0)


def test_every_client_is_in_one_group_and_the_list_stays():
    data = with_bug(by_person(), seed=0)
    parts = split(data, dark, 0.5)
    for part in parts.values():
        assert (part.person_ids, part.number_of_persons, part.public_records) == (data.person_ids, 10, data.n)
    suspected, unsuspected = (set(parts[group].persons.tolist()) for group in GROUPS)
    assert suspected == set(np.flatnonzero(affected(data, seed=0)).tolist())
    assert suspected | unsuspected == set(range(10))
    assert not suspected & unsuspected


def test_an_accuracy_at_the_threshold_is_in_one_group_alone():
    """Otherwise a client would answer for both, and both releases together would cost more than one."""
    data = by_person()
    for reached in (0.5, np.nextafter(0.5, 0), np.nextafter(0.5, 1), 0.0, 1.0):
        sizes = [part.n for part in split(data, lambda images, labels, at=reached: float(at), 0.5).values()]
        assert sizes == ([0, data.n] if reached >= 0.5 else [data.n, 0])


def test_a_client_decides_by_its_own_records_alone():
    data = with_bug(by_person(), seed=0)
    images = data.images.copy()
    mine = data.persons == 3
    images[mine] = 255 - images[mine]
    other = dataclasses.replace(data, images=images)
    for group in GROUPS:
        one, two = (split(part, dark, 0.5)[group] for part in (data, other))
        rest = [np.flatnonzero(part.persons != 3) for part in (one, two)]
        assert np.array_equal(one.images[rest[0]], two.images[rest[1]])
        assert (3 in one.persons) != (3 in two.persons)


def test_the_threshold_is_between_what_public_persons_reach_with_and_without_the_bug():
    public = by_person()
    assert find_threshold(public, dark) == 0.5

    def weak(images, labels):
        return 0.9 if images.mean() < 127 else 0.3

    assert find_threshold(public, weak) == pytest.approx(0.6)
    with pytest.raises(DataError, match="a bug disturbs"):
        find_threshold(public, lambda images, labels: 0.9)


def test_the_classifier_never_saw_the_persons_that_the_threshold_is_from():
    learn, held_out = halves(by_person())
    assert not set(learn.persons.tolist()) & set(held_out.persons.tolist())
    assert learn.n + held_out.n == 120
    with pytest.raises(DataError, match="5 persons"):
        halves(by_person(persons=4))


def test_a_sieve_of_public_data_finds_the_bug(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(debugging, "EPOCHS", 8)  # few records, few steps
    rule = fit_suspicion_rule(by_person(n=360, seed=1), device=torch.device("cpu"))
    assert isinstance(rule, SuspicionRule)
    assert 0 < rule.threshold < 1
    data = by_person()
    suspected = rule.parts(with_bug(data, seed=0))["suspected"]
    found = {int(name.split("-")[1]) for name, mine in clients(suspected) if mine.n}
    assert found == set(np.flatnonzero(affected(data, seed=0)).tolist())


def test_a_bright_background_is_in_the_frame():
    dark_frame = np.full((3, 28, 28), 250, np.uint8)
    dark_frame[:, :2] = dark_frame[:, -2:] = dark_frame[:, :, :2] = dark_frame[:, :, -2:] = 0
    assert bright_share(dark_frame) == 0.0
    assert bright_share(255 - dark_frame) == 1.0
    assert bright_share(np.concatenate([dark_frame, 255 - dark_frame])) == 0.5
    assert bright_share(np.stack([255 - dark_frame] * 3, axis=3)) == 1.0
    with pytest.raises(DataError, match="uint8"):
        bright_share(np.zeros((2, 8, 8)))
