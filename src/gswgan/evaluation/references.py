"""Figures on real data alone, computed once: kept by the checksums of the data, in a place as private as it is."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gswgan.data import ImageData
from gswgan.evaluation.cache import cache_folder, data_checksum
from gswgan.privacy.storage import read_file, write_durably


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
