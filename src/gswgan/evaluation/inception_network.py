"""The Inception-v3 of 2015 up to its 2048 pooled features (Szegedy et al. 2015; the network that FID is defined on).

Names are those of the published weights, so that they load by name. It differs from later Inception-v3 models: the
batch norms have no scale, average pooling leaves the border out of its count, and the last block pools by maximum.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SIDE, FEATURES = 299, 2048
_EPS = 1e-3  # of the batch norms


class _Conv(nn.Module):
    """Convolution without bias, batch norm with fixed statistics, ReLU; "same" padding unless told otherwise."""

    def __init__(
        self, inputs: int, outputs: int, rows: int = 1, columns: int = 1, *, stride: int = 1, same: bool = True
    ):
        super().__init__()
        self.stride, self.padding = stride, (rows // 2, columns // 2) if same else (0, 0)
        self.weight = nn.Parameter(torch.empty(outputs, inputs, rows, columns), requires_grad=False)
        self.beta, self.mean, self.var = (nn.Parameter(torch.empty(outputs), requires_grad=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = F.conv2d(x, self.weight, stride=self.stride, padding=self.padding)
        return F.relu(F.batch_norm(x, self.mean, self.var, bias=self.beta, eps=_EPS))


class _AveragePool(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(x, 3, stride=1, padding=1, count_include_pad=False)


class _Branches(nn.Module):
    """Several ways from the same input, side by side in the output."""

    def __init__(self, **branches: nn.Module) -> None:
        super().__init__()
        for name, branch in branches.items():
            self.add_module(name, branch)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.children()], 1)


def _row(*convolutions: nn.Module, pool: nn.Module | None = None) -> nn.Sequential:
    """conv, conv_1, conv_2, ... one after the other, perhaps after a pool."""
    row = nn.Sequential()
    if pool is not None:
        row.add_module("pool", pool)
    for index, convolution in enumerate(convolutions):
        row.add_module(f"conv_{index}" if index else "conv", convolution)
    return row


def _a(inputs: int, pooled: int) -> _Branches:
    """35 x 35: 1x1, 5x5, two 3x3, average."""
    return _Branches(
        conv=_Conv(inputs, 64),
        tower=_row(_Conv(inputs, 48), _Conv(48, 64, 5, 5)),
        tower_1=_row(_Conv(inputs, 64), _Conv(64, 96, 3, 3), _Conv(96, 96, 3, 3)),
        tower_2=_row(_Conv(inputs, pooled), pool=_AveragePool()),
    )


def _b(inputs: int) -> _Branches:
    """35 x 35 to 17 x 17."""
    return _Branches(
        conv=_Conv(inputs, 384, 3, 3, stride=2, same=False),
        tower=_row(_Conv(inputs, 64), _Conv(64, 96, 3, 3), _Conv(96, 96, 3, 3, stride=2, same=False)),
        pool=nn.MaxPool2d(3, 2),
    )


def _c(inputs: int, width: int) -> _Branches:
    """17 x 17: 1x1, one and two 7x7 as 1x7 and 7x1, average."""
    tall, wide = (7, 1), (1, 7)
    return _Branches(
        conv=_Conv(inputs, 192),
        tower=_row(_Conv(inputs, width), _Conv(width, width, *wide), _Conv(width, 192, *tall)),
        tower_1=_row(
            _Conv(inputs, width), _Conv(width, width, *tall), _Conv(width, width, *wide),
            _Conv(width, width, *tall), _Conv(width, 192, *wide),
        ),
        tower_2=_row(_Conv(inputs, 192), pool=_AveragePool()),
    )  # fmt: skip


def _d(inputs: int) -> _Branches:
    """17 x 17 to 8 x 8."""
    return _Branches(
        tower=_row(_Conv(inputs, 192), _Conv(192, 320, 3, 3, stride=2, same=False)),
        tower_1=_row(
            _Conv(inputs, 192), _Conv(192, 192, 1, 7), _Conv(192, 192, 7, 1),
            _Conv(192, 192, 3, 3, stride=2, same=False),
        ),
        pool=nn.MaxPool2d(3, 2),
    )  # fmt: skip


class _E(nn.Module):
    """8 x 8: 1x1; 1x3 beside 3x1, twice; a pool."""

    def __init__(self, inputs: int, pool: nn.Module) -> None:
        super().__init__()
        self.conv = _Conv(inputs, 320)
        self.tower_conv = _Conv(inputs, 384)
        self.tower_mixed_conv, self.tower_mixed_conv_1 = _Conv(384, 384, 1, 3), _Conv(384, 384, 3, 1)
        self.tower_1_conv, self.tower_1_conv_1 = _Conv(inputs, 448), _Conv(448, 384, 3, 3)
        self.tower_1_mixed_conv, self.tower_1_mixed_conv_1 = _Conv(384, 384, 1, 3), _Conv(384, 384, 3, 1)
        self.tower_2_pool, self.tower_2_conv = pool, _Conv(inputs, 192)

    def forward(self, x: Tensor) -> Tensor:
        one, two = self.tower_conv(x), self.tower_1_conv_1(self.tower_1_conv(x))
        parts = [self.conv(x), self.tower_mixed_conv(one), self.tower_mixed_conv_1(one)]
        parts += [self.tower_1_mixed_conv(two), self.tower_1_mixed_conv_1(two)]
        return torch.cat([*parts, self.tower_2_conv(self.tower_2_pool(x))], 1)


class InceptionNetwork(nn.Module):
    """RGB images [n, 3, 299, 299], scaled to (x - 128) / 128, to features [n, 2048]."""

    def __init__(self) -> None:
        super().__init__()
        layers = {
            "conv": _Conv(3, 32, 3, 3, stride=2, same=False), "conv_1": _Conv(32, 32, 3, 3, same=False),
            "conv_2": _Conv(32, 64, 3, 3), "pool0": nn.MaxPool2d(3, 2), "conv_3": _Conv(64, 80),
            "conv_4": _Conv(80, 192, 3, 3, same=False), "pool1": nn.MaxPool2d(3, 2), "mixed": _a(192, 32),
            "mixed_1": _a(256, 64), "mixed_2": _a(288, 64), "mixed_3": _b(288), "mixed_4": _c(768, 128),
            "mixed_5": _c(768, 160), "mixed_6": _c(768, 160), "mixed_7": _c(768, 192), "mixed_8": _d(768),
            "mixed_9": _E(1280, _AveragePool()), "mixed_10": _E(2048, nn.MaxPool2d(3, 1, padding=1)),
            "pool2": nn.AvgPool2d(8),
        }  # fmt: skip
        self.layers = nn.Sequential()
        for name, layer in layers.items():
            self.layers.add_module(name, layer)

    def forward(self, images: Tensor) -> Tensor:
        """The pooled features."""
        return self.layers(images).flatten(1)
