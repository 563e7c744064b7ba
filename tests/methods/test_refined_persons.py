"""Preset `refined` by person: one coin, one row and one clip for each person, from the person's own records alone."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

import gswgan
from conftest import MNIST, tiny_images, tiny_plan, write_persons
from contracts.test_wiring import check
from gswgan.api import plan_text
from gswgan.api.training import check_fits
from gswgan.audit.mechanism import tie_to_real_runs
from gswgan.audit.refined import observe_refined
from gswgan.critics.refined.persons import OwnRecords
from gswgan.critics.refined.records import HeldRecords
from gswgan.data import ImageData
from gswgan.errors import AuditError, DataError, PlanError, PrivacyError, RunError
from gswgan.methods import make_plan
from gswgan.plan.facts import Facts
from gswgan.plan.plan import Plan
from gswgan.privacy import Accountant, Composed, Gaussian, GaussianMechanism, Repeated, Sampled
from gswgan.privacy.ledger import read_ledger
from gswgan.privacy.mechanism import GRID_BITS
from gswgan.release.pack import pack
from gswgan.release.verify import verify
from gswgan.run import loop
from gswgan.run.folder import RunFolder
from methods.test_neighbours import CASES

CPU = torch.device("cpu")
SEED = torch.tensor(2024)
WRITERS = dataclasses.replace(MNIST, persons=539)


def by_person(sizes: list[int]) -> ImageData:
    """Person k has so many records; those of a person do not lie next to each other."""
    persons = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
    ids = tuple(f"person-{k:03}" for k in range(len(sizes)))
    return dataclasses.replace(tiny_images(len(persons)), persons=persons, person_ids=ids)


def planned() -> Plan:
    return make_plan(WRITERS, preset="refined", delta=1e-4)


def test_both_stages_are_paid_for_one_person_replaced() -> None:
    plan = make_plan(WRITERS, preset="refined", epsilon=10, delta=1e-4, device="cuda")
    settings, privacy = plan.critic, plan.privacy
    clip = 0.7 * 10**-0.5  # as preset kernel has it
    first = Gaussian(noise_std=settings.noise_std, sensitivity=2 * clip)
    step = Sampled(rate=53 / 539, event=Gaussian(noise_std=privacy.noise_std, sensitivity=2 * privacy.clip_norm))
    assert plan.total() == Composed(events=(first, Repeated(event=step, times=privacy.releases)))
    assert 9.99 < Accountant().epsilon(plan.total(), 1e-4) <= 10
    assert plan.guarantee.to_json() == {**plan.guarantee.to_json(), "unit": "person", "neighbours": "replace-one"}
    assert "53 persons on average, 8 noise draws spread over the records of each" in plan.describe()
    noise = privacy.noise_std / (privacy.clip_norm * 53)
    assert f"noise {noise:.2g} on each weight's mean gradient, of which a person has norm 1" in plan_text._noise(
        plan, plan.facts, privacy
    )


def test_a_person_costs_what_a_record_of_as_many_does() -> None:
    """The noise over the clip follows from the numbers of persons and steps, whatever the records."""
    ours, theirs = planned(), make_plan(dataclasses.replace(MNIST, records=539), preset="refined", delta=1e-4)
    assert ours.privacy.noise_std == theirs.privacy.noise_std
    assert ours.critic.noise_std == pytest.approx(theirs.critic.noise_std * ours.critic.person_clip)


def test_delta_goes_by_the_number_of_persons() -> None:
    few = dataclasses.replace(MNIST, records=10**7, persons=2000)
    assert make_plan(few, preset="refined").guarantee.delta == 1e-5
    many = dataclasses.replace(MNIST, records=10**8, persons=10**6)
    assert make_plan(many, preset="refined").guarantee.delta == pytest.approx(1e-7)


def test_a_plan_says_whom_the_kernels_release_is_by() -> None:
    plan = planned()
    with pytest.raises(PlanError, match="exactly where the data has persons"):
        dataclasses.replace(plan, critic=dataclasses.replace(plan.critic, person_clip=None))
    with pytest.raises(PlanError, match="record exactly where the data has no persons"):
        dataclasses.replace(plan, facts=MNIST)
    with pytest.raises(PlanError, match="without persons"):
        make_plan(WRITERS, preset="refined", neighbours="zeroed")


def test_data_by_record_is_refused_by_a_critic_of_persons(tmp_path: Path) -> None:
    data, plan_for = CASES["refined by person"]
    plan = plan_for(data)
    critic = loop.make_critic(plan, RunFolder.create(tmp_path / "run", plan), data, CPU)
    with pytest.raises(PrivacyError, match="data by person, as was planned"):
        critic.prepare(dataclasses.replace(data, persons=None, person_ids=()))


def test_one_person_moves_the_kernels_release_by_no_more_than_is_accounted_for(tmp_path: Path, monkeypatch) -> None:
    """In a run's own wiring: all records of one person are white and of one class, or black and of another."""
    data, plan_for = CASES["refined by person"]
    plan, mine, sums, exact = plan_for(data), data.persons == 0, [], GaussianMechanism._sum

    def watched(self, *given):
        found = exact(self, *given)
        sums.append(found * (self.contribution.clip_norm / 2**GRID_BITS))
        return found

    monkeypatch.setattr(GaussianMechanism, "_sum", watched)
    for label, colour in enumerate((255, 0)):
        images, labels = data.images.copy(), data.labels.copy()
        images[mine], labels[mine] = colour, label
        one = dataclasses.replace(data, images=images, labels=labels)
        critic = loop.make_critic(plan, RunFolder.create(tmp_path / str(label), plan), one, CPU)
        with contextlib.suppress(RunError):  # where no class is told from the noise
            critic.kernel.prepare(one)
    moved, start = np.linalg.norm(sums[0] - sums[1]), plan.critic.event(True)
    assert start.sensitivity == 2 * plan.critic.person_clip
    assert 0.7 * start.sensitivity < moved <= start.sensitivity  # orthogonal, both of the clip norm


@pytest.mark.parametrize("draws", [1, 4, 8])
def test_draws_are_spread_over_a_persons_own_records(draws: int) -> None:
    sizes = [1, 3, 0, 8, 20, 4]
    data = by_person(sizes)
    own = OwnRecords(data, range(len(sizes)), CPU)
    persons = torch.arange(len(sizes))
    found = own.of_draws(persons, persons, SEED, draws)
    assert found.shape == (len(sizes), draws)
    for person, size in enumerate(sizes):
        if not size:  # the place after all records
            assert set(found[person].tolist()) == {data.n}
            continue
        assert (data.persons[own.order[found[person].numpy()]] == person).all()
        times = np.bincount(np.unique(found[person], return_inverse=True)[1], minlength=min(size, draws))
        assert len(times) == min(size, draws)
        assert times.max() - times.min() <= 1
    again = own.of_draws(persons[[4, 1]], persons[[4, 1]], SEED, draws)
    assert torch.equal(again, found[[4, 1]])  # whoever else takes part


def test_every_record_of_a_person_has_its_turn() -> None:
    sizes = [7, 30]
    own, persons = OwnRecords(by_person(sizes), range(2), CPU), torch.arange(2)
    steps = torch.stack([own.of_draws(persons, persons, torch.tensor(seed), 4) for seed in range(3000)])
    for person, size in enumerate(sizes):
        share = np.unique(steps[:, person], return_counts=True)[1] / steps[:, person].numel()
        assert len(share) == size
        assert share == pytest.approx(1 / size, rel=0.3)


def test_the_choice_of_one_does_not_depend_on_what_others_have() -> None:
    data = by_person([5, 9, 2])
    fewer = data.persons != 1
    less = dataclasses.replace(
        data, images=data.images[fewer], labels=data.labels[fewer], persons=data.persons[fewer]
    )  # person 1 was left out
    persons = torch.tensor([0, 2])
    chosen = []
    for one in (data, less):
        own = OwnRecords(one, range(3), CPU)
        chosen.append(one.images[own.order[own.of_draws(persons, persons, SEED, 4).numpy()]])
    assert np.array_equal(*chosen)


def test_somebody_without_records_adds_nothing_and_nothing_raises(tmp_path: Path) -> None:
    """As the kernel critic has it: whether somebody is left out is private."""
    data, plan_for = CASES["refined by person"]
    kept = data.persons != 5
    less = dataclasses.replace(
        data,
        images=data.images[kept],
        labels=data.labels[kept],
        persons=data.persons[kept],
        left_out=int((~kept).sum()),
    )
    plan = plan_for(data)
    check_fits(plan, less)
    with pytest.raises(DataError, match="needs no partition"):
        check_fits(tiny_plan(data, preset="ensemble-alone", critics=6, steps=4), less)
    rows: dict[str, list[np.ndarray]] = {}
    original = HeldRecords.begin

    def begin(self, *given):
        original(self, *given)
        blocks = self.descent.blocks
        self.descent.blocks = lambda members, make: watch(members, blocks(np.arange(24), make))

    def watch(members, blocks):
        for found, slot in blocks:
            rows.setdefault("all", []).append(found[:, 0].numpy().copy())
            yield found[torch.from_numpy(members)], slot

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HeldRecords, "begin", begin)
        assert loop.run(RunFolder.create(tmp_path / "run", plan), less, device=CPU)
    assert all(not found[5].any() and found[[4, 6]].any() for found in rows["all"])


def test_a_run_that_was_stopped_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    data, plan_for = CASES["refined by person"]
    plan = plan_for(data)
    straight, stopped = (RunFolder.create(tmp_path / name, plan) for name in ("straight", "stopped"))
    assert loop.run(straight, data, device=CPU)

    def interrupt(done: int) -> None:
        if done == plan.training.steps - 12:  # within DP-SGD
            signal.raise_signal(signal.SIGINT)

    assert not loop.run(stopped, data, device=CPU, progress=interrupt)
    assert loop.run(stopped, data, device=CPU)
    assert stopped.generator.read_bytes() == straight.generator.read_bytes()
    assert stopped.ledger.read_bytes() == straight.ledger.read_bytes()


def run_by_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault: every record has a coin and a row of its own, although persons are promised."""
    original = HeldRecords.__init__
    monkeypatch.setattr(
        HeldRecords, "__init__",
        lambda self, data, *rest: original(self, dataclasses.replace(data, persons=None, person_ids=()), *rest),
    )  # fmt: skip


def test_the_audit_finds_nothing_in_the_real_wiring() -> None:
    assert tie_to_real_runs(observe_refined(planned(), steps=300)) > 1e-4


def test_the_audit_finds_coins_that_each_record_has(monkeypatch: pytest.MonkeyPatch) -> None:
    run_by_record(monkeypatch)
    with pytest.raises(AuditError, match="steps of DP-SGD"):
        tie_to_real_runs(observe_refined(planned(), steps=300))


def test_the_contract_of_coins_finds_coins_that_each_record_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_by_record(monkeypatch)
    with pytest.raises(AssertionError, match=r"take part|took part"):
        check("refined by person", tmp_path)


def test_a_run_with_a_table_of_persons_is_packed_and_verified(tmp_path: Path) -> None:
    """Digits, each third one of the same person: from the command's reader to the release."""
    data = gswgan.load_data("digits")
    table = write_persons(tmp_path / "persons.csv", np.arange(data.n) // 3)
    data = gswgan.load_data("digits", group_by=table)
    plan = make_plan(Facts.of(data), preset="refined", steps=4)
    critic = dataclasses.replace(
        plan.critic, steps=20, pretraining=3, pretraining_batch=16, samples=64,
        kernel=dataclasses.replace(plan.critic.kernel, features=256),
    )  # fmt: skip
    training = dataclasses.replace(plan.training, steps=27)
    plan = dataclasses.replace(plan, critic=critic, training=training, curve=())
    folder = RunFolder.create(tmp_path / "run", plan)
    assert loop.run(folder, data, device=CPU)
    _, entries, _ = read_ledger(folder.ledger)
    assert [entry.event for entry in entries] == [plan.critic.event(True), *[plan.privacy.event] * 4]
    stated = json.loads(folder.privacy.read_text())
    assert (stated["unit"], stated["neighbours"]) == ("person", "replace-one")
    pack(folder.root, tmp_path / "packed")
    assert not verify(tmp_path / "packed").findings
