"""Real data as the command line, a client's configuration or the source of a run names it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gswgan.data import ImageData, ImageStream, keep_clients, open_stream
from gswgan.data import load_data as load_all
from gswgan.data.image_folder import has_two_levels
from gswgan.data.sources import NAMES
from gswgan.errors import DataError, path_problem, short
from gswgan.evaluation.reference_classifier import ReferenceClassifier

NO_CHOICE_OF_PERSONS: dict[str, None] = {
    "group_by": None, "missing": None, "min_records": None, "accuracy": None, "reference_classifier": None,
}  # fmt: skip
"""Laid over the source of a run: the same data without named persons, and without a choice of them."""


def load_data(
    *,
    min_records: int | None = None,
    accuracy: str | None = None,
    reference_classifier: str | None = None,
    split: str = "train",
    **where: Any,
) -> ImageData:
    """`gswgan.data.load_data`, without the records of the clients that the options leave out.

    The options are those of `choose_clients`. Clients are chosen in the training part only: nobody is left out of a
    held-out part.
    """
    data = load_all(split=split, **where)
    if split != "train":
        return data
    data = choose_clients(data, min_records=min_records, accuracy=accuracy, reference_classifier=reference_classifier)
    if not data.n:
        raise DataError("clients", "none that belongs", "at least one", "Loosen --min-records or --accuracy.")
    return data


def open_data(**where: Any) -> ImageData | ImageStream:
    """A folder of many files as a stream, where no persons are asked for; any other data in memory."""
    wanted = {name: value for name, value in where.items() if name not in (*NO_CHOICE_OF_PERSONS, "spec")}
    by_person = any(where.get(name) is not None for name in NO_CHOICE_OF_PERSONS)
    spec = where["spec"]
    stream = None if by_person or spec in ("", *NAMES) else open_stream(spec, **wanted)
    return load_data(**where) if stream is None else stream


def load_held_out(
    train: ImageData, test_data: str | None = None, *, note: Callable[[str], None] = lambda text: None, **where: Any
) -> ImageData | None:
    """What is held out of the source that `train` came from, or of `test_data`; None where there is nothing.

    Its classes are those of `train`, found by their names. `note` is told which of them have no records here.
    """
    where |= NO_CHOICE_OF_PERSONS
    if test_data is not None:
        test = _load_whole(test_data, train.classes, where)
    else:
        try:
            test = load_data(**where, split="test")
        except DataError:
            if where["spec"] in NAMES:
                raise
            return None
    if test.images.shape[1:] != train.images.shape[1:] or test.labelled != train.labelled:
        raise DataError(
            "test-data", f"images {test.images.shape[1:]}, labels: {test.labelled}",
            f"images {train.images.shape[1:]}, labels: {train.labelled}, as the training data has",
        )  # fmt: skip
    if test.labels is None or train.classes == 1:
        return test
    test = match_classes(test, train.class_names, "test-data: classes")
    found = set(test.labels.tolist()) if test.labels is not None else set()
    missing = [name for label, name in enumerate(test.class_names) if label not in found]
    if test.classes - len(missing) < 2:
        expected = "records of at least two classes to tell apart"
        raise DataError("test-data: classes", test.classes - len(missing), expected, "Pass other --test-data.")
    if missing:
        note(
            f"The held-out data has no records of {', '.join(missing)}: left out of the scores, which are about the "
            f"other {test.classes - len(missing)} classes."
        )
    return test


def _load_whole(test_data: str, known: int, where: dict[str, Any]) -> ImageData:
    """The held-out part of these data, or all of them where they have no such part."""
    here = where | {"spec": test_data}
    if here.get("layout") is not None and not (os.path.isdir(test_data) and has_two_levels(Path(test_data))):
        here["layout"] = None
    wrong: DataError | None = None
    for split in ("test", "train"):
        for classes in (
            known if here.get("labels", True) else None,
            None,
        ):  # where classes are missing, it names those that it has
            try:
                return load_data(**here | {"split": split, "classes": classes})
            except DataError as error:
                wrong = error
                if error.name != "classes":
                    break
    assert wrong is not None
    raise wrong


def match_classes(data: ImageData, names: Sequence[str], field: str) -> ImageData:
    """The same records with their classes in the order of `names`; a name that is not among them is refused."""
    if data.labels is None or data.class_names == tuple(names):
        return data
    place = {name: label for label, name in enumerate(names)}
    if unknown := [name for name in data.class_names if name not in place]:
        raise DataError(
            field, short(", ".join(unknown)), f"names of classes that the run knows: {short(', '.join(names), 200)}",
            "Rename the folders of the classes; data whose classes have numbers only cannot be matched to names.",
        )  # fmt: skip
    labels = np.array([place[name] for name in data.class_names])[data.labels]
    return dataclasses.replace(data, labels=labels, classes=len(names), class_names=tuple(names))


def choose_clients(
    data: ImageData,
    *,
    min_records: int | None = None,
    accuracy: str | None = None,
    reference_classifier: str | None = None,
) -> ImageData:
    """Without the records of clients that do not belong; each client is compared with constants, by itself.

    `accuracy` is FROM..TO, `reference_classifier` the file of a classifier trained on public data.
    """
    if min_records is None and accuracy is None and reference_classifier is None:
        return data
    return keep_clients(
        data,
        min_records=1 if min_records is None else min_records,
        accuracy=None if accuracy is None else _range(accuracy),
        accuracy_of=None if reference_classifier is None else _classifier(Path(reference_classifier), data).accuracy,
    )


def _range(text: str) -> tuple[float, float]:
    low, dots, high = text.partition("..")
    try:
        if not dots:
            raise ValueError
        return float(low or 0), float(high or 1)
    except ValueError:
        raise DataError("accuracy", text, "FROM..TO within 0 to 1", "Pass --accuracy 0.939..1, say.") from None


def _classifier(path: Path, data: ImageData) -> ReferenceClassifier:
    """The saved classifier, if it is one for this data."""
    expected = "the file of a classifier (`gswgan reference-classifier`)"
    if not path.is_file():
        expected += path_problem(path)
        raise DataError("reference_classifier", str(path), expected, "Check the path (--reference-classifier).")
    classifier = ReferenceClassifier.load(path)
    wanted = (data.channels, data.image_size, data.classes)
    found = (classifier.facts.channels, classifier.facts.image_size, classifier.facts.classes)
    if found != wanted:
        found_text, expected = f"channels, side, classes {found}", f"{wanted}, as the data has"
        raise DataError("reference_classifier", found_text, expected, "Train it on data of this kind.")
    return classifier
