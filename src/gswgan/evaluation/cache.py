"""Where references computed on real data are kept: moments of features, a trained classifier, accuracies on real data.

They are functions of the data, so they are as private as it is. Only for the three public sets that the package
knows by name do they go into the user's cache, where every run finds them; all others stay under RUN/private. A
public set is recognised by its content and not by its name: a folder of private images may be called `mnist`.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from gswgan.data import ImageData
from gswgan.data.download import cache_folder as user_cache
from gswgan.privacy.storage import make_folder

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
