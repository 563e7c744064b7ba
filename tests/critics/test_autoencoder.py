from __future__ import annotations

import math

import pytest
import torch

from gswgan.critics.autoencoder import Autoencoder, reconstruction_loss
from gswgan.critics.dp_sgd import RecordGradients
from gswgan.generators.decoded import CODE, Spread
from gswgan.privacy import Contribution, Gaussian, Sampled


@pytest.mark.parametrize(("side", "channels"), [(8, 1), (28, 3), (30, 1)])
def test_the_decoder_is_one_of_transposed_convolutions(side: int, channels: int) -> None:
    torch.manual_seed(0)
    network = Autoencoder(image_size=side, channels=channels, width=4)
    images = torch.rand(5, channels, side, side)
    codes = network.encode(images)
    torch.testing.assert_close(codes.norm(dim=1), torch.full((5,), math.sqrt(CODE)))
    maps = network.decoder.project(codes).unflatten(1, network.decoder.first)
    for layer in network.decoder.body:
        maps = torch.nn.ConvTranspose2d.forward(layer, maps) if isinstance(layer, Spread) else layer(maps)
    cut = (maps.shape[-1] - side) // 2
    expected = maps[..., cut : cut + side, cut : cut + side]
    torch.testing.assert_close(network(images), expected)
    torch.testing.assert_close(network.decoder(codes), torch.sigmoid(expected))


def test_gradients_of_single_records_are_autograds(mechanism_for) -> None:
    torch.manual_seed(0)
    network = Autoencoder(image_size=8, channels=1, width=3)
    event = Sampled(rate=0.5, event=Gaussian(noise_std=1.0, sensitivity=2.0))
    gradients = RecordGradients(network, mechanism_for(Contribution(clip_norm=1.0), event=event))
    images = torch.rand(6, 1, 8, 8)
    for image, row in zip(images, gradients.rows(reconstruction_loss, images)):
        network.zero_grad()
        loss = torch.nn.functional.binary_cross_entropy(torch.sigmoid(network(image[None])), image[None])
        (64 * loss).backward()
        alone = torch.cat([p.grad.flatten() for p in network.parameters()])
        torch.testing.assert_close(row, alone, rtol=1e-3, atol=1e-4)
