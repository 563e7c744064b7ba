"""make_image_data: what is accepted, what is refused and how the refusal reads."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from gswgan.data import ImageData, Reading, ReadOptions, make_image_data
from gswgan.errors import DataError

RNG = np.random.default_rng(7)
GREY = RNG.integers(0, 256, (6, 9, 9), dtype=np.uint8)
COLOUR = RNG.integers(0, 256, (6, 9, 9, 3), dtype=np.uint8)
LABELS = np.array([0, 1, 2, 0, 1, 2])


def test_grey_bytes_become_channel_first() -> None:
    data = make_image_data(GREY, LABELS, classes=3)
    assert isinstance(data, ImageData)
    assert data.images.dtype == np.uint8
    assert data.images.shape == (6, 1, 9, 9)
    assert (data.images[:, 0] == GREY).all()
    assert data.labels.dtype == np.int64
    assert (data.labels == LABELS).all()
    assert (data.n, data.channels, data.image_size, data.classes) == (6, 1, 9, 3)
    assert data.class_names == ("0", "1", "2")
    assert data.number_of_persons == 0


def test_colour_keeps_pixels_in_place() -> None:
    data = make_image_data(COLOUR)
    assert data.images.shape == (6, 3, 9, 9)
    assert data.images[4, 2, 7, 1] == COLOUR[4, 7, 1, 2]
    assert data.labels is None
    assert (data.classes, data.class_names) == (1, ("all",))


def test_one_channel_last_axis_and_lists_are_taken() -> None:
    assert (make_image_data(GREY[..., None]).images == make_image_data(GREY).images).all()
    assert make_image_data(np.zeros((2, 8, 8)).tolist(), [1, 0], classes=2).n == 2


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_every_byte_survives_as_float(dtype: type) -> None:
    levels = np.arange(256, dtype=np.uint8).reshape(4, 8, 8)
    data = make_image_data((levels / 255.0).astype(dtype))
    assert (data.images[:, 0] == levels).all()


def test_floats_are_rounded_not_cut() -> None:
    data = make_image_data(np.full((1, 8, 8), 0.999))
    assert data.images.max() == 255


def test_the_arrays_are_copies_that_can_be_written() -> None:
    images, labels = GREY.copy(), LABELS.copy()
    data = make_image_data(images, labels, classes=3)
    before = data.images.copy()
    images[:], labels[:] = 0, 0
    assert (data.images == before).all()
    assert data.labels.tolist() == LABELS.tolist()
    assert data.images.flags.writeable
    assert data.images.flags.c_contiguous


def test_printed_form_shows_no_content() -> None:
    text = repr(make_image_data(GREY, LABELS, classes=3, persons=[5, 5, 6, 6, 7, 7]))
    assert "array(" not in text
    assert "persons=" not in text
    assert "images=" not in text


def test_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        make_image_data(GREY).classes = 4  # type: ignore[misc]


@pytest.mark.parametrize(
    ("images", "name"),
    [
        (np.zeros((0, 8, 8), np.uint8), "images"), (np.zeros((3, 8, 9), np.uint8), "images"),
        (np.zeros((3, 7, 7), np.uint8), "images"), (np.zeros((3, 129, 129), np.uint8), "images"),
        (np.zeros((3, 3, 8, 8), np.uint8), "images"), (np.zeros((8, 8), np.uint8), "images"),
        (np.zeros((3, 8, 8, 4), np.uint8), "background"), (np.zeros((3, 8, 8), np.int64), "pixel_range"),
        (np.zeros((3, 8, 8), bool), "images"), (np.zeros((3, 8, 8), complex), "images"),
        (np.full((3, 8, 8), None), "images"), (np.full((3, 8, 8), 1.001), "images"),
        (np.full((3, 8, 8), -0.001), "images"), (np.full((3, 8, 8), np.nan), "images"),
        (np.full((3, 8, 8), np.inf), "images"), ([[[1, 2], [3]]], "images"),
    ],
)  # fmt: skip
def test_refused_images(images: object, name: str) -> None:
    with pytest.raises(DataError) as caught:
        make_image_data(images)  # type: ignore[arg-type]
    assert caught.value.name == name
    assert caught.value.expected


def test_a_bad_pixel_is_named_by_its_record_beyond_the_first_chunk() -> None:
    images = np.full((2500, 8, 8), 0.25, np.float32)
    images[2200, 3, 3] = np.nan
    with pytest.raises(DataError, match="record 2200"):
        make_image_data(images)


def test_channel_first_input_gets_the_remedy() -> None:
    with pytest.raises(DataError, match="moveaxis"):
        make_image_data(np.zeros((5, 3, 32, 32), np.uint8))


@pytest.mark.parametrize(
    ("labels", "classes", "name"),
    [
        (LABELS, None, "classes"), (LABELS, 0, "classes"), (LABELS, True, "classes"), (LABELS, 3.0, "classes"),
        (LABELS, 10_001, "classes"), (LABELS, 10**30, "classes"), (LABELS[:5], 3, "labels"),
        (LABELS[:, None], 3, "labels"), (LABELS.astype(float), 3, "labels"), (LABELS.astype(bool), 3, "labels"),
        (LABELS.astype(str), 3, "labels"), (LABELS, 2, "labels[2]"), (LABELS - 1, 3, "labels[0]"),
        (np.array([0, 1, 2, 2**64 - 1, 0, 0], np.uint64), 3, "labels[3]"), (None, 3, "classes"),
    ],
)  # fmt: skip
def test_refused_labels(labels: np.ndarray | None, classes: int | None, name: str) -> None:
    with pytest.raises(DataError) as caught:
        make_image_data(GREY, labels, classes=classes)
    assert caught.value.name == name


def test_missing_classes_says_that_data_is_not_asked() -> None:
    with pytest.raises(DataError, match=r"never taken from the data.*classes=N.*--classes N"):
        make_image_data(GREY, LABELS)


def test_classes_that_do_not_occur_are_kept() -> None:
    assert make_image_data(GREY, LABELS, classes=12).classes == 12


def test_a_label_error_shows_no_other_label() -> None:
    labels = np.array([11, 12, 13, 999, 14, 15])
    with pytest.raises(DataError) as caught:
        make_image_data(GREY, labels, classes=20)
    assert "999" in str(caught.value)
    assert not any(str(other) in str(caught.value) for other in (11, 12, 13, 14, 15))


@pytest.mark.parametrize("names", [("a", "b"), ("a", "b", "b"), ("a", "b", 3)])
def test_refused_class_names(names: tuple[str, ...]) -> None:
    with pytest.raises(DataError, match="class_names"):
        make_image_data(GREY, LABELS, classes=3, class_names=names)


@pytest.mark.parametrize("name", ["", "b\n## Guarantee", "\x1b[2J", "\udcff", "b" * 101])
def test_a_class_name_cannot_pass_for_anything_else(name: str) -> None:
    """Names are printed, and stand in the release card."""
    with pytest.raises(DataError, match=r"class_names\[1\].*printable") as caught:
        make_image_data(GREY, LABELS, classes=3, class_names=("a", name, "c"))
    assert str(caught.value).isprintable()


def test_the_name_of_the_data_can_be_printed() -> None:
    assert make_image_data(GREY, name="ab\n\udcff\x1bc").name == "ab???c"


@pytest.mark.parametrize(
    ("pixel", "said"), [(np.nan, "not finite"), (np.inf, "not finite"), (1.5, "outside"), (-1, "outside")]
)
def test_a_bad_pixel_is_told_by_kind_and_its_value_is_not_shown(pixel: float, said: str) -> None:
    images = np.full((5, 8, 8), 0.125)
    images[3, 2, 1] = pixel
    with pytest.raises(DataError, match=f"a pixel of record 3 .*{said}") as caught:
        make_image_data(images)
    assert str(pixel) not in str(caught.value).replace("[0, 1]", "").replace("0 to 1", "")
    assert "0.125" not in str(caught.value)


def test_wide_images_are_scaled_with_their_aspect_and_centred() -> None:
    data = make_image_data(np.full((2, 20, 40, 3), 200, np.uint8), image_size=10)
    assert data.images.shape == (2, 3, 10, 10)
    expected = np.zeros((10, 10), np.uint8)
    expected[2:7] = 200
    assert (data.images == expected).all()


def test_tall_images_are_padded_at_the_sides() -> None:
    data = make_image_data(np.full((1, 12, 8), 9, np.uint8), image_size=12)
    assert (data.images[0, 0] > 0).sum(axis=1).tolist() == [8] * 12
    assert data.images[0, 0, :, 2:10].min() == 9


def test_shrinking_averages_areas() -> None:
    checks = np.indices((16, 16)).sum(axis=0) % 2 * 200
    assert set(np.unique(make_image_data(checks.astype(np.uint8)[None], image_size=8).images)) == {100}


def test_enlarging_keeps_a_flat_image_flat() -> None:
    assert set(np.unique(make_image_data(np.full((1, 5, 5), 77, np.uint8), image_size=16).images)) == {77}


def test_the_right_size_is_left_alone() -> None:
    assert (make_image_data(GREY, image_size=9).images == make_image_data(GREY).images).all()


@pytest.mark.parametrize("image_size", [7, 129, 16.0, True, "16"])
def test_refused_image_size(image_size: int) -> None:
    with pytest.raises(DataError, match="image_size"):
        make_image_data(GREY, image_size=image_size)


def test_person_ids_are_dense_and_sorted() -> None:
    data = make_image_data(GREY, persons=[50, 7, 50, -1, 7, 7])
    assert data.persons.dtype == np.int64
    assert data.persons.tolist() == [2, 1, 2, 0, 1, 1]
    assert data.number_of_persons == 3


@pytest.mark.parametrize("dtype", [str, object, "S3"])
def test_person_ids_may_be_strings(dtype: type | str) -> None:
    persons = np.array(["w2", "w1", "w2", "w3", "w1", "w1"]).astype(dtype)
    data = make_image_data(GREY, persons=persons)
    assert data.persons.tolist() == [1, 0, 1, 2, 0, 0]


def test_one_persons_records_do_not_renumber_the_others() -> None:
    persons = np.array(["b", "a", "c", "b", "a", "c"])
    moved = make_image_data(GREY, persons=persons[[1, 0, 2, 3, 4, 5]]).persons
    before = make_image_data(GREY, persons=persons).persons
    assert moved is not None
    assert before is not None
    assert (moved[[1, 0, 2, 3, 4, 5]] == before).all()


@pytest.mark.parametrize("persons", [[1, 2], [1.0] * 6, [[1]] * 6, [None] * 6, [True] * 6])
def test_refused_persons(persons: Any) -> None:
    with pytest.raises(DataError, match="persons"):
        make_image_data(GREY, persons=persons)


def test_a_picture_that_is_not_square_is_told_by_width_and_height() -> None:
    with pytest.raises(DataError, match=r"48 x 32 pixels \(width x height\)"):
        make_image_data(np.zeros((3, 32, 48), np.uint8), np.zeros(3, int), classes=1)


def test_pictures_that_are_not_square_are_cut_around_the_centre_where_that_is_stated() -> None:
    wide = np.zeros((2, 10, 30, 3), np.uint8)
    wide[:, :, 10:20] = 200
    cut = make_image_data(wide, image_size=10, reading=Reading(fit="crop"))
    assert set(np.unique(cut.images)) == {200}
    assert 0 in make_image_data(wide, image_size=10).images  # bars
    assert cut.reading.text == "images that are not square cut to the square around their centre"
    with pytest.raises(DataError, match="fit = 'stretch': expected one of pad, crop"):
        Reading(fit="stretch")
    with pytest.raises(DataError, match="--image-size"):
        ReadOptions(fit="crop")


def test_a_side_of_128_pixels_is_the_largest() -> None:
    assert make_image_data(np.zeros((1, 128, 128), np.uint8)).image_size == 128
    with pytest.raises(DataError, match="8 to 128 pixels"):
        make_image_data(np.zeros((1, 129, 129), np.uint8))
