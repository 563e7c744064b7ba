"""A run is bound to its data: whoever relabels a record, or gives it to another person, has other data."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from conftest import tiny_images
from contracts.wiring import plant
from gswgan.data import ImageData, ImageStream, open_stream
from gswgan.data import files as many
from gswgan.run import folder as run_folder
from many_files import write_npz, write_parquet

KEY = bytes(32)
DATA = dataclasses.replace(tiny_images(30), persons=np.arange(30) % 5, person_ids=tuple("abcde"))


def relabelled(data: ImageData, record: int = 9) -> ImageData:
    labels = data.labels.copy()
    labels[record] = (labels[record] + 1) % data.classes
    return dataclasses.replace(data, labels=labels)


def of_another_person(data: ImageData, record: int = 9) -> ImageData:
    persons = data.persons.copy()
    persons[record] = (persons[record] + 1) % 5
    return dataclasses.replace(data, persons=persons)


def write_folder(folder: Path, data: ImageData) -> Path:
    """Images in a folder for each class, all of them in the same order whatever their classes are."""
    order = np.argsort(data.labels, kind="stable")
    for place, record in enumerate(order):
        path = folder / f"class-{data.labels[record]}" / f"{place:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(data.images[record, 0]).save(path)
    return folder


def streams(folder: Path, kind: str) -> tuple[ImageStream, ImageStream]:
    """Data that stays in its files, and the same images in the same order with one of another class."""
    if kind == "folder":
        data = dataclasses.replace(DATA, labels=np.repeat(np.arange(3), 10))
        pair, write = (data, relabelled(data)), write_folder  # the last of its class becomes the first of the next
    else:
        pair, write = (DATA, relabelled(DATA)), {"npz": write_npz, "parquet": write_parquet}[kind]
    found = []
    for number, data in enumerate(pair):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(many, "MAX_FILES_IN_MEMORY", 5)
            stream = open_stream(write(folder / str(number) / "data", data), classes=3)
        assert isinstance(stream, ImageStream)
        found.append(stream)
    return found[0], found[1]


def check_arrays() -> None:
    others = [relabelled(DATA), of_another_person(DATA), dataclasses.replace(DATA, images=DATA.images[::-1].copy())]
    digests = [run_folder.data_digest(data, KEY) for data in (DATA, *others)]
    assert len(set(digests)) == len(digests), "other data has the same digest"
    assert run_folder.data_digest(dataclasses.replace(DATA), KEY) == digests[0]


def check_stream(folder: Path, kind: str) -> None:
    one, other = streams(folder, kind)
    assert run_folder.data_digest(one, KEY) != run_folder.data_digest(other, KEY), "relabelling changes nothing"
    assert run_folder.data_digest(one, KEY) == run_folder.data_digest(one, KEY)


def test_labels_and_persons_are_part_of_the_digest() -> None:
    check_arrays()


@pytest.mark.parametrize("kind", ["folder", "npz", "parquet"])
def test_labels_of_a_stream_are_part_of_the_digest(tmp_path: Path, kind: str) -> None:
    check_stream(tmp_path, kind)


ARRAYS = "(data.images, data.labels, data.persons)"


@pytest.mark.parametrize("without", ["data.labels, ", ", data.persons"])
def test_a_digest_of_arrays_without_labels_or_persons_is_found(without: str, monkeypatch) -> None:
    plant(monkeypatch, run_folder, "data_digest", ARRAYS, ARRAYS.replace(without, ""))
    with pytest.raises(AssertionError, match="the same digest"):
        check_arrays()


def test_a_digest_of_files_without_labels_is_found(tmp_path: Path, monkeypatch) -> None:
    plant(monkeypatch, run_folder, "data_digest", " {label} ", " ")
    with pytest.raises(AssertionError, match="relabelling changes nothing"):
        check_stream(tmp_path, "folder")
