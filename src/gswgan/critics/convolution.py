"""One convolution of m critics at once, and its transpose.

Whatever the place of a critic in the stack and whoever its neighbours are, its numbers must come out the same
to the last bit: the privacy argument for drawing critics at random rests on it. That decides the form:

* On the CPU, a grouped convolution. It is also the fastest, and simple. (Batched matrix products are out: in
  thin matrices their last bit depends on the alignment of the memory, which varies with the place.)
* On a GPU, "copy the windows, multiply by a matrix": a batched product treats all its matrices alike there,
  adds in a fixed order, and is many times faster than a grouped convolution.

Images are [sample, critic, channel, row, column] here; weights are [critic, out, in, row, column].
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def convolve(images: Tensor, weight: Tensor, bias: Tensor | None, *, stride: int, padding: int) -> Tensor:
    """Each critic's convolution of its own images."""
    if not images.is_cuda:
        flat_bias = None if bias is None else bias.flatten()
        out = F.conv2d(images.flatten(1, 2), weight.flatten(0, 1), flat_bias, stride, padding, groups=len(weight))
        return out.unflatten(1, (len(weight), -1))
    windows = _Unfold.apply(images.permute(1, 0, 3, 4, 2), weight.shape[3], stride, padding)
    rows, matrix = windows.flatten(1, 3), _matrix(weight).mT
    out = torch.bmm(rows, matrix) if bias is None else torch.baddbmm(bias[:, None, :], rows, matrix)
    return out.view(*windows.shape[:4], -1).permute(1, 0, 4, 2, 3)


def convolve_transposed(images: Tensor, weight: Tensor, *, stride: int, padding: int, side: int) -> Tensor:
    """The transpose of `convolve` as a matrix: from its output's shape back to images of side `side`."""
    kernel = weight.shape[3]
    if not images.is_cuda:
        missing = side - ((images.shape[3] - 1) * stride + kernel - 2 * padding)
        out = F.conv_transpose2d(
            images.flatten(1, 2), weight.flatten(0, 1), None, stride, padding, missing, groups=len(weight)
        )
        return out.unflatten(1, (len(weight), -1))
    rows = images.permute(1, 0, 3, 4, 2)
    windows = torch.bmm(rows.flatten(1, 3), _matrix(weight)).view(*rows.shape[:4], -1)
    return _Fold.apply(windows, kernel, stride, padding, side).permute(1, 0, 4, 2, 3)


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
