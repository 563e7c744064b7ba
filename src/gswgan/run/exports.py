"""Synthetic images as files: npz, CSV, Parquet, or a folder of PNG files, each with the names of the classes."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import tempfile
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from gswgan.errors import RunError
from gswgan.generators.sampling import png_bytes

KINDS = ("", ".npz", ".csv", ".parquet")
"""How a path may end: "" is a folder of PNG files."""

MAX_FOLDER_BYTES = 200
"""Of the name of a folder; file systems have room for 255."""

ROWS_PER_GROUP = 1000
"""Of a Parquet file."""

_NOT_IN_NAMES = '<>:"/\\|?*'
_RESERVED = {"CON", "PRN", "AUX", "NUL", *(f"{port}{n}" for port in ("COM", "LPT") for n in range(1, 10))}
"""Names that Windows gives to devices."""

_SPLIT = re.compile(r"(?:^|[-._ 0-9])(?:train|test|eval|val|dev)(?:ing|uation|idation|id)?(?:$|[-._ 0-9])", re.I)
"""Folder names that `datasets` takes for parts of a data set."""


def write_images(
    out: Path,
    images: np.ndarray,
    labels: np.ndarray,
    class_names: Sequence[str],
    progress: Callable[[int], None] = lambda done: None,
) -> None:
    """The images at `out`, in the form that its ending names; all or nothing. `progress` is told how many are there."""
    write = {".npz": _write_npz, ".csv": _write_csv, ".parquet": _write_parquet, "": _write_folder}[out.suffix]
    with new_path(out) as aside:
        write(aside, images, labels, tuple(class_names), progress)


def class_folders(class_names: Sequence[str]) -> tuple[str, ...]:
    """A folder name for each class: its own name, but for what a disk cannot hold or does not tell apart.

    Upper and lower case, and two ways to write an accent, are one name to some disks: the second such class gets a
    number. `datasets.load_dataset("imagefolder")` takes the names of folders for the names of classes.
    """
    taken: set[str] = set()
    folders = []
    for name in class_names:
        safe = unicodedata.normalize("NFC", "".join("_" if letter in _NOT_IN_NAMES else letter for letter in name))
        safe = safe.encode()[:MAX_FOLDER_BYTES].decode(errors="ignore").rstrip(" .")
        if not safe or safe.startswith((".", " ")) or safe.split(".")[0].upper() in _RESERVED:
            safe = f"_{safe}"
        number, folder = 1, safe
        while _as_disks_see(folder) in taken:
            number += 1
            folder = f"{safe}-{number}"
        taken.add(_as_disks_see(folder))
        folders.append(folder)
    return tuple(folders)


def export_warnings(out: Path, class_names: Sequence[str]) -> list[str]:
    """What other tools would misread, in sentences."""
    found = [name for name in class_folders(class_names) if out.suffix == "" and _SPLIT.search(name)]
    if not found:
        return []
    return [
        f"class_names = {found[0]!r}: load_dataset('imagefolder') takes a folder of this name for a split, and leaves "
        "out the other classes. Export to a .parquet file for it."
    ]


def _as_disks_see(name: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


def check_new_path(out: Path, *suffixes: str) -> None:
    """Refuse a name of another form, an existing path, and a missing parent folder, before any work is done."""
    if out.suffix not in suffixes:
        kinds = " or ".join(suffix or "no suffix (a folder)" for suffix in suffixes)
        raise RunError("out", str(out), f"a name that ends in {kinds}", "Choose another name.")
    if os.path.lexists(out):
        raise RunError("out", str(out), "a path that does not exist yet", "Choose another one.")
    if not out.absolute().parent.is_dir():
        raise RunError("out", str(out), "a path in a folder that exists", "Make the folder first.")
    if out.suffix == ".parquet":
        _pyarrow()


@contextmanager
def new_path(out: Path) -> Iterator[Path]:
    """A path in a new folder beside `out`, which becomes `out` when it is whole; a failure leaves nothing behind."""
    fresh: Path | None = None
    try:
        fresh = Path(tempfile.mkdtemp(prefix=".gswgan-", dir=out.absolute().parent))  # ours alone (0700), never a link
        yield fresh / out.name
        os.rename(fresh / out.name, out)
    except OSError as wrong:
        expected = f"a place that can be written ({wrong.strerror or wrong})"
        raise RunError("out", str(out), expected, "Make room, or choose another one.") from wrong
    finally:
        if fresh is not None:
            shutil.rmtree(fresh, ignore_errors=True)


def _write_npz(
    path: Path, images: np.ndarray, labels: np.ndarray, names: tuple[str, ...], progress: Callable[[int], None]
) -> None:
    np.savez_compressed(path, images=images, labels=labels, class_names=np.array(names))


def _write_csv(
    path: Path, images: np.ndarray, labels: np.ndarray, names: tuple[str, ...], progress: Callable[[int], None]
) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["label", "class_name", *(f"pixel{i}" for i in range(images[0].size))])
        for done, (label, image) in enumerate(zip(labels.tolist(), images), start=1):
            writer.writerow([label, names[label], *image.reshape(-1).tolist()])
            progress(done)


def _write_folder(
    path: Path, images: np.ndarray, labels: np.ndarray, names: tuple[str, ...], progress: Callable[[int], None]
) -> None:
    folders = class_folders(names)
    for label in np.unique(labels):
        (path / folders[label]).mkdir(parents=True)
    for index, (label, image) in enumerate(zip(labels, images)):
        Image.fromarray(image).save(path / folders[label] / f"{index:06d}.png")
        progress(index + 1)


def _write_parquet(
    path: Path, images: np.ndarray, labels: np.ndarray, names: tuple[str, ...], progress: Callable[[int], None]
) -> None:
    """As `datasets` writes it: `datasets.Dataset.from_parquet` gives images and a label with the class names."""
    arrow, parquet = _pyarrow()
    features = {"image": {"_type": "Image"}, "label": {"names": list(names), "_type": "ClassLabel"}}
    image = arrow.struct([("bytes", arrow.binary()), ("path", arrow.string())])
    stated = {"huggingface": json.dumps({"info": {"features": features}})}
    schema = arrow.schema([("image", image), ("label", arrow.int64())], metadata=stated)
    with parquet.ParquetWriter(path, schema) as writer:
        for start in range(0, len(images), ROWS_PER_GROUP):
            some = slice(start, start + ROWS_PER_GROUP)
            encoded = [{"bytes": png_bytes(one), "path": None} for one in images[some]]
            writer.write_table(arrow.table([encoded, labels[some].tolist()], schema=schema))
            progress(min(len(images), start + ROWS_PER_GROUP))


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as wrong:
        found, todo = "Parquet, and pyarrow is not installed", "pip install 'gswgan[parquet]'"
        raise RunError("out", found, "the extra `parquet`", todo) from wrong
    return pyarrow, pyarrow.parquet
