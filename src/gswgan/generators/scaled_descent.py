"""Steps with noisy gradients: momentum, over the one size that they have in all directions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gswgan.generators.preconditioner import Preconditioner

MOMENTUM, SIZE_KEPT = 0.9, 0.99
"""What the mean gradient and its mean square keep of themselves in a step."""


class ScaledDescent:
    """The way of a network's weights by noisy gradients in a preconditioner's coordinates."""

    def __init__(self, network: nn.Module, preconditioner: Preconditioner) -> None:
        self.network, self.preconditioner = network, preconditioner
        self.velocity = torch.zeros_like(preconditioner.scales)
        self.size = torch.zeros((), device=self.velocity.device)

    @torch.no_grad()
    def step(self, gradient: Tensor, rate: Tensor, *, step: int) -> None:
        """Step number `step` with a noisy gradient in the preconditioner's coordinates, [P].

        Noise has one size in all directions, so dividing by the size in each of them (as Adam does) would only take the
        large parts of the signal away.
        """
        gradient = self.preconditioner.back(gradient)
        self.velocity.mul_(MOMENTUM).add_(gradient, alpha=1 - MOMENTUM)
        self.size.mul_(SIZE_KEPT).add_(gradient.square().mean(), alpha=1 - SIZE_KEPT)
        size = (self.size / (1 - SIZE_KEPT ** (step + 1))).sqrt().clamp(min=torch.finfo(torch.float32).tiny)
        update = self.velocity * (rate / (size * (1 - MOMENTUM ** (step + 1))))
        parameters: list[Tensor] = list(self.network.parameters())
        for parameter, part in zip(parameters, update.split([value.numel() for value in parameters])):
            parameter.sub_(part.view_as(parameter))

    def state(self) -> dict[str, Tensor]:
        """Everything needed to go on, as named tensors, beside the weights."""
        return {"velocity": self.velocity, "size": self.size}

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """The inverse of `state`."""
        for name, held in self.state().items():
            held.copy_(tensors[name])


def weights_of(network: nn.Module) -> Tensor:
    """All weights of a network in their order, [P]."""
    return torch.cat([value.detach().flatten() for value in network.parameters()])


@torch.no_grad()
def put_weights(network: nn.Module, weights: Tensor) -> None:
    """The inverse of `weights_of`."""
    parameters: list[Tensor] = list(network.parameters())
    for value, part in zip(parameters, weights.split([value.numel() for value in parameters])):
        value.copy_(part.view_as(value))
