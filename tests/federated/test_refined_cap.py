"""What a site agrees to with preset refined, and its cap: one plan, alone, with all that is to come of it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from test_refined_by_files import answer, begun, ledger_of, make_run
from test_silos_by_files import NAMES, ask, call, make_sites, site

from gswgan.critics.refined.gradients import Gradients
from gswgan.critics.refined.sites import SiteSteps
from gswgan.errors import FederationError, PlanError
from gswgan.federated.limits import Limits
from gswgan.federated.memory import AGREED, Memory, home_of
from gswgan.federated.own_ledger import OwnLedger
from gswgan.federated.silo_statement import group_lines
from gswgan.federated.site_steps import read_turn
from gswgan.federated.trust import check_cost, planned_events, spent
from gswgan.plan.facts import Silos, Site
from gswgan.privacy.events import tally
from gswgan.privacy.filter import epsilon_with_repeats
from gswgan.privacy.ledger import compose, read_ledger
from gswgan.run.folder import RunFolder


def dies(root: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A site records its steps of the first round, and dies before it keeps its answer."""
    real = SiteSteps.answer

    def dying(self, weights, steps):
        real(self, weights, steps)
        raise RuntimeError("dead")

    monkeypatch.setattr(SiteSteps, "answer", dying)
    with pytest.raises(RuntimeError, match="dead"):
        answer(root, name, number=1)
    monkeypatch.setattr(SiteSteps, "answer", real)


@pytest.mark.parametrize("room", [1.0, 3.0])
def test_a_site_that_died_in_a_round_is_asked_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: float
) -> None:
    """Otherwise a server would see by a refusal whether the sums of two questions are equal: without noise."""
    plan = begun(tmp_path)
    dies(tmp_path, "north", monkeypatch)
    question, before = tmp_path / "RUN/round-1.safetensors", ledger_of(tmp_path, "north").read_bytes()
    turn = read_turn(question, plan)
    dataclasses.replace(turn, weights=turn.weights * 0.5).save(question, plan)
    with pytest.raises(FederationError, match="the same question again"):
        answer(tmp_path, "north", number=1, epsilon=room * plan.cost.epsilon)
    assert ledger_of(tmp_path, "north").read_bytes() == before
    turn.save(question, plan)
    answer(tmp_path, "north", number=1)


def test_sums_that_another_machine_rounds_otherwise_count_again_within_the_cap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = begun(tmp_path)
    dies(tmp_path, "north", monkeypatch)
    before, real = ledger_of(tmp_path, "north").read_bytes(), Gradients.of_records
    monkeypatch.setattr(Gradients, "of_records", lambda self, *given: 0.5 * real(self, *given) + 1e-3)
    with pytest.raises(FederationError, match="the cap"):
        answer(tmp_path, "north", number=1)
    assert ledger_of(tmp_path, "north").read_bytes() == before
    answer(tmp_path, "north", number=1, epsilon=30 * plan.cost.epsilon)
    entries = read_ledger(ledger_of(tmp_path, "north"))[1]
    again = [entry.event for entry in entries if entry.attempt]
    assert again == [plan.sums.event.event] * len(again)
    assert again
    memory = Memory.read(home_of(tmp_path / "north/state", "north"))
    levels = epsilon_with_repeats(plan.releases(), tally(compose(entries)), 1e-5, "replace-one")
    once = spent(planned_events(plan), neighbours="replace-one", delta=1e-5)
    assert memory.epsilon() == pytest.approx(levels)
    assert levels > 1.05 * once
    own = OwnLedger(tmp_path / "north/state", RunFolder(tmp_path / "RUN").ledger, plan)
    assert own.epsilon == pytest.approx(memory.spent)


def test_the_first_answer_agrees_to_all_rounds_or_there_is_none(tmp_path: Path) -> None:
    plan = make_run(tmp_path, make_sites(tmp_path))
    little = {"epsilon": 0.9 * plan.cost.epsilon}  # enough for the kernel's round alone
    seen = ask("federate", "inspect", tmp_path / "RUN/plan.json", "--site", site(tmp_path, "north", **little))
    assert "the cap" in str(seen["refused"])
    with pytest.raises(FederationError, match="the cap"):
        answer(tmp_path, "north", **little)
    assert not list((tmp_path / "north/state").glob("*/*/ledger.jsonl"))
    with pytest.raises(FederationError, match="limit of this site"):
        answer(tmp_path, "north", work=1e-6)
    with pytest.raises(FederationError, match="protect"):
        answer(tmp_path, "north", protect="person")


def kernel_plan(root: Path) -> Path:
    (root / "second").mkdir()
    call("federate", "plan", "--protect", "record", "--clients", sites_file(root), "--class-names",
         classes_file(root), "--image-size", 8, "--epsilon", 2, "--delta", 1e-5, "--steps", 5, "--out",
         root / "second/RUN")  # fmt: skip
    return root / "second/RUN/plan.json"


def test_a_plan_with_secret_coins_is_answered_alone(tmp_path: Path) -> None:
    """Whatever the cap: a plan that is chosen after seeing answers does not add up with it (test_filter.py)."""
    begun(tmp_path)
    second, much = kernel_plan(tmp_path), {"epsilon": 1000.0}
    seen = ask("federate", "inspect", second, "--site", site(tmp_path, "north", **much))
    assert "such a plan alone" in seen["refused"]
    assert any("which this plan cannot be added to" in line for line in seen["who_learns_what"])
    with pytest.raises(FederationError, match="such a plan alone"):
        call("federate", "answer", second, "--site", site(tmp_path, "north", **much), "--out", tmp_path / "second/n")
    assert ask("federate", "inspect", tmp_path / "RUN/plan.json", "--site", site(tmp_path, "north"))["refused"] is None
    for name in NAMES:
        answer(tmp_path, name, number=1)  # and the rounds go on


def test_nor_is_it_answered_after_another(tmp_path: Path) -> None:
    make_run(tmp_path, make_sites(tmp_path))
    much = {"epsilon": 1000.0}
    out = tmp_path / "second.safetensors"
    call("federate", "answer", kernel_plan(tmp_path), "--site", site(tmp_path, "north", **much), "--out", out)
    seen = ask("federate", "inspect", tmp_path / "RUN/plan.json", "--site", site(tmp_path, "north", **much))
    assert "such a plan alone" in seen["refused"]
    with pytest.raises(FederationError, match="such a plan alone"):
        answer(tmp_path, "north", **much)


def test_rounds_that_were_given_up_stay_counted(tmp_path: Path) -> None:
    """Else a server that has seen the first answer could choose: these rounds, or another plan with what they cost."""
    begun(tmp_path)
    folder, much = ledger_of(tmp_path, "north").parent, {"epsilon": 1000.0}
    (folder / "key.json").unlink()
    second, out = kernel_plan(tmp_path), tmp_path / "second.safetensors"
    with pytest.raises(FederationError, match="such a plan alone"):
        call("federate", "answer", second, "--site", site(tmp_path, "north", **much), "--out", out)
    (folder / AGREED).unlink()
    with pytest.raises(FederationError, match=r"agreed.json.*Restore it"):
        answer(tmp_path, "north", number=1, **much)


def sites_file(root: Path) -> Path:
    sizes = {name: len(list((root / name / "images").rglob("*.png"))) for name in NAMES}
    (root / "sites.csv").write_text("\n".join(f"{name},{size}" for name, size in sizes.items()))
    return root / "sites.csv"


def classes_file(root: Path) -> Path:
    (root / "classes.txt").write_text("\n".join(f"digit {label}" for label in range(10)))
    return root / "classes.txt"


def test_what_a_step_costs_whoever_takes_part_is_bounded(tmp_path: Path) -> None:
    """A plan whose coins never fall still makes a site draw noise for every weight in every step."""
    plan = make_run(tmp_path, make_sites(tmp_path))
    steps = 500_000
    settings = dataclasses.replace(plan.critic, local_steps=steps)
    sums = dataclasses.replace(plan.sums, rate=1e-9, releases=steps)
    training = dataclasses.replace(plan.training, steps=plan.training.steps - plan.sums.releases + steps)
    long = dataclasses.replace(plan, critic=settings, privacy=sums, training=training)
    with pytest.raises(FederationError, match="work"):
        Limits(work=50).check(long)
    Limits(work=50).check(plan)


def test_a_plan_whose_steps_take_gigabytes_is_refused(tmp_path: Path) -> None:
    plan = make_run(tmp_path, make_sites(tmp_path))
    wide = dataclasses.replace(plan, critic=dataclasses.replace(plan.critic, draws=256))
    Limits(memory=8).check(plan)
    with pytest.raises(FederationError, match="memory"):
        Limits(memory=8).check(wide)


def test_a_plan_whose_cost_takes_gigabytes_to_compute_is_refused_before_that(tmp_path: Path) -> None:
    """Steps that hardly anybody takes part in, almost without noise: a discretized loss of 90,000,000,000 numbers."""
    plan = make_run(tmp_path, make_sites(tmp_path))
    sums = dataclasses.replace(plan.sums, rate=1e-9, noise_std=2e-4 * plan.sums.clip_norm, releases=1)
    training = dataclasses.replace(plan.training, steps=plan.training.steps - plan.sums.releases + 1)
    rare = dataclasses.replace(plan, privacy=sums, training=training)
    with pytest.raises(PlanError, match="too much memory"):
        check_cost(rare)
    sites = tuple(Site(name=f"{number:06}", records=1) for number in range(100_000))
    facts = dataclasses.replace(plan.facts, records=len(sites), silos=Silos(sites=sites, min_sites=2))
    many = dataclasses.replace(plan, facts=facts)
    releases = [event for event, times in plan.releases().items() for _ in range(times)]
    (line,) = group_lines(many, releases * 1000, 1e-5)
    assert "100000 sites: epsilon inf" in line
