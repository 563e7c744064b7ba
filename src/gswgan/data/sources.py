"""One function from what a user names (a data set, a file, a folder) to validated images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gswgan.data.dataset import ImageData, make_image_data
from gswgan.data.download import FASHION_MNIST, MNIST, Published
from gswgan.data.image_folder import read_image_folder
from gswgan.data.persons import read_persons
from gswgan.data.readers import read_idx, read_npz
from gswgan.errors import DataError, short

_PUBLISHED = {"mnist": MNIST, "fashion-mnist": FASHION_MNIST}
_PREFIXES = {"train": ("train",), "test": ("t10k", "test")}
_DIGITS_HELD_OUT = 360
_DIGITS_SPLIT = 20201205
_ACCEPTED = (
    "digits, mnist, fashion-mnist, an .npz file with images (and labels), a folder with idx files, "
    "or a folder of images with a subfolder for each class"
)

# What a source gives: channel-last images, labels, class names where the source states them, a name.
_Arrays = tuple[np.ndarray, np.ndarray | None, Sequence[str] | None, str]


NAMES = ("digits", *_PUBLISHED)
"""Data sets known by name; anything else is a path."""


def load_data(
    spec: str | Path,
    *,
    split: str = "train",
    classes: int | None = None,
    image_size: int | None = None,
    channels: int | None = None,
    group_by: str | Path | np.ndarray | None = None,
    labels: bool = True,
) -> ImageData:
    """Read and validate a data set.

    `spec` is `digits` (8x8, comes with scikit-learn), `mnist`, `fashion-mnist`, an `.npz` file, a folder with
    idx files, or a folder of images; write `./mnist` for a folder of that name. `split="test"` is the
    held-out part where the source has one. `classes` is public and needed where the source does not state
    it. `image_size` scales and pads to a square, `channels` (1 or 3) fixes grey or colour for a folder of
    images, `group_by` names the person of each record (see `read_persons`), and `labels=False` drops the labels.
    """
    if split not in _PREFIXES:
        raise DataError("split", split, "train or test", "Leave it out for the training part.")
    path = Path(spec)
    try:
        is_folder, is_npz = path.is_dir(), path.is_file() and path.suffix.lower() == ".npz"
    except OSError as error:  # a name that is too long, a folder that may not be entered
        raise DataError(
            "data", short(path.name), f"a path that can be read ({error.strerror})", "Check the path (--data)."
        ) from error
    if spec == "digits":
        arrays = _digits(split)
    elif isinstance(spec, str) and spec in _PUBLISHED:
        arrays = _published(_PUBLISHED[spec], split, labels)
    elif not str(spec):
        raise DataError("data", "", _ACCEPTED, "Pass --data, or write --data . for this folder.")
    elif is_folder and any(path.glob("*-images-idx3-ubyte*")):
        arrays = _idx_folder(path, split, labels)
    elif is_folder:
        _only_train(path, split)
        arrays = (*read_image_folder(path, image_size=image_size, channels=channels), path.resolve().name)
    elif is_npz:
        _only_train(path, split)
        arrays = _npz(path, labels)
    else:
        raise DataError("data", str(spec), _ACCEPTED, "Check the name or the path (--data).")
    images, found, names, name = arrays
    if not labels or found is None:
        found, names = None, None
        classes = None if not labels else classes
    elif names is not None:
        if classes not in (None, len(names)):
            raise DataError("classes", classes, f"{len(names)}, the number of classes of {spec}", "Leave it out.")
        classes = len(names)
    data = make_image_data(
        images,
        found,
        classes=classes,
        class_names=names,
        image_size=image_size,
        persons=None if group_by is None else read_persons(group_by),
        name=name,
    )
    if channels not in (None, data.channels):
        raise DataError("channels", channels, f"{data.channels}, as {spec} has", "Leave it out.")
    return data


def _digits(split: str) -> _Arrays:
    """Scikit-learn's 1,797 digits of 8x8: 1,437 to train on, 360 held out by a fixed choice of indices."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    order = np.random.default_rng(_DIGITS_SPLIT).permutation(len(bunch.images))
    chosen = order[:-_DIGITS_HELD_OUT] if split == "train" else order[-_DIGITS_HELD_OUT:]
    images = np.rint(bunch.images[chosen] * 255.0 / 16.0).astype(np.uint8)
    return images, bunch.target[chosen], tuple("0123456789"), "digits"


def _published(published: Published, split: str, labels: bool) -> _Arrays:
    prefix = _PREFIXES[split][0]
    images = read_idx(published.file(f"{prefix}-images-idx3-ubyte.gz"))
    found = read_idx(published.file(f"{prefix}-labels-idx1-ubyte.gz")) if labels else None
    return images, found, published.class_names, published.name


def _idx_folder(folder: Path, split: str, labels: bool) -> _Arrays:
    """`train-images-idx3-ubyte.gz` and the like; other data sets put their name in front of `train`."""
    images = _find_idx(folder, split, "images-idx3-ubyte")
    if images is None:
        raise DataError(
            str(folder),
            f"no idx images for the {split} split",
            f"{' or '.join(_PREFIXES[split])}-images-idx3-ubyte, plain or .gz",
            "Check the names of the files.",
        )
    found = _find_idx(folder, split, "labels-idx1-ubyte") if labels else None
    return read_idx(images), None if found is None else read_idx(found), None, folder.resolve().name


def _find_idx(folder: Path, split: str, ending: str) -> Path | None:
    wanted = [f"{prefix}-{ending}{zipped}" for prefix in _PREFIXES[split] for zipped in ("", ".gz")]
    found = sorted(path for path in folder.iterdir() if path.name.endswith(tuple(wanted)) and path.is_file())
    if len(found) > 1:
        raise DataError(
            str(folder),
            [path.name for path in found],
            f"one file that ends in {ending} for the {split} split",
            "Move the other data sets to folders of their own.",
        )
    if found and found[0].is_symlink():
        raise DataError(str(found[0]), "a symbolic link", f"files inside {folder}", "Copy the file into the folder.")
    return found[0] if found else None


def _npz(path: Path, labels: bool) -> _Arrays:
    arrays = read_npz(path, "images", "labels") if labels else read_npz(path, "images")
    if "images" not in arrays:
        raise DataError(
            str(path),
            "no array `images`",
            "arrays `images` and, where there are labels, `labels`",
            "Write it with np.savez(path, images=..., labels=...).",
        )
    return arrays["images"], arrays.get("labels"), None, path.stem


def _only_train(path: Path, split: str) -> None:
    if split != "train":
        raise DataError("split", split, f"train: {path} has no held-out part", "Pass the path of the test set.")
