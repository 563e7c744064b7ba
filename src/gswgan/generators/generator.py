"""A generator in training: the network, its optimizer and its moving average.

Everything here happens on the public side of the barrier: it is post-processing of what was released.
"""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from gswgan.generators import GeneratorSettings, build_network
from gswgan.generators.latent import balanced_labels, latent_codes
from gswgan.privacy import Streams


@dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """How the generator descends. Not private: any choice is post-processing."""

    learning_rate: float
    betas: tuple[float, float] = (0.5, 0.99)
    warm_up: int = 0
    decay: bool = False
    average: float = 0.99


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
        self.label_set = np.arange(classes)
        self.device, self._streams, self._planned = device, streams, updates
        self._mixed = mixed_precision
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(streams.integer("generator weights"))
            network = build_network(settings, classes=classes, channels=channels, image_size=image_size)
        self.network = network.to(device)
        if device.type == "cuda":
            self.network = self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.averaged = copy.deepcopy(self.network).requires_grad_(False)
        self.adam = torch.optim.Adam(self.network.parameters(), lr=optimizer.learning_rate, betas=optimizer.betas)
        self.updates = 0

    def sample(self, count: int, *index: int | str) -> tuple[Tensor, Tensor]:
        """Fakes G(z, y) that carry their graph, with labels; z and y belong to `index` alone."""
        rng = self._streams.generator("latent", *index)
        labels = balanced_labels(count, self.label_set, rng)
        codes = latent_codes(count, self.settings.latent, self.settings.latent_kind, rng)
        labels = labels.to(self.device)
        with self._precision():
            return self.network(codes.to(self.device), labels), labels

    @torch.no_grad()
    def fakes(self, count: int, *index: int | str) -> tuple[Tensor, Tensor]:
        """Fakes for critics to learn from: no graph."""
        return self.sample(count, *index)

    def descend(self, fake: Tensor, upstream: Tensor) -> None:
        """theta_G <- theta_G - eta_G (1/B) sum_i upstream_i . J G(z_i): the chain-rule equation, then Adam."""
        for group in self.adam.param_groups:
            group["lr"] = self.options.learning_rate * self._rate_now()
        self.adam.zero_grad(set_to_none=True)
        fake.backward(gradient=upstream / fake.shape[0])
        self.adam.step()
        self.updates += 1
        self._average()

    def released_network(self, *, batches: int = 20, batch_size: int = 500) -> nn.Module:
        """The averaged network, its batch statistics estimated anew from its own samples, ready to be published."""
        network = copy.deepcopy(self.averaged)
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

    def state(self) -> dict[str, Tensor]:
        """Everything needed to go on, as named tensors."""
        tensors = {"updates": torch.tensor(self.updates), "label_set": torch.from_numpy(self.label_set)}
        tensors |= {f"network.{k}": v for k, v in self.network.state_dict().items()}
        tensors |= {f"averaged.{k}": v for k, v in self.averaged.state_dict().items()}
        for index, slots in self.adam.state_dict()["state"].items():
            tensors |= {f"adam.{index}.{k}": v for k, v in slots.items()}
        return tensors

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """The inverse of `state`."""
        self.updates, self.label_set = int(tensors["updates"]), tensors["label_set"].numpy()
        for name, module in (("network.", self.network), ("averaged.", self.averaged)):
            module.load_state_dict({k[len(name) :]: v for k, v in tensors.items() if k.startswith(name)})
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            if key.startswith("adam."):
                _, index, slot = key.split(".")
                state.setdefault(int(index), {})[slot] = value
        self.adam.load_state_dict({"state": state, "param_groups": self.adam.state_dict()["param_groups"]})

    def _rate_now(self) -> float:
        warm = min(1.0, (self.updates + 1) / max(1, self.options.warm_up))
        left = 1.0 - self.updates / max(1, self._planned) if self.options.decay else 1.0
        return warm * max(0.0, left)

    @torch.no_grad()
    def _average(self) -> None:
        keep = min(self.options.average, self.updates / (self.updates + 10))  # the start is soon forgotten
        ours: list[Tensor] = list(self.averaged.parameters())
        theirs: list[Tensor] = list(self.network.parameters())
        torch._foreach_lerp_(ours, theirs, 1.0 - keep)
        for mine, current in zip(self.averaged.buffers(), self.network.buffers()):
            mine.copy_(current)

    def _precision(self) -> AbstractContextManager[object]:
        if self._mixed:
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return nullcontext()
