"""The coordinates in which gradients of a denoiser get noise: bases and scales that come from public gradients alone.

Noise on a gradient has one size in all directions, while the gradients that a network gets differ by orders of
magnitude between directions. Each matrix of weights is turned into the principal axes of its public gradients, on both
sides (Gupta et al. 2018; Vyas et al. 2024), and scaled there. A turn changes no length; the scales do, so the clip
comes after both.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

LARGEST = 1280
"""A side of a matrix that is longer than this is not turned."""

FLOOR = 0.1
"""The part of a matrix's mean that is added to each second moment: no scale is without bound."""


class Preconditioner:
    """x -> scales * (left^T x right) for each matrix of weights, and the way back of an update."""

    def __init__(self, shapes: list[tuple[int, int]], device: torch.device) -> None:
        """`shapes` are those of all matrices, in the order of a row; nothing is turned or scaled at first."""
        self.shapes = shapes
        self.places = list(itertools.pairwise(itertools.accumulate((a * b for a, b in shapes), initial=0)))
        self.scales = torch.ones(self.places[-1][1], device=device)
        self.bases = [
            tuple(torch.eye(size, device=device) if size <= LARGEST else None for size in shape) for shape in shapes
        ]

    def fit(self, gradients: Tensor, *, power: float, largest: int = LARGEST, floor: float = FLOOR) -> None:
        """From public gradients [n, P]: their principal axes, and (second moment along each)^(-power / 2) as scales.

        With power 0 all scales are 1. Sides above `largest` stay as they are, and matrices without any gradient.
        """
        for (first, last), shape, bases in zip(self.places, self.shapes, self.bases):
            found = gradients[:, first:last].unflatten(1, shape)
            squares = torch.einsum("nij,nkj->ik", found, found), torch.einsum("nij,nik->jk", found, found)
            for basis, square in zip(bases, squares):
                if basis is not None:
                    turn = len(basis) <= largest
                    basis.copy_(torch.linalg.eigh(square.double()).eigenvectors if turn else torch.eye(len(basis)))
        self.scales.fill_(1.0)
        moments = torch.stack([row.square() for row in self.forward(gradients)]).sum(dim=0)
        parts = [own + floor * own.mean() for own in moments.split([b - a for a, b in self.places])]
        self.scales.copy_(torch.cat([part ** (-power / 2) if part.any() else part + 1 for part in parts]))
        self.scales.div_(self.scales.square().mean().sqrt())

    def forward(self, rows: Tensor) -> Tensor:
        """Rows of gradients [n, P] in these coordinates, each by itself: one product for each row and matrix."""
        parts = []
        for (first, last), shape, (left, right) in zip(self.places, self.shapes, self.bases):
            part = rows[:, first:last].reshape(-1, *shape)
            if right is not None:
                part = torch.bmm(part, right.to(part.dtype).expand(len(part), -1, -1))
            if left is not None:
                part = torch.bmm(left.mT.to(part.dtype).expand(len(part), -1, -1), part)
            parts.append(part.flatten(1))
        return torch.cat(parts, dim=1) * self.scales.to(rows.dtype)

    def back(self, gradient: Tensor) -> Tensor:
        """What a gradient [P] in these coordinates says of the weights: scaled once more, and turned back."""
        parts, scaled = [], gradient * self.scales
        for (first, last), shape, (left, right) in zip(self.places, self.shapes, self.bases):
            part = scaled[first:last].view(shape)
            part = part if right is None else part @ right.mT
            part = part if left is None else left @ part
            parts.append(part.flatten())
        return torch.cat(parts)

    def state(self) -> dict[str, Tensor]:
        """Bases and scales, as named tensors."""
        found = {"scales": self.scales}
        for number, bases in enumerate(self.bases):
            found |= {f"basis|{number}|{side}": basis for side, basis in enumerate(bases) if basis is not None}
        return found

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """The inverse of `state`."""
        for name, held in self.state().items():
            held.copy_(tensors[name])


def preconditioner_of(network: nn.Module, device: torch.device) -> Preconditioner:
    """One for all weights of a network, in their order."""
    return Preconditioner([(len(value), value[0].numel()) for value in network.parameters()], device)
