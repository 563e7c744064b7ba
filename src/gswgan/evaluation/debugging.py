"""The debugging task (Augenstein et al. 2019; the paper's federated evaluation): find a bug by looking at fakes.

A faulty pre-processing step inverts the images of some clients. A client decides alone whether it is suspected: by the
accuracy of a public classifier on its own records, against a threshold that was fixed on public data. It answers for
the group that it belongs to and counts as zero in the other. So of the two releases only one has anything of a
client, and both together protect a client (zeroed) as one of them does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from gswgan.data import ImageData, clients
from gswgan.data.clients import Accuracy, without_records
from gswgan.errors import DataError
from gswgan.evaluation.reference_classifier import ReferenceClassifier, train_reference_classifier

Group = Literal["suspected", "unsuspected"]
GROUPS: tuple[Group, Group] = ("suspected", "unsuspected")

EPOCHS = 3
"""Of the public classifier: enough to tell a bug by, and soon done."""

ENOUGH = 50
"""Records of a client that the classifier is tried on, the first ones: enough to tell, and soon done."""

_STREAM = int.from_bytes(b"bug", "big")


def with_bug(data: ImageData, *, seed: int, share: float = 0.5) -> ImageData:
    """The images of a share of the clients, chosen by seed and place alone, with their intensities inverted."""
    faulty = affected(data, seed=seed, share=share)
    assert data.persons is not None
    images = data.images.copy()
    rows = faulty[data.persons]
    images[rows] = 255 - images[rows]
    return dataclasses.replace(data, images=images)


def with_broken_scanner(parts: Mapping[str, ImageData], *, seed: int) -> dict[str, ImageData]:
    """The data of a few sites, of which one, chosen by the seed alone, has its intensities inverted."""
    broken = sorted(parts)[int(np.random.default_rng([seed, _STREAM]).integers(len(parts)))]
    part = parts[broken]
    return {**parts, broken: dataclasses.replace(part, images=255 - part.images)}


def affected(data: ImageData, *, seed: int, share: float = 0.5) -> np.ndarray:
    """Whether each client has the bug, [clients]."""
    if data.persons is None:
        raise DataError("data", data.name, "records by person", "Use data by user (mnist-writers).")
    order = np.random.default_rng([seed, _STREAM]).permutation(data.number_of_persons)
    return order < round(share * data.number_of_persons)


@dataclass(frozen=True)
class SuspicionRule:
    """A public classifier and the accuracy below which a client is suspected."""

    classifier: ReferenceClassifier
    threshold: float

    def parts(self, data: ImageData) -> dict[Group, ImageData]:
        """The data of each group."""
        return split(data, self.classifier.accuracy, self.threshold)


def split(data: ImageData, accuracy: Accuracy, threshold: float) -> dict[Group, ImageData]:
    """What each client holds for each group: all its records in one, none in the other; the list of clients stays.

    A client looks at its own records alone.
    """
    suspected = reached(data, accuracy) < threshold
    return {"suspected": without_records(data, suspected), "unsuspected": without_records(data, ~suspected)}


def reached(data: ImageData, accuracy: Accuracy) -> np.ndarray:
    """The accuracy at each client, [clients]; 0 at one without records, which has nothing to answer with."""
    found = []
    for _, own in clients(data):
        if own.labels is None:
            raise DataError("data", data.name, "labelled data, to try a classifier on")
        found.append(accuracy(own.images[:ENOUGH], own.labels[:ENOUGH]) if own.n else 0.0)
    return np.array(found)


def fit_suspicion_rule(public: ImageData, *, device: torch.device) -> SuspicionRule:
    """From public data alone: a classifier of four fifths of its persons, a threshold from the others."""
    learn, held_out = halves(public)
    classifier = train_reference_classifier(learn, device=device, epochs=EPOCHS)
    return SuspicionRule(classifier, find_threshold(held_out, classifier.accuracy))


def halves(public: ImageData) -> tuple[ImageData, ImageData]:
    """Four fifths of the persons to learn from, one fifth to fix the threshold on."""
    if public.persons is None or public.labels is None or public.number_of_persons < 5:
        raise DataError("public", public.name, "labelled records of at least 5 persons")
    last = public.persons % 5 == 4
    parts = []
    for rows in (~last, last):
        parts.append(
            dataclasses.replace(
                public, images=public.images[rows], labels=public.labels[rows], persons=public.persons[rows]
            )
        )
    return parts[0], parts[1]


def find_threshold(public: ImageData, accuracy: Accuracy) -> float:
    """Half-way from what most persons with the bug reach (95 %) to what most without it reach (all but 5 %)."""
    there = np.bincount(public.persons, minlength=public.number_of_persons) > 0  # type: ignore[arg-type]
    inverted = dataclasses.replace(public, images=255 - public.images)
    right, wrong = (reached(part, accuracy)[there] for part in (public, inverted))
    good, faulty = float(np.quantile(right, 0.05)), float(np.quantile(wrong, 0.95))
    if good <= faulty:
        raise DataError(
            "public", f"accuracy {good:.3f} without the bug, {faulty:.3f} with it", "a classifier that a bug disturbs",
            "Use public data that is like the clients'.",
        )  # fmt: skip
    return (good + faulty) / 2


def bright_share(images: np.ndarray) -> float:
    """The share of images, uint8 [n, side, side] or [n, side, side, 3], whose frame is brighter than half."""
    if images.dtype != np.uint8 or not len(images):
        raise DataError("images", images.dtype, "uint8 images")
    grey = images.mean(axis=3) if images.ndim == 4 else images
    edge = max(1, grey.shape[1] // 14)
    frame = np.ones(grey.shape[1:], bool)
    frame[edge:-edge, edge:-edge] = False
    return float((grey[:, frame].mean(axis=1) > 127.5).mean())
