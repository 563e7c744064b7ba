"""A class-conditional denoiser: a U-Net that looks at each image alone, and the preconditioning of Karras et al. 2022.

Images are [n, side, side, channels] here, and all weights are matrices: a convolution's is [out, k k in].
Who computes the products can be exchanged (`Operations`): training with DP-SGD wants the gradient of each record by
itself (critics/refined/operations.py), drawing images wants nothing of that kind.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

DATA_STD = 0.6
"""Standard deviation of pixels in [-1, 1], about. A public constant: it is never measured on data."""

FREQUENCIES = 16
"""Waves that the noise level is written in."""

TINY = 12
"""Images up to this side are halved once, larger ones twice."""

BLOCKS = (1, 2, 3)
"""Residual blocks on the way down, and as many on the way up, at each size."""


class Operations(Protocol):
    """The two operations that have to do with weights or with most of the memory."""

    def convolve(self, images: Tensor, weight: Tensor, kernel: int, stride: int) -> Tensor:
        """A convolution of [n, h, w, in] by a matrix of weights, padded to keep the size (over the stride)."""

    def activate(self, images: Tensor, change: Tensor) -> Tensor:
        """silu(norm(x) (1 + scale) + shift), where [scale, shift] is `change`, [n, 2 c]; the norm is over channels."""


class Plain:
    """The operations as PyTorch has them."""

    def convolve(self, images: Tensor, weight: Tensor, kernel: int, stride: int) -> Tensor:
        """See `Operations`."""
        maps, square = images.permute(0, 3, 1, 2), weight.unflatten(1, (kernel, kernel, -1)).permute(0, 3, 1, 2)
        return F.conv2d(maps, square, stride=stride, padding=kernel // 2).permute(0, 2, 3, 1)

    def activate(self, images: Tensor, change: Tensor) -> Tensor:
        """See `Operations`."""
        scale, shift = change[:, None, None].chunk(2, dim=-1)
        return F.silu(F.layer_norm(images, images.shape[-1:]) * (1 + scale) + shift)


PLAIN = Plain()


class Denoiser(nn.Module):
    """F(x, noise level, class): what the preconditioning makes a denoised image of."""

    def __init__(self, *, image_size: int, channels: int, classes: int, width: int) -> None:
        super().__init__()
        self.image_size, self.channels, self.classes = image_size, channels, classes
        self.embedding = 4 * width  # numbers that tell the blocks which class and which noise level it is
        self.blocks = BLOCKS[:2] if image_size <= TINY else BLOCKS
        sizes = [width, *(2 * width for _ in self.blocks[1:])]
        self.halvings = len(sizes) - 1
        self._changes: list[int] = []  # channels of each activation, in the order of their use
        self._shapes: dict[str, tuple[int, int]] = {}
        self._describe(sizes)
        weights = {}
        for name, (outputs, inputs) in self._shapes.items():
            scale = 0.0 if name.endswith("last") else inputs**-0.5
            weights[name] = nn.Parameter(torch.randn(outputs, inputs) * scale)
        self.weights = nn.ParameterDict(weights)
        waves = 2 * math.pi * 2.0 ** torch.linspace(-2, 3, FREQUENCIES)
        self.waves: Tensor
        self.register_buffer("waves", waves, persistent=False)

    def _describe(self, sizes: list[int]) -> None:
        """The shapes of all weights, in the order of their use."""
        shapes = self._shapes
        shapes["embed_first"] = (self.embedding, 2 * FREQUENCIES + self.classes + 1)
        shapes["embed_second"] = (self.embedding, self.embedding)
        changes_at = len(shapes)
        shapes["enter"] = (sizes[0], 9 * (self.channels + 1))
        for level, size in enumerate(sizes):
            if level:
                shapes[f"down{level}"] = (size, 9 * sizes[level - 1])
            for block in range(self.blocks[level]):
                self._describe_block(f"down{level}_{block}", size, size)
        now = sizes[-1]
        for level in reversed(range(len(sizes))):
            for block in range(self.blocks[level]):
                self._describe_block(f"up{level}_{block}", now + sizes[level] if block == 0 else now, sizes[level])
                now = sizes[level]
        self._changes.append(now)
        shapes["leave_last"] = (self.channels, 9 * now)
        names = list(shapes)
        ordered = [*names[:changes_at], "changes", *names[changes_at:]]
        shapes["changes"] = (2 * sum(self._changes), self.embedding)
        self._shapes = {name: shapes[name] for name in ordered}

    def _describe_block(self, name: str, incoming: int, outgoing: int) -> None:
        self._changes += [incoming, outgoing]
        self._shapes[f"{name}_first"] = (outgoing, 9 * incoming)
        self._shapes[f"{name}_last"] = (outgoing, 9 * outgoing)
        if incoming != outgoing:
            self._shapes[f"{name}_past"] = (outgoing, incoming)

    def forward(
        self,
        images: Tensor,
        level: Tensor,
        labels: Tensor,
        weights: Mapping[str, Tensor] | None = None,
        operations: Operations = PLAIN,
    ) -> Tensor:
        """F of [n, side, side, channels] at ln(noise) / 4, [n]; other `weights` of the same names may be given."""
        found: Mapping[str, Tensor] = dict(self.weights.items()) if weights is None else weights
        kind = found["enter"].dtype

        def product(images: Tensor, name: str, stride: int = 1) -> Tensor:
            kernel = 1 if name.endswith("past") else 3
            return operations.convolve(images, found[name], kernel, stride)

        def full(values: Tensor, name: str) -> Tensor:
            return operations.convolve(values[:, None, None], found[name], 1, 1)[:, 0, 0]

        angles = level[:, None] * self.waves
        code = F.one_hot(labels, self.classes).to(angles)
        facts = torch.cat([angles.cos(), angles.sin(), code, torch.ones_like(code[:, :1])], dim=1).to(kind)
        hidden = F.silu(full(F.silu(full(facts, "embed_first")), "embed_second"))
        changes = iter(full(hidden, "changes").split([2 * size for size in self._changes], dim=1))

        def block(images: Tensor, name: str) -> Tensor:
            inner = product(operations.activate(images, next(changes)), f"{name}_first")
            inner = product(operations.activate(inner, next(changes)), f"{name}_last")
            return inner + (product(images, f"{name}_past") if f"{name}_past" in self._shapes else images)

        missing = -self.image_size % 2**self.halvings
        images = F.pad(images, (0, 0, 0, missing, 0, missing))
        maps = product(torch.cat([images, torch.ones_like(images[..., :1])], dim=-1).to(kind), "enter")
        passed = []
        for level_now, count in enumerate(self.blocks):
            if level_now:
                maps = product(maps, f"down{level_now}", 2)
            for index in range(count):
                maps = block(maps, f"down{level_now}_{index}")
            passed.append(maps)
        for level_now in reversed(range(len(self.blocks))):
            if level_now < self.halvings:
                maps = repeated(maps)
            maps = torch.cat([maps, passed[level_now]], dim=-1)
            for index in range(self.blocks[level_now]):
                maps = block(maps, f"up{level_now}_{index}")
        out = product(operations.activate(maps, next(changes)), "leave_last").to(images.dtype)
        return out[:, : self.image_size, : self.image_size]


def repeated(maps: Tensor) -> Tensor:
    """Twice the side of [n, h, w, c]: each pixel four times."""
    n, high, wide, channels = maps.shape
    spread = maps[:, :, None, :, None].expand(n, high, 2, wide, 2, channels)
    return spread.reshape(n, 2 * high, 2 * wide, channels)


def scales(noise: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """c_skip, c_out, c_in and c_noise of Karras et al. 2022 (Table 1), for noise levels [n]."""
    square = noise**2 + DATA_STD**2
    root = square.sqrt()
    return DATA_STD**2 / square, noise * DATA_STD / root, 1 / root, noise.log() / 4


def loss_of_draws(
    denoiser: Denoiser,
    images: Tensor,
    noise: Tensor,
    level: Tensor,
    labels: Tensor,
    weights: Mapping[str, Tensor] | None = None,
    operations: Operations = PLAIN,
) -> Tensor:
    """|F - what F should be|^2, a mean over pixels, of images [n, side, side, c] in [-1, 1] with noise times `level`.

    It is lambda(level) |D(x + noise) - x|^2 with lambda = 1 / c_out^2.
    """
    skip, out, scaled, told = (value[:, None, None, None] for value in scales(level))
    noisy = images + noise * level[:, None, None, None]
    found = denoiser(scaled * noisy, told.flatten(), labels, weights, operations)
    return (found - (images - skip * noisy) / out).square().flatten(1).mean(dim=1)
