"""A budget is a privacy filter: runs that are chosen after earlier ones were seen never go beyond its budget."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from budgets import DATA, again

from conftest import MNIST, tiny_baseline, tiny_plan
from gswgan.errors import PrivacyError
from gswgan.methods import make_plan
from gswgan.plan.plan import Plan
from gswgan.privacy import Accountant, Composed
from gswgan.run.budget import Budget


def first_and_choice() -> tuple[Plan, list[Plan]]:
    """Default at 6, then default at 7.12 or dp-sgd-gan in 10 steps at 8.05: each composes with the first to 10."""
    choice = [make_plan(MNIST, epsilon=7.12), make_plan(MNIST, method="dp-sgd-gan", steps=10, epsilon=8.05)]
    return make_plan(MNIST, epsilon=6), choice


def test_a_choice_by_what_was_released_before_is_not_left_to_the_user(tmp_path: Path) -> None:
    """By composition of fixed mechanisms both would fit; the choice costs delta 1.51e-5 (privacy/test_filter.py)."""
    first, (plain, sampled) = first_and_choice()
    for second in (plain, sampled):
        both = Composed(events=(first.total(), second.total()))
        assert Accountant("replace-one").epsilon(both, 1e-5) <= 10
    budget = Budget.create(tmp_path / "budget", epsilon=10, delta=1e-5)
    budget.reserve("first", first, DATA, where="")
    with pytest.raises(PrivacyError, match="--sampled-share"):
        again(budget).check(sampled)
    assert "epsilon 10 of 10 at delta 1e-05 with this run" in again(budget).check(plain)  # the exact figure


def test_runs_of_both_kinds_have_a_part_each_from_the_start(tmp_path: Path) -> None:
    first, (plain, sampled) = first_and_choice()
    budget = Budget.create(tmp_path / "budget", epsilon=20, delta=2e-5, sampled_share=0.5)
    budget.reserve("first", first, DATA, where="")
    with pytest.raises(PrivacyError, match="budget"):
        again(budget).check(make_plan(MNIST, epsilon=8))
    budget.reserve("second", sampled, DATA, where="")
    budget.reserve("third", plain, DATA, where="")
    plain_part, sampled_part = again(budget).words().split("; ")
    assert plain_part == "plain Gaussian releases: epsilon 10 of 10 at delta 1e-05"
    assert sampled_part == "other runs: epsilon 8.05 of 10 and delta 1e-05 of 1e-05"
    for more in (make_plan(MNIST, epsilon=0.1), dataclasses.replace(sampled, seed=1)):
        with pytest.raises(PrivacyError, match="budget"):
            again(budget).check(more)


def test_a_budget_that_begins_with_a_sampled_run_adds_up_epsilons_and_deltas(tmp_path: Path) -> None:
    budget = Budget.create(tmp_path / "large", epsilon=1_000, delta=1e-5)
    options = {"delta": 2e-6}
    plans = [
        tiny_plan(DATA, preset="paper", **options),
        tiny_baseline(DATA, "dp-sgd-gan", **options),
        tiny_baseline(DATA, "pate-gan", **options),
        tiny_plan(DATA, **options),
    ]
    for number, plan in enumerate(plans):
        budget.reserve(str(number), plan, DATA, where="")
    parts = [Accountant("replace-one").epsilon(plan.total(), 2e-6) for plan in plans]
    assert again(budget).spent() == pytest.approx(sum(parts))
    assert [one.charges[0].cost for one in again(budget).runs] == [(part, 2e-6) for part in parts]
    budget.reserve("last", tiny_plan(DATA, **options), DATA, where="")  # all of delta
    with pytest.raises(PrivacyError, match=r"delta 1\.1e-05 of 1e-05"):
        budget.reserve("more", tiny_plan(DATA, epsilon=1, delta=1e-6), DATA, where="")


def test_one_run_of_any_kind_can_take_the_whole_budget(tmp_path: Path) -> None:
    for number, plan in enumerate(
        (tiny_plan(DATA), tiny_baseline(DATA, "dp-sgd-gan"), tiny_baseline(DATA, "pate-gan"))
    ):
        budget = Budget.create(tmp_path / str(number), epsilon=10, delta=1e-5)
        budget.reserve("a", plan, DATA, where="")
        with pytest.raises(PrivacyError, match="budget"):
            budget.reserve("b", dataclasses.replace(plan, seed=1), DATA, where="")


def test_a_share_at_creation_holds_whatever_the_first_run_is(tmp_path: Path) -> None:
    budget = Budget.create(tmp_path / "budget", epsilon=10, delta=1e-5, sampled_share=1.0)
    budget.reserve("a", tiny_plan(DATA, epsilon=3, delta=1e-6), DATA, where="")
    budget.reserve("b", tiny_baseline(DATA, "dp-sgd-gan", epsilon=3, delta=1e-6), DATA, where="")
    assert again(budget).words() == "epsilon 6 of 10 and delta 2e-06 of 1e-05"
    none = Budget.create(tmp_path / "none", epsilon=10, delta=1e-5, sampled_share=0.0)
    with pytest.raises(PrivacyError, match="--sampled-share"):
        none.check(tiny_baseline(DATA, "dp-sgd-gan"))
    for wrong in (-0.1, 1.1, float("nan")):
        with pytest.raises(PrivacyError, match="from 0 to 1"):
            Budget.create(tmp_path / "wrong", epsilon=10, delta=1e-5, sampled_share=wrong)
    assert not (tmp_path / "wrong").exists()
