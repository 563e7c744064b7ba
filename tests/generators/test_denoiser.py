"""The denoiser and its sampler: shapes, preconditioning, and a solver that is right where the answer is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gswgan.errors import PlanError
from gswgan.generators import GeneratorSettings, build_network, denoised
from gswgan.generators.denoised import DenoisedSampler, latent_size, noise_levels
from gswgan.generators.denoiser import DATA_STD, Denoiser, loss_of_draws, scales
from gswgan.generators.sampling import draw_images


def make(side: int = 8, channels: int = 1, width: int = 8) -> DenoisedSampler:
    torch.manual_seed(0)
    settings = GeneratorSettings(architecture="denoiser", width=width, latent=latent_size(channels * side**2))
    network = build_network(settings, classes=10, channels=channels, image_size=side)
    assert isinstance(network, DenoisedSampler)
    return network


def test_at_28_pixels_it_has_the_size_that_was_meant() -> None:
    denoiser = Denoiser(image_size=28, channels=1, classes=10, width=32)
    assert 1.3e6 < sum(value.numel() for value in denoiser.parameters()) < 1.6e6


@pytest.mark.parametrize(("side", "channels"), [(8, 1), (9, 3), (13, 1), (28, 1)])
def test_it_draws_images_of_every_size(side: int, channels: int) -> None:
    network = make(side, channels)
    labels = np.arange(4)
    settings = GeneratorSettings(architecture="denoiser", width=8, latent=latent_size(channels * side**2))
    images = draw_images(network, settings, labels, np.random.default_rng(0))
    assert images.shape == (4, channels, side, side)
    assert images.dtype == np.uint8


def test_a_code_has_as_many_numbers_as_an_image() -> None:
    with pytest.raises(PlanError, match="960, the noise on the way"):
        build_network(GeneratorSettings(architecture="denoiser", width=8), classes=2, channels=1, image_size=8)


def test_an_image_does_not_depend_on_the_others() -> None:
    network = make().double()
    with torch.no_grad():
        for value in network.denoiser.weights.values():
            value.normal_(std=0.2)
    codes, labels = torch.randn(5, latent_size(64), dtype=torch.float64), torch.arange(5)
    together = network(codes, labels)
    torch.testing.assert_close(network(codes[2:3], labels[2:3]), together[2:3])
    assert not torch.allclose(network(codes[2:3], labels[3:4]), together[2:3])  # the class matters


def test_what_the_network_should_answer_has_variance_one() -> None:
    """c_out is made for it: for pixels of DATA_STD, at every level of noise."""
    rng = torch.Generator().manual_seed(0)
    denoiser = Denoiser(image_size=8, channels=1, classes=2, width=8)  # its last weights are 0: F = 0
    images = DATA_STD * torch.randn(400, 8, 8, 1, generator=rng)
    noise, labels = torch.randn(images.shape, generator=rng), torch.zeros(400, dtype=torch.int64)
    for level in (0.05, 0.6, 10.0):
        found = loss_of_draws(denoiser, images, noise, torch.full((400,), level), labels)
        assert float(found.detach().mean()) == pytest.approx(1.0, abs=0.03)
    skip, out, _, _ = scales(torch.tensor([1e-4, 1e4]))
    assert (skip[0], out[0]) == (pytest.approx(1.0), pytest.approx(0.0, abs=1e-3))  # no noise: the image itself
    assert (skip[1], out[1]) == (pytest.approx(0.0, abs=1e-6), pytest.approx(DATA_STD))


@pytest.mark.parametrize(("evaluations", "most"), [(15, 0.018), (60, 0.006)])
def test_images_have_the_law_of_the_data_where_it_is_known(monkeypatch, evaluations: int, most: float) -> None:
    """Pixels with mean m and deviation s: the best denoiser is linear, and samples have that mean and deviation."""
    mean, spread = 0.2, 0.25

    def best(denoiser: Denoiser, images: torch.Tensor, level: float, labels: torch.Tensor) -> torch.Tensor:
        return mean + (images - mean) * spread**2 / (spread**2 + level**2)

    monkeypatch.setattr(denoised, "denoise", best)
    network, rng = make(), torch.Generator().manual_seed(0)
    network.evaluations = evaluations
    codes = torch.randn(400, 64 * evaluations, generator=rng)
    found = 2 * network(codes, torch.zeros(400, dtype=torch.int64)).detach() - 1
    assert float(found.mean()) == pytest.approx(mean, abs=most)
    assert float(found.std()) == pytest.approx(spread, abs=most)


def test_levels_fall_to_the_least() -> None:
    levels = noise_levels(10)
    assert (levels[0], levels[-1]) == (pytest.approx(12.0), pytest.approx(0.05))
    assert (levels.diff() < 0).all()
