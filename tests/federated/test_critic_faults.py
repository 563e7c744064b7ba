"""Rounds of Algorithm 2 in which things break: what counts, what is refused, what is recorded, what is released."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from critic_rounds import (
    CPU,
    DATA,
    KNOWN,
    NAMES,
    Replies,
    asked,
    cap_of,
    critic_clients,
    critic_plan,
    federate,
    released,
    server,
)  # fmt: skip
from rounds import read_log, why_refused

from gswgan.data import clients
from gswgan.errors import StorageError
from gswgan.federated.client import REFUSED, Client
from gswgan.federated.memory import Cap, Memory
from gswgan.federated.messages import Batch, answer, pack, question, read_batch, unpack
from gswgan.federated.remote_critics import InProcess, RemoteCritics
from gswgan.plan.plan import Plan
from gswgan.privacy import Streams
from gswgan.privacy.ledger import read_ledger
from gswgan.privacy.mechanism import GRID_BITS
from gswgan.run.checkpoint import Checkpoint
from gswgan.run.loop import make_generator

UNIT = 2**GRID_BITS
BAD = "person 03"
ROWS, WIDTH = KNOWN.privacy.rows, KNOWN.facts.pixels


@functools.cache
def honest() -> dict[str, dict[str, str | bytes]]:
    """What every client answers to the first question."""
    with tempfile.TemporaryDirectory() as state:
        return {name: client.reply(asked()) for name, client in critic_clients(Path(state), KNOWN).items()}


def others() -> dict[str, Any]:
    return {name: reply for name, reply in honest().items() if name != BAD}


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    """The release without the one client that will misbehave."""
    return released(tmp_path_factory.mktemp("without") / "run", Replies(others()))


def lines(home: Path) -> int:
    return sum(len(read_ledger(path)[1]) for path in home.glob("*/ledger.jsonl"))


def log(root: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in (root / "private/answers.jsonl").read_text().splitlines()]


SIZE = ROWS * WIDTH


@pytest.mark.usefixtures("known_noise")
def test_an_honest_answer_counts_and_the_longest_legal_one_moves_the_sum_by_its_bound(tmp_path: Path):
    without = released(tmp_path / "without", Replies(others()))
    moved = released(tmp_path / "honest", Replies(honest())) - without
    block = unpack(honest()[BAD]["block"], KNOWN) / UNIT * KNOWN.privacy.clip_norm
    assert np.abs(moved - block).max() < 1e-4  # the mean is in float32
    assert np.linalg.norm(block) > 1e-3
    longest = np.zeros((ROWS, WIDTH), np.int64)
    longest[:, 0] = UNIT
    sent = answer(BAD, KNOWN, pack(longest, KNOWN), 0)
    moved = released(tmp_path / "longest", Replies({**others(), BAD: sent})) - without
    assert np.linalg.norm(moved) == pytest.approx(KNOWN.privacy.clip_norm * math.sqrt(ROWS), rel=1e-5)


@pytest.mark.usefixtures("known_noise")
def test_clients_that_drop_out_count_as_zero_and_the_denominator_stays(tmp_path: Path):
    nobody = released(tmp_path / "nobody", Replies({}))
    assert 0.9 < nobody.std() / KNOWN.privacy.noise_std < 1.1  # a round of nobody still releases
    some = {name: honest()[name] for name in ("person 02", "person 09")}
    total = sum(unpack(reply["block"], KNOWN) for reply in some.values()) / UNIT * KNOWN.privacy.clip_norm
    moved = released(tmp_path / "some", Replies(some)) - nobody
    assert np.abs(moved - total).max() < 1e-4
    absent = [row["client"] for row in log(tmp_path / "some") if "absent" in row]
    assert absent == [name for name in NAMES if name not in some]


def test_a_late_answer_is_refused_and_changes_nothing(tmp_path: Path, without: np.ndarray):
    carrier = Replies(others())
    critics, generator = server(tmp_path / "run", KNOWN, carrier), make_generator(KNOWN, CPU)
    critics.learn(0, generator)
    critics.upstream_gradient(*generator.sample(KNOWN.training.batch_size, 0))
    first, carrier.replies = carrier.take, {}
    assert "late" in first(honest()[BAD], node=50)  # the round is over
    critics.learn(1, generator)
    critics.upstream_gradient(*generator.sample(KNOWN.training.batch_size, 1))
    assert "late" in first(honest()[BAD], node=50)
    assert "the round that is open" in carrier.take(honest()[BAD], node=50)
    assert [row["round"] for row in log(tmp_path / "run") if "late" in row.get("refused", "")] == [0, 0]
    assert np.array_equal(released(tmp_path / "again", Replies(others())), without)


def test_only_clients_that_were_drawn_are_asked_or_count(tmp_path: Path):
    plan = critic_plan(rate=0.4, epsilon=10, insecure_reproducible=True)
    carrier = Replies({})
    critics, generator = server(tmp_path / "run", plan, carrier), make_generator(plan, CPU)
    drawn = []
    for step in range(3):
        critics.learn(step, generator)
        drawn.append([NAMES[index] for index in critics.draw_participants(step)])
        critics.upstream_gradient(*generator.sample(plan.training.batch_size, step))
    assert [names for names, _ in carrier.asked] == [names for names in drawn if names]
    assert len({tuple(names) for names in drawn}) == 3
    (absent, *_) = set(NAMES) - set(drawn[-1])
    stale = answer(absent, plan, bytes(4 * SIZE), 2)
    carrier.replies = {}
    again = server(tmp_path / "again", plan, carrier)
    again.learn(2, generator)
    carrier.ask = lambda clients, fields, take: pytest.fail("counted") if take(stale, node=1) is None else None
    again.upstream_gradient(*generator.sample(plan.training.batch_size, 2))
    assert "one that was asked" in log(tmp_path / "again")[0]["refused"]


@pytest.mark.parametrize("trust", ["trusted-aggregator", "untrusted-server"])
def test_a_client_answers_a_round_once(tmp_path: Path, trust: str):
    plan = critic_plan(rounds=3, trust=trust, epsilon=10)
    ask = [asked(plan, step) for step in range(3)]
    client = critic_clients(tmp_path, plan)[BAD]
    first = client.reply(ask[0])
    assert "block" in first
    client = critic_clients(tmp_path, plan)[BAD]  # it restarts
    assert client.reply(ask[0]) == first
    assert lines(client.home) == 1
    batch = read_batch(plan, ask[0])
    other = Batch(number=0, images=batch.images + 0.01, labels=batch.labels, pool=batch.pool)
    assert "answered for" in why_refused(client, client.reply(question(plan, other)))
    assert "block" in client.reply(ask[2])  # it was away in round 1
    assert "the last one answered" in why_refused(client, client.reply(ask[1]))
    assert "the last one answered" in why_refused(client, client.reply(ask[0]))
    assert lines(client.home) == 2
    memory = Memory.read(client.home)
    assert memory.spent == pytest.approx(_after(plan, 2), rel=1e-3)


def _after(plan: Plan, rounds: int) -> float:
    return next(epsilon for done, epsilon in plan.curve if done == rounds)


def test_a_client_refuses_beyond_its_cap_and_says_nothing_else(tmp_path: Path):
    plan = critic_plan(rounds=3, trust="untrusted-server", epsilon=10)
    cap = Cap(epsilon=_after(plan, 2) * 1.01, delta=plan.privacy.delta, neighbours="replace-one")
    folder = federate(tmp_path / "run", plan, critic_clients(tmp_path / "state", plan, cap=cap))
    refused = [row for row in log(tmp_path / "run") if "refused" in row]
    assert {row["round"] for row in refused} == {2}
    assert len(refused) == 12
    assert all(REFUSED in row["refused"] for row in refused)
    assert not any("the cap" in row["refused"] for row in refused)
    assert all(lines(home) == 2 for home in (tmp_path / "state").iterdir())
    assert all("the cap" in str(read_log(home)[-1]["why"]) for home in (tmp_path / "state").iterdir())
    assert len(read_ledger(folder.ledger)[1]) == 3  # the round was held, and its release made


BROKEN: dict[str, Any] = {
    "of another shape": ({"images": b""}, "images with their labels"),
    "images of floats": ({"images": bytes(4 * len(asked()["images"]))}, "images with their labels"),
    "labels that do not exist": ({"labels": np.full(len(asked()["labels"]) // 2, 3, "<u2").tobytes()}, "labels below"),
    "one class only": ({"labels": bytes(len(asked()["labels"]))}, "each class"),
    "after the last round": ({"round": "3"}, "as planned"),
    "a round that is none": ({"round": "-1"}, "number of a round"),
    "no plan": ({"plan": "{}"}, "plan of a federated run"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_client_refuses_a_question_that_the_plan_does_not_have(tmp_path: Path, what: str):
    change, why = BROKEN[what]
    client = critic_clients(tmp_path, KNOWN)[BAD]
    assert why in why_refused(client, client.reply({**asked(), **change}))
    assert lines(client.home) == 0


def test_a_client_without_records_answers_with_zeros_and_counts_it(tmp_path: Path):
    (name, mine), *_ = clients(DATA)
    empty = dataclasses.replace(mine, images=mine.images[:0], labels=mine.labels[:0], persons=mine.persons[:0])
    client = Client(name, empty, tmp_path, trust="trusted-aggregator", cap=cap_of(KNOWN), insecure=True)
    assert client.reply(asked())["block"] == bytes(4 * SIZE)
    assert lines(client.home) == 1


def test_with_an_untrusted_server_a_block_has_its_own_full_noise(tmp_path: Path):
    plan = critic_plan(rounds=3, trust="untrusted-server", epsilon=10)
    assert plan.privacy.sampling == "all"
    blocks = [unpack(client.reply(asked(plan))["block"], plan) for client in critic_clients(tmp_path, plan).values()]
    scale = plan.privacy.noise_std / plan.privacy.clip_norm * UNIT
    noise = np.stack(blocks[:4])
    assert 0.97 < noise.std() / scale < 1.05  # the gradients are at most 1/8 of it an entry
    assert abs(np.corrcoef(noise.reshape(4, -1))[0, 1]) < 0.1
    reply = {"x": answer("person 00", plan, pack(np.full((ROWS, WIDTH), 2**60), plan), 0)}
    released(tmp_path / "run", Replies({"person 00": reply["x"]}), plan)
    assert "too large" in log(tmp_path / "run")[0]["refused"]


class _Dies(Exception):  # noqa: N818
    pass


@pytest.mark.parametrize("place", ["in the round", "closed", "in the ledger", "released", "after checkpoints"])
def test_a_server_that_dies_goes_on_and_ends_with_the_same_release(
    tmp_path: Path, place: str, straight: Path, monkeypatch: pytest.MonkeyPatch
):
    plan, everybody = KNOWN, critic_clients(tmp_path / "state", KNOWN)
    ways: dict[str, Any] = {
        "in the round": (Client, "reply", lambda self, fields: fields["round"] == "1" and self.name == "person 06"),
        "closed": (RemoteCritics, "_blocks", lambda self: self._step == 1),
        "in the ledger": (Streams, "rounded_gaussian", lambda self, *rest: "step 1" in rest),
        "released": (RemoteCritics, "metrics", lambda self: self._step == 1),
        "after checkpoints": (RemoteCritics, "learn", lambda self, step, generator: step == 2),
    }
    owner, name, when = ways[place]
    usual = getattr(owner, name)

    def dies(*arguments: Any) -> Any:
        if when(*arguments):
            raise _Dies
        return usual(*arguments)

    with monkeypatch.context() as broken:
        broken.setattr(Checkpoint, "is_due", lambda self: place == "after checkpoints")
        broken.setattr(owner, name, dies)
        with pytest.raises(_Dies):
            federate(tmp_path / "run", plan, everybody)
    kept = sorted(path.name for path in (tmp_path / "run/private/rounds").glob("*.released"))
    assert kept == {"released": ["0.released", "1.released"], "after checkpoints": ["1.released"]}.get(
        place, ["0.released"]
    )
    folder = federate(tmp_path / "run", plan, critic_clients(tmp_path / "state", plan), resume=True)
    for file in ("generator.safetensors", "ledger.jsonl", "privacy.json"):
        assert (folder.release / file).read_bytes() == (straight / "release" / file).read_bytes(), file
    assert all(lines(home) == 3 for home in (tmp_path / "state").iterdir())
    assert not (folder.private / "rounds").exists()
    assert not folder.key.exists()


@pytest.mark.timeout(120)  # a pipe without a writer must not be waited for
@pytest.mark.parametrize("place", ["0/question.bin", "0.released"])
def test_pipes_and_links_in_the_folder_of_rounds_are_refused(tmp_path: Path, place: str):
    critics, generator = server(tmp_path / "run", KNOWN, Replies(honest())), make_generator(KNOWN, CPU)
    critics.learn(0, generator)
    path = tmp_path / "run/private/rounds" / place
    path.parent.mkdir(exist_ok=True)
    (tmp_path / "target").write_bytes(b"secret")
    for plant in (lambda: os.mkfifo(path), lambda: path.symlink_to(tmp_path / "target")):
        plant()
        with pytest.raises(StorageError, match="a regular file"):
            critics.upstream_gradient(*generator.sample(KNOWN.training.batch_size, 0))
        path.unlink()
    assert (tmp_path / "target").read_bytes() == b"secret"


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run, undisturbed."""
    root = tmp_path_factory.mktemp("straight")
    return federate(root / "run", KNOWN, InProcess(critic_clients(root / "state", KNOWN))).root


def test_privacy_json_states_both_observers(straight: Path):
    told = json.loads((straight / "release/privacy.json").read_text())
    found = [(cost["observer"], cost["neighbours"]) for cost in told["guarantees"]]
    assert found == [("public", "zeroed"), ("public", "replace-one")]
    assert told["guarantees"][1]["epsilon"] > told["epsilon"] >= KNOWN.guarantee.epsilon
    assert [one["observer"] for one in told["open_to"]] == ["server"]
    header, entries, _ = read_ledger(straight / "release/ledger.jsonl")
    assert header["observer"] == "public"
    assert [entry.event for entry in entries] == [KNOWN.privacy.event] * 3
