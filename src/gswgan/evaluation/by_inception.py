"""What is measured with the features of Inception: FID, KID, precision and recall."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from torch import Tensor

from gswgan.data import ImageData
from gswgan.evaluation.frechet import Moments, frechet_distance
from gswgan.evaluation.inception import Inception, reference_moments, seconds_per_image
from gswgan.evaluation.kernel_distance import kernel_distance
from gswgan.evaluation.metric import Figures, Metric, Tick
from gswgan.evaluation.precision_recall import precision_recall
from gswgan.evaluation.references import ReferenceFolders

_PAIRS = {"cpu": 550.0, "cuda": 5.0}  # seconds of precision and recall for 10,000 features of each set


class InceptionMetrics:
    """The metrics of one pair of training and test set; `size` images of each set are compared one by one."""

    def __init__(
        self,
        inception: Inception,
        train: ImageData,
        test: ImageData | None,
        folders: ReferenceFolders,
        *,
        samples: int,
        size: int,
    ) -> None:
        self._inception, self._train, self._test, self._folders = inception, train, test, folders
        self._samples, self._size = samples, size
        self._each = seconds_per_image(inception, train.images)
        self._moments: Moments | None = None
        self._kept: dict[int, tuple[np.ndarray, Tensor]] = {}

    def metric(self, name: str) -> Metric:
        """The metric of this name: fid, kid or inception_precision (with inception_recall)."""
        if name == "fid":
            return self._make(("fid",), self._fid, self._samples)
        if name == "kid":
            return self._make(("kid", "kid_error"), self._kid, self._size)
        pairs = _PAIRS[self._inception.device.type] * (self._size / 10_000) ** 2
        return self._make(("inception_precision", "inception_recall"), self._covered, self._size, pairs)

    def _make(
        self, figures: tuple[str, ...], of: Callable[[np.ndarray, Tick], Figures], images: int, more: float = 0.0
    ) -> Metric:
        test = self._test
        about = "" if figures == ("fid",) else f", {self._size} images"
        return Metric(
            figures=figures, of=lambda data, _, tick: of(data.images, tick), seconds=self._each * images + more,
            real=None if test is None else lambda tick: of(test.images, tick),
            real_seconds=0.0 if test is None else self._each * (images if about else self._train.n + test.n) + more,
            key=self._inception.weights_kind + about,
        )  # fmt: skip

    def _fid(self, images: np.ndarray, tick: Tick) -> Figures:
        if self._moments is None:
            self._moments = reference_moments(self._train.images, self._inception, self._folders.train, progress=tick)
        is_test = self._test is not None and images is self._test.images
        folder: Path | None = self._folders.test if is_test else None
        moments = reference_moments(images, self._inception, folder, progress=tick)
        return {"fid": frechet_distance(self._moments, moments)}

    def _kid(self, images: np.ndarray, tick: Tick) -> Figures:
        distance, error = kernel_distance(self._features(self._train.images), self._features(images))
        return {"kid": distance, "kid_error": error}

    def _covered(self, images: np.ndarray, tick: Tick) -> Figures:
        precision, recall = precision_recall(self._features(self._train.images), self._features(images))
        return {"inception_precision": precision, "inception_recall": recall}

    def _features(self, images: np.ndarray) -> Tensor:
        """Features of `size` of the images, of the training set and of the set that was asked for last."""
        if id(images) not in self._kept:
            some = images[np.random.default_rng(0).permutation(len(images))[: self._size]]
            ours = id(self._train.images)
            self._kept = {key: value for key, value in self._kept.items() if key == ours}
            self._kept[id(images)] = (images, self._inception(some))  # the images are held, so that their id is theirs
        return self._kept[id(images)][1]
