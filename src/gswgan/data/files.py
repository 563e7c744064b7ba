"""A data set in many files, read a part at a time: Parquet files, npz files, or very many image files.

How records lie in files and row groups is public, as their number is. It fixes the parts, which no record's content
can move.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from gswgan.data import parquet
from gswgan.data.image_folder import has_two_levels, list_folder, visible
from gswgan.data.picture import SUFFIXES, read_image
from gswgan.data.pixels import check_depth, to_bytes, to_channels
from gswgan.data.read_options import AS_IT_IS, Reading
from gswgan.data.readers import npz_header, read_npz, reading
from gswgan.errors import DataError, short

RECORDS_PER_PART = 4096
"""Records that a worker reads in one go, or the next larger number of whole row groups (of an npz: all of it)."""

RECORDS_PER_BATCH = 256
"""Records that are held at a time."""

MAX_FILES_IN_MEMORY = 50_000
"""More image files than this are read a part at a time."""

_SPLITS = {"train": ("train",), "test": ("test", "t10k"), "other": ("val", "dev")}

Raw: TypeAlias = bytes | np.ndarray | Path | None
"""An image as it is stored: encoded, an array, a file; None where there is none."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """Consecutive records of one file, or consecutive image files."""

    path: Path
    records: int
    groups: tuple[int, int] = (0, 0)  # row groups of a Parquet file, from and to
    columns: tuple[str, ...] = ()  # of images and labels
    files: tuple[tuple[str, int], ...] = ()  # image files below `path`, with their class


@dataclass(frozen=True, kw_only=True)
class DataFiles:
    """All parts in order, and what the files state about the labels."""

    name: str
    parts: tuple[Part, ...]
    labelled: bool
    class_names: tuple[str, ...] | None = None

    @property
    def records(self) -> int:
        """How many there are."""
        return sum(part.records for part in self.parts)

    @property
    def kind(self) -> str:
        """What kind of data it is, in words that name no file."""
        if not self.parts:
            return "files"
        return "image folder" if self.parts[0].files else "Parquet files" if self.parts[0].columns else "npz files"

    def paths(self) -> Iterator[tuple[Path, int | None]]:
        """All files in order, each with its class where that is not inside the file but is the folder it is in."""
        for part in self.parts:
            if part.files:
                yield from ((part.path / name, label) for name, label in part.files)
            elif part.groups[0] == 0:
                yield part.path, None


def find_data_files(
    folder: Path, split: str = "train", *, many_files: bool = False, how: Reading = AS_IT_IS
) -> DataFiles | None:
    """The data files of a folder (or of its `data/`); with `many_files`, also very many images. None: there are none.

    Where files are named after splits (train-00000-of-00005.parquet, test-...), those of the split are taken.
    """
    entries = visible(folder)
    nested = [entry for entry in entries if entry.is_dir() and entry.name == "data"]
    for place in (entries, visible(nested[0]) if nested else []):
        if found := _of_kind(place, ".parquet"):
            return _parquet(folder, _of_split(folder, found, split))
    if any("-images-idx3-ubyte" in entry.name for entry in entries):
        return None
    if any(entry.is_dir() or entry.suffix.lower() in SUFFIXES for entry in entries):
        is_plain = many_files and split == "train" and (how.layout == "class/" or not has_two_levels(folder))
        return _images(folder, how.layout) if is_plain else None
    found = _of_kind(entries, ".npz")
    return _npz(folder, _of_split(folder, found, split), how) if found else None


def read_batches(part: Part) -> Iterator[list[tuple[Raw, int | None]]]:
    """The records of a part with their labels, at most RECORDS_PER_BATCH at a time, in order."""
    if part.files:
        for start in range(0, part.records, RECORDS_PER_BATCH):
            yield [(part.path / name, label) for name, label in part.files[start : start + RECORDS_PER_BATCH]]
    elif part.columns:
        for values in parquet.rows(part.path, part.columns, part.groups, RECORDS_PER_BATCH):
            encoded = [item["bytes"] if isinstance(item, dict) else item for item in values[0]]
            yield list(zip(encoded, values[1] if len(values) > 1 else [None] * len(encoded)))
    else:
        arrays = read_npz(part.path, "images", "labels")
        images, labels = arrays["images"], arrays.get("labels")
        for start in range(0, len(images), RECORDS_PER_BATCH):
            some = images[start : start + RECORDS_PER_BATCH]
            known = [None] * len(some) if labels is None else labels[start : start + RECORDS_PER_BATCH].tolist()
            yield list(zip(some, known))


def read_column(files: DataFiles, name: str) -> list[Any]:
    """All values of a column of Parquet data, in the order of its records."""
    batches = (parquet.rows(part.path, (name,), part.groups, RECORDS_PER_PART) for part in files.parts)
    return [value for part in batches for (values,) in part for value in values]


def to_picture(raw: Raw, *, channels: int | None, how: Reading, name: str) -> np.ndarray:
    """One image as uint8 [h, w], or [h, w, 3] in colour; a DataError where it cannot be decoded."""
    if raw is None:
        raise DataError(name, "no image", "the bytes of an encoded image", parquet.SAVE)
    if isinstance(raw, np.ndarray):
        picture = to_bytes(raw[None], how, name=name)[0]
        picture = to_channels(picture if picture.ndim == 3 else picture[..., None], channels, axis=2)
        return picture[..., 0] if picture.shape[2] == 1 else picture
    return read_image(io.BytesIO(raw) if isinstance(raw, bytes) else raw, channels=channels, reading=how, name=name)


def _of_kind(entries: Sequence[Path], suffix: str) -> list[Path]:
    return sorted(entry for entry in entries if entry.suffix.lower() == suffix and entry.is_file())


def _of_split(folder: Path, files: list[Path], split: str) -> list[Path]:
    named = {name: [path for path in files if path.name.startswith(starts)] for name, starts in _SPLITS.items()}
    if not any(named.values()) and split == "train":
        return files
    if not named[split]:
        raise DataError("split", split, f"files of that split: {folder} has none", "Pass the path of the other set.")
    return named[split]


def _images(folder: Path, layout: str | None) -> DataFiles | None:
    listing = list_folder(folder, layout)
    if len(listing.files) <= MAX_FILES_IN_MEMORY:
        return None
    relative = [(str(path.relative_to(folder)), label) for path, label in listing.files]
    cuts = [tuple(relative[start : start + RECORDS_PER_PART]) for start in range(0, len(relative), RECORDS_PER_PART)]
    parts = tuple(Part(path=folder, records=len(cut), files=cut) for cut in cuts)
    names = listing.class_names
    return DataFiles(name=folder.resolve().name, parts=parts, labelled=bool(names), class_names=names or None)


def _npz(folder: Path, files: list[Path], how: Reading) -> DataFiles:
    """Whatever a header states is a fact of the file, not of a record: files that differ are refused."""
    parts, first = [], None
    for path in files:
        images, labels = npz_header(path, "images"), npz_header(path, "labels")
        if images is None:
            expected = "arrays `images` and, where there are labels, `labels`"
            raise DataError(str(path), "no array `images`", expected, "Write np.savez(path, images=..., labels=...).")
        (shape, dtype), number = images, images[0][0] if images[0] else 0
        form = (shape[1:], dtype.str, labels is not None)
        if labels is not None and (labels[0] != (number,) or labels[1].kind not in "iu"):
            raise DataError(f"{path}: labels", f"{labels[1]} {labels[0]}", f"integers of shape ({number},)")
        if len(shape) not in (3, 4) or (len(shape) == 4 and shape[3] not in (1, 3, 4)):
            raise DataError(f"{path}: images", f"{dtype} {shape}", "numbers, [n, h, w] or [n, h, w, 3]")
        check_depth(dtype, how, name=f"{path}: images")
        if form != (first := first or form):
            raise DataError(str(path), short(str(form)), f"{short(str(first))}, as {files[0].name} has")
        parts.append(Part(path=path, records=number))
    assert first is not None
    return DataFiles(name=folder.resolve().name, parts=tuple(parts), labelled=first[2])


def _parquet(folder: Path, files: list[Path]) -> DataFiles:
    parts: list[Part] = []
    known: tuple[Any, ...] | None = None
    for path in files:
        with reading(path, parquet.WHOLE), parquet.opened(path) as file:
            form = parquet.image_columns(path, file.schema_arrow)
            counts = [file.metadata.row_group(index).num_rows for index in range(file.metadata.num_row_groups)]
        if form != (known := known or form):
            raise DataError(str(path), short(str(form)), f"{short(str(known))}, as {files[0].name} has", parquet.SAVE)
        first = 0
        for index in range(len(counts)):
            records = sum(counts[first : index + 1])
            if records >= RECORDS_PER_PART or index + 1 == len(counts):
                parts.append(Part(path=path, records=records, groups=(first, index + 1), columns=form[0]))
                first = index + 1
    assert known is not None
    columns, names = known
    return DataFiles(
        name=folder.resolve().name, parts=tuple(parts), labelled=len(columns) > 1, class_names=names,
    )  # fmt: skip
