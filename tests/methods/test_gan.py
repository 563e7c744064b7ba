from __future__ import annotations

import inspect
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from conftest import copied, same, tiny_images
from gswgan.critics.discriminator import cross_entropy
from gswgan.data import ImageData
from gswgan.generators import GeneratorSettings
from gswgan.generators.generator import Generator, OptimizerSettings
from gswgan.methods import gan
from gswgan.methods.gan import GAN, VOID, GANSettings
from gswgan.privacy import Streams
from gswgan.run.loop import train

CPU = torch.device("cpu")
SETTINGS = GANSettings(learning_batch=32, updates=2, width=8, learning_rate=5e-3)


def make(data: ImageData, seed: int = 0, settings: GANSettings = SETTINGS) -> GAN:
    critic = GAN(settings, image_size=8, channels=1, classes=3, public=Streams.public(seed), device=CPU)
    critic.prepare(data)
    return critic


def make_generator(steps: int) -> Generator:
    return Generator(
        GeneratorSettings(architecture="mlp", width=64),
        OptimizerSettings(learning_rate=5e-3, betas=(0.5, 0.9), average=0.9),
        classes=3, channels=1, image_size=8, updates=steps, streams=Streams.public(0), device=CPU,
    )  # fmt: skip


def play(critic: GAN, generator: Generator, start: int, steps: int) -> None:
    plan = SimpleNamespace(training=SimpleNamespace(steps=steps, batch_size=60))
    train(plan, critic, generator, start=start)  # type: ignore[arg-type]


def test_it_says_loudly_that_there_is_no_guarantee() -> None:
    assert "NO guarantee" in VOID
    assert "WITHOUT differential privacy" in VOID
    source = inspect.getsource(gan)
    assert "GaussianMechanism" not in source  # no ledger line, nothing that could be mistaken for a guarantee
    assert "Ledger" not in source


def test_it_learns_the_data() -> None:
    data, generator = tiny_images(480), make_generator(150)
    real, truth = torch.from_numpy(data.images) / 255, torch.from_numpy(data.labels)

    def distance() -> float:
        fake, labels = generator.fakes(300, "test")
        return float(sum((fake[labels == k].mean(0) - real[truth == k].mean(0)).norm() for k in range(3)))

    before = distance()
    play(make(data), generator, 0, 150)
    assert distance() < 0.5 * before


def test_an_update_is_one_step_of_adam_on_the_gan_loss(stripes: ImageData) -> None:
    critic, generator = make(stripes, settings=GANSettings(learning_batch=16, width=4)), make_generator(1)
    twin = make(stripes, settings=GANSettings(learning_batch=16, width=4)).discriminator
    adam = torch.optim.Adam(twin.parameters(), lr=2e-4, betas=(0.5, 0.999))
    members = Streams.public(0).generator("batch", 0, 0).integers(0, 96, 16)
    fake, labels = generator.fakes(16, "discriminator", 0, 0)
    real = torch.sigmoid(twin(*critic.records(members)))
    false = torch.sigmoid(twin(fake, twin.codes(labels)))
    (-real.log().mean() - (1 - false).log().mean()).backward()
    adam.step()
    critic.learn(0, generator)
    for ours, theirs in zip(critic.discriminator.parameters(), twin.parameters()):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("stop", [0, 1, 3])
def test_resuming_is_the_straight_run(stripes: ImageData, stop: int) -> None:
    straight, generator = make(stripes), make_generator(5)
    play(straight, generator, 0, 5)
    first, half = make(stripes), make_generator(5)
    play(first, half, 0, stop)
    second, rest = make(stripes), make_generator(5)
    second.load_state(copied(first.state()))
    rest.load_state(copied(half.state()))
    play(second, rest, stop, 5)
    assert same(straight.state(), second.state())
    assert same(generator.state(), rest.state())


def test_batches_are_fresh_and_cover_the_data(stripes: ImageData) -> None:
    critic, generator, seen = make(stripes), make_generator(1), []
    original = critic.records
    critic.records = lambda members: (seen.append(members), original(members))[1]  # type: ignore[method-assign]
    for step in range(20):
        critic.learn(step, generator)
    assert len({tuple(members) for members in seen}) == 40
    assert set(np.concatenate(seen)) == set(range(96))


def test_the_log_has_the_loss(stripes: ImageData) -> None:
    critic = make(stripes)
    critic.learn(0, make_generator(1))
    assert 0 < critic.metrics()["discriminator_loss"] < 10


def test_the_generator_is_told_to_look_real(stripes: ImageData) -> None:
    """A step against the upstream gradient raises the discriminator's logit."""
    critic = make(stripes)
    fake, labels = make_generator(1).fakes(30, "test")
    codes = critic.discriminator.codes(labels)
    moved = fake - 0.1 * critic.upstream_gradient(fake, labels)
    assert critic.discriminator(moved, codes).mean() > critic.discriminator(fake, codes).mean()
    assert cross_entropy(torch.tensor(3.0), real=True) < cross_entropy(torch.tensor(3.0), real=False)
