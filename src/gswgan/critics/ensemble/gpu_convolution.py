"""The convolution of m critics on a GPU as three Triton kernels: no window is ever copied.

With windows(x) the rows of pixels under the kernel and W a critic's weights as a matrix, a convolution and all its
derivatives are three products: y = windows(x) W', x = fold(y W) and W = y' windows(x). Each program works on one tile
of one critic, in an order that depends on the shape alone: no critic can tell who else is there.

Images are [critic, sample, row, column, channel] here, weights [critic, out, row column in]. Triton comes with the
CUDA builds of torch.
"""

# mypy: ignore-errors
from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

Shape = tuple[int, int, int, int]  # side of the images, kernel, stride, padding

EIGHT = 8
"""Channels of `multiply` come in eights: for 3, 5 or 6 of them Triton 3.6 compiles bfloat16 products that are wrong."""


@triton.jit
def _multiply(
    images, weights, bias, out, image_stride, rows,
    SIDE: tl.constexpr, KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, OUT_SIDE: tl.constexpr,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """y = windows(x) W' + bias."""
    window: tl.constexpr = KERNEL * KERNEL * INPUTS
    critic = tl.program_id(2).to(tl.int64)
    images += critic * image_stride
    weights += critic * OUTPUTS * window
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    output = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    sample, place = row // (OUT_SIDE * OUT_SIDE), row % (OUT_SIDE * OUT_SIDE)
    top, left = place // OUT_SIDE * STRIDE - PADDING, place % OUT_SIDE * STRIDE - PADDING
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, window, DEPTH):
        k = start + tl.arange(0, DEPTH)
        if INPUTS % DEPTH == 0:  # one place of the kernel at a time
            tap, channel = start // INPUTS, tl.multiple_of(start % INPUTS, DEPTH) + tl.arange(0, DEPTH)[None, :]
        else:
            tap, channel = (k // INPUTS)[None, :], (k % INPUTS)[None, :]
        y, x = top[:, None] + tap // KERNEL, left[:, None] + tap % KERNEL
        inside = (y >= 0) & (y < SIDE) & (x >= 0) & (x < SIDE) & (row < rows)[:, None] & (k < window)[None, :]
        pixels = images + ((sample[:, None] * SIDE + y) * SIDE + x) * INPUTS + channel
        factor = weights + output[:, None] * window + k[None, :]
        total = tl.dot(
            tl.load(pixels, mask=inside, other=0.0),
            tl.load(factor, mask=(output < OUTPUTS)[:, None] & (k < window)[None, :], other=0.0).T,
            total,
            input_precision=PRECISION,
        )
    if BIAS:
        total += tl.load(bias + critic * OUTPUTS + output, mask=output < OUTPUTS, other=0.0).to(tl.float32)[None, :]
    target = out + critic * rows * OUTPUTS + row[:, None] * OUTPUTS + output[None, :]
    tl.store(target, total.to(out.dtype.element_ty), mask=(row < rows)[:, None] & (output < OUTPUTS)[None, :])


@triton.jit
def _fold(
    values, weights, out, samples,
    SIDE: tl.constexpr, KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, OUT_SIDE: tl.constexpr,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """x = fold(y W). Pixels with the same remainder by the stride meet the same places of the kernel: those at once."""
    window: tl.constexpr = KERNEL * KERNEL * INPUTS
    phases: tl.constexpr = STRIDE * STRIDE
    chunks: tl.constexpr = (OUTPUTS + DEPTH - 1) // DEPTH
    critic = tl.program_id(2).to(tl.int64)
    values += critic * samples * OUT_SIDE * OUT_SIDE * OUTPUTS
    weights += critic * OUTPUTS * window
    phase, tile = tl.program_id(0) % phases, tl.program_id(0) // phases
    first_y, first_x = phase // STRIDE, phase % STRIDE  # the first place of the kernel that meets these pixels
    offset_y = (first_y + STRIDE * PADDING - PADDING) % STRIDE  # and the first of the pixels
    offset_x = (first_x + STRIDE * PADDING - PADDING) % STRIDE
    high, wide = (SIDE - offset_y + STRIDE - 1) // STRIDE, (SIDE - offset_x + STRIDE - 1) // STRIDE
    row = tile * ROWS + tl.arange(0, ROWS)
    channel = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    sample, place = row // (high * wide), row % (high * wide)
    y, x = place // wide * STRIDE + offset_y, place % wide * STRIDE + offset_x
    real = sample < samples
    last_y, last_x = (y + PADDING - first_y) // STRIDE, (x + PADDING - first_x) // STRIDE
    taps_y, taps_x = (KERNEL - first_y + STRIDE - 1) // STRIDE, (KERNEL - first_x + STRIDE - 1) // STRIDE
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for step in range(0, taps_y * taps_x * chunks):
        tap = step // chunks
        output = step % chunks * DEPTH + tl.arange(0, DEPTH)
        tap_y, tap_x = tap // taps_x, tap % taps_x
        from_y, from_x = last_y - tap_y, last_x - tap_x
        inside = real & (from_y >= 0) & (from_y < OUT_SIDE) & (from_x >= 0) & (from_x < OUT_SIDE)
        source = values + ((sample * OUT_SIDE + from_y) * OUT_SIDE + from_x)[:, None] * OUTPUTS + output[None, :]
        k = ((first_y + STRIDE * tap_y) * KERNEL + first_x + STRIDE * tap_x) * INPUTS + channel
        factor = weights + output[:, None] * window + k[None, :]
        total = tl.dot(
            tl.load(source, mask=inside[:, None] & (output < OUTPUTS)[None, :], other=0.0),
            tl.load(factor, mask=(output < OUTPUTS)[:, None] & (channel < INPUTS)[None, :], other=0.0),
            total,
            input_precision=PRECISION,
        )
    target = out + critic * samples * SIDE * SIDE * INPUTS
    target += ((sample * SIDE + y) * SIDE + x)[:, None] * INPUTS + channel[None, :]
    tl.store(target, total.to(out.dtype.element_ty), mask=real[:, None] & (channel < INPUTS)[None, :])


@triton.jit
def _correlate(
    values, images, out, image_stride, rows,
    SIDE: tl.constexpr, KERNEL: tl.constexpr, STRIDE: tl.constexpr, PADDING: tl.constexpr, OUT_SIDE: tl.constexpr,
    INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """W = y' windows(x)."""
    window: tl.constexpr = KERNEL * KERNEL * INPUTS
    critic = tl.program_id(2).to(tl.int64)
    values += critic * rows * OUTPUTS
    images += critic * image_stride
    output = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    k = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    if INPUTS % COLUMNS == 0:
        tap = tl.program_id(1) * COLUMNS // INPUTS
        channel = tl.multiple_of(tl.program_id(1) * COLUMNS % INPUTS, COLUMNS) + tl.arange(0, COLUMNS)[None, :]
    else:
        tap, channel = (k // INPUTS)[None, :], (k % INPUTS)[None, :]
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, rows, DEPTH):
        row = start + tl.arange(0, DEPTH)
        sample, place = row // (OUT_SIDE * OUT_SIDE), row % (OUT_SIDE * OUT_SIDE)
        y = (place // OUT_SIDE * STRIDE - PADDING)[:, None] + tap // KERNEL
        x = (place % OUT_SIDE * STRIDE - PADDING)[:, None] + tap % KERNEL
        inside = (y >= 0) & (y < SIDE) & (x >= 0) & (x < SIDE) & (row < rows)[:, None] & (k < window)[None, :]
        source = values + row[:, None] * OUTPUTS + output[None, :]
        pixels = images + ((sample[:, None] * SIDE + y) * SIDE + x) * INPUTS + channel
        total = tl.dot(
            tl.load(source, mask=(row < rows)[:, None] & (output < OUTPUTS)[None, :], other=0.0).T,
            tl.load(pixels, mask=inside, other=0.0),
            total,
            input_precision=PRECISION,
        )
    target = out + critic * OUTPUTS * window + output[:, None] * window + k[None, :]
    tl.store(target, total.to(out.dtype.element_ty), mask=(output < OUTPUTS)[:, None] & (k < window)[None, :])


def out_side(shape: Shape) -> int:
    """The side of what a convolution of this shape gives."""
    side, kernel, stride, padding = shape
    return (side + 2 * padding - kernel) // stride + 1


def multiply(images: Tensor, weights: Tensor, bias: Tensor | None, shape: Shape) -> Tensor:
    """y = windows(x) W' + bias, [critic, sample, row, column, out]."""
    images, weights = _own(images), weights.contiguous()
    if images.shape[4] > 1 and (odd := -images.shape[4] % EIGHT):
        weights = F.pad(weights.unflatten(2, (-1, images.shape[4])), (0, odd)).flatten(2)
        images = F.pad(images, (0, odd))
    critics, samples, inputs, outputs = len(weights), images.shape[1], images.shape[4], weights.shape[1]
    new, rows = out_side(shape), images.shape[1] * out_side(shape) ** 2
    out = torch.empty(critics, samples, new, new, outputs, dtype=images.dtype, device=images.device)
    tiles = _tiles(outputs, inputs, images)
    grid = (triton.cdiv(rows, tiles["ROWS"]), triton.cdiv(outputs, tiles["COLUMNS"]), critics)
    _multiply[grid](
        images, weights, images if bias is None else bias.contiguous(), out, _apart(images, critics), rows,
        *shape, new, inputs, outputs, bias is not None, **tiles,
    )  # fmt: skip
    return out


def fold(values: Tensor, weights: Tensor, shape: Shape) -> Tensor:
    """x = fold(y W), [critic, sample, row, column, in]."""
    side, kernel, stride, _ = shape
    values, weights = values.contiguous(), weights.contiguous()
    (critics, samples, new, _, outputs), inputs = values.shape, weights.shape[2] // kernel**2
    out = torch.empty(critics, samples, side, side, inputs, dtype=values.dtype, device=values.device)
    tiles = _tiles(inputs, outputs, values)
    most = samples * triton.cdiv(side, stride) ** 2  # pixels of one phase
    grid = (triton.cdiv(most, tiles["ROWS"]) * stride**2, triton.cdiv(inputs, tiles["COLUMNS"]), critics)
    _fold[grid](values, weights, out, samples, *shape, new, inputs, outputs, **tiles)
    return out


def correlate(values: Tensor, images: Tensor, shape: Shape) -> Tensor:
    """W = y' windows(x), [critic, out, row column in]."""
    values, images = values.contiguous(), _own(images)
    (critics, samples, new, _, outputs), inputs = values.shape, images.shape[4]
    window = shape[1] ** 2 * inputs
    out = torch.empty(critics, outputs, window, dtype=values.dtype, device=values.device)
    tiles = _tiles(inputs if inputs >= 16 else window, samples * new**2, values)
    tiles["ROWS"] = max(16, min(tiles["ROWS"], triton.next_power_of_2(outputs)))
    grid = (triton.cdiv(outputs, tiles["ROWS"]), triton.cdiv(window, tiles["COLUMNS"]), critics)
    apart = _apart(images, critics)
    _correlate[grid](values, images, out, apart, samples * new**2, *shape, new, inputs, outputs, **tiles)
    return out


def convolve(images: Tensor, weights: Tensor, bias: Tensor | None, shape: Shape) -> Tensor:
    """`multiply`, with its derivatives."""
    return _Convolve.apply(images, weights, bias, shape)


def transpose(values: Tensor, weights: Tensor, shape: Shape) -> Tensor:
    """`fold`, with its derivatives."""
    return _Transposed.apply(values, weights, shape)


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, weights: Tensor, bias: Tensor | None, shape: Shape) -> Tensor:
        ctx.shape = shape
        ctx.save_for_backward(images, weights)
        return multiply(images, weights, bias, shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        images, weights = ctx.saved_tensors
        wanted, gradient = ctx.needs_input_grad, gradients[0]
        return (
            fold(gradient, weights, ctx.shape) if wanted[0] else None,
            correlate(gradient, images, ctx.shape) if wanted[1] else None,
            gradient.sum(dim=(1, 2, 3)) if wanted[2] else None,
            None,
        )


class _Transposed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, weights: Tensor, shape: Shape) -> Tensor:
        ctx.shape = shape
        ctx.save_for_backward(values, weights)
        return fold(values, weights, shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        values, weights = ctx.saved_tensors
        wanted, gradient = ctx.needs_input_grad, gradients[0]
        return (
            multiply(gradient, weights, None, ctx.shape) if wanted[0] else None,
            correlate(values, gradient, ctx.shape) if wanted[1] else None,
            None,
        )


def _own(images: Tensor) -> Tensor:
    """The images without gaps: those of one critic where all see the same."""
    return images[:1].contiguous() if images.stride(0) == 0 else images.contiguous()


def _apart(images: Tensor, critics: int) -> int:
    """How far apart two critics' images are: not at all where all see the same."""
    return images[0].numel() if len(images) == critics else 0


def _tiles(columns: int, depth: int, like: Tensor) -> dict[str, Any]:
    """The tile of a program. A function of the layer's shape and type alone, so that kernels never vary."""
    half = like.element_size() == 2
    wide = max(16, min(128 if half else 64, triton.next_power_of_2(columns)))
    deep = max(16, min(64 if half else 32, triton.next_power_of_2(depth)))
    return {
        "ROWS": 128, "COLUMNS": wide, "DEPTH": deep, "PRECISION": "ieee" if half else "tf32x3",
        "num_warps": 8 if wide == 128 else 4, "num_stages": 3,
    }  # fmt: skip
