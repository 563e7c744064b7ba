"""The chain-rule equation: the generator's gradient is the upstream gradient times the local Jacobian.

With no noise and no clip, sanitizing upstream gives the ordinary WGAN gradient of the generator; sanitized or not, no
other path leads from the critic to the generator.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gswgan.critics.ensemble.loss import generator_gradient
from gswgan.critics.ensemble.network import CriticShape, init_critics, normalize, score
from gswgan.generators import GeneratorSettings
from gswgan.generators.generator import Generator, OptimizerSettings
from gswgan.privacy import Contribution, Gaussian, GaussianMechanism, Ledger, Streams

CPU = torch.device("cpu")
BATCH = 6


def generator() -> Generator:
    made = Generator(
        GeneratorSettings(architecture="mlp", width=16), OptimizerSettings(learning_rate=1e-3), classes=3, channels=1,
        image_size=8, updates=10, streams=Streams.public(0), device=CPU,
    )  # fmt: skip
    made.adam.step = lambda *args: None  # type: ignore[method-assign]  # keep the gradients, leave the weights
    return made


def gradients(made: Generator) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in made.network.parameters()])


def sanitized(rows: torch.Tensor, tmp_path: Path, clip_norm: float, noise_std: float) -> torch.Tensor:
    contribution = Contribution(clip_norm=clip_norm, rows=BATCH)
    mechanism = GaussianMechanism(
        contribution=contribution,
        event=Gaussian(noise_std=noise_std, sensitivity=contribution.sensitivity("replace-one")),
        ledger=Ledger(tmp_path / "ledger", observer="public", context="plan"),
        streams=Streams(bytes(32), "plan"),
    )
    released = mechanism.answer("step 0", [(rows.flatten(2), None)], slots=BATCH, width=64)
    return torch.from_numpy(released.sums).to(torch.float32).view(BATCH, 1, 8, 8)


def test_upstream_without_noise_and_clip_is_the_ordinary_gradient(tmp_path: Path) -> None:
    shape = CriticShape(image_size=8, channels=1, classes=3, width=4)
    params, buffers = init_critics(shape, 1, seed=0)

    ordinary = generator()
    fake, labels = ordinary.sample(BATCH, 0)
    (-score(normalize(params, buffers), fake[None], labels[None]).mean()).backward()  # L_G, straight through

    ours = generator()
    fake, labels = ours.sample(BATCH, 0)
    rows = generator_gradient(params, buffers, fake.detach(), labels)
    ours.descend(fake, sanitized(rows, tmp_path, clip_norm=16.0, noise_std=1e-9))
    assert torch.allclose(gradients(ours), gradients(ordinary), rtol=1e-4, atol=1e-6)
    assert gradients(ordinary).norm() > 1e-3


def test_clip_and_noise_change_it_as_the_equation_says(tmp_path: Path) -> None:
    made = generator()
    fake, _ = made.sample(BATCH, 0)
    rows = torch.randn(1, BATCH, 1, 8, 8, generator=torch.Generator().manual_seed(0)) * 3
    upstream = sanitized(rows, tmp_path, clip_norm=1.0, noise_std=0.05)
    norms = rows.flatten(2).norm(dim=2)[0]
    clipped = rows[0] / norms.clamp(min=1.0)[:, None, None, None]
    assert (upstream - clipped).std() == pytest.approx(0.05, rel=0.15)
    made.descend(fake, upstream)
    expected = torch.autograd.grad(made.sample(BATCH, 0)[0], list(made.network.parameters()), upstream / BATCH)
    assert torch.allclose(gradients(made), torch.cat([g.flatten() for g in expected]), rtol=1e-3, atol=1e-6)


def test_the_critic_is_untouched_by_the_generators_step(tmp_path: Path) -> None:
    """No gradient flows past the barrier: the fakes that a critic gets carry no graph."""
    shape = CriticShape(image_size=8, channels=1, classes=3, width=4)
    params, buffers = init_critics(shape, 1, seed=0)
    params = {name: value.requires_grad_() for name, value in params.items()}
    made = generator()
    fake, labels = made.sample(BATCH, 0)
    upstream = generator_gradient(params, buffers, fake.detach(), labels)[0]
    assert not upstream.requires_grad
    made.descend(fake, upstream)
    assert all(value.grad is None for value in params.values())
