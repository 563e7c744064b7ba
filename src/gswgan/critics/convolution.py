"""One convolution of m critics at once, and its transpose.

Whatever the place of a critic in the stack and whoever its neighbours are, its numbers must come out the same
to the last bit: the privacy argument for drawing critics at random rests on it. That decides the form:

* On the CPU, a grouped convolution. It is also the fastest there. (Batched matrix products are out: in thin
  matrices their last bit depends on the alignment of the memory, which varies with the place.)
* On a GPU, "copy the windows, multiply by a matrix": there a batched product treats all its matrices alike
  and adds in a fixed order, and it is several times faster than a grouped convolution.

Images are [sample, critic, channel, row, column] here; weights are [critic, out, in, row, column].
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def convolve(images: Tensor, weight: Tensor, bias: Tensor, *, stride: int, padding: int) -> Tensor:
    """Each critic's convolution of its own images; `bias` is [critic, out]."""
    form = _convolve_windows if images.is_cuda else _convolve_grouped
    return form(images, weight, bias, stride, padding)


def convolve_transposed(images: Tensor, weight: Tensor, *, stride: int, padding: int, side: int) -> Tensor:
    """The transpose of `convolve` as a matrix: from the shape of its output back to images of side `side`."""
    form = _transposed_windows if images.is_cuda else _transposed_grouped
    return form(images, weight, stride, padding, side)


def _convolve_grouped(images: Tensor, weight: Tensor, bias: Tensor, stride: int, padding: int) -> Tensor:
    critics = len(weight)
    flat = F.conv2d(images.flatten(1, 2), weight.flatten(0, 1), bias.flatten(), stride, padding, groups=critics)
    return flat.unflatten(1, (critics, -1))


def _transposed_grouped(images: Tensor, weight: Tensor, stride: int, padding: int, side: int) -> Tensor:
    critics = len(weight)
    missing = side - ((images.shape[3] - 1) * stride + weight.shape[3] - 2 * padding)
    flat = F.conv_transpose2d(
        images.flatten(1, 2), weight.flatten(0, 1), None, stride, padding, missing, groups=critics
    )
    return flat.unflatten(1, (critics, -1))


def _convolve_windows(images: Tensor, weight: Tensor, bias: Tensor, stride: int, padding: int) -> Tensor:
    windows = _Unfold.apply(images.permute(1, 0, 3, 4, 2), weight.shape[3], stride, padding)
    rows = torch.baddbmm(bias[:, None, :], windows.flatten(1, 3), _matrix(weight).mT)
    return rows.view(*windows.shape[:4], -1).permute(1, 0, 4, 2, 3)


def _transposed_windows(images: Tensor, weight: Tensor, stride: int, padding: int, side: int) -> Tensor:
    rows = images.permute(1, 0, 3, 4, 2)
    windows = torch.bmm(rows.flatten(1, 3), _matrix(weight)).view(*rows.shape[:4], -1)
    return _Fold.apply(windows, weight.shape[3], stride, padding, side).permute(1, 0, 4, 2, 3)


def _matrix(weight: Tensor) -> Tensor:
    """[m, out, in, k, k] as the matrices that multiply windows, channels last: [m, out, k k in]."""
    return weight.permute(0, 1, 3, 4, 2).flatten(2)


def _window_view(padded: Tensor, kernel: int, stride: int) -> Tensor:
    """All windows of [m, B, h, w, c] as a view [m, B, h', w', k, k, c]."""
    return padded.unfold(2, kernel, stride).unfold(3, kernel, stride).permute(0, 1, 2, 3, 5, 6, 4)


class _Unfold(torch.autograd.Function):
    """Copy the windows of [m, B, h, w, c] into rows, [m, B, h', w', k k c]; the transpose of `_Fold`."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
        ctx.geometry = kernel, stride, padding, images.shape[2]
        distinct = images[:1] if images.stride(0) == 0 else images  # one batch for all critics: copy it once
        windows = _window_view(F.pad(distinct, (0, 0, *(padding,) * 4)), kernel, stride).flatten(4)
        return windows.expand(len(images), *windows.shape[1:])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return _Fold.apply(gradients[0], *ctx.geometry), None, None, None


class _Fold(torch.autograd.Function):
    """Add rows of windows [m, B, h', w', k k c] up to images of side `side`; the transpose of `_Unfold`."""

    @staticmethod
    def forward(ctx: Any, windows: Tensor, kernel: int, stride: int, padding: int, side: int) -> Tensor:
        ctx.geometry = kernel, stride, padding
        parts = windows.unflatten(4, (kernel, kernel, -1))
        padded = windows.new_zeros(*windows.shape[:2], *(side + 2 * padding,) * 2, parts.shape[6])
        places = _window_view(padded, kernel, stride)
        blocks = [slice(start, start + stride) for start in range(0, kernel, stride)]
        for rows in blocks:  # windows overlap, but one block of `stride` by `stride` of each of them does not
            for columns in blocks:
                places[..., rows, columns, :] += parts[..., rows, columns, :]
        return padded[:, :, padding : padding + side, padding : padding + side]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        return _Unfold.apply(gradients[0], *ctx.geometry), None, None, None, None
