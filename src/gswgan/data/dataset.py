"""The one form in which images enter the package, and the validation that defines its domain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from gswgan.data.pixels import check_depth, to_bytes
from gswgan.data.read_options import AS_IT_IS, Reading
from gswgan.data.resize import check_image_size, check_square, fit_square
from gswgan.errors import DataError, short

MAX_CLASSES = 10_000
MAX_NAME_CHARACTERS = 100  # characters of a class name
MAX_ID_CHARACTERS = 256  # characters of a person's id
_CHUNK = 1024  # records converted at a time, so that float input is never held twice


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageData:
    """Validated images: the domain over which neighbours are defined. Made by `make_image_data`.

    Public: `public_records`, the shape, the classes, the list of persons. Private: what the arrays hold (so
    no array is ever part of the printed form). Neighbours differ in one record, content and label, at the
    same index; with `persons`, in all records of one person, and in whether these were left out.
    """

    name: str
    images: np.ndarray = field(repr=False)  # uint8 [n, channels, size, size], channels 1 or 3
    labels: np.ndarray | None = field(repr=False)  # int64 [n] in 0..classes-1, or None
    classes: int  # public; 1 without labels
    class_names: tuple[str, ...]  # public
    persons: np.ndarray | None = field(default=None, repr=False)  # int64 [n], places in the list of persons
    person_ids: tuple[str, ...] = field(default=(), repr=False)  # public: the list of persons, with or without records
    left_out: int = 0  # records of listed persons that `keep_clients` left out; they stay in the public count
    repeated_names: tuple[str, ...] = field(default=(), repr=False)  # of files whose place depends on their class
    reading: Reading = AS_IT_IS  # public: how pixels and folders were read

    @property
    def n(self) -> int:
        """The number of records."""
        return int(self.images.shape[0])

    @property
    def channels(self) -> int:
        """1 for grey, 3 for colour."""
        return int(self.images.shape[1])

    @property
    def image_size(self) -> int:
        """The side of the square images in pixels."""
        return int(self.images.shape[2])

    @property
    def labelled(self) -> bool:
        """Whether there are labels."""
        return self.labels is not None

    @property
    def number_of_persons(self) -> int:
        """P, the length of the list of persons (public); 0 where every record stands for itself."""
        if self.persons is None:
            return 0
        return len(self.person_ids) or int(self.persons.max()) + 1

    @property
    def public_records(self) -> int:
        """The number of records before any person was left out for what they hold (public)."""
        return self.n + self.left_out


def make_image_data(
    images: ArrayLike,
    labels: ArrayLike | None = None,
    *,
    classes: int | None = None,
    class_names: Sequence[str] | None = None,
    image_size: int | None = None,
    persons: ArrayLike | None = None,
    person_ids: Sequence[str] | None = None,
    name: str = "arrays",
    reading: Reading = AS_IT_IS,
) -> ImageData:
    """Validate channel-last arrays and copy them into an ImageData.

    `images` is uint8, or float in [0, 1] (rounded to 255 levels), or any numbers with `reading.pixel_range`, of shape
    [n, h, w], [n, h, w, 1] or [n, h, w, 3]; [n, h, w, 4] with `reading.background`. `labels` are integers below
    `classes`, which is a public input and never counted from the data. `image_size` scales and pads to
    a square; without it the images must be square, 8 to 128 pixels.
    `persons` holds one id per record, integers or strings; the sorted list of ids is public. Where the list is
    known apart from the records (some persons may have none), it is `person_ids`, and `persons` are places in it.
    """
    pixels = _to_uint8(_as_array(images, "images"), image_size, reading)
    number = pixels.shape[0]
    if labels is None:
        if classes not in (None, 1):
            raise DataError("classes", classes, "1 (or nothing) without labels", "Pass labels, or leave classes out.")
        classes, checked = 1, None
        names = ("all",) if class_names is None else tuple(class_names)
    else:
        classes = _check_classes(classes)
        checked = _check_labels(_as_array(labels, "labels"), number, classes)
        names = tuple(str(index) for index in range(classes)) if class_names is None else tuple(class_names)
    _check_names(names, classes)
    places: np.ndarray | None = None
    ids: tuple[str, ...] = ()
    if persons is not None:
        places, ids = _dense_persons(_as_array(persons, "persons"), number, person_ids)
    return ImageData(
        name="".join(letter if letter.isprintable() else "?" for letter in name[:MAX_NAME_CHARACTERS]), images=pixels,
        labels=checked, classes=classes, class_names=names, persons=places, person_ids=ids, reading=reading,
    )  # fmt: skip


def _as_array(value: ArrayLike, name: str) -> np.ndarray:
    try:
        return np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise DataError(
            name, type(value).__name__, "an array with entries of one shape and type", "Pass it through np.asarray."
        ) from error


def _to_uint8(images: np.ndarray, image_size: int | None, reading: Reading) -> np.ndarray:
    """Channel-last input to a fresh uint8 [n, channels, size, size]."""
    if images.ndim not in (3, 4) or (images.ndim == 4 and images.shape[3] not in (1, 3, 4)):
        raise DataError(
            "images", f"shape {images.shape}", "shape [n, h, w], [n, h, w, 1] or [n, h, w, 3], channels last",
            "Move the channels to the end with np.moveaxis(images, 1, -1) if they come first.",
        )  # fmt: skip
    if 0 in images.shape:
        raise DataError(
            "images", f"shape {images.shape}", "at least one image with at least one pixel", "Check what was saved."
        )
    check_depth(images.dtype, reading, name="images")
    height, width = images.shape[1:3]
    if image_size is None:
        check_square(height, width, name="images")
        size = height
    else:
        size = check_image_size(image_size)
    images = images if images.ndim == 4 else images[..., None]
    out = np.empty((len(images), 1 if images.shape[3] == 1 else 3, size, size), np.uint8)
    for start in range(0, len(images), _CHUNK):
        chunk = to_bytes(images[start : start + _CHUNK], reading, name="images", start=start)
        if (height, width) != (size, size):
            grey = chunk.shape[3] == 1
            crop = reading.fit == "crop"
            squares = [fit_square(picture[..., 0] if grey else picture, size, crop=crop) for picture in chunk]
            chunk = np.stack(squares).reshape(len(chunk), size, size, -1)
        out[start : start + _CHUNK] = np.moveaxis(chunk, 3, 1)
    return out


def _check_classes(classes: int | None) -> int:
    if classes is None:
        raise DataError(
            "classes", None, "the number of classes: labels came without it, and it is never taken from the data",
            "Pass classes=N (--classes N); it is a public fact, whether or not every class occurs.",
        )  # fmt: skip
    whole = isinstance(classes, (int, np.integer)) and not isinstance(classes, bool)
    if not whole or not 1 <= classes <= MAX_CLASSES:
        raise DataError(
            "classes", short(classes), f"a whole number from 1 to {MAX_CLASSES}", "Pass classes=N (--classes N)."
        )
    return int(classes)


def _check_names(names: tuple[str, ...], classes: int) -> None:
    """Class names are printed, and written into the release card: nothing in them may pass for anything else."""
    if len(names) != classes or len(set(names)) != classes:
        raise DataError("class_names", short(names), f"{classes} different names, one for each class", "Rename them.")
    for index, name in enumerate(names):
        if not isinstance(name, str) or not name.isprintable() or not 1 <= len(name) <= MAX_NAME_CHARACTERS:
            raise DataError(
                f"class_names[{index}]", short(name, MAX_NAME_CHARACTERS),
                f"1 to {MAX_NAME_CHARACTERS} printable characters", "Rename the class (its folder).",
            )  # fmt: skip


def _check_labels(labels: np.ndarray, number: int, classes: int) -> np.ndarray:
    if labels.dtype.kind not in "iu":
        raise DataError("labels", f"dtype {labels.dtype}", "integers", "Number the classes from 0.")
    if labels.shape != (number,):
        raise DataError(
            "labels", f"shape {labels.shape}", f"shape ({number},): one label per image",
            "Check that labels and images are of the same records.",
        )  # fmt: skip
    valid = (labels >= 0) & (labels < classes)
    if not valid.all():
        index = int(np.argmin(valid))
        raise DataError(
            f"labels[{index}]", int(labels[index]), f"a class from 0 to {classes - 1}",
            "Number the classes from 0, or pass the right number of classes (--classes N).",
        )  # fmt: skip
    return labels.astype(np.int64)


def _dense_persons(
    persons: np.ndarray, number: int, listed: Sequence[str] | None
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Persons as 0..P-1 in the sorted order of their ids, which no record's content can change; and the ids."""
    of_strings = persons.dtype.kind == "O" and all(isinstance(person, str) for person in persons.flat)
    if persons.dtype.kind not in "iuUS" and not of_strings:
        raise DataError(
            "persons", f"dtype {persons.dtype}", "one integer or string per record", "Check the ids (--group-by)."
        )
    if persons.shape != (number,):
        raise DataError(
            "persons", f"shape {persons.shape}", f"shape ({number},): one id per record, in the order of the images",
            "Check that the ids (--group-by) belong to these images, and that a text file has no header line.",
        )  # fmt: skip
    if listed is not None:
        ids, places = tuple(listed), persons
        if persons.dtype.kind not in "iu" or persons.min() < 0 or persons.max() >= len(ids) or list(ids) != sorted(ids):
            raise DataError("persons", short(ids), "places in a sorted list of ids", "Sort person_ids.")
    elif of_strings:  # one long id must not make all of them long
        ids = tuple(sorted(set(persons)))
        place = {person: index for index, person in enumerate(ids)}
        places = np.array([place[person] for person in persons])
    else:
        unique, places = np.unique(persons, return_inverse=True)
        is_bytes = persons.dtype.kind == "S"
        ids = tuple(person.decode("utf-8", "backslashreplace") if is_bytes else str(person) for person in unique)
    for person in ids:
        if not person.isprintable() or not 1 <= len(person) <= MAX_ID_CHARACTERS:
            raise DataError(
                "persons", short(ascii(person)), f"ids of 1 to {MAX_ID_CHARACTERS} printable characters",
                "Rename the person (--group-by).",
            )  # fmt: skip
    if len(set(ids)) != len(ids):
        raise DataError("persons", short(ids), "different ids", "Name every person once.")
    return places.astype(np.int64), ids
