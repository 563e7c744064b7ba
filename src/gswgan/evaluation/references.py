"""Figures, moments and classifiers computed on real data alone: computed once, kept in a place as private as the data.

They are functions of the data, so they are as private as it is. Only for the three public sets that the package
knows by name do they go into the user's cache, where every run finds them; all others stay under RUN/private. A
public set is recognised by its content and not by its name: a folder of private images may be called `mnist`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gswgan.data import ImageData
from gswgan.data.download import cache_folder as user_cache
from gswgan.privacy.storage import make_folder, read_file, write_durably

_PUBLIC = {
    "03811ba20f6eb1615531915a93fa64bf416ded2d6345a0a8f3a0215ba282e602": "digits-train",
    "2f87f916791da243beff04a35f3d59cb6d88b88b2983d81eea017e52979e667b": "digits-test",
    "7eb9dca75f19fdd24bd3200871960b261402c86cd11ec87c9f8fb5cbe0ca2af1": "mnist-train",
    "672803c2091a004f263e54e3787dc1f5a5cd63e0910ab5dbce32df9a5c123beb": "mnist-test",
    "fb22913de62bf5bc1cbcbd16c5a3441d585e942f9c6cbea42430ae5b786441bd": "fashion-mnist-train",
    "903a7ddb8c9f4735b9e484812bfcd01369a6c16ae476350ad49ea73bc0b7f836": "fashion-mnist-test",
}


def is_public(checksum: str) -> bool:
    """Whether it is of a set that the package knows to be public."""
    return checksum in _PUBLIC


def data_checksum(data: ImageData) -> str:
    """SHA-256 of images, labels and number of classes: what a reference depends on."""
    state = hashlib.sha256(f"{data.images.shape} {data.classes} {data.labels is not None}".encode())
    state.update(np.ascontiguousarray(data.images).tobytes())
    if data.labels is not None:
        state.update(data.labels.astype("<i8").tobytes())
    return state.hexdigest()


def cache_folder(data_name: str, checksum: str, run: Path | None) -> Path | None:
    """The folder for references on this data, made if need be; None where no place is as private as the data.

    That is the case without a run, and for a folder without `private/`: it may be a release on its way to others.
    """
    public = _PUBLIC.get(checksum)
    if public is not None:
        folder = user_cache("references") / public
        make_folder(folder)
        return folder
    if run is None or not (run / "private").is_dir():
        return None
    folder = run / "private" / "evaluation" / f"{_safe(data_name)}-{checksum[:16]}"
    for new in (run / "private", folder.parent, folder):
        make_folder(new, private=True)
    return folder


def _safe(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in name)[:40] or "data"


@dataclass(frozen=True, kw_only=True)
class ReferenceFolders:
    """Where references are kept; None where no place is as private as the data (see `cache_folder`)."""

    train: Path | None
    test: Path | None
    both: Path | None
    """For what depends on both splits: in the user's cache only if both are public."""
    checksums: tuple[str, str | None]


def reference_folders(train: ImageData, test: ImageData | None, run: Path | None) -> ReferenceFolders:
    """The folders for this data; `run` is a run folder, under whose `private/` the references of own data stay."""
    sums = (data_checksum(train), None if test is None else data_checksum(test))
    of_train = cache_folder(train.name, sums[0], run)
    of_test = None if test is None or sums[1] is None else cache_folder(test.name, sums[1], run)
    both = of_train if test is None or of_test is not None else None
    if of_train is not None and of_test is not None and run is not None and of_test.is_relative_to(run):
        both = of_test
    return ReferenceFolders(train=of_train, test=of_test, both=both, checksums=sums)


class References:
    """Numbers by key, for one pair of training and test set; without a place they live as long as this object."""

    def __init__(self, folders: ReferenceFolders) -> None:
        self._path = None if folders.both is None else folders.both / "real.json"
        self._about = " ".join((name or "none")[:16] for name in folders.checksums)
        self._known: dict[str, float] = {}

    def known(self, keys: Iterable[str]) -> dict[str, float]:
        """Those of the keys that were computed before."""
        everything = self._read() | self._known
        return {key: everything[key] for key in keys if key in everything}

    def put(self, figures: Mapping[str, float]) -> None:
        """Keep these."""
        self._known |= {key: float(value) for key, value in figures.items()}
        if self._path is not None:
            content = self._all() | {self._about: self._read() | self._known}
            write_durably(self._path, (json.dumps(content, indent=1) + "\n").encode())

    def _read(self) -> dict[str, float]:
        found = self._all().get(self._about, {})
        return (
            {key: value for key, value in found.items() if isinstance(value, float)} if isinstance(found, dict) else {}
        )

    def _all(self) -> dict[str, dict[str, float]]:
        """The whole file; a damaged one is as good as none."""
        if self._path is not None:
            with contextlib.suppress(OSError, ValueError):
                content = json.loads(read_file(self._path))
                return content if isinstance(content, dict) else {}
        return {}
