"""ONE critic as a textbook writes it: the independent reference for the batched critics.

Everything here is torch's own: nn.Conv2d, nn.Linear, nn.Embedding, torch's spectral norm, autograd's double
backward for the gradient penalty. Nothing is shared with the code it checks but the names of the weights.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm


class PlainCritic(nn.Module):
    """D(x, y) = linear(h) + <embed(y), h> on strided 5x5 convolutions."""

    def __init__(self, image_size: int, channels: int, classes: int, width: int) -> None:
        super().__init__()
        side, inputs, outputs = image_size, channels, width
        convolutions = []
        while side > 4 or len(convolutions) < 2:
            convolutions.append(spectral_norm(nn.Conv2d(inputs, outputs, 5, stride=2, padding=2)))
            side, inputs, outputs = -(-side // 2), outputs, 2 * outputs
        self.convolutions = nn.ModuleList(convolutions)
        self.linear = spectral_norm(nn.Linear(side * side * inputs, 1))
        self.embed = spectral_norm(nn.Embedding(classes, side * side * inputs)) if classes > 1 else None
        self.eval()  # the power iteration runs in `power_iteration` alone

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        hidden = images
        for convolution in self.convolutions:
            hidden = torch.relu(convolution(hidden))
        hidden = hidden.flatten(1)
        scores = self.linear(hidden).squeeze(1)
        if self.embed is not None:
            scores = scores + (self.embed(labels) * hidden).sum(dim=1)
        return scores

    @torch.no_grad()
    def power_iteration(self) -> None:
        """torch's spectral norm takes one step each time a weight is read in training mode."""
        self.train()
        for layer in self._layers().values():
            _ = layer.weight
        self.eval()

    def load_slice(self, params: dict[str, Tensor], buffers: dict[str, Tensor], k: int) -> PlainCritic:
        """Take over critic k of a stack."""
        with torch.no_grad():
            for name, layer in self._layers().items():
                layer.parametrizations.weight.original.copy_(params[f"{name}.weight"][k])
                layer.parametrizations.weight[0]._u.copy_(buffers[f"{name}.u"][k])
                layer.parametrizations.weight[0]._v.copy_(buffers[f"{name}.v"][k])
                if f"{name}.bias" in params:
                    layer.bias.copy_(params[f"{name}.bias"][k])
        return self

    def by_stack_name(self) -> dict[str, nn.Parameter]:
        """The trainable parameters under the names they have in a stack."""
        named = {}
        for name, layer in self._layers().items():
            named[f"{name}.weight"] = layer.parametrizations.weight.original
            if hasattr(layer, "bias"):
                named[f"{name}.bias"] = layer.bias
        return named

    def _layers(self) -> dict[str, nn.Module]:
        layers = {f"conv{i}": layer for i, layer in enumerate(self.convolutions, start=1)}
        layers["linear"] = self.linear
        if self.embed is not None:
            layers["embed"] = self.embed
        return layers


def plain_loss(
    critic: nn.Module,
    real: Tensor,
    real_labels: Tensor,
    fake: Tensor,
    fake_labels: Tensor,
    mix: Tensor,
    *,
    penalty_weight: float,
    drift_penalty: float,
) -> Tensor:
    """WGAN-GP with a drift term, by autograd's double backward."""
    on_real, on_fake = critic(real, real_labels), critic(fake, fake_labels)
    share = mix[:, None, None, None]
    between = (share * real + (1 - share) * fake).requires_grad_()
    (gradient,) = torch.autograd.grad(critic(between, real_labels).sum(), between, create_graph=True)
    penalty = ((gradient.flatten(1).norm(dim=1) - 1) ** 2).mean()
    return on_fake.mean() - on_real.mean() + penalty_weight * penalty + drift_penalty * (on_real**2).mean()
