"""Fit one picture into a square, record by record, so that no record influences another."""

from __future__ import annotations

import numpy as np
from PIL import Image

from gswgan.errors import DataError

MIN_SIDE_PIXELS, MAX_SIDE_PIXELS = 8, 128


def check_image_size(image_size: int) -> int:
    """The side of a square image in pixels, or a DataError."""
    is_int = isinstance(image_size, (int, np.integer)) and not isinstance(image_size, bool)
    if not is_int or not MIN_SIDE_PIXELS <= image_size <= MAX_SIDE_PIXELS:
        raise DataError(
            "image_size", image_size, f"a whole number from {MIN_SIDE_PIXELS} to {MAX_SIDE_PIXELS}",
            f"Choose a side of {MIN_SIDE_PIXELS} to {MAX_SIDE_PIXELS} pixels (--image-size 32).",
        )  # fmt: skip
    return int(image_size)


def check_square(height: int, width: int, *, name: str) -> None:
    """Without `image_size` a picture must be square and of a size the networks are made for."""
    if height != width or not MIN_SIDE_PIXELS <= height <= MAX_SIDE_PIXELS:
        raise DataError(
            name, f"{width} x {height} pixels (width x height)",
            f"square images with a side of {MIN_SIDE_PIXELS} to {MAX_SIDE_PIXELS} pixels",
            "Pass image_size=N (--image-size N) to scale them with their aspect kept and pad them to a square, or to "
            "cut them to one (--fit crop).",
        )  # fmt: skip


def fit_square(picture: np.ndarray, image_size: int, *, crop: bool = False) -> np.ndarray:
    """Scale uint8 [h, w] or [h, w, 3] so that the longer side is `image_size`; zeros around it, centred.

    With `crop`, the square around the centre is cut out first, as large as it can be, and there are no zeros.
    Shrinking averages over areas (box), enlarging interpolates (bilinear). A picture that has the wanted
    size is returned as it is.
    """
    if crop:
        side = min(picture.shape[:2])
        top, left = (picture.shape[0] - side) // 2, (picture.shape[1] - side) // 2
        picture = picture[top : top + side, left : left + side]
    height, width = picture.shape[:2]
    longer = max(height, width)
    new_height = max(1, round(height * image_size / longer))
    new_width = max(1, round(width * image_size / longer))
    if longer != image_size:
        method = Image.Resampling.BOX if longer > image_size else Image.Resampling.BILINEAR
        picture = np.asarray(Image.fromarray(picture).resize((new_width, new_height), method))
    if new_height == new_width:
        return picture
    square = np.zeros((image_size, image_size, *picture.shape[2:]), np.uint8)
    top, left = (image_size - new_height) // 2, (image_size - new_width) // 2
    square[top : top + new_height, left : left + new_width] = picture
    return square
