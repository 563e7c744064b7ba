"""Warm start: each critic trains with a generator of its own on its own shard before the first private step.

Algorithm 1's first loop, for a chunk of critics at a time. The local generators see private data, stay with their
critic and are thrown away: hidden state of one shard, so nothing leaves and nothing is paid.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from gswgan.critics.ensemble.adam import AdamState, adam_step, init_adam
from gswgan.critics.ensemble.convolution import convolve
from gswgan.critics.ensemble.loss import generator_gradient
from gswgan.critics.ensemble.stack import Stack
from gswgan.generators import GeneratorSettings, build_network
from gswgan.generators.cuda_graphs import Captured
from gswgan.generators.latent import latent_codes
from gswgan.privacy import Streams


class Stopped(Exception):  # noqa: N818
    """The run was asked to stop, and did when its state was saved."""


class Store(Protocol):
    """Where the state of an unfinished warm start is kept. Private: it is that of the critics."""

    def is_due(self) -> bool:
        """Whether it is time to save."""

    def save(self, step: int, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Keep the state after so many iterations."""

    def load(self) -> tuple[int, dict[str, dict[str, Tensor]]] | None:
        """What was saved last."""

    def remove(self) -> None:
        """Begin anew."""


@dataclass(frozen=True, kw_only=True)
class WarmStart:
    """How long, with which local generators; where it is saved, and how it hears that it should stop."""

    iterations: int  # T_w
    generator: GeneratorSettings
    learning_rate: float
    betas: tuple[float, float]
    store: Store | None = None
    stopped: Callable[[], bool] = lambda: False


class TimeLeft:
    """Tells how far the warm start is, each time another twentieth of it is done."""

    def __init__(self, total: int, done: int, note: Callable[[str], None]) -> None:
        self._total, self._start, self._note = total, done, note
        self._began, self._said = time.monotonic(), -1

    def tell(self, done: int) -> None:
        """Say it, if there is news."""
        if (part := 20 * done // self._total) == self._said:
            return
        self._said = part
        left = ""
        if done > self._start:
            seconds = (time.monotonic() - self._began) / (done - self._start) * (self._total - done)
            left = f", {seconds / 60:.0f} min left" if seconds >= 90 else f", {seconds:.0f} s left"
        self._note(f"warm start of the critics: {100 * done // self._total} %{left}")


class LocalGenerators:
    """m generators as one batched model: the plan's network without spectral norm, each in its own slice.

    Each learns against the critic in the same place of `critics`.
    """

    def __init__(
        self, warm: WarmStart, members: np.ndarray, critics: Stack, *, classes: int, channels: int, image_size: int,
        public: Streams, compute_dtype: torch.dtype,
    ) -> None:  # fmt: skip
        settings, device = warm.generator, critics.adam.steps.device
        plain = GeneratorSettings(
            architecture=settings.architecture, width=settings.width, latent=settings.latent,
            latent_kind=settings.latent_kind,
        )  # fmt: skip
        networks = []
        for member in members:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(public.integer("local generator", int(member)))
                network = build_network(plain, classes=classes, channels=channels, image_size=image_size)
            networks.append(_for_many(network, compute_dtype).to(device))
        self._skeleton = networks[0]
        state, _ = stack_module_state(networks)
        self.params = {name: value.detach() for name, value in state.items()}
        self.adam: AdamState = init_adam(self.params)
        self._warm, self._critics, self._dtype = warm, critics, compute_dtype
        self._fakes, self._descend = Captured(self._draw), Captured(self._step)

    def fakes(self, codes: Tensor, labels: Tensor) -> Tensor:
        """Fakes [m, B, c, h, w] of codes [m, B, latent] and labels [m, B]: no graph."""
        with torch.no_grad():
            drawn = self._fakes(codes, labels)
        assert drawn is not None
        return drawn

    def _draw(self, codes: Tensor, labels: Tensor, params: dict[str, Tensor] | None = None) -> Tensor:
        one: Callable[..., Tensor] = lambda p, z, y: functional_call(self._skeleton, p, (z, y))  # noqa: E731
        return vmap(one)(params or self.params, codes, labels)

    def codes(self, rng: np.random.Generator, batch: int) -> Tensor:
        """Latent codes [m, B, latent], a batch for every member."""
        some = next(iter(self.params.values()))
        settings = self._warm.generator
        codes = latent_codes(len(some) * batch, settings.latent, settings.latent_kind, rng)
        return codes.view(len(some), batch, -1).to(some.device)

    def state(self) -> dict[str, Tensor]:
        """Weights and optimizer state of all members."""
        groups = {"params": self.params, "exp_avg": self.adam.exp_avg, "exp_avg_sq": self.adam.exp_avg_sq}
        tensors = {f"{group}/{name}": value for group, part in groups.items() for name, value in part.items()}
        return tensors | {"steps": self.adam.steps}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `state`."""
        for name, value in self.state().items():
            value.copy_(tensors[name])

    def descend(self, codes: Tensor, labels: Tensor) -> None:
        """One step of every local generator against its own critic."""
        self._descend(codes, labels)

    def _step(self, codes: Tensor, labels: Tensor) -> None:
        leaves = {name: value.detach().requires_grad_() for name, value in self.params.items()}
        fake, critics = self._draw(codes, labels, leaves), self._critics
        upstream = generator_gradient(critics.params, critics.buffers, fake.detach(), labels, self._dtype)
        grads = torch.autograd.grad(fake, list(leaves.values()), upstream / fake.shape[1])
        rate, betas = self._warm.learning_rate, self._warm.betas
        adam_step(self.params, dict(zip(leaves, grads)), self.adam, learning_rate=rate, betas=betas)


class _Convolve(torch.autograd.Function):
    """A convolution that for many networks at once (under `vmap`) is that of the critics, in `convolution.py`."""

    @staticmethod
    def forward(images: Tensor, weight: Tensor, bias: Tensor, padding: int) -> Tensor:
        return nn.functional.conv2d(images, weight, bias, padding=padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Nothing to keep: only `vmap` is used."""

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
    """The network as one of many that are computed at once, its batch norm always by its own batch.

    Local generators are never used outside training.
    """
    for module in network.modules():
        if type(module) is nn.Conv2d:
            module.__class__ = _Convolution
            cast(_Convolution, module).dtype = compute_dtype
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.track_running_stats = False
            module.running_mean = module.running_var = module.num_batches_tracked = None
    return network
