"""The metrics: each measures some figures on a synthetic set, and the same once on real data."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gswgan.data import ImageData
from gswgan.evaluation.by_inception import InceptionMetrics
from gswgan.evaluation.classifiers import FAST, Settings, accuracy_by_class, estimated_seconds, predictions
from gswgan.evaluation.inception import InceptionMissing, load_inception
from gswgan.evaluation.inception_score import inception_score
from gswgan.evaluation.membership import membership, nearest_records, nearness
from gswgan.evaluation.metric import Figures, Metric, Tick
from gswgan.evaluation.precision_recall import precision_recall
from gswgan.evaluation.reference_classifier import EPOCHS, RECIPE, ReferenceClassifier, cached_reference_classifier
from gswgan.evaluation.references import ReferenceFolders
from gswgan.evaluation.synthetic import stratified

METRICS = (
    "inception_score", "fid", "kid", "precision", "recall", "inception_precision", "inception_recall",
    "label_accuracy", "classifiers", "nearest", "membership",
)  # fmt: skip
BY_INCEPTION = ("fid", "kid", "inception_precision", "inception_recall")
BY_NAME_ONLY = (*BY_INCEPTION, "nearest", "membership")
"""Measured only where asked for by name."""
BY_REFERENCE_CLASSIFIER = ("inception_score", "precision", "recall", "label_accuracy")
POINTS = 10_000
"""At most so many features of each set for precision and recall."""
MAX_UNASKED_TRAINING_SECONDS = 30 * 60.0
"""A classifier that would take longer than these seconds is trained only for metrics asked for by name."""

# Seconds of one CPU core (measured) and of a GPU (roughly) for 60,000 images of 28x28.
_EPOCH, _FORWARD = {"cpu": 290.0, "cuda": 2.0}, {"cpu": 85.0, "cuda": 1.0}
_DISTANCES = {"cpu": 70.0, "cuda": 2.0}  # of precision and recall, for POINTS
_NEIGHBOURS = {"cpu": 150.0, "cuda": 2.0}  # 60,000 to 60,000


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to measure. `metrics` empty: all but those of `BY_NAME_ONLY`."""

    metrics: tuple[str, ...] = ()
    classifiers: tuple[str, ...] = FAST
    settings: Settings = "paper"
    train_size: int | None = None
    seeds: tuple[int, ...] = (1,)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    inception_weights: Path | None = None


@dataclass(kw_only=True)
class EvaluationSetup:
    """The real data, where its references are kept, and what is asked: all that the metrics share."""

    train: ImageData
    test: ImageData | None
    folders: ReferenceFolders
    request: Request
    samples: int
    """The size of a synthetic set."""

    def basis(self, synthetic: str) -> dict[str, Any]:
        """What figures of a set with this checksum depend on besides name and seed: see `Results`."""
        return {
            "data": self.train.name, "checksums": list(self.folders.checksums), "synthetic": synthetic,
            "samples": self.samples, "settings": self.request.settings, "train_size": self.request.train_size,
        }  # fmt: skip

    def wanted(self) -> tuple[list[Metric], dict[str, str]]:
        """The metrics to measure, and for each that cannot be had the reason."""
        named = self.request.metrics
        names = named or tuple(name for name in METRICS if name not in BY_NAME_ONLY)
        found: list[Metric] = []
        skipped: dict[str, str] = {}
        for name in dict.fromkeys(name.replace("recall", "precision") for name in names):
            labelled = self.train.labels is not None
            if not labelled and (name == "classifiers" or name in BY_REFERENCE_CLASSIFIER):
                skipped[name] = "the data has no labels"
            elif self.test is None and name in ("classifiers", "nearest", "membership"):
                skipped[name] = "the data has no held-out part; pass one with --test-data"
            elif (
                name in BY_REFERENCE_CLASSIFIER and not named and self.classifier_seconds > MAX_UNASKED_TRAINING_SECONDS
            ):
                skipped[name] = (
                    f"it needs a classifier of the real data, about {self.classifier_seconds / 3600:.1f} hours on "
                    f"this device, once; ask for it by name: --metrics {','.join(BY_REFERENCE_CLASSIFIER)}"
                )
            elif name == "classifiers":
                found += self._classifiers(skipped)
            elif name in BY_INCEPTION:
                if isinstance(self._inception, InceptionMissing):
                    skipped[name] = str(self._inception).rstrip(".")
                else:
                    found.append(self._inception.metric(name))
            elif name in BY_REFERENCE_CLASSIFIER:
                found.append(self._by_reference_classifier(name))
            else:
                found.append(self._remembering(name))
        skipped |= {name.replace("precision", "recall"): why for name, why in skipped.items() if "precision" in name}
        return found, skipped

    # -- by the classifier ---------------------------------------------------------------------------------------------

    @cached_property
    def classifier_seconds(self) -> float:
        """What the classifier would take to train; 0 where it is stored."""
        if self.folders.train is not None and (self.folders.train / "reference-classifier-0.safetensors").is_file():
            return 0.0
        return EPOCHS * self._scaled(_EPOCH, self.train.n)

    def classifier(self, tick: Tick) -> ReferenceClassifier:
        """The classifier trained on the real training data."""
        if "_classifier" not in self.__dict__:
            self._classifier = cached_reference_classifier(
                self.train, self.folders.train, device=self.request.device, progress=tick
            )
        return self._classifier

    def _by_reference_classifier(self, name: str) -> Metric:
        measures = {"inception_score": self._score, "label_accuracy": self._label_accuracy, "precision": self._covered}
        measure = measures[name]
        pairs = _DISTANCES[self.request.device.type] * (self._points / POINTS) ** 2
        forward = self._scaled(_FORWARD, 2 * self._points if name == "precision" else self.samples)
        once = self.classifier_seconds / max(
            1, len(set(measures) & set(self.request.metrics or BY_REFERENCE_CLASSIFIER))
        )  # shared
        seconds = forward + (pairs if name == "precision" else 0.0)
        test = self.test
        return Metric(
            figures=("precision", "recall") if name == "precision" else (name,),
            of=lambda data, _, tick: measure(data, tick), seconds=seconds + (once if test is None else 0.0),
            real=None if test is None else lambda tick: measure(test, tick), real_seconds=seconds + once,
            key=f"{RECIPE}, {self._points} points" if name == "precision" else RECIPE,
        )  # fmt: skip

    @property
    def _points(self) -> int:
        """As many of each set, real or synthetic: the fewer points, the larger the regions."""
        return min(POINTS, self.samples, self.train.n, self.train.n if self.test is None else self.test.n)

    def _score(self, data: ImageData, tick: Tick) -> Figures:
        return {"inception_score": inception_score(self.classifier(tick).probabilities(data.images), splits=10)[0]}

    def _label_accuracy(self, data: ImageData, tick: Tick) -> Figures:
        assert data.labels is not None
        return {"label_accuracy": self.classifier(tick).accuracy(data.images, data.labels)}

    def _covered(self, data: ImageData, tick: Tick) -> Figures:
        size = self._points
        classifier, device = self.classifier(tick), self.request.device
        sets = [
            torch.from_numpy(classifier.features(one.images[np.random.default_rng(0).permutation(one.n)[:size]])).to(
                device
            )
            for one in (self.train, data)
        ]
        precision, recall = precision_recall(sets[0], sets[1])
        return {"precision": precision, "recall": recall}

    # -- by Inception ---------------------------------------------------------------------------------------------

    @cached_property
    def _inception(self) -> InceptionMetrics | InceptionMissing:
        """The metrics that are measured with Inception, or why there are none."""
        try:
            inception = load_inception(self.request.inception_weights, self.request.device)
        except InceptionMissing as missing:
            return missing
        return InceptionMetrics(inception, self.train, self.test, self.folders, samples=self.samples, size=self._points)

    # -- by downstream classifiers --------------------------------------------------------------------------------

    def _classifiers(self, skipped: dict[str, str]) -> Iterator[Metric]:
        request = self.request
        size = request.train_size
        for name in request.classifiers:
            if name == "xgboost" and importlib.util.find_spec("xgboost") is None:
                skipped["classifiers.xgboost"] = 'XGBoost is not installed: pip install "gswgan[eval]"'
                continue
            yield Metric(
                figures=(f"classifiers.{name}",),
                of=partial(self._classified, name),
                seconds=self._classifier_seconds(name, size or self.samples),
                real=partial(self._classified, name, self.train, 0),
                real_seconds=self._classifier_seconds(name, size or self.train.n),
                key=f"{request.settings}, {size or 'all'}",
                also=tuple(f"by_class.{name}.{label}" for label in self.train.class_names),
            )

    def _classifier_seconds(self, name: str, records: int) -> float:
        pixels = self.train.images[0].size
        settings, device = self.request.settings, self.request.device.type
        return estimated_seconds(name, records=records, pixels=pixels, settings=settings, device=device)

    def _classified(self, name: str, data: ImageData, seed: int, tick: Tick) -> Figures:
        request, test = self.request, self.test
        if request.train_size is not None:
            data = stratified(data, request.train_size, seed)
        assert data.labels is not None
        assert test is not None
        assert test.labels is not None
        guesses = predictions(
            name, data.images, data.labels, test.images, classes=test.classes, settings=request.settings, seed=seed,
            device=request.device,
        )  # fmt: skip
        by_class = accuracy_by_class(guesses, test.labels)
        found = {f"by_class.{name}.{test.class_names[label]}": value for label, value in by_class.items()}
        return {f"classifiers.{name}": float((guesses == test.labels).mean()), **found}

    # -- what the set remembers of its training records -----------------------------------------------------------

    def _remembering(self, name: str) -> Metric:
        device = self.request.device
        test = self.test
        assert test is not None

        def near(data: ImageData) -> Figures:
            sets = (data.images, self.train.images, test.images)
            found = vars(nearness(*sets, device=device)) | vars(nearest_records(*sets, device=device))
            return {f"nearest.{key}": value for key, value in found.items()}

        def attack(data: ImageData, seed: int) -> Figures:
            found = membership(data.images, self.train.images, test.images, device=device, seed=seed)
            return {"membership.auc": found.auc, "membership.tpr_at_1_percent_fpr": found.tpr_at_1_percent_fpr}

        near_kinds = ("train", "held_out", "closer_to_train", "record", "record_of_held_out", "near_copies")
        kinds = near_kinds if name == "nearest" else ("auc", "tpr_at_1_percent_fpr")
        pairs = (2 if name == "nearest" else 1) * self.samples * (self.train.n + test.n) / 60_000**2
        return Metric(
            figures=tuple(f"{name}.{kind}" for kind in kinds),
            of=lambda data, seed, _: near(data) if name == "nearest" else attack(data, seed),
            seconds=pairs * _NEIGHBOURS[device.type] * self.train.images[0].size / 784, real=None, real_seconds=0.0,
        )  # fmt: skip

    def _scaled(self, seconds: dict[str, float], images: int) -> float:
        return seconds[self.request.device.type] * images * self.train.images[0].size / (60_000 * 784)
