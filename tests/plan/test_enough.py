"""Too few records to see anything: stopped before epsilon is spent, by public facts alone."""

from __future__ import annotations

import pytest

from gswgan.errors import PlanError
from gswgan.federated.trust import make_federated_plan
from gswgan.methods import make_plan
from gswgan.plan.enough import check_enough, least_units
from gswgan.plan.facts import Facts


def facts(records: int, classes: int, persons: int | None = None, *, labelled: bool = True) -> Facts:
    names = tuple(map(str, range(classes)))
    return Facts(
        data="x", records=records, persons=persons, classes=classes, class_names=names, labelled=labelled,
        image_size=8, channels=1,
    )  # fmt: skip


def test_records_of_classes_of_equal_size_reach_five_times_the_noise() -> None:
    plan = make_plan(facts(9, 3))
    assert plan.sums.noise_std == pytest.approx(1.0, abs=0.01)
    assert least_units(plan) == 15
    with pytest.raises(PlanError, match=r"^records = 9: expected at least 15 for 3 classes.*--force-spend"):
        check_enough(plan, forced=False)
    check_enough(plan, forced=True)
    check_enough(make_plan(facts(15, 3)), forced=False)
    assert least_units(make_plan(facts(9, 1, labelled=False))) is None  # their number is public
    assert least_units(make_plan(facts(9, 3), preset="ensemble-alone")) is None


@pytest.mark.parametrize(("trust", "clients"), [("trusted-aggregator", 6), ("untrusted-server", 50)])
def test_too_few_clients_are_stopped_and_the_number_that_is_named_is_enough(trust: str, clients: int) -> None:
    plan = make_federated_plan(facts(clients, 10, clients), trust=trust)
    with pytest.raises(PlanError, match=rf"^persons = {clients}: expected at least "):
        check_enough(plan, forced=False)
    least = least_units(plan)
    assert least is not None
    check_enough(make_federated_plan(facts(least, 10, least), trust=trust), forced=False)
