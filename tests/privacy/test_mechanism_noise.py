"""The noise of a release: its scale, its resolution, its tail, its independence, its repeatability."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import kstest

from gswgan.privacy import Contribution, Gaussian, Streams
from privacy.conftest import MakeMechanism

Array = NDArray[np.float64]


def plain(noise_std: float = 1.0, clip_norm: float = 1.0) -> tuple[Contribution, Gaussian]:
    return Contribution(clip_norm=clip_norm), Gaussian(noise_std=noise_std, sensitivity=2 * clip_norm)


def has_scale(noise: Array, noise_std: float) -> None:
    assert kstest(noise.ravel() / noise_std, "norm").pvalue > 1e-3


@pytest.mark.parametrize(("noise_std", "clip_norm"), [(1.0, 1.0), (7.462, 1.0), (0.3, 0.01), (250.0, 1.0)])
def test_noise_has_its_scale_and_not_two_thirds_or_three_halves_of_it(
    make_mechanism: MakeMechanism, noise_std: float, clip_norm: float
) -> None:
    noise = make_mechanism(*plain(noise_std, clip_norm)).answer("a", [], slots=4, width=5000).sums
    has_scale(noise, noise_std)
    for wrong in (2 / 3, 3 / 2):
        with pytest.raises(AssertionError):
            has_scale(noise * wrong, noise_std)


def test_noise_is_added_to_the_sum_and_to_the_counts(make_mechanism: MakeMechanism) -> None:
    clip_norm, noise_std = 0.5, 3.0
    contribution = Contribution(clip_norm=clip_norm, counts=True)
    mechanism = make_mechanism(contribution, Gaussian(noise_std=noise_std, sensitivity=2 * clip_norm))
    rows = torch.full((100, 1, 4), 0.1, dtype=torch.float64)
    slot = torch.arange(100) % 5000
    released = mechanism.answer("a", [(rows, slot)], slots=5000, width=4)
    assert released.counts is not None
    truth = np.zeros((5000, 4))
    truth[:100] = 0.1
    has_scale(released.sums - truth, noise_std)
    counted = np.zeros(5000)
    counted[:100] = 1.0
    has_scale((released.counts - counted) * clip_norm, noise_std)  # the count travels with weight clip_norm
    with pytest.raises(AssertionError):
        has_scale(released.counts - counted, noise_std)


def has_full_resolution(draws: Array) -> None:
    """Spacing far below 2^-24 of the scale: no ties, and the bits down to 2^-30 are fair coins."""
    assert len(np.unique(draws)) > len(draws) - 20
    bits = np.floor(np.abs(draws) * 2.0**30).astype(np.int64)
    for place in range(6):
        share = ((bits >> place) & 1).mean()
        assert abs(share - 0.5) < 5 * 0.5 / np.sqrt(len(draws))


def test_noise_has_the_resolution_of_a_double_and_single_precision_has_not(make_mechanism: MakeMechanism) -> None:
    noise = make_mechanism(*plain(250.0)).answer("a", [], slots=1, width=200_000).sums
    assert noise.dtype == np.float64
    has_full_resolution(noise.ravel() / 250.0)
    single = torch.randn(200_000, generator=torch.Generator().manual_seed(1)).numpy().astype(np.float64)
    with pytest.raises(AssertionError):
        has_full_resolution(single)


def reaches_deep(noise: Array) -> None:
    """Far beyond the 5.77 of a 24-bit Box-Muller."""
    assert np.abs(noise).max() > 9


def test_the_tail_reaches_as_deep_as_the_words_allow(
    make_mechanism: MakeMechanism, monkeypatch: pytest.MonkeyPatch
) -> None:
    mechanism = make_mechanism(*plain())
    ends = []
    for word in (0, 1):  # the last bit is the sign
        monkeypatch.setattr(Streams, "words", lambda _, count, *__, w=word: np.full(count, w, dtype=np.uint64))
        noise = mechanism.answer(f"word {word}", [], slots=1, width=3).sums
        reaches_deep(noise)
        ends.append(float(noise[0, 0]))
    assert ends[0] * ends[1] < 0
    box_muller = np.sqrt(-2 * np.log(np.array([2.0**-24])))  # the smallest uniform of single precision
    with pytest.raises(AssertionError):
        reaches_deep(box_muller)


def test_the_tail_has_no_holes(make_mechanism: MakeMechanism, monkeypatch: pytest.MonkeyPatch) -> None:
    """A 63-bit tail probability leaves grid points out below 2^-50; every one of them must be possible.

    A missing point is an output that a neighbouring data set cannot give, with probability beyond delta when
    summed over a run's coordinates.
    """
    original = Streams.words
    tail = np.uint64(2**12 << 1)  # tail probability about 2^-52

    def words(self: Streams, count: int, *name: int | str) -> NDArray[np.uint64]:
        return original(self, count, *name) if "more bits" in name else np.full(count, tail, dtype=np.uint64)

    monkeypatch.setattr(Streams, "words", words)
    noise = make_mechanism(*plain(25.0)).answer("a", [], slots=1, width=100).sums
    assert len(np.unique(noise)) > 90


def test_released_values_lie_on_the_grid(make_mechanism: MakeMechanism) -> None:
    """Sum and noise are both multiples of clip_norm 2^-26, so no low-order bit tells them apart."""
    mechanism = make_mechanism(*plain(1.0))
    rows = torch.rand(50, 1, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) / 7
    steps = mechanism.answer("a", [(rows, None)], slots=1, width=40).sums * 2.0**26
    assert (steps == np.rint(steps)).all()
    assert len(set((steps.astype(np.int64) % 16).ravel().tolist())) > 8  # and not of something coarser


def uncorrelated(one: Array, two: Array) -> None:
    one, two = one.ravel(), two.ravel()
    assert abs(np.corrcoef(one, two)[0, 1]) < 5 / np.sqrt(one.size)
    assert abs(np.corrcoef(np.abs(one), np.abs(two))[0, 1]) < 5 / np.sqrt(one.size)


def test_noise_is_independent_over_coordinates_steps_attempts_plans_and_keys(make_mechanism: MakeMechanism) -> None:
    mechanism = make_mechanism(*plain())
    first = mechanism.answer("step 1", [], slots=100, width=100).sums
    rows = torch.full((1, 1, 100), 1e-3)
    again = mechanism.answer("step 1", [(rows, None)], slots=100, width=100).sums  # another sum: another attempt
    others = [
        mechanism.answer("step 2", [], slots=100, width=100).sums,
        again,
        make_mechanism(*plain(), folder="b", context="other").answer("step 1", [], slots=100, width=100).sums,
        make_mechanism(*plain(), folder="c", secret=b"k" * 32).answer("step 1", [], slots=100, width=100).sums,
    ]
    for other in others:
        uncorrelated(first, other)
    uncorrelated(first[:-1], first[1:])
    uncorrelated(first[:, :-1], first[:, 1:])
    with pytest.raises(AssertionError):
        uncorrelated(first, first + 0.5 * others[0])


def test_two_observers_never_share_noise(make_mechanism: MakeMechanism) -> None:
    """The same name at two scales for two observers who talk to each other: the difference must not be the sum."""
    public = make_mechanism(*plain(1.0)).answer("a", [], slots=1, width=1000).sums
    server = make_mechanism(*plain(2.0), observer="server").answer("a", [], slots=1, width=1000).sums
    uncorrelated(public, server)


def test_the_same_key_name_and_sum_give_the_same_bytes(make_mechanism: MakeMechanism) -> None:
    rows = torch.rand(10, 1, 20, generator=torch.Generator().manual_seed(3))
    one = make_mechanism(*plain(), folder="a").answer("x", [(rows, None)], slots=1, width=20).sums
    two = make_mechanism(*plain(), folder="b").answer("x", [(rows, None)], slots=1, width=20).sums
    assert one.tobytes() == two.tobytes()
    other = make_mechanism(*plain(), folder="c").answer("y", [(rows, None)], slots=1, width=20).sums
    assert not (one == other).any()
