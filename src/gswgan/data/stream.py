"""More data than memory: what is public about a data set in many files, and its records a few at a time.

The first records are validated as data in memory is, which defines the domain (`gswgan.data`). From there on every
record maps to what it adds by a total function: what cannot be decoded is a black image of no class. It keeps its
place among the others, whose arithmetic it must not change, and adds nothing.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gswgan.data.dataset import ImageData, make_image_data
from gswgan.data.files import DataFiles, Part, Raw, find_data_files, read_batches, to_picture
from gswgan.data.image_folder import check_channels, stack_pictures
from gswgan.data.read_options import AS_IT_IS, DEFAULTS, Reading, ReadOptions
from gswgan.data.readers import check_claim
from gswgan.data.resize import fit_square
from gswgan.errors import DataError

HEAD = 100
"""Records that are looked at before the plan is made: they must be valid, and of one shape unless it is given."""

NO_CLASS = -1
"""The label of a record that adds nothing."""


@dataclass(frozen=True, kw_only=True)
class PartReader:
    """Reads any part of a data set of this shape. All of it is public."""

    image_size: int
    channels: int
    classes: int
    labelled: bool
    reading: Reading = AS_IT_IS

    def read(self, part: Part) -> Iterator[ImageData]:
        """The records of a part, a batch at a time; without labels all are of class 0. Nothing in a record raises."""
        for batch in read_batches(part):
            images = np.zeros((len(batch), self.channels, self.image_size, self.image_size), np.uint8)
            labels = np.full(len(batch), NO_CLASS, np.int64)
            for index, (raw, label) in enumerate(batch):
                wanted = label if self.labelled else 0
                picture = self._square(raw)
                if picture is not None and wanted is not None and 0 <= wanted < self.classes:
                    images[index], labels[index] = picture, wanted
            names = tuple(str(label) for label in range(self.classes))
            yield ImageData(name="part", images=images, labels=labels, classes=self.classes, class_names=names)

    def _square(self, raw: Raw) -> np.ndarray | None:
        """[channels, size, size], or None for what is no image."""
        try:
            picture = to_picture(raw, channels=self.channels, how=self.reading, name="record")
            square = fit_square(picture, self.image_size, crop=self.reading.fit == "crop")
        except MemoryError:  # says nothing about the record
            raise
        except Exception:
            return None
        square = square[None] if square.ndim == 2 else np.moveaxis(square, 2, 0)
        return square if len(square) == self.channels else None


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageStream:
    """A data set in many files, with the public facts that an `ImageData` has; its images stay on the disk.

    Neighbours differ in one record, content and label, in the same place of the same files.
    """

    files: DataFiles
    reader: PartReader
    class_names: tuple[str, ...]
    name: str  # public: what kind of data it is; the folder is not named
    public_records: int  # whether they can be decoded or not
    classes: int  # 1 without labels
    labelled: bool
    image_size: int
    channels: int
    reading: Reading = AS_IT_IS
    persons: None = None
    number_of_persons: int = 0


def open_stream(spec: str | Path, options: ReadOptions = DEFAULTS, **named: Any) -> ImageStream | None:
    """A folder of Parquet or npz files, or of very many images, to be read in parts; None for any other data.

    How to read it is said by `options`, or by its fields as keywords.
    """
    options = replace(options, **named)
    how, classes = options.reading, options.classes
    files = find_data_files(Path(spec), many_files=True, how=how) if os.path.isdir(spec) else None
    if files is None:
        return None
    check_layout(files, how)
    labels = options.labels and files.labelled
    images, found = read_data_files(files, options, records=HEAD)
    names = files.class_names if labels else None
    if names is not None and classes not in (None, len(names)):
        raise DataError("classes", classes, f"{len(names)}, the number of classes of {spec}", "Leave it out.")
    if names is not None:
        classes = len(names)
    head = make_image_data(
        images, found if labels else None, classes=classes, class_names=names, image_size=options.image_size,
        name=files.kind,
    )  # fmt: skip
    reader = PartReader(
        image_size=head.image_size, channels=head.channels, classes=head.classes, labelled=head.labels is not None,
        reading=how,
    )  # fmt: skip
    return ImageStream(
        files=files, reader=reader, class_names=head.class_names, name=files.kind, public_records=files.records,
        **vars(reader),
    )  # fmt: skip


def check_layout(files: DataFiles, how: Reading) -> None:
    """A layout is of folders of images alone."""
    if how.layout is not None and files.kind != "image folder":
        raise DataError("layout", how.layout, f"nothing: {files.kind} have no folders", "Leave --layout out.")


def read_data_files(
    files: DataFiles, options: ReadOptions, *, records: int | None = None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Images [n, h, w, channels] and labels of all records (or the first so many) in memory, each of them validated."""
    image_size, channels, how = options.image_size, options.channels, options.reading
    check_channels(channels)
    if not files.records:
        raise DataError("data", files.name, "at least one record", "Check the path (--data).")
    labels: list[int] = []
    batches = itertools.chain.from_iterable(read_batches(part) for part in files.parts)
    stored = itertools.islice(itertools.chain.from_iterable(batches), records)

    def pictures() -> Iterator[tuple[str, np.ndarray]]:
        for index, (raw, label) in enumerate(stored):
            name = f"{files.name}, record {index}"
            picture = to_picture(raw, channels=channels, how=how, name=name)
            if index == 0:
                side = image_size or picture.shape[0]
                claimed = min(files.records, records or files.records) * side**2 * (3 if picture.ndim == 3 else 1)
                check_claim(Path(files.name), (files.records, side, side), claimed, claimed)
            if files.labelled and label is None:
                raise DataError(f"{name}: label", None, "an integer", "Mend the record or leave it out.")
            labels.append(label if label is not None else NO_CLASS)
            yield name, picture

    images = stack_pictures(pictures(), image_size, how)
    return images, np.array(labels, np.int64) if files.labelled else None
