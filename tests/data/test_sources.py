"""load_data: every kind of source, the fixed splits, the persons, and what importing it costs."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gswgan
from gswgan.data import clients, download, load_data, sources
from gswgan.data.readers import read_idx
from gswgan.errors import DataError

RNG = np.random.default_rng(5)
IMAGES = RNG.integers(0, 256, (12, 10, 10), dtype=np.uint8)
LABELS = np.arange(12, dtype=np.uint8) % 4


def write_idx(path: Path, array: np.ndarray) -> Path:
    code, dtype = (0x08, np.dtype(np.uint8)) if array.dtype == np.uint8 else (0x0C, np.dtype(">i4"))
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, code, array.ndim, *array.shape)
    content = header + array.astype(dtype).tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def write_npz(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return path


@pytest.fixture
def published() -> Path:
    folder = os.environ.get("GSWGAN_DATA")
    if not folder or not (Path(folder) / "mnist").is_dir() or not (Path(folder) / "fashion_mnist").is_dir():
        pytest.skip("GSWGAN_DATA names no folder with mnist and fashion_mnist")
    return Path(folder)


def test_digits_are_split_by_index() -> None:
    from sklearn.datasets import load_digits

    train, test = load_data("digits"), load_data("digits", split="test")
    assert (train.n, test.n, train.image_size, train.channels) == (1437, 360, 8, 1)
    assert train.class_names == test.class_names == tuple("0123456789")
    order = np.random.default_rng(20201205).permutation(1797)
    bunch = load_digits()
    assert np.concatenate([train.labels, test.labels]).tolist() == bunch.target[order].tolist()
    together = np.concatenate([train.images, test.images])[:, 0]
    assert np.abs(together / 255.0 * 16.0 - bunch.images[order]).max() < 0.05
    assert (together.min(), together.max()) == (0, 255)
    assert set(np.unique(together).tolist()) == {round(value * 255 / 16) for value in range(17)}


def test_digits_are_the_same_every_time() -> None:
    assert (load_data("digits").images == load_data("digits").images).all()


def test_digits_without_labels_and_larger() -> None:
    data = load_data("digits", labels=False, image_size=16)
    assert data.labels is None
    assert (data.classes, data.class_names, data.image_size) == (1, ("all",), 16)


def test_a_known_class_count_cannot_be_changed() -> None:
    assert load_data("digits", classes=10).classes == 10
    with pytest.raises(DataError, match="classes"):
        load_data("digits", classes=11)
    with pytest.raises(DataError, match="channels"):
        load_data("digits", channels=2)


@pytest.mark.parametrize(
    "spec", ["diggits", "", "absent.npz", "absent/", "MNIST", Path("digits/absent"), __file__, "/dev/null"]
)
def test_an_unknown_source_lists_what_is_accepted(spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"digits, mnist|no images"):
        load_data(spec)


def test_unknown_split() -> None:
    with pytest.raises(DataError, match="split"):
        load_data("digits", split="validation")


@pytest.mark.parametrize("zipped", ["", ".gz"])
@pytest.mark.parametrize("test_prefix", ["t10k", "test"])
def test_idx_folder(tmp_path: Path, zipped: str, test_prefix: str) -> None:
    write_idx(tmp_path / f"train-images-idx3-ubyte{zipped}", IMAGES)
    write_idx(tmp_path / f"train-labels-idx1-ubyte{zipped}", LABELS)
    write_idx(tmp_path / f"{test_prefix}-images-idx3-ubyte{zipped}", IMAGES[:5])
    write_idx(tmp_path / f"{test_prefix}-labels-idx1-ubyte{zipped}", LABELS[:5])
    train, test = load_data(tmp_path, classes=4), load_data(str(tmp_path), classes=4, split="test")
    assert (train.images[:, 0] == IMAGES).all()
    assert (test.images[:, 0] == IMAGES[:5]).all()
    assert train.labels.tolist() == LABELS.tolist()
    assert train.images.flags.writeable
    with pytest.raises(DataError, match="--classes N"):
        load_data(tmp_path)
    assert load_data(tmp_path, labels=False).classes == 1


def test_idx_folder_faults(tmp_path: Path) -> None:
    write_idx(tmp_path / "emnist-train-images-idx3-ubyte", IMAGES)
    assert load_data(tmp_path).labels is None
    with pytest.raises(DataError, match="test split"):
        load_data(tmp_path, split="test")
    write_idx(tmp_path / "emnist-train-labels-idx1-ubyte", LABELS[:-1])
    with pytest.raises(DataError, match="labels"):
        load_data(tmp_path, classes=4)
    write_idx(tmp_path / "train-images-idx3-ubyte.gz", IMAGES)
    with pytest.raises(DataError, match="one file that ends"):
        load_data(tmp_path, classes=4)


def test_npz(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "mine.npz", images=IMAGES / 255.0, labels=LABELS)
    data = load_data(path, classes=4)
    assert (data.images[:, 0] == IMAGES).all()
    assert data.name == "npz file"
    with pytest.raises(DataError, match="--classes N"):
        load_data(path)
    with pytest.raises(DataError, match="path of the test set"):
        load_data(path, classes=4, split="test")
    assert load_data(path, labels=False, classes=4).classes == 1
    assert load_data(write_npz(tmp_path / "grey.npz", images=IMAGES)).labels is None
    with pytest.raises(DataError, match="images"):
        load_data(write_npz(tmp_path / "other.npz", pictures=IMAGES))
    with pytest.raises(DataError, match="pickled"):
        load_data(write_npz(tmp_path / "objects.npz", images=np.array([[None]])))


WRITERS = np.array([907, 3, 907, 3, 15, 15, 3, 3, 907, 15, 15, 15])
EXPECTED = np.unique(WRITERS, return_inverse=True)[1].tolist()


def test_published_files(published: Path) -> None:
    for name, first, last in (("mnist", 5, 8), ("fashion-mnist", 9, 5)):
        train, test = load_data(name), load_data(name, split="test")
        assert (train.n, test.n, train.image_size, train.channels) == (60000, 10000, 28, 1)
        assert train.classes == len(train.class_names) == 10
        assert (train.labels[0], train.labels[-1]) == (first, last)
        assert train.labels.max() == 9
    assert load_data("fashion-mnist", split="test").class_names[9] == "Ankle boot"


def test_mnist_writers(published: Path) -> None:
    if not (published / "qmnist_writers").is_dir():
        pytest.skip("GSWGAN_DATA has no qmnist_writers")
    train, test = load_data("mnist-writers"), load_data("mnist-writers", split="test")
    sizes = [mine.n for _, mine in clients(train)]
    assert (len(sizes), np.median(sizes), min(sizes), sum(sizes)) == (539, 116, 19, 60_000)
    assert (test.n, test.number_of_persons) == (10_000, 297)
    assert not set(train.person_ids) & set(test.person_ids)
    assert (train.images == load_data("mnist").images).all()
    for data, split in ((train, "train"), (test, "test")):
        table = read_idx(published / "qmnist_writers" / f"qmnist-{split}-labels-idx2-int.gz")[: data.n]
        assert (table[:, 0] == data.labels).all()
        assert [data.person_ids[person] for person in data.persons[:50]] == [str(row[2]) for row in table[:50]]


def test_femnist_writers(published: Path) -> None:
    if not (published / "femnist_writers").is_dir():
        pytest.skip("GSWGAN_DATA has no femnist_writers")
    train, test = load_data("femnist-writers", classes=36), load_data("femnist-writers", split="test")
    assert (train.n, train.number_of_persons, train.classes) == (8383, 60, 36)
    assert (test.n, test.number_of_persons, test.classes) == (2253, 100, 62)
    assert set(train.person_ids) < set(test.person_ids)
    assert train.images.mean() < 20  # ink is bright, and there is little of it
    assert (train.images[:, 0, 0, 0] == 0).mean() > 0.99


def _made_mnist(root: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """Twelve images of MNIST, five to test; the table of test writers is longer, as QMNIST's is."""
    table = np.zeros((12, 8), np.int64)
    table[:, 0], table[:, 2] = LABELS, WRITERS
    files = {
        "mnist": {
            "train-images-idx3-ubyte.gz": IMAGES, "train-labels-idx1-ubyte.gz": LABELS,
            "t10k-images-idx3-ubyte.gz": IMAGES[:5], "t10k-labels-idx1-ubyte.gz": LABELS[:5],
        },
        "qmnist_writers": {"qmnist-train-labels-idx2-int.gz": table, "qmnist-test-labels-idx2-int.gz": table[::-1]},
    }  # fmt: skip
    for name, known in (("MNIST", download.MNIST), ("QMNIST_WRITERS", download.QMNIST_WRITERS)):
        (root / known.folder).mkdir()
        paths = [write_idx(root / known.folder / file, array) for file, array in files[known.folder].items()]
        sha256 = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
        monkeypatch.setattr(sources, name, dataclasses.replace(known, sha256=sha256))
    monkeypatch.setenv("GSWGAN_DATA", str(root))
    return table


def test_made_mnist_writers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _made_mnist(tmp_path, monkeypatch)
    train, test = load_data("mnist-writers"), load_data("mnist-writers", split="test")
    assert train.name == "mnist-writers"
    assert train.person_ids == ("3", "15", "907")
    assert train.persons.tolist() == EXPECTED
    assert test.n == 5
    assert [test.person_ids[person] for person in test.persons] == [str(writer) for writer in WRITERS[::-1][:5]]
    assert (train.classes, test.classes) == (10, 10)
    assert load_data("mnist-writers", labels=False).number_of_persons == 3
    with pytest.raises(DataError, match="--group-by out"):
        load_data("mnist-writers", group_by="ids.csv")
    (tmp_path / "qmnist_writers" / "qmnist-train-labels-idx2-int.gz").write_bytes(b"other")
    with pytest.raises(DataError, match="sha256"):
        load_data("mnist-writers")


def test_importing_the_data_package_is_cheap() -> None:
    """Neither torch nor scikit-learn at import (the parent packages are stood in for)."""
    code = f"""
import sys, types
for name, folder in (("gswgan", ""), ("gswgan.privacy", "/privacy")):
    package = types.ModuleType(name)
    package.__path__ = [{str(Path(gswgan.__file__).parent)!r} + folder]
    sys.modules[name] = package
import gswgan.data
heavy = {{"torch", "sklearn", "scipy", "rich", "h5py"}} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code], check=True)
