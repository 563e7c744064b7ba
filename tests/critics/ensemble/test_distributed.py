"""Critics in several processes: the same release as in one, exactly; other processes are real ones, over gloo."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from other_ranks import BATCH, CONTRIBUTION, COUNT, CPU, EVENT, LIMIT, Fakes, hold_critics, part

from conftest import copied, same
from gswgan.critics.ensemble.distributed import AllReduceMechanism, DistributedEnsemble, PartialSum, Ranks
from gswgan.data import ImageData
from gswgan.errors import RunError
from processes import Child


@contextmanager
def others(folder: Path, world: int) -> Iterator[tuple[Ranks, list[Child]]]:
    """This process as rank 0, and the others."""
    store = folder / "store"
    processes = [Child(hold_critics, store, rank, world) for rank in range(1, world)]
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=world, timeout=LIMIT)
    ranks = Ranks(0, world)
    try:
        yield ranks, processes
    finally:
        ranks.end()
        for process in processes:
            process.wait()


def releases(ensemble, steps: range) -> list[torch.Tensor]:
    found = []
    for step in steps:
        ensemble.learn(step, Fakes())
        found.append(ensemble.upstream_gradient(*Fakes().fakes(BATCH, "scored", step)))
    return found


@pytest.fixture
def summed(mechanism_for: Callable) -> Callable[[Ranks], AllReduceMechanism]:
    """Rank 0's mechanism, with the streams of `mechanism_for`: the noise is the same for the same release."""

    def make(ranks: Ranks) -> AllReduceMechanism:
        plain = mechanism_for(CONTRIBUTION, event=EVENT)
        return AllReduceMechanism(
            ranks, CPU, contribution=CONTRIBUTION, event=EVENT, ledger=plain.ledger, streams=plain._streams
        )

    return make


def test_three_ranks_release_what_one_does_and_go_on_as_one(
    tmp_path_factory: pytest.TempPathFactory, stripes: ImageData, mechanism_for: Callable, summed: Callable
) -> None:
    alone = part(mechanism_for(CONTRIBUTION, event=EVENT))
    alone.prepare(stripes)
    expected = releases(alone, range(4))
    middle, later = copied(alone.state()), releases(alone, range(4, 6))
    with others(tmp_path_factory.mktemp("ranks"), 3) as (ranks, _):
        mechanism = summed(ranks)
        spread = DistributedEnsemble(ranks, part(mechanism, ranks.held(COUNT)))
        spread.prepare(stripes)
        assert len(spread.part.images) < len(stripes.images) / 2  # the others' records are not here
        found = releases(spread, range(4))
        state = spread.state()
        spread.catch_up(1, Fakes())  # type: ignore[arg-type]
        assert not same(spread.state(), state)
        spread.load_state(middle)
        assert same(spread.state(), middle)
        again = releases(spread, range(4, 6))
    assert all(torch.equal(one, other) for one, other in zip(expected + later, found + again, strict=True))
    assert same(state, middle)
    assert len(mechanism.ledger.entries) == 6  # one a step, at rank 0 alone
    resumed = part(mechanism_for(CONTRIBUTION, event=EVENT))
    resumed.prepare(stripes, resumed=True)
    resumed.load_state(state)  # from three ranks to one
    assert all(torch.equal(one, other) for one, other in zip(later, releases(resumed, range(4, 6)), strict=True))


def test_a_lost_rank_is_noticed_and_nothing_is_released(tmp_path: Path, stripes: ImageData, summed: Callable) -> None:
    with others(tmp_path, 2) as (ranks, processes):
        mechanism = summed(ranks)
        spread = DistributedEnsemble(ranks, part(mechanism, ranks.held(COUNT)))
        spread.prepare(stripes)
        releases(spread, range(1))
        processes[0].process.kill()
        processes[0].wait()
        with pytest.raises(RunError, match=r"one of them has ended.*--resume"):
            releases(spread, range(1, 20))
        assert len(mechanism.ledger.entries) == 1


@pytest.mark.parametrize(("count", "world"), [(13, 3), (4, 4), (1000, 8), (7, 1)])
def test_every_critic_has_one_rank(count: int, world: int) -> None:
    parts = [Ranks(rank, world).held(count) for rank in range(world)]
    assert [k for held in parts for k in held] == list(range(count))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_parts_of_an_ensemble_are_its_critics(stripes: ImageData, mechanism_for: Callable) -> None:
    """Weights, records and draws go by the number of a critic, not by where it is; a partial sum answers nothing."""
    mechanism = mechanism_for(CONTRIBUTION, event=EVENT)

    class Alone(Ranks):
        def __init__(self) -> None:
            super().__init__(0, 1)
            self.sums: list[np.ndarray] = []

        def broadcast_tensor(self, value: torch.Tensor) -> torch.Tensor:
            """Who takes part, as rank 0 would tell: others in each of three steps."""
            value[mechanism.participants(f"step {len(self.sums) % 3}", COUNT)] = 1
            return value

        def all_reduce(self, total: np.ndarray, device: torch.device) -> np.ndarray:
            self.sums.append(total)
            return total

    def trained(ranks: Alone, held: range | None):
        ensemble = part(PartialSum(ranks, CPU, CONTRIBUTION, EVENT), held)
        ensemble.prepare(stripes)
        return ensemble, releases(ensemble, range(3))

    ranks, pieces = Alone(), Alone()
    whole, nothing = trained(ranks, None)
    assert not torch.stack(nothing).any()
    for held in (range(5), range(5, COUNT)):
        piece, _ = trained(pieces, held)
        own = slice(held.start, held.stop)
        assert same(piece.state(), {name: value[own] for name, value in whole.state().items()})
    assert all(np.array_equal(total, pieces.sums[i] + pieces.sums[3 + i]) for i, total in enumerate(ranks.sums))
