"""Sums of float64 numbers in an order that depends on their number alone."""

from __future__ import annotations

from torch import Tensor


def sum_in_halves(values: Tensor) -> Tensor:
    """Return the sum over the last dimension, which is kept, by adding the second half to the first repeatedly.

    A library's reduction may choose its order by how many rows there are and by the number of threads, so that a row's
    sum would depend on the others in its batch. Additions of single elements have no such choice: on every device a
    row's sum is a function of that row alone, bit for bit.
    """
    while (width := values.shape[-1]) > 1:
        half = (width + 1) // 2
        first = values[..., :half].clone()
        first[..., : width - half] += values[..., half:]
        values = first
    return values
