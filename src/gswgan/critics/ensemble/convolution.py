"""Convolutions, products and sums of m critics at once, such that no critic's numbers depend on the others.

Whatever its place in the stack and whatever the other critics are, a critic's numbers must come out the same to the
last bit: the privacy argument for drawing critics at random rests on it. Libraries do not promise that. What was found
to hold, and is tested, decides how things are computed here:

* On the CPU a convolution is a grouped convolution, which is also the fastest there. (Batched matrix products are not
  used: in thin matrices the last bit depends on the alignment of the memory, which varies with the place.)
* On a GPU it is our own kernel (`gpu_convolution.py`) with one program per tile of each critic. Other products are
  batched matrix products there, which treat all their matrices alike.
* A GPU reads the numbers of a row in fours from aligned addresses, so that the order of a sum along the row depends on
  where the row begins. `row_sum` and the functions after it keep rows to multiples of four numbers.

Images are [sample, critic, channel, row, column] here; weights are [critic, out, in, row, column].
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def row_sum(values: Tensor) -> Tensor:
    """Return the sum over the last axis."""
    return in_fours(values).sum(dim=-1)


def row_norm(values: Tensor) -> Tensor:
    """Return the Euclidean norm over the last axis; its derivative at 0 is 0, where a plain root would give NaN."""
    return torch.linalg.vector_norm(in_fours(values), dim=-1)


def in_fours(values: Tensor) -> Tensor:
    """Pad the last axis with zeros to a multiple of four."""
    missing = -values.shape[-1] % 4
    return F.pad(values, (0, missing)) if missing else values


def spread(values: Tensor, count: int) -> Tensor:
    """Repeat [m, 1] to [m, count]; the backward pass is a sum along rows of a multiple of four."""
    return values.expand(-1, count + -count % 4)[:, :count]


def from_left(vector: Tensor, matrix: Tensor) -> Tensor:
    """Return u'W of each critic."""
    if matrix.is_cuda:
        return torch.bmm(vector[:, None, :], matrix)[:, 0]
    return (matrix * vector[:, :, None]).sum(dim=1)


def from_right(matrix: Tensor, vector: Tensor) -> Tensor:
    """Return Wv of each critic."""
    if matrix.is_cuda:
        return torch.bmm(matrix, vector[:, :, None])[:, :, 0]
    return row_sum(matrix * vector[:, None, :])


def convolve(images: Tensor, weight: Tensor, bias: Tensor | None, *, stride: int, padding: int) -> Tensor:
    """Return each critic's convolution of its own images; `bias` is [critic, out], of two outputs or more."""
    if not images.is_cuda:
        return _convolve_grouped(images, weight, bias, stride, padding)
    if weight.shape[3] == images.shape[3] and padding == 0:
        return _convolve_whole(images, weight, bias)
    return _convolve_kernels(images, weight, bias, stride, padding)


def convolve_transposed(images: Tensor, weight: Tensor, *, stride: int, padding: int, side: int) -> Tensor:
    """Apply the transpose of `convolve`: from the shape of its output back to images of side `side`."""
    if not images.is_cuda:
        return _transposed_grouped(images, weight, stride, padding, side)
    if weight.shape[3] == side and padding == 0:
        return _transposed_whole(images, weight)
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
    """Convert bfloat16 to float32: a grouped bfloat16 convolution adds 0 times another critic, NaN if that is NaN."""
    return values.float() if values.dtype == torch.bfloat16 else values


def _convolve_whole(images: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Convolve where the kernel covers the image, which is then the only window: a matrix product."""
    rows, matrix = images.permute(1, 0, 3, 4, 2).flatten(2), _matrix(weight).mT
    rows = torch.bmm(rows, matrix) if bias is None else torch.baddbmm(bias[:, None, :], rows, matrix)
    return rows.transpose(0, 1)[..., None, None]


def _transposed_whole(images: Tensor, weight: Tensor) -> Tensor:
    """Apply the transpose of `_convolve_whole`."""
    rows = torch.bmm(images[..., 0, 0].transpose(0, 1), _matrix(weight))
    return rows.unflatten(2, (*weight.shape[3:], -1)).permute(1, 0, 4, 2, 3)


def _matrix(weight: Tensor) -> Tensor:
    """Return weights [m, out, in, k, k] as matrices that multiply windows, channels last: [m, out, k k in]."""
    return weight.permute(0, 1, 3, 4, 2).flatten(2)
