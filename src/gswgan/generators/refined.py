"""The generator of preset `refined`: first the one that the kernel critic trains, then a denoiser that learns from it.

Everything here is on the public side of the barrier: the denoiser descends by gradients that were released, or that
come from samples of the first generator. The denoiser with its sampler is what is published.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from gswgan.generators import GeneratorSettings, build_network
from gswgan.generators.denoised import DenoisedSampler
from gswgan.generators.generator import Generator
from gswgan.generators.preconditioner import preconditioner_of
from gswgan.generators.scaled_descent import ScaledDescent

_MINE = "denoiser."
"""What the names of the denoiser's tensors begin with in a saved state."""

SAMPLES_AT_ONCE, PIXELS_AT_ONCE = 1024, 2**20


class RefinedGenerator(Generator):
    """A generator in training, and beside it a denoiser with an optimizer and an average of its own."""

    def __init__(self, denoiser: GeneratorSettings, *start: Any, **rest: Any) -> None:
        """`denoiser` is the network that is published; the rest is for the generator of the start."""
        super().__init__(*start, **rest)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(rest["streams"].integer("denoiser weights"))
            shape = {name: rest[name] for name in ("classes", "channels", "image_size")}
            network = build_network(denoiser, **shape)
        assert isinstance(network, DenoisedSampler)
        self.denoised = network.to(self.device)
        self.denoised_average = copy.deepcopy(self.denoised).requires_grad_(False)
        self._denoiser_rate = torch.zeros((), device=self.device)
        self.preconditioner = preconditioner_of(self.denoised, self.device)  # of the gradients of records
        self.descent = ScaledDescent(self.denoised, self.preconditioner)
        self.begin()

    def begin(self) -> None:
        """A stage of the denoiser's training: a new optimizer."""
        self.denoiser_adam = torch.optim.Adam(
            self.denoised.parameters(), lr=self._denoiser_rate, fused=True, capturable=self.device.type == "cuda"
        )

    def descend_denoiser(self, gradient: Tensor, rate: Tensor, keep: Tensor) -> None:
        """One step of Adam with the gradient of all weights, [P]; the averaged weights keep so much of themselves."""
        parameters: list[Tensor] = list(self.denoised.parameters())
        for parameter, part in zip(parameters, gradient.split([value.numel() for value in parameters])):
            parameter.grad = part.view_as(parameter)
        self._denoiser_rate.copy_(rate)
        self.denoiser_adam.step()
        self.average_denoiser(keep)

    @torch.no_grad()
    def average_denoiser(self, keep: Tensor) -> None:
        """The averaged weights keep so much of themselves, and take the rest from the weights as they are."""
        ours: list[Tensor] = list(self.denoised_average.parameters())
        apart = torch._foreach_sub(list(self.denoised.parameters()), ours)
        torch._foreach_mul_(apart, 1 - keep)
        torch._foreach_add_(ours, apart)

    @torch.no_grad()
    def samples(self, count: int) -> tuple[Tensor, Tensor]:
        """Images of the start as it would be released, in [0, 1], and their labels; the same for the same start.

        The denoiser is pre-trained on them.
        """
        network, images, labels = self.first_network(), [], []
        at_once = max(1, min(SAMPLES_AT_ONCE, PIXELS_AT_ONCE // self._image_size**2))
        for first in range(0, count, at_once):
            codes, some = self.latents(min(at_once, count - first), "samples", first)
            with self._precision():
                images.append(network(codes, some).to(torch.float16))
            labels.append(some)
        return torch.cat(images), torch.cat(labels)

    def first_network(self) -> nn.Module:
        """The generator that the kernel critic trained."""
        return super().released_network()

    def released_network(self, **_: Any) -> nn.Module:
        """The averaged denoiser with its sampler."""
        return copy.deepcopy(self.denoised_average).eval()

    def is_finite(self) -> bool:
        """Whether all weights of both are numbers still."""
        weights = (*self.denoised.parameters(), *self.denoised_average.parameters())
        return super().is_finite() and bool(torch.stack([weight.isfinite().all() for weight in weights]).all())

    def state(self) -> dict[str, Tensor]:
        """Everything needed to go on, as named tensors."""
        mine = self.descent.state() | self.preconditioner.state()
        for name, module in (("network", self.denoised), ("averaged", self.denoised_average)):
            mine |= {f"{name}|{key}": value for key, value in module.state_dict().items()}
        for index, slots in self.denoiser_adam.state_dict()["state"].items():
            mine |= {f"adam|{index}|{key}": value for key, value in slots.items()}
        return super().state() | {_MINE + name: value for name, value in mine.items()}

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """The inverse of `state`."""
        super().load_state({name: value for name, value in tensors.items() if not name.startswith(_MINE)})
        mine = {name[len(_MINE) :]: value for name, value in tensors.items() if name.startswith(_MINE)}
        self.descent.load_state(mine)
        self.preconditioner.load_state(mine)
        for name, module in (("network|", self.denoised), ("averaged|", self.denoised_average)):
            module.load_state_dict({key[len(name) :]: value for key, value in mine.items() if key.startswith(name)})
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in mine.items():
            if key.startswith("adam|"):
                _, index, slot = key.split("|")
                state.setdefault(int(index), {})[slot] = value
        groups = self.denoiser_adam.state_dict()["param_groups"]
        self.denoiser_adam.load_state_dict({"state": state, "param_groups": groups})
        self.denoiser_adam.param_groups[0]["lr"] = self._denoiser_rate  # loading made a copy
