from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import tiny_images
from gswgan.data import ImageData, load_data
from gswgan.evaluation import metrics
from gswgan.evaluation.evaluate import duration, evaluate
from gswgan.evaluation.metrics import EvaluationSetup, Request
from gswgan.evaluation.reference_classifier import ReferenceClassifier, train_reference_classifier
from gswgan.evaluation.references import References, reference_folders
from gswgan.evaluation.result import Results
from gswgan.evaluation.synthetic import stratified


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def digits() -> tuple[ImageData, ImageData]:
    return load_data("digits"), load_data("digits", split="test")


def setup(train: ImageData, test: ImageData | None, run: Path | None = None, **request: Any) -> EvaluationSetup:
    folders = reference_folders(train, test, run)
    return EvaluationSetup(train=train, test=test, folders=folders, request=Request(**request), samples=train.n)


def measure(synthetic: ImageData, here: EvaluationSetup, path: Path | None = None, **options: Any) -> dict[str, Any]:
    return evaluate(lambda seed: synthetic, here, Results(path, {"of": "test"}), **options)


@functools.cache
def _digits_classifier() -> ReferenceClassifier:
    return train_reference_classifier(load_data("digits"), epochs=6)


@pytest.fixture
def quick_classifier(monkeypatch: pytest.MonkeyPatch) -> None:
    """One classifier of the digits for all tests, less thoroughly trained."""
    monkeypatch.setattr(metrics, "cached_reference_classifier", lambda *_, **__: _digits_classifier())


SOME = ("gaussian_nb", "lda", "cnn")


@pytest.mark.usefixtures("quick_classifier")
def test_real_training_images_are_worth_as_much_as_themselves() -> None:
    train, test = digits()
    found = measure(train, setup(train, test, metrics=("classifiers", "label_accuracy", "precision"), classifiers=SOME))
    for name in SOME:
        entry = found["classifiers"][name]
        assert entry["calibrated"] == pytest.approx(1, abs=0.12 if name == "cnn" else 0.02)
        assert entry["mean"] == pytest.approx(entry["calibrated"] * entry["real"])
        assert entry["std"] is None  # of one seed
    average = found["average_accuracy"]
    assert average["calibrated"] == pytest.approx(1, abs=0.05)
    assert average["mean"] == pytest.approx(np.mean([found["classifiers"][name]["mean"] for name in SOME]))
    assert average["calibrated"] == pytest.approx(np.mean([found["classifiers"][n]["calibrated"] for n in SOME]))
    assert average["of"] == list(SOME)
    assert found["label_accuracy"]["mean"] > 0.95
    assert found["precision"]["mean"] == found["recall"]["mean"] == 1  # the very same images
    assert found["inception_score"] is found["fid"] is found["nearest"] is found["membership"] is None


@pytest.mark.usefixtures("quick_classifier")
def test_noise_is_worth_nothing() -> None:
    train, test = digits()
    noise = np.random.default_rng(0).integers(0, 256, train.images.shape, dtype=np.uint8)
    found = measure(dataclasses.replace(train, images=noise), setup(train, test, classifiers=SOME))
    for name in SOME:
        assert found["classifiers"][name]["mean"] < 0.3, name
    assert found["average_accuracy"]["mean"] == pytest.approx(0.1, abs=0.07)
    assert found["label_accuracy"]["mean"] == pytest.approx(0.1, abs=0.05)
    assert found["recall"]["mean"] < 0.3 < 0.8 < found["recall"]["real"]
    assert found["inception_score"]["mean"] < 4 < found["inception_score"]["real"]


def test_copies_of_100_training_images_raise_the_membership_score() -> None:
    train, test = digits()
    known = dataclasses.replace(train, images=train.images[:400], labels=train.labels[:400])
    honest = dataclasses.replace(train, images=train.images[400:], labels=train.labels[400:])
    leaking = dataclasses.replace(honest, images=np.concatenate([honest.images, known.images[:100]]), labels=None)
    here = setup(known, test, metrics=("membership", "nearest"), seeds=(1, 2))
    clean, caught = (measure(synthetic, here) for synthetic in (honest, leaking))
    assert clean["membership"]["tpr_at_1_percent_fpr"]["mean"] < 0.08
    assert caught["membership"]["tpr_at_1_percent_fpr"]["mean"] > 0.2  # 100 of 400
    assert caught["membership"]["auc"]["mean"] > clean["membership"]["auc"]["mean"] + 0.08
    assert clean["membership"]["auc"]["chance"] == 0.5
    assert clean["nearest"]["closer_to_train"]["mean"] == pytest.approx(0.5, abs=0.08)
    assert caught["nearest"]["closer_to_train"]["mean"] > clean["nearest"]["closer_to_train"]["mean"] + 0.02


class Counter:
    """Stands in for a classifier; counts; can be interrupted. Right on 5 of 10 images, and one more for each seed."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.calls: list[tuple[str, int, int]] = []
        self.stop_at = stop_at
        known = (digits()[1].labels, tiny_images(60, seed=2).labels)
        self.truth = {len(labels): labels for labels in known if labels is not None}

    def __call__(
        self, name: str, images: np.ndarray, labels: np.ndarray, test_images: np.ndarray, *, seed: int, **_: object
    ) -> np.ndarray:
        if len(self.calls) == self.stop_at:
            raise KeyboardInterrupt
        self.calls.append((name, len(images), seed))
        return np.where(np.arange(len(test_images)) % 10 < 5 + seed, self.truth[len(test_images)], -1)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Counter]:
    def make(stop_at: int | None = None) -> Counter:
        counter = Counter(stop_at)
        monkeypatch.setattr(metrics, "predictions", counter)
        return counter

    return make


def test_an_interrupted_evaluation_goes_on_where_it_stopped(tmp_path: Path, counted: Callable[..., Counter]) -> None:
    train, test = digits()
    path = tmp_path / "evaluation.json"
    here = setup(train, test, metrics=("classifiers",), classifiers=("mlp", "lda"), seeds=(1, 2))
    first = counted(stop_at=4)
    with pytest.raises(KeyboardInterrupt):
        measure(train, here, path)
    assert [(name, seed) for name, _, seed in first.calls] == [("mlp", 0), ("lda", 0), ("mlp", 1), ("lda", 1)]
    assert json.loads(path.read_text())["classifiers"]["mlp"]["mean"] == 0.6
    second = counted()
    found = measure(train, here, path)
    assert [(name, seed) for name, _, seed in second.calls] == [("mlp", 2), ("lda", 2)]
    by_class = found["classifiers"]["lda"].pop("by_class")
    right = np.arange(test.n) % 10 < 6  # of seed 1
    mine = test.labels == 3
    assert by_class["3"]["mean"] == pytest.approx((right[mine].mean() + (np.arange(test.n) % 10 < 7)[mine].mean()) / 2)
    assert by_class["3"]["real"] == pytest.approx((np.arange(test.n) % 10 < 5)[mine].mean())
    assert found["classifiers"]["lda"] == {
        "mean": pytest.approx(0.65), "std": pytest.approx(0.1 / 2**0.5), "real": 0.5, "seeds": 2,
        "calibrated": pytest.approx(1.3),
    }  # fmt: skip
    third = counted()
    assert measure(train, here, path)["classifiers"]["mlp"] == found["classifiers"]["mlp"]
    assert third.calls == []
    again = measure(train, setup(train, test, metrics=("classifiers",), classifiers=("mlp",), seeds=(2,)), path)
    assert again["classifiers"]["mlp"]["mean"] == 0.7  # the seeds that were asked for
    assert again["classifiers"]["mlp"]["std"] is None
    assert again["classifiers"]["lda"]["mean"] == pytest.approx(0.65)  # the rest stays


def test_figures_without_those_of_classes_are_not_measured_again(
    tmp_path: Path, counted: Callable[..., Counter]
) -> None:
    train, test = digits()
    path = tmp_path / "evaluation.json"
    here = setup(train, test, metrics=("classifiers",), classifiers=("lda",))
    counted()
    measure(train, here, path)
    stored = json.loads(path.read_text())
    stored["values"] = {name: value for name, value in stored["values"].items() if not name.startswith("by_class")}
    path.write_text(json.dumps(stored))
    again = counted()
    assert "by_class" not in measure(train, here, path)["classifiers"]["lda"]
    assert again.calls == []


def test_each_seed_is_a_set_of_its_own_drawn_once(counted: Callable[..., Counter]) -> None:
    train, test = digits()
    counter, drawn = counted(), []

    def draw(seed: int) -> ImageData:
        drawn.append(seed)
        return stratified(train, 100 + seed, seed)

    here = setup(train, test, metrics=("classifiers",), classifiers=("mlp", "lda"), seeds=(5, 3))
    evaluate(draw, here, Results(None, {}))
    assert drawn == [5, 3]
    assert [(size, seed) for _, size, seed in counter.calls[2:]] == [(105, 5), (105, 5), (103, 3), (103, 3)]


def test_references_are_computed_once_and_kept_as_private_as_the_data(
    tmp_path: Path, cache: Path, counted: Callable[..., Counter]
) -> None:
    train, test = digits()
    own_train, own_test = tiny_images(120, seed=1), tiny_images(60, seed=2)
    run = tmp_path / "run"
    run.mkdir()
    (run / "private").mkdir(mode=0o700)
    request = {"metrics": ("classifiers",), "classifiers": ("lda",)}

    counted()
    assert measure(own_train, setup(own_train, own_test, **request))["classifiers"]["lda"]["real"] == 0.5
    assert reference_folders(own_train, own_test, None).both is None
    assert [*tmp_path.rglob("*")] == [run, run / "private"]

    def figures_kept() -> set[str]:
        return {str(path.relative_to(tmp_path)).split("/")[0] for path in tmp_path.rglob("real.json")}

    measure(own_train, setup(own_train, own_test, run, **request))
    assert figures_kept() == {"run"}
    shape = {"images": own_test.images, "labels": own_test.labels}
    measure(train, setup(train, dataclasses.replace(test, **shape), run, **request))  # public set, private test
    assert figures_kept() == {"run"}
    measure(train, setup(train, test, run, **request))
    assert figures_kept() == {"run", "cache"}

    again = counted()
    for here in (setup(own_train, own_test, run, **request), setup(train, test, **request)):
        assert measure(here.train, here)["classifiers"]["lda"]["real"] == 0.5
    assert [seed for *_, seed in again.calls] == [1, 1]  # seed 0 would be the reference
    other = setup(train, test, metrics=("classifiers",), classifiers=("lda",), settings="defaults", train_size=200)
    measure(train, other)
    assert again.calls[2:] == [("lda", 200, 0), ("lda", 200, 1)]


def test_a_damaged_cache_is_computed_anew(cache: Path) -> None:
    train, test = digits()
    folders = reference_folders(train, test, None)
    assert folders.both is not None
    (folders.both / "real.json").write_text("no json")
    references = References(folders)
    assert references.known(["a"]) == {}
    references.put({"a": 1.0})
    assert References(folders).known(["a", "b"]) == {"a": 1.0}


def test_the_classifier_is_kept_and_its_time_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train, test = tiny_images(120, seed=1), tiny_images(60, seed=2)
    (tmp_path / "private").mkdir(mode=0o700)
    here = setup(train, test, tmp_path, metrics=("label_accuracy",))
    assert 0.1 < here.classifier_seconds < 10
    monkeypatch.setattr(metrics, "MAX_UNASKED_TRAINING_SECONDS", 0.1)
    notes: list[str] = []
    found = measure(train, setup(train, test, tmp_path), note=notes.append)
    assert found["inception_score"] is found["precision"] is found["recall"] is found["label_accuracy"] is None
    assert any("hours on this device" in text and "--metrics inception_score" in text for text in notes)
    assert measure(train, here)["label_accuracy"] is not None  # asked for by name
    assert setup(train, test, tmp_path).classifier_seconds == 0
    assert measure(train, setup(train, test, tmp_path))["label_accuracy"] is not None  # it is there now


def test_what_cannot_be_had_is_null_with_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train, test = digits()
    notes: list[str] = []
    monkeypatch.setattr(metrics.importlib.util, "find_spec", lambda name: None)
    here = setup(train, test, metrics=("fid", "classifiers"), classifiers=("xgboost", "gaussian_nb"))
    found = measure(train, here, note=notes.append)
    assert found["fid"] is found["classifiers"]["xgboost"] is None
    assert found["classifiers"]["gaussian_nb"]["mean"] > 0.7
    assert any("gswgan[eval]" in text for text in notes)
    assert any("gswgan[fid]" in text for text in notes)
    assert set(found["skipped"]) == {"fid", "classifiers.xgboost"}
    assert found["average_accuracy"]["of"] == ["gaussian_nb"]

    (tmp_path / "weights.pt").write_bytes(b"code")
    here = setup(train, test, metrics=("fid",), inception_weights=tmp_path / "weights.pt")
    assert "checksum" in measure(train, here)["skipped"]["fid"]

    asked = {"metrics": ("classifiers", "nearest", "membership")}
    assert set(measure(train, setup(train, None, **asked))["skipped"]) == {"classifiers", "nearest", "membership"}
    unlabelled = dataclasses.replace(train, labels=None, classes=1, class_names=("all",))
    found = measure(unlabelled, setup(unlabelled, None))
    assert set(found["skipped"]) == {"inception_score", "precision", "recall", "label_accuracy", "classifiers"}


def test_a_classifier_that_refuses_the_set_does_not_stop_the_others() -> None:
    train, test = digits()
    lonely = dataclasses.replace(train, labels=np.zeros(train.n, np.int64))
    here = setup(train, test, metrics=("classifiers",), classifiers=("linear_svc", "gaussian_nb"))
    found = measure(lonely, here)
    assert found["classifiers"]["linear_svc"] is None
    assert "could not be trained" in found["skipped"]["classifiers.linear_svc"]
    assert found["classifiers"]["gaussian_nb"]["mean"] < 0.2


def test_progress_weighs_by_time_and_ends_full() -> None:
    train, test = tiny_images(120, seed=1), tiny_images(60, seed=2)
    seen: list[tuple[str, float, float]] = []
    here = setup(train, test, metrics=("label_accuracy", "classifiers"), classifiers=("lda",))
    measure(train, here, progress=lambda *where: seen.append(where))
    done = [at for _, at, _ in seen]
    assert done == sorted(done)
    assert seen[-1][1] == seen[-1][2] > 0
    assert len({at for what, at, _ in seen if what == "label_accuracy on real data"}) > 10  # the classifier's steps
    assert [duration(s) for s in (0.1, 80, 300, 9000)] == ["1 s", "80 s", "5 minutes", "2.5 hours"]
