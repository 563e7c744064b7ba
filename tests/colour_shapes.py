"""Made pictures of circles, squares and triangles in colour: a small data set whose shapes and colours are known."""

from __future__ import annotations

import colorsys

import numpy as np

from gswgan.data import ImageData, make_image_data

NAMES = ("circle", "square", "triangle")


def colour_shapes(number: int, *, seed: int, side: int = 16) -> ImageData:
    """A bright shape of any colour on a dark ground of another colour, somewhere near the middle, of varying size."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[:side, :side] + 0.5
    images = np.zeros((number, side, side, 3))
    labels = np.arange(number) % len(NAMES)
    for image, label in zip(images, labels):
        middle = side / 2 + rng.uniform(-side / 10, side / 10, 2)
        down, right = rows - middle[0], columns - middle[1]
        reach = side * rng.uniform(0.26, 0.36)
        inside = (
            reach - np.hypot(down, right),
            0.85 * reach - np.maximum(abs(down), abs(right)),
            np.minimum(0.8 * reach - down, (down + 1.2 * reach) / 2 - abs(right)),
        )[label]
        cover = np.clip(inside + 0.5, 0, 1)[..., None]  # how much of a pixel the shape covers
        hue = rng.uniform()
        shape = np.array(colorsys.hsv_to_rgb(hue, 0.8, rng.uniform(0.7, 1.0)))
        ground = np.array(colorsys.hsv_to_rgb(hue + rng.uniform(0.25, 0.75), 0.6, rng.uniform(0.1, 0.4)))
        image[:] = cover * shape + (1 - cover) * ground
    images += rng.normal(0, 0.02, images.shape)
    stored = (images.clip(0, 1) * 255).round().astype(np.uint8)
    return make_image_data(stored, labels, classes=len(NAMES), class_names=NAMES, name="colour shapes")
