"""Images that nobody needs to protect, as whoever plans a run states: brought to the shape of the protected data.

They are cut to the square around their centre, scaled to the side of the data, and made grey (by their luma) or given
three equal channels as the data has it. Labels are left aside.

Protected data that is given as public is refused where that is seen without comparing records: if both have the same
name, path or files, if one folder is in the other, or, with data in memory, if the two sets are equal as a whole. The
last of these looks at content, but excludes one data set only, which is public in that case by the statement itself:
nothing is planned or released for it, and of every other data set the refusal says nothing more than that it is not
this one. Whether single records are in both sets is not compared: the answer would tell who is in the data.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from gswgan.data.dataset import ImageData
from gswgan.data.objects import read_objects
from gswgan.data.sources import NAMES, load_data
from gswgan.data.stream import ImageStream
from gswgan.errors import DataError

FEWEST = 16
"""Public images that a training step can be made of."""

_NOT_BOTH = (
    "What is stated to be public is used without protection: pass images that nobody needs to protect, or leave "
    "--public out."
)


@dataclass(frozen=True, kw_only=True, eq=False)
class PublicImages:
    """Images as they are used, and what kind of source they came from."""

    name: str
    images: np.ndarray  # uint8 [n, channels, side, side]

    @cached_property
    def digest(self) -> str:
        """SHA-256 of their shape and pixels: anybody who has them can compute it."""
        return images_digest(self.images)


def images_digest(images: np.ndarray) -> str:
    """SHA-256 of `n x channels x side x side` in ASCII, a line feed, and the bytes of uint8 images in that order."""
    state = hashlib.sha256(("x".join(map(str, images.shape)) + "\n").encode())
    state.update(np.ascontiguousarray(images, np.uint8).data)
    return state.hexdigest()


def read_public(source: Any, *, image_size: int, channels: int) -> PublicImages:
    """A name or path as for `load_data`, or an object in memory, brought to this shape."""
    options: dict[str, Any] = {"image_size": image_size, "channels": channels, "fit": "crop"}
    if isinstance(source, str | Path):
        try:
            found = load_data(source, labels=False, **options)
        except DataError as wrong:
            name = "public" if wrong.name == "data" else wrong.name  # which may be the path of a file
            raise DataError(name, wrong.value, wrong.expected, wrong.todo.replace("--data", "--public")) from wrong
    else:
        pixels = np.moveaxis(source.images, 1, -1) if isinstance(source, ImageData) else source
        found = read_objects(pixels, False, **options)
    if found.n < FEWEST:
        raise DataError("public", f"{found.n} images", f"at least {FEWEST}", "Pass more, or leave --public out.")
    if all(np.array_equal(image, found.images[0]) for image in found.images):
        raise DataError("public", f"{found.n} equal images", "images that differ", "Pass others, or none.")
    return PublicImages(name=found.name, images=found.images)


def refuse_same_source(data: str | Path, public: str | Path) -> None:
    """Refuse public images that are the protected data by their name, path or files; nothing is read."""
    named = [place for place in (data, public) if isinstance(place, str) and place in NAMES]
    if named and data == public:
        raise _refused(public, "another set than the protected one")
    if named:
        return
    ours, theirs = (Path(os.path.realpath(place)) for place in (data, public))
    if ours.is_relative_to(theirs) or theirs.is_relative_to(ours):
        raise _refused(public, "a place that does not hold the protected data, and is not inside it")
    if not set(_files(ours)).isdisjoint(_files(theirs)):
        raise _refused(public, "files of its own: some of them are files of the protected data")


def refuse_same_images(data: ImageData | ImageStream, public: PublicImages) -> None:
    """Refuse a copy of the protected data: all images equal, in the same order."""
    if isinstance(data, ImageData) and np.array_equal(data.images, public.images):
        raise _refused(public.name, "another set than the protected one: all images are equal")


def _refused(public: str | Path, expected: str) -> DataError:
    return DataError("public", str(public), expected, _NOT_BOTH)


def _files(place: Path) -> Iterator[tuple[int, int]]:
    """Device and inode of a file, or of all files in a folder: a hard link is the same file."""
    paths = [place] if place.is_file() else (Path(at) / name for at, _, names in os.walk(place) for name in names)
    for path in paths:
        try:
            found = path.stat()
        except OSError:  # it has gone, or is a broken link: whoever reads the data will say so
            continue
        yield found.st_dev, found.st_ino
