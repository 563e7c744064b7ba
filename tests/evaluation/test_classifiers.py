from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from conftest import tiny_images
from gswgan import load_data
from gswgan.errors import PlanError
from gswgan.evaluation import classifiers
from gswgan.evaluation.classifiers import (
    ALL,
    FAST,
    NAMES,
    SmallCNN,
    accuracy,
    accuracy_by_class,
    check,
    cnn_accuracy,
    estimated_seconds,
    logistic_accuracy,
)  # fmt: skip


def test_quick_look_learns_what_can_be_learnt_and_nothing_else() -> None:
    train, test = tiny_images(300, seed=1), tiny_images(90, seed=2)
    shuffled = np.random.default_rng(0).permutation(train.labels)
    assert logistic_accuracy(train.images, train.labels, test.images, test.labels) > 0.95
    assert logistic_accuracy(train.images, shuffled, test.images, test.labels) < 0.7


@pytest.mark.parametrize("settings", ["paper", "defaults"])
@pytest.mark.parametrize("name", ALL)
def test_each_classifier_learns(name: str, settings: str) -> None:
    if name == "xgboost":
        pytest.importorskip("xgboost")
    train, test = tiny_images(300, seed=1), tiny_images(90, seed=2)
    learnt = accuracy(name, train.images, train.labels, test.images, test.labels, classes=3, settings=settings)
    if (name, settings) == ("bernoulli_nb", "defaults"):
        assert learnt < 0.7  # these images have hardly a pixel at 0, where it divides: chance
    else:
        assert learnt > (0.6 if name == "cnn" else 0.9)  # the CNN makes 10 steps here


@pytest.mark.parametrize("name", [*FAST, "decision_tree", "lda"])
def test_wrong_labels_teach_nothing(name: str) -> None:
    train, test = load_data("digits"), load_data("digits", split="test")
    shuffled = np.random.default_rng(0).permutation(train.labels)
    assert accuracy(name, train.images[:500], shuffled[:500], test.images, test.labels, classes=10) < 0.25


def test_labels_keep_their_names_where_a_class_is_missing() -> None:
    train, test = tiny_images(300, seed=1), tiny_images(90, seed=2)
    kept, asked = train.labels != 1, test.labels == 2
    for name in ("gaussian_nb", "cnn", "xgboost"):
        if name == "xgboost":
            pytest.importorskip("xgboost")
        only = accuracy(name, train.images[kept], train.labels[kept], test.images[asked], test.labels[asked], classes=3)
        assert only > 0.9


def test_the_table_is_the_papers() -> None:
    assert len(ALL) == 13
    assert set(FAST) == {"logistic_regression", "mlp", "cnn", "gaussian_nb", "random_forest"}
    wanted = {
        "mlp": {"hidden_layer_sizes": (100,), "activation": "relu"}, "adaboost": {"n_estimators": 100},
        "bagging": {"n_estimators": 20, "max_samples": 0.1}, "bernoulli_nb": {"binarize": 0.5},
        "decision_tree": {"class_weight": "balanced"}, "gbm": {"n_estimators": 50, "subsample": 0.1},
        "lda": {"solver": "eigen", "shrinkage": 0.5}, "linear_svc": {"loss": "hinge", "max_iter": 10_000},
        "random_forest": {"class_weight": "balanced", "n_estimators": 100},
        "xgboost": {"n_estimators": 50, "colsample_bytree": 0.1, "max_depth": 3, "learning_rate": 0.1},
    }  # fmt: skip
    for name, options in wanted.items():
        if name == "xgboost":
            pytest.importorskip("xgboost")
        model = classifiers._build(name, "paper", seed=5)
        assert {key: model.get_params()[key] for key in options} == options
        assert model.get_params().get("random_state", 5) == 5
    for name in set(ALL) - {"cnn", "xgboost"}:
        model = classifiers._build(name, "defaults", seed=0)
        assert model.set_params(**{k: None for k in ("random_state",) if k in model.get_params()}).get_params() == (
            type(model)().get_params()
        )


def test_seeds_matter_and_repeat_and_leave_the_global_state_alone() -> None:
    data = load_data("digits")
    part = (data.images[:300], data.labels[:300], data.images[300:], data.labels[300:])
    state = torch.get_rng_state()
    for name in ("cnn", "random_forest"):
        found = [accuracy(name, *part, classes=10, seed=seed) for seed in (1, 1, 2, 3)]
        assert found[0] == found[1]
        assert len(set(found)) > 1
    assert torch.equal(state, torch.get_rng_state())


def test_the_cnn_is_the_one_that_every_target_means() -> None:
    shapes = [tuple(p.shape) for p in SmallCNN(1, 28, 10).parameters() if p.ndim > 1]
    assert shapes == [(32, 1, 3, 3), (64, 32, 3, 3), (128, 64 * 12 * 12), (10, 128)]
    assert [m.p for m in SmallCNN(3, 8, 4).body if isinstance(m, torch.nn.Dropout)] == [0.25, 0.5]
    train, test = load_data("digits"), load_data("digits", split="test")
    assert cnn_accuracy(train.images, train.labels, test.images, test.labels, classes=10, epochs=20) > 0.96


def test_convergence_warnings_are_the_only_ones_silenced(monkeypatch: pytest.MonkeyPatch) -> None:
    class Loud:
        def fit(self, x: np.ndarray, y: np.ndarray) -> None:
            warnings.warn("something else", RuntimeWarning, stacklevel=1)

    monkeypatch.setattr(classifiers, "_build", lambda *_: Loud())
    data = tiny_images(30)
    with pytest.raises(RuntimeWarning, match="something else"):
        accuracy("mlp", data.images, data.labels, data.images, data.labels, classes=3)


def test_unknown_names_are_refused() -> None:
    data = tiny_images(30)
    part = (data.images, data.labels, data.images, data.labels)
    with pytest.raises(PlanError, match="linear_svc"):
        accuracy("svm", *part, classes=3)
    with pytest.raises(PlanError, match="paper or defaults"):
        accuracy("mlp", *part, classes=3, settings="best")  # type: ignore[arg-type]


def test_accuracy_by_class_is_the_recall_of_scikit_learn() -> None:
    from sklearn.metrics import recall_score

    rng = np.random.default_rng(0)
    labels, guesses = rng.choice([0, 1, 3], 300), rng.integers(0, 4, 300)
    expected = recall_score(labels, guesses, labels=[0, 1, 3], average=None)
    assert accuracy_by_class(guesses, labels) == pytest.approx(dict(zip((0, 1, 3), expected)))  # class 2 has no images


def test_the_resnet_stands_beside_the_papers_classifiers() -> None:
    check(["resnet"], "paper")
    assert set(NAMES) - set(ALL) == {"resnet"}
    size = {"records": 13_780, "pixels": 28 * 28 * 3}
    assert estimated_seconds("resnet", **size, device="cuda") < 60 < estimated_seconds("resnet", **size)
