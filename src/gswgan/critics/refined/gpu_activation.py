"""silu(norm(x) (1 + scale) + shift) on a GPU: one Triton kernel forward, one backward, each a program per image.

An image's sums over its pixels are taken in an order that depends on the shape alone.
"""

# mypy: ignore-errors
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

SLACK = tl.constexpr(1e-5)
"""Added to the variance, as torch's layer norm does."""


@triton.jit
def _forward(
    images, changes, out, change_stride,
    PIXELS: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, COLUMNS)
    here = channel < CHANNELS
    scale = 1.0 + tl.load(changes + image * change_stride + channel, mask=here, other=0.0).to(tl.float32)
    shift = tl.load(changes + image * change_stride + CHANNELS + channel, mask=here, other=0.0).to(tl.float32)
    for start in range(0, PIXELS, ROWS):
        pixel = start + tl.arange(0, ROWS)
        place = image * PIXELS * CHANNELS + pixel[:, None] * CHANNELS + channel[None, :]
        real = (pixel < PIXELS)[:, None] & here[None, :]
        values = tl.load(images + place, mask=real, other=0.0).to(tl.float32)
        centred = tl.where(real, values - (tl.sum(values, axis=1) / CHANNELS)[:, None], 0.0)
        spread = tl.rsqrt(tl.sum(centred * centred, axis=1) / CHANNELS + SLACK)
        changed = centred * spread[:, None] * scale[None, :] + shift[None, :]
        tl.store(out + place, (changed * tl.sigmoid(changed)).to(out.dtype.element_ty), mask=real)


@triton.jit
def _backward(
    images, changes, gradients, before, of_changes, change_stride,
    PIXELS: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, COLUMNS)
    here = channel < CHANNELS
    scale = 1.0 + tl.load(changes + image * change_stride + channel, mask=here, other=0.0).to(tl.float32)
    shift = tl.load(changes + image * change_stride + CHANNELS + channel, mask=here, other=0.0).to(tl.float32)
    of_scale = tl.zeros((COLUMNS,), tl.float32)
    of_shift = tl.zeros((COLUMNS,), tl.float32)
    for start in range(0, PIXELS, ROWS):
        pixel = start + tl.arange(0, ROWS)
        place = image * PIXELS * CHANNELS + pixel[:, None] * CHANNELS + channel[None, :]
        real = (pixel < PIXELS)[:, None] & here[None, :]
        values = tl.load(images + place, mask=real, other=0.0).to(tl.float32)
        centred = tl.where(real, values - (tl.sum(values, axis=1) / CHANNELS)[:, None], 0.0)
        spread = tl.rsqrt(tl.sum(centred * centred, axis=1) / CHANNELS + SLACK)
        normed = centred * spread[:, None]
        changed = normed * scale[None, :] + shift[None, :]
        gate = tl.sigmoid(changed)
        gradient = tl.load(gradients + place, mask=real, other=0.0).to(tl.float32)
        inner = gradient * gate * (1.0 + changed * (1.0 - gate))
        of_scale += tl.sum(inner * normed, axis=0)
        of_shift += tl.sum(inner, axis=0)
        inner *= scale[None, :]
        mean = tl.sum(inner, axis=1) / CHANNELS
        along = tl.sum(inner * normed, axis=1) / CHANNELS
        found = spread[:, None] * (inner - mean[:, None] - normed * along[:, None])
        tl.store(before + place, found.to(before.dtype.element_ty), mask=real)
    target = of_changes + image * 2 * CHANNELS + channel
    tl.store(target, of_scale.to(of_changes.dtype.element_ty), mask=here)
    tl.store(target + CHANNELS, of_shift.to(of_changes.dtype.element_ty), mask=here)


def activate(images: Tensor, change: Tensor) -> Tensor:
    """[n, h, w, c] and [n, 2 c] (scale and shift) to [n, h, w, c], with its derivatives."""
    return _Activate.apply(images, change)


class _Activate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, change: Tensor) -> Tensor:
        images = images.contiguous()
        ctx.save_for_backward(images, change)
        out = torch.empty_like(images)
        _forward[(len(images),)](images, change, out, change.stride(0), **_tiles(images))
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        images, change = ctx.saved_tensors
        before, of_change = (
            torch.empty_like(images),
            torch.empty(change.shape, dtype=change.dtype, device=change.device),
        )
        _backward[(len(images),)](
            images, change, gradients[0].contiguous(), before, of_change, change.stride(0), **_tiles(images)
        )
        return before, of_change


def _tiles(images: Tensor) -> dict[str, int]:
    """The tile of a program: a function of the shape of one image alone."""
    pixels, channels = images.shape[1] * images.shape[2], images.shape[3]
    columns = triton.next_power_of_2(channels)
    rows = max(1, min(triton.next_power_of_2(pixels), 4096 // columns))
    return {"PIXELS": pixels, "CHANNELS": channels, "ROWS": rows, "COLUMNS": columns, "num_warps": 4}
