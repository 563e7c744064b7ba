"""Options that say how real data is to be read, shared by the commands that read some."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

_DATA = "Data"

Classes = Annotated[int | None, typer.Option(
    help="Number of classes where the data has labels but no class names. Public: never counted from the data. "
    "FEMNIST: 62, or the paper's 36 (case merged).", rich_help_panel=_DATA)]  # fmt: skip
ImageSize = Annotated[int | None, typer.Option(
    help="Scale and pad to squares of this side (8 to 128).", rich_help_panel=_DATA)]  # fmt: skip
Fit = Annotated[str | None, typer.Option("--fit", metavar="pad|crop",
    help="With --image-size, images that are not square: padded with black (the default), or cut to the square around "
    "their centre.", rich_help_panel=_DATA)]  # fmt: skip
Channels = Annotated[int | None, typer.Option(
    help="1 (grey) or 3 (colour), images of the other kind are converted.", rich_help_panel=_DATA)]  # fmt: skip
PixelRange = Annotated[str | None, typer.Option("--pixel-range", metavar="LOW:HIGH",
    help="The values of black and white in images of more than 8 bits (16-bit PNG or TIFF, integers in npz, DICOM), "
    "such as 0:4095 or -1000:400; others are clipped. Public: from the scanner, never from the pixels.",
    rich_help_panel=_DATA)]  # fmt: skip
Background = Annotated[str | None, typer.Option("--background", metavar="COLOUR",
    help="white, black or R,G,B: what transparent images are composed onto.", rich_help_panel=_DATA)]  # fmt: skip
Layout = Annotated[str | None, typer.Option("--layout", metavar="LEVELS",
    help="What two levels of folders are: class/person/, person/class/, or class/ (the inner ones mean nothing).",
    rich_help_panel=_DATA)]  # fmt: skip
GroupBy = Annotated[str | None, typer.Option("--group-by", metavar="TABLE|COLUMN",
    help="Protect persons instead of records: a .csv or .parquet table with the columns `file` (for npz and idx "
    "`index`, from 0) and `person`; for Parquet data the name of its own column.", rich_help_panel=_DATA)]  # fmt: skip
Missing = Annotated[str | None, typer.Option("--missing", metavar="own",
    help="With --group-by: a record without an id (empty, NA) is a person of its own. Default: refused.",
    rich_help_panel=_DATA)]  # fmt: skip

READING = ("pixel_range", "background", "layout")
PERSONS = ("group_by", "missing")
SHAPE = ("classes", "image_size", "channels")


def reading_of(given: dict[str, Any]) -> dict[str, Any]:
    """Those of the options above that a command has, as a run remembers them; a table's path is absolute."""
    from gswgan.data.persons import is_table

    found = {name: given[name] for name in (*SHAPE, *READING, *PERSONS) if name in given}
    if found.get("group_by") is not None and is_table(found["group_by"]):
        found["group_by"] = str(Path(found["group_by"]).absolute())
    return found
