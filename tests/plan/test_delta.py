"""delta: its default, and the refusal of one that is 1/n or more."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from conftest import MNIST, tiny_images
from gswgan import GSWGAN
from gswgan.cli.main import app
from gswgan.errors import GswganWarning, PlanError
from gswgan.federated.trust import make_federated_plan
from gswgan.methods import make_plan
from gswgan.plan.facts import Facts
from gswgan.plan.make import check_large_delta

DATA = tiny_images(300)


def with_records(records: int, persons: int | None = None) -> Facts:
    return dataclasses.replace(MNIST, records=records, persons=persons)


@pytest.mark.parametrize(
    ("units", "delta"), [(60_000, 1e-5), (99_999, 1e-5), (100_000, 1e-6), (250_000, 4e-7), (2_000_000, 5e-8)]
)
def test_the_default_follows_the_number_of_units(units: int, delta: float) -> None:
    assert make_plan(with_records(units)).guarantee.delta == pytest.approx(delta, rel=1e-12)
    assert make_plan(with_records(3 * units, units)).guarantee.delta == pytest.approx(delta, rel=1e-12)
    assert make_federated_plan(with_records(units, units)).guarantee.delta == pytest.approx(delta, rel=1e-12)


def test_an_asked_for_delta_stays_as_it_is() -> None:
    assert make_plan(with_records(2_000_000), delta=1e-7).guarantee.delta == 1e-7


def test_a_delta_of_one_over_n_or_more_is_refused_unless_it_was_asked_for() -> None:
    for facts, units, delta in ((with_records(1000), 1000, 1e-3), (with_records(9000, 500), 500, 2e-3)):
        plan = make_plan(facts, delta=delta)
        with pytest.raises(PlanError, match=f"less than 1/{units}.*--allow-large-delta"):
            check_large_delta(plan, allowed=False)
        check_large_delta(plan, allowed=True)
        check_large_delta(make_plan(facts, delta=delta * 0.999), allowed=False)


def test_the_papers_federated_preset_still_has_its_delta() -> None:
    plan = make_federated_plan(with_records(866, 866), preset="paper-federated", trust="untrusted-server")
    assert plan.guarantee.delta == 1.15e-3  # below 1/866 = 1.1547e-3
    check_large_delta(plan, allowed=False)


def test_python_refuses_it_and_takes_it_with_the_flag() -> None:
    assert DATA.labels is not None
    with pytest.raises(PlanError, match="allow_large_delta=True"):
        GSWGAN(delta=0.1, steps=2, device="cpu").fit(DATA.images[:, 0], DATA.labels, classes=3)
    model = GSWGAN(delta=0.1, steps=2, device="cpu", allow_large_delta=True)
    with pytest.warns(GswganWarning, match="published in the clear"):
        model.fit(DATA.images[:, 0], DATA.labels, classes=3)
    assert model.privacy.delta == 0.1


def test_the_command_line_refuses_it_and_takes_it_with_the_flag(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", images=DATA.images[:, 0], labels=DATA.labels)
    (tmp_path / "clients.txt").write_text("\n".join(f"client {index}" for index in range(50)))
    train = ["train", "--data", str(tmp_path / "data.npz"), "--classes", "3", "--delta", "0.01"]
    simulate = ["federate", "simulate", "--clients", "20", "--delta", "0.05"]
    plan = ["federate", "plan", "--clients", str(tmp_path / "clients.txt"), "--classes", "3", "--image-size", "8"]
    plan += ["--out", str(tmp_path / "run"), "--delta", "0.02"]
    for command in (train, simulate, plan):
        with pytest.raises(PlanError, match="--allow-large-delta"):
            CliRunner().invoke(app, [*command, "--dry-run"], catch_exceptions=False)
        done = CliRunner().invoke(app, [*command, "--dry-run", "--allow-large-delta"], catch_exceptions=False)
        assert done.exit_code == 0, done.output
    assert not (tmp_path / "run").exists()
