"""A data set in many files, read a part at a time: Parquet files, npz files, or very many image files.

Parquet has the layout of image data sets on Hugging Face: a column of encoded images ({bytes, path}, or the bytes
alone) and a column of labels, whose class names stand in the schema. How records lie in files and row groups is
public, as their number is. It fixes the parts, which no record's content can move.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from gswgan.data.dataset import round_floats
from gswgan.data.image_folder import SUFFIXES, has_clients, list_files, read_image, visible
from gswgan.data.parquet_pages import rows_at_a_time
from gswgan.data.readers import npz_header, read_npz, reading
from gswgan.errors import DataError, short

RECORDS_PER_PART = 4096
"""Records that a worker reads in one go, or the next larger number of whole row groups (of an npz: all of it)."""

RECORDS_PER_BATCH = 256
"""Records that are held at a time."""

MAX_FILES_IN_MEMORY = 50_000
"""More image files than this are read a part at a time."""

_SPLITS = {"train": ("train",), "test": ("test", "t10k"), "other": ("val", "dev")}
_PARQUET = "a Parquet file that is whole, with a column of images ({bytes, path}) and, for labels, one of integers"
_SAVE = "Write it with the `datasets` library: data.to_parquet(path)."

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


def find_data_files(folder: Path, split: str = "train", *, many_files: bool = False) -> DataFiles | None:
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
        return _images(folder) if many_files and split == "train" and not has_clients(folder) else None
    found = _of_kind(entries, ".npz")
    return _npz(folder, _of_split(folder, found, split)) if found else None


def read_batches(part: Part) -> Iterator[list[tuple[Raw, int | None]]]:
    """The records of a part with their labels, at most RECORDS_PER_BATCH at a time, in order."""
    if part.files:
        for start in range(0, part.records, RECORDS_PER_BATCH):
            yield [(part.path / name, label) for name, label in part.files[start : start + RECORDS_PER_BATCH]]
    elif part.columns:
        yield from _parquet_batches(part)
    else:
        arrays = read_npz(part.path, "images", "labels")
        images, labels = arrays["images"], arrays.get("labels")
        for start in range(0, len(images), RECORDS_PER_BATCH):
            some = images[start : start + RECORDS_PER_BATCH]
            known = [None] * len(some) if labels is None else labels[start : start + RECORDS_PER_BATCH].tolist()
            yield list(zip(some, known))


def to_picture(raw: Raw, *, channels: int | None, name: str) -> np.ndarray:
    """One image as uint8 [h, w], or [h, w, 3] in colour; a DataError where it cannot be decoded."""
    if raw is None:
        raise DataError(name, "no image", "the bytes of an encoded image", _SAVE)
    if isinstance(raw, np.ndarray):
        raw = raw if raw.dtype == np.uint8 else round_floats(raw[None], name=name)[0]
        return raw[..., 0] if raw.ndim == 3 and raw.shape[2] == 1 else raw
    return read_image(io.BytesIO(raw) if isinstance(raw, bytes) else raw, channels=channels, name=name)


def _of_kind(entries: Sequence[Path], suffix: str) -> list[Path]:
    return sorted(entry for entry in entries if entry.suffix.lower() == suffix and entry.is_file())


def _of_split(folder: Path, files: list[Path], split: str) -> list[Path]:
    named = {name: [path for path in files if path.name.startswith(starts)] for name, starts in _SPLITS.items()}
    if not any(named.values()) and split == "train":
        return files
    if not named[split]:
        raise DataError("split", split, f"files of that split: {folder} has none", "Pass the path of the other set.")
    return named[split]


def _images(folder: Path) -> DataFiles | None:
    names, files = list_files(folder)
    if len(files) <= MAX_FILES_IN_MEMORY:
        return None
    relative = [(str(path.relative_to(folder)), label) for path, label in files]
    cuts = [tuple(relative[start : start + RECORDS_PER_PART]) for start in range(0, len(relative), RECORDS_PER_PART)]
    parts = tuple(Part(path=folder, records=len(cut), files=cut) for cut in cuts)
    return DataFiles(name=folder.resolve().name, parts=parts, labelled=bool(names), class_names=names or None)


def _npz(folder: Path, files: list[Path]) -> DataFiles:
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
        if len(shape) not in (3, 4) or (len(shape) == 4 and shape[3] not in (1, 3)) or dtype.kind not in "uf":
            raise DataError(f"{path}: images", f"{dtype} {shape}", "uint8 or floats, [n, h, w] or [n, h, w, 3]")
        if dtype.kind == "u" and dtype != np.uint8:
            raise DataError(f"{path}: images", f"dtype {dtype}", "uint8, or floats from 0 to 1")
        if form != (first := first or form):
            raise DataError(str(path), short(str(form)), f"{short(str(first))}, as {files[0].name} has")
        parts.append(Part(path=path, records=number))
    assert first is not None
    return DataFiles(name=folder.resolve().name, parts=tuple(parts), labelled=first[2])


def _parquet(folder: Path, files: list[Path]) -> DataFiles:
    parts: list[Part] = []
    known: tuple[Any, ...] | None = None
    for path in files:
        with reading(path, _PARQUET), _opened(path) as file:
            form = _columns(path, file.schema_arrow)
            counts = [file.metadata.row_group(index).num_rows for index in range(file.metadata.num_row_groups)]
        if form != (known := known or form):
            raise DataError(str(path), short(str(form)), f"{short(str(known))}, as {files[0].name} has", _SAVE)
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


def _opened(path: Path) -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise DataError(
            str(path), "Parquet, and pyarrow is not installed", "the extra `parquet`", "pip install 'gswgan[parquet]'"
        ) from error
    return pyarrow.parquet.ParquetFile(path, pre_buffer=False, buffer_size=2**20)


def _columns(path: Path, schema: Any) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
    """The names of the columns of images and labels, and the class names, by the types and Hugging Face's metadata."""
    import pyarrow.types as is_

    def of_images(kind: Any) -> bool:
        if is_.is_struct(kind):
            return any(field.name == "bytes" and of_images(field.type) for field in kind)
        return is_.is_binary(kind) or is_.is_large_binary(kind)

    images = [field.name for field in schema if of_images(field.type)]
    if len(images) != 1:
        found = f"columns {short(', '.join(schema.names))}, of which {len(images)} with images"
        raise DataError(str(path), found, "one column of images ({bytes, path})", _SAVE)
    stated = _stated_names(schema.metadata)
    labels = [name for name in ("label", "labels") if name in schema.names] or list(stated)
    if not labels:
        return (images[0],), None
    if len(labels) > 1 or not is_.is_integer(schema.field(labels[0]).type):
        found = ", ".join(f"{name}: {schema.field(name).type}" for name in labels)
        raise DataError(str(path), short(found), "one column `label` of integers", "Rename or convert it.")
    return (images[0], labels[0]), stated.get(labels[0])


def _stated_names(metadata: dict[bytes, bytes] | None) -> dict[str, tuple[str, ...]]:
    """Columns of class labels with their class names."""
    try:
        features = json.loads((metadata or {})[b"huggingface"])["info"]["features"]
        return {
            name: tuple(str(known) for known in feature["names"])
            for name, feature in features.items()
            if feature.get("_type") == "ClassLabel" and feature.get("names")
        }
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def _parquet_batches(part: Part) -> Iterator[list[tuple[Raw, int | None]]]:
    with reading(part.path, _PARQUET), _opened(part.path) as file:
        size = rows_at_a_time(part.path, file.metadata, range(*part.groups), part.columns, RECORDS_PER_BATCH)
        rows = file.iter_batches(
            batch_size=size, row_groups=range(*part.groups), columns=list(part.columns), use_threads=False
        )
        for batch in rows:
            images = [item["bytes"] if isinstance(item, dict) else item for item in batch.column(0).to_pylist()]
            labels = batch.column(1).to_pylist() if len(part.columns) > 1 else [None] * len(images)
            yield list(zip(images, labels))
