from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from dp_sgd_critics import CPU, FAKES, SETTINGS, Fakes, make

from conftest import copied, same, tiny_images
from gswgan.critics import dp_sgd_gan
from gswgan.critics.dp_sgd_gan import DPSGDGAN
from gswgan.data import ImageData
from gswgan.errors import GswganError, PrivacyError
from gswgan.generators import GeneratorSettings
from gswgan.generators.generator import Generator, OptimizerSettings
from gswgan.privacy import Accountant, Streams
from gswgan.run.loop import train


def test_upstream_gradient_is_the_one_of_the_non_saturating_loss(mechanism_for, stripes: ImageData) -> None:
    critic = make(stripes, mechanism_for)
    fake, labels = FAKES.fakes(10, "judged")
    leaf = fake.clone().requires_grad_()
    probability = torch.sigmoid(critic.discriminator(leaf, critic.discriminator.codes(labels)))
    (-probability.log().mean() * 10).backward()
    found = critic.upstream_gradient(fake.clone().requires_grad_(), labels)
    torch.testing.assert_close(found, leaf.grad)
    assert not found.requires_grad


def test_fakes_are_fresh_in_every_update(mechanism_for, stripes: ImageData) -> None:
    asked = []

    class Counting(Fakes):
        def fakes(self, count: int, *index: int | str) -> tuple[torch.Tensor, torch.Tensor]:
            asked.append((count, *index))
            return super().fakes(count, *index)

    make(stripes, mechanism_for, raise_below=0.6).learn(1, Counting())  # type: ignore[arg-type]
    assert asked == [(24, "discriminator", 1, 0), (24, "discriminator", 1, 1), (24, "accuracy", 1)]


def say(critic: DPSGDGAN, *, real: bool) -> None:
    """A discriminator that calls everything real, or nothing."""
    with torch.no_grad():
        for parameter in critic.discriminator.parameters():
            parameter.zero_()
        critic.discriminator.head.bias.fill_(1.0 if real else -1.0)


def test_updates_are_raised_where_fakes_pass_for_real(mechanism_for, stripes: ImageData, monkeypatch) -> None:
    """The rule of Bie et al. 2023: a moving average of the accuracy, a ladder, a time of grace on each rung."""
    monkeypatch.setattr(dp_sgd_gan, "GRACE", 5)
    critic = make(stripes, mechanism_for, updates=1, releases=10_000, raise_below=0.6)
    critic._update = lambda step, update, generator: None  # type: ignore[method-assign]
    say(critic, real=True)
    rungs = []
    for step in range(20):
        critic.learn(step, FAKES)
        rungs.append(critic.updates)
    assert rungs == [1] * 4 + [2] * 5 + [5] * 5 + [10] * 5 + [20]
    say(critic, real=False)
    accuracy = 0.0
    for step in range(20, 150):
        critic.learn(step, FAKES)
        accuracy = 0.99 * accuracy + 0.01
        if accuracy > 0.6:
            top = critic.updates
            break
    for step in range(150, 170):
        critic.learn(step, FAKES)
    assert critic.updates == top  # nobody is called back
    assert critic.metrics()["accuracy_on_fakes"] > 0.6


def test_updates_stay_without_the_rule(mechanism_for, stripes: ImageData, monkeypatch) -> None:
    monkeypatch.setattr(dp_sgd_gan, "GRACE", 1)
    critic = make(stripes, mechanism_for, releases=40)
    say(critic, real=True)
    for step in range(5):
        critic.learn(step, FAKES)
    assert critic.updates == SETTINGS.updates
    assert critic.done == 10


def test_never_more_releases_than_planned(mechanism_for, stripes: ImageData, monkeypatch) -> None:
    monkeypatch.setattr(dp_sgd_gan, "GRACE", 1)
    critic = make(stripes, mechanism_for, releases=13, updates=1, raise_below=0.999)
    steps = 0
    while not critic.finished:
        critic.learn(steps, FAKES)
        steps += 1
    assert steps <= critic.settings.most_steps
    assert critic.updates > 1
    critic.learn(steps, FAKES)
    assert critic.done == len(critic.gradients.mechanism.ledger.entries) == 13
    ledger = critic.gradients.mechanism.ledger.total()
    spent = Accountant().epsilon(ledger, 1e-5)
    assert spent == pytest.approx(Accountant().epsilon(critic.settings.events(96), 1e-5), rel=1e-6)


@pytest.mark.parametrize("releases", [1, 7, 12])
def test_all_releases_are_made_at_the_latest_after_most_steps(mechanism_for, stripes, releases: int) -> None:
    critic = make(stripes, mechanism_for, releases=releases)
    for step in range(critic.settings.most_steps):
        assert not critic.finished
        critic.learn(step, FAKES)
    assert critic.finished
    assert critic.done == releases


def test_state_holds_all_that_learning_changes(mechanism_for, stripes: ImageData) -> None:
    one, other = make(stripes, mechanism_for, raise_below=0.5), make(stripes, mechanism_for, raise_below=0.5)
    for step in range(3):
        one.learn(step, FAKES)
    saved = copied(one.state())
    other.load_state(saved)
    assert same(one.state(), other.state())
    for critic in (one, other):
        critic.learn(3, FAKES)
    assert same(one.state(), other.state())
    assert not same(saved, one.state())
    assert saved["counts"].tolist() == [6, 2, 3]
    with pytest.raises(KeyError):
        other.load_state({name: value for name, value in saved.items() if name != "counts"})


def test_persons_are_refused(mechanism_for) -> None:
    data = dataclasses.replace(tiny_images(96), persons=np.arange(96) // 4)
    with pytest.raises(PrivacyError, match="persons"):
        make(data, mechanism_for)


@pytest.mark.parametrize("value", [0.0, 1.0, -0.1])
def test_an_accuracy_is_a_share(value: float) -> None:
    with pytest.raises(GswganError, match="raise_below"):
        dataclasses.replace(SETTINGS, raise_below=value)


def stripes_generator(steps: int, learning_rate: float) -> Generator:
    return Generator(
        GeneratorSettings(architecture="mlp", width=64),
        OptimizerSettings(learning_rate=learning_rate, betas=(0.5, 0.9), average=0.9),
        classes=3, channels=1, image_size=8, updates=steps, streams=Streams.public(0), device=CPU,
    )  # fmt: skip


def distance_of_class_means(generator: Generator, data: ImageData) -> float:
    fake, labels = generator.fakes(300, "test")
    real = torch.from_numpy(data.images) / 255
    truth = torch.from_numpy(data.labels)
    return float(sum((fake[labels == k].mean(0) - real[truth == k].mean(0)).norm() for k in range(3)))


def test_the_generator_learns_through_it(mechanism_for) -> None:
    """In the one training loop, to the last planned release; and not at all where the noise drowns the records."""
    data = tiny_images(960)
    reached = []
    for noise in (0.5, 300.0):
        changes = {"noise_multiplier": noise, "clip_norm": 1.0, "learning_batch": 96, "learning_rate": 5e-3}
        critic = make(data, mechanism_for, releases=120, updates=1, width=16, **changes)
        generator = stripes_generator(120, 5e-3)
        before = distance_of_class_means(generator, data)
        plan = SimpleNamespace(training=SimpleNamespace(steps=critic.settings.most_steps, batch_size=60))
        train(plan, critic, generator, after_step=lambda done, critic=critic: critic.finished)  # type: ignore[arg-type]
        assert critic.done == 120
        reached.append(distance_of_class_means(generator, data) / before)
    assert reached[0] < 0.7
    assert reached[1] > 1
