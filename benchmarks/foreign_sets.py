"""Three sets that the recipe was not made for, as npz files: then `gswgan train --data FILE --classes N --epsilon 10`.

    python benchmarks/foreign_sets.py foreign --femnist femnist-100-writers.npz

- digits-unlabelled.npz: scikit-learn's 8x8 digits without their labels.
- shapes.npz: made, 32x32 in colour: discs, squares, triangles and rings of any colour on any ground, 20,000 of them.
- letters.npz: the 62 classes of 100 FEMNIST writers (digits, capitals, small letters), 10,636 images of 28x28.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import gswgan

SIDE = 32


def shapes(number: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """uint8 [n, 32, 32, 3] and labels: disc, square, triangle, ring."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, number)
    y, x = np.mgrid[:SIDE, :SIDE]
    images = np.empty((number, SIDE, SIDE, 3), np.uint8)
    for index, label in enumerate(labels):
        centre, radius = rng.uniform(11, 20, 2), rng.uniform(6, 10)
        angle = rng.uniform(0, 2 * np.pi)
        across = (x - centre[0]) * np.cos(angle) + (y - centre[1]) * np.sin(angle)
        along = (y - centre[1]) * np.cos(angle) - (x - centre[0]) * np.sin(angle)
        inside = [
            radius - np.hypot(across, along),
            0.85 * radius - np.maximum(abs(across), abs(along)),
            np.minimum(0.5 * radius - along, (along + radius) / 2 - abs(across) * 0.87),
            0.3 * radius - abs(np.hypot(across, along) - 0.75 * radius),
        ][label]
        cover = np.clip(inside + 0.5, 0, 1)[..., None]  # soft edges
        ground, colour = rng.uniform(0, 1, (2, 3))
        images[index] = np.round(255 * (cover * colour + (1 - cover) * ground))
    return images, labels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--femnist", type=Path, help="images, labels and writers of FEMNIST as npz")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(options.folder / "digits-unlabelled.npz", images=gswgan.load_data("digits").images[:, 0])
    images, labels = shapes(20_000)
    np.savez_compressed(options.folder / "shapes.npz", images=images, labels=labels)
    if options.femnist is not None:
        with np.load(options.femnist) as content:
            np.savez_compressed(options.folder / "letters.npz", images=content["images"], labels=content["labels"])
    for path in sorted(options.folder.glob("*.npz")):
        print(path)


if __name__ == "__main__":
    main()
