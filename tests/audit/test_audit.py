"""`gswgan audit`: the paper's claim falls, ours stand, with bounds that are not far below what is stated."""

from __future__ import annotations

import functools
import json
import sys

import pytest

import gswgan.audit.mechanism as audit
from gswgan.audit.mechanism import Audit, audit_method
from gswgan.cli import main
from gswgan.errors import AuditError, PlanError


@pytest.fixture(autouse=True)
def _fewer_real_steps(monkeypatch) -> None:
    monkeypatch.setattr(audit, "REAL_STEPS", 60)  # test_wiring.py has more of them


@functools.cache
def small_audit(preset: str, records: int = 60_000, claim: float | None = None) -> Audit:
    """Fewer trials than the command makes: the trade-off form needs few."""
    return audit_method("gswgan", preset, records=records, claim=claim, trials=1500 if preset == "paper" else 12_000)


@pytest.mark.parametrize(
    ("preset", "records"), [("kernel", 60_000), ("ensemble", 60_000), ("ensemble-alone", 60_000), ("ensemble", 1437)]
)
def test_what_we_state_is_not_refuted_and_not_loose(preset: str, records: int) -> None:
    found = small_audit(preset, records)
    assert not found.refuted
    assert found.claim == found.stated.epsilon == pytest.approx(10, rel=1e-3)
    assert found.stated.epsilon / 1.5 < found.lower_bound < found.stated.epsilon
    assert all(pair.trade_off is not None for pair in found.pairs)


def test_the_kernel_is_attacked_with_and_without_a_change_of_class() -> None:
    names = [pair.name for pair in small_audit("kernel").pairs]
    assert names == ["the record changes its class", "the record keeps its class"]


def test_the_papers_claim_is_refuted_and_its_guarantee_is_not() -> None:
    found = small_audit("paper", claim=9.99)
    assert found.refuted
    assert found.lower_bound > 10
    assert found.lower_bound < 329.4  # what the worst known pair allows
    assert found.stated.epsilon == pytest.approx(610.3, abs=0.1)


def test_the_command_prints_an_answer_and_json(monkeypatch, capsys) -> None:
    result = small_audit("kernel")
    monkeypatch.setattr(audit, "audit_method", lambda *args, **options: result)
    for options, said in (((), "not refuted"), (("--json",), '"verdict": "not refuted"')):
        monkeypatch.setattr(sys, "argv", ["gswgan", "audit", "--preset", "kernel", *options])
        with pytest.raises(SystemExit) as stopped:
            main.run()
        assert stopped.value.code == 0
        printed = capsys.readouterr().out
        assert said in printed
    content = json.loads(printed)
    assert content["stated"]["delta"] == 1e-5
    assert content["pairs"][0]["trade_off"]["rates"]["trials"] == 10_000
    assert content["lower_bound"] == result.lower_bound


@pytest.mark.parametrize(
    ("preset", "options", "error"),
    [
        ("paper-federated", {}, PlanError), ("kernel", {"records": 1}, PlanError),
        ("kernel", {"claim": -1.0}, AuditError), ("kernel", {"claim": float("nan")}, AuditError),
    ],
)  # fmt: skip
def test_what_cannot_be_audited_is_said(preset: str, options: dict, error: type[Exception]) -> None:
    with pytest.raises(error):
        audit_method("gswgan", preset, **options)
