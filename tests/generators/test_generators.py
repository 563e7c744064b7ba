from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from gswgan.generators import GeneratorSettings, build_network
from gswgan.generators.generator import Generator, OptimizerSettings
from gswgan.generators.networks import doubled, repeated, upsampling
from gswgan.generators.sampling import balanced_labels, channels_last, draw_images, grid_png, latent_codes
from gswgan.privacy import Streams

CPU = torch.device("cpu")


@pytest.mark.parametrize("architecture", ["resnet", "smooth-resnet", "dcgan", "bilinear", "mlp"])
@pytest.mark.parametrize(("size", "channels", "classes"), [(8, 1, 10), (28, 1, 1), (30, 3, 2), (64, 3, 5)])
def test_every_shape(architecture: str, size: int, channels: int, classes: int) -> None:
    settings = GeneratorSettings(architecture=architecture, width=8, spectral_norm=size == 8)
    network = build_network(settings, classes=classes, channels=channels, image_size=size)
    images = network(torch.randn(4, 10), torch.arange(4) % classes)
    assert images.shape == (4, channels, size, size)
    assert images.min() >= 0
    assert images.max() <= 1
    images.sum().backward()
    assert all(p.grad is not None for p in network.parameters())


@pytest.mark.parametrize("corners", [False, True])
def test_doubling_is_bilinear_interpolation(corners: bool) -> None:
    maps = torch.randn(2, 3, 7, 7, dtype=torch.float32, requires_grad=True)
    ours = doubled(maps, corners=corners)
    theirs = torch.nn.functional.interpolate(maps, scale_factor=2.0, mode="bilinear", align_corners=corners)
    torch.testing.assert_close(ours, theirs)
    weights = torch.randn_like(ours)
    (mine,), (other,) = (torch.autograd.grad((x * weights).sum(), maps) for x in (ours, theirs))
    torch.testing.assert_close(mine, other)
    assert not torch.allclose(ours, doubled(maps, corners=not corners))


def test_the_smooth_network_differs_in_the_doubling_alone() -> None:
    rough, smooth = (
        build_network(GeneratorSettings(architecture=kind, width=4), classes=2, channels=1, image_size=16).eval()
        for kind in ("resnet", "smooth-resnet")
    )
    smooth.load_state_dict(rough.state_dict())
    codes, labels = torch.randn(3, 10), torch.tensor([0, 1, 1])
    assert not torch.allclose(rough(codes, labels), smooth(codes, labels))
    even = torch.ones(1, 1, 4, 4)
    torch.testing.assert_close(doubled(even), repeated(even))


def test_a_label_matters_and_an_unconditional_generator_has_none() -> None:
    for classes in (1, 3):
        network = build_network(
            GeneratorSettings(architecture="dcgan", width=4), classes=classes, channels=1, image_size=8
        ).eval()
        codes = torch.randn(2, 10)
        one, other = network(codes, torch.zeros(2, dtype=torch.int64)), network(codes, torch.full((2,), classes - 1))
        assert torch.equal(one, other) == (classes == 1)


def test_upsampling_covers_every_side() -> None:
    for side in range(8, 65):
        first, doublings = upsampling(side)
        assert side <= first * 2**doublings < side + 2**doublings
        assert 4 <= first <= 7
    assert upsampling(28) == (7, 2)


def test_latents_and_labels() -> None:
    rng = np.random.default_rng(0)
    bernoulli = latent_codes(2000, 10, "bernoulli", rng)
    assert set(bernoulli.unique().tolist()) == {0.0, 1.0}
    assert bernoulli.mean() == pytest.approx(0.5, abs=0.02)
    assert latent_codes(2000, 10, "normal", rng).std() == pytest.approx(1, abs=0.02)
    counts = torch.bincount(balanced_labels(32, np.arange(10), rng))
    assert set(counts.tolist()) == {3, 4}
    many = torch.bincount(balanced_labels(10, np.arange(100), rng))
    assert set(many.tolist()) <= {0, 2}  # every class that occurs does so twice
    assert set(balanced_labels(9, np.array([2, 7]), rng).tolist()) == {2, 7}


def make(**changes) -> Generator:
    options = OptimizerSettings(**{"learning_rate": 1e-2, "average": 0.5, **changes})
    return Generator(
        GeneratorSettings(architecture="mlp", width=8), options, classes=2, channels=1, image_size=8, updates=10,
        streams=Streams.public(0), device=CPU,
    )  # fmt: skip


def test_samples_belong_to_their_index() -> None:
    made = make()
    assert torch.equal(made.fakes(6, 3, 1)[0], made.fakes(6, 3, 1)[0])
    assert not torch.equal(made.fakes(6, 3, 1)[0], made.fakes(6, 3, 2)[0])
    assert torch.equal(make().fakes(6, 0)[0], make().fakes(6, 0)[0])


def test_schedule_warms_up_and_decays() -> None:
    made = make(warm_up=4, decay=True)
    rates = []
    for step in range(10):
        fake, _ = made.sample(4, step)
        made.descend(fake, torch.ones_like(fake))
        rates.append(made.adam.param_groups[0]["lr"] / 1e-2)
    assert rates[0] == pytest.approx(0.25)
    assert rates[3] == pytest.approx(0.7)
    assert rates[9] == pytest.approx(0.1)


def test_descent_goes_against_the_gradient_and_the_average_follows() -> None:
    made = make()
    for step in range(30):
        fake, _ = made.sample(16, step)
        made.descend(fake, torch.ones_like(fake))  # the loss is the mean brightness
    assert made.fakes(16, "after")[0].mean() < 0.2
    network = made.released_network()
    assert not network.training
    codes, labels = torch.randn(50, 10), torch.zeros(50, dtype=torch.int64)
    assert network(codes, labels).mean() < 0.3
    assert torch.allclose(network(codes[:1], labels[:1]), network(codes, labels)[:1], atol=1e-5)  # no batch effect


def test_pictures_and_layout(tmp_path) -> None:
    network = build_network(GeneratorSettings(architecture="mlp", width=4), classes=2, channels=3, image_size=8).eval()
    settings = GeneratorSettings(architecture="mlp", width=4)
    images = draw_images(network, settings, np.array([0, 1] * 6), np.random.default_rng(0))
    assert images.shape == (12, 3, 8, 8)
    assert images.dtype == np.uint8
    assert channels_last(images).shape == (12, 8, 8, 3)
    assert channels_last(images[:, :1]).shape == (12, 8, 8)
    (tmp_path / "grid.png").write_bytes(grid_png(images, 4))
    with Image.open(tmp_path / "grid.png") as picture:
        assert picture.size == (4 * 60, 3 * 60)
