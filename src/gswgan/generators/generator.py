"""A generator in training: the network, its optimizer and its moving average.

Everything here is post-processing of answers of the mechanism, and so it is public.
"""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from torch import Tensor, nn

from gswgan.generators import GeneratorSettings, build_network
from gswgan.generators.cuda_graphs import Captured
from gswgan.generators.optimizer_state import load_optimizer, optimizer_tensors
from gswgan.generators.sampling import balanced_labels, latent_codes
from gswgan.privacy import Streams
from gswgan.ranges import BELOW_ONE, MAX_STEPS, Betas, LearningRate, Range


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """The optimizer of the generator. Any choice is post-processing and not part of the guarantee."""

    learning_rate: LearningRate
    betas: Betas = (0.5, 0.99)
    warm_up: Annotated[int, Range(0, MAX_STEPS)] = 0
    decay: bool = False
    average: Annotated[float, Range(0.0, BELOW_ONE)] = 0.99


class Generator:
    """G(z; theta_G) with Adam and an exponential moving average of its weights."""

    def __init__(
        self,
        settings: GeneratorSettings,
        optimizer: OptimizerSettings,
        *,
        classes: int,
        channels: int,
        image_size: int,
        updates: int,
        streams: Streams,
        device: torch.device,
        mixed_precision: bool = False,
    ) -> None:
        """`updates` is the planned number of descents: the schedule of the learning rate needs it."""
        self.settings, self.options = settings, optimizer
        self.label_set, self._image_size = np.arange(classes), image_size
        self.device, self._streams, self._planned = device, streams, updates
        self._mixed = mixed_precision
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(streams.integer("generator weights"))
            network = build_network(settings, classes=classes, channels=channels, image_size=image_size)
        self.network = network.to(device)
        if device.type == "cuda":
            self.network = self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._without_graph = Captured(self.__call__) if device.type == "cuda" else self.__call__
        self.averaged = copy.deepcopy(self.network).requires_grad_(False)
        self.updates = torch.zeros((), device=device)  # a tensor, as all that changes in a step: it can be captured
        self._rate = torch.zeros((), device=device)
        self.adam = torch.optim.Adam(
            self.network.parameters(),
            lr=self._rate,
            betas=optimizer.betas,
            fused=True,
            capturable=device.type == "cuda",
        )

    def latents(self, count: int, *index: int | str) -> tuple[Tensor, Tensor]:
        """Draw latent codes z_i ~ P_z and labels y_i from the stream that `index` names."""
        rng = self._streams.generator("latent", *index)
        labels = balanced_labels(count, self.label_set, rng)
        codes = latent_codes(count, self.settings.latent, self.settings.latent_kind, rng)
        return codes.to(self.device), labels.to(self.device)

    def __call__(self, codes: Tensor, labels: Tensor) -> Tensor:
        """Return G(z, y) with its autograd graph."""
        with self._precision():
            return self.network(codes, labels)

    def sample(self, count: int, *index: int | str) -> tuple[Tensor, Tensor]:
        """Return fakes with their labels; the same `index` gives the same codes."""
        codes, labels = self.latents(count, *index)
        return self(codes, labels), labels

    @torch.no_grad()
    def fakes(self, count: int, *index: int | str) -> tuple[Tensor, Tensor]:
        """Return fakes for critics to learn from, without an autograd graph."""
        codes, labels = self.latents(count, *index)
        images = self._without_graph(codes, labels)
        assert images is not None
        return images, labels

    def descend(self, fake: Tensor, upstream: Tensor) -> None:
        """theta_G <- theta_G - eta_G (1/B) sum_i upstream_i . J G(z_i): the paper's chain-rule equation, then Adam."""
        self._rate.copy_(self._rate_now())
        self.adam.zero_grad(set_to_none=True)
        fake.backward(gradient=upstream / fake.shape[0])
        self.adam.step()
        self.updates += 1
        self._average()

    def first_network(self) -> nn.Module | None:
        """Return the network of an earlier stage, which is published as well; None where there is none."""
        return None

    def released_network(self, *, batches: int = 20) -> nn.Module:
        """Return the averaged network with batch statistics estimated from its own samples: what is published."""
        batch_size = 500 if self._image_size <= 32 else 100  # memory and time go with the pixels
        network = copy.deepcopy(self.averaged)
        for mine, current in zip(network.buffers(), self.network.buffers(), strict=True):
            mine.copy_(current)
        norms = [m for m in network.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # a plain mean over the batches
            norm.train()
        with torch.no_grad():
            for batch in range(batches if norms else 0):
                rng = self._streams.generator("statistics", batch)
                labels = balanced_labels(batch_size, self.label_set, rng)
                codes = latent_codes(batch_size, self.settings.latent, self.settings.latent_kind, rng)
                network(codes.to(self.device), labels.to(self.device))
        return network.eval()

    def is_finite(self) -> bool:
        """Return whether all weights are finite. One that is not soon spreads to all, and none recovers."""
        weights = (*self.network.parameters(), *self.averaged.parameters())
        return bool(torch.stack([weight.isfinite().all() for weight in weights]).all())

    def state(self) -> dict[str, Tensor]:
        """Return everything needed to continue, as named tensors."""
        tensors = {"updates": self.updates, "label_set": torch.from_numpy(self.label_set)}
        tensors |= {f"network.{k}": v for k, v in self.network.state_dict().items()}
        tensors |= {f"averaged.{k}": v for k, v in self.averaged.state_dict().items()}
        return tensors | optimizer_tensors(self.adam, "adam.")

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""
        self.updates.copy_(tensors["updates"])
        self.label_set = tensors["label_set"].numpy()
        for name, module in (("network.", self.network), ("averaged.", self.averaged)):
            module.load_state_dict({k[len(name) :]: v for k, v in tensors.items() if k.startswith(name)})
        load_optimizer(self.adam, tensors, "adam.")
        self.adam.param_groups[0]["lr"] = self._rate  # loading made a copy

    def _rate_now(self) -> Tensor:
        """Return the learning rate: it rises over `warm_up` updates and, with `decay`, falls linearly."""
        warm = ((self.updates + 1) / max(1, self.options.warm_up)).clamp(max=1.0)
        left = (1.0 - self.updates / max(1, self._planned)).clamp(min=0.0) if self.options.decay else 1.0
        return self.options.learning_rate * warm * left

    @torch.no_grad()
    def _average(self) -> None:
        keep = (self.updates / (self.updates + 10)).clamp(max=self.options.average)  # the start is soon forgotten
        ours: list[Tensor] = list(self.averaged.parameters())
        apart = torch._foreach_sub(list(self.network.parameters()), ours)
        torch._foreach_mul_(apart, 1 - keep)
        torch._foreach_add_(ours, apart)

    def _precision(self) -> AbstractContextManager[object]:
        if self._mixed:
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return nullcontext()
