"""Who belongs, from what a user or a client's configuration says: text and files to `keep_clients`."""

from __future__ import annotations

from pathlib import Path

from gswgan.data import ImageData, keep_clients
from gswgan.errors import DataError
from gswgan.evaluation.reference_classifier import ReferenceClassifier


def choose_clients(
    data: ImageData,
    *,
    min_records: int | None = None,
    accuracy: str | None = None,
    reference_classifier: str | None = None,
) -> ImageData:
    """Without the records of clients that do not belong; each is looked at alone, against constants.

    `accuracy` is FROM..TO, `reference_classifier` the file of a classifier trained on public data.
    """
    if min_records is None and accuracy is None and reference_classifier is None:
        return data
    return keep_clients(
        data,
        min_records=1 if min_records is None else min_records,
        accuracy=None if accuracy is None else _range(accuracy),
        accuracy_of=None if reference_classifier is None else _load(Path(reference_classifier), data).accuracy,
    )


def _range(text: str) -> tuple[float, float]:
    low, dots, high = text.partition("..")
    try:
        if not dots:
            raise ValueError
        return float(low or 0), float(high or 1)
    except ValueError:
        raise DataError("accuracy", text, "FROM..TO within 0 to 1", "Pass --accuracy 0.939..1, say.") from None


def _load(path: Path, data: ImageData) -> ReferenceClassifier:
    """The saved classifier, if it is one for this data."""
    if not path.is_file():
        raise DataError(
            "reference_classifier",
            str(path),
            "the file of a classifier (`gswgan reference-classifier`)",
            "Check the path (--reference-classifier).",
        )
    classifier = ReferenceClassifier.load(path)
    wanted = (data.channels, data.image_size, data.classes)
    found = (classifier.facts.channels, classifier.facts.image_size, classifier.facts.classes)
    if found != wanted:
        raise DataError(
            "reference_classifier",
            f"channels, side, classes {found}",
            f"{wanted}, as the data has",
            "Train it on data of this kind.",
        )
    return classifier
