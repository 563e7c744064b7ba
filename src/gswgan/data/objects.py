"""Images as the objects of other libraries: torch, Hugging Face datasets, pandas, Pillow. None of them is imported.

Class names are never gathered from the labels: which classes occur may depend on one record. They are given, or stated
by the data set itself (`classes` of a torch data set, `ClassLabel` of a Hugging Face column).
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    default_collate,
)

from gswgan.data.dataset import ImageData, make_image_data
from gswgan.data.files import Raw, to_picture
from gswgan.data.image_folder import check_channels, stack_pictures
from gswgan.data.persons import complete
from gswgan.data.pixels import to_channels
from gswgan.data.read_options import AS_IT_IS, DEFAULTS, Reading, ReadOptions
from gswgan.errors import DataError, short

ACCEPTED = (
    "an array [n, h, w] or [n, h, w, 3], a path, a torch Dataset or DataLoader, a Hugging Face dataset, or a list or "
    "pandas column of images or paths"
)


@dataclass(frozen=True, kw_only=True)
class _Found:
    """What an object holds: images as an array or one by one, labels, and the class names that it states."""

    images: Any
    labels: Any
    class_names: tuple[str, ...] | None = None
    name: str = "arrays"  # public: the kind of data


def read_objects(
    images: Any,
    labels: Any = None,
    options: ReadOptions = DEFAULTS,
    *,
    class_names: Sequence[str] | None = None,
    persons: Any = None,
    missing: str | None = None,
    **named: Any,
) -> ImageData:
    """Validated images from an array, a list, or an object of another library; `named` are fields of `options`.

    `labels` are numbers, or strings with `class_names`; data sets have their own (of a Hugging Face dataset, `labels`
    may name the column), and False drops them. `persons` are ids, one per record; with `missing` "own" a record without
    one is a person of its own.
    """
    options = replace(options, **named)
    classes, channels, how = options.classes, options.channels, options.reading
    if isinstance(images, ImageData):
        given = {"class_names": class_names, "persons": persons, "image_size": options.image_size, "labels": labels}
        _nothing_else(classes=classes, channels=channels, reading=how.text or None, **given)
        return images
    found = _open(images, None if labels is False else labels)
    names = found.class_names if class_names is None else tuple(class_names)
    known = None if labels is False else found.labels
    if known is None:
        names = None
    elif names is not None:
        if classes not in (None, len(names)):
            raise DataError("classes", classes, f"{len(names)}, the number of class names", "Leave it out.")
        classes = len(names)
    pixels, size, left = found.images, options.image_size, how
    check_channels(channels)
    if not isinstance(pixels, np.ndarray):
        pixels, size, left = stack_pictures(_pictures(pixels, channels, how), size, how), None, AS_IT_IS
    data = make_image_data(
        pixels, None if known is None else _numbered(known, names), classes=classes, class_names=names,
        image_size=size, persons=None if persons is None else _ids(persons, missing), name=found.name, reading=left,
    )  # fmt: skip
    return replace(data, images=to_channels(data.images, channels, axis=1), reading=how)


def _nothing_else(**given: Any) -> None:
    for name, value in given.items():
        if value is not None:
            expected = "nothing with an ImageData, which has been read already"
            raise DataError(name, short(value), expected, "Pass it to load_data or make_image_data.")


def _open(images: Any, labels: Any) -> _Found:
    """The object's records, by its kind."""
    if isinstance(images, DataLoader):
        images = _dataset_of(images)
    library = type(images).__module__.partition(".")[0]
    if library == "datasets" and hasattr(images, "features"):
        return _hugging_face(images, labels)
    if isinstance(images, Dataset):
        return _torch_dataset(images, labels)
    if library == "datasets" or isinstance(images, dict):
        parts = ", ".join(map(str, images)) if isinstance(images, dict) else "its parts"
        todo = "Pass one of them: data['train']." if library == "datasets" else "Pass the images, then the labels."
        raise DataError("images", f"a {type(images).__name__} of {short(parts)}", ACCEPTED, todo)
    if library == "pandas" and hasattr(images, "columns"):
        todo = "Pass its columns: fit(frame['image'], frame['label'])."
        raise DataError("images", f"a table with columns {short(', '.join(map(str, images.columns)))}", ACCEPTED, todo)
    if isinstance(images, torch.Tensor):
        return _Found(images=_channels_last(images, 4), labels=labels)
    if library == "pandas":
        return _Found(images=images.tolist(), labels=labels, name="pandas column")
    if isinstance(images, np.ndarray) and images.dtype.kind not in "OUS":
        return _Found(images=images, labels=labels)
    if isinstance(images, np.ndarray | list | tuple):
        items = list(images)
        numbers = bool(items) and isinstance(items[0], int | float | np.number | list | tuple)
        return _Found(images=np.asarray(items) if numbers else items, labels=labels)
    raise DataError("images", type(images).__name__, ACCEPTED, "Pass one of these.")


def _dataset_of(loader: DataLoader[Any]) -> Any:
    """The data set that a loader reads: every record once, whatever order and batches the loader makes of them."""
    sampler = loader.sampler
    whole = isinstance(sampler, SequentialSampler) or (
        isinstance(sampler, RandomSampler) and not sampler.replacement and sampler.num_samples == len(loader.dataset)  # type: ignore[arg-type]
    )
    whole = whole or isinstance(loader.dataset, torch.utils.data.IterableDataset)
    if not whole or type(loader.batch_sampler) not in (BatchSampler, type(None)):
        expected = "a DataLoader that reads every record of its data set once"
        todo = "Choose records with torch.utils.data.Subset, and pass the data set."
        raise DataError("images", f"a DataLoader with a {type(sampler).__name__}", expected, todo)
    if loader.batch_size is not None and loader.collate_fn is not default_collate:
        expected = "a DataLoader without a collate_fn, which may change the images"
        raise DataError("images", "a DataLoader with a collate_fn", expected, "Pass its data set: loader.dataset.")
    return loader.dataset


def _torch_dataset(data: Dataset[Any], labels: Any) -> _Found:
    """Items are (image, label), or images alone."""
    if labels is not None:
        expected = "nothing with a torch data set, which has its own"
        raise DataError("labels", type(labels).__name__, expected, "Leave them out.")
    items = iter(data) if isinstance(data, torch.utils.data.IterableDataset) else (data[i] for i in range(len(data)))  # type: ignore[arg-type]
    images: list[Any] = []
    found: list[Any] = []
    for index, item in enumerate(items):
        pair = isinstance(item, tuple | list)
        if pair and len(item) not in (1, 2):
            many, expected = f"{len(item)} things", "items (image, label), or images alone"
            raise DataError(f"images[{index}]", many, expected, "Wrap the data set so that it gives these.")
        images.append(_one_image(item[0] if pair else item))
        if pair and len(item) == 2:
            found.append(_plain(item[1]))
    if len(found) not in (0, len(images)):
        raise DataError("labels", f"{len(found)} labels of {len(images)} images", "a label for every image, or none")
    return _Found(images=images, labels=found or None, class_names=_stated_classes(data), name="torch data set")


def _stated_classes(data: Any) -> tuple[str, ...] | None:
    """`classes` as torchvision's data sets have it: a public fact of the data set, not counted from its items."""
    while isinstance(data, Subset):
        data = data.dataset
    if isinstance(data, ConcatDataset):
        data = data.datasets[0]
    names = getattr(data, "classes", None)
    stated = isinstance(names, list | tuple) and len(names) > 0 and all(isinstance(name, str) for name in names)
    return tuple(names) if stated else None  # type: ignore[arg-type]


def _hugging_face(data: Any, labels: Any) -> _Found:
    """The column of images and that of labels, by the types that the data set states."""
    features = data.features
    if features is None:
        todo = "Load it without streaming=True."
        raise DataError("images", "a streamed dataset without features", "columns with stated types", todo)
    kinds = {name: type(feature).__name__ for name, feature in features.items()}
    pictures = [name for name, kind in kinds.items() if kind == "Image"]
    if len(pictures) != 1:
        found = f"columns {short(', '.join(f'{name}: {kind}' for name, kind in kinds.items()), 200)}"
        todo = "Keep one: data.select_columns(['image', 'label'])."
        raise DataError("images", found, "one column of type Image", todo)
    if labels is not None and labels not in kinds:
        raise DataError("labels", short(labels), f"a column of {short(', '.join(kinds))}", "Name the column of labels.")
    known = [name for name in ("label", "labels") if name in kinds] or [n for n in kinds if kinds[n] == "ClassLabel"]
    column = labels if labels is not None else known[0] if len(known) == 1 else None
    if column is None and known:
        raise DataError("labels", ", ".join(known), "one column of labels", f"Choose one: labels={known[0]!r}.")
    plain = data.with_format(None).select_columns([name for name in (pictures[0], column) if name is not None])
    plain = plain.cast_column(pictures[0], type(features[pictures[0]])(decode=False))
    rows = list(plain)
    names = getattr(features[column], "names", None) if column is not None else None
    return _Found(
        images=[row[pictures[0]] for row in rows], labels=None if column is None else [row[column] for row in rows],
        class_names=None if names is None else tuple(names), name="Hugging Face dataset",
    )  # fmt: skip


def _pictures(items: Iterable[Any], channels: int | None, how: Reading) -> Iterator[tuple[str, np.ndarray]]:
    for index, item in enumerate(items):
        name = f"images[{index}]"
        yield name, to_picture(_raw(_one_image(item), name), channels=channels, how=how, name=name)


def _one_image(item: Any) -> Any:
    return _channels_last(item, 3) if isinstance(item, torch.Tensor) else item


def _raw(item: Any, name: str) -> Raw:
    """One image as the readers of files take it."""
    if isinstance(item, Image.Image):
        file = io.BytesIO()
        try:
            item.save(file, "PNG")  # without loss, and read like any other: depth and transparency are checked there
        except OSError as wrong:
            raise DataError(name, f"an image of mode {item.mode}", "a mode that PNG has", "Convert it.") from wrong
        return file.getvalue()
    if isinstance(item, dict) and {"bytes", "path"} & item.keys():
        return item["bytes"] if item.get("bytes") is not None else _raw(item.get("path"), name)
    if isinstance(item, str | Path):
        if not Path(item).is_file():
            raise DataError(name, short(str(item), 200), "the path of an image file", "No such file: check the path.")
        return Path(item)
    if isinstance(item, bytes):
        return item
    if isinstance(item, np.ndarray) and item.ndim in (2, 3) and item.dtype.kind in "uif":
        return item
    if isinstance(item, np.ndarray):
        expected = "numbers of shape [h, w] or [h, w, 3]"
        raise DataError(name, f"an array {item.dtype} {item.shape}", expected, "Pass one image per record.")
    expected = "an image: an array, a tensor, a Pillow image, a path, or the bytes of a file"
    raise DataError(name, type(item).__name__, expected, "Pass one image per record.")


def _channels_last(tensor: torch.Tensor, dimensions: int) -> np.ndarray:
    """Images with channels, [n, c, h, w] or [c, h, w] as torch has them, to channels last; others as they are."""
    array: np.ndarray = tensor.detach().cpu().numpy()
    first = array.ndim == dimensions and array.shape[-3] in (1, 3, 4)
    return np.moveaxis(array, -3, -1) if first else array


def _plain(label: Any) -> Any:
    return label.item() if isinstance(label, torch.Tensor | np.generic) and getattr(label, "ndim", 0) == 0 else label


def _listed(values: Any) -> np.ndarray:
    """An array; of a pandas column its values, whatever its index is."""
    if type(values).__module__.partition(".")[0] != "pandas":
        return np.asarray(values)
    if hasattr(values, "columns"):
        found = f"a table with columns {short(', '.join(map(str, values.columns)))}"
        raise DataError("labels or persons", found, "one value per record", "Pass one of its columns: frame['label'].")
    return np.asarray(values.tolist())


def _ids(persons: Any, missing: str | None) -> np.ndarray:
    """Ids of persons; text and what may be missing is checked as in a table of persons."""
    found = _listed(persons)
    return found if found.dtype.kind in "iu" or found.ndim != 1 else complete(found.tolist(), missing, "persons")


def _numbered(labels: Any, names: tuple[str, ...] | None) -> np.ndarray:
    """Labels as numbers; strings by their place in the class names."""
    found = _listed(labels)
    if found.dtype.kind != "U" and not (found.dtype.kind == "O" and any(isinstance(one, str) for one in found.flat)):
        return found
    if names is None:
        raise DataError(
            "class_names", None, "the list of class names, since labels are strings: it is never taken from the labels",
            "Pass class_names=[...]; it is a public fact, whether or not every class occurs.",
        )  # fmt: skip
    number = {name: label for label, name in enumerate(names)}
    for index, one in enumerate(found.reshape(-1).tolist()):
        if one not in number:
            expected = f"one of the class names {short(', '.join(names), 200)}"
            raise DataError(f"labels[{index}]", short(one), expected, "Correct the label, or name the class.")
    return np.array([number[one] for one in found.reshape(-1).tolist()], np.int64).reshape(found.shape)
