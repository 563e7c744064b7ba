"""The same people written in every format of data by client, for the tests."""

from __future__ import annotations

import gzip
import hashlib
import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gswgan.data import ImageData, clients, femnist, load_data, sources

People = dict[str, tuple[np.ndarray, np.ndarray]]
"""For each id: uint8 images with bright ink [n, 28, 28], and labels of the 62 classes."""

FORMATS = ("leaf", "h5", "npz", "folder")


def made_people(seed: int = 0) -> People:
    """Nine writers with 3 to 11 records each; ids in no order."""
    rng = np.random.default_rng(seed)
    ids = ["f0300_20", "f0100_07", "b", "f0200_11", "A", "f0100_08", "z9", "0042", "f01"]
    return {
        person: (rng.integers(0, 256, (3 + place, 28, 28), dtype=np.uint8), rng.integers(0, 62, 3 + place))
        for place, person in enumerate(ids)
    }


def load_people(kind: str, people: Mapping[str, tuple[np.ndarray, np.ndarray]], root: Path) -> ImageData:
    """Write the people in this format under `root`, and read them."""
    root.mkdir(parents=True)
    if kind == "leaf":
        ids = list(people)
        write_leaf(root / "all_data_0.json", {person: people[person] for person in ids[::2]})
        write_leaf(root / "all_data_1.json", {person: people[person] for person in ids[1::2]})
        return load_data(root)
    if kind == "h5":
        return load_data(write_h5(root / "fed_emnist_train.h5", people))
    if kind == "npz":
        return load_npz(root, people)
    for person, (images, labels) in people.items():
        for label in range(62):
            (root / person / f"{label:02}").mkdir(parents=True)
        for index, (image, label) in enumerate(zip(images, labels)):
            Image.fromarray(image).save(root / person / f"{label:02}" / f"{index:03}.png")
    return load_data(root, layout="person/class/")


def write_leaf(path: Path, people: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "users": list(people),
        "num_samples": [len(labels) for _, labels in people.values()],
        "user_data": {
            person: {"x": ((255 - images).reshape(len(images), 784) / 255).tolist(), "y": labels.tolist()}
            for person, (images, labels) in people.items()
        },
    }
    path.write_text(json.dumps(content))
    return path


def write_h5(path: Path, people: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> Path:
    h5py = pytest.importorskip("h5py", reason="h5py is not installed (the extra h5)")
    with h5py.File(path, "w") as file:
        file.create_group("examples")
        for person, (images, labels) in people.items():
            group = file["examples"].create_group(person)
            group["pixels"] = ((255 - images) / 255).astype(np.float32)
            group["label"] = labels.astype(np.int32)
    return path


def load_npz(
    root: Path, people: Mapping[str, tuple[np.ndarray, np.ndarray]], split: str = "train", classes: int | None = None
) -> ImageData:
    """As femnist-writers: a file in $GSWGAN_DATA whose checksum is known. The last record of each is held out."""
    folder = root / "femnist_writers"
    folder.mkdir(parents=True)
    path = folder / "femnist-100-writers.npz"
    blank = np.zeros((1, 28, 28), np.uint8)
    images = [np.concatenate([255 - images, blank]) for images, _ in people.values()]
    labels = [np.append(labels, 0) for _, labels in people.values()]
    writers = [person for person, (_, mine) in people.items() for _ in range(len(mine) + 1)]
    splits = [part for _, mine in people.values() for part in (*["train"] * len(mine), "test")]
    np.savez(
        path, images=np.concatenate(images), labels=np.concatenate(labels).astype(np.uint8), writers=np.array(writers),
        split=np.array(splits),
    )  # fmt: skip
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GSWGAN_DATA", str(root))
        patch.setattr(sources, "FEMNIST_WRITERS", replace(femnist.FEMNIST_WRITERS, sha256={path.name: digest}))
        return load_data("femnist-writers", split=split, classes=classes)


def write_idx(path: Path, array: np.ndarray) -> Path:
    code, dtype = (0x08, np.dtype(np.uint8)) if array.dtype == np.uint8 else (0x0C, np.dtype(">i4"))
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, code, array.ndim, *array.shape)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(header + array.astype(dtype).tobytes(), mtime=0))
    return path


def by_id(data: ImageData) -> list[tuple[str, bytes, list[int]]]:
    """Each client's id, images and labels, in order. Labels are those of the data, by name."""
    found = []
    for person, mine in clients(data):
        assert mine.person_ids == (person,)
        assert mine.number_of_persons == 1
        found.append((person, mine.images.tobytes(), mine.labels.tolist()))
    return found


def expected(people: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> list[tuple[str, bytes, list[int]]]:
    return [(person, people[person][0].tobytes(), people[person][1].tolist()) for person in sorted(people)]


def without(found: Iterable[tuple[str, bytes, list[int]]], person: str) -> list[tuple[str, bytes, list[int]]]:
    return [row for row in found if row[0] != person]
