"""A recorded step does what a called one does."""

from __future__ import annotations

import pytest
import torch

from gswgan.generators import GeneratorSettings
from gswgan.generators.cuda_graphs import EAGER, Captured
from gswgan.generators.generator import Generator, OptimizerSettings
from gswgan.privacy import Streams
from gswgan.run.cuda_graphs import CapturedAround

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


class OutsideTheDevice:
    """A critic whose answer passes the CPU, as those that pass the ledger do."""

    def upstream_gradient(self, fake: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return (fake.detach().cpu() - 0.3 * labels.cpu()[:, None, None, None]).cuda()


def trained(*, captured: bool, steps: int, around: bool = False, **settings: object) -> Generator:
    torch.backends.cudnn.deterministic = True
    generator = Generator(
        GeneratorSettings(**{"architecture": "mlp", "width": 16, **settings}),  # type: ignore[arg-type]
        OptimizerSettings(learning_rate=1e-2, warm_up=4, decay=True, average=0.9),
        classes=3, channels=1, image_size=8, updates=steps, streams=Streams.public(0), device=torch.device("cuda"),
    )  # fmt: skip

    def update(codes: torch.Tensor, labels: torch.Tensor) -> None:
        fake = generator(codes, labels)
        generator.descend(fake, fake.detach() - 0.3 * labels[:, None, None, None])

    run = Captured(update) if captured else update
    if captured and around:
        run = CapturedAround(generator, OutsideTheDevice())  # type: ignore[arg-type]
    for step in range(steps):
        generator.fakes(10, "others", step)  # moves batch statistics and spectral norms
        run(*generator.latents(12, step))
    return generator


@pytest.mark.parametrize("around", [False, True])
@pytest.mark.parametrize("settings", [{}, {"architecture": "resnet", "width": 8, "spectral_norm": True}])
def test_recorded_steps_are_called_steps(around: bool, settings: dict[str, object]) -> None:
    """Weights, average, optimizer and schedule: new codes, labels and learning rates reach every replay."""
    steps = EAGER + 9
    ours = trained(captured=True, steps=steps, around=around, **settings).state()
    theirs = trained(captured=False, steps=steps, **settings).state()
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert torch.allclose(value.double(), theirs[name].double(), rtol=1e-4, atol=1e-6), name
    other = trained(captured=False, steps=steps - 1, **settings).state()  # one step fewer is told apart
    name = next(name for name in ours if name.startswith("network.head"))
    assert not torch.allclose(ours[name], other[name], rtol=1e-4, atol=1e-6)
