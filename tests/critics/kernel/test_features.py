from __future__ import annotations

import ast
import dataclasses
import inspect

import numpy as np
import pytest
import torch

from gswgan.critics.kernel import embedding
from gswgan.critics.kernel.features import KernelSettings, RandomFeatures
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
    assert names == {"self", "settings", "channels", "side", "device"}
    first, second = RandomFeatures(SETTINGS, 1, 8, CPU), RandomFeatures(SETTINGS, 1, 8, CPU)
    assert torch.equal(first.frequencies, second.frequencies)
    for value in dataclasses.asdict(SETTINGS).values():
        assert isinstance(value, (int, tuple))
    # pixels are divided by a constant and nothing else: no mean, deviation or maximum of the data
    tree = ast.parse(inspect.getsource(embedding._pixels) + inspect.getsource(embedding.record_blocks))
    calls = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not calls & {"mean", "std", "max", "min", "amax", "amin", "median", "quantile", "unique", "norm"}
    x = np.full((1, 1, 8, 8), 51, np.uint8)
    assert torch.allclose(embedding._pixels(x, CPU), torch.full((1, 1, 8, 8), 0.2))
