"""FEMNIST, handwritten characters by writer, in the three forms it is found in.

All of them have dark ink on white; here ink is bright on dark, as in MNIST. That is a constant of the formats
and never looked up in the images. Classes are the 62 of NIST (digits, capitals, small letters), or the paper's
36 with capitals and small letters merged (appendix, "Federated EMNIST").
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gswgan.data.download import FEMNIST_WRITERS
from gswgan.data.pixels import to_bytes
from gswgan.data.read_options import AS_IT_IS
from gswgan.data.readers import DEFLATE_RATIO, check_claim, read_npz, reading
from gswgan.errors import DataError, short
from gswgan.privacy.storage import read_file

CHARACTERS = FEMNIST_WRITERS.class_names
MERGED = 36
"""Classes of the paper: digits and letters, whatever their case."""
_SIDE = 28
MAX_JSON_BYTES = 2**31  # bytes of one file
_LEAF = "a LEAF file: users, num_samples and user_data with x (784 numbers from 0 to 1 per image) and y"
_TFF = "a TFF file: examples/CLIENT with pixels (floats, n x 28 x 28) and label (n integers)"

# Of one client: images as uint8 with bright ink [n, 28, 28], labels [n].
_Part = tuple[np.ndarray, np.ndarray]
_NOTHING: _Part = (np.zeros((0, _SIDE, _SIDE), np.uint8), np.zeros(0, np.int64))


@dataclass(frozen=True, kw_only=True, eq=False)
class Writers:
    """Records by writer. Writers are sorted by their ids; one without records keeps its place in the list."""

    images: np.ndarray  # uint8 [n, 28, 28]
    labels: np.ndarray  # of the 62 classes
    persons: np.ndarray  # int64 [n], places in `ids`
    ids: tuple[str, ...]
    class_names: tuple[str, ...] = CHARACTERS


def merge_case(labels: np.ndarray) -> np.ndarray:
    """The paper's 36 classes: small letters (36 to 61) get the labels of their capitals (10 to 35)."""
    return np.where(labels >= MERGED, labels - 26, labels)


def read_femnist_writers(path: Path, split: str) -> Writers:
    """An npz with `images` (uint8), `labels`, `writers` and `split`; the list is that of the split's writers.

    The published file has 8,383 images of 60 writers to train on, and 2,253 held out: of these 60 and of 40 others.
    """
    arrays = read_npz(path)
    missing = {"images", "labels", "writers", "split"} - set(arrays)
    if missing or len({len(array) for array in arrays.values()}) != 1 or arrays["images"].dtype != np.uint8:
        raise DataError(
            str(path), "arrays that are missing or of another form", "images (uint8), labels, writers and split",
            "Copy the file again.",
        )  # fmt: skip
    mine = arrays["split"] == split
    ids, persons = np.unique(arrays["writers"][mine], return_inverse=True)
    return Writers(
        images=255 - arrays["images"][mine], labels=_whole(arrays["labels"][mine], str(path)), persons=persons,
        ids=tuple(str(writer) for writer in ids),
    )  # fmt: skip


def leaf_files(folder: Path, split: str) -> list[Path]:
    """LEAF's all_data_*.json of a split: in FOLDER/train and FOLDER/test, or (one part only) in FOLDER itself."""
    inner = sorted((folder / split).glob("all_data_*.json"))
    return inner or (sorted(folder.glob("all_data_*.json")) if split == "train" else [])


def read_leaf(files: list[Path]) -> Writers:
    """All users of these files, each of which is in one of them."""
    parts: dict[str, _Part] = {}
    for path in files:
        for user, part in _leaf_users(path).items():
            if user in parts:
                raise DataError(str(path), short(user), "users that are in no other file", "Take one of the files out.")
            parts[user] = part
    return _gathered(parts, CHARACTERS)


def _leaf_users(path: Path) -> dict[str, _Part]:
    with reading(path, _LEAF):
        if path.is_symlink():
            raise DataError(str(path), "a symbolic link", "files inside the folder", "Copy the file into the folder.")
        if path.stat().st_size > MAX_JSON_BYTES:
            raise DataError(
                str(path), f"{path.stat().st_size} bytes", f"at most {MAX_JSON_BYTES}", "Use smaller files."
            )
        content = json.loads(read_file(path, MAX_JSON_BYTES))
        users, sizes, user_data = content["users"], content["num_samples"], content["user_data"]
        if not isinstance(user_data, Mapping) or len(users) != len(sizes) or sorted(users) != sorted(user_data):
            raise DataError(str(path), "users that are not those of user_data", _LEAF, "Copy the file again.")
        return {user: _leaf_part(f"{path}: {short(user)}", user_data[user], size) for user, size in zip(users, sizes)}


def _leaf_part(title: str, found: Any, size: object) -> _Part:
    try:
        pixels, labels = np.asarray(found["x"]), np.asarray(found["y"])
    except ValueError as error:
        raise DataError(title, "rows of different lengths", _LEAF) from error
    if pixels.shape == labels.shape == (0,) and size == 0:
        return _NOTHING
    if pixels.shape != (size, _SIDE**2) or labels.shape != (size,) or pixels.dtype.kind not in "fi":
        raise DataError(title, f"x {pixels.shape}, y {labels.shape}, num_samples {short(size)}", _LEAF)
    return _bright(pixels, title), _whole(labels, title)


def read_tff(path: Path) -> Writers:
    """A fed_emnist*.h5 of TensorFlow Federated; a name with `digitsonly` has the ten digits. Needs h5py."""
    try:
        import h5py
    except ImportError as error:
        raise DataError(
            str(path), "an HDF5 file, and h5py is not installed", "the extra `h5`", "pip install 'gswgan[h5]'"
        ) from error

    def own(group: Any, name: str, kind: type) -> Any:
        """What the file itself holds under this name: links and virtual data could lead out of it."""
        link, found = group.get(name, getlink=True), group.get(name, getclass=True)
        if not isinstance(link, h5py.HardLink) or found is not kind:
            raise DataError(f"{path}: {short(name)}", "missing, a link, or of another kind", _TFF)
        return group[name]

    parts: dict[str, _Part] = {}
    with reading(path, _TFF), h5py.File(path, "r") as file:
        examples = own(file, "examples", h5py.Group)
        for user in examples:
            group, title = own(examples, user, h5py.Group), f"{path}: {short(user)}"
            pixels = _h5_array(path, title, own(group, "pixels", h5py.Dataset))
            labels = _h5_array(path, title, own(group, "label", h5py.Dataset)).reshape(-1)
            if pixels.shape != (len(labels), _SIDE, _SIDE) or pixels.dtype.kind != "f":
                raise DataError(title, f"pixels {pixels.dtype} {pixels.shape}, label ({len(labels)},)", _TFF)
            parts[user] = (_bright(pixels, title), _whole(labels, title)) if len(labels) else _NOTHING
    return _gathered(parts, CHARACTERS[:10] if "digitsonly" in path.name else CHARACTERS)


def _h5_array(path: Path, title: str, dataset: Any) -> np.ndarray:
    """The values, once they are known to be numbers in this file, no more than it has room for."""
    if dataset.external or dataset.is_virtual or dataset.dtype.kind not in "fiu" or dataset.shape is None:
        raise DataError(title, f"{dataset.dtype} {dataset.shape}", _TFF, "Copy the values into one file.")
    filtered = dataset.id.get_create_plist().get_nfilters() > 0
    most = dataset.id.get_storage_size() * (DEFLATE_RATIO if filtered else 1)
    check_claim(path, dataset.shape, dataset.size * dataset.dtype.itemsize, most)
    values: np.ndarray = dataset[()]
    return values


def _bright(pixels: np.ndarray, title: str) -> np.ndarray:
    """Dark ink on white, from 0 to 1, to uint8 [n, 28, 28] with bright ink on dark."""
    return 255 - to_bytes(pixels.astype(np.float64), AS_IT_IS, name=title).reshape(-1, _SIDE, _SIDE)


def _whole(labels: np.ndarray, title: str) -> np.ndarray:
    if labels.dtype.kind not in "iu":
        raise DataError(title, f"labels of dtype {labels.dtype}", "integers")
    return labels.astype(np.int64)


def _gathered(parts: Mapping[str, _Part], class_names: tuple[str, ...]) -> Writers:
    """Client by client in the sorted order of their ids, whatever file they came from."""
    ids = sorted(parts)
    found = [_NOTHING, *(parts[user] for user in ids)]
    return Writers(
        images=np.concatenate([images for images, _ in found]), labels=np.concatenate([labels for _, labels in found]),
        persons=np.repeat(np.arange(len(ids)), [len(parts[user][1]) for user in ids]), ids=tuple(ids),
        class_names=class_names,
    )  # fmt: skip
