"""Warm start: each critic trains with a generator of its own on its own shard before the first private step.

Algorithm 1's first loop, for a chunk of critics at a time. The local generators see private data, stay with their
critic and are thrown away: hidden state of one shard, so nothing leaves and nothing is paid.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from gswgan.critics.adam import AdamState, adam_step, init_adam
from gswgan.critics.loss import generator_gradient
from gswgan.generators import GeneratorSettings, build_network
from gswgan.generators.latent import latent_codes
from gswgan.privacy import Streams


@dataclass(frozen=True, kw_only=True)
class WarmStart:
    """How long, with which local generators."""

    iterations: int  # T_w
    generator: GeneratorSettings
    learning_rate: float
    betas: tuple[float, float]


class LocalGenerators:
    """m generators as one batched model: the plan's network without spectral norm, each in its own slice."""

    def __init__(
        self, settings: GeneratorSettings, members: np.ndarray, *, classes: int, channels: int, image_size: int,
        public: Streams, device: torch.device,
    ) -> None:  # fmt: skip
        plain = GeneratorSettings(
            architecture=settings.architecture, width=settings.width, latent=settings.latent,
            latent_kind=settings.latent_kind,
        )  # fmt: skip
        networks = []
        for member in members:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(public.integer("local generator", int(member)))
                network = build_network(plain, classes=classes, channels=channels, image_size=image_size)
            networks.append(_without_running_statistics(network).to(device))
        self._skeleton = networks[0]
        state, _ = stack_module_state(networks)
        self.params = {name: value.detach() for name, value in state.items()}
        self.adam: AdamState = init_adam(self.params)
        self._settings = settings

    def __call__(self, params: dict[str, Tensor], codes: Tensor, labels: Tensor) -> Tensor:
        """Fakes [m, B, c, h, w] of codes [m, B, latent] and labels [m, B]."""
        one: Callable[..., Tensor] = lambda p, z, y: functional_call(self._skeleton, p, (z, y))  # noqa: E731
        return vmap(one)(params, codes, labels)

    def codes(self, rng: np.random.Generator, batch: int) -> Tensor:
        """Latent codes [m, B, latent], a batch for every member."""
        some = next(iter(self.params.values()))
        codes = latent_codes(len(some) * batch, self._settings.latent, self._settings.latent_kind, rng)
        return codes.view(len(some), batch, -1).to(some.device)

    def descend(
        self, critics: dict[str, Tensor], buffers: dict[str, Tensor], codes: Tensor, labels: Tensor, *,
        learning_rate: float, betas: tuple[float, float],
    ) -> None:  # fmt: skip
        """One step of every local generator against its own critic."""
        leaves = {name: value.detach().requires_grad_() for name, value in self.params.items()}
        fake = self(leaves, codes, labels)
        upstream = generator_gradient(critics, buffers, fake.detach(), labels) / fake.shape[1]
        grads = torch.autograd.grad(fake, list(leaves.values()), upstream)
        adam_step(self.params, dict(zip(leaves, grads)), self.adam, learning_rate=learning_rate, betas=betas)


def _without_running_statistics(network: nn.Module) -> nn.Module:
    """Batch norm that always uses its own batch: local generators are never used outside training."""
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.track_running_stats = False
            module.running_mean = module.running_var = module.num_batches_tracked = None
    return network
