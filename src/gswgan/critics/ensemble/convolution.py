"""The arithmetic of m critics at once, such that none of them can tell who else is there.

Whatever the place of a critic in the stack and whoever its neighbours are, its numbers must come out the same
to the last bit: the privacy argument for drawing critics at random rests on it. Libraries do not promise that.
What was found to hold, and is tested, decides how things are computed here:

* A convolution on the CPU is a grouped convolution, which is also the fastest there. (Batched matrix products
  are out: in thin matrices the last bit depends on the alignment of the memory, which varies with the place.)
* On a GPU it is our own kernel (`gpu_convolution.py`), a program for each tile of each critic. Other products are
  batched ones there, which treat all their matrices alike.
* Sums along rows: a GPU reads the numbers of a row in fours from aligned addresses, so that the order of the
  sum depends on where the row begins. `row_sum` and its kin keep rows to multiples of four numbers.

Images are [sample, critic, channel, row, column] here; weights are [critic, out, in, row, column].
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

ON_GPU: Literal["kernels", "windows"] = "kernels"
"""The form of the convolution there: our kernels, or copied windows times a matrix."""


def row_sum(values: Tensor) -> Tensor:
    """The sum over the last axis."""
    return in_fours(values).sum(dim=-1)


def row_norm(values: Tensor) -> Tensor:
    """The Euclidean norm over the last axis; its derivative at 0 is 0, where a plain root would give NaN."""
    return torch.linalg.vector_norm(in_fours(values), dim=-1)


def in_fours(values: Tensor) -> Tensor:
    """Zeros added to the last axis, to a multiple of four."""
    missing = -values.shape[-1] % 4
    return F.pad(values, (0, missing)) if missing else values


def spread(values: Tensor, count: int) -> Tensor:
    """[m, 1] repeated to [m, count]; the backward pass is a sum along rows of a multiple of four."""
    return values.expand(-1, count + -count % 4)[:, :count]


def from_left(vector: Tensor, matrix: Tensor) -> Tensor:
    """u'W of each critic."""
    if matrix.is_cuda:
        return torch.bmm(vector[:, None, :], matrix)[:, 0]
    return (matrix * vector[:, :, None]).sum(dim=1)


def from_right(matrix: Tensor, vector: Tensor) -> Tensor:
    """Wv of each critic."""
    if matrix.is_cuda:
        return torch.bmm(matrix, vector[:, :, None])[:, :, 0]
    return row_sum(matrix * vector[:, None, :])


def convolve(images: Tensor, weight: Tensor, bias: Tensor | None, *, stride: int, padding: int) -> Tensor:
    """Each critic's convolution of its own images; `bias` is [critic, out], of two outputs or more."""
    if not images.is_cuda:
        return _convolve_grouped(images, weight, bias, stride, padding)
    whole = weight.shape[3] == images.shape[3] and padding == 0  # the kernel covers the image: its only window
    if whole or ON_GPU == "windows":
        return _convolve_windows(images, weight, bias, stride, padding)
    return _convolve_kernels(images, weight, bias, stride, padding)


def convolve_transposed(images: Tensor, weight: Tensor, *, stride: int, padding: int, side: int) -> Tensor:
    """The transpose of `convolve` as a matrix: from the shape of its output back to images of side `side`."""
    if not images.is_cuda:
        return _transposed_grouped(images, weight, stride, padding, side)
    whole = weight.shape[3] == side and padding == 0
    if whole or ON_GPU == "windows":
        return _transposed_windows(images, weight, stride, padding, side)
    return _transposed_kernels(images, weight, stride, padding, side)


def _convolve_kernels(images: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int) -> Tensor:
    from gswgan.critics.ensemble import gpu_convolution  # needs Triton, which comes with the CUDA builds of torch only

    shape = images.shape[3], weight.shape[3], stride, padding
    return gpu_convolution.convolve(images.permute(1, 0, 3, 4, 2), _matrix(weight), bias, shape).permute(1, 0, 4, 2, 3)


def _transposed_kernels(images: Tensor, weight: Tensor, stride: int, padding: int, side: int) -> Tensor:
    from gswgan.critics.ensemble import gpu_convolution

    shape = side, weight.shape[3], stride, padding
    return gpu_convolution.transpose(images.permute(1, 0, 3, 4, 2), _matrix(weight), shape).permute(1, 0, 4, 2, 3)


def _convolve_grouped(images: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int) -> Tensor:
    critics, flat_bias = len(weight), None if bias is None else _wide(bias).flatten()
    flat = F.conv2d(
        _wide(images).flatten(1, 2), _wide(weight).flatten(0, 1), flat_bias, stride, padding, groups=critics
    )
    return flat.unflatten(1, (critics, -1)).to(images.dtype)


def _transposed_grouped(images: Tensor, weight: Tensor, stride: int, padding: int, side: int) -> Tensor:
    critics = len(weight)
    missing = side - ((images.shape[3] - 1) * stride + weight.shape[3] - 2 * padding)
    flat = F.conv_transpose2d(
        _wide(images).flatten(1, 2), _wide(weight).flatten(0, 1), None, stride, padding, missing, groups=critics
    )
    return flat.unflatten(1, (critics, -1)).to(images.dtype)


def _wide(values: Tensor) -> Tensor:
    """bfloat16 as float32: a grouped bfloat16 convolution adds 0 times a neighbour, which shows if that is NaN."""
    return values.float() if values.dtype == torch.bfloat16 else values


def _convolve_windows(images: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int) -> Tensor:
    windows = _Unfold.apply(images.permute(1, 0, 3, 4, 2), weight.shape[3], stride, padding)
    rows, matrix = windows.flatten(1, 3), _matrix(weight).mT
    rows = torch.bmm(rows, matrix) if bias is None else torch.baddbmm(bias[:, None, :], rows, matrix)
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
        padded = F.pad(distinct, (0, 0, *(padding,) * 4)).contiguous()
        if padded.shape[4] * padded.element_size() % 16 == 0:  # copy 16 bytes at a time
            padded = padded.view(torch.complex128)
        windows = _window_view(padded, kernel, stride).flatten(4).view(images.dtype)
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
