from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from conftest import key_of, tiny_images
from gswgan.critics.ensemble import learners as critics
from gswgan.critics.ensemble.ensemble import Ensemble
from gswgan.critics.ensemble.learners import EnsembleSettings
from gswgan.critics.ensemble.network import CriticShape
from gswgan.critics.ensemble.warm_start import WarmStart
from gswgan.critics.resumable import Stopped, TimeLeft
from gswgan.generators import GeneratorSettings
from gswgan.privacy import BatchStreams, Contribution, Streams

WARM = WarmStart(
    iterations=3, generator=GeneratorSettings(architecture="dcgan", width=4, spectral_norm=True), learning_rate=1e-3,
    betas=(0.5, 0.9),
)  # fmt: skip


def made(mechanism_for, warm: WarmStart | None = WARM, note=lambda text: None) -> Ensemble:
    return Ensemble(
        EnsembleSettings(width=4, updates=2, learning_batch=4, learning_rate=1e-3),
        CriticShape(image_size=8, channels=1, classes=3, width=4),
        mechanism_for(Contribution(clip_norm=1.0, rows=2)),
        count=6, public=Streams.public(0), batches=BatchStreams(key_of(1)),
        device=torch.device("cpu"), warm_start=warm, note=note,
    )  # fmt: skip


def warmed(data, mechanism_for, warm: WarmStart | None = WARM) -> Ensemble:
    ensemble = made(mechanism_for, warm)
    ensemble.prepare(data)
    return ensemble


class Memory:
    """A store that is due after every `every` iterations."""

    def __init__(self, every: int) -> None:
        self.every, self.saved, self.asked = every, None, 0

    def is_due(self) -> bool:
        self.asked += 1
        return self.asked % self.every == 0

    def save(self, step, parts) -> None:
        self.saved = step, {part: {name: value.clone() for name, value in of.items()} for part, of in parts.items()}

    def load(self):
        return self.saved

    def remove(self) -> None:
        self.saved = None


class Crash(BaseException):
    pass


def test_every_critic_warms_up_and_nothing_is_released(mechanism_for) -> None:
    data = tiny_images(60)
    warm, cold = warmed(data, mechanism_for), warmed(data, mechanism_for, None)
    assert warm.adam.steps.tolist() == [6] * 6  # n_dis updates an iteration
    assert cold.adam.steps.tolist() == [0] * 6
    for k in range(6):
        assert not torch.equal(warm.params["conv1.weight"][k], cold.params["conv1.weight"][k])
    assert warm._mechanism.ledger.entries == []


def test_a_warm_start_stays_in_its_part(mechanism_for) -> None:
    """One record changed: exactly one critic comes out of the warm start differently."""
    data = tiny_images(60)
    images = data.images.copy()
    images[11] = 255 - images[11]
    one, other = warmed(data, mechanism_for), warmed(dataclasses.replace(data, images=images), mechanism_for)
    (owner,) = [k for k in range(6) if 11 in one.partitions.table[k].tolist()]
    different = [
        k for k in range(6) if any(not np.array_equal(one.state()[n][k], other.state()[n][k]) for n in one.state())
    ]
    assert different == [owner]


def test_a_resumed_run_does_not_warm_up_again(mechanism_for) -> None:
    data = tiny_images(60)
    ensemble = warmed(data, mechanism_for)
    before = {name: value.clone() for name, value in ensemble.state().items()}
    ensemble.prepare(data, resumed=True)
    assert all(torch.equal(before[name], value) for name, value in ensemble.state().items())


@pytest.fixture
def two_chunks(monkeypatch) -> int:
    """Chunks of four: the six critics make one and a half, so the second is filled up with copies. All iterations."""
    monkeypatch.setitem(critics.CRITICS_PER_CHUNK, "cpu", 4)
    return 2 * WARM.iterations


def test_a_stopped_warm_start_goes_on_bit_for_bit(mechanism_for, two_chunks: int) -> None:
    data = tiny_images(60)
    expected = warmed(data, mechanism_for).state()
    for stop in range(1, two_chunks + 1):
        store, asked = Memory(every=1000), []
        stops = dataclasses.replace(
            WARM, store=store, stopped=lambda asked=asked, stop=stop: asked.append(0) or len(asked) == stop
        )
        with pytest.raises(Stopped):
            warmed(data, mechanism_for, stops)
        assert store.saved[0] == len(asked) == stop  # at once, and saved
        again = warmed(data, mechanism_for, dataclasses.replace(WARM, store=store))
        assert again._mechanism.ledger.entries == []
        for name, value in again.state().items():
            assert torch.equal(value, expected[name]), name
        assert store.saved[0] == two_chunks  # the end is saved too: the first steps may crash
        once_more = warmed(data, mechanism_for, dataclasses.replace(WARM, store=store))
        assert all(torch.equal(value, expected[name]) for name, value in once_more.state().items())


@pytest.mark.parametrize("every", [1, 4, 1000])
def test_a_warm_start_that_crashed_goes_on_from_what_was_saved(mechanism_for, two_chunks: int, every: int) -> None:
    data = tiny_images(60)
    expected = warmed(data, mechanism_for).state()
    for last in range(1, two_chunks):
        store, passed = Memory(every), []

        def stopped(passed=passed, last=last) -> bool:
            passed.append(0)
            if len(passed) > last:
                raise Crash
            return False

        with pytest.raises(Crash):
            warmed(data, mechanism_for, dataclasses.replace(WARM, store=store, stopped=stopped))
        assert (store.saved[0] if store.saved else 0) == last // every * every
        again = warmed(data, mechanism_for, dataclasses.replace(WARM, store=store))
        assert all(torch.equal(value, expected[name]) for name, value in again.state().items())


def test_a_warm_start_tells_how_far_it_is(mechanism_for, two_chunks: int) -> None:
    notes: list[str] = []
    made(mechanism_for, note=notes.append).prepare(tiny_images(60))
    shares = [int(note.split(":")[1].split("%")[0]) for note in notes]
    assert shares == [0, 16, 33, 50, 66, 83]
    assert all("left" in note for note in notes[1:])
    notes.clear()
    progress = TimeLeft(10_000, 0, notes.append, "warm start of the critics")
    for done in range(10_000):
        progress.report(done)
    assert len(notes) == 20
