"""Images that are stated to be public: their shape, their digest, and the protected data given as public."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gswgan.data import load_data, make_image_data
from gswgan.data.public import images_digest, read_public, refuse_same_images, refuse_same_source
from gswgan.errors import DataError

COLOUR = np.random.default_rng(0).integers(0, 256, (20, 12, 12, 3), dtype=np.uint8)


def test_images_of_any_shape_are_cut_scaled_and_given_the_channels_of_the_data() -> None:
    wide = np.zeros((16, 12, 20, 3), np.uint8)
    wide[:, :, 4:16], wide[0] = (200, 100, 50), 9
    found = read_public(wide, image_size=8, channels=1).images
    assert found.shape == (16, 1, 8, 8)
    assert set(np.unique(found[1:])) == {round((299 * 200 + 587 * 100 + 114 * 50) / 1000)}  # no bars, and the luma
    flat = np.repeat(np.arange(16, dtype=np.uint8), 80).reshape(16, 10, 8)
    grey = read_public(flat, image_size=16, channels=3).images
    assert grey.shape == (16, 3, 16, 16)
    assert set(np.unique(grey[7])) == {7}


def test_grey_is_what_pillow_makes_of_colour() -> None:
    found = read_public(COLOUR, image_size=12, channels=1).images[:, 0]
    assert np.array_equal(found, [np.asarray(Image.fromarray(image).convert("L")) for image in COLOUR])


def test_labels_are_left_aside_and_a_name_will_do(tmp_path: Path) -> None:
    np.savez(tmp_path / "public.npz", images=COLOUR, labels=np.full(20, 10**6))
    assert read_public(tmp_path / "public.npz", image_size=12, channels=3).images.shape == (20, 3, 12, 12)
    assert read_public("digits", image_size=8, channels=1).name == "digits"


def test_the_digest_is_of_shape_and_pixels_alone(tmp_path: Path) -> None:
    np.savez(tmp_path / "public.npz", images=COLOUR)
    images = np.ascontiguousarray(COLOUR.transpose(0, 3, 1, 2))
    expected = hashlib.sha256(b"20x3x12x12\n" + images.tobytes()).hexdigest()
    assert read_public(COLOUR, image_size=12, channels=3).digest == expected
    assert read_public(tmp_path / "public.npz", image_size=12, channels=3).digest == expected
    changed = images.copy()
    changed[3, 1, 2, 2] ^= 1
    assert images_digest(changed) != expected


def test_too_few_are_refused() -> None:
    with pytest.raises(DataError, match=r"public = '15 images': expected at least 16"):
        read_public(COLOUR[:15], image_size=12, channels=3)


def test_equal_images_teach_nothing_and_are_refused() -> None:
    with pytest.raises(DataError, match=r"public = '16 equal images': expected images that differ"):
        read_public(COLOUR[:1].repeat(16, axis=0), image_size=12, channels=3)


def test_what_cannot_be_read_is_said_of_public_and_not_of_the_data(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^public = .*Check the name or the path \(--public\)"):
        read_public(tmp_path / "nowhere", image_size=12, channels=3)


def test_a_path_is_named_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "data" / "damaged.npz"
    path.parent.mkdir()
    path.write_bytes(b"no zip")
    with pytest.raises(DataError, match="damaged") as refused:
        read_public(path, image_size=8, channels=1)
    assert str(path) in str(refused.value)


def test_a_folder_that_may_not_be_read_is_said_of_public(tmp_path: Path, monkeypatch) -> None:
    def denied(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", denied)
    with pytest.raises(DataError, match=r"^public = .*Permission denied.*--public"):
        read_public(tmp_path, image_size=8, channels=1)


def test_the_protected_data_by_its_name_path_link_or_files_is_refused(tmp_path: Path) -> None:
    private, other = tmp_path / "private", tmp_path / "other"
    for folder in (private, other):
        folder.mkdir()
        np.savez(folder / "train.npz", images=COLOUR)
    (tmp_path / "link").symlink_to(private)
    linked = tmp_path / "linked"
    linked.mkdir()
    os.link(private / "train.npz", linked / "other-name.npz")
    refuse_same_source(private, other)  # a copy has other files: see below
    refuse_same_source("digits", private)
    for public in (private, private / "train.npz", tmp_path, tmp_path / "link", f"{private}/../private", linked):
        with pytest.raises(DataError, match=r"public = .*nobody needs to protect"):
            refuse_same_source(private, public)
    with pytest.raises(DataError, match="another set"):
        refuse_same_source("digits", "digits")


def test_a_copy_of_the_protected_data_is_refused_and_single_records_are_not_compared(tmp_path: Path) -> None:
    np.savez(tmp_path / "private.npz", images=COLOUR)
    shutil.copy(tmp_path / "private.npz", tmp_path / "copy.npz")
    data = load_data(tmp_path / "private.npz")
    with pytest.raises(DataError, match="all images are equal"):
        refuse_same_images(data, read_public(tmp_path / "copy.npz", image_size=12, channels=3))
    some = COLOUR.copy()
    some[0] = 255 - some[0]
    refuse_same_images(data, read_public(some, image_size=12, channels=3))  # all but one record are in it


def test_data_in_memory_is_compared_as_well() -> None:
    data = make_image_data(COLOUR)
    with pytest.raises(DataError, match="all images are equal"):
        refuse_same_images(data, read_public(data, image_size=12, channels=3))
