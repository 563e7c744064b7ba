"""The 2015 Inception's weights in half precision, 44 MB instead of 87, for machines where nothing can be installed.

    python benchmarks/inception_half.py inception-half.safetensors
    python benchmarks/inception_half.py inception-half.safetensors --error mnist --images 500

The kernels of the convolutions are halved, the batch norms' numbers stay as they are. The file holds no code, and
its bytes follow from the weights alone: `load_inception` knows its SHA-256. `--error` states what halving costs, in
features and in FID, on the first images of the training and of the test set.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

import safetensors.torch
import torch

import gswgan
from gswgan.evaluation.frechet import Moments, frechet_distance
from gswgan.evaluation.inception import HALF_SHA256, load_inception, read_weights
from record import record


def halve(weights: dict[str, torch.Tensor]) -> bytes:
    small = {name: value.half() if value.ndim == 4 else value for name, value in sorted(weights.items())}
    return safetensors.torch.save(small)


def halving_error(path: Path, data: str, images: int) -> dict[str, object]:
    full, half = load_inception(), load_inception(path)
    moments = {}
    relative = 0.0
    for split in ("train", "test"):
        pictures = gswgan.load_data(data, split=split).images[:images]
        a, b = full(pictures), half(pictures)
        relative = max(relative, float(((a - b).norm(dim=1) / a.norm(dim=1)).max()))
        for name, features in (("full", a), ("half", b)):
            moments[name, split] = Moments()
            moments[name, split].update(features)
    return {
        "data": data,
        "images": images,
        "largest_relative_error_of_features": relative,
        "fid_train_test_full": frechet_distance(moments["full", "train"], moments["full", "test"]),
        "fid_train_test_half": frechet_distance(moments["half", "train"], moments["half", "test"]),
        "fid_full_half_same_images": frechet_distance(moments["full", "train"], moments["half", "train"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="where the file goes")
    parser.add_argument("--error", metavar="DATA", help="measure the error on this data set")
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--out", type=Path, help="write the error as JSON")
    options = parser.parse_args()

    content = halve(read_weights()[0])
    options.path.parent.mkdir(parents=True, exist_ok=True)
    options.path.write_bytes(content)
    found = hashlib.sha256(content).hexdigest()
    print(f"{options.path}: {len(content):,} bytes, sha256 {found}")
    if found != HALF_SHA256:
        raise SystemExit(f"expected {HALF_SHA256}: load_inception will refuse this file")
    if options.error:
        result = halving_error(options.path, options.error, options.images)
        print(result)
        record(options.out, result)


if __name__ == "__main__":
    main()
