"""The records of preset `refined` in several processes: bit for bit the run of one; other ranks are real, over gloo."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from record_rank import LIMIT, hold_some
from works import small_refined

from conftest import tiny_images, write_persons
from gswgan.api.inputs import source_of
from gswgan.critics.ensemble.distributed import Ranks
from gswgan.critics.refined.records import HeldRecords
from gswgan.errors import RunError
from gswgan.evaluation.real_data import load_data
from gswgan.methods import make_plan
from gswgan.plan.facts import Facts
from gswgan.privacy import GaussianMechanism
from gswgan.privacy.ledger import read_ledger
from gswgan.run.folder import RunFolder
from gswgan.run.loop import run
from processes import Child

CPU = torch.device("cpu")
STEPS = 4


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of images, and what one process makes of them."""
    place, data = tmp_path_factory.mktemp("spread"), tiny_images()
    np.savez(place / "data.npz", images=data.images[:, 0], labels=data.labels)
    assert run(made(place / "alone", place), loaded(place), device=CPU)
    return place


@pytest.fixture(scope="module")
def place_by_person(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same by person: of 24, each of whom has four records that do not lie next to each other."""
    place, data = tmp_path_factory.mktemp("spread by person"), tiny_images()
    np.savez(place / "data.npz", images=data.images[:, 0], labels=data.labels)
    write_persons(place / "persons.csv", [f"person-{record % 24:02}" for record in range(96)])
    assert run(made(place / "alone", place), loaded(place), device=CPU)
    return place


def where(place: Path) -> dict[str, object]:
    table = place / "persons.csv"
    return source_of(place / "data.npz", classes=3, group_by=table if table.exists() else None)


def loaded(place: Path):
    return load_data(**where(place))


def made(root: Path, place: Path) -> RunFolder:
    facts = Facts.of(loaded(place))
    epsilon = 10 if facts.persons is None else 1000  # of so few persons nothing would be seen
    plan = make_plan(facts, preset="refined", steps=STEPS, epsilon=epsilon, insecure_reproducible=True)
    return RunFolder.create(root, small_refined(plan, steps=2))


def published(folder: RunFolder) -> list[bytes]:
    return [path.read_bytes() for path in (folder.generator, folder.first_generator, folder.ledger, folder.privacy)]


@contextmanager
def others(place: Path, folder: Path, world: int) -> Iterator[tuple[Ranks, list[Child]]]:
    """This process as rank 0, and the others."""
    store = folder / "store"
    processes = [Child(hold_some, store, rank, world) for rank in range(1, world)]
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=world, timeout=LIMIT)
    ranks = Ranks(0, world)
    ranks.where = where(place)
    try:
        yield ranks, processes
    finally:
        ranks.end()
        for process in processes:
            process.wait()


@pytest.mark.parametrize("which", ["place", "place_by_person"])
def test_two_ranks_release_what_one_does(
    which: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here: list[int] = []
    place = request.getfixturevalue(which)
    own = HeldRecords.answer

    def answer(self, *given):
        found = own(self, *given)
        here.append(self.descent.participants)
        assert len(self.images) == 48 + (which == "place_by_person")  # half of the records (and a black image)
        return found

    monkeypatch.setattr(HeldRecords, "answer", answer)
    folder = made(tmp_path / "run", place)
    with others(place, tmp_path, 2) as (ranks, processes):
        assert run(folder, loaded(place), device=CPU, ranks=ranks)
    assert [process.wait().returncode for process in processes] == [0]
    assert published(folder) == published(RunFolder(place / "alone"))
    assert len(here) == STEPS
    units = folder.plan().facts.persons or 96
    assert 0 < sum(here) < units * STEPS * folder.plan().sums.rate  # some of the participants were at the other rank


def test_a_lost_rank_is_noticed_and_one_process_goes_on_to_the_same_bytes(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, answer = made(tmp_path / "run", place), GaussianMechanism.answer
    with others(place, tmp_path, 2) as (ranks, processes):

        def dying(self, name, *rest, **options):
            if name == "step 2":
                processes[0].process.kill()
                processes[0].wait()
            return answer(self, name, *rest, **options)

        monkeypatch.setattr(GaussianMechanism, "answer", dying)
        with pytest.raises(RunError, match=r"one of them has ended.*--resume"):
            run(folder, loaded(place), device=CPU, ranks=ranks)
    monkeypatch.setattr(GaussianMechanism, "answer", answer)
    assert [entry.name for entry in read_ledger(folder.ledger)[1]] == ["embedding", "step 0", "step 1"]
    assert not folder.generator.exists()
    assert run(folder, loaded(place), device=CPU)
    assert published(folder) == published(RunFolder(place / "alone"))
