from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest

from conftest import tiny_images
from gswgan.data import ImageData, load_data, open_stream, parquet
from gswgan.data import files as data_files
from gswgan.data.files import find_data_files, read_batches
from gswgan.errors import DataError
from gswgan.plan.facts import Facts
from many_files import png, write_npz, write_parquet


def same(one: ImageData, other: ImageData) -> bool:
    return np.array_equal(one.images, other.images) and np.array_equal(one.labels, other.labels)


@pytest.fixture
def colours() -> ImageData:
    rng = np.random.default_rng(3)
    data = tiny_images(60)
    return dataclasses.replace(data, images=rng.integers(0, 256, (60, 3, 8, 8), dtype=np.uint8))


def test_parquet_is_read_as_it_was_written(tmp_path: Path, stripes: ImageData, colours: ImageData) -> None:
    pytest.importorskip("pyarrow")
    for name, data in (("grey", stripes), ("colour", colours)):
        folder = write_parquet(tmp_path / name, data)
        read = load_data(folder)
        assert same(read, data)
        assert (read.class_names, read.name) == (data.class_names, "Parquet files")
        stream = open_stream(folder)
        assert Facts.of(stream) == Facts.of(read)
    assert open_stream(folder, labels=False).classes == load_data(folder, labels=False).classes == 1


def test_splits_are_told_by_names_and_data_may_lie_in_data(tmp_path: Path, stripes: ImageData) -> None:
    pytest.importorskip("pyarrow")
    other, third = tiny_images(30, seed=5), tiny_images(12, seed=6)
    for name, data in (("train", stripes), ("test", other), ("validation", third)):
        write_parquet(tmp_path / "set" / "data", data, files=2, split=name)
    assert same(load_data(tmp_path / "set"), stripes)
    assert same(load_data(tmp_path / "set", split="test"), other)
    assert open_stream(tmp_path / "set").public_records == stripes.n
    assert same(load_data(write_parquet(tmp_path / "plain", stripes, split="part")), stripes)
    for folder in ("plain", "only"):
        write_parquet(tmp_path / "only", stripes)
        with pytest.raises(DataError, match="files of that split"):
            load_data(tmp_path / folder, split="test")


def test_class_names_or_their_number_must_be_stated(tmp_path: Path, stripes: ImageData) -> None:
    """Never counted from the labels: one record could change that."""
    pytest.importorskip("pyarrow")
    folder = write_parquet(tmp_path / "set", stripes, names=False)
    for read in (load_data, open_stream):
        with pytest.raises(DataError, match="--classes"):
            read(folder)
        assert read(folder, classes=5).class_names == tuple("01234")
    named = write_parquet(tmp_path / "named", stripes)
    for read in (load_data, open_stream):
        with pytest.raises(DataError, match="the number of classes"):
            read(named, classes=5)


def test_parts_are_whole_row_groups_and_cover_everything_once(tmp_path: Path, stripes: ImageData, monkeypatch) -> None:
    pytest.importorskip("pyarrow")
    folder = write_parquet(tmp_path / "set", stripes, files=2, group=10)  # 48 records: row groups of 10 and one of 8
    found = find_data_files(folder)
    assert [part.records for part in found.parts] == [48, 48]  # far fewer than RECORDS_PER_PART
    monkeypatch.setattr(data_files, "RECORDS_PER_PART", 15)
    found = find_data_files(folder)
    assert [part.records for part in found.parts] == [20, 20, 8] * 2
    assert [part.groups for part in found.parts] == [(0, 2), (2, 4), (4, 5)] * 2
    assert [path.name[:11] for path, _ in found.paths()] == ["train-00000", "train-00001"]
    labels = [label for part in found.parts for batch in read_batches(part) for _, label in batch]
    assert labels == stripes.labels.tolist()
    monkeypatch.setattr(data_files, "RECORDS_PER_BATCH", 7)
    sizes = [len(batch) for batch in read_batches(found.parts[0])]
    assert max(sizes) <= 7
    assert sum(sizes) == 20


def test_npz_files(tmp_path: Path, stripes: ImageData, colours: ImageData) -> None:
    for name, data in (("grey", stripes), ("colour", colours)):
        folder = write_npz(tmp_path / name, data)
        assert same(load_data(folder, classes=3), data)
        assert Facts.of(open_stream(folder, classes=3)) == Facts.of(load_data(folder, classes=3))
    np.savez(folder / "part-009.npz", images=np.zeros((4, 8, 8), np.uint8), labels=np.zeros(4, np.int64))
    with pytest.raises(DataError, match=r"as part-000.npz has"):
        open_stream(folder, classes=3)
    np.savez(folder / "part-009.npz", images=np.zeros((4, 8, 8, 3), np.uint8), labels=np.zeros(3, np.int64))
    with pytest.raises(DataError, match=r"integers of shape \(4,\)"):
        open_stream(folder, classes=3)
    np.savez(folder / "part-009.npz", pictures=np.zeros((4, 8, 8, 3), np.uint8))
    with pytest.raises(DataError, match="no array `images`"):
        open_stream(folder, classes=3)


def test_very_many_image_files_are_a_stream_and_few_are_not(tmp_path: Path, stripes: ImageData, monkeypatch) -> None:
    for index, (image, label) in enumerate(zip(stripes.images, stripes.labels)):
        place = tmp_path / "set" / f"class {label}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{index:04}.png").write_bytes(png(image))
    assert open_stream(tmp_path / "set") is None
    monkeypatch.setattr(data_files, "MAX_FILES_IN_MEMORY", 50)
    monkeypatch.setattr(data_files, "RECORDS_PER_PART", 40)
    stream = open_stream(tmp_path / "set")
    assert [part.records for part in stream.files.parts] == [40, 40, 16]
    assert Facts.of(stream) == Facts.of(load_data(tmp_path / "set"))
    pieces = [piece for part in stream.files.parts for piece in stream.reader.read(part)]
    assert np.array_equal(np.concatenate([piece.images for piece in pieces]), stripes.images)
    assert np.array_equal(np.concatenate([piece.labels for piece in pieces]), stripes.labels)
    assert [path.name for path, _ in stream.files.paths()] == [f"{index:04}.png" for index in range(96)]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"label": [0, 1]}, "0 with images"),
        ({"a": [b"x", b"y"], "b": [b"x", b"y"]}, "2 with images"),
        ({"image": [b"x", b"y"], "label": ["cat", "dog"]}, "one column `label` of integers"),
        ({"image": [b"x", b"y"], "label": [0, 1], "labels": [0, 1]}, "one column `label` of integers"),
    ],
)
def test_other_layouts_are_refused_with_what_was_expected(tmp_path: Path, columns: dict, said: str) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table(columns), tmp_path / "part.parquet")
    with pytest.raises(DataError, match=said):
        open_stream(tmp_path, classes=2)


def test_damaged_files_links_and_files_that_differ_are_refused(tmp_path: Path, stripes: ImageData) -> None:
    pytest.importorskip("pyarrow")
    folder = write_parquet(tmp_path / "set", stripes)
    whole = sorted(folder.iterdir())
    unlabelled = write_parquet(tmp_path / "other", dataclasses.replace(stripes, labels=None))
    content = whole[1].read_bytes()
    whole[1].write_bytes(content[:-20])
    with pytest.raises(DataError, match="whole"):
        open_stream(folder)
    whole[1].write_bytes(next(unlabelled.iterdir()).read_bytes())
    with pytest.raises(DataError, match="as train-00000"):
        open_stream(folder)
    whole[1].unlink()
    whole[1].symlink_to(whole[0])
    with pytest.raises(DataError, match="symbolic link"):
        open_stream(folder)


def test_damaged_content_is_told_in_words_that_fit_the_file(tmp_path: Path, stripes: ImageData, monkeypatch) -> None:
    def broken(*_: object) -> object:
        raise ValueError  # as pyarrow does for some damaged pages

    folder = write_parquet(tmp_path / "set", stripes)
    monkeypatch.setattr(parquet, "rows_at_a_time", broken)
    with pytest.raises(DataError, match=r"damaged content.*a Parquet file") as refused:
        load_data(folder)
    assert "npy" not in str(refused.value)


def test_one_parquet_file_in_place_of_its_folder_is_told_so(tmp_path: Path, stripes: ImageData) -> None:
    path = next(write_parquet(tmp_path / "set", stripes).iterdir())
    with pytest.raises(DataError, match="Pass the folder that holds it"):
        load_data(path)


def test_without_pyarrow_the_message_says_what_to_install(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "part.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(DataError, match=r"gswgan\[parquet\]"):
        open_stream(tmp_path)
