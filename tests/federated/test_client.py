"""A client: what it sends, what it remembers, what it refuses."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from critic_rounds import critic_plan
from in_children import CLIENT_DEATHS, client_of_mode, kill_clients, reply_of
from rounds import make_clients, people, read_log, small_plan, why_refused

from conftest import write_persons
from gswgan.critics.kernel.embedding import person_blocks
from gswgan.critics.kernel.features import RandomFeatures
from gswgan.data import clients
from gswgan.federated import client_answers as module
from gswgan.federated.client import Client
from gswgan.federated.memory import Cap, Memory, memories
from gswgan.federated.messages import question, unpack
from gswgan.federated.simulation import split_data
from gswgan.federated.site import client_of
from gswgan.federated.trust import weight_of_counts
from gswgan.plan.plan import Plan
from gswgan.privacy.ledger import read_ledger
from gswgan.privacy.mechanism import GRID_BITS, clip_to_grid
from processes import Child

DATA = people()
FIRST = DATA.person_ids[0]


def lines(home: Path) -> int:
    return sum(len(read_ledger(path)[1]) for path in home.glob("*/ledger.jsonl"))


def test_a_client_sends_the_row_that_the_centralized_trainer_would_clip(tmp_path: Path):
    plan = small_plan(DATA)
    features = RandomFeatures(plan.critic, 1, 8, torch.device("cpu"))
    blocks = person_blocks(DATA, features, weight_of_counts(plan))
    central = [clip_to_grid(row, plan.privacy.clip_norm).flatten() for row, _ in blocks]
    for client, row in zip(make_clients(tmp_path, DATA, plan).values(), central):
        assert np.array_equal(unpack(client.answer(plan), plan)[0], row.numpy())


def test_a_noisy_answer_has_its_noise(tmp_path: Path):
    plan = small_plan(DATA, trust="untrusted-server")
    clear = small_plan(DATA)
    features = RandomFeatures(clear.critic, 1, 8, torch.device("cpu"))
    blocks = person_blocks(DATA, features, weight_of_counts(plan))
    rows = [clip_to_grid(row, plan.privacy.clip_norm).flatten().numpy() for row, _ in blocks]
    noise = np.concatenate([
        unpack(client.answer(plan), plan)[0] - row
        for client, row in zip(make_clients(tmp_path, DATA, plan).values(), rows)
    ])  # fmt: skip
    scale = plan.privacy.noise_std / plan.privacy.clip_norm * 2.0**GRID_BITS
    assert 0.9 < noise.std() / scale < 1.1  # 1188 draws; two thirds and three halves are far away
    assert abs(noise.mean()) < 4 * scale / np.sqrt(len(noise))


@pytest.mark.parametrize("trust", ["trusted-aggregator", "untrusted-server"])
def test_a_client_that_comes_back_sends_the_same_bytes_and_counts_once(tmp_path: Path, trust: str):
    plan = small_plan(DATA, trust=trust)
    first = make_clients(tmp_path, DATA, plan)[FIRST].reply(question(plan))
    again = make_clients(tmp_path, people(seed=1), plan)[FIRST].reply(question(plan))  # whatever its data is by now
    assert first == again
    assert "sums" in first
    (memory,) = (found for found in memories(tmp_path) if found.client == FIRST)
    assert len(memory.events) == 1
    assert memory.spent == pytest.approx(plan.guarantee.epsilon, rel=1e-4)


MODES = {
    f"{how}, {trust}": (how, trust)
    for how in ("one round", "second round of Algorithm 2")
    for trust in ("trusted-aggregator", "untrusted-server")
}


def plan_of_mode(mode: str) -> Plan:
    how, trust = MODES[mode]
    return small_plan(DATA, trust=trust) if how == "one round" else critic_plan(rounds=3, trust=trust, epsilon=10)


@pytest.fixture(scope="module")
def graves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """States of clients that were killed with SIGKILL at each place."""
    root = tmp_path_factory.mktemp("killed")
    done = Child(kill_clients, root, {mode: plan_of_mode(mode) for mode in MODES}).wait()
    assert done.returncode == 0, done.stderr
    return root


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("place", CLIENT_DEATHS)
def test_a_client_that_is_killed_sends_the_same_bytes_and_counts_once(graves: Path, place: str, mode: str):
    plan, before = plan_of_mode(mode), int("second" in mode)
    client = client_of_mode(graves / mode / place, mode, plan)
    assert lines(client.home) == before + CLIENT_DEATHS[place]
    raw, sent = reply_of(client, mode, plan), graves / mode / place / "sent"
    assert sent.exists() == (place == "after the answer")
    assert not sent.exists() or sent.read_bytes() == raw
    assert reply_of(client, mode, plan) == raw
    assert lines(client.home) == before + 1  # one answer, one line, wherever it died


@pytest.mark.parametrize("left", [b"", b'{"context": "66a2'])
@pytest.mark.parametrize("asked_again", [True, False])
def test_a_client_that_died_in_the_first_line_of_a_ledger_answers(tmp_path: Path, left: bytes, asked_again: bool):
    """The same plan and any other: nothing was recorded, and nothing had left."""
    plans = [small_plan(DATA), small_plan(DATA, seed=1)]
    client = make_clients(tmp_path, DATA, plans[0])[FIRST]
    torn = client.home / plans[0].digest()[:32] / "ledger.jsonl"
    torn.parent.mkdir(mode=0o700)
    torn.write_bytes(left)
    assert "sums" in client.reply(question(plans[0 if asked_again else 1]))
    assert len(Memory.read(client.home).events) == 1


@pytest.mark.parametrize("mode", MODES)
def test_what_is_sent_is_on_the_disk_first(tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch):
    plan = plan_of_mode(mode)
    client = client_of_mode(tmp_path, mode, plan)

    def full(*arguments: object, **options: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(module, "write_durably", full)
    monkeypatch.setattr(module.Checkpoint, "save", full)
    with pytest.raises(KeyError):
        reply_of(client, mode, plan)
    assert "disk full" in str(read_log(client.home)[-1]["why"])
    assert lines(client.home) == 1 + int("second" in mode)  # recorded, never sent


def test_a_lost_answer_with_other_data_counts_again_and_the_cap_holds(tmp_path: Path):
    plan = small_plan(DATA)
    for cap, sends in ((100.0, True), (plan.guarantee.epsilon, False)):
        state = tmp_path / str(cap)
        limit = Cap(epsilon=cap, delta=plan.privacy.delta, neighbours="zeroed")
        first = make_clients(state, DATA, plan, cap=limit)[FIRST]
        first.answer(plan)
        (kept,) = first.home.glob("*/answer.bin")
        kept.unlink()
        reply = make_clients(state, people(seed=1), plan, cap=limit)[FIRST].reply(question(plan))
        assert ("sums" in reply) == sends
        assert lines(first.home) == (2 if sends else 1)
        assert Memory.read(first.home).spent > (1.3 if sends else 0.99) * plan.guarantee.epsilon


def test_the_cap_holds_over_all_runs(tmp_path: Path):
    first, second = small_plan(DATA, seed=1), small_plan(DATA, seed=2)
    client = make_clients(tmp_path, DATA, first)[FIRST]
    assert "sums" in client.reply(question(first))
    assert "the cap" in why_refused(client, client.reply(question(second)))
    assert lines(client.home) == 1
    assert "sums" in client.reply(question(first))  # what it has sent it may send again


def test_a_client_refuses_other_trust_other_shapes_and_known_noise(tmp_path: Path):
    plan = small_plan(DATA)
    client = make_clients(tmp_path, DATA, plan)[FIRST]
    other = dataclasses.replace(plan, facts=dataclasses.replace(plan.facts, image_size=12))
    insecure = dataclasses.replace(plan, insecure_reproducible=True)
    for ask, why in (
        (question(small_plan(DATA, trust="untrusted-server")), "as this client is set up"),
        (question(other), "as the client's data has"),
        (question(insecure), "secret noise"),
        ({"plan": "{}"}, "plan of a federated run"),
        ({"plan": "[" * 10_000}, "plan of a federated run"),
        ({}, "text of a plan"),
        ({"plan": question(plan)["plan"].replace('"noise_std": 0', '"noise_std": 1')}, "plan of a federated run"),
    ):
        assert why in why_refused(client, client.reply(ask))
    assert lines(client.home) == 0


def test_ids_with_any_character_have_a_memory_of_their_own(tmp_path: Path):
    plan, cap = small_plan(DATA), Cap(epsilon=10, delta=1e-5, neighbours="zeroed")
    (_, mine), *_ = clients(DATA)
    names = ["../..", "a/b", "ä" * 250, "a b"]
    for name in names:
        Client(name, mine, tmp_path / "state", trust="trusted-aggregator", cap=cap).answer(plan)
    assert [memory.client for memory in memories(tmp_path / "state")] == sorted(names)
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_a_client_that_does_not_belong_answers_with_zeros_and_counts_it(tmp_path: Path):
    plan = small_plan(DATA)
    ((name, mine), *_) = clients(DATA)
    np.savez(tmp_path / "mine.npz", images=mine.images[:, 0], labels=mine.labels)
    common = {
        "client": name, "data": str(tmp_path / "mine.npz"), "classes": 3, "trust": "trusted-aggregator",
        "epsilon": 20.0, "delta": 1e-5,
    }  # fmt: skip
    inside, outside = (
        client_of({**common, "state": str(tmp_path / str(least)), "min-records": least})
        for least in (mine.n, mine.n + 1)
    )
    expected = make_clients(tmp_path / "state", DATA, plan)[name].answer(plan)
    assert inside.reply(question(plan))["sums"] == expected
    assert outside.reply(question(plan))["sums"] == bytes(len(expected))
    assert lines(inside.home) == lines(outside.home) == 1  # who looks on cannot tell them apart by the budgets either


def test_a_simulation_chooses_its_clients_as_the_centralized_trainer_does(tmp_path: Path):
    rows = DATA.persons != 3
    rows[np.flatnonzero(DATA.persons == 3)[:2]] = True  # person 03 has two records, all others seven
    np.savez(tmp_path / "all.npz", images=DATA.images[rows, 0], labels=DATA.labels[rows])
    table = write_persons(tmp_path / "ids.csv", [DATA.person_ids[person] for person in DATA.persons[rows]])
    where = {"spec": str(tmp_path / "all.npz"), "classes": 3, "group_by": str(table), "min_records": 3}
    parts = dict(clients(split_data(where)))
    assert [name for name, mine in parts.items() if mine.n == 0] == ["person 03"]
    assert list(parts) == list(DATA.person_ids)
