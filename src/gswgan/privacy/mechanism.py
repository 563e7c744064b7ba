"""M_{sigma,C} (the paper's sanitization equation): clip, sum, record, add noise. The privacy barrier.

One call that cannot be half done: what comes in are private rows on any device, what comes out is a released
array, and the ledger has the event before the noise is drawn. There is no other way to a noisy value in this
package.

The arithmetic is what the guarantee needs (docs/privacy.md, "Arithmetic"):
- every row becomes a finite vector of norm at most `clip_norm` by a total function: no value raises;
- rows are truncated towards zero to a fixed grid and summed as 64-bit integers: exact in any order, on any
  device, so the sum moves by at most the stated sensitivity and one key gives one result;
- the noise is float64, rounded to the same grid: sum and noise are both grid points, so the low-order bits of
  the output say nothing about the sum.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gswgan.privacy.errors import PrivacyError
from gswgan.privacy.events import BaseEvent, Contribution, gaussian_of
from gswgan.privacy.ledger import Ledger
from gswgan.privacy.randomness import Streams

GRID_BITS = 26
"""One clip_norm is 2^26 grid steps: 10^10 rows fit into 63 bits, and a step is far below the noise."""

MARGIN = 1.0 - 2.0**-36
"""Makes up for the rounding of a float64 norm over up to 10^5 coordinates: the bound holds exactly."""

Block: TypeAlias = tuple[Tensor, Tensor | None]
"""Rows [n, rows, width] of n contributions and, where each has a single row, the slot [n] each goes to.
Without slots, row i of a contribution goes to slot i. A slot outside the sum contributes nothing."""


@dataclass(frozen=True, kw_only=True)
class Released:
    """What has left the barrier: noisy sums [slots, width] and, where asked for, noisy counts [slots]."""

    sums: NDArray[np.float64]
    counts: NDArray[np.float64] | None


def clip_to_grid(rows: Tensor, clip_norm: float) -> Tensor:
    """Rows [..., width] as integers on the grid, of norm at most 2^GRID_BITS: non-finite rows become zero.

    clip(g, C) = g / max(1, |g| / C), in float64, truncated towards zero (which never lengthens a vector).
    """
    exact = rows.to(torch.float64)
    finite = torch.isfinite(exact).all(dim=-1, keepdim=True)
    exact = torch.where(finite, exact, torch.zeros((), dtype=torch.float64, device=rows.device))
    peak = exact.abs().amax(dim=-1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
    norm = torch.linalg.vector_norm(exact / peak, dim=-1, keepdim=True) * peak  # no overflow on huge rows
    scale = torch.minimum(torch.ones_like(norm), clip_norm / norm) * (MARGIN / clip_norm * 2.0**GRID_BITS)
    return (exact * scale).trunc().to(torch.int64)


class GaussianMechanism:
    """Releases sums of bounded contributions; every release is recorded as `event` in the ledger first."""

    def __init__(self, *, contribution: Contribution, event: BaseEvent, ledger: Ledger, streams: Streams) -> None:
        gaussian = gaussian_of(event)
        needed = contribution.sensitivity(gaussian.neighbours)
        if gaussian.sensitivity < needed * (1 - 1e-12):
            raise PrivacyError(
                "sensitivity",
                gaussian.sensitivity,
                f"at least {needed} for {contribution} ({gaussian.neighbours})",
            )
        if streams.context != ledger.context:
            raise PrivacyError("key", streams.context, f"the key of the ledger's plan {ledger.context}")
        self.contribution, self.event, self.ledger = contribution, event, ledger
        self.noise_std = gaussian.noise_std
        self._streams = streams

    def release(self, name: str, blocks: Iterable[Block], *, slots: int, width: int) -> Released:
        """Clip and sum the blocks, record the release, add one Gaussian draw to every coordinate.

        `name` identifies the release within the run (such as "step 17"): the same name over the same sum is
        the same release again, bit for bit.
        """
        total = self._sum(blocks, slots, width)
        fingerprint = hashlib.blake2b(
            np.ascontiguousarray(total).tobytes(), key=self._streams.seed("fingerprint", name)
        )
        attempt = self.ledger.record(name, self.event, fingerprint.hexdigest())
        step = self.contribution.clip_norm * 2.0**-GRID_BITS
        noise = self._streams.gaussian(total.shape, "noise", name, attempt) * (self.noise_std / step)
        noisy = (total + np.rint(noise).astype(np.int64)).astype(np.float64) * step
        if not self.contribution.counts:
            return Released(sums=noisy, counts=None)
        return Released(sums=noisy[:, :width], counts=noisy[:, width] / self.contribution.clip_norm)

    def _sum(self, blocks: Iterable[Block], slots: int, width: int) -> NDArray[np.int64]:
        columns = width + (1 if self.contribution.counts else 0)
        total: Tensor | None = None
        for rows, slot in blocks:
            _, per_contribution, found = rows.shape
            if per_contribution != self.contribution.rows or found != width:
                raise PrivacyError(
                    "block",
                    tuple(rows.shape),
                    f"[n, {self.contribution.rows}, {width}], as was accounted for",
                )
            whole = slot is None and per_contribution <= slots and not self.contribution.counts
            if not (whole or (slot is not None and per_contribution == 1)):
                raise PrivacyError("slots", slots, "one slot for each row of a contribution")
            grid = clip_to_grid(rows, self.contribution.clip_norm)
            if total is None:
                total = torch.zeros(slots, columns, dtype=torch.int64, device=rows.device)
            if slot is None:
                total[:per_contribution, :width] += grid.sum(dim=0)
                continue
            valid = (slot >= 0) & (slot < slots)
            grid = grid[:, 0] * valid[:, None]
            index = torch.where(valid, slot, torch.zeros_like(slot)).to(torch.int64)
            total[:, :width].index_add_(0, index, grid)
            if self.contribution.counts:
                total[:, width].index_add_(0, index, valid.to(torch.int64) << GRID_BITS)
        if total is None:
            return np.zeros((slots, columns), dtype=np.int64)
        return np.asarray(total.cpu().numpy())
