"""One function from what a user names (a data set, a file, a folder) to validated images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gswgan.data.colour_sets import COLOUR_SETS, read_colour_set, read_medmnist
from gswgan.data.dataset import ImageData, make_image_data
from gswgan.data.download import FASHION_MNIST, FEMNIST_WRITERS, MNIST, QMNIST_WRITERS, Published
from gswgan.data.femnist import MERGED, Writers, leaf_files, merge_case, read_femnist_writers, read_leaf, read_tff
from gswgan.data.files import DataFiles, find_data_files, read_column
from gswgan.data.image_folder import check_channels, list_folder, no_images, read_pictures
from gswgan.data.persons import complete, is_table, persons_of
from gswgan.data.pixels import to_channels
from gswgan.data.read_options import AS_IT_IS, DEFAULTS, ReadOptions
from gswgan.data.readers import npz_header, read_idx, read_npz
from gswgan.data.stream import check_layout, read_data_files
from gswgan.errors import DataError, path_problem, short

_PUBLISHED = {"mnist": MNIST, "fashion-mnist": FASHION_MNIST}
_PREFIXES = {"train": ("train",), "test": ("t10k", "test")}
_DIGITS_HELD_OUT = 360
_DIGITS_SPLIT = 20201205
_WRITER_COLUMN = 2  # of the idx2 files that QMNIST publishes for the images of MNIST
_ACCEPTED = (
    "digits, mnist, fashion-mnist, mnist-writers, femnist-writers, cifar10, a set of MedMNIST, an .npz file with "
    "images (and labels), a folder "
    "with idx files, a folder of Parquet or npz files, a folder of images with a subfolder for each class (and, with "
    "--layout, for each person), a LEAF folder, or a TFF .h5 file"
)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Source:
    """What a source gives: channel-last images, labels, and what it states about classes and persons."""

    name: str  # public: of a known data set, or the kind of source; never of a file or folder
    images: np.ndarray
    labels: np.ndarray | None
    class_names: Sequence[str] | None = None
    persons: np.ndarray | None = None  # ids, or places in `person_ids`
    person_ids: Sequence[str] | None = None
    repeated_names: tuple[str, ...] = ()  # of files, see `check_own_names`
    files: tuple[str, ...] | None = None  # of each record, below the folder of the data
    decoded: bool = False  # the pixels are bytes already: a stated range has been used
    parquet: DataFiles | None = None  # whose columns may name persons


NAMES = ("digits", *_PUBLISHED, "mnist-writers", "femnist-writers", *COLOUR_SETS)
"""Data sets known by name; anything else is a path."""


def load_data(spec: str | Path, options: ReadOptions = DEFAULTS, *, split: str = "train", **named: Any) -> ImageData:
    """Read and validate a data set.

    `spec` is `digits` (8x8, comes with scikit-learn), `mnist`, `fashion-mnist`, an `.npz` file, a folder with
    idx files, a folder of Parquet or npz files, or a folder of images; write `./mnist` for a folder of that name.
    Data by person is `mnist-writers`, `femnist-writers`, a LEAF folder, a TFF `.h5` file, or a folder of images with
    two levels of folders. `split="test"` is the held-out part where the source has one.

    How to read it is said by `options`, or by its fields as keywords: `classes` (public, needed where the source does
    not state it; 36 merges the case of FEMNIST's letters), `image_size`, `channels`, `labels=False`, `pixel_range`,
    `background`, `layout`, `group_by`, `missing`.
    """
    options = replace(options, **named)
    check_channels(options.channels)
    if split not in _PREFIXES:
        raise DataError("split", split, "train or test", "Leave it out for the training part.")
    source = _named(spec, options, split) if isinstance(spec, str) and spec in NAMES else _at_path(spec, options, split)
    found, names, classes = source.labels, source.class_names, options.classes
    if not options.labels or found is None:
        found, names = None, None
        classes = None if not options.labels else classes
    elif names is not None:
        if classes not in (None, len(names)):
            raise DataError("classes", classes, f"{len(names)}, the number of classes of {spec}", "Leave it out.")
        classes = len(names)
    data = make_image_data(
        source.images, found, classes=classes, class_names=names, image_size=options.image_size,
        persons=_persons(spec, source, options), person_ids=source.person_ids, name=source.name,
        reading=AS_IT_IS if source.decoded else options.reading,
    )  # fmt: skip
    images = to_channels(data.images, options.channels, axis=1)
    return replace(data, images=images, repeated_names=source.repeated_names, reading=options.reading)


def _persons(spec: str | Path, source: _Source, options: ReadOptions) -> np.ndarray | None:
    """The person of each record, by the source or by `group_by`."""
    if options.group_by is None:
        return source.persons
    if source.persons is not None:
        raise DataError(
            "group_by", str(options.group_by), f"nothing: {spec} says who is whose", "Leave --group-by out."
        )
    if source.parquet is not None and not is_table(options.group_by):
        column = str(options.group_by)
        if column in source.parquet.parts[0].columns[:1]:
            raise DataError("group_by", column, "a column of ids, not that of the images", "Choose another column.")
        return complete(read_column(source.parquet, column), options.missing, f"column {column}")
    return persons_of(options.group_by, source.files, len(source.images), options.missing)


def _named(spec: str, options: ReadOptions, split: str) -> _Source:
    """A data set that is known by its name."""
    _no_layout(spec, options)
    if spec == "digits":
        return _digits(split)
    if spec in _PUBLISHED:
        return _published(_PUBLISHED[spec], split, options.labels)
    if spec in COLOUR_SETS:
        images, labels, names = read_colour_set(spec, split)
        return _Source(name=spec, images=images, labels=labels if options.labels else None, class_names=names)
    if spec == "mnist-writers":
        return _mnist_writers(split, options.labels)
    path = FEMNIST_WRITERS.file("femnist-100-writers.npz")
    return _femnist(read_femnist_writers(path, split), options.classes, spec)


def _no_layout(spec: str | Path, options: ReadOptions) -> None:
    if options.layout is not None:
        raise DataError("layout", options.layout, f"nothing: {spec} is no folder of images", "Leave --layout out.")


def _at_path(spec: str | Path, options: ReadOptions, split: str) -> _Source:
    """A file or folder, by what it holds."""
    path = Path(spec)
    try:
        is_folder, kind = path.is_dir(), path.suffix.lower() if path.is_file() else ""
        if is_folder:
            next(path.iterdir(), None)
    except OSError as error:  # a name that is too long, a folder that may not be read
        expected = f"a path that can be read ({error.strerror})"
        raise DataError("data", short(path.name), expected, "Check the path (--data).") from error
    if not str(spec):
        raise DataError("data", "", _ACCEPTED, "Pass --data, or write --data . for this folder.")
    if is_folder and any(path.glob("*-images-idx3-ubyte*")):
        _no_layout(spec, options)
        return _idx_folder(path, split, options.labels)
    if is_folder and (leaf_files(path, "train") or leaf_files(path, "test")):
        _no_layout(spec, options)
        files = leaf_files(path, split)
        if not files:
            _only_train(path, split)
        return _femnist(read_leaf(files), options.classes, "LEAF folder")
    if is_folder and (many := find_data_files(path, split, how=options.reading)) is not None:
        return _data_files(many, options)
    if is_folder:
        _only_train(path, split)
        return _image_folder(path, options)
    if kind == ".h5":
        _no_layout(spec, options)
        return _femnist(read_tff(_tff_part(path, split)), options.classes, "TFF file")
    if kind == ".npz":
        _no_layout(spec, options)
        if npz_header(path, "images") is None and npz_header(path, "train_images") is not None:
            images, labels = read_medmnist(path, split)
            return _Source(name="npz file", images=images, labels=labels if options.labels else None)
        _only_train(path, split)
        return _npz(path, options.labels)
    if problem := path_problem(path):
        expected = f"{', '.join(NAMES)}, or the path of your data{problem}"
        raise DataError("data", str(spec), expected, "Check the name or the path (--data).")
    folder = "Pass the folder that holds it" if kind == ".parquet" else "Check the name or the path"
    raise DataError("data", str(spec), _ACCEPTED, f"{folder} (--data).")


def _data_files(many: DataFiles, options: ReadOptions) -> _Source:
    check_layout(many, options.reading)
    images, labels = read_data_files(many, options)
    return _Source(
        name=many.kind, images=images, labels=labels, class_names=many.class_names, decoded=True,
        parquet=many if many.kind == "Parquet files" else None,
    )  # fmt: skip


def _digits(split: str) -> _Source:
    """Scikit-learn's 1,797 digits of 8x8: 1,437 to train on, 360 held out by a fixed choice of indices."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    order = np.random.default_rng(_DIGITS_SPLIT).permutation(len(bunch.images))
    chosen = order[:-_DIGITS_HELD_OUT] if split == "train" else order[-_DIGITS_HELD_OUT:]
    images = np.rint(bunch.images[chosen] * 255.0 / 16.0).astype(np.uint8)
    return _Source(name="digits", images=images, labels=bunch.target[chosen], class_names=tuple("0123456789"))


def _published(published: Published, split: str, labels: bool) -> _Source:
    prefix = _PREFIXES[split][0]
    images = read_idx(published.file(f"{prefix}-images-idx3-ubyte.gz"))
    found = read_idx(published.file(f"{prefix}-labels-idx1-ubyte.gz")) if labels else None
    return _Source(name=published.name, images=images, labels=found, class_names=published.class_names)


def _mnist_writers(split: str, labels: bool) -> _Source:
    """MNIST by the writers that QMNIST found: 539 in the training set, other 297 in the test set."""
    source = _published(MNIST, split, labels)
    writers = read_idx(QMNIST_WRITERS.file(f"qmnist-{split}-labels-idx2-int.gz"))[:, _WRITER_COLUMN]
    return replace(source, name="mnist-writers", persons=writers[: len(source.images)])  # the test set was extended


def _femnist(writers: Writers, classes: int | None, name: str) -> _Source:
    """With `classes` 36 the case of letters is merged, as in the paper."""
    labels, names = writers.labels, writers.class_names
    if classes == MERGED:
        labels, names = merge_case(labels), names[:MERGED]
    return _Source(
        name=name, images=writers.images, labels=labels, class_names=names, persons=writers.persons,
        person_ids=writers.ids,
    )  # fmt: skip


def _tff_part(path: Path, split: str) -> Path:
    """The file; its held-out part is the file beside it with `test` for `train` in its name."""
    test = path.with_name(path.name.replace("_train", "_test"))
    if split == "test" and (test == path or not test.is_file()):
        _only_train(path, split)
    return test if split == "test" else path


def _image_folder(path: Path, options: ReadOptions) -> _Source:
    listing = list_folder(path, options.layout)
    if not listing.files:
        raise no_images(path)
    images = read_pictures(listing, options.image_size, options.channels, options.reading)
    return _Source(
        name="image folder" if listing.persons is None else "folders of persons", images=images,
        labels=np.array([label for _, label in listing.files], np.int64) if listing.class_names else None,
        class_names=listing.class_names, persons=None if listing.persons is None else np.array(listing.persons),
        person_ids=listing.person_ids or None, repeated_names=listing.repeated_names, decoded=True,
        files=tuple(file.relative_to(path).as_posix() for file, _ in listing.files),
    )  # fmt: skip


def _idx_folder(folder: Path, split: str, labels: bool) -> _Source:
    """`train-images-idx3-ubyte.gz` and the like; other data sets put their name in front of `train`."""
    images = _find_idx(folder, split, "images-idx3-ubyte")
    if images is None:
        raise DataError(
            str(folder), f"no idx images for the {split} split",
            f"{' or '.join(_PREFIXES[split])}-images-idx3-ubyte, plain or .gz", "Check the names of the files.",
        )  # fmt: skip
    found = _find_idx(folder, split, "labels-idx1-ubyte") if labels else None
    return _Source(name="idx files", images=read_idx(images), labels=None if found is None else read_idx(found))


def _find_idx(folder: Path, split: str, ending: str) -> Path | None:
    wanted = [f"{prefix}-{ending}{zipped}" for prefix in _PREFIXES[split] for zipped in ("", ".gz")]
    found = sorted(path for path in folder.iterdir() if path.name.endswith(tuple(wanted)) and path.is_file())
    if len(found) > 1:
        raise DataError(
            str(folder), [path.name for path in found], f"one file that ends in {ending} for the {split} split",
            "Move the other data sets to folders of their own.",
        )  # fmt: skip
    if found and found[0].is_symlink():
        raise DataError(str(found[0]), "a symbolic link", f"files inside {folder}", "Copy the file into the folder.")
    return found[0] if found else None


def _npz(path: Path, labels: bool) -> _Source:
    arrays = read_npz(path, "images", "labels", "class_names") if labels else read_npz(path, "images")
    if "images" not in arrays:
        raise DataError(
            str(path), "no array `images`", "arrays `images` and, where there are labels, `labels`",
            "Write it with np.savez(path, images=..., labels=...).",
        )  # fmt: skip
    names = arrays.get("class_names")
    if names is not None and (names.ndim != 1 or names.dtype.kind != "U"):
        found = f"{names.dtype} of shape {names.shape}"
        raise DataError(f"{path}: class_names", found, "one string per class", "Write class_names=np.array([...]).")
    return _Source(
        name="npz file", images=arrays["images"], labels=arrays.get("labels"),
        class_names=None if names is None else tuple(names.tolist()),
    )  # fmt: skip


def _only_train(path: Path, split: str) -> None:
    if split != "train":
        raise DataError("split", split, f"train: {path} has no held-out part", "Pass the path of the test set.")
