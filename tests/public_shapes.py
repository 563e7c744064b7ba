"""A small data set of squares in colour, public images beside it, and an encoder that takes no time."""

from __future__ import annotations

import numpy as np

from gswgan.data import ImageData, make_image_data
from gswgan.data.public import PublicImages, read_public

QUICK = {"convolutions": (4, 6), "encoder_steps": 3, "encoder_batch": 16}
COLOURS = np.array([[220, 40, 40], [40, 200, 60], [50, 60, 220]])


def shapes(n: int = 96, *, side: int = 8, seed: int = 0) -> ImageData:
    """Colour squares on grey, one colour for each class."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 3
    images = rng.integers(90, 130, (n, side, side, 3))
    for index, label in enumerate(labels):
        top, left = rng.integers(0, side // 2, 2)
        images[index, top : top + side // 2, left : left + side // 2] = COLOURS[label]
    return make_image_data(images.astype(np.uint8), labels, classes=3, name="shapes")


def photos(n: int = 40, *, seed: int = 1, channels: int = 3) -> PublicImages:
    images = np.random.default_rng(seed).integers(0, 256, (n, 10, 14, 3), dtype=np.uint8)
    return read_public(images, image_size=8, channels=channels)
