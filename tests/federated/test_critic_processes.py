"""Rounds of Algorithm 2 over real processes on loopback: `kill -9`, a server that comes back, every fault of a client.

What is computed and what is sent is counted at the nodes (faulty_app/faulty_critic.py), what the generator gets at the
server (faulty_app/watched_server.py).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from critic_rounds import critic_plan
from rounds import people

pytest.importorskip("flwr")
from rounds import read_log

from gswgan.data import clients
from gswgan.federated.client import REFUSED
from gswgan.federated.memory import Memory, home_of
from gswgan.federated.messages import unpack
from gswgan.federated.server import create_run
from gswgan.federated.trust import answer_event, most_spent, spent, trust_of
from gswgan.plan.plan import Plan
from gswgan.privacy.ledger import read_ledger
from gswgan.privacy.mechanism import GRID_BITS
from gswgan.run.folder import RunFolder
from loopback import Federation, rows_of, wait

APP = Path(__file__).parent / "faulty_app"


class Rounds:
    """A run with one node for each client, and what was seen of it."""

    def __init__(self, federation: Federation, people_: int, seconds: float, **options: Any) -> None:
        data, self._federation, self.root = people(people_), federation, federation.root
        self.plan: Plan = critic_plan(data, **options)
        self.names: list[str] = sorted(data.person_ids)
        self.folder: RunFolder = create_run(
            self.root / "RUN", self.plan, data.person_ids, seconds, unauthenticated=True
        )
        self.digest_key = self.folder.secret(self.plan).seed("digests of answers")  # erased at the end
        self.window = self.folder.private / "watched"
        for name, mine in clients(data):
            np.savez(self.root / f"{name}.npz", images=mine.images[:, 0], labels=mine.labels)

    def node(self, client: str, faults: str = "") -> None:
        cap, run = most_spent(self.plan) * 1.001, str(self.folder.root)
        self._federation.node(client, client, trust=trust_of(self.plan), cap=cap, faults=faults, until=run)

    def home(self, client: str) -> Path:
        return home_of(self.root / "state" / client, client)

    def counted(self, number: int) -> dict[str, str]:
        """Client and digest of the answers of a round that the server took."""
        rows = [row for row in rows_of(self.folder) if row["round"] == number and "digest" in row]
        assert len({row["client"] for row in rows}) == len(rows)  # once a client and round
        return {row["client"]: row["digest"] for row in rows}

    def lines(self, client: str) -> list[str]:
        """The client's own ledger."""
        (ledger,) = self.home(client).glob("*/ledger.jsonl")
        _, entries, _ = read_ledger(ledger)
        assert {entry.event for entry in entries} == {answer_event(self.plan)}
        return [entry.name for entry in entries]

    def seen(self, client: str, what: str) -> list[tuple[int, str]]:
        """Rounds and digests of what a client computed, or sent."""
        rows = map(json.loads, (self.home(client) / f"{what}.jsonl").read_text().splitlines())
        return [(row["round"], row["digest"]) for row in rows]

    def sent(self, client: str, number: int) -> np.ndarray:
        """What a client sent in a round, in units of the mechanism's grid."""
        return unpack((self.home(client) / f"{number}.sent").read_bytes(), self.plan)

    def gradient(self, number: int) -> np.ndarray:
        """What the generator got in a round, times the number of clients, in the same units."""
        assert self.plan.privacy.rate == 1
        gradient = np.load(self.window / f"{number}.npy").astype(np.float64)
        unit = self.plan.privacy.clip_norm * 2.0**-GRID_BITS
        return gradient.reshape(self.plan.privacy.rows, -1) * len(self.names) / unit

    def has_ended(self) -> bool:
        """Whether the server has finished, and has erased what it need not keep."""
        kept = (self.folder.key, self.folder.private / "rounds")
        return self.folder.is_finished and not any(path.exists() for path in kept)

    def check_nodes(self) -> None:
        """No client computes a round twice; it records each that it computes, once, before it sends it."""
        for client in self.names:
            computed = [number for number, _ in self.seen(client, "computed")]
            assert computed == sorted(set(computed)), client
            assert self.lines(client) == [f"step {number}" for number in computed], client
            assert {number for number, _ in self.seen(client, "sent")} <= set(computed), client
            for number in range(self.plan.privacy.releases):
                if client in (taken := self.counted(number)):
                    sent = self.sent(client, number).tobytes()
                    assert hashlib.blake2b(sent, key=self.digest_key, digest_size=32).hexdigest() == taken[client]
            memory = Memory.read(self.home(client))
            expected = spent(
                [answer_event(self.plan)] * len(computed),
                neighbours=self.plan.privacy.neighbours,
                delta=self.plan.privacy.delta,
            )
            assert memory.spent == pytest.approx(expected)
            assert memory.spent <= memory.cap.epsilon

    def check_server(self) -> None:
        """One release a round, recorded once."""
        _, entries, _ = read_ledger(self.folder.ledger)
        assert [entry.name for entry in entries] == [f"step {number}" for number in range(self.plan.privacy.releases)]
        assert {entry.event for entry in entries} == {self.plan.privacy.event}
        assert not (self.folder.private / "rounds").exists()
        told = json.loads(self.folder.privacy.read_text())
        assert told["epsilon"] == pytest.approx(self.plan.guarantee.epsilon)


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    made = Federation(tmp_path, APP)
    yield made
    made.stop()


@pytest.mark.slow
@pytest.mark.timeout(10_800)
def test_ten_rounds_survive_a_killed_node_and_a_killed_server(federation: Federation):
    """Every client adds its own noise, so what was counted can be told exactly: the release is the answers' sum."""
    held = Rounds(federation, 4, 3600, rounds=10, trust="untrusted-server", epsilon=100)
    victim, slow = held.names[1], held.names[2]
    faults = {victim: "hang before@2", slow: "wait@5"}
    federation.link()
    for name in held.names:
        held.node(name, faults.get(name, ""))
    federation.hold()
    wait(lambda: (held.home(victim) / "2.asked").exists(), "the third round")
    federation.kill(victim)
    held.node(victim, faults[victim])
    wait(lambda: len(held.counted(5)) == 3, "three of four answers in the sixth round")
    before = held.counted(5)
    federation.kill("link")  # SuperLink, SuperExec and ServerApp, in the middle of the round
    assert not (held.window / "5.npy").exists()
    (held.window / "go").touch()
    federation.link()
    federation.hold()
    wait(held.has_ended, "the end")

    held.check_server()
    held.check_nodes()
    assert before.items() <= held.counted(5).items()  # asked again, and counted once
    assert all(len(held.counted(number)) == 4 for number in range(10))
    assert [len(held.lines(name)) for name in held.names] == [10] * 4
    for number in range(10):
        total = sum(held.sent(name, number) for name in held.counted(number))
        assert np.allclose(held.gradient(number), total, rtol=1e-6)
    federation.bytes_on_the_wire()


WRONG = {0: "nan", 1: "infinity", 2: "shape", 3: "long", 4: "replay"}
WHY = {0: "too long", 1: "too long", 2: "bytes", 3: "too long", 4: "the round that is open"}


@pytest.mark.slow
@pytest.mark.timeout(10_800)
def test_every_fault_of_a_client_is_refused_logged_and_counted(federation: Federation):
    """A trusted aggregator. The noise is small, so that it shows which answers are in the release."""
    held = Rounds(federation, 5, 400, rounds=6, epsilon=9000)
    _, wrong, dropped, late, lost = held.names
    faults = {wrong: ",".join(f"{fault}@{number}" for number, fault in WRONG.items()), late: "late@4"}
    faults[dropped] = "hang before@1,hang after@2"
    federation.link()
    for name in held.names:
        held.node(name, faults.get(name, ""))
    federation.hold()
    for number in (1, 2):  # in the middle of a round, before and after it has kept its answer
        wait(lambda n=number: (held.home(dropped) / f"{n}.asked").exists(), f"round {number}")
        federation.kill(dropped)
        held.node(dropped, faults[dropped])
    wait(lambda: (held.window / "4.question").exists(), "round 4")
    federation.kill(lost)  # for good
    wait(held.has_ended, "the end")

    held.check_server()
    held.check_nodes()
    log = [row for row in rows_of(held.folder) if "the same" not in row.get("refused", "")]  # asked twice: it was slow
    refused = {(row["client"], row["round"]): row["refused"] for row in log if "refused" in row}
    assert refused.keys() == {(wrong, number) for number in WRONG}
    assert all(WHY[number] in refused[wrong, number] for number in WRONG)
    absent = {(row["client"], row["round"]) for row in log if "absent" in row}
    assert absent == {(late, 4), (lost, 4), (lost, 5)}
    assert "Message TTL has expired" in (held.root / "link.log").read_text()  # the late answer, at the SuperLink
    for number in range(6):
        expected = {name for name in held.names if (name, number) not in {*refused, *absent}}
        assert held.counted(number).keys() == expected
    assert [len(held.lines(name)) for name in held.names] == [6, 6, 6, 6, 4]  # also what was refused or came late

    noise = held.plan.privacy.noise_std / held.plan.privacy.clip_norm * 2**GRID_BITS
    for number in range(6):
        total = sum(held.sent(name, number) for name in held.counted(number))
        rest = held.gradient(number) - total
        assert 0.94 < rest.std() / noise < 1.06, number  # whoever answered, it is divided by five
        for name in [*held.counted(number), *([late] if number == 4 else [])]:  # what came late is not in it
            block = held.sent(name, number).astype(np.float64)
            assert abs((rest * block).sum() / (block**2).sum()) < 0.5, (number, name)

    kept = {name: held.seen(name, "computed") for name in held.names}
    replies = ask_again(held, federation)
    here = {*held.names} - {lost}
    for name in here:
        assert replies["earlier", name]["refused"] == replies["other", name]["refused"] == REFUSED
        reasons = [str(row["why"]) for row in read_log(held.home(name))]
        assert any("the last one answered" in why for why in reasons)
        assert any("answered for" in why for why in reasons)
        assert replies["same", name]["block"] == (held.home(name) / "5.sent").read_bytes().hex()
        assert held.seen(name, "computed") == kept[name]
        assert len(held.lines(name)) == len(kept[name])


def ask_again(held: Rounds, federation: Federation) -> dict[tuple[str, str], dict[str, str]]:
    """A server that replays rounds: an earlier one, the last one, and the last one with other fakes."""
    place = held.root / "replay"
    place.mkdir()
    for name, number in (("earlier", 2), ("same", 5), ("other", 5)):
        fields = json.loads((held.window / f"{number}.question").read_text())
        if name == "other":
            fields["images"] = bytes(pixel // 2 for pixel in bytes.fromhex(fields["images"])).hex()
        (place / f"{name}.question").write_text(json.dumps(fields))
    federation.hold(replay=str(place))
    wait(lambda: (place / "done").exists(), "the replies to replayed rounds")
    found = {}
    for path in place.glob("*.reply"):
        kind, _, client = path.stem.partition("-")
        found[kind, client] = json.loads(path.read_text())
    return found
