"""No neighbour moves the exact sum by more than is accounted for, and some neighbours move it by that much."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from gswgan.privacy import Contribution, Gaussian, GaussianMechanism, Sampled
from gswgan.privacy.errors import PrivacyError
from gswgan.privacy.mechanism import GRID_BITS, Block
from privacy.conftest import MakeMechanism

UNIT = 2**GRID_BITS
SLOTS, WIDTH = 4, 5

# contribution, squared sensitivity in squared clip norms: replaced, zeroed
CASES = [
    pytest.param(Contribution(clip_norm=0.7, counts=True), 4, 2, id="record with its count"),
    pytest.param(Contribution(clip_norm=0.7), 4, 1, id="single row"),
    pytest.param(Contribution(clip_norm=0.7, rows=4), 4 * 4, 4, id="block of four rows"),
]


def mechanism_of(make: MakeMechanism, contribution: Contribution) -> GaussianMechanism:
    event = Gaussian(noise_std=1.0, sensitivity=contribution.sensitivity("replace-one"))
    return make(contribution, event)


def a_contribution(generator: torch.Generator, contribution: Contribution) -> Block:
    """A contribution that tries to do harm: any direction, length, label, or values that are no numbers."""

    def pick(n: int) -> int:
        return int(torch.randint(n, (), generator=generator))

    rows = torch.randn(1, contribution.rows, WIDTH, dtype=torch.float64, generator=generator)
    kind = pick(6)
    if kind == 0:  # a corner of the ball
        rows = torch.zeros_like(rows)
        rows[..., pick(WIDTH)] = (-1.0) ** pick(2)
    elif kind == 1:
        rows = torch.ones_like(rows) * (-1.0) ** pick(2)
    elif kind == 2:
        rows[0, 0, 0] = [math.nan, math.inf, -math.inf][pick(3)]
    rows = rows * contribution.clip_norm * 10.0 ** (pick(7) - 2)
    if contribution.rows > 1:
        return rows, None
    return rows, torch.tensor([pick(SLOTS + 3) - 1])  # -1 and above SLOTS are invalid


def exact_sum(mechanism: GaussianMechanism, blocks: list[Block]) -> NDArray[np.int64]:
    return mechanism._sum(blocks, SLOTS, WIDTH)


def moved(one: NDArray[np.int64], two: NDArray[np.int64]) -> int:
    """Squared distance in grid steps, as a Python integer."""
    return sum(int(a - b) ** 2 for a, b in zip(one.ravel().tolist(), two.ravel().tolist()))


def within(squared_distance: int, claim: float) -> None:
    assert squared_distance <= claim * UNIT * UNIT


@pytest.mark.parametrize(("contribution", "replaced", "zeroed"), CASES)
def test_no_neighbour_moves_the_sum_by_more_than_the_sensitivity(
    make_mechanism: MakeMechanism, contribution: Contribution, replaced: int, zeroed: int
) -> None:
    mechanism = mechanism_of(make_mechanism, contribution)
    generator = torch.Generator().manual_seed(5)
    for _ in range(300):
        others = [a_contribution(generator, contribution) for _ in range(3)]
        one, two = a_contribution(generator, contribution), a_contribution(generator, contribution)
        with_one = exact_sum(mechanism, [*others, one])
        within(moved(with_one, exact_sum(mechanism, [two, *others])), replaced)
        within(moved(with_one, exact_sum(mechanism, others)), zeroed)


def climb(mechanism: GaussianMechanism, start: Tensor, slots: tuple[Tensor | None, Tensor | None]) -> int:
    """Random ascent on the distance between two neighbours; the worst distance that was seen."""
    generator = torch.Generator().manual_seed(11)

    def distance(pair: Tensor) -> int:
        one, two = (exact_sum(mechanism, [(pair[i : i + 1], slots[i])]) for i in (0, 1))
        return moved(one, two)

    best, value = start, distance(start)
    for _ in range(150):
        tried = best + 0.3 * torch.randn(best.shape, dtype=torch.float64, generator=generator)
        if (found := distance(tried)) > value:
            best, value = tried, found
    return value


@pytest.mark.parametrize(("contribution", "replaced", "zeroed"), CASES)
def test_a_search_for_the_worst_pair_comes_close_and_never_beyond(
    make_mechanism: MakeMechanism, contribution: Contribution, replaced: int, zeroed: int
) -> None:
    mechanism = mechanism_of(make_mechanism, contribution)
    start = torch.randn(2, contribution.rows, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    same = None if contribution.rows > 1 else torch.tensor([1])
    other = None if contribution.rows > 1 else torch.tensor([2])
    for second in (same, other):
        worst = climb(mechanism, start, (same, second))
        within(worst, replaced)
    assert climb(mechanism, start, (same, same)) > 0.8 * replaced * UNIT * UNIT


@pytest.mark.parametrize(("contribution", "replaced", "zeroed"), CASES)
def test_the_sensitivity_is_attained_so_a_smaller_claim_is_refuted(
    make_mechanism: MakeMechanism, contribution: Contribution, replaced: int, zeroed: int
) -> None:
    assert contribution.sensitivity("replace-one") == pytest.approx(math.sqrt(replaced) * contribution.clip_norm)
    assert contribution.sensitivity("zeroed") == pytest.approx(math.sqrt(zeroed) * contribution.clip_norm)
    mechanism = mechanism_of(make_mechanism, contribution)
    rows = torch.zeros(1, contribution.rows, WIDTH, dtype=torch.float64)
    rows[..., 0] = contribution.clip_norm
    slot = None if contribution.rows > 1 else torch.tensor([0])
    one, opposite = exact_sum(mechanism, [(rows, slot)]), exact_sum(mechanism, [(-rows, slot)])
    nothing = exact_sum(mechanism, [])
    for distance, claim in ((moved(one, opposite), replaced), (moved(one, nothing), zeroed)):
        within(distance, claim)
        with pytest.raises(AssertionError):
            within(distance, claim * (1 - 1e-6))


def test_a_record_that_changes_class_moves_sums_and_counts_by_two(make_mechanism: MakeMechanism) -> None:
    contribution = Contribution(clip_norm=1.0, counts=True)
    mechanism = mechanism_of(make_mechanism, contribution)
    rows = torch.tensor([[[0.6, 0.8, 0.0, 0.0, 0.0]]], dtype=torch.float64)
    one, two = (exact_sum(mechanism, [(rows, torch.tensor([label]))]) for label in (0, 3))
    assert math.sqrt(moved(one, two)) / UNIT == pytest.approx(2.0, rel=1e-7)
    with pytest.raises(AssertionError):
        within(moved(one, two), 2)  # sqrt(2) would be a wrong claim


def test_a_record_with_an_invalid_label_is_the_zeroed_neighbour(make_mechanism: MakeMechanism) -> None:
    mechanism = mechanism_of(make_mechanism, Contribution(clip_norm=1.0, counts=True))
    rows = torch.tensor([[[1.0, 0.0, 0.0, 0.0, 0.0]]])
    distance = moved(
        exact_sum(mechanism, [(rows, torch.tensor([-1]))]), exact_sum(mechanism, [(rows, torch.tensor([1]))])
    )
    within(distance, 2)
    assert distance > 1.99 * UNIT * UNIT


def test_a_critics_block_moves_by_two_clip_norms_times_the_root_of_the_batch(make_mechanism: MakeMechanism) -> None:
    contribution = Contribution(clip_norm=1.0, rows=4)
    assert contribution.sensitivity("replace-one") == 2 * math.sqrt(4)
    mechanism = mechanism_of(make_mechanism, contribution)
    rows = torch.full((1, 4, WIDTH), 100.0)
    distance = moved(exact_sum(mechanism, [(rows, None)]), exact_sum(mechanism, [(-rows, None)]))
    assert math.sqrt(distance) / UNIT == pytest.approx(2 * math.sqrt(4), rel=1e-6)


def accepts(make: MakeMechanism, contribution: Contribution, event: Gaussian | Sampled) -> bool:
    try:
        make(contribution, event)
    except PrivacyError:
        return False
    return True


@pytest.mark.parametrize("neighbours", ["replace-one", "zeroed"])
@pytest.mark.parametrize(("contribution", "replaced", "zeroed"), CASES)
def test_a_claim_below_the_sensitivity_is_refused(
    make_mechanism: MakeMechanism, contribution: Contribution, replaced: int, zeroed: int, neighbours: str
) -> None:
    enough = math.sqrt(replaced if neighbours == "replace-one" else zeroed) * contribution.clip_norm
    for factor, fine in ((1.0, True), (1.5, True), (0.9999, False), (0.5, False)):
        event = Gaussian(noise_std=1.0, sensitivity=enough * factor, neighbours=neighbours)  # type: ignore[arg-type]
        assert accepts(make_mechanism, contribution, event) == fine


def test_sampling_with_counts_needs_the_radius_of_the_ball(make_mechanism: MakeMechanism) -> None:
    """A sampled sum is sometimes without the unit, at 0, which is sqrt(2) from a counted record and not 1."""
    counted = Contribution(clip_norm=1.0, counts=True)
    for sensitivity, fine in ((2.0, False), (2 * math.sqrt(2), True)):
        event = Sampled(rate=0.1, event=Gaussian(noise_std=1.0, sensitivity=sensitivity))
        assert accepts(make_mechanism, counted, event) == fine
    zeroed = Gaussian(noise_std=1.0, sensitivity=math.sqrt(2), neighbours="zeroed")
    assert accepts(make_mechanism, counted, Sampled(rate=0.1, event=zeroed))
    block = Sampled(rate=0.1, event=Gaussian(noise_std=1.0, sensitivity=4.0))
    assert accepts(make_mechanism, Contribution(clip_norm=1.0, rows=4), block)
