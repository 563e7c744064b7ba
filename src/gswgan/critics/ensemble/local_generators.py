"""The generators of the warm start: one small network per critic, all computed as one batched model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from gswgan.critics.ensemble.adam import AdamState, adam_step, init_adam, named_tensors
from gswgan.critics.ensemble.convolution import convolve
from gswgan.critics.ensemble.loss import generator_gradient
from gswgan.critics.ensemble.network import CriticShape
from gswgan.critics.ensemble.stack import Stack
from gswgan.generators import GeneratorSettings, build_network
from gswgan.generators.cuda_graphs import Captured
from gswgan.generators.sampling import latent_codes
from gswgan.privacy import Streams


class LocalGenerators:
    """m generators as one batched model: the plan's network without spectral norm, each in its own slice.

    Each learns against the critic at the same place of `critics`.
    """

    def __init__(
        self,
        settings: GeneratorSettings,
        numbers: np.ndarray,
        critics: Stack,
        shape: CriticShape,
        *,
        learning_rate: float,
        betas: tuple[float, float],
        public: Streams,
        compute_dtype: torch.dtype,
    ) -> None:
        """Draw the generators of the critics with these `numbers` among all K critics."""
        plain = GeneratorSettings(
            architecture=settings.architecture, width=settings.width, latent=settings.latent,
            latent_kind=settings.latent_kind,
        )  # fmt: skip
        networks = []
        for number in numbers:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(public.integer("local generator", int(number)))
                network = build_network(
                    plain, classes=shape.classes, channels=shape.channels, image_size=shape.image_size
                )
            networks.append(_for_many(network, compute_dtype).to(critics.adam.steps.device))
        self._skeleton = networks[0]
        state, _ = stack_module_state(networks)
        self.params = {name: value.detach() for name, value in state.items()}
        self.adam: AdamState = init_adam(self.params)
        self._settings, self._critics, self._dtype = settings, critics, compute_dtype
        self._learning_rate, self._betas = learning_rate, betas
        self._fakes, self._descend = Captured(self._draw), Captured(self._step)

    def codes(self, rng: np.random.Generator, batch: int) -> Tensor:
        """Draw latent codes [m, B, latent], one batch per generator."""
        some = next(iter(self.params.values()))
        codes = latent_codes(len(some) * batch, self._settings.latent, self._settings.latent_kind, rng)
        return codes.view(len(some), batch, -1).to(some.device)

    def fakes(self, codes: Tensor, labels: Tensor) -> Tensor:
        """Return fakes [m, B, c, h, w] of codes [m, B, latent] and labels [m, B], without an autograd graph."""
        with torch.no_grad():
            drawn = self._fakes(codes, labels)
        assert drawn is not None
        return drawn

    def descend(self, codes: Tensor, labels: Tensor) -> None:
        """Make one step of every local generator against its own critic."""
        self._descend(codes, labels)

    def state(self) -> dict[str, Tensor]:
        """Return weights and optimizer state of all generators."""
        return named_tensors(self.adam, params=self.params)

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        for name, value in self.state().items():
            value.copy_(tensors[name])

    def _draw(self, codes: Tensor, labels: Tensor, params: dict[str, Tensor] | None = None) -> Tensor:
        one: Callable[..., Tensor] = lambda p, z, y: functional_call(self._skeleton, p, (z, y))  # noqa: E731
        return vmap(one)(params or self.params, codes, labels)

    def _step(self, codes: Tensor, labels: Tensor) -> None:
        leaves = {name: value.detach().requires_grad_() for name, value in self.params.items()}
        fake, critics = self._draw(codes, labels, leaves), self._critics
        upstream = generator_gradient(critics.params, critics.buffers, fake.detach(), labels, self._dtype)
        grads = torch.autograd.grad(fake, list(leaves.values()), upstream / fake.shape[1])
        grads_by_name = dict(zip(leaves, grads))
        adam_step(self.params, grads_by_name, self.adam, learning_rate=self._learning_rate, betas=self._betas)


class _Convolve(torch.autograd.Function):
    """A convolution that under `vmap` becomes the batched convolution of the critics (`convolution.py`)."""

    @staticmethod
    def forward(images: Tensor, weight: Tensor, bias: Tensor, padding: int) -> Tensor:
        return nn.functional.conv2d(images, weight, bias, padding=padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Save nothing: only the `vmap` rule is used."""

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int, ...], *inputs: Any) -> tuple[Tensor, int]:
        images, weight, bias = (value.movedim(place, 0) for value, place in zip(inputs, in_dims[:3]))
        return convolve(images.transpose(0, 1), weight, bias, stride=1, padding=inputs[3]).transpose(0, 1), 0


class _Convolution(nn.Conv2d):
    dtype = torch.float32

    def forward(self, input: Tensor) -> Tensor:
        assert self.bias is not None
        images, weight, bias = (value.to(self.dtype) for value in (input, self.weight, self.bias))
        result: Tensor = _Convolve.apply(images, weight, bias, int(self.padding[0]))
        return result


def _for_many(network: nn.Module, compute_dtype: torch.dtype) -> nn.Module:
    """Change the network so that many can be computed at once; its batch norm always uses its own batch.

    Local generators are never used outside training, so they need no running statistics.
    """
    for module in network.modules():
        if type(module) is nn.Conv2d:
            module.__class__ = _Convolution
            cast(_Convolution, module).dtype = compute_dtype
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.track_running_stats = False
            module.running_mean = module.running_var = module.num_batches_tracked = None
    return network
