"""Divide records (or persons) into disjoint shards by their index alone (Algorithm 1, first line).

A shard never depends on what a record holds. Sharding that is stratified by label, sorted, deduplicated or
hashed from content would move *other* records when one changes; then more than one critic would differ
between neighbours and the sensitivity would not hold. Hence these functions are not given images or labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np

from gswgan.errors import DataError, short

_STREAM = int.from_bytes(b"partition", "big")  # the same seed gives other numbers to other purposes


@dataclass(frozen=True, eq=False)
class Partition:
    """Disjoint shards of equal size, and the records that are left over and not used."""

    indices: np.ndarray  # int64 [shards, count // shards]
    remainder: np.ndarray  # int64 [count % shards]


@dataclass(frozen=True, eq=False)
class PersonPartition(Sequence[np.ndarray]):
    """A sequence of record indices, one array a shard; every person's records are in one shard.

    Shards have the same number of persons, not of records. `remainder` are the record indices that are not
    used, because their `remainder_persons` were left over.
    """

    indices: tuple[np.ndarray, ...]
    remainder: np.ndarray
    remainder_persons: np.ndarray

    def __len__(self) -> int:
        return len(self.indices)

    @overload
    def __getitem__(self, shard: int) -> np.ndarray: ...
    @overload
    def __getitem__(self, shard: slice) -> tuple[np.ndarray, ...]: ...
    def __getitem__(self, shard: int | slice) -> np.ndarray | tuple[np.ndarray, ...]:
        return self.indices[shard]


def partition(count: int, shards: int, *, seed: int) -> Partition:
    """Split the indices 0..count-1 at random into `shards` of count // shards each."""
    _check_shards(count, shards, "records")
    order = _permutation(count, seed)
    size = count // shards
    return Partition(order[: shards * size].reshape(shards, size), order[shards * size :])


def partition_persons(persons: np.ndarray, shards: int, *, seed: int, number: int | None = None) -> PersonPartition:
    """Split by person: `persons` are the dense ids of `ImageData.persons`, P // shards of them a shard.

    P is the public `number` of persons (without it, all that have records). Where a shard is one person's, as at
    clients, a person may be without records: the shard is empty, and moves nobody. Otherwise a listed person without
    records is refused, since leaving the person out of the list would move all others.
    """
    persons, alone = np.asarray(persons), number == shards
    if persons.ndim != 1 or persons.dtype.kind not in "iu" or not (alone or len(persons)):
        raise DataError("persons", f"{persons.dtype} of shape {persons.shape}", "integers of shape [n], n > 0")
    count = number if alone and number is not None else check_everybody(persons, number)
    _check_shards(count, shards, "persons")
    by_person = partition(count, shards, seed=seed)
    shard_of_person = np.full(count, shards, np.int64)  # the last, extra shard is the remainder
    shard_of_person[by_person.indices] = np.arange(shards)[:, None]
    shard_of_record = shard_of_person[persons]
    order = np.argsort(shard_of_record, kind="stable").astype(np.int64)
    *indices, remainder = np.split(order, np.searchsorted(shard_of_record[order], np.arange(1, shards + 1)))
    return PersonPartition(tuple(indices), remainder, by_person.remainder)


def check_own_names(repeated: Sequence[str]) -> None:
    """Refuse files of one name in several class folders, for whoever goes by the places of records.

    Files are ordered by name. Among files of one name the class decides, so a record whose label changes would move
    others to other shards, or to other coins or persons.
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
    """How many persons there are to make shards of, if each that is listed has records."""
    ids = np.unique(persons)
    if ids[0] != 0 or ids[-1] != len(ids) - 1 or number not in (None, len(ids)):
        raise DataError(
            "persons", "a listed person without records", "records of every person from 0 to P-1, to make shards of",
            "Use the kernel critic (--preset kernel), which needs no shards.",
        )  # fmt: skip
    return len(ids)


def _permutation(count: int, seed: int) -> np.ndarray:
    if not isinstance(seed, (int, np.integer)) or isinstance(seed, bool) or seed < 0:
        raise DataError("seed", seed, "a whole number of at least 0", "Pass --seed 0, for example.")
    return np.random.default_rng([int(seed), _STREAM]).permutation(count).astype(np.int64)


def _check_shards(count: int, shards: int, what: str) -> None:
    is_int = isinstance(shards, (int, np.integer)) and not isinstance(shards, bool)
    if not is_int or not 1 <= shards <= count:
        raise DataError(
            "shards", shards, f"a whole number from 1 to the number of {what}, {count}",
            "Choose fewer, larger shards (--shards).",
        )  # fmt: skip
