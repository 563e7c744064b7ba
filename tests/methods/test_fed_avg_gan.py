from __future__ import annotations

import dataclasses
import math
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from conftest import copied, key_of, same, tiny_generator, tiny_images
from gswgan.critics.ensemble.loss import critic_loss
from gswgan.data import ImageData
from gswgan.errors import PlanError, PrivacyError
from gswgan.methods import BY_PERSON, METHODS, find_method, make_plan
from gswgan.methods.fed_avg_gan import (
    PUBLISHED_DISCRIMINATOR,
    PUBLISHED_GENERATOR,
    FedAvgGAN,
    FedAvgSettings,
)
from gswgan.plan.facts import Facts
from gswgan.plan.plan import Plan
from gswgan.privacy import Accountant, BatchStreams, Gaussian, Repeated, Sampled, Streams
from gswgan.privacy.accountant import PLAIN, PLD, VISIBLE_DRAW, visible_draw_epsilon
from gswgan.privacy.claims import claimed_rounds
from gswgan.privacy.ledger import read_ledger
from gswgan.run import loop
from gswgan.run.folder import RunFolder

CPU = torch.device("cpu")
CLIENTS = 8
SETTINGS = FedAvgSettings(
    clip_norm=0.1, noise_multiplier=0.5, clients=4, releases=3, updates=2, generator_updates=2, learning_batch=4,
    width=4, learning_rate=0.05,
)  # fmt: skip


def by_person(seed: int = 0, empty: tuple[int, ...] = ()) -> ImageData:
    data = tiny_images(seed=seed)
    persons = np.arange(data.n) % CLIENTS
    keep = ~np.isin(persons, empty)
    ids = tuple(f"client-{k}" for k in range(CLIENTS))
    return dataclasses.replace(
        data, images=data.images[keep], labels=data.labels[keep], persons=persons[keep], person_ids=ids
    )


def make(data: ImageData, mechanism_for, *, secret: int = 3, **changes) -> FedAvgGAN:
    settings = dataclasses.replace(SETTINGS, **changes)
    critic = FedAvgGAN(
        settings, mechanism_for(settings.contribution, event=settings.event(CLIENTS), key=secret), image_size=8,
        channels=1, classes=3, public=Streams.public(0), batches=BatchStreams(key_of(secret)), device=CPU,
    )  # fmt: skip
    critic.prepare(data)
    return critic


def flat(critic: FedAvgGAN) -> np.ndarray:
    return torch.cat([value.flatten() for value in critic.params.values()]).double().numpy()


def blocks(critic: FedAvgGAN, number: int = 0) -> dict[int, np.ndarray]:
    """The differences of a round by client, before clipping."""
    critic._participants = critic.draw_participants(number)
    with_records = [int(k) for k in critic._participants if len(critic._own[k])]
    rows = [row[:, 0].double().numpy() for row, _ in critic._blocks(number, tiny_generator())]
    return dict(zip(with_records, np.concatenate(rows))) if rows else {}


def test_a_round_moves_the_discriminator_by_the_clipped_sum_over_a_fixed_number(mechanism_for):
    critic = make(by_person(), mechanism_for, noise_multiplier=1e-9)
    found, before = blocks(critic), flat(critic)
    assert 1 <= len(found) != SETTINGS.clients, "the fixed number must not be how many took part"
    assert all(np.linalg.norm(row) > SETTINGS.clip_norm for row in found.values()), "nothing would be clipped"
    critic.learn(0, tiny_generator())
    clipped = [row * SETTINGS.clip_norm / np.linalg.norm(row) for row in found.values()]
    assert np.allclose(flat(critic) - before, np.sum(clipped, axis=0) / SETTINGS.clients, atol=1e-7)


def test_a_long_difference_counts_as_much_as_any(mechanism_for):
    """A client whose steps go far moves the sum by the clip norm and no more."""
    calm, wild = (make(by_person(), mechanism_for, learning_rate=rate, noise_multiplier=1e-9) for rate in (0.05, 5e3))
    for critic in (calm, wild):
        before, took_part = flat(critic), len(critic.draw_participants(0))
        critic.learn(0, tiny_generator())
        moved = np.linalg.norm(flat(critic) - before)
        assert moved <= SETTINGS.clip_norm * took_part / SETTINGS.clients * (1 + 1e-6)


@pytest.mark.parametrize(("scale", "accepted"), [(1.0, True), (2 / 3, False), (3 / 2, False)])
def test_the_noise_is_what_is_recorded(mechanism_for, scale: float, accepted: bool):
    critic = make(by_person(), mechanism_for, clip_norm=1e-3)
    found, before = blocks(critic), flat(critic)
    critic.learn(0, tiny_generator())
    clip = critic.settings.clip_norm
    exact = np.sum([row * min(1, clip / np.linalg.norm(row)) for row in found.values()], axis=0)
    noise = (flat(critic) - before) * critic.settings.clients - exact
    (entry,) = critic._mechanism.ledger.entries
    assert entry.event == critic.settings.event(CLIENTS)
    assert entry.event.event.noise_std == pytest.approx(SETTINGS.noise_multiplier * clip)
    assert (stats.kstest(noise / (scale * entry.event.event.noise_std), "norm").pvalue > 1e-3) == accepted


def test_a_clients_steps_are_sgd_on_its_own_records(mechanism_for):
    critic = make(by_person(), mechanism_for)
    rng = np.random.default_rng(0)
    rows = torch.from_numpy(rng.integers(0, critic.images.shape[0], (1, 1, 4)))
    mixes = torch.from_numpy(rng.random((1, 1, 4), dtype=np.float32))
    pool = torch.from_numpy(rng.random((6, 1, 8, 8), dtype=np.float32))  # two of each class
    (found,) = critic.differences([pool], rows, mixes)
    labels = critic.labels[rows[0]]
    fake = pool[labels * 2 + torch.arange(4) % 2]

    leaves = {name: value.clone().requires_grad_() for name, value in critic.params.items()}
    loss = critic_loss(
        leaves, critic.buffers, critic.images[rows[0]].float() / 255, labels, fake, labels, mixes[0],
        penalty_weight=10.0, drift_penalty=0.0,
    )  # fmt: skip
    grads = torch.autograd.grad(loss.sum(), list(leaves.values()))
    expected = torch.cat([value.flatten() for value in grads])
    assert torch.allclose(found, -SETTINGS.learning_rate * expected, atol=1e-6)


def test_only_the_client_that_changed_answers_otherwise(mechanism_for):
    """Bit for bit, whoever else takes part: the others' arithmetic does not depend on it."""
    data = by_person()
    images = data.images.copy()
    images[data.persons == 3] = 255 - images[data.persons == 3]
    one, other = (make(part, mechanism_for, clients=8) for part in (data, dataclasses.replace(data, images=images)))
    first, second = blocks(one), blocks(other)
    assert [k for k in first if not np.array_equal(first[k], second[k])] == [3]


def test_a_clients_difference_is_bit_identical_whoever_takes_part(mechanism_for):
    critic = make(by_person(), mechanism_for, clients=8)
    rng, alone = np.random.default_rng(0), {}
    sets = [[k] for k in range(CLIENTS)] + [np.sort(rng.permutation(CLIENTS)[: 2 + k]).tolist() for k in range(6)]
    for members in sets:
        critic.draw_participants = lambda number, members=members: np.array(members)  # type: ignore[method-assign]
        found = blocks(critic)
        assert list(found) == members
        for k, row in found.items():
            assert np.array_equal(row, alone.setdefault(k, row))


def test_a_client_without_records_adds_nothing_and_moves_nobody(mechanism_for):
    whole, part = (make(by_person(empty=empty), mechanism_for, clients=8) for empty in ((), (3,)))
    assert part.count == CLIENTS
    first, second = blocks(whole), blocks(part)
    assert set(first) - set(second) == {3}
    assert all(np.allclose(first[k], second[k], atol=1e-6) for k in second)


def test_clients_take_part_by_coins(mechanism_for):
    critic = make(by_person(), mechanism_for)
    counts = [len(critic.draw_participants(number)) for number in range(400)]
    assert stats.binomtest(sum(counts), 400 * CLIENTS, 0.5).pvalue > 1e-3
    assert len(set(counts)) > 5, "a fixed size is no Poisson draw"
    again = make(by_person(), mechanism_for, secret=4)
    assert counts != [len(again.draw_participants(number)) for number in range(400)]


def test_a_round_comes_before_every_so_many_generator_steps(mechanism_for):
    critic, generator = make(by_person(), mechanism_for), tiny_generator()
    states = []
    for step in range(4):
        critic.learn(step, generator)
        states.append(copied(critic.state()))
    assert [entry.name for entry in critic._mechanism.ledger.entries] == ["round 0", "round 1"]
    assert same(states[0], states[1])
    assert not same(states[1], states[2])


def test_a_mechanism_of_another_clip_or_without_sampling_is_refused(mechanism_for):
    other = dataclasses.replace(SETTINGS, clip_norm=0.2)
    plain = Gaussian(noise_std=0.05, sensitivity=0.1, neighbours="zeroed")
    for mechanism in (
        mechanism_for(other.contribution, event=other.event(CLIENTS)),
        mechanism_for(SETTINGS.contribution, event=plain),
    ):
        with pytest.raises(PrivacyError, match="mechanism"):
            FedAvgGAN(
                SETTINGS, mechanism, image_size=8, channels=1, classes=3, public=Streams.public(0),
                batches=BatchStreams(key_of(3)), device=CPU,
            )  # fmt: skip


# --- plans and runs


def small_plan(data: ImageData, **options: object) -> Plan:
    plan = make_plan(Facts.of(data), method="fed-avg-gan", preset="noise-0.5", delta=1e-3, steps=12, **options)
    generator = dataclasses.replace(plan.generator, width=16)
    critic = dataclasses.replace(plan.critic, width=4, learning_batch=4, updates=2)
    return dataclasses.replace(plan, generator=generator, critic=critic)


def test_a_run_leaves_one_line_a_round_and_promises_one_client_zeroed(tmp_path: Path):
    data = by_person()
    plan = small_plan(data)
    cost = plan.guarantee
    assert (cost.neighbours, cost.unit, cost.observer, cost.sampling) == ("zeroed", "person", "public", "poisson")
    folder = RunFolder.create(tmp_path / "run", plan)
    assert loop.run(folder, data, device=CPU)
    _, entries, _ = read_ledger(folder.ledger)
    assert [entry.name for entry in entries] == ["round 0", "round 1"]
    assert {entry.event for entry in entries} == {plan.critic.event(CLIENTS)}


def test_a_run_that_was_stopped_goes_on_as_if_it_had_not(tmp_path: Path):
    data = by_person()
    plan = small_plan(data, insecure_reproducible=True)
    straight, stopped = (RunFolder.create(tmp_path / name, plan) for name in ("straight", "stopped"))
    assert loop.run(straight, data, device=CPU)

    def interrupt(done: int) -> None:
        if done == 7:
            signal.raise_signal(signal.SIGINT)

    assert not loop.run(stopped, data, device=CPU, progress=interrupt)
    assert loop.run(stopped, data, device=CPU)
    assert straight.generator.read_bytes() == stopped.generator.read_bytes()
    assert straight.ledger.read_bytes() == stopped.ledger.read_bytes()


def test_it_is_for_persons_alone_and_its_steps_are_those_of_its_rounds():
    assert "fed-avg-gan" in BY_PERSON
    assert "fed-avg-gan" not in METHODS
    assert find_method("fed-avg-gan").presets == ("noise-0.01", "noise-0.1", "noise-0.5")
    plan = small_plan(by_person())
    with pytest.raises(PlanError, match="steps"):
        dataclasses.replace(plan, training=dataclasses.replace(plan.training, steps=13))
    with pytest.raises(PlanError, match="persons"):
        make_plan(Facts.of(tiny_images()), method="fed-avg-gan")


# --- what it costs


def test_the_paper_s_figure_for_fed_avg_gan_and_what_it_is_really():
    claim = claimed_rounds(0.01, rate=10 / 866, rounds=1000, delta=1.15e-3)
    assert claim.epsilon == pytest.approx(9.99e6, rel=5e-4)
    bound = Gaussian(noise_std=0.001, sensitivity=0.1, neighbours="zeroed")
    run = Repeated(event=Sampled(rate=10 / 866, event=bound), times=1000)
    accountant = Accountant("zeroed")
    assert accountant.method(run) == VISIBLE_DRAW
    assert 115_000 < accountant.epsilon(run, 1.15e-3) < 115_500


def test_a_claim_by_renyi_orders_is_never_below_the_true_figure():
    for noise in (0.1, 0.5, 2.0):
        gaussian = Gaussian(noise_std=noise, sensitivity=1.0, neighbours="zeroed")
        true = Accountant("zeroed").epsilon(Repeated(event=Sampled(rate=0.02, event=gaussian), times=300), 1e-4)
        assert true <= claimed_rounds(noise, rate=0.02, rounds=300, delta=1e-4).epsilon
    whole = claimed_rounds(2.0, rate=1.0, rounds=1, delta=1e-4)  # order / 8 + log(1e4) / (order - 1)
    assert whole.epsilon == pytest.approx(min(a / 8 + math.log(1e4) / (a - 1) for a in range(2, 257)))


def test_who_contributed_is_shown_where_the_noise_does_not_hide_it():
    """The figure for visible coins is above the other by no more than log(1 / rate) a use."""
    gaussian = Gaussian(noise_std=0.021, sensitivity=1.0, neighbours="zeroed")  # mu 47.6: just hidden
    assert gaussian.mu < PLAIN
    run = Repeated(event=Sampled(rate=0.02, event=gaussian), times=50)
    hidden = Accountant("zeroed").epsilon(run, 1e-4)
    shown = visible_draw_epsilon(gaussian.mu, 50, 50, 1e-4)
    assert hidden < shown < hidden + 10 * math.log(50)
    assert Accountant("zeroed").method(run) == PLD


def test_bytes_at_the_published_size_are_those_of_the_paper():
    """TF-GAN's MNIST networks, with batch norm's three vectors; the paper's figure is 1.5 times the discriminator."""
    convolutions = (16 * 64 + 64) + (64 * 16 * 128 + 128)
    assert convolutions + 7 * 7 * 128 * 1024 + 3 * 1024 + 1025 == PUBLISHED_DISCRIMINATOR
    dense = 128 * 1024 + 3 * 1024 + 1024 * 12_544 + 3 * 12_544
    assert dense + 256 * 64 * 16 + 3 * 64 + 64 * 32 * 16 + 3 * 32 + 32 * 16 + 1 == PUBLISHED_GENERATOR
    assert abs(1.5 * 4 * PUBLISHED_DISCRIMINATOR / 3.94e7 - 1) < 2e-3
