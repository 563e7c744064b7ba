"""What happens to the weights of m critics in an update, on a GPU: Triton kernels that read and write them once.

Weights are [critic, out, in, row, column], gradients too, but with their channels last in memory. (See also
`gpu_convolution.py`.)
"""

# mypy: ignore-errors
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gswgan.critics.ensemble.convolution import row_sum


@triton.jit
def _adam(
    values, gradients, means, squares, scale, shift, size, mean_share, square_share, square_keep,
    ROWS: tl.constexpr,
):  # fmt: skip
    """`adam.adam_step` for one parameter: all that it reads and writes, once."""
    critic = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    real, place = place < size, critic * size + place
    gradient = tl.load(gradients + place, mask=real, other=0.0).to(tl.float32)
    mean = tl.load(means + place, mask=real, other=0.0)
    mean += mean_share * (gradient - mean)
    square = square_keep * tl.load(squares + place, mask=real, other=0.0) + square_share * gradient * gradient
    step = mean / (tl.sqrt(square) * tl.load(scale + critic) + tl.load(shift + critic))
    tl.store(means + place, mean, mask=real)
    tl.store(squares + place, square, mask=real)
    tl.store(values + place, tl.load(values + place, mask=real, other=0.0) - step, mask=real)


def adam(
    values: Tensor, gradients: Tensor, means: Tensor, squares: Tensor, scale: Tensor, shift: Tensor,
    betas: tuple[float, float],
) -> None:  # fmt: skip
    """m <- b1 m + (1 - b1) g; v <- b2 v + (1 - b2) g^2; value <- value - m / (sqrt(v) scale + shift), in place."""
    size = values[0].numel()
    grid = (triton.cdiv(size, 1024), len(values))
    _adam[grid](
        values, gradients.contiguous(), means, squares, scale.float(), shift.float(), size,
        1 - betas[0], 1 - betas[1], betas[1], ROWS=1024,
    )  # fmt: skip


@triton.jit
def _along(
    gradients, weights, out, rows,
    INPUTS: tl.constexpr, PLACES: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Compute the part of each output in <gradient, W>."""
    row = tl.program_id(1).to(tl.int64) * rows + tl.program_id(0)
    k = tl.arange(0, ROWS)
    real = k < INPUTS * PLACES
    gradient = tl.load(gradients + row * INPUTS * PLACES + k, mask=real, other=0.0).to(tl.float32)
    place = k % INPUTS * PLACES + k // INPUTS  # a gradient has its channels last, a weight its places
    weight = tl.load(weights + row * INPUTS * PLACES + place, mask=real, other=0.0)
    tl.store(out + row, tl.sum(gradient * weight))


@triton.jit
def _across(
    gradients, norm, share, u, v, out, rows,
    INPUTS: tl.constexpr, PLACES: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """(gradient - share u v') / norm."""
    critic = tl.program_id(1).to(tl.int64)
    row = critic * rows + tl.program_id(0)
    k = tl.arange(0, ROWS)
    real = k < INPUTS * PLACES
    place = k % PLACES * INPUTS + k // PLACES
    gradient = tl.load(gradients + row * INPUTS * PLACES + place, mask=real, other=0.0).to(tl.float32)
    along = tl.load(share + critic) * tl.load(u + row) * tl.load(v + critic * INPUTS * PLACES + k, mask=real, other=0.0)
    tl.store(out + row * INPUTS * PLACES + k, (gradient - along) / tl.load(norm + critic), mask=real)


def over_norm_gradient(gradient: Tensor, weight: Tensor, norm: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """The gradient in W of what has this gradient in W / norm, norm = u' W v: (G - <G, W / norm> u v') / norm."""
    inputs, places = weight.shape[2], weight[0, 0, 0].numel()
    last = gradient.movedim(2, -1).contiguous()  # as `correlate` gives it
    grid, tile = (weight.shape[1], len(weight)), triton.next_power_of_2(inputs * places)
    options = {"INPUTS": inputs, "PLACES": places, "ROWS": tile, "num_warps": 8 if tile >= 2048 else 4}
    parts, out = torch.empty_like(u), torch.empty_like(weight)
    _along[grid](last, weight, parts, weight.shape[1], **options)
    share = row_sum(parts) / norm
    _across[grid](last, norm, share, u, v, out, weight.shape[1], **options)
    return out
