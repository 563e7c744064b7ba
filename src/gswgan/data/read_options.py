"""How a data set is to be read: what only its holder knows, stated and never guessed from the records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from gswgan.errors import DataError, short
from gswgan.ranges import OMIT_DEFAULT

LAYOUTS = ("class/", "class/person/", "person/class/")
MISSING = ("own",)
FITS = ("pad", "crop")
COLOURS = {"white": (255, 255, 255), "black": (0, 0, 0)}


def _check_range(value: Any) -> tuple[float, float] | None:
    """LOW:HIGH as text, or a pair of numbers."""
    if value is None:
        return None
    parts = value.split(":") if isinstance(value, str) else value
    try:
        low, high = (float(part) for part in parts)
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ValueError
    except (TypeError, ValueError):
        raise DataError(
            "pixel_range", short(str(value)), "LOW:HIGH, two numbers with LOW below HIGH",
            "Pass --pixel-range 0:4095 for 12-bit pixels (in Python pixel_range=(0, 4095)).",
        ) from None  # fmt: skip
    return low, high


def _check_background(value: Any) -> tuple[int, int, int] | None:
    """A colour by its name or by three numbers from 0 to 255."""
    if value is None:
        return None
    parts: Any = COLOURS.get(value, value.split(",")) if isinstance(value, str) else value
    try:
        red, green, blue = (int(part) for part in parts)
        if not all(0 <= part <= 255 for part in (red, green, blue)):
            raise ValueError
    except (TypeError, ValueError):
        raise DataError(
            "background", short(str(value)), "white, black, or R,G,B with numbers from 0 to 255",
            "Pass --background white, for example.",
        ) from None  # fmt: skip
    return red, green, blue


def _check_one_of(name: str, value: object, known: Sequence[str]) -> None:
    if value is not None and value not in known:
        raise DataError(
            name, short(str(value)), f"one of {', '.join(known)}", f"Pass --{name} {known[0]}, for example."
        )


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How pixels and folders were read. Public: it is part of the plan, and stated with the other public facts."""

    pixel_range: tuple[float, float] | None = None
    """The values that become black and white, for images of more than 8 bits; others are clipped to them."""

    background: tuple[int, int, int] | None = None
    """The colour that transparent images are composed onto."""

    layout: str | None = None
    """What the levels of a folder of folders are."""

    fit: str | None = field(default=None, metadata=OMIT_DEFAULT)
    """What `image_size` does with images that are not square: "pad" (or nothing), or "crop" to the centre."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "pixel_range", _check_range(self.pixel_range))
        object.__setattr__(self, "background", _check_background(self.background))
        _check_one_of("layout", self.layout, LAYOUTS)
        _check_one_of("fit", self.fit, FITS)

    @property
    def text(self) -> str:
        """In words; empty where nothing had to be stated."""
        found = []
        if self.pixel_range is not None:
            low, high = self.pixel_range
            found.append(f"pixel values from {low:.10g} (black) to {high:.10g} (white)")
        if self.background is not None:
            found.append(f"transparent images on the background {','.join(map(str, self.background))}")
        if self.layout is not None:
            found.append(f"folders as {self.layout}")
        if self.fit is not None:
            how = {"pad": "padded with black to squares", "crop": "cut to the square around their centre"}
            found.append(f"images that are not square {how[self.fit]}")
        return "; ".join(found)


AS_IT_IS = Reading()
"""Nothing was stated: pixels of 8 bits, no transparency, one level of folders at the most."""


@dataclass(frozen=True, kw_only=True)
class ReadOptions(Reading):
    """All that can be said about how to read a source; a field that is left out is as the source itself says.

    `pixel_range` may be "0:4095" or a pair; `background` "white", "black", "R,G,B" or a triple.
    """

    classes: int | None = None
    """The number of classes, where labels come without names."""

    image_size: int | None = None
    """Scale and pad to squares of this side."""

    channels: int | None = None
    """1 (grey) or 3 (colour), where there are both."""

    labels: bool = True
    """Whether to read the labels."""

    group_by: str | Path | None = None
    """A table that names each record's person, or for Parquet data the column that does."""

    missing: str | None = None
    """"own": a record whose person is not known is a person of its own. Otherwise it is an error."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_one_of("missing", self.missing, MISSING)
        if self.missing is not None and self.group_by is None:
            raise DataError("missing", self.missing, "nothing without --group-by", "Leave --missing out.")
        if self.fit is not None and self.image_size is None:
            raise DataError("fit", self.fit, "a side that images are brought to as well", "Pass --image-size N.")

    @property
    def reading(self) -> Reading:
        """The public part."""
        return Reading(**{field.name: getattr(self, field.name) for field in fields(Reading)})


DEFAULTS = ReadOptions()
