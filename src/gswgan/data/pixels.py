"""Pixel values of any depth to 0..255, and transparent pixels onto a background: by stated constants, record by record.

The range is never taken from the pixels: the brightest one would then decide about all others, and it is private.
"""

from __future__ import annotations

import numpy as np

from gswgan.data.read_options import Reading
from gswgan.errors import DataError

_STATE = (
    "Pass --pixel-range 0:4095 if the values are 12-bit numbers, 0:65535 if they use all 16 bits (in Python "
    "pixel_range=(0, 4095)); the scanner or the export states it, and it must not be read off the pixels."
)


def to_bytes(values: np.ndarray, reading: Reading, *, name: str, start: int = 0) -> np.ndarray:
    """Images [n, h, w, ...] as uint8: 8 bits as they are, floats from 0 to 1, all others by the stated range.

    A fourth channel is alpha. `start` is the index of the first record, for the message, as is `name`.
    """
    check_depth(values.dtype, reading, name=name)
    if values.ndim == 4 and values.shape[3] == 4:
        if reading.pixel_range is not None:
            expected = f"grey or red, green, blue, where {name} has a channel for transparency as well"
            raise DataError("pixel_range", "given", expected, "Compose the images onto their background first.")
        return on_background(_scaled(values, reading, name, start), reading, name=name)
    return _scaled(values, reading, name, start)


def _scaled(values: np.ndarray, reading: Reading, name: str, start: int) -> np.ndarray:
    if values.dtype == np.uint8:
        return values
    numbers: np.ndarray = values.astype(np.float64)
    low, high = reading.pixel_range or (0.0, 1.0)
    flat = numbers.reshape(len(numbers), -1)
    _check_records(np.isfinite(flat), start, name, "that is not finite", "Mend the record or leave it out.")
    if reading.pixel_range is None:
        _check_records(
            (flat >= 0.0) & (flat <= 1.0), start, name, "outside [0, 1]",
            "Divide by the largest possible value (255 for bytes), not by the largest one found in the data, or state "
            "the range of the values with --pixel-range LOW:HIGH (in Python pixel_range=(low, high)).",
        )  # fmt: skip
    scaled = (np.clip(numbers, low, high) - low) * (255.0 / (high - low))
    return np.rint(scaled).astype(np.uint8)


def check_depth(dtype: np.dtype, reading: Reading, *, name: str) -> None:
    """Refuse integers of more than 8 bits without a stated range, and 8 bits with one."""
    if dtype.kind not in "iuf":
        raise DataError(
            name, f"dtype {dtype}", "uint8, floats from 0 to 1, or integers with a stated range", "Save it so."
        )
    if dtype == np.uint8 and reading.pixel_range is not None:
        raise eight_bits(name, reading)
    if dtype.kind in "iu" and dtype != np.uint8 and reading.pixel_range is None:
        raise unknown_range(f"{name} has values of type {dtype}")


def unknown_range(what: str) -> DataError:
    """For pixels of more than 8 bits, whose black and white nobody has stated."""
    return DataError("pixel_range", None, f"the public range of the pixel values, since {what}", _STATE)


def eight_bits(name: str, reading: Reading) -> DataError:
    """For 8-bit pixels where a range was stated: read by it they would come out dark, or cut off."""
    low, high = reading.pixel_range or (0, 0)
    return DataError(
        "pixel_range", f"{low:.10g}:{high:.10g}", f"no range for {name}, whose pixels have 8 bits",
        "Leave --pixel-range out, or keep images of 8 bits and of more apart.",
    )  # fmt: skip


def on_background(pixels: np.ndarray, reading: Reading, *, name: str) -> np.ndarray:
    """uint8 [..., 4] (red, green, blue, alpha) onto the stated background: [..., 3]."""
    if reading.background is None:
        raise DataError(
            "background", None, f"the colour behind transparent pixels, since {name} has an alpha channel",
            "Pass --background white, black or R,G,B (in Python background=\"white\"). Where all pixels are opaque it "
            "changes nothing.",
        )  # fmt: skip
    colours, alpha = pixels[..., :3].astype(np.int64), pixels[..., 3:].astype(np.int64)
    behind = np.array(reading.background, np.int64)
    return ((colours * alpha + behind * (255 - alpha) + 127) // 255).astype(np.uint8)


_LUMA = np.array([19595, 38470, 7471], np.int64)  # of red, green and blue, over 2^16: ITU-R 601, as Pillow has it


def to_channels(pixels: np.ndarray, channels: int | None, *, axis: int) -> np.ndarray:
    """uint8 pixels with 1 or 3 channels along `axis`, as so many: colour to grey by its luma, grey three times."""
    if channels in (None, pixels.shape[axis]):
        return pixels
    if channels == 3:
        return np.repeat(pixels, 3, axis=axis)
    weighted = np.moveaxis(pixels, axis, -1) @ _LUMA
    return np.expand_dims(((weighted + 2**15) >> 16).astype(np.uint8), axis)


def _check_records(valid: np.ndarray, start: int, name: str, what: str, todo: str) -> None:
    if not valid.all():
        record = start + int(np.argmin(valid.all(axis=1)))
        raise DataError(
            name,
            f"a pixel of record {record} {what}",
            "floats from 0 to 1" if what.startswith("outside") else "finite pixels",
            todo,
        )
