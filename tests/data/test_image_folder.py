"""Folders of pictures: classes from subfolders, order from file names, nothing followed or trusted."""

from __future__ import annotations

import contextlib
import os
import struct
import tempfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from gswgan.data import dirichlet_clients, load_data
from gswgan.data.partition import check_own_names
from gswgan.data.picture import read_image
from gswgan.data.read_options import Reading
from gswgan.errors import DataError


def save(path: Path, value: int | tuple[int, ...], mode: str = "L", size: tuple[int, int] = (8, 8)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value).save(path)
    return path


def classes_folder(root: Path) -> Path:
    """Six grey pictures in three classes; the name and the shade of a picture are the same number."""
    for number, name in enumerate(["dog", "cat", "cat", "dog", "emu", "cat"]):
        save(root / name / f"{number}.png", 10 * number)
    return root


def test_subfolders_are_classes(tmp_path: Path) -> None:
    data = load_data(classes_folder(tmp_path))
    assert data.class_names == ("cat", "dog", "emu")
    assert data.images.shape == (6, 1, 8, 8)
    assert data.images[:, 0, 0, 0].tolist() == [0, 10, 20, 30, 40, 50]
    assert data.labels.tolist() == [1, 0, 0, 1, 2, 0]
    assert data.name == "image folder"  # it is published: the folder's own name is not


def test_a_changed_label_changes_one_record_alone_and_moves_none(tmp_path: Path) -> None:
    """Sorted by class first, a picture that changes its class would shift all those in between."""
    root = classes_folder(tmp_path)
    before = load_data(root)
    (root / "dog" / "3.png").rename(root / "cat" / "3.png")
    after = load_data(root)
    assert np.array_equal(before.images, after.images)
    assert np.flatnonzero(before.labels != after.labels).tolist() == [3]
    assert before.repeated_names == after.repeated_names == ()


def repeated_folder(root: Path, each: int = 20) -> Path:
    """The same file names in two class folders; a third class has none of them."""
    for number, name in enumerate(["cat", "dog"]):
        for index in range(each):
            save(root / name / f"{index:03}.png", 10 * number + index)
    (root / "emu").mkdir()
    return root


def test_files_of_one_name_move_each_other_and_are_refused_where_places_matter(tmp_path: Path) -> None:
    root = repeated_folder(tmp_path / "set")
    before = load_data(root)
    (root / "cat" / "000.png").rename(root / "emu" / "000.png")
    after = load_data(root)
    assert (before.images != after.images).any(axis=(1, 2, 3)).sum() == 2  # one of them is not the one that changed
    assert before.repeated_names == after.repeated_names == tuple(f"{index:03}.png" for index in range(20))
    with pytest.raises(DataError, match=r"20 file names.*000\.png, 001\.png, 002\.png, \.\.\..*CLASS-NAME\.png"):
        check_own_names(before.repeated_names)
    with pytest.raises(DataError, match="several class folders"):
        dirichlet_clients(before, 4, concentration=1.0, seed=0)


def test_an_empty_subfolder_is_a_class(tmp_path: Path) -> None:
    (classes_folder(tmp_path) / "ant").mkdir()
    assert load_data(tmp_path).class_names == ("ant", "cat", "dog", "emu")


def test_without_subfolders_there_are_no_labels(tmp_path: Path) -> None:
    for number in range(3):
        save(tmp_path / f"{number}.bmp", number)
    data = load_data(tmp_path)
    assert data.labels is None
    assert (data.n, data.classes, data.class_names) == (3, 1, ("all",))


def test_labels_can_be_dropped_and_the_class_count_checked(tmp_path: Path) -> None:
    root = classes_folder(tmp_path)
    assert load_data(root, labels=False).labels is None
    assert load_data(root, classes=3).classes == 3
    with pytest.raises(DataError, match="classes"):
        load_data(root, classes=4)


def test_other_files_and_hidden_ones_are_passed_over(tmp_path: Path) -> None:
    root = classes_folder(tmp_path)
    (root / "notes.txt").write_text("x")
    (root / "cat" / "._1.png").write_bytes(b"x")
    (root / ".git").mkdir()
    assert load_data(root).n == 6


def test_one_record_does_not_decide_whether_there_are_colours(tmp_path: Path) -> None:
    """The number of channels is public: where pictures differ in it, it must be given."""
    save(tmp_path / "a.png", 7)
    save(tmp_path / "b.png", (1, 2, 3), "RGB")
    save(tmp_path / "c.png", (9, 8, 7), "RGB")
    with pytest.raises(DataError, match=r"b\.png.*in colour.*grey.*--channels 3"):
        load_data(tmp_path)
    data = load_data(tmp_path, channels=3)
    assert data.images[:, :, 4, 4].tolist() == [[7, 7, 7], [1, 2, 3], [9, 8, 7]]
    (tmp_path / "a.png").unlink()
    assert load_data(tmp_path).channels == 3
    save(tmp_path / "d.png", 7)
    with pytest.raises(DataError, match=r"d\.png.*grey.*in colour"):
        load_data(tmp_path)


@pytest.mark.parametrize("channels", [1, 3])
def test_channels_can_be_fixed_beforehand(tmp_path: Path, channels: int) -> None:
    save(tmp_path / "a.png", 7)
    save(tmp_path / "b.png", (50, 50, 50), "RGB")
    data = load_data(tmp_path, channels=channels)
    assert data.images[:, :, 0, 0].tolist() == [[7] * channels, [50] * channels]


@pytest.mark.parametrize(
    ("mode", "value", "reading", "expected"),
    [
        ("1", 1, Reading(), 255), ("L", 9, Reading(), 9), ("LA", (9, 255), Reading(background=(7, 7, 7)), 9),
        ("LA", (9, 0), Reading(background=(7, 7, 7)), 7), ("I;16", 65535, Reading(pixel_range=(0, 65535)), 255),
    ],
)  # fmt: skip
def test_grey_modes(tmp_path: Path, mode: str, value: int, reading: Reading, expected: int) -> None:
    picture = read_image(save(tmp_path / "a.png", value, mode), reading=reading)
    assert picture.shape == (8, 8)
    assert set(picture.ravel().tolist()) == {expected}


def test_a_photo_is_turned_upright(tmp_path: Path) -> None:
    picture = Image.new("L", (16, 8), 100)
    exif = picture.getexif()
    exif[0x0112] = 6
    picture.save(tmp_path / "a.jpg", exif=exif)
    assert read_image(tmp_path / "a.jpg").shape == (16, 8)


def test_sizes(tmp_path: Path) -> None:
    save(tmp_path / "a.png", 100, size=(8, 8))
    save(tmp_path / "b.png", 100, size=(10, 10))
    with pytest.raises(DataError, match=r"b\.png.*--image-size"):
        load_data(tmp_path)
    save(tmp_path / "c.png", 100, size=(40, 20))
    with pytest.raises(DataError, match="image_size"):
        load_data(tmp_path, image_size=3)
    data = load_data(tmp_path, image_size=8)
    assert data.images.shape == (3, 1, 8, 8)
    assert data.images[2, 0, :, 0].tolist() == [0, 0, 100, 100, 100, 100, 0, 0]


def test_links_are_not_followed(tmp_path: Path) -> None:
    outside = save(tmp_path / "outside" / "secret.png", 5)
    root = classes_folder(tmp_path / "root")
    link = root / "cat" / "9.png"
    for target in (outside, root / "cat" / "1.png", tmp_path / "nowhere"):
        os.symlink(target, link)
        with pytest.raises(DataError, match="symbolic link"):
            load_data(root)
        link.unlink()
    os.symlink(outside.parent, root / "gnu")
    with pytest.raises(DataError, match="symbolic link"):
        load_data(root)


def test_unclear_folders(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no images"):
        load_data(tmp_path / "empty")
    root = classes_folder(tmp_path / "both")
    save(root / "x.png", 1)
    with pytest.raises(DataError, match="side by side"):
        load_data(root)
    with pytest.raises(DataError, match="subfolders are the classes"):
        load_data(classes_folder(tmp_path / "deep" / "train").parent)


def test_a_held_out_part_is_another_path(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="path of the test set"):
        load_data(classes_folder(tmp_path), split="test")


def test_damaged_pictures_are_named(tmp_path: Path) -> None:
    whole = save(tmp_path / "a.png", (1, 2, 3), "RGB", (64, 64)).read_bytes()
    for content in (b"", b"no picture", whole[:30], whole[: len(whole) // 2], whole[:45] + b"xxxx" + whole[49:]):
        (tmp_path / "a.png").write_bytes(content)
        with pytest.raises(DataError, match=r"a\.png"):
            load_data(tmp_path)


def test_a_format_behind_another_name_is_refused(tmp_path: Path) -> None:
    Image.new("L", (8, 8)).save(tmp_path / "a.png", format="GIF")
    with pytest.raises(DataError, match=r"a\.png"):
        load_data(tmp_path)


def _png_header(width: int, height: int) -> bytes:
    chunk = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))


@pytest.mark.parametrize(("side", "problem"), [(5_000, "pixels"), (10_000, "BombWarning"), (60_000, "BombError")])
def test_decompression_bombs(tmp_path: Path, side: int, problem: str) -> None:
    body = b"IDAT" + zlib.compress(bytes(1000))
    content = _png_header(side, side) + struct.pack(">I", len(body) - 4) + body
    (tmp_path / "a.png").write_bytes(content + struct.pack(">I", zlib.crc32(body)))
    with pytest.raises(DataError, match=rf"a\.png.*{problem}"):
        load_data(tmp_path, image_size=8)


@settings(derandomize=True, deadline=None, max_examples=100)
@given(content=st.binary(max_size=200), start=st.sampled_from([b"", b"BM", b"\xff\xd8\xff\xe0", b"png"]))
def test_random_bytes_give_a_picture_or_a_data_error(content: bytes, start: bytes) -> None:
    start = _png_header(8, 8) if start == b"png" else start
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.png"
        path.write_bytes(start + content)
        with contextlib.suppress(DataError):
            assert read_image(path).dtype == np.uint8
