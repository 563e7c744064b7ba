from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import kstest
from teachers import COUNT, STEPS, isolated, play

from conftest import key_of, tiny_generator
from gswgan.critics.ensemble.network import score
from gswgan.critics.ensemble.partitions import Partitions
from gswgan.data import ImageData
from gswgan.errors import PrivacyError
from gswgan.generators.generator import Generator
from gswgan.methods.pate_gan import PateGan, PateGanSettings, weights_of
from gswgan.privacy import Accountant, Event, Laplace, Ledger, Repeated, Streams, VoteMechanism, calibrate
from gswgan.privacy.events import tally

CPU = torch.device("cpu")
SETTINGS = PateGanSettings(
    teachers=COUNT, scale=2.0, batch_size=6, teacher_updates=2, student_updates=2, teacher_width=4, student_width=4,
    learning_rate=3e-3,
)  # fmt: skip


def make(folder: Path, data: ImageData | None, **changes) -> PateGan:
    folder.mkdir(parents=True, exist_ok=True)
    ledger = Ledger(folder / "ledger", observer="public", context="plan", journal=folder / "journal")
    critic = PateGan(
        dataclasses.replace(SETTINGS, **changes), image_size=8, channels=1, classes=3, ledger=ledger,
        public=Streams.public(0), secret=key_of(3), device=CPU,
    )  # fmt: skip
    if data is not None:
        critic.prepare(data)
    return critic


def test_changing_one_record_changes_exactly_one_teacher_and_no_student(tmp_path, stripes) -> None:
    first, second = isolated(make, tmp_path, stripes)
    assert all(torch.equal(first.student[name], second.student[name]) for name in first.student)


# --- what public implementations got wrong (Ganev et al. 2024 found it in six of six)


def test_violation_teachers_that_see_all_data_are_found(tmp_path, stripes) -> None:
    """A fresh random subset for each teacher in each iteration (synthcity issue 275): in the end all have seen all."""

    def spoil(critic: PateGan) -> None:
        teachers, original = critic.teachers, critic.teachers.learn
        rng = np.random.default_rng(0)

        def learn(step: int, generator: Generator) -> None:
            table = torch.from_numpy(rng.permutation(96).reshape(COUNT, 8))
            teachers.partitions = Partitions(table=table, sizes=teachers.partitions.sizes)
            original(step, generator)

        teachers.learn = learn  # type: ignore[method-assign]

    with pytest.raises(AssertionError):
        isolated(make, tmp_path, stripes, spoil)


def test_violation_one_partition_for_every_teacher_is_found(tmp_path, stripes) -> None:
    """An index that is not the loop's (mlforhealthlabpub issue 29): every teacher is given the same partition."""

    def spoil(critic: PateGan) -> None:
        parts = critic.teachers.partitions
        own = parts.table[(parts.table == 17).any(dim=1)]
        critic.teachers.partitions = Partitions(table=own.expand(COUNT, -1), sizes=parts.sizes)

    with pytest.raises(AssertionError):
        isolated(make, tmp_path, stripes, spoil)


def remembers(critic: PateGan, planned: Event) -> None:
    """Ledger, plan and the number of labels that were asked for agree, and so does epsilon."""
    found = critic._mechanism.ledger.total()
    assert tally(found) == tally(planned)
    assert Accountant().epsilon(found, 1e-5) == Accountant().epsilon(planned, 1e-5)
    values = sum(times * single.values for single, times in tally(found).items())
    assert values == 2 * SETTINGS.batch_size * SETTINGS.student_updates * STEPS  # two counts for every labelled fake


def test_the_accountant_forgets_nothing(tmp_path, stripes) -> None:
    critic = make(tmp_path, stripes)
    play(critic, tiny_generator())
    remembers(critic, SETTINGS.events(STEPS))


@pytest.mark.parametrize("forgotten", ["updates", "batch", "other count", "ledger"])
def test_violation_an_accountant_that_forgets_is_found(tmp_path, stripes, monkeypatch, forgotten: str) -> None:
    """An accountant that leaves out a factor (as synthcity issue 276), or a release that is not recorded."""
    event = SETTINGS.ballot.laplace(SETTINGS.scale)
    planned: Event = SETTINGS.events(STEPS)
    if forgotten == "updates":
        planned = Repeated(event=event, times=STEPS)
    elif forgotten == "batch":
        planned = Repeated(event=Laplace(scale=2.0, sensitivity=1.0, values=2), times=2 * STEPS)
    elif forgotten == "other count":
        planned = Repeated(event=Laplace(scale=2.0, sensitivity=1.0, values=6), times=2 * STEPS)
    else:
        original = Ledger.record
        monkeypatch.setattr(
            Ledger, "record", lambda self, name, *rest: 0 if "labels 1" in name else original(self, name, *rest)
        )
    critic = make(tmp_path, stripes)
    play(critic, tiny_generator())
    with pytest.raises(AssertionError):
        remembers(critic, planned)


@pytest.mark.parametrize("values", [6, 2, 1])
def test_a_mechanism_does_not_take_an_event_that_forgets(tmp_path, values: int) -> None:
    ledger = Ledger(tmp_path / "ledger", observer="public", context="plan")
    event = Laplace(scale=2.0, sensitivity=1.0, values=values)
    with pytest.raises(PrivacyError):
        VoteMechanism(ballot=SETTINGS.ballot, event=event, ledger=ledger, streams=key_of(0))


def test_parts_are_disjoint_cut_once_and_by_index_alone(tmp_path, stripes) -> None:
    critic = make(tmp_path / "a", stripes)
    before = critic.teachers.partitions.table.clone()
    play(critic, tiny_generator())
    assert torch.equal(before, critic.teachers.partitions.table)
    assert sorted(before.flatten().tolist()) == list(range(96))
    other = make(tmp_path / "b", dataclasses.replace(stripes, images=255 - stripes.images))
    assert torch.equal(before, other.teachers.partitions.table)


# --- what a label costs


def loss_moment(order: int, scale: float) -> float:
    """log E exp(order x loss) of one count, shifted by 1, by numerical integration."""

    def density(x: float) -> float:
        return math.exp(-abs(x) / scale) / (2 * scale) * math.exp(order * (abs(x - 1) - abs(x)) / scale)

    parts = [quad(density, a, b)[0] for a, b in ((-200 * scale, 0), (0, 1), (1, 200 * scale))]
    return math.log(sum(parts))


@pytest.mark.parametrize("rate", [0.05, 0.2, 1.0])
def test_a_label_costs_at_most_what_the_papers_theorems_say(rate: float) -> None:
    """Each label is (2 lambda, 0)-DP and its log moment is at most 2 lambda^2 l (l + 1), scale = 1 / lambda."""
    settings = dataclasses.replace(SETTINGS, scale=1 / rate, batch_size=1, student_updates=1)
    event = settings.events(1)
    (single,) = tally(event)
    assert single.pure_epsilon == pytest.approx(2 * rate)
    assert Accountant().epsilon(event, 1e-12) == pytest.approx(2 * rate, rel=1e-3)
    for order in (1, 2, 8, 20):
        label = single.values * loss_moment(order, single.scale / single.sensitivity)
        assert label <= 2 * rate**2 * order * (order + 1)
        wrong = single.values * loss_moment(order, rate)  # lambda taken for the scale, as in public code
        assert rate == 1.0 or wrong > 2 * rate**2 * order * (order + 1)


def test_the_total_is_below_the_papers_data_independent_accountant() -> None:
    """epsilon = min over l of (n 2 lambda^2 l (l+1) + log 1/delta) / l, its moments accountant without the votes."""
    settings = PateGanSettings(teachers=60, scale=60.0, batch_size=64)
    labels, rate = 64 * 5 * 20, 1 / 60
    paper = min((labels * 2 * rate**2 * l * (l + 1) + math.log(1e5)) / l for l in range(1, 200))  # noqa: E741
    ours = Accountant().epsilon(settings.events(20), 1e-5)
    gaussian = math.sqrt(2 * labels) * rate  # the central limit of the composition
    assert gaussian**2 / 2 < ours < paper
    assert ours == pytest.approx(Accountant().epsilon(Laplace(scale=60.0, sensitivity=1.0, values=2 * labels), 1e-5))


def test_steps_without_a_round_cost_nothing(tmp_path, stripes) -> None:
    """Several generator steps for each round of teachers and student: only rounds release."""
    settings = dataclasses.replace(SETTINGS, generator_updates=2)
    critic = make(tmp_path, stripes, generator_updates=2)
    play(critic, tiny_generator(), steps=5)
    assert tally(critic._mechanism.ledger.total()) == tally(settings.events(5))
    assert len(critic._mechanism.ledger.entries) == 3 * 2


def test_calibration_finds_a_scale() -> None:
    scale = calibrate(
        lambda noise: dataclasses.replace(SETTINGS, scale=noise).events(20),
        epsilon=10.0,
        delta=1e-5,
        accountant=Accountant(),
    )
    assert scale == pytest.approx(math.sqrt(2 * 6 * 2 * 20) / 2, rel=0.05)  # mu = 2 in the central limit


# --- votes and noise


def test_the_noise_on_both_counts_has_its_scale_and_no_other(tmp_path) -> None:
    critic = make(tmp_path, None, batch_size=5000, scale=28.0)
    votes = torch.from_numpy(np.random.default_rng(0).integers(0, 2, (COUNT, 5000)))
    noise = critic._mechanism.answer("a", votes) - critic._mechanism.counts(votes)
    assert noise.shape == (5000, 2)
    for column in noise.T:
        assert kstest(column / 28.0, "laplace").pvalue > 1e-3
        for wrong in (2 / 3, 3 / 2):
            assert kstest(column / (28.0 * wrong), "laplace").pvalue < 1e-3
    assert abs(np.corrcoef(noise.T)[0, 1]) < 0.07  # the counts have noise of their own


def test_a_replaced_teacher_moves_two_counts_of_each_fake_by_one(tmp_path, stripes) -> None:
    critic = make(tmp_path, stripes)
    play(critic, tiny_generator())
    images, labels = tiny_generator().fakes(6, "judged")
    before = critic.teachers.votes(images, labels)
    assert before.shape == (COUNT, 6)
    changes = []
    for value in (1e4, -1e4):  # the replaced teacher calls everything real, or everything fake
        critic.teachers.params["linear.bias"][5] = value
        changes.append(critic._mechanism.counts(critic.teachers.votes(images, labels)))
    assert np.abs(changes[0] - changes[1]).sum() == 2 * 6  # attained
    event = SETTINGS.ballot.laplace(1.0)
    assert event.values * event.sensitivity == 2 * 6
    others = np.abs(changes[0] - critic._mechanism.counts(before))
    assert others.max() <= 1
    assert others.sum() <= 2 * 6


def test_votes_are_the_signs_of_the_logits_and_nothing_raises(tmp_path, stripes) -> None:
    critic = make(tmp_path, stripes)
    play(critic, tiny_generator())
    images, labels = tiny_generator().fakes(6, "judged")
    votes = critic.teachers.votes(images, labels)
    for k in (0, 7):
        params = {name: value[k : k + 1] for name, value in critic.teachers.params.items()}
        logits = score(weights_of(params), images[None], labels[None])[0]
        assert votes[k].tolist() == (logits > 0).long().tolist()
    critic.teachers.params["linear.weight"][3] = math.nan
    assert (critic.teachers.votes(images, labels)[3] == 0).all()
