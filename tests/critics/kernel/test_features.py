from __future__ import annotations

import ast
import dataclasses
import inspect

import numpy as np
import pytest
import torch

from colour_shapes import colour_shapes
from gswgan.critics.kernel import embedding
from gswgan.critics.kernel.convolutions import Convolutions, noise_images, output_size, untrained_weights
from gswgan.critics.kernel.features import KernelSettings, RandomFeatures
from gswgan.errors import PlanError
from gswgan.methods import make_plan
from gswgan.plan.facts import Facts
from gswgan.privacy import Streams
from gswgan.privacy.mechanism import clip_to_grid

CPU = torch.device("cpu")
SETTINGS = KernelSettings(features=64, length_scales=(1.5,))


def test_features_have_norm_at_most_one() -> None:
    features = RandomFeatures(SETTINGS, 1, 8, CPU)
    images = torch.rand(200, 1, 8, 8)
    assert torch.allclose(features(images).norm(dim=1), torch.ones(200), atol=1e-6)
    integers = clip_to_grid(features(images), 1.0).to(torch.float64)
    assert (integers.norm(dim=1) <= 2.0**26).all()


def test_features_approximate_the_gaussian_kernel() -> None:
    features = RandomFeatures(KernelSettings(features=16384, length_scales=(2.0,)), 1, 8, CPU)
    x, y = torch.rand(2, 50, 1, 8, 8)
    expected = torch.exp(-(x - y).flatten(1).square().sum(1) / (2 * 2.0**2))
    assert torch.allclose((features(x) * features(y)).sum(1), expected, atol=0.05)


def test_windows_look_at_neighbourhoods() -> None:
    settings = KernelSettings(features=8000, length_scales=(2.0, 0.5), windows=(0.0, 1.5))
    frequencies = RandomFeatures(settings, 3, 16, CPU).frequencies.unflatten(0, (3, 16, 16))
    power = frequencies.square()
    whole, local = power[..., 0::2], power[..., 1::2]
    assert whole.mean() == pytest.approx(1 / 4, rel=0.02)
    assert torch.allclose(whole.mean(dim=(0, 3)), torch.full((16, 16), 0.25), rtol=0.2)  # everywhere alike
    assert torch.allclose(local.mean(dim=(0, 3)), local.mean().expand(16, 16), rtol=0.5)  # the edges too
    # one of them: as wide as its window. Of N(0, 1) x exp(-r^2 / 2 s^2) the power has the variance s^2 / 2 an axis
    place = torch.arange(16.0)
    shares = local.sum(dim=0) / local.sum(dim=(0, 1, 2))
    rows = shares.sum(dim=1)
    centre = (rows * place[:, None]).sum(0)
    variance = (rows * (place[:, None] - centre) ** 2).sum(0)
    inside = (centre > 5) & (centre < 10)
    assert variance[inside].mean() == pytest.approx(1.5**2 / 2, rel=0.15)


def test_features_and_length_scale_do_not_depend_on_the_data() -> None:
    """By construction: the features are given numbers, never images. Checked on the signature and the result."""
    names = set(inspect.signature(RandomFeatures.__init__).parameters)
    assert names == {"self", "settings", "channels", "side", "device", "encoder"}  # trained on public images
    first, second = RandomFeatures(SETTINGS, 1, 8, CPU), RandomFeatures(SETTINGS, 1, 8, CPU)
    assert torch.equal(first.frequencies, second.frequencies)
    for value in dataclasses.asdict(SETTINGS).values():
        assert isinstance(value, (int, tuple, str))
    # pixels are divided by a constant and nothing else: no mean, deviation or maximum of the data
    tree = ast.parse(inspect.getsource(embedding._pixels) + inspect.getsource(embedding.record_blocks))
    calls = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not calls & {"mean", "std", "max", "min", "amax", "amin", "median", "quantile", "unique", "norm"}
    x = np.full((1, 1, 8, 8), 51, np.uint8)
    assert torch.allclose(embedding._pixels(x, CPU), torch.full((1, 1, 8, 8), 0.2))


def test_averaged_pixels_are_seen_and_each_image_alone() -> None:
    """The frequencies are those of an image of the smaller side; 13 pixels in fours: the last of them alone."""
    settings = dataclasses.replace(SETTINGS, pooled=4)
    features = RandomFeatures(settings, 3, 13, CPU)
    assert torch.equal(features.frequencies, RandomFeatures(SETTINGS, 3, 4, CPU).frequencies)
    images = torch.rand(40, 3, 13, 13)
    seen = features.seen(images).unflatten(1, (3, 4, 4))
    assert torch.allclose(seen[:, :, 1, 2], images[:, :, 4:8, 8:12].mean(dim=(2, 3)))
    assert torch.allclose(seen[:, :, 3, 3], images[:, :, 12, 12])
    rows = features(images)
    assert torch.allclose(rows.norm(dim=1), torch.ones(40), atol=1e-6)
    changed = images.clone()
    changed[7] = 1 - changed[7]
    others = torch.arange(40) != 7
    assert torch.equal(features(changed)[others], rows[others])


def test_the_network_sees_averages_too() -> None:
    images = torch.rand(5, 3, 28, 28)
    seen = RandomFeatures(dataclasses.replace(COLOUR, pooled=2), 3, 28, CPU).seen(images)
    small = torch.nn.functional.avg_pool2d(images, 2)
    assert torch.equal(seen, RandomFeatures(COLOUR, 3, 14, CPU).seen(small))


COLOUR = KernelSettings(features=64, length_scales=(3.0,), convolutions=(6, 8))


@pytest.mark.parametrize("side", [8, 13, 28])
def test_behind_convolutions_rows_have_norm_one_and_each_image_is_mapped_alone(side: int) -> None:
    features = RandomFeatures(COLOUR, 3, side, CPU)
    images = torch.rand(40, 3, side, side)
    rows = features(images)
    assert torch.allclose(rows.norm(dim=1), torch.ones(40), atol=1e-6)
    changed = images.clone()
    changed[7] = 1 - changed[7]
    again = features(changed)
    others = torch.arange(40) != 7
    assert torch.equal(again[others], rows[others])
    assert (again[7] - rows[7]).norm() > 0.1
    assert not features.frequencies.requires_grad


def test_half_of_the_features_see_the_pixels_and_half_the_convolutions() -> None:
    features = RandomFeatures(COLOUR, 3, 13, CPU)  # 13, 7, 4: pooled with what is left over at the edge
    assert output_size((6, 8), 13) == 6 * 4**2 + 8 * 4**2
    pixels, convolved = features.frequencies.split([3 * 13**2, 14 * 4**2])
    assert (pixels[:, 1::2] == 0).all()
    assert (convolved[:, ::2] == 0).all()
    for seen in (pixels[:, ::2], convolved[:, 1::2]):
        assert seen.square().mean() == pytest.approx(1 / 9, rel=0.1)
    plain = RandomFeatures(dataclasses.replace(COLOUR, convolutions=()), 3, 13, CPU)
    assert torch.equal(pixels[:, ::2], plain.frequencies[:, ::2])
    images = torch.rand(1, 3, 13, 13, requires_grad=True)
    assert features.network is not None
    features.network(images)[:, ::3].sum().backward()
    assert images.grad is not None
    assert (images.grad[0].abs().sum(dim=0) > 0).all()  # every pixel is seen


def test_all_length_scales_are_on_both_sides_of_the_convolutions() -> None:
    settings = dataclasses.replace(COLOUR, length_scales=(3.0, 1.0), windows=(0.0, 2.0))
    pixels, convolved = RandomFeatures(settings, 3, 16, CPU).frequencies.split([3 * 16**2, 14 * 4**2])
    places = torch.arange(32)
    assert torch.equal((pixels == 0).all(dim=0), places // 2 % 2 == 1)
    assert torch.equal((convolved == 0).all(dim=0), places // 2 % 2 == 0)
    lengths = convolved.norm(dim=0)
    assert (lengths[3::4] > 2 * lengths[2::4]).all()


def test_every_image_has_the_same_length_behind_the_convolutions() -> None:
    """One that is all black or of one colour too: nothing is divided by zero, and no image weighs more."""
    network = Convolutions(untrained_weights((6, 8), 3, 16, Streams.public(0)), 3, 16, CPU)
    images = torch.cat([torch.rand(4, 3, 16, 16), torch.zeros(1, 3, 16, 16), torch.full((1, 3, 16, 16), 0.5)])
    lengths = network(images).norm(dim=1)
    assert torch.allclose(lengths[:5], lengths[:1].expand(5), rtol=1e-4)
    assert lengths[5] <= lengths[0]
    assert torch.isfinite(network(images)).all()


@pytest.mark.parametrize("widths", [(6, 8), (24, 48), (24, 48, 96)])
def test_made_images_are_as_far_apart_behind_the_convolutions_as_in_pixels(widths: tuple[int, ...]) -> None:
    """So the length scales of pixels fit, whatever the seed and the layers: on others than it was scaled by."""
    for seed in (0, 1, 2):
        network = Convolutions(untrained_weights(widths, 3, 28, Streams.public(seed)), 3, 28, CPU)
        images = torch.from_numpy(noise_images(40, 3, 28, Streams.public(99))).float()
        seen, pixels = network(images), images.flatten(1)
        ratio = torch.cdist(seen, seen).mean() / torch.cdist(pixels, pixels).mean()
        assert ratio == pytest.approx(1, abs=0.15)
        assert seen.shape[1] == network.size
    assert 0 <= images.min() < 0.2 < 0.8 < images.max() <= 1


def test_a_plan_with_too_many_layers_is_refused() -> None:
    facts = Facts.of(colour_shapes(300, seed=1))
    plan = make_plan(facts, epsilon=10.0, delta=1e-5, preset="kernel", device="cpu")
    with pytest.raises(PlanError, match="at most 8 layers"):
        dataclasses.replace(plan, critic=dataclasses.replace(plan.critic, convolutions=(8,) * 9))
