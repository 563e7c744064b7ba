from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from conftest import tiny_images
from gswgan.data import ImageData, load_data, open_stream, stream
from gswgan.data.stream import PartReader
from gswgan.errors import DataError
from many_files import png, write_npz, write_parquet


def all_records(folder: Path, **options: object) -> tuple[np.ndarray, np.ndarray]:
    found = open_stream(folder, **options)
    pieces = [piece for part in found.files.parts for piece in found.reader.read(part)]
    return np.concatenate([piece.images for piece in pieces]), np.concatenate([piece.labels for piece in pieces])


@pytest.fixture(autouse=True)
def short_head(monkeypatch) -> None:
    monkeypatch.setattr(stream, "HEAD", 10)


def test_what_is_no_record_keeps_its_place_and_adds_nothing(tmp_path: Path, stripes: ImageData) -> None:
    pytest.importorskip("pyarrow")
    labels: list[int | None] = stripes.labels.tolist()
    labels[40], labels[41], labels[42] = None, -7, 3
    folder = write_parquet(tmp_path / "set", stripes, damaged=(30, 95), labels=labels)
    images, found = all_records(folder)
    bad = [30, 40, 41, 42, 95]
    good = np.setdiff1d(np.arange(96), bad)
    assert (found[bad] == -1).all()
    assert not images[bad].any()
    assert np.array_equal(images[good], stripes.images[good])
    assert np.array_equal(found[good], stripes.labels[good])
    images, found = all_records(folder, labels=False)  # labels do not matter then
    assert np.flatnonzero(found < 0).tolist() == [30, 95]
    assert not found[good].any()
    with pytest.raises(DataError, match="record 30"):  # in memory all records are validated, and one is refused
        load_data(folder)


def test_pixels_that_are_no_numbers_add_nothing(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images, labels = rng.random((40, 8, 8), dtype=np.float32), np.zeros(40, np.int64)
    images[20, 0, 0], images[21, 3, 3], images[22, 1, 1] = np.nan, 1.5, -np.inf
    np.savez(tmp_path / "part.npz", images=images, labels=labels)
    found, known = all_records(tmp_path, classes=2)
    assert np.flatnonzero(known < 0).tolist() == [20, 21, 22]
    assert np.array_equal(found[0, 0], np.rint(images[0] * 255).astype(np.uint8))


@pytest.mark.parametrize("index", [0, 9])
def test_the_head_is_validated_as_data_in_memory_is(tmp_path: Path, stripes: ImageData, index: int) -> None:
    pytest.importorskip("pyarrow")
    with pytest.raises(DataError, match=f"record {index}"):
        open_stream(write_parquet(tmp_path / "damaged", stripes, damaged=(index,)))
    labels = stripes.labels.tolist()
    labels[index] = 3
    with pytest.raises(DataError, match="a class from 0 to 2"):
        open_stream(write_parquet(tmp_path / "label", stripes, labels=labels))


def test_every_picture_is_brought_to_the_shape_of_the_head(tmp_path: Path) -> None:
    """One record can neither change the shape nor be refused for its own."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    data = tiny_images(12)
    stored = [png(image) for image in data.images]
    stored[11] = png(np.full((3, 20, 10), 200, np.uint8))
    pq.write_table(pa.table({"image": stored, "label": data.labels}), tmp_path / "part.parquet")
    images, labels = all_records(tmp_path, classes=3)
    assert np.array_equal(images[:11], data.images[:11])
    assert images[11].shape == (1, 8, 8)
    assert images[11, 0, :, 2:6].min() == images[11].max() == 200  # scaled with its aspect kept, grey
    assert (labels >= 0).all()
    images, _ = all_records(tmp_path, classes=3, image_size=16, channels=3)
    assert images.shape == (12, 3, 16, 16)
    stored[2] = stored[11]
    pq.write_table(pa.table({"image": stored, "label": data.labels}), tmp_path / "part.parquet")
    with pytest.raises(DataError, match="--image-size"):  # in the head it would decide for all others
        open_stream(tmp_path, classes=3)


def test_shapes_that_fit_no_channels_add_nothing() -> None:
    reader = PartReader(image_size=8, channels=3, classes=2, labelled=True)
    assert reader._square(np.zeros((8, 8, 2), np.uint8)) is None
    assert reader._square(np.zeros((8, 8, 5), np.uint8)) is None
    assert np.array_equal(reader._square(np.full((8, 8), 7, np.uint8)), np.full((3, 8, 8), 7))  # as grey files are
    assert reader._square(None) is None
    assert reader._square(b"") is None
    assert reader._square(np.zeros((8, 8, 3), np.uint8)).shape == (3, 8, 8)


def test_running_out_of_memory_is_nobodys_fault(tmp_path: Path, stripes: ImageData, monkeypatch) -> None:
    """A record must not be lost because the machine was short of memory for a moment."""
    folder = write_npz(tmp_path / "set", stripes)
    found = open_stream(folder, classes=3)
    monkeypatch.setattr(stream, "to_picture", lambda *_, **__: (_ for _ in ()).throw(MemoryError))
    with pytest.raises(MemoryError):
        next(found.reader.read(found.files.parts[0]))


def test_an_empty_set_is_refused(tmp_path: Path, stripes: ImageData) -> None:
    none = dataclasses.replace(stripes, images=stripes.images[:0], labels=stripes.labels[:0])
    folder = write_npz(tmp_path / "set", none)
    with pytest.raises(DataError, match="at least one record"):
        open_stream(folder, classes=3)
