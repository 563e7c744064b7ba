"""One encoded picture (PNG, JPEG, BMP, TIFF, DICOM) as an array of bytes, by stated constants alone."""

from __future__ import annotations

import io
import warnings
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from gswgan.data.dicom import DICOM_SUFFIXES, read_dicom
from gswgan.data.pixels import eight_bits, on_background, to_bytes, unknown_range
from gswgan.data.read_options import AS_IT_IS, Reading
from gswgan.errors import DataError

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", *DICOM_SUFFIXES)
_FORMATS = ("PNG", "JPEG", "BMP", "TIFF")
_MAX_PIXELS = 2**24
_GREY = ("1", "L", "LA")  # and the modes of more than 8 bits, whose names begin with I or F
_PHOTOMETRIC, _WHITE_IS_ZERO = 262, 0  # a tag of TIFF, and the value with which 0 is white


def read_image(
    path: Path | io.BytesIO, *, channels: int | None = None, reading: Reading = AS_IT_IS, name: str = ""
) -> np.ndarray:
    """One picture as uint8 [h, w] if it is grey or `channels` is 1, else [h, w, 3].

    More than 8 bits need `reading.pixel_range`, transparency needs `reading.background`. `name`: of what is no file,
    for the message.
    """
    name = name or str(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # notes about odd metadata; what matters is checked below
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            if isinstance(path, Path) and path.suffix.lower() in DICOM_SUFFIXES:
                picture = read_dicom(path, reading, max_pixels=_MAX_PIXELS)
                if channels == 1 and picture.ndim == 3:
                    picture = np.array(Image.fromarray(picture).convert("L"))
            else:
                with Image.open(path, formats=_FORMATS) as opened:
                    picture = _decoded(opened, channels, reading, name)
    except (DataError, MemoryError):  # the latter says nothing about the picture
        raise
    except Exception as error:  # decoders raise nearly anything on damaged files
        raise DataError(
            name, f"cannot be read ({type(error).__name__})", "a whole PNG, JPEG, BMP, TIFF or DICOM image",
            "Repair the file or take it out of the folder.",
        ) from error  # fmt: skip
    return np.repeat(picture[..., None], 3, axis=2) if channels == 3 and picture.ndim == 2 else picture


def _decoded(opened: Image.Image, channels: int | None, reading: Reading, name: str) -> np.ndarray:
    if opened.width * opened.height > _MAX_PIXELS:
        raise DataError(
            name, f"{opened.width} x {opened.height}", f"at most {_MAX_PIXELS} pixels",
            "Make it smaller or take it out of the folder.",
        )  # fmt: skip
    if (pages := getattr(opened, "n_frames", 1)) > 1:
        raise DataError(name, f"{pages} pages", "one picture", "Save each page as a file of its own.")
    is_deep, is_inverted = _is_deep(opened), _is_inverted(opened)
    if is_deep and not opened.mode.startswith(("I", "F")):  # Pillow would keep the upper 8 bits of each
        raise DataError(
            name, f"16 bits per channel, {opened.mode}", "8 bits per channel, or grey of up to 16 bits",
            "Convert it to 8 bits per channel, or save the pixels as integers in an .npz file.",
        )  # fmt: skip
    if is_deep and reading.pixel_range is None:
        raise unknown_range(f"{name} has more than 8 bits per pixel")
    if not is_deep and reading.pixel_range is not None:
        raise eight_bits(name, reading)
    upright = ImageOps.exif_transpose(opened)
    if is_deep:
        grey = to_bytes(np.asarray(upright)[None], reading, name=name)[0]
        return 255 - grey if is_inverted else grey
    to_grey = channels == 1 or (channels is None and upright.mode in _GREY)
    if upright.has_transparency_data:
        upright = Image.fromarray(on_background(np.asarray(upright.convert("RGBA")), reading, name=name))
    return np.array(upright.convert("L" if to_grey else "RGB"))


def _is_deep(opened: Image.Image) -> bool:
    """Whether there are more than 8 bits in a channel, also where Pillow would not show them."""
    packed = " ".join(str(tile[3]) for tile in getattr(opened, "tile", ()))
    return opened.mode.startswith(("I", "F")) or ";16" in packed


def _is_inverted(opened: Image.Image) -> bool:
    """Whether 0 is white in a deep TIFF, which Pillow leaves as it is."""
    return getattr(opened, "tag_v2", {}).get(_PHOTOMETRIC) == _WHITE_IS_ZERO
