"""Clipping onto the grid: every row of any values becomes a vector of bounded norm, checked in exact integers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor

from gswgan.privacy.mechanism import GRID_BITS, MARGIN, clip_to_grid

Clip = Callable[[Tensor, float], Tensor]
UNIT = 2**GRID_BITS

any_rows = st.one_of(
    *(
        hnp.arrays(
            dtype, hnp.array_shapes(min_dims=2, max_dims=3, max_side=9), elements=hnp.from_dtype(np.dtype(dtype))
        )
        for dtype in (np.float32, np.float64)
    )
)


def norms_are_bounded(clip: Clip, rows: Tensor, clip_norm: float) -> None:
    """Sum of squares at most (2^26)^2 for each row, exactly: of the high and the low half of each square apart."""
    grid = clip(rows, clip_norm)
    assert grid.dtype == torch.int64
    assert grid.shape == rows.shape
    assert ((grid <= UNIT) & (grid >= -UNIT)).all()
    squares = (grid * grid).reshape(-1, grid.shape[-1])
    for high, low in zip((squares >> 32).sum(dim=1).tolist(), (squares & 0xFFFF_FFFF).sum(dim=1).tolist()):
        assert (high << 32) + low <= UNIT * UNIT


def hard_rows() -> Tensor:
    """Directions whose rounding is unlucky: many near-equal coordinates, at and above the clip norm."""
    generator = torch.Generator().manual_seed(0)
    directions = torch.nn.functional.normalize(torch.randn(300, 17, dtype=torch.float64, generator=generator), dim=-1)
    axes = torch.eye(17, dtype=torch.float64)
    return torch.cat([directions, axes, directions * 1e3, axes * 1.5, -axes, torch.ones(1, 17, dtype=torch.float64)])


@settings(max_examples=200, deadline=None)
@given(any_rows, st.floats(1e-6, 1e6))
def test_every_clipped_row_has_at_most_the_clip_norm(rows: np.ndarray, clip_norm: float) -> None:
    """Any values: infinities, nan, 1e308, subnormals; never an exception."""
    norms_are_bounded(clip_to_grid, torch.from_numpy(rows.copy()), clip_norm)


def test_a_wrong_float_norm_cannot_pass_the_check_in_integers_by_an_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """4096 squares of nearly 2^52 add up to nearly 2^64, which is a negative 64-bit integer."""
    monkeypatch.setattr(torch.linalg, "vector_norm", lambda rows, **options: torch.zeros_like(rows[..., :1]))
    for width in (100, 2048, 4096):
        norms_are_bounded(clip_to_grid, torch.full((2, width), 3.0), 1.0)


@settings(max_examples=50, deadline=None)
@given(hnp.arrays(np.float32, (4, 6), elements=hnp.from_dtype(np.dtype(np.float32))), st.floats(1e-3, 1e3))
def test_half_precision_rows_are_bounded_too(rows: np.ndarray, clip_norm: float) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        norms_are_bounded(clip_to_grid, torch.from_numpy(rows.copy()).to(dtype), clip_norm)


def test_hard_rows_are_bounded_and_wrong_variants_are_caught() -> None:
    rows = hard_rows()
    for clip_norm in (1.0, 0.3, 1e-3, 7.0):
        norms_are_bounded(clip_to_grid, rows * clip_norm, clip_norm)

    def unclipped(x: Tensor, c: float) -> Tensor:
        return (x.double() / c * UNIT).trunc().to(torch.int64)

    def scale(x: Tensor, c: float) -> Tensor:
        return (c / torch.linalg.vector_norm(x, dim=-1, keepdim=True)).clamp(max=1.0)

    def rounded(x: Tensor, c: float) -> Tensor:
        return (x.double() * scale(x.double(), c) / c * UNIT).round().to(torch.int64)

    def half(x: Tensor, c: float) -> Tensor:
        x = x.to(torch.bfloat16)
        return ((x * scale(x, c)).double() / c * UNIT).trunc().to(torch.int64)

    def single(x: Tensor, c: float) -> Tensor:
        x = x.float()
        return ((x * scale(x, c)).double() / c * UNIT).trunc().to(torch.int64)

    for wrong in (unclipped, rounded, half, single):
        with pytest.raises(AssertionError):
            norms_are_bounded(wrong, rows, 1.0)


@pytest.mark.parametrize("width", [784, 16384, 100_000, 3_000_000])
def test_wide_rows_are_bounded(width: int) -> None:
    generator = torch.Generator().manual_seed(width)
    rows = torch.randn(4 if width < 10**6 else 1, width, dtype=torch.float64, generator=generator)
    norms_are_bounded(clip_to_grid, rows, 1.0)
    norms_are_bounded(clip_to_grid, torch.full((1, width), UNIT / 3e7, dtype=torch.float32), 1.0)
    length = torch.linalg.vector_norm(clip_to_grid(rows, 1.0).double(), dim=-1) / UNIT
    assert (length > 1 - 1e-4).all()  # truncation takes half a grid step from each coordinate, no more


def test_extreme_sizes_and_clip_norms_are_bounded() -> None:
    for clip_norm in (1e-305, 1e-30, 1e-10, 1e30, 1e300):
        for size in (0.0, 5e-324, 1e-300, 1e-12, 1.0, 1e150, 1.7e308):
            one, three = torch.zeros(1, 3, dtype=torch.float64), torch.full((1, 3), size, dtype=torch.float64)
            one[0, 0] = size
            for rows in (one, three):
                norms_are_bounded(clip_to_grid, rows, clip_norm)
                if size > 10 * clip_norm:
                    assert clip_to_grid(rows, clip_norm).abs().max() > 0.5 * UNIT  # clipped, not lost


def test_the_bound_does_not_rest_on_the_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    """If rounding were worse than the margin allows for, rows would be lost, never too long."""
    monkeypatch.setattr("gswgan.privacy.mechanism.MARGIN", -(2.0**-16))
    norms_are_bounded(clip_to_grid, hard_rows(), 1.0)


def test_rows_inside_the_ball_are_kept_and_others_shrunk_to_it() -> None:
    rows = torch.tensor([[0.3, -0.4], [3.0, -4.0], [0.0, 0.0], [1e200, 0.0]], dtype=torch.float64)
    kept = clip_to_grid(rows, 1.0).double() / UNIT
    expected = torch.tensor([[0.3, -0.4], [0.6, -0.8], [0.0, 0.0], [1.0, 0.0]], dtype=torch.float64)
    assert (kept - expected).abs().max() < 2.1 / UNIT
    halved = clip_to_grid(rows[:1], 0.25).double() / UNIT * 0.25
    assert (halved - torch.tensor([[0.15, -0.2]], dtype=torch.float64)).abs().max() < 2.1 / UNIT


@settings(max_examples=100, deadline=None)
@given(any_rows, st.floats(1e-6, 1e6))
def test_clipping_what_was_clipped_takes_no_more_than_a_grid_step(rows: np.ndarray, clip_norm: float) -> None:
    once = clip_to_grid(torch.from_numpy(rows.copy()), clip_norm)
    twice = clip_to_grid(once.double() * (clip_norm / UNIT), clip_norm)
    assert (twice.abs() <= once.abs()).all()
    assert (twice.abs() >= once.abs() - 1).all()
    assert (twice * once >= 0).all()


@settings(max_examples=100, deadline=None)
@given(any_rows, st.floats(1e-6, 1e6), st.randoms(use_true_random=False))
def test_a_row_is_clipped_alike_whoever_else_is_there(rows: np.ndarray, clip_norm: float, random) -> None:
    """Alone, in a batch, in another order: the same bits, so that nobody steers another's contribution."""
    batch = torch.from_numpy(rows.copy()).reshape(-1, rows.shape[-1])
    order = random.sample(range(len(batch)), len(batch))
    together = clip_to_grid(batch, clip_norm)
    assert torch.equal(clip_to_grid(batch[order], clip_norm), together[order])
    for row, expected in zip(batch, together):
        assert torch.equal(clip_to_grid(row[None], clip_norm)[0], expected)


@settings(max_examples=100, deadline=None)
@given(any_rows, st.floats(1e-3, 1e3), st.integers(-60, 60))
def test_the_unit_of_the_rows_does_not_matter(rows: np.ndarray, clip_norm: float, power: int) -> None:
    """Rows and clip norm times a power of two: the same vector on the grid, to a step (subnormal numbers apart)."""
    exact = torch.from_numpy(rows.astype(np.float64))
    exact = torch.where((exact.abs() < 1e200) & (exact.abs() > 1e-200), exact, torch.zeros((), dtype=torch.float64))
    scaled = clip_to_grid(exact * 2.0**power, clip_norm * 2.0**power)
    assert (scaled - clip_to_grid(exact, clip_norm)).abs().max() <= 1


@given(st.floats(-1, 1))
def test_truncation_is_towards_zero(value: float) -> None:
    (found,) = clip_to_grid(torch.tensor([[value]], dtype=torch.float64), 1.0).flatten().tolist()
    assert abs(found) <= abs(value) * (1 - MARGIN) * UNIT
    assert abs(found) > abs(value) * (1 - MARGIN) * UNIT - 1
    assert found == 0 or (found > 0) == (value > 0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_row_with_a_value_that_is_not_finite_becomes_zero(bad: float, dtype: torch.dtype) -> None:
    rows = torch.full((3, 4), 0.25, dtype=dtype)
    rows[1, 2] = bad
    grid = clip_to_grid(rows, 1.0)
    assert (grid[1] == 0).all()
    assert (grid[0] != 0).all()
    assert (grid[2] == grid[0]).all()


def test_integers_are_on_the_grid_already_and_become_zero_if_they_are_too_long():
    rows = torch.zeros(6, 4096, dtype=torch.int64)
    rows[0, 0] = UNIT
    rows[1, :4] = UNIT // 2
    rows[2, 0] = UNIT + 1
    rows[3] = UNIT  # 4096 x 2^52 is 2^64, which is 0 in 64 bits
    rows[4, 0] = -(2**63)  # so is its square
    rows[5, :2] = torch.tensor([UNIT, 1])
    kept = clip_to_grid(rows, 0.3)
    assert torch.equal(kept[:2], rows[:2])
    assert not kept[2:].any()
