"""Images of 128 pixels per side: planned, drawn and verified in parts, by networks that take them."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from conftest import MNIST
from gswgan.generators import GeneratorSettings, build_network
from gswgan.generators import sampling as drawing
from gswgan.generators.generator import Generator, OptimizerSettings
from gswgan.generators.sampling import draw_levels
from gswgan.methods import make_plan
from gswgan.privacy import Streams

LARGE = dataclasses.replace(MNIST, image_size=128, channels=3, classes=4, class_names=tuple("abcd"))


@pytest.mark.parametrize("preset", ["kernel", "refined", "ensemble"])
def test_a_plan_for_128_pixels_has_a_network_that_draws_them(preset: str) -> None:
    plan = make_plan(LARGE, preset=preset)
    settings = dataclasses.replace(plan.generator, width=2)
    network = build_network(settings, classes=4, channels=3, image_size=128).eval()
    with torch.no_grad():
        images = network(torch.randn(1, settings.latent), torch.zeros(1, dtype=torch.int64))
    assert images.shape == (1, 3, 128, 128)


def test_images_are_the_same_however_few_are_drawn_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(dataclasses.replace(LARGE, image_size=16), preset="refined")
    settings = dataclasses.replace(plan.generator, width=2)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = build_network(settings, classes=4, channels=3, image_size=16).eval()
    labels, seen = np.arange(6) % 4, []
    real = drawing.latent_codes

    def counted(count, *rest):
        seen.append(count)
        return real(count, *rest)

    monkeypatch.setattr(drawing, "latent_codes", counted)
    with torch.no_grad():
        together = draw_levels(network, settings, labels, np.random.default_rng(1))
        monkeypatch.setattr(drawing, "NUMBERS_AT_ONCE", 2 * settings.latent)
        apart = draw_levels(network, settings, labels, np.random.default_rng(1))
    assert seen == [6, 2, 2, 2]
    assert np.abs(together - apart).max() < 1e-9


@pytest.mark.parametrize(("side", "most"), [(32, 500), (33, 100)])
def test_batch_statistics_of_large_images_are_estimated_from_small_batches(side: int, most: int) -> None:
    """500 images of 128x128 at once took 2.4 GB, and 10,000 of them minutes on a CPU."""
    made = Generator(
        GeneratorSettings(architecture="smooth-resnet", width=2), OptimizerSettings(learning_rate=0.1),
        classes=2, channels=1, image_size=side, updates=1, streams=Streams.public(0), device=torch.device("cpu"),
    )  # fmt: skip
    seen: list[int] = []
    made.averaged.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    made.released_network(batches=2)
    assert seen == [most, most]
