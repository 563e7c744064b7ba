"""What tests do in processes of their own; apart from them, so that such a process imports and computes little."""

from __future__ import annotations

import json
import os
import resource
import signal
from pathlib import Path

from critic_rounds import asked, critic_clients
from rounds import answer_all, make_clients, make_round, people, read_log

from gswgan.critics.kernel.embedding import Embedding
from gswgan.federated import client_answers, server
from gswgan.federated.client import Client
from gswgan.federated.memory import Cap
from gswgan.federated.messages import question
from gswgan.plan.facts import Facts
from gswgan.plan.plan import Plan

DATA = people()
FIRST = DATA.person_ids[0]
CLIENT_DEATHS = {"before the ledger": 0, "after the ledger": 1, "after the answer": 1}
"""Where a client dies, and how many lines more its ledger has then."""
SERVER_DEATHS = ["in the round", "closed", "in the ledger", "released"]


def die(*arguments: object, **options: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_servers(root: Path, plan: Plan) -> None:
    """At each place, a server that is killed."""
    for place in SERVER_DEATHS:
        if child := os.fork():
            assert os.waitpid(child, 0)[1] == signal.SIGKILL
            continue
        held = make_round(root / place / "run", DATA, plan)
        those = make_clients(root / place / "state", DATA, plan, insecure=True)
        if place == "in the round":
            answer_all(held, dict(list(those.items())[:5]))
            die()
        answer_all(held, those)
        if place == "closed":
            held.answers.close()
            die()
        if place == "in the ledger":
            Embedding.of_persons = die
        if place == "released":
            server.observers = die
        held.release()


def client_of_mode(state: Path, mode: str, plan: Plan) -> Client:
    """A client that is asked next what `reply_of` asks."""
    if "second" not in mode:
        return make_clients(state, DATA, plan)[FIRST]
    client = critic_clients(state, plan)[FIRST]
    if not client.home.joinpath(plan.digest()[:32]).exists():
        client.reply(asked(plan, 0))
    return client


def reply_of(client: Client, mode: str, plan: Plan) -> bytes:
    if "second" not in mode:
        return client.reply(question(plan))["sums"]
    return client.reply(asked(plan, 1))["block"]


def kill_clients(root: Path, plans: dict[str, Plan]) -> None:
    """In each mode and at each place, a client that is killed."""
    for mode, plan in plans.items():
        for place in CLIENT_DEATHS:
            if child := os.fork():
                assert os.waitpid(child, 0)[1] == signal.SIGKILL
                continue
            client = client_of_mode(root / mode / place, mode, plan)
            client_answers.sanitize = die if place == "before the ledger" else client_answers.sanitize
            client_answers.pack = die if place == "after the ledger" else client_answers.pack
            (root / mode / place / "sent").write_bytes(reply_of(client, mode, plan))
            die()


def reply_in_little_memory(state: Path, asked: str) -> None:
    """A client's answer, log and files, as JSON."""
    resource.setrlimit(resource.RLIMIT_AS, (6 * 2**30, 6 * 2**30))

    def read(facts: Facts) -> None:
        raise AssertionError("the records were looked at")

    cap = Cap(epsilon=100.0, delta=1e-5, neighbours="zeroed")
    client = Client("alice", read, state, trust="trusted-aggregator", cap=cap)
    reply = client.reply(json.loads(asked))
    print(json.dumps([reply, read_log(client.home), sorted(path.name for path in client.home.iterdir())]))
