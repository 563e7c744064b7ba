"""CIFAR-10 and MedMNIST by name, from made files with the checksums of these: forms, damage, what is refused."""

from __future__ import annotations

import hashlib
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gswgan.data import colour_sets, load_data
from gswgan.errors import DataError

RECORDS = 30  # of each file


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GSWGAN_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("cifar10", "medmnist"):
        (tmp_path / name).mkdir()
    return tmp_path


def records(split: str) -> np.ndarray:
    rng = np.random.default_rng(len(split))
    files = 5 if split == "train" else 1
    found = rng.integers(0, 256, (files * RECORDS, 3073), dtype=np.uint8)
    found[:, 0] = np.arange(len(found)) % 10
    return found


def write_binary(place: Path, split: str) -> None:
    for name, part in zip(colour_sets._BATCHES[split], np.split(records(split), 5 if split == "train" else 1)):
        (place / f"{name}.bin").write_bytes(part.tobytes())


def write_sheets(place: Path, split: str) -> None:
    for name, part in zip(colour_sets._BATCHES[split], np.split(records(split), 5 if split == "train" else 1)):
        rows = part[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1).reshape(-1, 1024, 3)
        Image.fromarray(rows).save(place / f"{name}.png")
    (place / f"{split}_lables.json").write_text(json.dumps(records(split)[:, 0].tolist()))


def write_python(place: Path, split: str) -> None:
    """As Python 2 pickled them: strings of bytes, and labels a thousand at a time."""

    def text(word: bytes) -> bytes:
        return b"U" + bytes([len(word)]) + word

    for name, part in zip(colour_sets._BATCHES[split], np.split(records(split), 5 if split == "train" else 1)):
        pixels = part[:, 1:].tobytes()
        labels = b"".join(b"(" + b"".join(b"K" + bytes([n]) for n in some) + b"e" for some in np.split(part[:, 0], 3))
        kind = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R("
        array = kind + b"K\x01M\x10\x27M\x00\x0c\x86"
        head = [text(b"batch_label"), text(b"batch 1 of 5"), text(b"labels"), b"]", labels, text(b"data"), array]
        size = len(pixels).to_bytes(4, "little")
        (place / name).write_bytes(b"".join([b"\x80\x02}(", *head, b"\x89T", size, pixels, b"tbu."]))


@pytest.mark.parametrize("write", [write_binary, write_sheets, write_python])
def test_cifar10_in_any_form(folder: Path, monkeypatch: pytest.MonkeyPatch, write) -> None:
    known = {split: hashlib.sha256(records(split).tobytes()).hexdigest() for split in ("train", "test")}
    monkeypatch.setattr(colour_sets, "_CIFAR10_SHA256", known)
    for split, count in (("train", 150), ("test", 30)):
        write(folder / "cifar10", split)
        data = load_data("cifar10", split=split)
        assert data.images.shape == (count, 3, 32, 32)
        assert np.array_equal(data.images.reshape(count, -1), records(split)[:, 1:])
        assert np.array_equal(data.labels, np.arange(count) % 10)
        assert (data.name, data.class_names[3]) == ("cifar10", "cat")
    assert load_data("cifar10", labels=False, channels=1, image_size=16).images.shape == (150, 1, 16, 16)


@pytest.mark.parametrize("write", [write_binary, write_sheets, write_python])
def test_other_records_than_the_published_ones_are_refused(folder: Path, write) -> None:
    write(folder / "cifar10", "train")
    with pytest.raises(DataError, match=r"cifar10: train.*sha256 a0181da3.*published records"):
        load_data("cifar10")


@pytest.mark.parametrize("name", ["data_batch_2.bin", "data_batch_2.png", "data_batch_2"])
def test_a_damaged_file_is_refused(folder: Path, name: str) -> None:
    write = {".bin": write_binary, ".png": write_sheets, "": write_python}[Path(name).suffix]
    write(folder / "cifar10", "train")
    (folder / "cifar10" / name).write_bytes(b"short")
    with pytest.raises(DataError, match=r"Check the file|Repair"):
        load_data("cifar10")


def test_the_python_form_is_not_unpickled(folder: Path) -> None:
    class Run:
        def __reduce__(self):
            return (Path.touch, (folder / "was unpickled",))

    for name in colour_sets._BATCHES["train"]:
        (folder / "cifar10" / name).write_bytes(pickle.dumps(Run()))
    with pytest.raises(DataError, match=r"Check the file"):
        load_data("cifar10")
    assert not (folder / "was unpickled").exists()


def medmnist(path: Path, **changes: np.ndarray) -> str:
    rng = np.random.default_rng(0)
    arrays = {}
    for split, count in (("train", 24), ("val", 8), ("test", 16)):
        arrays[f"{split}_images"] = rng.integers(0, 256, (count, 28, 28, 3), dtype=np.uint8)
        arrays[f"{split}_labels"] = (np.arange(count) % 8).astype(np.uint8)[:, None]
    np.savez_compressed(path, **{**arrays, **changes})
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


def test_medmnist_by_name_has_its_classes_and_its_held_out_part(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    md5 = medmnist(folder / "medmnist" / "bloodmnist.npz")
    with pytest.raises(DataError, match="MD5 7053d0359d879ad8a5505303e11de1dc of the published file"):
        load_data("bloodmnist")
    names = colour_sets.MEDMNIST["bloodmnist"][1]
    monkeypatch.setitem(colour_sets.MEDMNIST, "bloodmnist", (md5, names))
    train, test = load_data("bloodmnist"), load_data("bloodmnist", split="test")
    assert (train.n, test.n, train.classes, train.channels) == (24, 16, 8, 3)
    assert np.array_equal(train.labels, np.arange(24) % 8)
    assert train.class_names[0] == "basophil"


def test_a_file_of_that_form_is_read_by_its_path(tmp_path: Path) -> None:
    medmnist(tmp_path / "organs.npz")
    assert load_data(tmp_path / "organs.npz", classes=8).n == 24
    assert load_data(tmp_path / "organs.npz", classes=8, split="test").n == 16
    with pytest.raises(DataError, match="the number of classes"):
        load_data(tmp_path / "organs.npz")


def test_several_labels_for_an_image_are_refused(tmp_path: Path) -> None:
    medmnist(tmp_path / "chest.npz", train_labels=np.zeros((24, 14), np.uint8))
    with pytest.raises(DataError, match=r"labels of shape \(24, 14\).*one label for each image"):
        load_data(tmp_path / "chest.npz", classes=2)


@pytest.mark.parametrize("name", ["cifar10", "bloodmnist"])
def test_files_that_are_not_there_are_named(folder: Path, name: str) -> None:
    with pytest.raises(DataError, match=r"no files.*Put the files there; they are not downloaded"):
        load_data(name)
