"""A folder of pictures: files alone, a subfolder for each class, or two levels of folders that were said to be what."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gswgan.data.picture import SUFFIXES, read_image
from gswgan.data.read_options import AS_IT_IS, Reading
from gswgan.data.resize import check_image_size, check_square, fit_square
from gswgan.errors import DataError, short

_PARTS = ("train", "training", "test", "testing", "val", "valid", "validation")  # of a data set: no class, no person


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The files of a folder with their classes (0 without subfolders), in the order of records, and their persons.

    A record's place must not depend on its class: a record whose label changes moves to another folder, and no other
    record may change its place for that. So files are in the order of their *names* (below the folder of the class),
    or person by person. Files of one name in several classes are ordered by class, so that one of them moves the
    others: these are `repeated_names`, and `check_own_names` refuses them where places matter.
    """

    class_names: tuple[str, ...]  # sorted, also of empty folders; none without subfolders
    files: tuple[tuple[Path, int], ...]
    repeated_names: tuple[str, ...] = ()
    persons: tuple[int, ...] | None = None  # of each file, places in `person_ids`
    person_ids: tuple[str, ...] = ()  # sorted, also of empty folders


def list_folder(folder: Path, layout: str | None = None) -> Listing:
    """All pictures of a folder. Two levels of folders need a layout; hidden entries and other files are passed over."""
    subfolders, images = _entries(folder)
    if images and subfolders:
        raise DataError(
            str(folder), f"images and subfolders ({subfolders[0].name}, ...) side by side",
            "a subfolder for each class, or images only", "Move the images into the subfolder of their class.",
        )  # fmt: skip
    if not has_two_levels(folder):
        if layout not in (None, "class/") or (layout is not None and not subfolders):
            found = "one level of folders" if subfolders else "no folders"
            raise DataError("layout", layout, f"nothing of the kind: {folder} has {found}", "Leave --layout out.")
        return _by_name(subfolders, images)
    if layout is None:
        raise _unknown_layout(folder, subfolders)
    return {"class/": _by_name, "class/person/": _class_person, "person/class/": _person_class}[layout](subfolders, [])


def has_two_levels(folder: Path) -> bool:
    """Whether there are folders within the subfolders."""
    return any(inner.is_dir() for entry in visible(folder) if entry.is_dir() for inner in visible(entry))


def read_pictures(listing: Listing, image_size: int | None, channels: int | None, reading: Reading) -> np.ndarray:
    """The pictures of a folder, [n, h, w, channels].

    The number of channels is a public fact of the data set: `channels`, or 1 if all files are grey and 3 if all have
    colours. Where there are both, one record would decide, so it must be given.
    """
    check_channels(channels)
    named = ((str(path), read_image(path, channels=channels, reading=reading)) for path, _ in listing.files)
    return stack_pictures(named, image_size, reading)


def check_channels(channels: int | None) -> None:
    """1 or 3, or nothing."""
    if channels not in (None, 1, 3):
        raise DataError("channels", channels, "1 (grey) or 3 (colour)", "Pass --channels 1 or --channels 3.")


def stack_pictures(
    named: Iterable[tuple[str, np.ndarray]], image_size: int | None, reading: Reading = AS_IT_IS
) -> np.ndarray:
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
            picture = fit_square(picture, image_size, crop=reading.fit == "crop")
        if picture.ndim != (pictures[0] if pictures else picture).ndim:
            kinds = ("grey", "in colour") if picture.ndim == 2 else ("in colour", "grey")
            raise DataError(
                name, kinds[0], f"{kinds[1]}, as the first image is",
                "Pass channels=3 (--channels 3) to take all of them in colour, or 1 for grey.",
            )  # fmt: skip
        pictures.append(picture)
    images = np.stack(pictures)
    return images[..., None] if images.ndim == 3 else images


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


def no_images(folder: Path) -> DataError:
    """For a folder in which nothing was found."""
    return DataError(
        str(folder), "no images", f"at least one image ({', '.join(SUFFIXES)})", "Check the path (--data)."
    )


def _by_name(subfolders: Sequence[Path], images: Sequence[Path]) -> Listing:
    """Classes alone; folders within them mean nothing."""
    files = [(entry.name, 0, entry) for entry in images]
    for label, subfolder in enumerate(subfolders):
        inner, mine = _entries(subfolder)
        files += [(entry.name, label, entry) for entry in mine]
        files += [(f"{one.name}/{entry.name}", label, entry) for one in inner for entry in _images_only(one)]
    files.sort(key=lambda file: file[:2])
    pairs = itertools.pairwise(name for name, *_ in files)
    return Listing(
        class_names=tuple(entry.name for entry in subfolders),
        files=tuple((path, label) for _, label, path in files),
        repeated_names=tuple(sorted({one for one, other in pairs if one == other})),
    )


def _class_person(subfolders: Sequence[Path], _: Sequence[Path]) -> Listing:
    """FOLDER/CLASS/PERSON/FILE. Folders of one name in several classes are one person's."""
    files = []
    for label, subfolder in enumerate(subfolders):
        inner, beside = _entries(subfolder)
        if beside:
            raise DataError(
                str(beside[0]), "an image beside the folders of persons", "every image in the folder of its person",
                "Move it into the folder of its person.",
            )  # fmt: skip
        files += [(one.name, label, path) for one in inner for path in (None, *_images_only(one))]
    return _by_person(tuple(entry.name for entry in subfolders), files)


def _person_class(subfolders: Sequence[Path], _: Sequence[Path]) -> Listing:
    """FOLDER/PERSON/CLASS/FILE.

    All persons have the same class folders, an empty one where a person has no such image: were the classes gathered
    from the persons, one person could renumber the labels of all others.
    """
    files: list[tuple[str, int, Path | None]] = []
    class_names: tuple[str, ...] = ()
    for person in subfolders:
        inner, beside = _entries(person)
        names = tuple(entry.name for entry in inner)
        class_names = class_names or names
        if names != class_names or not names or beside:
            found = (
                "images beside its class folders" if beside else f"class folders {short(', '.join(names) or 'none')}"
            )
            raise DataError(
                str(person), found,
                f"{short(', '.join(class_names)) or 'a subfolder for each class'}, as {subfolders[0].name} has",
                "Make an empty folder for a class that a person has no images of, or pass another --layout.",
            )  # fmt: skip
        files.append((person.name, 0, None))
        files += [(person.name, label, path) for label, one in enumerate(inner) for path in _images_only(one)]
    return _by_person(class_names, files)


def _by_person(class_names: tuple[str, ...], files: Iterable[tuple[str, int, Path | None]]) -> Listing:
    """Person by person, each one's files in the order of their names; a person without a path has an empty folder."""
    files = list(files)
    ids = tuple(sorted({person for person, *_ in files}))
    place = {person: index for index, person in enumerate(ids)}
    found = [(place[person], path.name, label, path) for person, label, path in files if path is not None]
    found.sort(key=lambda file: file[:3])
    return Listing(
        class_names=class_names, files=tuple((path, label) for *_, label, path in found),
        persons=tuple(person for person, *_ in found), person_ids=ids,
    )  # fmt: skip


def _unknown_layout(folder: Path, subfolders: Sequence[Path]) -> DataError:
    for entry in subfolders:
        if entry.name.lower() in _PARTS:
            return DataError(
                str(entry), "a part of a data set", "folders of classes or of persons",
                "Pass the folder whose subfolders are the classes.",
            )  # fmt: skip
    outer, inner = len(subfolders), len({one.name for entry in subfolders for one in visible(entry) if one.is_dir()})
    return DataError(
        "layout", None,
        f"what the two levels of {folder} are: {outer} classes of {inner} persons (class/person/), {outer} persons "
        f"with {inner} classes (person/class/), or {outer} classes with folders that mean nothing (class/)",
        "Pass --layout with the one that is true (in Python layout=\"class/person/\"): it decides who is protected.",
    )  # fmt: skip


def _entries(folder: Path) -> tuple[list[Path], list[Path]]:
    """The subfolders and the pictures, each in the order of their names."""
    entries = sorted(visible(folder), key=lambda entry: entry.name)
    return [entry for entry in entries if entry.is_dir()], [entry for entry in entries if _is_image(entry)]


def _images_only(folder: Path) -> list[Path]:
    inner, images = _entries(folder)
    if inner:
        raise DataError(
            str(inner[0]), "a folder", "images only, two folders down",
            "Pass the folder whose subfolders are the classes, or those of its persons.",
        )  # fmt: skip
    return images


def _is_image(entry: Path) -> bool:
    return entry.suffix.lower() in SUFFIXES and entry.is_file()
