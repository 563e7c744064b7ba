"""The networks of K critics as one batched model: the paper's DCGAN critic with stacked parameters.

Every parameter has a leading axis of critics, and a layer of all critics is one call. A critic reads and writes only
its own slice, and its numbers do not depend, to the last bit, on its place in the stack or on the other critics (see
`convolution.py`).
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gswgan.critics.ensemble.convolution import (
    convolve,
    convolve_transposed,
    from_left,
    from_right,
    row_norm,
    row_sum,
    spread,
)
from gswgan.errors import PlanError

Parameters = dict[str, Tensor]  # "conv1.weight": [K, out, in, 5, 5], "conv1.bias": [K, out], ...; trainable
Buffers = dict[str, Tensor]  # "conv1.u": [K, out], "conv1.v": [K, 25 in], ...: the singular vectors followed

KERNEL, STRIDE, PADDING = 5, 2, 2
INITIAL_POWER_ITERATIONS = 5

WEIGHTS_PER_CHUNK = {"cpu": 2**20, "cuda": 2**26}
"""Weights whose first power iterations are computed together: a CPU's cache is small, and a GPU needs large work."""


@dataclass(frozen=True, kw_only=True)
class CriticShape:
    """The images that a critic takes, and its width: `width`, 2 `width`, 4 `width`, ... channels."""

    image_size: int
    channels: int
    classes: int
    width: int

    def __post_init__(self) -> None:
        if not 8 <= self.image_size <= 128:
            raise PlanError("image_size", self.image_size, "a side from 8 to 128", "Resize the images.")
        if self.channels not in (1, 3):
            raise PlanError("channels", self.channels, "1 (grey) or 3 (colour)")
        if self.classes < 1:
            raise PlanError("classes", self.classes, "at least 1", "Use 1 for images without labels.")
        if self.width < 2:
            raise PlanError("width", self.width, "at least 2")

    @property
    def sides(self) -> list[int]:
        """The side before each convolution and after the last: halved until at most 4, at least twice."""
        sides = [self.image_size]
        while sides[-1] > 4 or len(sides) < 3:
            sides.append((sides[-1] + 1) // 2)
        return sides

    @property
    def features(self) -> int:
        """The number of inputs of the head."""
        return self.sides[-1] ** 2 * self.width * 2 ** (len(self.sides) - 2)

    @property
    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Name and shape of every parameter of one critic."""
        shapes: dict[str, tuple[int, ...]] = {}
        inputs = self.channels
        for layer in range(1, len(self.sides)):
            outputs = self.width * 2 ** (layer - 1)
            shapes[f"conv{layer}.weight"] = (outputs, inputs, KERNEL, KERNEL)
            shapes[f"conv{layer}.bias"] = (outputs,)
            inputs = outputs
        shapes["linear.weight"] = (1, self.features)
        shapes["linear.bias"] = (1,)
        if self.classes > 1:
            shapes["embed.weight"] = (self.classes, self.features)
        return shapes


def init_critics(
    shape: CriticShape,
    count: int,
    *,
    seed: int,
    first: int = 0,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> tuple[Parameters, Buffers]:
    """Draw critics from number `first` on; those of critic k depend on (seed, k) alone, not on `count` or `device`.

    Weights and biases are uniform within 1/sqrt(inputs) of 0, the label embedding too.
    """
    if count < 1:
        raise PlanError("count", count, "at least one critic")
    params = {name: torch.empty(count, *size) for name, size in shape.parameters.items()}
    buffers: Buffers = {}
    for name in _layers(params):
        rows, columns = params[f"{name}.weight"].flatten(2).shape[1:]
        buffers |= {f"{name}.u": torch.empty(count, rows), f"{name}.v": torch.empty(count, columns)}

    def draw(k: int) -> None:
        stream = np.random.Generator(np.random.SFC64([seed, first + k]))
        for name, value in (params | buffers).items():
            own, owner = value[k].numpy(), params[f"{name.split('.')[0]}.weight"]
            stream.random(out=own, dtype=np.float32)
            own -= np.float32(0.5)
            own *= np.float32(2 * owner[0, 0].numel() ** -0.5)

    with ThreadPoolExecutor() as pool:
        list(pool.map(draw, range(count)))
    params, buffers = ({name: value.to(device) for name, value in part.items()} for part in (params, buffers))
    critics_per_chunk = max(
        1, WEIGHTS_PER_CHUNK[torch.device(device).type] // sum(value[0].numel() for value in params.values())
    )
    for start in range(0, count, critics_per_chunk):
        some, own = (_cut(part, slice(start, start + critics_per_chunk)) for part in (params, buffers))
        for _ in range(INITIAL_POWER_ITERATIONS):
            own = power_iteration(some, own)
        for name, value in own.items():
            buffers[name][start : start + critics_per_chunk] = value
    return (
        {name: value.to(dtype) for name, value in params.items()},
        {name: value.to(dtype) for name, value in buffers.items()},
    )


@torch.no_grad()
def power_iteration(params: Parameters, buffers: Buffers) -> Buffers:
    """Make one step of the spectral norm's power iteration for each matrix of each critic: u = Wv, v = W'u."""
    new: Buffers = {}
    for name in _layers(params):
        matrix = params[f"{name}.weight"].flatten(2)
        u = from_right(matrix, buffers[f"{name}.v"])
        u = u / row_norm(u)[:, None]
        v = from_left(u, matrix)
        new |= {f"{name}.u": u, f"{name}.v": v / row_norm(v)[:, None]}
    return new


@dataclass(frozen=True, kw_only=True)
class Weights:
    """The weights of m critics, each divided by its spectral norm."""

    convolutions: list[tuple[Tensor, Tensor]]  # ([m, out, in, 5, 5], [m, out]), in the type computed in
    head: Tensor  # [m, 1 + classes, channels, side, side]: the linear head, then the label embedding
    head_bias: Tensor  # [m, 1]


def normalize(params: Parameters, buffers: Buffers, compute_dtype: torch.dtype | None = None) -> Weights:
    """Divide every weight by its spectral norm.

    `compute_dtype` is the type of the convolutions; spectral norms, head and gradients keep that of `params`.
    """
    dtype = compute_dtype or params["linear.weight"].dtype
    normalized = {
        name: _OverNorm.apply(
            params[f"{name}.weight"],
            buffers[f"{name}.u"],
            buffers[f"{name}.v"],
            dtype if name.startswith("conv") else params["linear.weight"].dtype,
        )
        for name in _layers(params)
    }
    convolutions = [
        (weight, params[f"{name}.bias"].to(dtype)) for name, weight in normalized.items() if name.startswith("conv")
    ]
    head = torch.cat([normalized[name] for name in ("linear", "embed") if name in normalized], dim=1)
    channels = convolutions[-1][0].shape[1]
    side = math.isqrt(head.shape[2] // channels)
    return Weights(
        convolutions=convolutions,
        head=head.unflatten(2, (channels, side, side)),
        head_bias=params["linear.bias"],
    )


class _OverNorm(torch.autograd.Function):
    """W / (u' W v) in another type; u and v are constants, the gradient flows through W in both places."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, u: Tensor, v: Tensor, dtype: torch.dtype) -> Tensor:
        matrix = weight.flatten(2)
        if weight.is_cuda:
            norm = row_sum(from_left(u, matrix) * v)
            ctx.save_for_backward(weight, norm, u, v)
            last = weight.movedim(2, -1)  # channels last, as the convolution reads it
            out = torch.empty(last.shape, dtype=dtype, device=weight.device)
            return torch.div(last, norm.view(-1, *(1,) * (last.ndim - 1)), out=out).movedim(-1, 2)
        norm = row_sum((matrix * u[:, :, None] * v[:, None, :]).flatten(1))[:, None, None]
        normalized = matrix / norm
        ctx.save_for_backward(normalized, norm, u, v)
        return normalized.view_as(weight).to(dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        normalized, norm, u, v = ctx.saved_tensors
        if normalized.is_cuda:
            from gswgan.critics.ensemble.gpu_weights import over_norm_gradient  # the same in two passes

            return over_norm_gradient(gradients[0], normalized, norm, u, v), None, None, None
        gradient = gradients[0].flatten(2).to(normalized.dtype)
        along = row_sum((gradient * normalized).flatten(1))[:, None]
        new = (gradient - (along * u)[:, :, None] * v[:, None, :]) / norm
        return new.view_as(gradients[0]), None, None, None


def score(weights: Weights, images: Tensor, labels: Tensor) -> Tensor:
    """Return D(x, y) = linear(h) + <embed(y), h>, h the features after the last convolution, of m critics.

    Each critic has its own batch: images [m, B, c, h, w] and labels [m, B] give [m, B]. One batch for all critics may
    be passed as `images.expand(m, ...)`.
    """
    hidden = _activations(weights, images)[-1].to(weights.head.dtype)
    side = hidden.shape[3]
    answers = convolve(hidden, weights.head, None, stride=side, padding=0).flatten(2).transpose(0, 1)
    return (answers * _selector(weights, labels)).sum(dim=2) + spread(weights.head_bias, labels.shape[1])


def image_gradient(weights: Weights, images: Tensor, labels: Tensor) -> Tensor:
    """Return the gradient of each D(x, y) with respect to its x, [m, B, c, h, w].

    D is piecewise linear in x. Where it is linear its gradient is the product of the transposed layers and
    the ReLU masks, and that product is written out here: an ordinary function of the weights, so that the
    gradient penalty needs one backward pass and not a second one through the first.
    """
    with torch.no_grad():
        activations = _activations(weights, images)
    selector = _selector(weights, labels).transpose(0, 1)[:, :, :, None, None]
    side = activations[-1].shape[3]
    gradient = convolve_transposed(selector, weights.head, stride=side, padding=0, side=side)
    gradient = gradient.to(activations[-1].dtype)
    for layer in reversed(range(len(weights.convolutions))):
        gradient = gradient * (activations[layer + 1] > 0)
        weight, side = weights.convolutions[layer][0], activations[layer].shape[3]
        gradient = convolve_transposed(gradient, weight, stride=STRIDE, padding=PADDING, side=side)
    return gradient.transpose(0, 1)


def _activations(weights: Weights, images: Tensor) -> list[Tensor]:
    """Return the images and the output of each convolution with ReLU, each [sample, critic, channel, row, column]."""
    activations = [images.transpose(0, 1).to(weights.convolutions[0][0].dtype)]
    for weight, bias in weights.convolutions:
        linear = convolve(activations[-1], weight, bias, stride=STRIDE, padding=PADDING)
        activations.append(torch.relu(linear))
    return activations


def _selector(weights: Weights, labels: Tensor) -> Tensor:
    """Return [m, B, 1 + classes]: a 1 for the linear head, then the one-hot label (without labels, only the 1).

    Products with it replace indexing, whose backward pass adds in an order that may vary.
    """
    classes = torch.arange(-1, weights.head.shape[1] - 1, device=labels.device)
    return ((labels[:, :, None] == classes) | (classes == -1)).to(weights.head.dtype)


def _layers(params: Parameters) -> list[str]:
    return [name.removesuffix(".weight") for name in params if name.endswith(".weight")]


def _cut(stack: dict[str, Tensor], part: slice) -> dict[str, Tensor]:
    return {name: value[part] for name, value in stack.items()}
