"""DICOM images (extra `dicom`): stored values, the header's own rescaling, and the window that was stated.

What a header says about a window is not used: it is chosen for the picture, so it would tell about its pixels.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gswgan.data.pixels import eight_bits, to_bytes, unknown_range
from gswgan.data.read_options import Reading
from gswgan.errors import DataError

DICOM_SUFFIXES = (".dcm", ".dicom")
_GREY = ("MONOCHROME1", "MONOCHROME2")
_DEFLATED = "1.2.840.10008.1.2.1.99"
"""A transfer syntax in which the whole file is compressed: pydicom would inflate it before its size is known."""


def read_dicom(path: Path, reading: Reading, *, max_pixels: int) -> np.ndarray:
    """A DICOM file of one frame as uint8 [h, w], or [h, w, 3] where it holds 8-bit RGB."""
    try:
        import pydicom
        from pydicom.filereader import read_file_meta_info
        from pydicom.pixels import apply_modality_lut
    except ImportError as error:
        raise DataError(
            str(path), "DICOM, and pydicom is not installed", "the extra `dicom`", "pip install 'gswgan[dicom]'"
        ) from error
    if str(read_file_meta_info(path).get("TransferSyntaxUID", "")) == _DEFLATED:
        raise _compressed(path)
    stored = pydicom.dcmread(path)
    rows, columns, kind = int(stored.Rows), int(stored.Columns), str(stored.PhotometricInterpretation)
    if rows * columns > max_pixels:
        raise DataError(str(path), f"{columns} x {rows}", f"at most {max_pixels} pixels", "Make it smaller.")
    if (frames := int(stored.get("NumberOfFrames", 1) or 1)) > 1:
        raise DataError(str(path), f"{frames} frames", "one picture", "Save each frame as a file of its own.")
    if kind in _GREY:
        if reading.pixel_range is None:
            raise unknown_range(f"{path} is a DICOM image, whose window is stated and never taken from it")
        values = apply_modality_lut(_pixels(path, stored), stored)
        grey = to_bytes(np.asarray(values, np.float64)[None], reading, name=str(path))[0]
        return 255 - grey if kind == "MONOCHROME1" else grey
    if kind != "RGB" or int(stored.BitsAllocated) != 8:
        raise DataError(
            str(path), f"{kind} of {stored.BitsAllocated} bits", "MONOCHROME1, MONOCHROME2, or RGB of 8 bits",
            "Export it as one of these, or as PNG.",
        )  # fmt: skip
    if reading.pixel_range is not None:
        raise eight_bits(str(path), reading)
    return np.asarray(_pixels(path, stored), np.uint8)


def _pixels(path: Path, stored: object) -> np.ndarray:
    try:
        return np.asarray(stored.pixel_array)  # type: ignore[attr-defined]
    except (RuntimeError, NotImplementedError) as error:  # no decoder for this compression
        raise _compressed(path) from error


def _compressed(path: Path) -> DataError:
    return DataError(
        str(path), "a compression that cannot be read here", "an uncompressed DICOM image",
        "Export it uncompressed (explicit VR little endian), or install pydicom's decoders.",
    )  # fmt: skip
