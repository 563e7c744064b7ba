"""Data sets as small files, for a machine without pyarrow that takes few bytes at a time: packed here, unpacked there.

    GSWGAN_DATA=DATA python benchmarks/carried_sets.py pack CARRIED blood_cells faces skin_lesions public_photos cifar10
    python benchmarks/carried_sets.py unpack CARRIED DATA       # on the other machine

`pack` reads DATA/SET (Parquet files with encoded pictures) or the set known by that name. Photographs stay the JPEG
they are; other pictures become lossless WebP, many in a column. CIFAR-10 is in two parts, since it is large.

`unpack` checks the pixels by SHA-256. It writes DATA/SET/train.npz and test.npz for `--data DATA/SET --classes N` (or
`--public DATA/SET`), and who is whose as DATA/SET/persons.csv for `--group-by`; CIFAR-10 as the binary files that
`GSWGAN_DATA=DATA gswgan train --data cifar10` reads.
"""

from __future__ import annotations

import argparse
import csv
import io
import lzma
import os
from pathlib import Path

import numpy as np
from PIL import Image

import gswgan
from gswgan.data.files import find_data_files, read_batches, read_column
from gswgan.data.public import images_digest

CIFAR10 = "cifar10"
PERSONS = {"skin_lesions": "lesion"}
"""The column that says who is whose."""
COLUMN = 500
"""Pictures in one WebP file, one below the other: it compresses best, and no side may be beyond 16,383 pixels."""
PARTS = {(CIFAR10, "train"): 2}
ENDING = ".packed"
BATCH = 10_000  # records of a file of CIFAR-10


def pack(out: Path, name: str, split: str) -> None:
    """OUT/NAME/SPLIT-PART.packed: an npz with xz-compressed pictures, labels, persons and a digest of the pixels."""
    persons, encoded = None, None
    if name == CIFAR10:
        data = gswgan.load_data(name, split=split)
    else:
        place = Path(os.environ["GSWGAN_DATA"]) / name
        files = find_data_files(place, split)
        if files is None:
            raise SystemExit(f"{place}: no Parquet files")
        data = gswgan.load_data(place, split=split)
        if name in PERSONS:
            persons = np.array([str(person) for person in read_column(files, PERSONS[name])])
        encoded = [bytes(raw) for part in files.parts for some in read_batches(part) for raw, _ in some]
        if not all(picture.startswith(b"\xff\xd8") for picture in encoded):  # no JPEG
            encoded = None
    (out / name).mkdir(parents=True, exist_ok=True)
    parts = PARTS.get((name, split), 1)
    for number, rows in enumerate(np.array_split(np.arange(data.n), parts), start=1):
        some = slice(rows[0], rows[-1] + 1)
        pictures = columns(data.images[some]) if encoded is None else encoded[some]
        packed = lzma.compress(b"".join(pictures), preset=9 | lzma.PRESET_EXTREME)
        content = {"pictures": np.frombuffer(packed, np.uint8), "sizes": np.array([len(one) for one in pictures])}
        content["digest"] = np.array(images_digest(data.images[some]))
        if data.labels is not None:
            content["labels"] = data.labels[some].astype(np.uint8)
        if persons is not None:
            content["persons"] = persons[some]
        path = out / name / f"{split}-{number}{ENDING}"
        with path.open("wb") as file:
            np.savez_compressed(file, **content)  # type: ignore[arg-type]
        print(f"{path}: {len(rows):,} records, {path.stat().st_size:,} bytes", flush=True)


def columns(images: np.ndarray) -> list[bytes]:
    """Images [n, 3, side, side] as lossless WebP."""
    found = []
    for start in range(0, len(images), COLUMN):
        some = images[start : start + COLUMN].transpose(0, 2, 3, 1)
        stream = io.BytesIO()
        Image.fromarray(some.reshape(-1, *some.shape[2:])).save(stream, "WEBP", lossless=True, quality=90, method=6)
        found.append(stream.getvalue())
    return found


def unpack(path: Path) -> dict[str, np.ndarray]:
    """Arrays `images` [n, side, side, 3], `labels` and `persons` of one file, as far as there are any."""
    with np.load(path) as content:
        arrays = {name: content[name] for name in content.files}
    whole, pictures, start = lzma.decompress(arrays.pop("pictures").tobytes()), [], 0
    for size in arrays.pop("sizes").tolist():
        with Image.open(io.BytesIO(whole[start : start + size]), formats=("JPEG", "WEBP")) as opened:
            found = np.asarray(opened.convert("RGB"))
        pictures.append(found.reshape(-1, found.shape[1], found.shape[1], 3))
        start += size
    arrays["images"] = np.concatenate(pictures)
    if images_digest(arrays["images"].transpose(0, 3, 1, 2)) != arrays.pop("digest").item():
        raise SystemExit(f"{path}: other pixels than those that were packed")
    return arrays


def write(folder: Path, split: str, arrays: dict[str, np.ndarray]) -> None:
    """A split in the form that the product reads."""
    folder.mkdir(parents=True, exist_ok=True)
    if folder.name == CIFAR10:
        pixels = arrays["images"].transpose(0, 3, 1, 2).reshape(len(arrays["images"]), -1)
        records = np.concatenate([arrays["labels"][:, None], pixels], axis=1)
        for number, start in enumerate(range(0, len(records), BATCH), start=1):
            name = "test_batch.bin" if split == "test" else f"data_batch_{number}.bin"
            records[start : start + BATCH].tofile(folder / name)
        return
    persons = arrays.pop("persons", None)
    np.savez(folder / f"{split}.npz", **arrays)  # type: ignore[arg-type]
    if persons is not None and split == "train":
        with (folder / "persons.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("index", "person"), *enumerate(persons.tolist())])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    packing = verbs.add_parser("pack")
    packing.add_argument("carried", type=Path)
    packing.add_argument("sets", nargs="+")
    unpacking = verbs.add_parser("unpack")
    unpacking.add_argument("carried", type=Path)
    unpacking.add_argument("data", type=Path)
    options = parser.parse_args()
    if options.verb == "pack":
        for name in options.sets:
            for split in ("train",) if name == "public_photos" else ("train", "test"):
                pack(options.carried, name, split)
        return
    for folder in sorted(options.carried.iterdir()):
        for split in ("train", "test"):
            paths = sorted(folder.glob(f"{split}-*{ENDING}"))
            if 0 < len(paths) < PARTS.get((folder.name, split), 1):
                print(f"{folder.name}: only a part of {split} is here")
            elif paths:
                parts = [unpack(path) for path in paths]
                write(
                    options.data / folder.name, split,
                    {name: np.concatenate([part[name] for part in parts]) for name in parts[0]},
                )  # fmt: skip
                print(f"{options.data / folder.name}: {split}", flush=True)


if __name__ == "__main__":
    main()
