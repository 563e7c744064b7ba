"""Images as objects of other libraries, with the libraries themselves."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas
import pytest
import torch
from PIL import Image
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
)

from conftest import tiny_images
from gswgan.data import ImageData
from gswgan.data.objects import read_objects
from gswgan.errors import DataError

DATA = tiny_images(30)
IMAGES, LABELS = DATA.images[:, 0], DATA.labels
NAMES = ("bag", "shoe", "hat")
TENSOR = torch.from_numpy(IMAGES)[:, None]
PICTURES = [Image.fromarray(image) for image in IMAGES]


class Pairs(Dataset):
    """As torchvision's data sets are: items (image, label), and the names of the classes."""

    classes = NAMES

    def __len__(self) -> int:
        return len(IMAGES)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return TENSOR[index] / 255, int(LABELS[index])


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(PICTURES, LABELS))


def hugging_face() -> datasets.Dataset:
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=list(NAMES))})
    return datasets.Dataset.from_dict({"image": PICTURES, "label": LABELS.tolist()}, features=features)


def files(folder: Path) -> list[str]:
    for index, picture in enumerate(PICTURES):
        picture.save(folder / f"{index}.png")
    return [str(folder / f"{index}.png") for index in range(len(PICTURES))]


def same(found: ImageData, names: tuple[str, ...] | None = NAMES) -> None:
    assert np.array_equal(found.images, DATA.images)
    if names is None:
        assert found.labels is None
    else:
        assert found.labels.tolist() == LABELS.tolist()
        assert found.class_names == names


def test_torch_data_sets_and_loaders() -> None:
    same(read_objects(Pairs()))
    same(read_objects(DataLoader(Pairs(), batch_size=7)))
    same(read_objects(DataLoader(Pairs(), batch_size=7, shuffle=True, drop_last=True)))  # every record, in their order
    same(read_objects(DataLoader(Pairs(), batch_size=None)))
    same(read_objects(TensorDataset(TENSOR, torch.from_numpy(LABELS)), class_names=NAMES))
    same(read_objects(TensorDataset(TENSOR)), None)
    same(read_objects(Stream(), classes=3), ("0", "1", "2"))
    half = read_objects(Subset(Pairs(), range(10, 20)))
    assert half.labels.tolist() == LABELS[10:20].tolist()
    assert half.class_names == NAMES
    assert read_objects(ConcatDataset([Pairs(), Pairs()])).n == 60


def test_torch_tensors_have_their_channels_first() -> None:
    same(read_objects(TENSOR, torch.from_numpy(LABELS), class_names=NAMES))
    same(read_objects(TENSOR[:, 0] / 255, LABELS, class_names=NAMES))
    assert read_objects(TENSOR[:3, 0]).n == 3  # three grey images, not one of three channels
    colour = read_objects(TENSOR.expand(-1, 3, -1, -1))
    assert colour.images.shape == (30, 3, 8, 8)


def test_hugging_face_datasets() -> None:
    same(read_objects(hugging_face()))
    same(read_objects(hugging_face().with_format("torch")))
    same(read_objects(hugging_face().to_iterable_dataset()))
    same(read_objects(hugging_face().remove_columns("label")), None)
    two = hugging_face().add_column("kind", [NAMES[label] for label in LABELS])
    same(read_objects(two, "kind", class_names=NAMES))
    renamed = hugging_face().rename_columns({"image": "scan", "label": "finding"})
    same(read_objects(renamed))
    same(read_objects(renamed, False), None)


def test_pandas_columns(tmp_path: Path) -> None:
    frame = pandas.DataFrame({"image": PICTURES, "path": files(tmp_path), "label": [NAMES[one] for one in LABELS]})
    frame["array"] = list(IMAGES)
    frame = frame.iloc[::-1].iloc[::-1].set_index(pandas.Index(range(100, 130)))  # labels by place, not by index
    for column in ("image", "path", "array"):
        same(read_objects(frame[column], frame["label"], class_names=NAMES))
    same(read_objects(frame["path"].map(Path), frame["label"].astype("category"), class_names=NAMES))
    same(read_objects(frame["path"].astype("string"), frame["label"].astype("string"), class_names=NAMES))
    persons = read_objects(frame["image"], persons=pandas.Series(["a", "b", "c"] * 10))
    assert persons.person_ids == ("a", "b", "c")


def test_lists(tmp_path: Path) -> None:
    same(read_objects(PICTURES, LABELS, class_names=NAMES))
    same(read_objects(files(tmp_path), [NAMES[label] for label in LABELS], class_names=NAMES))
    same(read_objects(IMAGES.tolist() and list(IMAGES), LABELS.tolist(), class_names=NAMES))
    same(read_objects([image.tolist() for image in IMAGES / 255], LABELS, class_names=NAMES))
    same(read_objects(DATA), ("0", "1", "2"))
    mixed = [Image.fromarray(np.zeros((8 + n, 9), np.uint8)) for n in range(4)]
    assert read_objects(mixed, image_size=16).images.shape == (4, 1, 16, 16)
    assert read_objects(mixed, image_size=16, channels=3).images.shape == (4, 3, 16, 16)


def test_depth_and_transparency_are_stated(tmp_path: Path) -> None:
    deep = IMAGES.astype(np.uint16) * 16
    Image.fromarray(deep[0]).save(tmp_path / "deep.png")
    for images in (deep, list(deep), [Image.fromarray(image) for image in deep], torch.from_numpy(deep.astype(int))):
        with pytest.raises(DataError, match="pixel_range = None"):
            read_objects(images)
        found = read_objects(images, pixel_range=(0, 4080))
        assert np.array_equal(found.images, DATA.images)
        assert found.reading.pixel_range == (0, 4080)
    assert np.array_equal(read_objects([tmp_path / "deep.png"], pixel_range="0:4080").images, DATA.images[:1])
    clear = np.zeros((4, 8, 8, 4), np.uint8)
    for images in (clear, [Image.fromarray(image) for image in clear], TensorDataset(torch.from_numpy(clear))):
        with pytest.raises(DataError, match="background = None"):
            read_objects(images)
        assert (read_objects(images, background="white").images == 255).all()


def test_persons_without_an_id() -> None:
    for persons in (pandas.Series(["a", "b", None] * 10), ["a", "b", ""] * 10, np.array([1.0, 2.0, np.nan] * 10)):
        with pytest.raises(DataError, match="no id for 10 of 30 records"):
            read_objects(IMAGES, persons=persons)
        assert len(read_objects(IMAGES, persons=persons, missing="own").person_ids) == 12


def test_strings_are_numbered_by_the_class_names() -> None:
    found = read_objects(IMAGES, np.array(["hat"] * 30), class_names=NAMES)
    assert set(found.labels.tolist()) == {2}  # though no other class occurs
    assert found.classes == 3


@pytest.mark.parametrize(
    ("images", "labels", "arguments", "message"),
    [
        (IMAGES, ["bag"] * 30, {}, r"class_names = None: .*never taken from the labels\. Pass class_names="),
        (IMAGES, ["bag"] * 29 + ["cap"], {"class_names": NAMES}, r"labels\[29\] = 'cap': .*bag, shoe, hat"),
        (IMAGES, LABELS, {"class_names": NAMES, "classes": 4}, "classes = 4: expected 3"),
        (datasets.DatasetDict({"train": hugging_face()}), None, {}, r"DatasetDict of train.*data\['train'\]"),
        (hugging_face().remove_columns("image"), None, {}, "one column of type Image"),
        (hugging_face(), "kind", {}, "a column of image, label"),
        (pandas.DataFrame({"image": PICTURES}), None, {}, r"columns image.*fit\(frame\['image'\], frame\['label'\]\)"),
        (Pairs(), LABELS, {}, "nothing with a torch data set"),
        (DataLoader(Pairs(), sampler=WeightedRandomSampler(torch.ones(30), 30)), None, {}, "every record .* once"),
        (DataLoader(Pairs(), sampler=RandomSampler(Pairs(), num_samples=10)), None, {}, "every record .* once"),
        (DataLoader(Pairs(), collate_fn=lambda items: items), None, {}, r"collate_fn.*loader\.dataset"),
        (TensorDataset(TENSOR, TENSOR, TENSOR), None, {}, r"images\[0\] = '3 things'"),
        ({"image": IMAGES}, None, {}, "dict of image.*Pass the images, then the labels"),
        ((image for image in IMAGES), None, {}, "images = 'generator': expected an array"),
        (None, None, {}, "images = 'NoneType': expected an array"),
        (7, None, {}, "images = 'int': expected an array"),
        (["nowhere.png"], None, {}, r"images\[0\] = 'nowhere.png'.*No such file"),
        ([object()], None, {}, r"images\[0\] = 'object': expected an image"),
        ([np.zeros(8, np.uint8)], None, {}, r"images\[0\] = 'an array uint8 \(8,\)'"),
        (DATA, None, {"classes": 3}, "nothing with an ImageData"),
        (IMAGES, pandas.DataFrame({"kind": LABELS}), {}, "a table with columns kind.*Pass one of its columns"),
        (np.moveaxis(np.zeros((5, 8, 8, 3)), 3, 1), None, {}, "Move the channels to the end"),
    ],
)
def test_wrong_types_get_the_right_hint(images: Any, labels: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message) as wrong:
        read_objects(images, labels, **arguments)
    assert "--" not in str(wrong.value)
    if "Move the channels" not in message:
        assert "moveaxis" not in str(wrong.value)


def test_one_path_of_validation() -> None:
    """What an array may not hold, an object may not hold."""
    for wrong in (np.full((5, 8, 8), 1.5), np.full((5, 8, 8), np.nan)):
        said = []
        for images in (wrong, list(wrong), TensorDataset(torch.from_numpy(wrong))):
            with pytest.raises(DataError) as error:
                read_objects(images)
            said.append(error.value.expected)
        assert len(set(said)) == 1
    with pytest.raises(DataError, match=re.escape("labels[1] = 1: expected a class from 0 to 0")):
        read_objects(Pairs(), class_names=("bag",))
