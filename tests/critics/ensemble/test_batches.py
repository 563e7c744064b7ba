"""The records, fakes and random numbers of the updates."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from ensembles import COUNT, SETTINGS, Counting, Fakes, fix_participants, make, play

from gswgan.critics.ensemble import learners as critics
from gswgan.data import ImageData


@pytest.fixture
def batches(monkeypatch) -> list[tuple[torch.Tensor, ...]]:
    """What the critics were shown: real images, their labels, fakes, mixing numbers."""
    seen: list[tuple[torch.Tensor, ...]] = []
    original = critics.critic_gradients

    def watch(params, buffers, real, real_labels, fake, fake_labels, mixes, **options):
        seen.append((real, real_labels, fake, mixes))
        return original(params, buffers, real, real_labels, fake, fake_labels, mixes, **options)

    monkeypatch.setattr(critics, "critic_gradients", watch)
    return seen


def test_fakes_of_a_step_are_fresh_or_one(mechanism_for, stripes: ImageData) -> None:
    fakes = Counting()
    for kind in ("fresh", "one"):
        make(stripes, mechanism_for, fakes_per_step=kind).learn(1, fakes)
    assert fakes.asked == [(24, "critics", 1), (12, "critics", 1)]  # a pool for each of two updates, or one


def test_each_record_meets_a_fake_of_its_own_class(mechanism_for, stripes: ImageData, monkeypatch) -> None:
    """Fakes that show their label as their brightness: record and fake of a row agree in every update."""

    class Telling(Fakes):
        def fakes(self, count: int, *index: int | str) -> tuple[torch.Tensor, torch.Tensor]:
            labels = super().fakes(count, *index)[1]
            return (labels / 3)[:, None, None, None].expand(count, 1, 8, 8).clone(), labels

    seen = []
    original = critics.critic_gradients

    def watch(params, buffers, real, real_labels, fake, fake_labels, *rest, **options):
        seen.append(
            torch.equal(real_labels, fake_labels) and torch.allclose(fake[..., 0, 0, 0] * 3, real_labels.float())
        )
        return original(params, buffers, real, real_labels, fake, fake_labels, *rest, **options)

    monkeypatch.setattr(critics, "critic_gradients", watch)
    make(stripes, mechanism_for).learn(0, Telling())
    assert seen
    assert all(seen)


def test_a_record_comes_with_its_own_label_and_in_the_range_of_fakes(mechanism_for, stripes, batches) -> None:
    """Every image shown is one of the data, over 255, and its label is the one that the data gives it."""
    known = {image.tobytes(): int(label) for image, label in zip(stripes.images, stripes.labels)}
    play(make(stripes, mechanism_for), steps=3)
    for real, labels, _, _ in batches:
        assert 0 <= real.min() < 0.1 < 0.9 < real.max() <= 1
        shown = (real * 255).round().to(torch.uint8).flatten(0, 1).numpy()
        assert [known[image.tobytes()] for image in shown] == labels.flatten().tolist()


def test_batches_are_fresh_in_every_step_update_and_critic(mechanism_for, stripes, batches) -> None:
    ensemble = make(stripes, mechanism_for, learning_batch=8)
    fix_participants(ensemble, list(range(COUNT)))
    play(ensemble, steps=20)
    mixes = torch.cat([mix for *_, mix in batches]).flatten(1)
    chunks = math.ceil(COUNT / ensemble.chunk)
    assert len(batches) == 20 * SETTINGS.updates * chunks
    distinct = len(torch.unique(mixes, dim=0))
    assert distinct == 20 * SETTINGS.updates * COUNT  # copies that fill up a chunk repeat their critic's
    assert 0 <= mixes.min() < 0.01 < 0.99 < mixes.max() < 1
    shown = {image.tobytes() for real, *_ in batches for image in real.flatten(0, 1).numpy()}
    assert len(shown) == len({image.tobytes() for image in stripes.images})  # every record is used


def test_every_chunk_has_one_size_whoever_takes_part(mechanism_for, stripes, batches) -> None:
    """Kernels are chosen by shape, and a shape that varied with the coins could change a critic's last bits."""
    ensemble = make(stripes, mechanism_for)
    for members in ([3], [0, 5], list(range(COUNT))):
        fix_participants(ensemble, members)
        ensemble.learn(0, Fakes())
    assert {len(real) for real, *_ in batches} == {ensemble.chunk}


def test_data_without_labels_is_one_class(mechanism_for, stripes, batches) -> None:
    play(make(dataclasses.replace(stripes, labels=None), mechanism_for), steps=1)
    assert all((labels == 0).all() for _, labels, _, _ in batches)


def test_every_update_has_records_and_fakes_of_its_own_and_follows_the_spectral_norm(
    mechanism_for, stripes, batches
) -> None:
    ensemble = make(stripes, mechanism_for, rate=1.0, updates=3)
    before = {name: value.clone() for name, value in ensemble.buffers.items()}
    ensemble.learn(2, Fakes())
    assert len(batches) == 3
    fakes: list[torch.Tensor] = []
    for update, (real, _, fake, _) in enumerate(batches):
        seen = {image.numpy().tobytes() for image in fake.flatten(0, 1)}
        assert seen <= {image.numpy().tobytes() for image in Fakes().fakes(36, "critics", 2)[0]}
        assert all(seen.isdisjoint(image.numpy().tobytes() for image in other.flatten(0, 1)) for other in fakes)
        fakes.append(fake)
        assert all(not torch.equal(real, other) for other, *_ in batches[:update])
    assert all(not torch.equal(value, before[name]) for name, value in ensemble.buffers.items() if "conv" in name)
