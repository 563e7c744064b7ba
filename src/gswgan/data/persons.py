"""Which person a record belongs to, from a table: the unit of user-level privacy. Records are matched by name."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gswgan.data import parquet
from gswgan.errors import DataError, path_problem, short

TABLES = (".csv", ".parquet")
"""How the names of tables end. Any other --group-by is the name of a column of Parquet data."""

OWN = "own:"
MAX_ID_CHARACTERS = 256  # characters of a line
MAX_TEXT_BYTES = 2**26  # bytes of a text file
_NO_ID = ("", "na", "n/a", "#n/a", "<na>", "nan", "null", "none")
_ROWS = 4096


def is_table(group_by: str | Path) -> bool:
    """Whether persons are named by a table, and not by a column of the data."""
    return Path(group_by).suffix.lower() in TABLES


def persons_of(group_by: str | Path, files: Sequence[str] | None, records: int, missing: str | None) -> np.ndarray:
    """The id of each record's person, by a CSV or Parquet table with a column `person`.

    `files`: of each record, its path below the folder of the data; the table's column `file` has these, or names alone
    where they are unique. Data without files has its records' numbers from 0 in a column `index`. Every record is in
    the table once; rows for other files are passed over.
    """
    path = Path(group_by)
    if not is_table(path):
        expected = "a table (.csv or .parquet); only Parquet data has persons in a column of its own"
        raise DataError("group_by", str(group_by), expected, "Pass --group-by persons.csv, say.")
    if not path.is_file():
        expected = f"a .csv or .parquet file that exists{path_problem(path)}"
        raise DataError("group_by", str(path), expected, "Check the path (--group-by).")
    key = "index" if files is None else "file"
    keys, ids = _read_csv(path, key) if path.suffix.lower() == ".csv" else _read_parquet(path, key)
    place_of = _by_index(keys, records, path) if files is None else _by_file(keys, files, path)
    named: list[Any] = [None] * records
    seen = np.zeros(records, bool)
    for place, row_key, person in zip(place_of, keys, ids):
        if place is None:
            continue
        if seen[place]:
            raise _wrong(path, f"{key} {short(str(row_key))} twice", f"every {key} once", "Keep one of the rows.")
        seen[place], named[place] = True, person
    if not seen.all():
        absent = [str(place) if files is None else files[place] for place in np.flatnonzero(~seen)[:3]]
        many = f"no row for {int((~seen).sum())} of {records} records ({short(', '.join(absent), 120)})"
        hint = "Number the records from 0." if files is None else "Write paths below the folder, such as cat/1.png."
        raise _wrong(path, many, f"a row for every record, found by its `{key}`", hint)
    return complete(named, missing, f"`person` of {path.name}", files)


def complete(named: Sequence[object], missing: str | None, what: str, files: Sequence[str] | None = None) -> np.ndarray:
    """The ids as text; a record without one is refused, or with `missing` "own" a person of its own."""
    ids = [_text(person) for person in named]
    unknown = [place for place, person in enumerate(ids) if person.lower() in _NO_ID]
    if unknown and missing != "own":
        first = unknown[0] if files is None else files[unknown[0]]
        raise DataError(
            "group_by", f"{what}: no id for {len(unknown)} of {len(ids)} records, the first is {short(str(first))}",
            "an id for every record",
            "Fill them in, or pass --missing own: each of these records is then protected as a person of its own.",
        )  # fmt: skip
    if unknown and any(person.startswith(OWN) for person in ids):
        raise DataError("group_by", what, f"ids that do not begin with {OWN}", "Rename these persons.")
    for place in unknown:
        ids[place] = f"{OWN}{place}"
    return np.array(ids, dtype=object)  # an array of strings would be as wide as the longest for all of them


def read_ids(path: Path) -> tuple[str, ...]:
    """A text file with an id on each line, as a list of clients is."""
    lines = [line.strip() for line in _text_of(path, "clients").splitlines()]
    while lines and not lines[-1]:
        lines.pop()
    for number, line in enumerate(lines, start=1):
        if not line or "," in line or len(line) > MAX_ID_CHARACTERS:
            raise DataError(
                "clients", f"{path}, line {number}",
                f"one id per line, at most {MAX_ID_CHARACTERS} characters, no commas, no empty lines",
                "Keep only the column with the ids.",
            )  # fmt: skip
    return tuple(lines)


def _read_csv(path: Path, key: str) -> tuple[list[Any], list[Any]]:
    lines = _text_of(path, "group_by").splitlines()
    separator = max(",;\t", key=(lines[0] if lines else "").count)
    try:
        table = list(csv.reader(lines, delimiter=separator, strict=True))
    except csv.Error as error:
        raise _wrong(path, f"no CSV ({error})", "a CSV table with a header", "Save it again.") from error
    header = [name.strip().lower() for name in table[0]] if table else []
    wanted = _columns(path, header, key)
    for number, row in enumerate(table[1:], start=2):
        if row and len(row) != len(header):
            raise _wrong(path, f"line {number} with {len(row)} values", f"{len(header)}, as the header has", "Mend it.")
    places = [header.index(name) for name in wanted]
    found = [[row[place].strip() for row in table[1:] if row] for place in places]
    return found[0], found[1]


def _read_parquet(path: Path, key: str) -> tuple[list[Any], list[Any]]:
    with parquet.reading(path, "a Parquet table"), parquet.opened(path) as file:
        names = list(file.schema_arrow.names)
    _columns(path, [name.lower() for name in names], key)
    wanted = tuple(next(name for name in names if name.lower() == one) for one in (key, "person"))
    keys: list[Any] = []
    ids: list[Any] = []
    for one, other in parquet.rows(path, wanted, None, _ROWS):
        keys += one
        ids += other
    return keys, ids


def _columns(path: Path, header: Sequence[str], key: str) -> tuple[str, str]:
    for name in (key, "person"):
        if header.count(name) != 1:
            found = short(", ".join(header) or "nothing", 100)
            raise _wrong(
                path, f"a header {found}", f"a header with the columns {key} and person",
                "Rename the columns: `file` (for an npz or idx data set `index`, from 0) and `person`.",
            )  # fmt: skip
    return key, "person"


def _by_file(keys: Sequence[object], files: Sequence[str], path: Path) -> list[int | None]:
    """The place of each row's file, None for a file that is not in the data."""
    by_path = {name: place for place, name in enumerate(files)}
    by_name: dict[str, list[int]] = {}
    for place, name in enumerate(files):
        by_name.setdefault(name.rpartition("/")[2], []).append(place)
    found: list[int | None] = []
    for key in keys:
        name = str(key).strip().replace("\\", "/").removeprefix("./")
        several = [] if name in by_path else by_name.get(name, [])
        if len(several) > 1:
            raise _wrong(
                path, f"file {short(name)}", f"a path below the folder, since {len(several)} files have this name",
                f"Write {files[several[0]]}, for example.",
            )  # fmt: skip
        found.append(by_path.get(name, several[0] if several else None))
    return found


def _by_index(keys: Sequence[object], records: int, path: Path) -> list[int | None]:
    found: list[int | None] = []
    for key in keys:
        text = _text(key)
        if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) >= records:
            expected = f"numbers of records, from 0 to {records - 1}"
            raise _wrong(path, f"index {short(text)}", expected, "Number the records from 0.")
        found.append(int(text))
    return found


def _text(value: object) -> str:
    """An id as text; what a table with gaps made a float of is a whole number again."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace").strip()
    return "" if value is None else str(value).strip()


def _text_of(path: Path, name: str) -> str:
    try:
        if path.stat().st_size > MAX_TEXT_BYTES:
            raise DataError(name, str(path), f"at most {MAX_TEXT_BYTES} bytes of text", "Save it as Parquet.")
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeError) as error:
        expected = f"a text file in UTF-8{path_problem(path)}"
        raise DataError(name, str(path), expected, "Check the path, or save it as UTF-8.") from error


def _wrong(path: Path, found: str, expected: str, todo: str) -> DataError:
    return DataError("group_by", f"{path}: {found}", expected, todo)
