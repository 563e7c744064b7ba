"""Data by client: each one's part, who belongs, and made-up clients for experiments.

Who belongs is decided by constants and by what each client alone holds, never by a rank among clients (the
largest ones, a share of them): one person must not move another. A client that does not belong keeps its place
in the public list, with no records: it adds nothing, and the list, its order and the other clients stay as they
are. So leaving out is covered by user-level privacy, as any other change of what one client holds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from gswgan.data.dataset import ImageData
from gswgan.data.partition import check_own_names
from gswgan.errors import DataError

MAX_CLIENTS = 100_000
_STREAM = int.from_bytes(b"dirichlet", "big")  # the same seed gives other numbers to other purposes

Accuracy = Callable[[np.ndarray, np.ndarray], float]
"""Accuracy of a classifier trained on public data, on images (uint8 [n, channels, side, side]) with labels."""


def clients(data: ImageData) -> Iterator[tuple[str, ImageData]]:
    """Each client's id and its own records, in the order of the public list; also those without records.

    A part is an ImageData of one person, whose records are in the order they have in `data`.
    """
    if data.persons is None:
        raise DataError(
            "data", data.name, "records by person",
            "Use data by user (mnist-writers), or name the persons (--group-by).",
        )  # fmt: skip
    order = np.argsort(data.persons, kind="stable")
    bounds = np.searchsorted(data.persons[order], np.arange(data.number_of_persons + 1))
    ids = data.person_ids or tuple(map(str, range(data.number_of_persons)))
    for place, client in enumerate(ids):
        mine = order[bounds[place] : bounds[place + 1]]
        yield (
            client,
            dataclasses.replace(
                data, images=data.images[mine], labels=None if data.labels is None else data.labels[mine],
                persons=np.zeros(len(mine), np.int64), person_ids=(client,), left_out=0,
            ),
        )  # fmt: skip


def keep_clients(
    data: ImageData,
    *,
    min_records: int = 1,
    accuracy: tuple[float, float] | None = None,
    accuracy_of: Accuracy | None = None,
) -> ImageData:
    """Leave out the records of clients with fewer than `min_records`, or whose `accuracy_of` is outside `accuracy`.

    The bounds belong to the range. The paper's (appendix) are 0.939 and 1 for sample quality (866 of its 3400 users),
    0 and 0.882 for clients suspected of a bug (2136). They must be chosen, and the classifier trained, without the
    protected data. The list of clients and `public_records` stay as they were.
    """
    if not isinstance(min_records, int) or isinstance(min_records, bool) or min_records < 1:
        raise DataError("min_records", min_records, "a whole number of at least 1", "Pass --min-records 20, say.")
    if (accuracy is None) != (accuracy_of is None):
        raise DataError(
            "accuracy", accuracy, "a range with a public classifier to measure it",
            "Pass both --accuracy and --reference-classifier.",
        )  # fmt: skip
    if accuracy is not None and not 0.0 <= accuracy[0] <= accuracy[1] <= 1.0:
        raise DataError("accuracy", accuracy, "a range within 0 to 1", "Pass --accuracy 0.939..1, say.")
    if accuracy_of is not None and data.labels is None:
        raise DataError("accuracy", accuracy, "data with labels", "Leave --accuracy out.")

    def belongs(mine: ImageData) -> bool:
        if mine.n < min_records:
            return False
        if accuracy is None or accuracy_of is None or mine.labels is None:
            return True
        return accuracy[0] <= accuracy_of(mine.images, mine.labels) <= accuracy[1]

    return without_records(data, np.array([belongs(mine) for _, mine in clients(data)]))


def without_records(data: ImageData, kept: np.ndarray) -> ImageData:
    """The data with the records of those clients alone of whom `kept` [clients] says so; the list stays."""
    assert data.persons is not None
    stays = kept[data.persons]
    return dataclasses.replace(
        data, images=data.images[stays], labels=None if data.labels is None else data.labels[stays],
        persons=data.persons[stays], left_out=data.left_out + int((~stays).sum()),
    )  # fmt: skip


def dirichlet_clients(data: ImageData, number: int, *, concentration: float, seed: int) -> ImageData:
    """For experiments: made-up clients `client-00000`, ..., that differ in how often they have each class.

    Every class is spread over the clients by shares from a symmetric Dirichlet distribution: about even for a large
    `concentration`, at few clients for one far below 1. Where a record goes is decided by the seed, its index and its
    own label: no other record moves it, and a client taken away leaves all others as they are. Some may be empty.

    The clients are no persons: privacy for each of them is not privacy for a person.
    A record whose label changes goes to another client, so two clients change, not one.
    """
    if data.persons is not None:
        raise DataError("clients", data.name, "data without persons of its own", "Leave the number of clients out.")
    check_own_names(data.repeated_names)
    whole = isinstance(number, int) and not isinstance(number, bool)
    if not whole or not 1 <= number <= MAX_CLIENTS:
        raise DataError("clients", number, f"a whole number from 1 to {MAX_CLIENTS}")
    if not 1e-3 <= concentration <= 1e6:
        raise DataError("concentration", concentration, "a number from 0.001 to 1000000")
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise DataError("seed", seed, "a whole number of at least 0", "Pass --seed 0, for example.")
    place = np.random.default_rng([seed, _STREAM]).random(data.n)  # in [0, 1): one number for each index
    labels = np.zeros(data.n, np.int64) if data.labels is None else data.labels
    persons = np.zeros(data.n, np.int64)
    for label in range(data.classes):
        shares = np.random.default_rng([seed, _STREAM, label]).dirichlet(np.full(number, concentration))
        mine = labels == label
        persons[mine] = np.searchsorted(np.cumsum(shares)[:-1], place[mine], side="right")
    return dataclasses.replace(data, persons=persons, person_ids=tuple(f"client-{index:05}" for index in range(number)))
