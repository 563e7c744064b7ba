"""A recorded step does what a called one does."""

from __future__ import annotations

import pytest
import torch

from gswgan.generators import GeneratorSettings
from gswgan.generators.generator import Generator, OptimizerSettings
from gswgan.privacy import Streams
from gswgan.training.captured import EAGER, Captured

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


def trained(*, captured: bool, steps: int) -> Generator:
    torch.backends.cudnn.deterministic = True
    generator = Generator(
        GeneratorSettings(architecture="mlp", width=16),
        OptimizerSettings(learning_rate=1e-2, warm_up=4, decay=True, average=0.9),
        classes=3, channels=1, image_size=8, updates=steps, streams=Streams.public(0), device=torch.device("cuda"),
    )  # fmt: skip

    def update(codes: torch.Tensor, labels: torch.Tensor) -> None:
        fake = generator(codes, labels)
        generator.descend(fake, fake.detach() - 0.3 * labels[:, None, None, None])

    run = Captured(update) if captured else update
    for step in range(steps):
        run(*generator.latents(12, step))
    return generator


def test_recorded_steps_are_called_steps() -> None:
    """Weights, average, optimizer and schedule: new codes, labels and learning rates reach every replay."""
    steps = EAGER + 9
    ours, theirs = trained(captured=True, steps=steps).state(), trained(captured=False, steps=steps).state()
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert torch.allclose(value.double(), theirs[name].double(), rtol=1e-4, atol=1e-6), name
    other = trained(captured=False, steps=steps - 1).state()  # one step fewer is told apart
    assert not torch.allclose(ours["network.head.weight"], other["network.head.weight"], rtol=1e-4, atol=1e-6)
