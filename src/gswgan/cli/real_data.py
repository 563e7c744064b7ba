"""Real data, from what the command line or the memory of a run says about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gswgan.errors import DataError

if TYPE_CHECKING:
    from gswgan.data import ImageData, ImageStream

NO_CHOICE_OF_PERSONS: dict[str, None] = {
    "group_by": None,
    "min_records": None,
    "accuracy": None,
    "reference_classifier": None,
}
"""Laid over what a run remembers: the same source without persons that were named, and without a choice of them."""


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
    from gswgan.data import load_data as load_all
    from gswgan.evaluation.choice import choose_clients

    data = load_all(split=split, **where)
    if split != "train":
        return data
    data = choose_clients(data, min_records=min_records, accuracy=accuracy, reference_classifier=reference_classifier)
    if not data.n:
        raise DataError("clients", "none that belongs", "at least one", "Loosen --min-records or --accuracy.")
    return data


def open_data(**where: Any) -> ImageData | ImageStream:
    """A folder of many files as a stream, where no persons are asked for; any other data in memory."""
    from gswgan.data import open_stream
    from gswgan.data.sources import NAMES

    wanted = {name: where[name] for name in ("spec", "classes", "image_size", "channels", "labels") if name in where}
    by_person = any(where.get(name) is not None for name in NO_CHOICE_OF_PERSONS)
    stream = None if by_person or where["spec"] in ("", *NAMES) else open_stream(**wanted)
    return load_data(**where) if stream is None else stream


def load_held_out(train: ImageData, test_data: str | None = None, **where: Any) -> ImageData | None:
    """What is held out of the source that `train` came from, or of `test_data`; None where there is nothing."""
    from gswgan.data.sources import NAMES

    where |= NO_CHOICE_OF_PERSONS
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
