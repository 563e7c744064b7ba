"""A node answers for the site as which the operator has registered its key, and leaves no trace of exact sums."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rounds import answer_all, make_clients, make_round, people, small_plan
from silo_rounds import CPU, clients_of, parts_of, plan_for

pytest.importorskip("flwr")
from gswgan.federated import flower
from gswgan.federated.client import Client
from gswgan.federated.flower import RECORD, hold
from gswgan.federated.memory import Memory
from gswgan.federated.server import Round, create_run
from gswgan.run.loop import run


class Grid:
    """Nodes, each with a client and the name under which its key is registered; they answer at once."""

    def __init__(self, nodes: dict[int, tuple[Client, str]]) -> None:
        self._nodes, self._replies = nodes, list[Any]()

    def get_nodes(self) -> list[Any]:
        return [SimpleNamespace(node_id=node, name=name) for node, (_, name) in self._nodes.items()]

    def push_messages(self, messages: Iterable[tuple[int, dict[str, Any]]]) -> list[str]:
        sent = []
        for node, fields in messages:
            if node not in self._nodes:
                sent.append("")
                continue
            client, _ = self._nodes.pop(node)  # it goes when it has answered
            said = SimpleNamespace(config_records={RECORD: client.reply(fields)})
            meta = SimpleNamespace(reply_to_message_id=f"to {node}", src_node_id=node)
            self._replies.append(SimpleNamespace(metadata=meta, content=said, has_content=lambda: True))
            sent.append(f"to {node}")
        return sent

    def pull_messages(self, names: Iterable[str]) -> list[Any]:
        found, self._replies = self._replies, []
        return found


@pytest.fixture(autouse=True)
def _messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower, "_message", lambda fields, node, ttl: (node, dict(fields)))


def impostor(root: Path, plan: Any, name: str) -> Client:
    """Another member of the consortium, which answers in the name of this site with records of its own."""
    mine = parts_of("record")[name]
    forged = dataclasses.replace(mine, labels=np.zeros_like(mine.labels))
    return clients_of(root / "impostor", {name: forged}, plan, "record")[name]


@pytest.mark.parametrize("registered", ["site-00002", ""])
def test_a_node_that_claims_the_name_of_another_site_is_refused(tmp_path: Path, registered: str):
    """It is there first, with a key that the SuperLink knows."""
    parts = parts_of("record")
    plan = plan_for(parts, "record", trust="trusted-aggregator")
    held = Round(create_run(tmp_path / "RUN", plan, tuple(parts), 600))
    those = clients_of(tmp_path / "state", parts, plan, "record")
    nodes = {7: (impostor(tmp_path, plan, "site-00000"), registered)}
    nodes |= {10 + number: (client, name) for number, (name, client) in enumerate(those.items())}
    said: list[str] = []
    hold(Grid(nodes), held, note=said.append, progress=lambda done: None)  # type: ignore[arg-type]
    assert held.answered == set(parts)
    assert (
        held.answers.path_of("site-00000").read_bytes()
        == next(those["site-00000"].home.glob("*/answer.bin")).read_bytes()
    )
    (refused,) = said
    assert "is registered " + (f"as {registered}" if registered else "without a name") in refused


def test_trials_without_keys_and_rounds_of_many_clients_take_the_first_who_says_a_name(tmp_path: Path):
    parts = parts_of("record")
    plan = plan_for(parts, "record")
    trial = Round(create_run(tmp_path / "trial", plan, tuple(parts), 600, unauthenticated=True))
    client = clients_of(tmp_path / "state", parts, plan, "record")["site-00000"]
    assert trial.take(client.reply(trial.question()), node=1, registered="") is None
    data = people()
    plan = small_plan(data)
    many = make_round(tmp_path / "many", data, plan)
    (first, one), (_, two), *_ = make_clients(tmp_path / "clients", data, plan).items()
    assert many.take(one.reply(many.question()), node=1, registered="") is None
    refused = many.take(two.reply(many.question()), node=2, registered=first)
    assert f"registered as {first}" in str(refused)


@pytest.mark.parametrize("ends", [True, False])
def test_what_stays_of_a_trusted_aggregators_round_cannot_be_compared_with_a_guess(tmp_path: Path, ends: bool):
    """Whoever knows all records of a site but one could try each value of the last against a plain digest."""
    parts = parts_of("record")
    plan = plan_for(parts, "record", trust="trusted-aggregator")
    held = Round(create_run(tmp_path / "RUN", plan, tuple(parts), 600))
    those = clients_of(tmp_path / "state", parts, plan, "record")
    answer_all(held, those)
    exact = [np.frombuffer(path.read_bytes(), "<i8") for path in tmp_path.glob("state/*/*/answer.bin")]
    held.release()
    if ends:
        assert run(held.folder, None, device=CPU)
        assert not held.folder.key.exists()
    left = b"".join(
        path.read_bytes() for path in held.folder.root.rglob("*") if path.is_file() and path != held.folder.key
    )
    assert len(exact) == len(parts)
    for grid in [*exact, np.sum(exact, axis=0)]:
        raw = grid.tobytes()
        assert raw not in left
        for plain in (
            hashlib.sha256(raw),
            hashlib.blake2b(raw, digest_size=32),
            hashlib.blake2b(raw),
            hashlib.sha1(raw),
        ):
            assert plain.hexdigest().encode() not in left
    assert len(Memory.read(those["site-00000"].home).events) == 1
