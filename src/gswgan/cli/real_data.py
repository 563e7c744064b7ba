"""Real data, from what the command line or the memory of a run says about it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from gswgan.errors import DataError

if TYPE_CHECKING:
    from gswgan.data import ImageData

EVERYBODY: dict[str, None] = {"group_by": None, "min_records": None, "accuracy": None, "judge": None}
"""Laid over what a run remembers: the same source without persons that were named, and without a choice of them."""


def load_data(
    *,
    min_records: int | None = None,
    accuracy: str | None = None,
    judge: str | None = None,
    split: str = "train",
    **where: Any,
) -> ImageData:
    """`gswgan.data.load_data`, without the records of the clients that the options leave out (`keep_clients`).

    `accuracy` is FROM..TO, `judge` the file of a classifier that was trained on public data. Clients are chosen in the
    training part only: nobody is left out of a held-out part.
    """
    from gswgan.data import keep_clients
    from gswgan.data import load_data as load_all

    data = load_all(split=split, **where)
    if split != "train" or (min_records is None and accuracy is None and judge is None):
        return data
    return keep_clients(
        data,
        min_records=1 if min_records is None else min_records,
        accuracy=None if accuracy is None else _range(accuracy),
        judge=None if judge is None else _load_judge(Path(judge), data),
    )


def load_held_out(train: ImageData, test_data: str | None = None, **where: Any) -> ImageData | None:
    """What is held out of the source that `train` came from, or of `test_data`; None where there is nothing."""
    from gswgan.data.sources import NAMES

    where |= EVERYBODY
    try:
        test = load_data(**where | {"spec": test_data or where["spec"]}, split="test")
    except DataError:
        if test_data is not None:
            test = load_data(**where | {"spec": test_data})  # a file or folder that is held out as a whole
        elif where["spec"] in NAMES:
            raise
        else:
            return None
    if test.images.shape[1:] != train.images.shape[1:] or (test.labels is None) != (train.labels is None):
        raise DataError(
            "test-data", f"images {test.images.shape[1:]}, labels: {test.labels is not None}",
            f"images {train.images.shape[1:]}, labels: {train.labels is not None}, as the training data has",
        )  # fmt: skip
    return test


def _range(text: str) -> tuple[float, float]:
    low, dots, high = text.partition("..")
    try:
        if not dots:
            raise ValueError
        return float(low or 0), float(high or 1)
    except ValueError:
        raise DataError("accuracy", text, "FROM..TO within 0 to 1", "Pass --accuracy 0.939..1, say.") from None


def _load_judge(path: Path, data: ImageData) -> Any:
    """The accuracy of the saved classifier, if it is one for this data."""
    from gswgan.evaluation.judge import Judge

    if not path.is_file():
        raise DataError("judge", str(path), "the file of a classifier (`Judge.save`)", "Check the path (--judge).")
    judge = Judge.load(path)
    wanted = (data.channels, data.image_size, data.classes)
    found = (judge.facts.channels, judge.facts.image_size, judge.facts.classes)
    if found != wanted:
        raise DataError(
            "judge", f"channels, side, classes {found}", f"{wanted}, as the data has", "Train it on data of this kind."
        )
    return judge.accuracy
