"""Faults planted in the source of preset `refined`: the audit, the row's definition or the ledger finds each of them.

Coins that steps share, and noise from the bits of coins, are in tests/contracts/test_wiring.py.
"""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import pytest

from conftest import MNIST, tiny_images
from contracts.wiring import plant
from critics.refined.test_record_gradients import SEED, batch, make, plain
from gswgan.audit.mechanism import audit_releases, tie_to_real_runs
from gswgan.audit.refined import observe_refined
from gswgan.critics.dp_sgd import RecordGradients
from gswgan.critics.refined.gradients import Gradients
from gswgan.errors import AuditError, LedgerError
from gswgan.methods import make_plan, refined
from gswgan.plan.plan import Plan
from gswgan.privacy import Accountant
from gswgan.run import loop
from gswgan.run.folder import RunFolder
from methods.test_refined_run import CPU, small

CHUNK = "yield found[:, None], None"
FAULTS: dict[str, tuple[Any, str, str, str]] = {
    "one clip of the whole sum": (
        RecordGradients, "blocks", CHUNK, "yield found.sum(dim=0, keepdim=True)[:, None], None",
    ),
    "the mean gradient clipped, for every record": (
        RecordGradients, "blocks", CHUNK, "yield found.mean(dim=0, keepdim=True).expand_as(found)[:, None], None",
    ),
    "each of four draws clipped and added by itself": (
        RecordGradients, "blocks", CHUNK, "yield found.repeat(4, 1)[:, None], None",
    ),
    "coins that do not depend on the step": (RecordGradients, "draw", "(name, ", '("step 0", '),
}  # fmt: skip


@functools.cache
def planned() -> Plan:
    return make_plan(MNIST, preset="refined")


def audited() -> float:
    return tie_to_real_runs(observe_refined(planned(), steps=500))


def test_the_audit_finds_nothing_in_the_real_wiring() -> None:
    assert audited() > 1e-4


@pytest.mark.parametrize("fault", FAULTS)
def test_the_audit_finds_a_planted_fault(fault: str, monkeypatch) -> None:
    plant(monkeypatch, *FAULTS[fault])
    with pytest.raises(AuditError, match="steps of DP-SGD"):
        audited()


def check_rows(draws: int = 4) -> None:
    """What the mechanism gets of a record is the gradient of its mean loss, not clipped before."""
    denoiser, (images, labels, records) = make(), batch(3)
    rows = Gradients(denoiser, draws=draws).of_records(images, labels, records, SEED)
    assert len(rows) == len(images), "not one row for each record"
    for index in range(len(images)):
        exact = plain(denoiser, images[index], labels[index], records[index], draws)
        assert (rows[index] - exact).norm() < 1e-5 * exact.norm(), "not the gradient of the mean loss"


def test_draws_that_are_averaged_after_the_clip_are_found(monkeypatch) -> None:
    check_rows()
    rows = Gradients._rows

    def clipped_before(self, images, noise, levels, labels, groups):
        each = rows(self, images, noise, levels, labels, len(images))  # a row for each draw
        return (each / each.norm(dim=1, keepdim=True)).unflatten(0, (groups, -1)).mean(dim=1)

    monkeypatch.setattr(Gradients, "_rows", clipped_before)
    with pytest.raises(AssertionError, match="not the gradient of the mean loss"):
        check_rows()


def test_a_calibration_that_forgets_the_kernels_share_states_more_than_was_asked_for(monkeypatch) -> None:
    asked = 10 * (1 + 1e-4)
    assert planned().guarantee.epsilon <= asked
    plant(monkeypatch, refined, "events", "started_total(start, privacy, privacy.releases)", "privacy.total()")
    assert make_plan(MNIST, preset="refined").guarantee.epsilon > asked


def test_an_epsilon_without_the_kernels_share_is_not_published(tmp_path: Path, monkeypatch) -> None:
    plan = small()
    monkeypatch.setattr(
        refined.PlannedRefined, "total",
        lambda self, draft, steps: draft.sums.total(max(1, steps - self.steps - self.pretraining)),
    )  # fmt: skip
    less = Accountant().epsilon(plan.total(), plan.guarantee.delta)
    assert less < plan.guarantee.epsilon
    plan = dataclasses.replace(plan, guarantee=dataclasses.replace(plan.guarantee, epsilon=less))
    folder = RunFolder.create(tmp_path / "run", plan)
    with pytest.raises(LedgerError, match="those of the plan"):
        loop.run(folder, tiny_images(), device=CPU)
    assert not folder.privacy.exists()
    assert not folder.generator.exists()


def test_a_kernel_release_that_is_not_recorded_is_not_published(tmp_path: Path, monkeypatch) -> None:
    from gswgan.privacy import Ledger

    record = Ledger.record
    monkeypatch.setattr(Ledger, "record", lambda self, name, *rest: name == "embedding" or record(self, name, *rest))
    folder = RunFolder.create(tmp_path / "run", small())
    with pytest.raises(LedgerError, match="at least the planned 4"):
        loop.run(folder, tiny_images(), device=CPU)
    assert not folder.generator.exists()


def test_the_audit_refutes_a_claim_without_the_kernels_share() -> None:
    plan = make_plan(MNIST, preset="refined", device="cuda")
    shown = audit_releases(plan, trials=20_000).epsilon
    assert shown < plan.guarantee.epsilon
    assert shown > Accountant().epsilon(plan.privacy.total(), plan.guarantee.delta) + 0.5
