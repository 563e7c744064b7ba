"""How many records get their gradients at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from gswgan.critics.refined import pretraining, records
from gswgan.critics.refined.pretraining import Pretraining
from gswgan.critics.refined.records import NUMBERS_PER_CHUNK, HeldRecords
from gswgan.data import make_image_data
from gswgan.privacy import Streams


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


def test_the_preconditioner_takes_fewer_large_images_at_once_and_as_many_in_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert [pretraining.at_once(side) for side in (8, 28, 32, 64, 128)] == [256, 256, 256, 64, 16]
    seen: list[tuple[int, int]] = []

    class Stand:
        device = torch.device("cpu")
        denoised = SimpleNamespace(denoiser=SimpleNamespace(classes=3))

        def samples(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.rand(count, 1, 8, 8), torch.arange(count) % 3

        def of_samples(self, images: torch.Tensor, labels: torch.Tensor, seed: torch.Tensor) -> torch.Tensor:
            seen.append((len(images), int(seed)))
            return images.mean(dim=0).flatten()

    stand, settings = Stand(), SimpleNamespace(public_steps=0, public_share=0.0)
    given: Any = {"streams": Streams.public(0), "public_images": lambda: None, "average": 0.0}
    made = Pretraining(settings, stand, stand, **given)  # type: ignore[arg-type]
    monkeypatch.setattr(pretraining, "PIXELS_AT_ONCE", 100 * 64)
    assert made.gradients(512).shape == (2, 64)
    assert seen == [(100, 0), (100, 1), (56, 2), (100, 3), (100, 4), (56, 5)]  # each with noise of its own


def test_each_part_of_a_gradient_begins_with_its_share_of_public_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """The noise levels of a part rise from its first image to its last, as those of a batch do."""
    black: list[list[bool]] = []

    class Stand:
        device = torch.device("cpu")
        denoised = SimpleNamespace(denoiser=SimpleNamespace(classes=3))

        def samples(self, count: int) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.ones(count, 1, 8, 8), torch.arange(count) % 3

        def of_samples(self, images: torch.Tensor, labels: torch.Tensor, seed: torch.Tensor) -> torch.Tensor:
            black.append((images.flatten(1).mean(dim=1) == 0).tolist())
            return images.mean(dim=0).flatten()

    stand, settings = Stand(), SimpleNamespace(public_steps=1, public_share=0.5)
    given: Any = {"streams": Streams.public(0), "average": 0.0}
    given["public_images"] = lambda: np.zeros((5, 1, 8, 8), np.uint8)
    made = Pretraining(settings, stand, stand, **given)  # type: ignore[arg-type]
    monkeypatch.setattr(pretraining, "PIXELS_AT_ONCE", 64 * 64)
    made.gradients(256)
    assert black == [[True] * 32 + [False] * 32] * 4
