"""The Gaussian mechanism M_{sigma,C} (the paper's sanitization equation): clip, sum, record, add noise.

One call takes private rows on any device and returns a noisy sum; the ledger has the event before the noise is drawn.
Nothing else in this package returns a noisy value, except for votes, which are counted and not clipped (votes.py).

The arithmetic is what the guarantee needs (docs/proof.md, section 2):
- a total function maps every row to a finite vector of norm at most `clip_norm`: no value raises;
- rows are truncated towards zero to a fixed grid and summed as 64-bit integers: exact in any order, so the
  sum moves by at most the stated sensitivity and on one device one key gives one result;
- the noise is a real Gaussian rounded to the same grid, exactly: the output is the rounding of the sum plus a real
  Gaussian, so its low-order bits show nothing more about the sum, and no output is impossible.
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
from gswgan.privacy.events import BaseEvent, Contribution, Sampled, gaussian_of
from gswgan.privacy.ledger import Ledger
from gswgan.privacy.participation import draw_participants
from gswgan.privacy.randomness import Streams
from gswgan.privacy.sums import sum_in_halves

GRID_BITS = 26
"""One clip_norm is 2^26 steps of the grid: 10^10 rows fit into 63 bits, and a step is far below the noise."""

MARGIN = 2.0**-36
"""A row is shortened by this factor per 2 x 10^5 coordinates, which covers the rounding of a float64 norm."""

MAX_NOISE = 2.0**20
"""The largest noise_std over clip_norm that the grid arithmetic is meant for."""

NUMBERS_PER_CHUNK = 2**17
"""Numbers clipped together on a CPU: float64 copies of more do not fit its cache and take five times as long."""

Block: TypeAlias = tuple[Tensor, Tensor | None]
"""Rows [n, rows, width] of n contributions and, where each has a single row, the slot [n] each goes to.
Without slots, row i of a contribution goes to slot i. A slot outside the sum contributes nothing."""


@dataclass(frozen=True, kw_only=True)
class ClippedSum:
    """An exact sum of clipped contributions, made by `clipped_sum`, without noise: private.

    The totals of parts of the data add up to the total of all of it, in any order.
    """

    contribution: Contribution
    total: NDArray[np.int64]  # [slots, width, and one more with counts] on the grid


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer to a query: noisy sums [slots, width] and, where asked for, noisy counts [slots]."""

    sums: NDArray[np.float64]
    counts: NDArray[np.float64] | None


def fits_grid(rows: Tensor) -> Tensor:
    """Return whether each row [..., width] of 64-bit integers has norm at most 2^GRID_BITS; keeps the last dimension.

    A generous check in float64 comes first, because the exact sum of squares could overflow into a small number.
    """
    most = 1 << 2 * GRID_BITS
    about = rows.to(torch.float64).square().sum(dim=-1, keepdim=True) <= 1.001 * most
    return about & ((rows * rows).sum(dim=-1, keepdim=True) <= most)


def clip_to_grid(rows: Tensor, clip_norm: float) -> Tensor:
    """Return rows [..., width] as integers on the grid, of norm at most 2^GRID_BITS; non-finite rows become zero.

    clip(g, C) = g / max(1, |g| / C), in float64, truncated towards zero (which never lengthens a vector). The norm is
    checked again in integers, and a row that fails becomes zero (none does). Rows that are 64-bit integers are on the
    grid already (a client clipped them): they are kept, or become zero.
    """
    if rows.dtype == torch.int64:
        return rows * fits_grid(rows)
    width = rows.shape[-1]
    shorter = 1.0 - MARGIN * max(1.0, width / 2e5)
    exact = rows.to(torch.float64)
    finite = torch.isfinite(exact).all(dim=-1, keepdim=True)
    exact = torch.where(finite, exact, torch.zeros((), dtype=torch.float64, device=rows.device))
    peak = exact.abs().amax(dim=-1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
    shape = exact / peak  # entries in [-1, 1]: no square over- or underflows
    length = sum_in_halves(shape.square()).sqrt()
    clipped = torch.where(peak * length > clip_norm, shape / length.clamp(min=1.0), exact / clip_norm)
    grid = (clipped * (shorter * 2.0**GRID_BITS)).trunc().to(torch.int64)
    return grid * fits_grid(grid)  # in integers: no rounding to trust


def _gpu_row_sum(rows: Tensor, clip_norm: float) -> Tensor:
    from gswgan.privacy import gpu_clip  # needs Triton, which comes with the CUDA builds of torch

    found: Tensor = gpu_clip.clipped_row_sum(rows, clip_norm, margin=MARGIN, grid_bits=GRID_BITS)
    return found


def columns_of(contribution: Contribution, width: int) -> int:
    """Return the number of columns of a sum of rows of this width: one more where contributions are counted."""
    return width + (1 if contribution.counts else 0)


def clipped_sum(blocks: Iterable[Block], contribution: Contribution, *, slots: int, width: int) -> ClippedSum:
    """Clip every contribution and add it to its slots, exactly."""
    total: Tensor | None = None
    for rows, slot in blocks:
        _, per_contribution, found = rows.shape
        if per_contribution != contribution.rows or found != width:
            expected = f"[n, {contribution.rows}, {width}], as was accounted for"
            raise PrivacyError("block", tuple(rows.shape), expected)
        whole = slot is None and per_contribution <= slots and not contribution.counts
        if not (whole or (slot is not None and per_contribution == 1)):
            raise PrivacyError("slots", slots, "one slot for each row of a contribution")
        if total is None:
            shape = (slots, columns_of(contribution, width))
            total = torch.zeros(shape, dtype=torch.int64, device=rows.device)
        if slot is None and per_contribution == 1 and rows.is_cuda and rows.dtype in (torch.float32, torch.bfloat16):
            total[0, :width] += _gpu_row_sum(rows[:, 0], contribution.clip_norm)
            continue
        per_chunk = max(1, NUMBERS_PER_CHUNK // (per_contribution * width)) if rows.device.type == "cpu" else len(rows)
        if slot is None:
            for piece in torch.split(rows, per_chunk) if len(rows) else ():
                total[:per_contribution, :width] += clip_to_grid(piece, contribution.clip_norm).sum(dim=0)
            continue
        for piece, its in zip(torch.split(rows, per_chunk), torch.split(slot, per_chunk)):
            valid = (its >= 0) & (its < slots)
            grid = clip_to_grid(piece, contribution.clip_norm)[:, 0] * valid[:, None]
            index = torch.where(valid, its, torch.zeros_like(its)).to(torch.int64)
            total[:, :width].index_add_(0, index, grid)
            if contribution.counts:
                total[:, width].index_add_(0, index, valid.to(torch.int64) << GRID_BITS)
    if total is None:
        return ClippedSum(
            contribution=contribution, total=np.zeros((slots, columns_of(contribution, width)), dtype=np.int64)
        )
    return ClippedSum(contribution=contribution, total=np.asarray(total.cpu().numpy()))


def check_key(ledger: Ledger, streams: Streams) -> None:
    """Refuse streams of a public seed, and a key and a ledger of different plans."""
    streams.check_secret()
    if streams.context != ledger.context:
        raise PrivacyError("key", streams.context, f"the key of the ledger's plan {ledger.context}")


def announce(
    name: str, exact: NDArray[np.int64], bound: object, event: BaseEvent, ledger: Ledger, streams: Streams
) -> str:
    """Record an answer over these exact integers before its noise is drawn; return the name of the noise stream.

    The name is a keyed fingerprint of the integers and of all that the noise depends on. So two queries that differ in
    anything have different noise, even where a restored copy of the ledger has forgotten one of them; two that are the
    same in everything have the same noise, and are the same answer again.
    """
    fingerprint = hashlib.blake2b(key=streams.seed("fingerprint", ledger.observer, name))
    fingerprint.update(repr((bound, event, exact.shape)).encode())
    fingerprint.update(np.ascontiguousarray(exact).tobytes())
    ledger.record(name, event, fingerprint.hexdigest())
    return fingerprint.hexdigest()


class GaussianMechanism:
    """Answers sum queries over bounded contributions; each answer is recorded as `event` in the ledger first."""

    def __init__(self, *, contribution: Contribution, event: BaseEvent, ledger: Ledger, streams: Streams) -> None:
        gaussian = gaussian_of(event)
        needed = contribution.sensitivity(gaussian.neighbours)
        if isinstance(event, Sampled) and gaussian.neighbours == "replace-one":
            needed = 2 * contribution.sensitivity("zeroed")  # the worst pair is antipodal, with absence, 0, between
        if gaussian.sensitivity < needed * (1 - 1e-12):
            raise PrivacyError(
                "sensitivity",
                gaussian.sensitivity,
                f"at least {needed} for {contribution} ({gaussian.neighbours})",
            )
        if gaussian.noise_std > MAX_NOISE * contribution.clip_norm:
            raise PrivacyError("noise_std", gaussian.noise_std, f"at most {MAX_NOISE:.0f} times clip_norm")
        check_key(ledger, streams)
        self.contribution, self.event, self.ledger = contribution, event, ledger
        self.noise_std = gaussian.noise_std
        self._streams = streams

    def participants(self, name: str, count: int) -> NDArray[np.int64]:
        """Draw who of `count` takes part in the query of this name; return their indices in ascending order: secret.

        They are drawn as the event says, at its own rate, from the run's key, under the query's name: a caller cannot
        choose how, and no two queries share coins. The same name gives the same participants again.
        """
        return draw_participants(self.event, count, self._streams, self.ledger.observer, name)

    def answer(self, name: str, blocks: Iterable[Block] | ClippedSum, *, slots: int, width: int) -> Answer:
        """Clip and sum the blocks, record the event, and add one Gaussian draw to every coordinate.

        Where the data was summed in parts, the sum of the parts is passed instead of the blocks. `name` identifies the
        query within the run (such as "step 17"): the same name over the same sum by the same mechanism gives the same
        answer again, bit for bit.
        """
        total = self._sum(blocks, slots, width)
        fingerprint = announce(name, total, self.contribution, self.event, self.ledger, self._streams)
        scale = self.noise_std / self.contribution.clip_norm * 2.0**GRID_BITS
        noise = self._streams.rounded_gaussian(total.shape, scale, "noise", self.ledger.observer, name, fingerprint)
        noisy = (total + noise).astype(np.float64) * (self.contribution.clip_norm * 2.0**-GRID_BITS)
        if not self.contribution.counts:
            return Answer(sums=noisy, counts=None)
        return Answer(sums=noisy[:, :width], counts=noisy[:, width] / self.contribution.clip_norm)

    def _sum(self, blocks: Iterable[Block] | ClippedSum, slots: int, width: int) -> NDArray[np.int64]:
        if not isinstance(blocks, ClippedSum):
            blocks = clipped_sum(blocks, self.contribution, slots=slots, width=width)
        expected = (slots, columns_of(self.contribution, width))
        if blocks.contribution != self.contribution or blocks.total.shape != expected:
            found = (blocks.contribution, blocks.total.shape)
            raise PrivacyError("sum", found, f"{(self.contribution, expected)}, as was accounted for")
        return blocks.total
