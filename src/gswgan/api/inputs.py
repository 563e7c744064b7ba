"""What `fit` takes: a path, arrays, or the objects of other libraries, with the options of how to read them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gswgan.data import ImageData, ImageStream, ReadOptions
from gswgan.data.objects import read_objects
from gswgan.data.persons import is_table
from gswgan.data.sources import NAMES
from gswgan.errors import DataError, PlanError
from gswgan.evaluation import real_data

_OF_PATHS = ("layout", "group_by", "min_records", "accuracy", "reference_classifier")
READING = ("classes", "image_size", "channels", "pixel_range", "background", "fit", "missing", *_OF_PATHS)
"""How data is read. The options of `_OF_PATHS` are for files and folders alone."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Opened:
    """Data, and where it was read from, so that a resumed run finds it again; None for objects in memory."""

    data: ImageData | ImageStream
    source: dict[str, Any] | None = None


def source_of(spec: str | Path, *, labels: bool = True, **reading: Any) -> dict[str, Any]:
    """What a run remembers of its data: a name or an absolute path, and how it is read."""
    named = isinstance(spec, str) and spec in ("", *NAMES)
    source: dict[str, Any] = {"spec": spec if named else str(Path(spec).absolute()), "labels": labels}
    source |= {name: reading.get(name) for name in READING}
    for name in ("group_by", "reference_classifier"):
        file = source[name]
        if file is not None and (name != "group_by" or is_table(file)):
            source[name] = str(Path(file).absolute())
    return source


def open_source(source: dict[str, Any]) -> Opened:
    """The data of a source."""
    return Opened(data=real_data.open_data(**source), source=source)


def open_input(
    images: Any,
    labels: Any = None,
    *,
    class_names: Sequence[str] | None = None,
    persons: Any = None,
    **reading: Any,
) -> Opened:
    """What a Python program passes: a name or path as on the command line, or objects in memory."""
    for name in reading:
        if name not in READING:
            raise PlanError("fit", name, f"one of the options {', '.join(READING)}", "Check its spelling.")
    if isinstance(images, str | Path):
        return _open_path(images, labels, class_names, persons, reading)
    for name in _OF_PATHS:
        if reading.pop(name, None) is not None:
            todo = "Pass persons=, one id per record." if name == "group_by" else "Leave it out."
            raise DataError(name, "given", "nothing with data in memory: it is for files and folders", todo)
    missing = reading.pop("missing", None)
    options = ReadOptions(labels=labels is not False, **reading)
    known = read_objects(images, labels, options, class_names=class_names, persons=persons, missing=missing)
    return Opened(data=known)


def _open_path(
    spec: str | Path, labels: Any, names: Sequence[str] | None, persons: Any, reading: dict[str, Any]
) -> Opened:
    if persons is not None:
        expected = "nothing with a path: records in files are matched by name"
        raise DataError("persons", type(persons).__name__, expected, "Pass group_by=, or read the data with load_data.")
    if labels is not None and not isinstance(labels, bool):
        expected = "nothing with a path, or False to leave its labels out"
        raise DataError("labels", type(labels).__name__, expected, "A path has its own labels.")
    if names is not None and reading.get("classes") is None:
        reading["classes"] = len(names)
    opened = open_source(source_of(spec, labels=labels is not False, **reading))
    if names is None:
        return opened
    known = opened.data.class_names
    if known not in (tuple(names), tuple(map(str, range(len(known))))) or len(known) != len(names):
        raise DataError("class_names", list(names), f"{list(known)}, as {spec} says itself", "Leave it out.")
    return Opened(data=dataclasses.replace(opened.data, class_names=tuple(names)), source=opened.source)
