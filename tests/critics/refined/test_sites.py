"""DP-SGD over sites: the product's own steps, right averages, what leaves a site is what its ledger has."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from over_sites import STEPS, Federated, planned, sites
from works import small_refined

from gswgan.critics.refined.sites import farther, rounds_of, shares_of
from gswgan.data import ImageData
from gswgan.errors import FederationError
from gswgan.federated.stated import as_planned
from gswgan.generators.scaled_descent import put_weights, weights_of
from gswgan.methods import make_plan
from gswgan.privacy import Accountant


@pytest.fixture
def made(tmp_path: Path) -> Federated:
    parts = sites()
    return Federated(planned(parts), parts, tmp_path)


def test_one_site_that_holds_everything_takes_the_steps_of_centralized_training(tmp_path: Path) -> None:
    """The same code, so the same bytes: in rounds of one step, of two, and in one round of all."""
    parts = sites(2)
    plan, found = planned(parts), []
    whole = dataclasses.replace(
        parts["site-00000"],
        images=np.concatenate([part.images for part in parts.values()]),
        labels=np.concatenate([np.asarray(part.labels) for part in parts.values()]),
    )
    for local in (1, 2, STEPS):
        alone = Federated(plan, {"site-00000": whole}, tmp_path / f"{local}")
        for steps in rounds_of(STEPS, local):
            alone.round(steps)
        found.append(alone.server.weights)
    central = Federated(plan, {"site-00000": whole}, tmp_path / "central")
    site, generator = central.sites["site-00000"], central.generator
    for step in range(STEPS):
        central.dp_sgd.step(step, site.records, generator.descent, site._batches)
    expected = weights_of(generator.denoised)
    assert all(torch.equal(weights, expected) for weights in found)
    assert not torch.equal(expected, central.server.weights)


def test_rounds_of_one_step_follow_the_sum_of_the_noisy_gradients(made: Federated, monkeypatch) -> None:
    """With equal sites whose gradients have one size, an average of weights is a step along the mean gradient."""
    sums: dict[str, torch.Tensor] = {}
    for name, site in made.sites.items():
        own = site.records.answer

        def answer(step, batches, own=own, name=name):
            sums[name] = own(step, batches)
            return sums[name]

        monkeypatch.setattr(site.records, "answer", answer)
    before = made.server.weights
    made.round(range(1))
    moved, mean = before - made.server.weights, torch.stack(list(sums.values())).mean(dim=0)
    along = made.generator.preconditioner.back(mean)
    assert float(torch.nn.functional.cosine_similarity(moved, along, dim=0)) > 0.999
    rate = made.plan.optimizer.learning_rate
    lengths = [made.generator.preconditioner.back(one).square().mean().sqrt() for one in sums.values()]
    expected = farther({"a": 1, "b": 1, "c": 1}) * rate * along / torch.stack(lengths).mean()
    assert (moved - expected).norm() < 0.05 * expected.norm()
    assert moved.square().mean().sqrt() == pytest.approx(rate, rel=0.15)  # as far as a step of centralized training


@pytest.mark.parametrize("local", [1, 4, STEPS])
def test_every_sites_ledger_has_its_steps_and_costs_no_more_than_the_plan(made: Federated, local: int) -> None:
    for steps in rounds_of(STEPS, local):
        made.round(steps)
    for ledger in made.ledgers.values():
        assert [entry.name for entry in ledger.entries] == [f"step {step}" for step in range(STEPS)]
        assert {entry.event for entry in ledger.entries} == {made.plan.sums.event}
        spent = Accountant().epsilon(ledger.total(), 1e-5)
        assert spent < made.plan.cost.epsilon <= 10  # the kernel's release comes to it


def test_a_site_that_is_asked_the_same_again_sends_the_same_bytes_and_counts_nothing(made: Federated) -> None:
    site, start = made.sites["site-00001"], made.server.weights
    before = {name: value.clone() for name, value in site.descent.state().items()}
    first = site.answer(start, range(2))
    site.descent.load_state(before)
    assert torch.equal(site.answer(start, range(2)), first)
    assert len(made.ledgers["site-00001"].entries) == 2
    site.descent.load_state(before)
    assert not torch.equal(site.answer(start + 0.1, range(2)), first)
    again = made.ledgers["site-00001"].entries[2:]  # other weights: counted again, without amplification
    assert [(entry.name, entry.attempt) for entry in again] == [("step 0", 1), ("step 1", 1)]
    assert {type(entry.event).__name__ for entry in again} == {"Gaussian"}


def test_sites_have_coins_draws_and_noise_of_their_own(made: Federated) -> None:
    data = made.parts["site-00000"]
    for site in made.sites.values():  # the same records everywhere: what differs is what a site adds
        site.records.images, site.records.labels = (torch.from_numpy(np.asarray(a)) for a in (data.images, data.labels))
    answers = [site.answer(made.server.weights, range(1)) for site in made.sites.values()]
    moved = torch.stack(answers) - made.server.weights
    assert float((torch.corrcoef(moved) - torch.eye(3)).abs().max()) < 0.2
    members = [site.records.descent.draw("step 1") for site in made.sites.values()]
    assert len({tuple(some) for some in members}) == 3


def test_a_site_sees_nothing_of_other_sites_but_the_servers_weights(made: Federated, tmp_path: Path) -> None:
    """One record of another site changed: this site's answer to the same weights is the same."""
    parts = dict(made.parts)
    changed = parts["site-00002"].images.copy()
    changed[0] = 255 - changed[0]
    parts["site-00002"] = dataclasses.replace(parts["site-00002"], images=changed)
    other = Federated(made.plan, parts, tmp_path / "other")
    start = made.server.weights
    for name in ("site-00000", "site-00001"):
        assert torch.equal(made.sites[name].answer(start, range(2)), other.sites[name].answer(start, range(2)))


def test_shares_are_those_of_the_records_and_the_average_goes_as_far_as_its_noise_allows() -> None:
    assert shares_of({"b": 30, "a": 10}) == {"a": 0.25, "b": 0.75}
    assert farther({"a": 7, "b": 7, "c": 7, "d": 7}) == pytest.approx(2.0)
    assert farther({"a": 10**6, "b": 1}) == pytest.approx(1.0, abs=1e-5)
    assert farther({"a": 5}) == 1.0
    assert [list(steps) for steps in rounds_of(5, 2)] == [[0, 1], [2, 3], [4]]
    assert rounds_of(5, 5) == [range(5)]


def test_the_server_averages_by_size_and_leaves_out_who_is_missing(made: Federated) -> None:
    server, one = made.server, torch.ones_like(made.server.weights)
    server.sizes = {"site-00000": 10, "site-00001": 30, "site-00002": 60}
    server.take({"site-00001": 1 * one, "site-00000": 5 * one}, range(1))
    assert torch.equal(server.weights, 2 * one)
    assert torch.equal(server.averaged, server.weights)  # nothing is kept of the start
    server.take({"site-00002": 4 * one}, range(1, 3))
    averaging = made.plan.critic.averaging
    kept = 1 / (1 + averaging) * 2 / (2 + averaging)
    assert server.averaged[0] == pytest.approx(4 + kept * (2 - 4))
    put_weights(made.generator.denoised, server.averaged)
    assert torch.equal(weights_of(made.generator.denoised), server.averaged)


@pytest.mark.parametrize(
    ("answers", "wrong"),
    [
        ({}, "at least one site"),
        ({"site-00009": 0.0}, "a site of the plan"),
        ({"site-00000": float("nan")}, "finite weights"),
        ({"site-00000": None}, "numbers"),
    ],
)
def test_what_cannot_be_a_sites_weights_is_refused(made: Federated, answers: dict, wrong: str) -> None:
    before = made.server.weights
    given = {name: torch.zeros(3) if value is None else before + value for name, value in answers.items()}
    with pytest.raises(FederationError, match=wrong):
        made.server.take(given, range(1))
    assert torch.equal(made.server.weights, before)


def test_the_plan_of_sites_has_the_events_of_centralized_training_and_the_noise_of_all_in_the_embedding() -> None:
    parts = sites()
    plan = planned(parts)
    central = small_refined(
        make_plan(dataclasses.replace(plan.facts, silos=None), preset="refined", steps=STEPS, epsilon=10.0, delta=1e-5),
        steps=2,
    )
    assert plan.total() == central.total()
    assert plan.cost.epsilon == central.cost.epsilon
    assert (plan.cost.observer, plan.sums.observer) == ("server", "server")
    for one, times in ((plan, 3**0.5), (central, 1.0)):
        embedding = one.critic.released_embedding(one)
        assert embedding.noise_std == pytest.approx(times * one.critic.noise_std)


def test_a_record_of_another_class_keeps_its_place_and_adds_nothing(tmp_path: Path, monkeypatch) -> None:
    """Coins and noise draws go by places: if it were left out, all records after it would have others."""
    parts = sites()
    plan, mine = planned(parts), parts["site-00000"]
    labels = np.asarray(mine.labels).copy()
    labels[5] = mine.classes
    other = dataclasses.replace(
        mine, labels=labels, classes=mine.classes + 1, class_names=(*mine.class_names, "something else")
    )

    def rows_of(data: ImageData, place: str) -> torch.Tensor:
        site = Federated(plan, {"site-00000": as_planned(data, plan.facts, in_place=True)}, tmp_path / place)
        site = site.sites["site-00000"]
        monkeypatch.setattr(site.records.descent, "answer", lambda name, rows: rows(np.arange(32)))
        return site.records.answer(0, site._batches)

    usual, changed = rows_of(mine, "usual"), rows_of(other, "changed")
    assert usual[5].any()
    usual[5] = 0.0
    assert torch.equal(changed, usual)
