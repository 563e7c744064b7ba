"""The Triton kernels against plain products, on a GPU: right, the same twice, and inside their own memory."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytestmark = pytest.mark.gpu

# critics, samples, inputs, outputs, side, kernel, stride, padding: the paper's layers, thin ones, and odd ones
SHAPES = {
    "paper1": (3, 8, 1, 64, 28, 5, 2, 2),
    "paper2": (3, 8, 64, 128, 14, 5, 2, 2),
    "paper3": (3, 8, 128, 256, 7, 5, 2, 2),
    "small1": (7, 8, 1, 8, 8, 5, 2, 2),
    "small2": (7, 8, 8, 16, 4, 5, 2, 2),
    "odd1": (8, 3, 3, 3, 9, 5, 2, 2),
    "odd2": (8, 3, 3, 6, 5, 5, 2, 2),
    "thin2": (10, 7, 5, 10, 8, 5, 2, 2),
    "six": (10, 7, 6, 12, 8, 5, 2, 2),
    "colour": (3, 8, 3, 64, 32, 5, 2, 2),
    "few rows": (8, 3, 16, 16, 5, 5, 2, 2),
    "generator": (3, 8, 64, 64, 14, 3, 1, 1),
    "shortcut": (3, 8, 64, 64, 7, 1, 1, 0),
    "head": (3, 8, 64, 1, 28, 3, 1, 1),
}


def surrounded(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """An empty tensor and the larger one that it lies in, full of a number that must not change."""
    size = torch.Size(shape).numel()
    room = torch.full((size + 8192,), 7.0, dtype=dtype, device="cuda")
    return room[4096 : 4096 + size].view(shape), room


@pytest.fixture
def guarded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Tensor, int]]:
    """Outputs of the kernels lie within known surroundings."""
    from gswgan.critics.ensemble import gpu_convolution

    rooms: list[tuple[Tensor, int]] = []

    def empty(*shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        inside, room = surrounded(shape, dtype)
        rooms.append((room, inside.numel()))
        return inside.fill_(float("nan"))

    class Torch:
        def __getattr__(self, name: str) -> object:
            return empty if name == "empty" else getattr(torch, name)

    monkeypatch.setattr(gpu_convolution, "torch", Torch())
    return rooms


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", SHAPES)
def test_the_three_products(name: str, dtype: torch.dtype, guarded: list[tuple[Tensor, int]]) -> None:
    from gswgan.critics.ensemble import gpu_convolution as gpu

    critics, samples, inputs, outputs, side, kernel, stride, padding = SHAPES[name]
    shape = side, kernel, stride, padding
    new = gpu.out_side(shape)
    draw = torch.Generator().manual_seed(0)

    def random(*size: int) -> Tensor:
        return torch.randn(size, generator=draw).to(dtype)

    images, weights = random(critics, samples, side, side, inputs), random(critics, outputs, kernel**2 * inputs)
    bias, values = random(critics, outputs), random(critics, samples, new, new, outputs)
    flat = weights.double().view(critics, outputs, kernel, kernel, inputs).permute(0, 1, 4, 2, 3)
    for k in (0, critics - 1):  # references first: a wrong kernel may spoil more than its own output
        x = images[k].double().permute(0, 3, 1, 2)
        y = values[k].double().permute(0, 3, 1, 2)
        ahead = F.conv2d(x, flat[k], bias[k].double(), stride, padding).permute(0, 2, 3, 1)
        back = torch.nn.grad.conv2d_input(x.shape, flat[k], y, stride, padding).permute(0, 2, 3, 1)
        matrix = torch.nn.grad.conv2d_weight(x, flat[k].shape, y, stride, padding).permute(0, 2, 3, 1).flatten(1)
        there = [value.cuda() for value in (images, weights, bias, values)]
        for turn in range(3):
            found = {
                "multiply": (gpu.multiply(there[0], there[1], there[2], shape), ahead),
                "fold": (gpu.fold(there[3], there[1], shape), back),
                "correlate": (gpu.correlate(there[3], there[0], shape), matrix),
            }
            for product, (result, exact) in found.items():
                error = (result[k].double().cpu() - exact).abs().max() / exact.abs().max()
                assert error < (8e-3 if dtype == torch.bfloat16 else 2e-5), (product, k, turn, float(error))
    same = images[:1].expand_as(images).cuda()  # all see the same images
    again = gpu.multiply(same, there[1], there[2], shape)
    assert torch.equal(again, gpu.multiply(same.contiguous(), there[1], there[2], shape))
    for room, size in guarded:
        assert torch.all(room[:4096] == 7)
        assert torch.all(room[4096 + size :] == 7)
