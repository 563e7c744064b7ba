from __future__ import annotations

import numpy as np
import pytest
import torch

from gswgan.errors import DataError
from gswgan.evaluation import precision_recall as module
from gswgan.evaluation.precision_recall import precision_recall


def cloud(n: int, *, seed: int, shift: float = 0.0, scale: float = 1.0) -> np.ndarray:
    return (scale * np.random.default_rng(seed).standard_normal((n, 5)) + shift).astype(np.float32)


def by_hand(real: np.ndarray, fake: np.ndarray, k: int) -> tuple[float, float]:
    def covered(points: np.ndarray, centres: np.ndarray) -> float:
        inside = 0
        for point in points:
            for centre in centres:
                reach = sorted(np.linalg.norm(centres - centre, axis=1))[k]
                if np.linalg.norm(point - centre) <= reach:
                    inside += 1
                    break
        return inside / len(points)

    return covered(fake, real), covered(real, fake)


@pytest.mark.parametrize("k", [1, 3])
def test_equals_the_definition_whatever_the_chunk(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    real, fake = cloud(41, seed=1), cloud(37, seed=2, shift=1.0)
    expected = by_hand(real, fake, k)
    assert 0 < expected[0] < 1
    assert expected[0] != expected[1]
    assert precision_recall(real, fake, k=k) == pytest.approx(expected)
    monkeypatch.setattr(module, "_CHUNK", 10)
    assert precision_recall(torch.from_numpy(real), torch.from_numpy(fake), k=k) == pytest.approx(expected)


def test_the_extremes() -> None:
    real = cloud(200, seed=1)
    assert precision_recall(real, real) == (1.0, 1.0)
    assert precision_recall(real, cloud(200, seed=2, shift=50.0)) == (0.0, 0.0)
    precision, recall = precision_recall(real, cloud(200, seed=2, scale=0.05))  # one spot, well inside
    assert precision > 0.9
    assert recall < 0.1
    precision, recall = precision_recall(real, cloud(200, seed=2, scale=5.0))  # everywhere, mostly outside
    assert precision < 0.3
    assert recall > 0.9


def test_refuses_too_few_and_unlike_rows() -> None:
    real = cloud(10, seed=1)
    with pytest.raises(DataError, match="more than k = 3"):
        precision_recall(real, real[:3])
    with pytest.raises(DataError, match="of the same features"):
        precision_recall(real, real[:, :2])
    with pytest.raises(DataError, match="finite"):
        precision_recall(real, real * np.nan)
    with pytest.raises(DataError, match="at least 1"):
        precision_recall(real, real, k=0)
