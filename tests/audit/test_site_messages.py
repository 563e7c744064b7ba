"""What a server sees of a site does not refute the stated epsilon; planted faults in how sites add noise do."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gswgan.audit.bounds import GaussianFamily, lower_bounds
from gswgan.audit.mechanism import audit_message
from gswgan.audit.site_messages import SITE, answers_of, message_scores, site_pairs, site_plan
from gswgan.audit.worst_case import public_features
from gswgan.errors import AuditError
from gswgan.federated import client_answers
from gswgan.federated.client import Client
from gswgan.federated.messages import question, read_answer
from gswgan.plan.plan import Plan
from gswgan.privacy import GaussianMechanism
from gswgan.privacy.events import gaussian_of
from gswgan.privacy.randomness import create_key

TRIALS = 12_000
CHANGED, KEPT, RARE = range(3)
STATED = 10.0


def bound(pair: int, **options: Any) -> float:
    """Epsilon at least, at 95 % confidence."""
    chosen = site_pairs(public_features())[pair]
    plan = site_plan(chosen.data(1, 2))
    mu = gaussian_of(plan.sums.event).mu
    first, second = (message_scores(chosen, world, TRIALS, **options) for world in (1, 2))
    free, own = lower_bounds(
        first, second, delta=plan.cost.delta, family=GaussianFamily(mu=mu, delta=plan.cost.delta), error=0.025
    )
    assert own is not None
    return max(free.epsilon, own.epsilon)


@pytest.mark.parametrize("pair", [CHANGED, KEPT, RARE])
def test_the_bytes_of_a_message_do_not_refute_the_stated_epsilon(pair: int):
    found = bound(pair)
    assert found < STATED
    assert found > (4.0 if pair == KEPT else 8.5)  # the attack is near the truth


def test_noise_for_the_total_divided_among_the_sites_is_refuted(monkeypatch: pytest.MonkeyPatch):
    class Shared(GaussianMechanism):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.noise_std /= math.sqrt(3)  # three of them would make the whole

    monkeypatch.setattr(client_answers, "GaussianMechanism", Shared)
    assert bound(CHANGED) > STATED


def test_no_noise_for_a_class_that_the_site_lacks_is_refuted(monkeypatch: pytest.MonkeyPatch):
    real = GaussianMechanism.answer

    def answer(self: GaussianMechanism, name: str, blocks: Any, *, slots: int, width: int) -> Any:
        found = real(self, name, blocks, slots=slots, width=width)
        absent = blocks.total[:, -1] == 0
        found.sums[absent], found.counts[absent] = 0.0, 0.0
        return found

    monkeypatch.setattr(GaussianMechanism, "answer", answer)
    assert bound(RARE) > STATED


def test_a_site_that_answers_twice_is_refuted():
    def forgetful(client: Client, plan: Plan) -> list[Any]:
        """The site loses its state between two questions, ledger and key included, and answers with fresh noise."""
        first = client.reply(question(plan))
        shutil.rmtree(client._place(plan))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(client, "_secret", lambda plan, folder: create_key(folder / "key.json", plan.digest()))
            second = client.reply(question(plan))
        return [read_answer(fields, plan)[1] for fields in (first, second)]

    assert bound(CHANGED, ask=forgetful) > STATED


def test_a_site_that_lost_its_answer_refuses_to_answer_again(tmp_path: Path):
    data = site_pairs(public_features())[CHANGED].data(1, 50)
    plan = site_plan(data)

    def loses_its_answer(client: Client, plan: Plan) -> list[Any]:
        first = client.reply(question(plan))
        (client._place(plan) / "answer.bin").unlink()
        second = client.reply(question(plan))
        assert "refused" in second  # the cap is the plan's own epsilon
        assert first["client"] == SITE
        return [read_answer(first, plan)[1]]

    assert len(answers_of(data, plan, tmp_path, loses_its_answer)) == 1
    with pytest.raises(AuditError, match="ledger"):
        answers_of(data, plan, tmp_path / "again", lambda client, plan: _unrecorded(client, plan))


def _unrecorded(client: Client, plan: Plan) -> list[Any]:
    """A site whose ledger has lost its line."""
    sent = read_answer(client.reply(question(plan)), plan)[1]
    (ledger,) = client.home.glob("*/ledger.jsonl")
    ledger.write_bytes(ledger.read_bytes().splitlines(keepends=True)[0])
    return [sent]


def test_the_audit_as_a_whole():
    found = audit_message(trials=4000)
    assert not found.refuted
    assert np.isfinite(found.lower_bound)
    assert len(found.pairs) == 3
    assert found.stated.observer == "server"
