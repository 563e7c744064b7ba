from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from gswgan.data import load_data
from gswgan.evaluation import metrics
from gswgan.evaluation.evaluate import evaluate
from gswgan.evaluation.kernel_distance import kernel_distance
from gswgan.evaluation.metrics import EvaluationSetup, Request
from gswgan.evaluation.precision_recall import precision_recall
from gswgan.evaluation.references import reference_folders
from gswgan.evaluation.result import Results

FIGURES = ("fid", "kid", "inception_precision", "inception_recall")


class StandIn:
    """Stands in for Inception: 16 pixels of the middle; counts the images that it sees."""

    device, weights_kind = torch.device("cpu"), "stand-in"

    def __init__(self) -> None:
        self.seen: list[int] = []

    def __call__(self, images: np.ndarray) -> torch.Tensor:
        self.seen.append(len(images))
        return torch.from_numpy(images[:, 0, 2:6, 2:6].reshape(len(images), 16).astype(np.float32) / 255)


@pytest.fixture
def inception(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> StandIn:
    found = StandIn()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(metrics, "load_inception", lambda *_: found)
    return found


def test_each_figure_is_that_of_its_function_with_the_real_one_beside(inception: StandIn) -> None:
    train, test = load_data("digits"), load_data("digits", split="test")
    synthetic = dataclasses.replace(train, images=255 - train.images)
    folders, request = reference_folders(train, test, None), Request(metrics=FIGURES)
    here = EvaluationSetup(train=train, test=test, folders=folders, request=request, samples=train.n)
    results = Results(None, {})
    found = evaluate(lambda seed: synthetic, here, results)
    size = test.n  # as many of each set
    rows = [inception(data.images[np.random.default_rng(0).permutation(data.n)[:size]]) for data in (train, synthetic)]
    distance, error = kernel_distance(*rows)
    assert (found["kid"]["mean"], found["kid"]["error"]) == pytest.approx((distance, error))
    precision, recall = precision_recall(*rows)
    assert found["inception_precision"]["mean"] == pytest.approx(precision)
    assert found["inception_recall"]["mean"] == pytest.approx(recall)
    assert found["kid"]["real"] < 0.01 < found["kid"]["mean"]
    assert found["inception_recall"]["real"] > 0.8 > found["inception_recall"]["mean"]
    assert found["fid"]["real"] < found["fid"]["mean"]
    assert found["precision"] is found["recall"] is None  # by the reference classifier: not asked for

    before = len(inception.seen)
    assert evaluate(lambda seed: synthetic, here, results) == found
    assert len(inception.seen) == before  # nothing is measured again


def test_features_are_taken_once_for_all_that_compare_them(inception: StandIn) -> None:
    train, test = load_data("digits"), load_data("digits", split="test")
    request = Request(metrics=("kid", "inception_recall"))
    here = EvaluationSetup(
        train=train, test=None, folders=reference_folders(train, test, None), request=request, samples=train.n
    )
    evaluate(lambda seed: dataclasses.replace(train, images=255 - train.images), here, Results(None, {}))
    assert inception.seen.count(train.n) == 2  # the training set and the synthetic set, for both metrics
