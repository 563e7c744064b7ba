"""`mechanism.clip_to_grid` and the sum over rows on a GPU, for long rows: three passes that read each number once each.

In PyTorch the same takes a dozen passes over float64 copies. The function is the same one, up to the rounding of a
float64 norm: each row becomes a vector of integers of norm at most 2^26, or zero, by a total function of that row alone
(the sums within a row are taken in an order that depends on its length alone), and integers are added up exactly.
"""

# mypy: ignore-errors
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gswgan.privacy.sums import sum_in_halves

BLOCK = 4096
"""Numbers of a row that one program looks at."""

COLUMNS, SPLITS = 512, 4
"""Of the sum over rows: numbers of a row, and parts of the rows, that one program looks at."""


@triton.jit
def _squares(rows, out, width, blocks, BLOCK: tl.constexpr):
    """The sum of squares of a part of a row, in float64: no square of a float32 over- or underflows there."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = block * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(rows + row * width + column, mask=column < width, other=0.0).to(tl.float64)
    tl.store(out + row * blocks + block, tl.sum(values * values))


@triton.jit
def _grid_squares(rows, factors, out, width, blocks, BLOCK: tl.constexpr):
    """The sum of squares of a part of a row on the grid, in integers."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = block * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(rows + row * width + column, mask=column < width, other=0.0).to(tl.float64)
    grid = (values * tl.load(factors + row)).to(tl.int64)  # truncates towards zero
    tl.store(out + row * blocks + block, tl.sum(grid * grid))


@triton.jit
def _sum(rows, factors, counts, out, width, number, COLUMNS: tl.constexpr, SPLITS: tl.constexpr):
    """The sum over a part of the rows on the grid: each integer of `out` belongs to one program."""
    column, split = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS), tl.program_id(1).to(tl.int64)
    total = tl.zeros((COLUMNS,), tl.int64)
    for first in range(0, number, SPLITS):
        row = split + first
        real = (column < width) & (row < number)
        values = tl.load(rows + row * width + column, mask=real, other=0.0).to(tl.float64)
        grid = (values * tl.load(factors + row, mask=row < number, other=0.0)).to(tl.int64)
        total += tl.where(tl.load(counts + row, mask=row < number, other=0) != 0, grid, 0)
    tl.store(out + split * width + column, total, mask=column < width)


def clipped_row_sum(rows: Tensor, clip_norm: float, *, margin: float, grid_bits: int) -> Tensor:
    """sum of clip(row) over [n, width] float32 or bfloat16 rows, as 64-bit integers [width] on the grid.

    One clip_norm is 2^grid_bits steps of the grid; each row is shortened by `margin` for each 2 x 10^5 numbers.
    """
    rows = rows.contiguous()
    number, width = rows.shape
    if number == 0:
        return torch.zeros(width, dtype=torch.int64, device=rows.device)
    blocks = triton.cdiv(width, BLOCK)
    squares = torch.empty(number, blocks, dtype=torch.float64, device=rows.device)
    _squares[(number, blocks)](rows, squares, width, blocks, BLOCK=BLOCK)
    length = sum_in_halves(squares)[:, 0].sqrt()
    steps = (1.0 - margin * max(1.0, width / 2e5)) * 2.0**grid_bits
    factors = steps / length.clamp(min=clip_norm)
    whole = torch.empty(number, blocks, dtype=torch.int64, device=rows.device)
    _grid_squares[(number, blocks)](rows, factors, whole, width, blocks, BLOCK=BLOCK)
    counts = (length.isfinite() & factors.isfinite() & (whole.sum(dim=1) <= 1 << 2 * grid_bits)).to(torch.int32)
    out = torch.empty(SPLITS, width, dtype=torch.int64, device=rows.device)
    grid = (triton.cdiv(width, COLUMNS), SPLITS)
    _sum[grid](rows, factors, counts, out, width, number, COLUMNS=COLUMNS, SPLITS=SPLITS)
    return out.sum(dim=0)
