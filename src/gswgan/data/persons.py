"""Which person a record belongs to, from a file or an array: the unit of user-level privacy."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gswgan.data.readers import read_idx, read_npy, read_npz
from gswgan.errors import DataError

_WRITER_COLUMN = 2  # of the idx2 files that QMNIST publishes for the images of MNIST
MAX_ID_CHARACTERS = 256  # characters of a line
MAX_TEXT_BYTES = 2**26  # bytes of a text file
_ACCEPTED = "a .npy, .npz, .csv, .txt or idx file with one id per record"


def read_persons(source: str | Path | np.ndarray) -> np.ndarray:
    """Person ids, one per record, in the order of the images.

    - an array: as it is;
    - `.npy`; `.npz` with an array `persons` or `writers`, else its first array;
    - `.csv`, `.txt`: one id per line, no header;
    - idx, plain or gzip: one id per row, or a table as QMNIST has it with the writer in column 2.
    """
    if isinstance(source, np.ndarray):
        return source
    path = Path(source)
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if not path.is_file():
        raise DataError("group_by", str(path), _ACCEPTED, "Check the path (--group-by).")
    if suffixes[-1:] == [".npy"]:
        return read_npy(path)
    if suffixes[-1:] == [".npz"]:
        return _from_npz(path)
    if suffixes[-1:] in ([".csv"], [".txt"]):
        return _from_lines(path)
    if "idx" in path.name:
        table = read_idx(path)
        if table.ndim == 2 and table.shape[1] > _WRITER_COLUMN:
            return table[:, _WRITER_COLUMN]
        if table.ndim == 1:
            return table
        raise DataError(
            "group_by", f"{path} of shape {table.shape}", "one id per row, or the writer in column 2",
            "Save the ids alone as .npy.",
        )  # fmt: skip
    raise DataError("group_by", str(path), _ACCEPTED, "Save the ids as one of these (--group-by).")


def _from_npz(path: Path) -> np.ndarray:
    arrays = read_npz(path, "persons", "writers") or read_npz(path)
    if not arrays:
        raise DataError("group_by", str(path), "an npz with an array `persons`", "Write np.savez(path, persons=...).")
    for name in ("persons", "writers"):
        if name in arrays:
            return arrays[name]
    return next(iter(arrays.values()))


def _from_lines(path: Path) -> np.ndarray:
    """Ids as objects: an array of strings would be as wide as the longest for all of them."""
    try:
        if path.stat().st_size > MAX_TEXT_BYTES:
            raise DataError("group_by", str(path), f"at most {MAX_TEXT_BYTES} bytes of text", "Save the ids as .npy.")
        lines = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    except (OSError, UnicodeError) as error:
        raise DataError(
            "group_by", str(path), "a text file in UTF-8, one id per line", "Save the ids as .npy, or as UTF-8."
        ) from error
    while lines and not lines[-1]:
        lines.pop()
    for number, line in enumerate(lines, start=1):
        if not line or "," in line or len(line) > MAX_ID_CHARACTERS:
            raise DataError(
                "group_by", f"{path}, line {number}",
                f"one id per line, at most {MAX_ID_CHARACTERS} characters, no commas, no empty lines",
                "Keep only the column with the ids.",
            )  # fmt: skip
    return np.array(lines, dtype=object)
