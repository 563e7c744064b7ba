from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from gswgan.errors import DataError
from gswgan.evaluation.inception_score import inception_score


@pytest.mark.filterwarnings("ignore:Metric `InceptionScore` will save:UserWarning")
def test_agrees_with_torchmetrics() -> None:
    """On the same logits and the same parts; torchmetrics shuffles with torch's generator, we with a fixed one."""
    from torchmetrics.image.inception import InceptionScore

    logits = 3 * torch.randn(1000, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    metric = InceptionScore(feature=nn.Flatten(), splits=10)
    metric.set_dtype(torch.float64)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        dealt = logits[torch.randperm(1000)]
        metric.update(logits[..., None, None])
        torch.manual_seed(3)
        mean, std = metric.compute()
    ours = np.empty((1000, 10))
    ours[np.random.default_rng(0).permutation(1000)] = dealt.softmax(1)
    found = inception_score(ours, splits=10)
    assert found[0] == pytest.approx(float(mean), rel=1e-4)
    assert found[1] == pytest.approx(float(std), rel=1e-4)
    assert found[1] > 0


@pytest.mark.parametrize("kind", ["sorted", "in turn"])
def test_sure_and_varied_scores_the_number_of_classes(kind: str) -> None:
    labels = np.arange(1000) % 10
    sure = np.eye(10)[np.sort(labels) if kind == "sorted" else labels]
    mean, std = inception_score(sure)
    assert 9.3 < mean < 10
    assert std < 0.3
    assert inception_score(sure, splits=1) == (pytest.approx(10), 0.0)


def test_no_variety_or_no_certainty_scores_1() -> None:
    assert inception_score(np.eye(10)[np.full(100, 3)]) == (pytest.approx(1), pytest.approx(0, abs=1e-12))
    assert inception_score(torch.full((100, 10), 0.1))[0] == pytest.approx(1)


def test_closed_form() -> None:
    """Two classes, each named with certainty p: ln 2 less the entropy of p."""
    p = 0.9
    rows = np.array([[p, 1 - p], [1 - p, p]])
    assert inception_score(rows, splits=1)[0] == pytest.approx(2 * p**p * (1 - p) ** (1 - p))


def test_refuses_what_is_no_distribution() -> None:
    rows = np.full((20, 4), 0.25)
    for bad in (rows * 2, rows * np.nan, np.stack([rows - 0.5, rows + 0.5], 1).reshape(20, 8)):
        with pytest.raises(DataError, match="add up to 1"):
            inception_score(bad)
    with pytest.raises(DataError, match="splits"):
        inception_score(rows[:9], splits=10)
    with pytest.raises(DataError, match="one row per image"):
        inception_score(rows[0])
