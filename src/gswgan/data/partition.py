"""Divide records (or persons) into disjoint parts by their index alone (Algorithm 1, first line).

A part never depends on what a record holds. A partition that is stratified by label, sorted, deduplicated or
hashed from content would move *other* records when one changes; then more than one critic would differ
between neighbours and the sensitivity would not hold. Hence these functions are not given images or labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gswgan.errors import DataError, short

_STREAM = int.from_bytes(b"partition", "big")  # the same seed gives other numbers to other purposes


@dataclass(frozen=True, eq=False)
class Partition:
    """Disjoint parts of equal size, and the records that are left over and not used."""

    indices: np.ndarray  # int64 [parts, count // parts]
    remainder: np.ndarray  # int64 [count % parts]


@dataclass(frozen=True, eq=False)
class PersonPartition:
    """The record indices of each part, all records of a person in one part.

    Parts have the same number of persons, not of records. `remainder` are the record indices that are not used,
    because their `remainder_persons` were left over.
    """

    indices: tuple[np.ndarray, ...]
    remainder: np.ndarray
    remainder_persons: np.ndarray


def partition(count: int, parts: int, *, seed: int) -> Partition:
    """Split the indices 0..count-1 at random into `parts` of count // parts each."""
    _check_parts(count, parts, "records")
    order = _permutation(count, seed)
    size = count // parts
    return Partition(order[: parts * size].reshape(parts, size), order[parts * size :])


def partition_persons(persons: np.ndarray, parts: int, *, seed: int, number: int | None = None) -> PersonPartition:
    """Split by person: `persons` are the dense ids of `ImageData.persons`, P // parts of them per part.

    P is the public `number` of persons (without it, all that have records). Where a part is one person's, as at
    clients, a person may be without records: the part is empty, and moves nobody. Otherwise a listed person without
    records is refused, since leaving the person out of the list would move all others.
    """
    persons, alone = np.asarray(persons), number == parts
    if persons.ndim != 1 or persons.dtype.kind not in "iu" or not (alone or len(persons)):
        raise DataError("persons", f"{persons.dtype} of shape {persons.shape}", "integers of shape [n], n > 0")
    count = number if alone and number is not None else check_everybody(persons, number)
    _check_parts(count, parts, "persons")
    by_person = partition(count, parts, seed=seed)
    part_of_person = np.full(count, parts, np.int64)  # the last, extra part is the remainder
    part_of_person[by_person.indices] = np.arange(parts)[:, None]
    part_of_record = part_of_person[persons]
    order = np.argsort(part_of_record, kind="stable").astype(np.int64)
    *indices, remainder = np.split(order, np.searchsorted(part_of_record[order], np.arange(1, parts + 1)))
    return PersonPartition(tuple(indices), remainder, by_person.remainder)


def check_own_names(repeated: Sequence[str]) -> None:
    """Refuse files of one name in several class folders, where the places of records matter.

    Files are ordered by name. Among files of one name the class decides, so a record whose label changes would move
    others to other parts, or to other coins or persons.
    """
    if repeated:
        named = ", ".join(str(short(name, 40)) for name in repeated[:3]) + (", ..." if len(repeated) > 3 else "")
        raise DataError(
            "data", f"{len(repeated)} file names in several class folders ({named})",
            "a name of its own for each file: by its name a record has its place, whatever its class is",
            "Rename the files once, say to CLASS-NAME.png, and keep these names if a class is corrected later. Or use "
            "the kernel critic (--preset kernel), by record: it needs no order.",
        )  # fmt: skip


def check_everybody(persons: np.ndarray, number: int | None = None) -> int:
    """How many persons there are to divide, if each that is listed has records."""
    ids = np.unique(persons)
    if ids[0] != 0 or ids[-1] != len(ids) - 1 or number not in (None, len(ids)):
        raise DataError(
            "persons", "a listed person without records", "records of every person from 0 to P-1",
            "Use the kernel critic (--preset kernel), which needs no partition.",
        )  # fmt: skip
    return len(ids)


def _permutation(count: int, seed: int) -> np.ndarray:
    if not isinstance(seed, (int, np.integer)) or isinstance(seed, bool) or seed < 0:
        raise DataError("seed", seed, "a whole number of at least 0", "Pass --seed 0, for example.")
    return np.random.default_rng([int(seed), _STREAM]).permutation(count).astype(np.int64)


def _check_parts(count: int, parts: int, what: str) -> None:
    is_int = isinstance(parts, (int, np.integer)) and not isinstance(parts, bool)
    if not is_int or not 1 <= parts <= count:
        raise DataError(
            "critics", parts, f"a whole number from 1 to the number of {what}, {count}",
            "Choose fewer critics (--critics).",
        )  # fmt: skip
