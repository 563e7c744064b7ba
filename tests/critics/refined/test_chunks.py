"""How many records get their gradients at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from gswgan.critics.refined import records
from gswgan.critics.refined.records import NUMBERS_PER_CHUNK, HeldRecords
from gswgan.data import make_image_data


@pytest.mark.parametrize(("side", "part"), [(28, 1), (32, 1), (64, 4), (128, 16)])
def test_chunks_of_large_images_are_smaller_since_memory_goes_with_the_pixels(
    side: int, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    class Descent:
        def __init__(self, *_: Any, **__: Any) -> None: ...

        def prepare(self, total: int, *, numbers_per_chunk: int) -> None:
            asked.append(numbers_per_chunk)

    monkeypatch.setattr(records, "RecordGradients", Descent)
    held = HeldRecords(make_image_data(np.zeros((3, side, side), np.uint8)), torch.device("cpu"))
    nothing: Any = None
    held.begin(nothing, nothing, nothing, nothing)
    assert asked == [NUMBERS_PER_CHUNK["cpu"] // part]
