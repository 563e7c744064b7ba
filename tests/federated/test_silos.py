"""Silos: the sum of the sites' sums is the centralized sum, every site adds its own noise, sites may differ."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rounds import answer_all, why_refused
from scipy.stats import norm
from silo_rounds import CPU, clients_of, digits, parts_of, plan_for, small

from gswgan.critics.kernel.critic import KernelCritic
from gswgan.critics.kernel.embedding import Embedding
from gswgan.data import ImageData
from gswgan.errors import FederationError, PlanError
from gswgan.federated.client import Client
from gswgan.federated.memory import Cap
from gswgan.federated.messages import read_answer, unpack
from gswgan.federated.server import Round, create_run
from gswgan.federated.silo_statement import noise_of_sum
from gswgan.federated.silos import of_unit, site_sum
from gswgan.federated.stated import Stated
from gswgan.federated.trust import make_federated_plan, trust_of, weight_of_counts
from gswgan.methods import make_plan, read_plan
from gswgan.plan.facts import Facts
from gswgan.privacy.ledger import read_ledger
from gswgan.privacy.mechanism import GRID_BITS
from gswgan.release.pack import pack
from gswgan.release.verify import verify
from gswgan.run.folder import RunFolder
from gswgan.run.loop import make_critic, run


@pytest.mark.parametrize("protect", ["record", "person"])
def test_a_trusted_aggregator_releases_the_centralized_sum_bit_for_bit(tmp_path: Path, protect: str):
    parts = parts_of(protect)
    assert len({part.n for part in parts.values()}) > 1  # of different sizes
    plan = plan_for(parts, protect, trust="trusted-aggregator", insecure_reproducible=True)
    central = small(make_plan(Facts.of(digits(protect)), preset="kernel", steps=6, insecure_reproducible=True))
    assert plan.sums == central.sums
    assert plan.cost == central.cost
    total = sum(site_sum(plan, of_unit(part, protect), weight_of_counts(plan)).total for part in parts.values())  # type: ignore[arg-type]
    whole = site_sum(plan, digits(protect), weight_of_counts(plan)).total
    assert np.array_equal(total, whole)

    held_round = Round(create_run(tmp_path / "RUN", plan, tuple(parts), 600))
    answer_all(held_round, clients_of(tmp_path / "state", parts, plan, protect))
    sent = [unpack(held_round.answers.path_of(name).read_bytes(), plan, name) for name in parts]
    assert np.array_equal(np.sum(sent, axis=0).ravel(), whole.ravel())  # as it travelled
    released = exact = None

    def without_noise(self: Any, shape: Any, scale: float, *name: object) -> np.ndarray:
        return np.zeros(shape, np.int64)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gswgan.privacy.randomness.Streams.rounded_gaussian", without_noise)
        held_round.release()
        released = Embedding.load(held_round.folder.embedding)
        folder = RunFolder.create(tmp_path / "central", central)
        critic: Any = make_critic(central, folder, digits(protect), CPU)
        assert isinstance(critic, KernelCritic)
        critic.prepare(digits(protect))
        exact = critic.embedding
    for name in ("sums", "counts"):
        assert torch.equal(getattr(released, name), getattr(exact, name)), name
    assert (released.noise_std, released.count_noise_std) == (exact.noise_std, exact.count_noise_std)


@pytest.mark.parametrize("protect", ["record", "person"])
def test_every_site_adds_the_full_noise_to_every_class(tmp_path: Path, protect: str):
    parts = parts_of(protect)
    mine = parts["site-00001"]
    few = np.isin(mine.labels, (0, 1, 2, 3))  # a site that lacks six classes
    parts["site-00001"] = dataclasses.replace(
        mine, images=mine.images[few], labels=mine.labels[few],
        persons=None if mine.persons is None else mine.persons[few],
    )  # fmt: skip
    plan = plan_for(parts, protect)
    assert trust_of(plan) == "untrusted-server"  # the default of silos
    held_round = Round(create_run(tmp_path / "RUN", plan, tuple(parts), 600))
    those = clients_of(tmp_path / "state", parts, plan, protect)
    answer_all(held_round, those)
    total = np.zeros(plan.facts.classes * 65, np.int64)
    for name, part in parts.items():
        raw = next(those[name].home.glob("*/answer.bin")).read_bytes()
        grid = unpack(raw, plan, name)[0]
        exact = site_sum(plan, of_unit(part, protect), weight_of_counts(plan)).total.ravel()  # type: ignore[arg-type]
        noise = (grid - exact).reshape(10, -1) / (plan.sums.noise_std / plan.sums.clip_norm * 2.0**GRID_BITS)
        assert 0.78 < noise.std() < 1.22  # 8 standard errors
        assert (noise.std(axis=1) > 0.4).all()  # for the classes that it lacks too
        (ledger,) = those[name].home.glob("*/ledger.jsonl")
        (entry,) = read_ledger(ledger)[1]
        assert entry.event == plan.sums.event
        total += grid
    held_round.release()
    released = Embedding.load(held_round.folder.embedding)
    table = total.reshape(10, -1) * (plan.sums.clip_norm * 2.0**-GRID_BITS)
    assert np.array_equal(released.sums.numpy(), table[:, :-1])
    assert released.noise_std == pytest.approx(plan.sums.noise_std * 3**0.5)
    weight = weight_of_counts(plan) if protect == "person" else plan.sums.clip_norm
    assert np.array_equal(released.counts.numpy(), table[:, -1] / weight)


def test_the_sensitivity_is_that_of_centralized_training_and_the_statement_names_everything(tmp_path: Path):
    parts = parts_of("record")
    plan = plan_for(parts, "record", epsilon=10.0, delta=1e-5)
    assert (plan.sums.event.sensitivity, plan.sums.noise_std) == (2.0, pytest.approx(1.0, abs=0.01))  # type: ignore[union-attr]
    held_round = Round(create_run(tmp_path / "RUN", plan, tuple(parts), 600))
    answer_all(held_round, clients_of(tmp_path / "state", parts, plan, "record"))
    held_round.release()
    assert run(held_round.folder, None, device=CPU)
    told = json.loads(held_round.folder.privacy.read_text())
    assert [(cost["unit"], cost["neighbours"], cost["observer"]) for cost in told["guarantees"]] == [
        ("record", "replace-one", "server"), ("record", "replace-one", "public"),
    ]  # fmt: skip
    assert all(cost["epsilon"] <= 10.001 for cost in told["guarantees"])  # the maximum over sites, not the sum
    assert (told["trust"], told["open_to"]) == ("untrusted-server", [])
    text = " ".join(told["sites"]["text"])
    assert "one record of one site replaced" in text
    assert "the server, the other sites and the public" in text
    assert "2 sites: epsilon 24.39, 3 sites: epsilon 42.85" in text  # mu 4 and 6 at delta 1e-5
    for sites, epsilon in ((2, 24.39), (3, 42.85)):
        mu = sites * 2 / plan.sums.noise_std
        most = norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
        assert most == pytest.approx(1e-5, rel=0.02)
    assert text.split("std ")[1].startswith(f"{plan.sums.noise_std * 3**0.5:.5g}")
    assert "site-00002" in held_round.folder.card.read_text().replace("\\", "")
    pack(held_round.folder.root, tmp_path / "packed")
    assert verify(tmp_path / "packed").findings == ()


def test_a_round_goes_on_without_a_site_only_if_the_plan_allows_it(tmp_path: Path):
    parts = parts_of("record")
    for least, ends in ((None, False), (2, True)):
        plan = plan_for(parts, "record", min_sites=least)
        root = tmp_path / str(least)
        held_round = Round(create_run(root / "RUN", plan, tuple(parts), 600))
        those = clients_of(root / "state", parts, plan, "record")
        late = those.pop("site-00002")
        answer_all(held_round, those)
        if not ends:
            with pytest.raises(FederationError, match="site-00002"):
                held_round.release()
            assert not held_round.folder.ledger.exists()
            assert not held_round.is_closed
            assert held_round.take(late.reply(held_round.question()), node=9) is None  # it comes back
            held_round.release()
            continue
        held_round.release()
        assert "late" in str(held_round.take(late.reply(held_round.question()), node=9))
        told = json.loads(held_round.folder.federation.read_text())["sites"]
        assert (told["answered"], told["missing"]) == (["site-00000", "site-00001"], ["site-00002"])
        assert told["noise_std"] == pytest.approx(plan.sums.noise_std * 2**0.5)
        assert Embedding.load(held_round.folder.embedding).noise_std == told["noise_std"] == noise_of_sum(plan, 2)
        assert run(held_round.folder, None, device=CPU)
        pack(held_round.folder.root, root / "packed")
        assert verify(root / "packed").findings == ()


@pytest.mark.parametrize("trust", ["trusted-aggregator", "untrusted-server"])
def test_garbage_is_refused_and_its_site_named(tmp_path: Path, trust: str):
    parts = parts_of("record")
    plan = plan_for(parts, "record", trust=trust)
    held_round = Round(create_run(tmp_path / "RUN", plan, tuple(parts), 600))
    name, client = next(iter(clients_of(tmp_path / "state", parts, plan, "record").items()))
    honest = dict(client.reply(held_round.question()))
    grid = np.frombuffer(honest["sums"], "<i8")
    rng = np.random.default_rng(0)
    wrong = {
        "short": grid[:-1].tobytes(), "text": "sums", "nothing": b"",
        "bits": rng.bytes(grid.nbytes), "large": (grid * 10_000).tobytes(),
        "long": (grid + np.int64(parts[name].n << GRID_BITS)).tobytes(),
    }  # fmt: skip
    for fault, sums in wrong.items():
        assert held_round.take({**honest, "sums": sums}, node=1) is not None, fault
    assert "a site of the plan" in str(held_round.take({**honest, "client": "elsewhere"}, node=1))
    rows = [json.loads(line) for line in (held_round.folder.private / "answers.jsonl").read_text().splitlines()]
    assert sum(row["client"] == name and "refused" in row for row in rows) == len(wrong)
    assert not held_round.answered
    assert held_round.take(honest, node=1) is None  # what it sends at last counts
    if trust == "trusted-aggregator":
        table = grid.reshape(10, -1).copy()
        table[:, -1] += 1  # counts that are no whole numbers
        with pytest.raises(FederationError, match="counts"):
            read_answer({**honest, "sums": table.tobytes()}, plan)


def test_a_site_confirms_its_place_its_size_its_unit_and_the_classes_that_it_states(tmp_path: Path):
    parts = parts_of("record")
    plan = plan_for(parts, "record")
    question = {"plan": json.dumps(plan.to_json())}

    def reason(name: str, data: ImageData, **options: Any) -> str:
        options = {"cap": Cap(epsilon=11, delta=1e-5, neighbours="replace-one"), "protect": "record", **options}
        client = Client(name, data, tmp_path / "state" / str(len(list(tmp_path.rglob("*")))),
                        trust="untrusted-server", **options)  # fmt: skip
        return why_refused(client, client.reply(question))

    first = parts["site-00000"]
    fewer = dataclasses.replace(first, images=first.images[1:], labels=first.labels[1:])
    assert "not on the list" in reason("elsewhere", first)
    assert f"{first.n} records" in reason("site-00000", fewer)
    assert "client" in reason("site-00000", dataclasses.replace(first, persons=np.zeros(first.n, np.int64)),
                              protect="client")  # fmt: skip
    stated = Stated.of("site-00000", first, "record", ("1", "a tenth"))
    assert "a tenth among them" in reason("site-00000", first, stated=stated)
    with pytest.raises(FederationError, match="replace-one"):
        reason("site-00000", first, cap=Cap(epsilon=11, delta=1e-5, neighbours="zeroed"))
    assert "the cap" in reason("site-00000", first, cap=Cap(epsilon=1, delta=1e-5, neighbours="replace-one"))


def test_classes_are_matched_by_their_names(tmp_path: Path):
    parts = parts_of("record")
    plan = plan_for(parts, "record", trust="trusted-aggregator")
    name, mine = "site-00001", parts["site-00001"]
    few = np.isin(mine.labels, (2, 7))
    own = dataclasses.replace(
        mine, images=mine.images[few], labels=(mine.labels[few] == 2).astype(np.int64), classes=2,
        class_names=("7", "2"),
    )  # fmt: skip
    parts[name] = own
    plan = plan_for({**parts}, "record", trust="trusted-aggregator")
    (client,) = clients_of(tmp_path / "state", {name: own}, plan, "record").values()
    table = unpack(client.answer(plan), plan, name).reshape(10, -1)
    counts = table[:, -1] >> GRID_BITS
    assert counts.tolist() == np.bincount(mine.labels[few], minlength=10).tolist()
    assert not table[[0, 1, 3, 4, 5, 6, 8, 9]].any()


def test_a_plan_of_silos_is_read_back_and_makes_sense():
    parts = parts_of("person")
    plan = plan_for(parts, "person", trust="trusted-aggregator")
    assert read_plan(plan.to_json()) == plan
    assert plan.cost.unit == "person"
    assert plan.sums.event.sensitivity == pytest.approx(2 * plan.sums.clip_norm)  # type: ignore[union-attr]
    with pytest.raises(PlanError, match="kernel"):
        make_federated_plan(plan.facts, preset="ensemble")
    facts = plan.facts
    with pytest.raises(PlanError, match="in sum"):
        dataclasses.replace(facts, records=facts.records + 1)
    with pytest.raises(PlanError, match="at most 3"):
        dataclasses.replace(facts.silos, min_sites=4)  # type: ignore[type-var]


def test_a_state_folder_counts_answers_of_one_unit(tmp_path: Path):
    parts = parts_of("record")
    plan = plan_for(parts, "record")
    client = next(iter(clients_of(tmp_path, parts, plan, "record").values()))
    client.answer(plan)
    with pytest.raises(FederationError, match="another state folder"):
        Client(client.name, digits("person"), tmp_path, trust="untrusted-server", protect="person",
               cap=Cap(epsilon=1, delta=1e-5, neighbours="replace-one"))  # fmt: skip


def test_records_have_the_same_features_whatever_comes_with_them():
    data = digits("record")
    plan = plan_for(parts_of("record"), "record")
    whole = site_sum(plan, data, 1.0).total
    cuts = [0, 1, 2, 9, 46, 300, data.n]
    parts = [
        dataclasses.replace(data, images=data.images[low:high], labels=data.labels[low:high])
        for low, high in itertools.pairwise(cuts)
    ]
    assert np.array_equal(sum(site_sum(plan, part, 1.0).total for part in parts), whole)
