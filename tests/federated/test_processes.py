"""The round over real processes on loopback: a SuperLink with a database, SuperNodes, `kill -9`, wrong answers.

Bytes are counted on the wire, by a forwarder between each SuperNode and the SuperLink.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rounds import people

from gswgan.critics.kernel.embedding import Embedding
from gswgan.data import clients
from gswgan.federated.memory import home_of
from gswgan.federated.server import create_run
from gswgan.federated.trust import make_federated_plan, weight_of_counts
from gswgan.plan.facts import Facts
from gswgan.privacy.ledger import read_ledger
from gswgan.privacy.mechanism import GRID_BITS
from gswgan.run.folder import RunFolder, write_json
from loopback import Federation, rows_of, wait

pytest.importorskip("flwr")
APP = Path(__file__).parent / "faulty_app"
DEADLINE = 36_000.0
"""Of a round that the test ends, when all has happened that is to happen in it."""

KILLED = ["hang before", "hang after", "killed later"]
WRONG = ["nan", "infinity", "shape", "long"]
FAULTS = ["plain", *KILLED, "never", *WRONG, "twice"]


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    made = Federation(tmp_path, APP)
    yield made
    made.stop()


def begin(federation: Federation, name: str, client: str, fault: str, **options: Any) -> None:
    """A node that misbehaves as `fault` says."""
    told = {} if fault in ("plain", "killed later") else {"fault": fault}
    federation.node(name, client, until=str(federation.root / "RUN/private/closed.json"), **told, **options)


def pass_the_deadline(folder: RunFolder) -> None:
    """The round was opened so long ago that it is over."""
    opened = folder.private / "opened.json"
    write_json(opened, {"at": json.loads(opened.read_text())["at"] - DEADLINE})


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_the_round_over_processes_with_faults_and_kills(federation: Federation):
    root, data = federation.root, people(len(FAULTS))
    for name, mine in clients(data):
        np.savez(root / f"{name}.npz", images=mine.images[:, 0], labels=mine.labels)
    plan = make_federated_plan(Facts.of(data), epsilon=100, steps=20)  # five honest answers must be told from the noise
    folder = create_run(root / "RUN", plan, data.person_ids, DEADLINE)
    names = dict(zip(data.person_ids, FAULTS))
    by_fault = {fault: client for client, fault in names.items()}
    homes = {fault: home_of(root / "state" / fault, client) for client, fault in names.items()}

    def rows() -> list[dict[str, str]]:
        return rows_of(folder)

    def taken() -> dict[str, str]:
        return {row["client"]: row["digest"] for row in rows() if "digest" in row}

    federation.link()
    for fault in ["plain", *KILLED, "never"]:
        begin(federation, fault, by_fault[fault], fault)
    federation.hold()
    wait(lambda: (homes["hang before"] / "asked").exists(), "the client that is killed before its answer")
    federation.kill("hang before")
    wait(lambda: (homes["hang after"] / "asked").exists(), "the client that is killed after its answer")
    (kept,) = homes["hang after"].glob("*/answer.bin")
    before = kept.read_bytes()
    federation.kill("hang after")
    wait(lambda: by_fault["killed later"] in taken(), "an answer")
    federation.kill("killed later")
    first = taken()
    federation.kill("link")  # SuperLink, SuperExec and ServerApp, in the middle of the round
    assert not folder.embedding.exists()

    federation.link()
    for fault in KILLED:
        begin(federation, fault, by_fault[fault], fault)
    federation.hold()
    wait(lambda: len(taken()) == 4, "the clients that came back")
    for fault in WRONG:
        begin(federation, fault, by_fault[fault], fault)
    wait(lambda: {row["client"] for row in rows()} >= {by_fault[fault] for fault in WRONG}, "wrong answers")
    for fault in WRONG:
        federation.kill(fault)
    for name, fault in [("twice", "plain"), ("twice again", "twice")]:  # a second node, another answer
        client = by_fault[name.removesuffix(" again")]
        seen = sum(row["client"] == client for row in rows())
        begin(federation, name, client, fault)
        wait(lambda c=client, n=seen: sum(row["client"] == c for row in rows()) > n, f"what {name} sends")
        federation.kill(name)
    pass_the_deadline(folder)
    wait(lambda: folder.is_finished and not folder.key.exists(), "the end of the run")

    assert kept.read_bytes() == before  # what was resent
    counted = json.loads((folder.private / "closed.json").read_text())["answers"]
    assert first.items() <= counted.items()
    assert set(counted) == {by_fault[fault] for fault in ["plain", *KILLED, "twice"]}
    refused = {names[row["client"]] for row in rows() if "refused" in row and row["client"] not in counted}
    assert refused == set(WRONG)
    assert any("the first one counts" in row.get("refused", "") for row in rows())
    for fault in [*FAULTS, "twice again"]:  # counted at the nodes: one line each, never none for an answer
        client = by_fault[fault.removesuffix(" again")]
        (ledger,) = home_of(root / "state" / fault, client).glob("*/ledger.jsonl")
        assert len(read_ledger(ledger)[1]) == 1, fault
    assert len(read_ledger(folder.ledger)[1]) == 1
    assert json.loads(folder.privacy.read_text())["open_to"][0]["observer"] == "server"
    wires = federation.bytes_on_the_wire()
    once, payload = ("nan", "infinity", "shape", "long", "twice"), 3 * (plan.critic.features + 1) * 4
    for name in once:  # joined, was asked, answered, and left; on a busy machine Flower sends an answer again
        assert payload <= wires[name]["up"], name
        assert wires[name]["down"] < wires["never"]["down"] + 15_000, name
    assert RunFolder(folder.root).is_finished


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_an_untrusted_server_and_a_late_answer_over_processes(federation: Federation):
    """Every client adds its own noise, so what was counted can be told exactly: the release is the answers' sum."""
    faults = ["plain", "second", "third", "killed later", "far", "late"]
    root, data = federation.root, people(len(faults))
    for name, mine in clients(data):
        np.savez(root / f"{name}.npz", images=mine.images[:, 0], labels=mine.labels)
    plan = make_federated_plan(Facts.of(data), trust="untrusted-server", epsilon=500, steps=20)
    folder = create_run(
        root / "RUN", plan, data.person_ids, 600.0
    )  # a true deadline: it is also how long messages live
    by_fault = dict(zip(faults, data.person_ids))
    homes = {fault: home_of(root / "state" / fault, client) for fault, client in by_fault.items()}

    def node(fault: str) -> None:
        kind = fault if fault in ("far", "late") else "plain"
        begin(federation, fault, by_fault[fault], kind, trust="untrusted-server", cap=500.0)

    federation.link()
    for fault in faults:
        node(fault)
    federation.hold()
    wait(lambda: {row["client"] for row in rows_of(folder)} >= {*data.person_ids} - {by_fault["late"]}, "answers")
    federation.kill("killed later")
    (kept,) = homes["killed later"].glob("*/answer.bin")
    before = kept.read_bytes()
    node("killed later")
    wait(lambda: sum(row["client"] == by_fault["killed later"] for row in rows_of(folder)) > 1, "it again")
    wait(lambda: folder.is_finished and not folder.key.exists(), "the end of the run")
    log = root / "link.log"
    wait(lambda: "Message TTL has expired" in log.read_text(), "the SuperLink's refusal of the late answer")
    released = folder.embedding.read_bytes()

    counted = json.loads((folder.private / "closed.json").read_text())["answers"]
    assert set(counted) == {by_fault[fault] for fault in faults if fault not in ("far", "late")}
    assert kept.read_bytes() == before
    refused = {row["client"]: row["refused"] for row in rows_of(folder) if "refused" in row}
    assert "too large" in refused[by_fault["far"]]
    assert "the same" in refused[by_fault["killed later"]]
    total = np.zeros(3 * (plan.critic.features + 1), np.int64)
    for fault in faults:
        if by_fault[fault] in counted:
            (answer,) = homes[fault].glob("*/answer.bin")
            total += np.frombuffer(answer.read_bytes(), "<i8")
    embedding = Embedding.load(folder.embedding)
    table = total.reshape(3, -1) * (plan.privacy.clip_norm * 2.0**-GRID_BITS)
    assert np.array_equal(embedding.sums.numpy(), table[:, :-1])
    assert np.array_equal(embedding.counts.numpy(), table[:, -1] / weight_of_counts(plan))
    for fault in faults:  # also the late one has counted what it was about to send
        (ledger,) = homes[fault].glob("*/ledger.jsonl")
        (entry,) = read_ledger(ledger)[1]
        assert entry.event == plan.privacy.event, fault
    told = json.loads(folder.privacy.read_text())
    assert told["open_to"] == []
    assert [cost["observer"] for cost in told["guarantees"]] == ["server", "public"]
    assert {cost["neighbours"] for cost in told["guarantees"]} == {"replace-one"}

    wires = federation.bytes_on_the_wire()
    for fault in ("plain", "second", "third"):  # an answer goes up once or more, and what comes down is small
        assert total.nbytes < wires[fault]["up"], fault
        assert wires[fault]["down"] < wires["late"]["down"] + 30_000, fault
    finished = log.read_text().count("Finished task")
    federation.hold()  # the round is over: the same command asks nobody, and releases nothing
    wait(lambda: log.read_text().count("Finished task") > finished, "the second run")
    assert folder.embedding.read_bytes() == released
    assert json.loads((folder.private / "closed.json").read_text())["answers"] == counted
    assert by_fault["late"] not in {row["client"] for row in rows_of(folder)}
