"""The server's round: equal to the centralized trainer, robust against what clients send and against its own death."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from in_children import SERVER_DEATHS, kill_servers
from rounds import answer_all, make_clients, make_round, people, small_plan

from conftest import noise_by_name
from gswgan.critics.kernel.embedding import Embedding
from gswgan.errors import PlanError, PrivacyError, StorageError
from gswgan.federated import server as module
from gswgan.federated.messages import answer, pack, question, shape_of
from gswgan.federated.server import Round, create_run
from gswgan.plan.defaults import sum_noise
from gswgan.privacy.ledger import read_ledger
from gswgan.privacy.mechanism import GRID_BITS
from gswgan.run.folder import RunFolder
from gswgan.run.loop import run
from gswgan.run.released import load
from processes import Child

DATA = people()
CPU = torch.device("cpu")
UNIT = 2**GRID_BITS
KNOWN = small_plan(DATA, insecure_reproducible=True)
BAD = "person 03"
WIDTH = shape_of(KNOWN)[1]


def flat(folder: RunFolder) -> np.ndarray:
    """The released sums with their counts, as one vector."""
    embedding = Embedding.load(folder.embedding)
    return torch.cat([embedding.sums, embedding.counts[:, None]], dim=1).numpy().ravel()


@functools.cache
def replies() -> dict[str, dict[str, str | bytes]]:
    """What every client sends in the plan whose noise is known."""
    with tempfile.TemporaryDirectory() as state:
        those = make_clients(Path(state), DATA, KNOWN, insecure=True)
        return {name: client.reply(question(KNOWN)) for name, client in those.items()}


def released(root: Path, *then: dict[str, object], but: str = "", by_name: bool = True) -> np.ndarray:
    """The release, with known noise, of a round in which everybody answers, `but` not, and `then` more comes in.

    The noise follows from the name alone, so that releases can be subtracted; or it is a run's own.
    """
    held = make_round(root, DATA, KNOWN)
    for node, (name, fields) in enumerate(replies().items()):
        assert name == but or held.take(fields, node=node) is None
    for node, fields in enumerate(then):
        held.take(fields, node=1000 + node)
    with noise_by_name() if by_name else contextlib.nullcontext():
        held.release()
    return flat(held.folder)


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    """The release without the one client that will misbehave."""
    return released(tmp_path_factory.mktemp("without") / "run", but=BAD)


def test_the_round_equals_the_centralized_trainer_by_person(tmp_path: Path):
    plan = KNOWN
    central = RunFolder.create(tmp_path / "central", plan)
    run(central, DATA, device=CPU)
    held = make_round(tmp_path / "federated", DATA, plan)
    answer_all(held, make_clients(tmp_path / "state", DATA, plan, insecure=True))
    held.release()
    run(held.folder, None, device=CPU)
    for name in ("embedding", "generator", "ledger", "samples"):  # the same bytes, not only within 1e-6
        assert getattr(central, name).read_bytes() == getattr(held.folder, name).read_bytes()
    assert flat(central).dtype == np.float64


def test_privacy_json_and_the_card_state_both_observers(tmp_path: Path):
    for trust, zeroed in (("trusted-aggregator", True), ("untrusted-server", False)):
        plan = small_plan(DATA, trust=trust, epsilon=10 if zeroed else 200)
        held = make_round(tmp_path / trust, DATA, plan)
        answer_all(held, make_clients(tmp_path / f"{trust} state", DATA, plan))
        held.release()
        run(held.folder, None, device=CPU)
        told, card = json.loads(held.folder.privacy.read_text()), held.folder.card.read_text()
        found = [(cost["observer"], cost["neighbours"]) for cost in told["guarantees"]]
        assert told["trust"] == trust
        if zeroed:
            assert found == [("public", "zeroed"), ("public", "replace-one")]
            assert [one["observer"] for one in told["open_to"]] == ["server"]
            assert "NO guarantee towards the server" in card
        else:
            assert found == [("server", "replace-one"), ("public", "replace-one")]
            assert told["open_to"] == []
            (only,) = (one for one in told["assumed"] if "code that it installed itself" in one)
            assert f"- assumed: {only}" in card  # epsilon towards the server rests on it
        assert told["epsilon"] == told["guarantees"][0]["epsilon"] >= plan.guarantee.epsilon
        header, entries, _ = read_ledger(held.folder.ledger)
        assert header["observer"] == plan.guarantee.observer
        assert [entry.event for entry in entries] == [plan.privacy.event]
        assert load(tmp_path / trust).sample(3)[0].shape == (3, 8, 8)


def test_an_untrusted_server_adds_up_what_it_gets_and_states_the_noise_of_all(tmp_path: Path):
    plan = small_plan(DATA, trust="untrusted-server", epsilon=200)
    everybody = make_clients(tmp_path / "state", DATA, plan)
    held = make_round(tmp_path / "run", DATA, plan)
    answer_all(held, everybody)
    held.release()
    total = sum(np.frombuffer(client.answer(plan), "<i8") for client in everybody.values())
    assert flat(held.folder) == pytest.approx(total * (plan.privacy.clip_norm / UNIT), abs=1e-12)
    stated = Embedding.load(held.folder.embedding).noise_std
    assert stated == pytest.approx(math.sqrt(12) * plan.privacy.noise_std)
    assert stated == sum_noise(plan.facts, plan.privacy)


def test_the_longest_legal_answer_moves_the_sum_by_the_clip_norm(tmp_path: Path, without: np.ndarray):
    clip, spread = KNOWN.privacy.clip_norm, np.random.default_rng(0).normal(size=WIDTH)
    longest = (np.eye(1, WIDTH) * UNIT).astype(np.int64)
    spread = np.trunc(spread / np.linalg.norm(spread) * UNIT * (1 - 1e-6)).astype(np.int64)
    for index, vector in enumerate((longest, spread)):
        moved = released(tmp_path / str(index), answer(BAD, KNOWN, pack(vector, KNOWN)), but=BAD) - without
        assert 0.99 * clip < np.linalg.norm(moved) <= clip * (1 + 1e-9)  # it does count


def test_a_server_that_comes_back_keeps_the_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    held = make_round(tmp_path / "run", DATA, KNOWN, seconds=100)
    end, now = held.open(), time.time()
    monkeypatch.setattr(time, "time", lambda: now + 60)
    assert Round(held.folder).open() == end
    assert not Round(held.folder).is_over()
    monkeypatch.setattr(time, "time", lambda: now + 101)
    assert Round(held.folder).is_over()
    assert "late" in held.take(replies()[BAD], node=1)
    held.release()
    assert "late" in Round(held.folder).take(replies()[BAD], node=1)


def test_clients_that_never_answer_count_as_zero_and_a_round_of_nobody_still_releases(tmp_path: Path):
    plan = KNOWN
    nobody = make_round(tmp_path / "nobody", DATA, plan)
    with noise_by_name():
        nobody.release()
    noise = flat(nobody.folder)
    assert 0.7 < noise.std() / plan.privacy.noise_std < 1.4
    everybody = make_clients(tmp_path / "state", DATA, plan, insecure=True)
    some = {name: everybody[name] for name in ("person 02", "person 09")}
    held = make_round(tmp_path / "some", DATA, plan)
    answer_all(held, some)
    with noise_by_name():
        held.release()
    rows = sum(np.frombuffer(client.answer(plan), "<i4").astype(np.int64) for client in some.values())
    assert flat(held.folder) - noise == pytest.approx(rows * (plan.privacy.clip_norm / UNIT), abs=1e-12)


@pytest.fixture(scope="module")
def graves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rounds whose server was killed with SIGKILL at each place."""
    root = tmp_path_factory.mktemp("killed")
    done = Child(kill_servers, root, KNOWN).wait()
    assert done.returncode == 0, done.stderr
    return root


@pytest.mark.parametrize("place", SERVER_DEATHS)
def test_a_server_that_is_killed_goes_on_and_releases_once(tmp_path: Path, graves: Path, place: str):
    plan = KNOWN
    straight = released(tmp_path / "run", by_name=False)
    held = Round(RunFolder(graves / place / "run"))
    assert len(held.answered) == (5 if place == "in the round" else 12)
    those = make_clients(graves / place / "state", DATA, plan, insecure=True)
    for node, (name, client) in enumerate(those.items()):
        if name not in held.answered:
            assert held.take(client.reply(held.question()), node=node) is None
    held.release()
    assert np.array_equal(flat(held.folder), straight)
    assert len(read_ledger(held.folder.ledger)[1]) == 1
    run(held.folder, None, device=CPU)
    assert held.folder.is_finished
    assert not (held.folder.private / "answers").exists()


def test_nothing_of_a_client_is_left_with_the_server(tmp_path: Path):
    plan = small_plan(DATA)
    held = make_round(tmp_path / "run", DATA, plan)
    everybody = make_clients(tmp_path / "state", DATA, plan)
    answer_all(held, everybody)
    assert (held.folder.private / "answers").stat().st_mode & 0o077 == 0
    held.release()
    run(held.folder, None, device=CPU)
    sums = [client.answer(plan) for client in everybody.values()]
    for path in held.folder.root.rglob("*"):
        assert not path.is_file() or not any(part in path.read_bytes() for part in sums)
    assert not any(
        name in (held.folder.release / file).read_text()
        for name in everybody
        for file in ("card.md", "federation.json", "model.json")
    )


def test_the_list_of_clients_is_the_planned_one(tmp_path: Path):
    plan = small_plan(DATA)
    for names in (DATA.person_ids[:-1], (*DATA.person_ids[:-1], DATA.person_ids[0])):
        with pytest.raises(PlanError, match="as planned"):
            create_run(tmp_path / "run", plan, names, 10)
    with pytest.raises(PlanError, match="deadline"):
        create_run(tmp_path / "run", plan, DATA.person_ids, 0)
    assert module.MAX_SECONDS > 3600


@pytest.mark.timeout(120)  # a pipe without a writer must not be waited for
def test_pipes_links_and_folders_of_others_are_refused_before_answers_are_read(tmp_path: Path):
    held = make_round(tmp_path / "run", DATA, small_plan(DATA))
    folder, kept = held.folder, held.answers.path_of(BAD)
    os.mkfifo(kept)
    with pytest.raises(StorageError, match="a named pipe"):
        Round(folder)
    kept.unlink()
    kept.write_bytes(bytes(2**20))
    with pytest.raises(StorageError, match="at most"):
        Round(folder)
    kept.unlink()
    (folder.private / "round.lock").symlink_to(tmp_path / "target")
    with pytest.raises(StorageError, match="a symbolic link"), Round(folder).held():
        pass
    assert not (tmp_path / "target").exists()
    os.mkfifo(kept)
    folder.private.chmod(0o755)
    with pytest.raises(StorageError, match="closed to all others"):
        Round(folder)
    folder.private.chmod(0o700)
    folder.owner.unlink()
    with pytest.raises(PrivacyError, match="made by this user"):
        Round(folder)
