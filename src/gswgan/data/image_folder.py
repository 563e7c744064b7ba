"""A folder of pictures, with a subfolder for each class; or one of such folders for each client."""

from __future__ import annotations

import io
import itertools
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from gswgan.data.resize import check_image_size, check_square, fit_square
from gswgan.errors import DataError, short

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp")
_FORMATS = ("PNG", "JPEG", "BMP")
_MAX_PIXELS = 2**24
_GREY = ("1", "L", "LA")  # and every mode of 16-bit grey, whose names begin with I
_PARTS = ("train", "training", "test", "testing", "val", "valid", "validation")  # of a data set: no client is named so


def read_image_folder(
    folder: Path, *, image_size: int | None = None, channels: int | None = None
) -> tuple[np.ndarray, np.ndarray | None, tuple[str, ...], tuple[str, ...]]:
    """Images [n, h, w, channels], labels (None without subfolders), class names and repeated file names of a folder.

    Classes are the sorted names of the subfolders, empty ones too. Records come in the order of their *file
    names*, whatever class they are in: a record whose label changes moves to another subfolder, and no
    other record may change its index for that. Files of the same name in several subfolders are ordered by class, so
    that one of them moves the others: their names are returned, and `check_own_names` refuses them where places matter.
    The number of channels is a public fact of the data set: `channels`, or 1 if all files are grey and 3 if all have
    colours. Where there are both, one record would decide, so it must be given.
    """
    class_names, files = list_files(folder)
    if not files:
        raise _no_images(folder)
    images = _read_pictures(files, image_size, channels)
    labels = np.array([label for _, label in files], np.int64) if class_names else None
    pairs = itertools.pairwise(path.name for path, _ in files)
    return images, labels, class_names, tuple(sorted({one for one, other in pairs if one == other}))


def has_clients(folder: Path) -> bool:
    """Whether there are folders within the subfolders: then these are clients, else they are classes."""
    return any(inner.is_dir() for entry in visible(folder) if entry.is_dir() for inner in visible(entry))


def read_client_folders(
    folder: Path, *, image_size: int | None = None, channels: int | None = None
) -> tuple[np.ndarray, np.ndarray, tuple[str, ...], np.ndarray, tuple[str, ...]]:
    """Images, labels, class names, the place of each record's client, and the client ids of FOLDER/CLIENT/CLASS/FILE.

    Clients are the sorted names of the subfolders, empty ones too. All of them have the same class folders, an
    empty one where a client has no such image: were the classes gathered from the clients, one client could
    renumber the labels of all others. Records come client by client, each client's in the order of file names.
    """
    clients = sorted((entry for entry in visible(folder) if entry.is_dir()), key=lambda entry: entry.name)
    class_names: tuple[str, ...] = ()
    files: list[tuple[Path, int]] = []
    counts = []
    for client in clients:
        if client.name.lower() in _PARTS:
            raise DataError(
                str(client), "a part of a data set, not a client",
                "a folder for each client, with a subfolder for each class",
                "Pass the folder whose subfolders are the classes.",
            )  # fmt: skip
        names, mine = list_files(client)
        class_names = class_names or names
        if names != class_names or not names:
            raise DataError(
                str(client), f"class folders {short(', '.join(names) or 'none')}",
                f"{short(', '.join(class_names)) or 'a subfolder for each class'}, as {clients[0].name} has",
                "Make an empty folder for a class that a client has no images of.",
            )  # fmt: skip
        files += mine
        counts.append(len(mine))
    if not files:
        raise _no_images(folder)
    images = _read_pictures(files, image_size, channels)
    labels = np.array([label for _, label in files], np.int64)
    persons = np.repeat(np.arange(len(clients)), counts)
    return images, labels, class_names, persons, tuple(client.name for client in clients)


def _read_pictures(files: Sequence[tuple[Path, int]], image_size: int | None, channels: int | None) -> np.ndarray:
    check_channels(channels)
    return stack_pictures(((str(path), read_image(path, channels=channels)) for path, _ in files), image_size)


def check_channels(channels: int | None) -> None:
    """1 or 3, or nothing."""
    if channels not in (None, 1, 3):
        raise DataError("channels", channels, "1 (grey) or 3 (colour)", "Pass --channels 1 or --channels 3.")


def stack_pictures(named: Iterable[tuple[str, np.ndarray]], image_size: int | None) -> np.ndarray:
    """Pictures with their names, all brought to one size, as [n, h, w, channels]; all grey or all in colour."""
    if image_size is not None:
        check_image_size(image_size)
    pictures: list[np.ndarray] = []
    for name, picture in named:
        if image_size is None:
            check_square(*picture.shape[:2], name=name)
            if picture.shape[:2] != (pictures[0] if pictures else picture).shape[:2]:
                raise DataError(
                    name, f"{picture.shape[0]} pixels per side", f"{pictures[0].shape[0]}, as the first image has",
                    "Pass image_size=N (--image-size N) to bring all images to one size.",
                )  # fmt: skip
        else:
            picture = fit_square(picture, image_size)
        if picture.ndim != (pictures[0] if pictures else picture).ndim:
            kinds = ("grey", "in colour") if picture.ndim == 2 else ("in colour", "grey")
            raise DataError(
                name, kinds[0], f"{kinds[1]}, as the first image is",
                "Pass channels=3 (--channels 3) to take all of them in colour, or 1 for grey.",
            )  # fmt: skip
        pictures.append(picture)
    images = np.stack(pictures)
    return images[..., None] if images.ndim == 3 else images


def read_image(path: Path | io.BytesIO, *, channels: int | None = None, name: str = "") -> np.ndarray:
    """One picture as uint8 [h, w] if it is grey or `channels` is 1, else [h, w, 3]. Alpha is dropped.

    `name`: of what is no file, for the message.
    """
    name = name or str(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # notes about odd metadata; what matters is checked below
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path, formats=_FORMATS) as opened:
                if opened.width * opened.height > _MAX_PIXELS:
                    raise DataError(
                        name, f"{opened.width} x {opened.height}", f"at most {_MAX_PIXELS} pixels",
                        "Make it smaller or take it out of the folder.",
                    )  # fmt: skip
                upright = ImageOps.exif_transpose(opened)
                if upright.mode.startswith("I"):
                    deep = np.clip(np.asarray(upright).astype(np.int64), 0, 65535)
                    grey = ((deep + 128) // 257).astype(np.uint8)
                    return np.repeat(grey[..., None], 3, axis=2) if channels == 3 else grey
                to_grey = channels == 1 or (channels is None and upright.mode in _GREY)
                return np.array(upright.convert("L" if to_grey else "RGB"))
    except (DataError, MemoryError):  # the latter says nothing about the picture
        raise
    except Exception as error:  # decoders raise nearly anything on damaged files
        raise DataError(
            name, f"cannot be read ({type(error).__name__})", "a whole PNG, JPEG or BMP image of a sane size",
            "Repair the file or take it out of the folder.",
        ) from error  # fmt: skip


def list_files(folder: Path) -> tuple[tuple[str, ...], list[tuple[Path, int]]]:
    """Class names, and each file with its class, in the order of file names."""
    entries = visible(folder)
    subfolders = sorted((entry for entry in entries if entry.is_dir()), key=lambda entry: entry.name)
    files = [(entry, 0) for entry in entries if not entry.is_dir() and _is_image(entry)]
    if files and subfolders:
        raise DataError(
            str(folder), f"images and subfolders ({subfolders[0].name}, ...) side by side",
            "a subfolder for each class, or images only", "Move the images into the subfolder of their class.",
        )  # fmt: skip
    for label, subfolder in enumerate(subfolders):
        for entry in visible(subfolder):
            if entry.is_dir():
                raise DataError(
                    str(entry), "a folder", "images only, inside the folder of a class",
                    "Pass the folder whose subfolders are the classes.",
                )  # fmt: skip
            if _is_image(entry):
                files.append((entry, label))
    return tuple(entry.name for entry in subfolders), sorted(files, key=lambda file: (file[0].name, file[1]))


def _no_images(folder: Path) -> DataError:
    return DataError(
        str(folder), "no images", f"at least one image ({', '.join(SUFFIXES)})", "Check the path (--data)."
    )


def visible(folder: Path) -> list[Path]:
    """Entries that are not hidden. A link could leave the folder, or count one record twice: none may be one."""
    try:
        entries = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    except OSError as error:
        raise DataError(str(folder), error.strerror, "a folder that can be read", "Check its permissions.") from error
    for entry in entries:
        if entry.is_symlink():
            raise DataError(str(entry), "a symbolic link", f"files inside {folder}", "Copy the file into the folder.")
    return entries


def _is_image(entry: Path) -> bool:
    return entry.suffix.lower() in SUFFIXES and entry.is_file()
