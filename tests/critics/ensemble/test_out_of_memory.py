"""A device with less memory than expected: critics work in smaller chunks, and no release is made twice."""

from __future__ import annotations

import dataclasses
import gc
import math
from collections.abc import Callable

import pytest
import torch
from ensembles import BATCH, Fakes, critic_state, make, same
from test_warm_start import WARM, Memory, warmed

from conftest import tiny_images
from gswgan.critics.ensemble import learners as critics
from gswgan.critics.ensemble.ensemble import Ensemble
from gswgan.errors import RunError
from gswgan.privacy import mechanism as barrier

MOST = 3


def too_many(function: Callable, most: int, *, after: int = 0) -> Callable:
    """The function on a device with memory for so many critics: with more it fails, `after` calls that went well."""
    calls = [0]

    def limited(first, *rest, **options):
        stack = next(iter(first.values())) if isinstance(first, dict) else first
        if len(stack) > most:
            calls[0] += 1
            if calls[0] % (after + 1) == 0:
                raise torch.OutOfMemoryError("injected")
        return function(first, *rest, **options)

    return limited


def steps(ensemble: Ensemble, number: int = 3) -> list[torch.Tensor]:
    found = []
    for step in range(number):
        ensemble.learn(step, Fakes())
        fake, labels = Fakes().fakes(BATCH, "scored", step)
        found.append(ensemble.upstream_gradient(fake, labels))
    return found


def agree(one: Ensemble, other: Ensemble) -> bool:
    return all(same(critic_state(one, k), critic_state(other, k)) for k in range(one.count))


@pytest.mark.parametrize("rate", [0.4, 1.0])
@pytest.mark.parametrize(
    ("module", "name", "after"),
    [(critics, "critic_gradients", 1), (critics, "generator_gradient", 0), (barrier, "clip_to_grid", 0)],
    ids=["in the second update of a step", "while gradients are taken", "while clipping"],
)
def test_chunks_halve_and_the_step_is_one_release(mechanism_for, monkeypatch, stripes, rate, module, name, after):
    """As in a run with small chunks from the start, bit for bit: nobody learns twice, nothing is recorded twice."""
    with monkeypatch.context() as patch:
        patch.setitem(critics.CRITICS_PER_CHUNK, "cpu", MOST)
        small = make(stripes, mechanism_for, rate=rate)
        expected = steps(small)
    large = make(stripes, mechanism_for, rate=rate)
    assert large.chunk > MOST
    monkeypatch.setattr(module, name, too_many(getattr(module, name), MOST, after=after))
    found = steps(large)
    assert large.chunk <= MOST
    ledger = large._mechanism.ledger
    assert [(entry.name, entry.attempt) for entry in ledger.entries] == [(f"step {step}", 0) for step in range(3)]
    assert ledger.total() == small._mechanism.ledger.total()
    if name == "critic_gradients":  # from the first step on in chunks of one size
        assert agree(small, large)
        assert all(torch.equal(one, other) for one, other in zip(expected, found))
    else:  # the first step was learned in larger chunks
        assert large.adam.steps.tolist() == small.adam.steps.tolist()
        for one, other in zip(expected, found):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_a_device_without_memory_for_one_critic_says_so_and_nothing_is_lost(mechanism_for, monkeypatch, stripes):
    ensemble = make(stripes, mechanism_for, rate=1.0)
    before = [critic_state(ensemble, k) for k in range(ensemble.count)]
    monkeypatch.setattr(critics, "critic_gradients", too_many(critics.critic_gradients, 0, after=1))
    with pytest.raises(RunError, match="memory for one of them"):
        steps(ensemble)
    assert all(same(before[k], critic_state(ensemble, k)) for k in range(ensemble.count))
    assert ensemble._mechanism.ledger.entries == []


def test_a_warm_start_begins_anew_with_smaller_chunks_and_goes_on_with_them(mechanism_for, monkeypatch):
    """Six critics on a device for two: 6, 3, 2. What was saved with larger chunks is dropped."""
    data, store = tiny_images(60), Memory(every=1)
    with monkeypatch.context() as patch:
        patch.setitem(critics.CRITICS_PER_CHUNK, "cpu", 2)
        expected = warmed(data, mechanism_for)
    with monkeypatch.context() as patch:
        patch.setattr(critics, "critic_gradients", too_many(critics.critic_gradients, 2, after=3))
        found = warmed(data, mechanism_for, dataclasses.replace(WARM, store=store))
    assert found.adam.steps.tolist() == [6] * 6
    assert agree(expected, found)
    again = warmed(data, mechanism_for, dataclasses.replace(WARM, store=store))  # with memory enough for six
    assert agree(expected, again)


@pytest.mark.gpu
def test_a_gpu_with_little_memory(mechanism_for, stripes):  # pragma: no cover
    """Real exhaustion: less and less of the memory that steps take, until chunks halve; still one release a step."""
    shares, shape = iter((0.8, 0.6, 0.4)), {"count": 96, "width": 64, "learning_batch": 512}

    def work(cap: float) -> tuple[Ensemble, int]:
        ensemble = make(stripes, mechanism_for, rate=1.0, device=torch.device("cuda"), **shape)
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        held, total = torch.cuda.memory_reserved(), torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, (held + cap) / total))
        try:
            for step in range(6):
                ensemble.learn(step, OnDevice())
                fake, labels = OnDevice().fakes(BATCH, "scored", step)
                assert ensemble.upstream_gradient(fake, labels).isfinite().all()
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
        return ensemble, torch.cuda.max_memory_reserved() - held

    ensemble, taken = work(math.inf)
    assert ensemble.chunk == 96
    while ensemble.chunk == 96:
        del ensemble
        ensemble, _ = work(next(shares) * taken)
        assert len(ensemble._mechanism.ledger.entries) == 6


class OnDevice(Fakes):
    def fakes(self, count: int, *index: int | str) -> tuple[torch.Tensor, torch.Tensor]:
        images, labels = super().fakes(count, *index)
        return images.cuda(), labels.cuda()
