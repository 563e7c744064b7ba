"""The denoiser's operations with the gradient of each record by itself.

All records share one matrix of weights, handed in as [record, out, k k in] without a copy; the gradient has the same
shape and is not summed over records. A record stands for `draws` images that follow each other. What is computed for
a record must not depend, to the last bit, on who else is there or where it stands (docs/proof.md): on a GPU these are
our own kernels, on a CPU each record's rows begin at aligned addresses.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gswgan.generators.denoiser import PLAIN


class ByRecord:
    """See `generators.denoiser.Operations`."""

    def convolve(self, images: Tensor, weight: Tensor, kernel: int, stride: int) -> Tensor:
        """The convolution of all images; the gradient in the weights is [record, out, k k in]."""
        found: Tensor = _Convolve.apply(images, weight, kernel, stride)
        return found

    def activate(self, images: Tensor, change: Tensor) -> Tensor:
        """On a GPU in one pass, forward and backward."""
        if not images.is_cuda:
            return PLAIN.activate(images, change)
        from gswgan.critics.refined import gpu_activation  # needs Triton, which comes with the CUDA builds of torch

        return gpu_activation.activate(images, change)


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, kernel: int, stride: int) -> Tensor:
        ctx.shape = images.shape[1], kernel, stride, kernel // 2
        ctx.save_for_backward(images, weight)
        if images.is_cuda:
            from gswgan.critics.ensemble import gpu_convolution

            return gpu_convolution.multiply(images[None], weight[:1], None, ctx.shape)[0]
        return PLAIN.convolve(images, weight[0], kernel, stride)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, None, None]:
        images, weight = ctx.saved_tensors
        (gradient,), wanted = gradients, ctx.needs_input_grad[0]
        records = (len(weight), -1)
        if gradient.is_cuda:
            from gswgan.critics.ensemble import gpu_convolution

            gradient = gradient.contiguous()
            before = gpu_convolution.fold(gradient[None], weight[:1], ctx.shape)[0] if wanted else None
            own = gpu_convolution.correlate(gradient.unflatten(0, records), images.unflatten(0, records), ctx.shape)
            return before, own, None, None
        before = _transposed(gradient, weight[0], ctx.shape) if wanted else None
        rows = gradient.flatten(1, 2).unflatten(0, records).flatten(1, 2)
        windows = _windows(images, *ctx.shape[1:]).unflatten(0, records).flatten(1, 2)
        return before, torch.bmm(rows.mT, windows), None, None


def _windows(images: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
    """[n, h, w, in] to [n, h' w', k k in]: copies, for the CPU."""
    padded = F.pad(images, (0, 0, *(padding,) * 4))
    found = padded.unfold(1, kernel, stride).unfold(2, kernel, stride).permute(0, 1, 2, 4, 5, 3)
    return found.flatten(3).flatten(1, 2)


def _transposed(gradient: Tensor, weight: Tensor, shape: tuple[int, int, int, int]) -> Tensor:
    """The gradient in the images, on the CPU."""
    side, kernel, stride, padding = shape
    square = weight.unflatten(1, (kernel, kernel, -1)).permute(0, 3, 1, 2)
    missing = side - ((gradient.shape[1] - 1) * stride + kernel - 2 * padding)
    maps = gradient.permute(0, 3, 1, 2)
    return F.conv_transpose2d(maps, square, None, stride, padding, missing).permute(0, 2, 3, 1)
