"""Sums whose order depends on the number of summands alone."""

from __future__ import annotations

import math

import pytest
import torch

from gswgan.privacy.sums import sum_in_halves


@pytest.mark.parametrize("width", [1, 2, 3, 7, 64, 1000, 70_001])
def test_it_is_the_sum(width: int) -> None:
    values = torch.randn(3, 2, width, generator=torch.Generator().manual_seed(width), dtype=torch.float64)
    found = sum_in_halves(values)
    assert found.shape == (3, 2, 1)
    for row, total in zip(values.reshape(-1, width).tolist(), found.flatten().tolist()):
        assert total == pytest.approx(math.fsum(row), abs=1e-12 * width)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("width", [63, 4097, 300_001])
def test_a_rows_sum_does_not_depend_on_the_others(device: str, width: int) -> None:
    values = torch.rand(70, width, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(device)
    whole = sum_in_halves(values)
    for count in (1, 2, 5, 33):
        for start in (0, 1, 36):
            assert torch.equal(sum_in_halves(values[start : start + count]), whole[start : start + count])


def test_the_values_are_left_alone() -> None:
    values = torch.arange(5.0, dtype=torch.float64)
    sum_in_halves(values)
    assert values.tolist() == [0, 1, 2, 3, 4]
