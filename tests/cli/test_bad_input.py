"""Every bad input gets one message that says what, what instead and what to do; exit code 2; and nothing is lost.

The tables are to be read: what is made in an empty folder, what is called there, and all that stands on stderr. HERE is
the folder, RUN a finished run, LONG a name of 300 characters.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import hashlib
import io
import json
import os
import pickle
import re
import resource
import shlex
import shutil
import struct
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from conftest import tiny_images, tiny_plan
from gswgan import GSWGAN
from gswgan.cli import main
from gswgan.errors import GswganWarning

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (24, 8, 8), dtype=np.uint8)
LABELS = np.arange(24) % 3


def npy(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def npz(**arrays: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.savez(out, **arrays)  # type: ignore[arg-type]
    return out.getvalue()


def zipped(name: str, content: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(name, content)
    return out.getvalue()


def npy_header(shape: tuple[int, ...]) -> bytes:
    text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def idx(array: np.ndarray, shape: tuple[int, ...] | None = None) -> bytes:
    shape = array.shape if shape is None else shape
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape) + array.astype(np.uint8).tobytes()


def png(size: tuple[int, int] = (8, 8), mode: str = "L") -> bytes:
    out = io.BytesIO()
    Image.new(mode, size).save(out, "PNG")
    return out.getvalue()


def spoilt(value: float) -> np.ndarray:
    images = IMAGES / 255
    images[3, 1, 2] = value
    return images


def flip(content: bytes, place: int) -> bytes:
    turned = bytearray(content)
    turned[place] ^= 1
    return bytes(turned)


def changed(plan: bytes, key: str, value: object) -> bytes:
    content = json.loads(plan)
    *tables, last = key.split(".")
    table = content
    for name in tables:
        table = table[name]
    table[last] = value
    return json.dumps(content).encode()


GOOD = npz(images=IMAGES, labels=LABELS)
PNG = png()
PLAN = json.dumps(tiny_plan(tiny_images()).to_json()).encode()
Files = dict[str, bytes | str]  # a str is the target of a link; a name with / at its end is an empty folder

BAD: list[tuple[str, Files, str, str]] = [
    # what is in the data
    ("no image at all", {"a.npz": npz(images=IMAGES[:0])}, "train --data a.npz",
     "images = 'shape (0, 8, 8)': expected at least one image with at least one pixel. Check what was saved."),
    ("a single image", {"a.npz": npz(images=IMAGES[:1])}, "train --data a.npz",
     "records = 1: expected at least 2. A guarantee hides one among others: add records."),
    ("a single person", {"a.npz": npz(images=IMAGES), "p.txt": b"anna\n" * 24}, "train --data a.npz --group-by p.txt",
     "persons = 1: expected at least 2. A guarantee hides one among others: add persons."),
    ("too few records for the epsilon", {"a.npz": GOOD}, "train --data a.npz --classes 3 --epsilon 0.5",
     "records = 24: expected at least 71 at this epsilon, or no class could be told from the noise. Use more "
     "records or a larger --epsilon."),
    ("a pixel that is nan", {"a.npz": npz(images=spoilt(np.nan))}, "train --data a.npz",
     "images = 'a pixel of record 3 that is not finite': expected floats from 0 to 1. Mend the record or leave it "
     "out."),
    ("a pixel that is infinite", {"a.npz": npz(images=spoilt(-np.inf))}, "train --data a.npz",
     "images = 'a pixel of record 3 that is not finite': expected floats from 0 to 1. Mend the record or leave it "
     "out."),
    ("a pixel above 1", {"a.npz": npz(images=spoilt(1.5))}, "train --data a.npz",
     "images = 'a pixel of record 3 outside [0, 1]': expected floats from 0 to 1. Divide by the largest possible "
     "value (255 for bytes), not by the largest one found in the data."),
    ("a pixel below 0", {"a.npz": npz(images=spoilt(-1e-9))}, "train --data a.npz",
     "images = 'a pixel of record 3 outside [0, 1]': expected floats from 0 to 1. Divide by the largest possible "
     "value (255 for bytes), not by the largest one found in the data."),
    ("integer pixels of unknown scale", {"a.npz": npz(images=IMAGES.astype(np.int64))}, "train --data a.npz",
     "images = 'dtype int64': expected uint8, or floats from 0 to 1. Convert them yourself, so that you know the "
     "scale: images.astype(np.uint8)."),
    ("channels first", {"a.npz": npz(images=np.zeros((5, 3, 16, 16), np.uint8))}, "train --data a.npz",
     "images = 'shape (5, 3, 16, 16)': expected shape [n, h, w], [n, h, w, 1] or [n, h, w, 3], channels last. Move"
     " the channels to the end with np.moveaxis(images, 1, -1) if they come first."),
    ("one image without its axis", {"a.npz": npz(images=IMAGES[0])}, "train --data a.npz",
     "images = 'shape (8, 8)': expected shape [n, h, w], [n, h, w, 1] or [n, h, w, 3], channels last. Move the "
     "channels to the end with np.moveaxis(images, 1, -1) if they come first."),
    ("images that are not square", {"a.npz": npz(images=IMAGES[:, :, :7])}, "train --data a.npz",
     "images = '8 x 7 pixels': expected square images with a side of 8 to 64 pixels. Pass image_size=N "
     "(--image-size N) to scale them with their aspect kept and pad them to a square."),
    ("images that are too large", {"a.npz": npz(images=np.zeros((4, 65, 65), np.uint8))}, "train --data a.npz",
     "images = '65 x 65 pixels': expected square images with a side of 8 to 64 pixels. Pass image_size=N "
     "(--image-size N) to scale them with their aspect kept and pad them to a square."),
    ("a side that is too small", {"a.npz": GOOD}, "train --data a.npz --classes 3 --image-size 7",
     "image_size = 7: expected a whole number from 8 to 64. Choose a side of 8 to 64 pixels (--image-size 32)."),
    ("fewer labels than images", {"a.npz": npz(images=IMAGES, labels=LABELS[:-1])}, "train --data a.npz --classes 3",
     "labels = 'shape (23,)': expected shape (24,): one label an image. Check that labels and images are of the "
     "same records."),
    ("a negative label", {"a.npz": npz(images=IMAGES, labels=LABELS - 1)}, "train --data a.npz --classes 3",
     "labels[0] = -1: expected a class from 0 to 2. Number the classes from 0, or pass the right number of classes"
     " (--classes N)."),
    ("a label beyond the classes", {"a.npz": GOOD}, "train --data a.npz --classes 2",
     "labels[2] = 2: expected a class from 0 to 1. Number the classes from 0, or pass the right number of classes "
     "(--classes N)."),
    ("labels that are floats", {"a.npz": npz(images=IMAGES, labels=LABELS / 2)}, "train --data a.npz --classes 3",
     "labels = 'dtype float64': expected integers. Number the classes from 0."),
    ("labels without a number of classes", {"a.npz": GOOD}, "train --data a.npz",
     "classes = None: expected the number of classes: labels came without it, and it is never taken from the data."
     " Pass classes=N (--classes N); it is a public fact, whether or not every class occurs."),
    ("no classes", {"a.npz": GOOD}, "train --data a.npz --classes 0",
     "classes = 0: expected a whole number from 1 to 10000. Pass classes=N (--classes N)."),
    ("a billion classes", {"a.npz": GOOD}, "train --data a.npz --classes 1000000000",
     "classes = 1000000000: expected a whole number from 1 to 10000. Pass classes=N (--classes N)."),
    ("classes without labels", {"a.npz": npz(images=IMAGES)}, "train --data a.npz --classes 3",
     "classes = 3: expected 1 (or nothing) without labels. Pass labels, or leave classes out."),
    ("other classes than the data has", {}, "train --data digits --classes 11",
     "classes = 11: expected 10, the number of classes of digits. Leave it out."),
    # the file or folder
    ("a name that is not known", {}, "train --data minst",
     "data = 'HERE/minst': expected digits, mnist, fashion-mnist, mnist-writers, femnist-writers, an .npz file with "
     "images (and labels), a folder with idx files, a folder of Parquet or npz files, a folder of images with a "
     "subfolder for each class (or one of those for each client), a LEAF folder, or a TFF .h5 file. "
     "Check the name or the path (--data)."),
    ("no name", {}, "train --data \"\"",
     "data = '': expected digits, mnist, fashion-mnist, mnist-writers, femnist-writers, an .npz file with "
     "images (and labels), a folder with idx files, a folder of Parquet or npz files, a folder of images with a "
     "subfolder for each class (or one of those for each client), a LEAF folder, or a TFF .h5 file. "
     "Pass --data, or write --data . for this folder."),
    ("a name of 300 characters", {}, "train --data LONG",
     "data = 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...': expected a path that can be read "
     "(File name too long). Check the path (--data)."),
    ("a file of another kind", {"a.txt": b"hello"}, "train --data a.txt",
     "data = 'HERE/a.txt': expected digits, mnist, fashion-mnist, mnist-writers, femnist-writers, an .npz file with "
     "images (and labels), a folder with idx files, a folder of Parquet or npz files, a folder of images with a "
     "subfolder for each class (or one of those for each client), a LEAF folder, or a TFF .h5 file. "
     "Check the name or the path (--data)."),
    ("an npz without `images`", {"a.npz": npz(x=IMAGES, y=LABELS)}, "train --data a.npz",
     "HERE/a.npz = 'no array `images`': expected arrays `images` and, where there are labels, `labels`. Write it "
     "with np.savez(path, images=..., labels=...)."),
    ("an npz of pickled objects", {"a.npz": npz(images=np.array([{"a": 1}]))}, "train --data a.npz",
     "HERE/a.npz: images = 'dtype object': expected numbers or strings, never pickled objects. Save arrays of "
     "numbers or strings with np.savez (or np.save)."),
    ("a pickle called npz", {"a.npz": pickle.dumps([1, 2, 3])}, "train --data a.npz",
     "HERE/a.npz = 'no zip archive, or a damaged one': expected an npz file that is whole, without pickled "
     "objects. Check the file, or copy it again."),
    ("an npz cut in half", {"a.npz": GOOD[: len(GOOD) // 2]}, "train --data a.npz",
     "HERE/a.npz = 'no zip archive, or a damaged one': expected an npz file that is whole, without pickled "
     "objects. Check the file, or copy it again."),
    ("an npz with a turned byte", {"a.npz": flip(GOOD, 300)}, "train --data a.npz --classes 3",
     "HERE/a.npz = 'no zip archive, or a damaged one': expected an npz file that is whole, without pickled "
     "objects. Check the file, or copy it again."),
    ("an npz that claims 10^12 images", {"a.npz": zipped("images.npy", npy_header((10**12, 8, 8)))},
     "train --data a.npz",
     "HERE/a.npz = 'a header for shape (1000000000000, 8, 8)': expected what the file has room for: 64000000000000"
     " bytes are claimed, at most 0 can be there. Copy the file again."),
    ("an empty file called npz", {"a.npz": b""}, "train --data a.npz",
     "HERE/a.npz = 'no zip archive, or a damaged one': expected an npz file that is whole, without pickled "
     "objects. Check the file, or copy it again."),
    ("an empty folder", {"pictures/": b""}, "train --data pictures",
     "HERE/pictures = 'no images': expected at least one image (.png, .jpg, .jpeg, .bmp). Check the path (--data)."),
    ("a folder without pictures", {"pictures/notes.txt": b"hello"}, "train --data pictures",
     "HERE/pictures = 'no images': expected at least one image (.png, .jpg, .jpeg, .bmp). Check the path (--data)."),
    ("a picture that cannot be read", {"pictures/a.png": PNG, "pictures/b.png": PNG[:40]}, "train --data pictures",
     "HERE/pictures/b.png = 'cannot be read (UnidentifiedImageError)': expected a whole PNG, JPEG or BMP image of "
     "a sane size. Repair the file or take it out of the folder."),
    ("pictures of two sizes", {"pictures/a.png": PNG, "pictures/b.png": png((16, 16))}, "train --data pictures",
     "HERE/pictures/b.png = '16 pixels a side': expected 8, as the first image has. Pass image_size=N "
     "(--image-size N) to bring all images to one size."),
    ("pictures with and without colour", {"pictures/a.png": PNG, "pictures/b.png": png(mode="RGB")},
     "train --data pictures",
     "HERE/pictures/b.png = 'in colour': expected grey, as the first image is. Pass channels=3 (--channels 3) to "
     "take all of them in colour, or 1 for grey."),
    ("pictures that are not square", {"pictures/a.png": png((8, 12))}, "train --data pictures",
     "HERE/pictures/a.png = '12 x 8 pixels': expected square images with a side of 8 to 64 pixels. Pass "
     "image_size=N (--image-size N) to scale them with their aspect kept and pad them to a square."),
    ("a link that leaves the folder", {"secret.png": PNG, "pictures/b.png": "../secret.png"}, "train --data pictures",
     "HERE/pictures/b.png = 'a symbolic link': expected files inside HERE/pictures. Copy the file into the folder."),
    ("pictures beside classes", {"pictures/a.png": PNG, "pictures/cat/b.png": PNG}, "train --data pictures",
     "HERE/pictures = 'images and subfolders (cat, ...) side by side': expected a subfolder for each class, or "
     "images only. Move the images into the subfolder of their class."),
    ("folders inside classes", {"pictures/train/cat/b.png": PNG}, "train --data pictures",
     "HERE/pictures/train = 'a part of a data set, not a client': expected a folder for each client, with a "
     "subfolder for each class. Pass the folder whose subfolders are the classes."),
    ("a class name with a control character", {"pictures/cat\x1b[2J/b.png": PNG}, "train --data pictures",
     "class_names[0] = 'cat\\x1b[2J': expected 1 to 100 printable characters. Rename the class (its folder)."),
    ("a number of channels that does not exist", {"pictures/a.png": PNG}, "train --data pictures --channels 2",
     "channels = 2: expected 1 (grey) or 3 (colour). Pass --channels 1 or --channels 3."),
    ("an idx file with another start", {"d/train-images-idx3-ubyte": b"\x89PNG" + bytes(99)}, "train --data d",
     "HERE/d/train-images-idx3-ubyte = '89504e47': expected an idx file: two zero bytes, type 08 (bytes) or 0c "
     "(32-bit integers), 1 to 3 dimensions. Check the file, or copy it again."),
    ("an idx file cut short", {"d/train-images-idx3-ubyte": idx(IMAGES)[:-1]}, "train --data d",
     "HERE/d/train-images-idx3-ubyte = 'a header for shape (24, 8, 8)': expected what the file has room for: 1536 "
     "bytes are claimed, at most 1535 can be there. Copy the file again."),
    ("an idx header of 10^12 images", {"d/train-images-idx3-ubyte": idx(IMAGES, (1_275_510_205, 28, 28))},
     "train --data d",
     "HERE/d/train-images-idx3-ubyte = 'a header for shape (1275510205, 28, 28)': expected what the file has room "
     "for: 1000000000720 bytes are claimed, at most 1536 can be there. Copy the file again."),
    ("a damaged gzip", {"d/train-images-idx3-ubyte.gz": flip(gzip.compress(idx(IMAGES)), -6)}, "train --data d",
     "HERE/d/train-images-idx3-ubyte.gz = 'damaged gzip data': expected an idx file (plain or gzip) that is whole."
     " Check the file, or copy it again."),
    ("idx labels of another number",
     {"d/train-images-idx3-ubyte": idx(IMAGES), "d/train-labels-idx1-ubyte": idx(LABELS[:9])},
     "train --data d --classes 3",
     "labels = 'shape (9,)': expected shape (24,): one label an image. Check that labels and images are of the "
     "same records."),
    ("an idx folder with a test part only", {"d/t10k-images-idx3-ubyte": idx(IMAGES)}, "train --data d",
     "HERE/d = 'no idx images for the train split': expected train-images-idx3-ubyte, plain or .gz. Check the "
     "names of the files."),
    ("an idx file that is a link", {"x": idx(IMAGES), "d/train-images-idx3-ubyte": "../x"}, "train --data d",
     "HERE/d/train-images-idx3-ubyte = 'a symbolic link': expected files inside HERE/d. Copy the file into the "
     "folder."),
    # persons
    ("no such file of persons", {"a.npz": GOOD}, "train --data a.npz --classes 3 --group-by p.npy",
     "group_by = 'HERE/p.npy': expected a .npy, .npz, .csv, .txt or idx file with one id a record. Check the path "
     "(--group-by)."),
    ("persons of another number", {"a.npz": GOOD, "p.txt": b"anna\nbert\n"},
     "train --data a.npz --classes 3 --group-by p.txt",
     "persons = 'shape (2,)': expected shape (24,): one id a record, in the order of the images. Check that the "
     "ids (--group-by) belong to these images, and that a text file has no header line."),
    ("an empty line among the persons", {"a.npz": GOOD, "p.txt": b"anna\n\nbert\n"},
     "train --data a.npz --classes 3 --group-by p.txt",
     "group_by = 'HERE/p.txt, line 2': expected one id a line, at most 256 characters, no commas, no empty lines. "
     "Keep only the column with the ids."),
    ("persons that are floats", {"a.npz": GOOD, "p.npy": npy(np.zeros(24))},
     "train --data a.npz --classes 3 --group-by p.npy",
     "persons = 'dtype float64': expected one integer or string a record. Check the ids (--group-by)."),
    ("persons that are pickled", {"a.npz": GOOD, "p.npy": npy(np.array([None] * 24))},
     "train --data a.npz --classes 3 --group-by p.npy",
     "HERE/p.npy = 'dtype object': expected numbers or strings, never pickled objects. Save arrays of numbers or "
     "strings with np.savez (or np.save)."),
    # the guarantee
    ("epsilon zero", {}, "train --epsilon 0",
     "epsilon = 0.0: expected a number above 0, at most 10000. Pass --epsilon 10, for example; less is more "
     "private."),
    ("a negative epsilon", {}, "train --epsilon -1",
     "epsilon = -1.0: expected a number above 0, at most 10000. Pass --epsilon 10, for example; less is more "
     "private."),
    ("epsilon nan", {}, "train --epsilon nan",
     "epsilon = nan: expected a number above 0, at most 10000. Pass --epsilon 10, for example; less is more "
     "private."),
    ("an infinite epsilon", {}, "train --epsilon inf",
     "epsilon = inf: expected a number above 0, at most 10000. Pass --epsilon 10, for example; less is more "
     "private."),
    ("an epsilon without any meaning", {}, "train --epsilon 1e9",
     "epsilon = 1000000000.0: expected a number above 0, at most 10000. Pass --epsilon 10, for example; less is "
     "more private."),
    ("delta zero", {}, "train --delta 0",
     "delta = 0.0: expected a number from 1e-12 to below 1. Pass --delta 1e-5, for example: well below 1 / "
     "records."),
    ("delta one", {}, "train --delta 1",
     "delta = 1.0: expected a number from 1e-12 to below 1. Pass --delta 1e-5, for example: well below 1 / "
     "records."),
    ("a negative delta", {}, "train --delta -1e-5",
     "delta = -1e-05: expected a number from 1e-12 to below 1. Pass --delta 1e-5, for example: well below 1 / "
     "records."),
    ("delta nan", {}, "train --delta nan",
     "delta = nan: expected a number from 1e-12 to below 1. Pass --delta 1e-5, for example: well below 1 / "
     "records."),
    ("a delta that no accountant can resolve", {}, "train --delta 1e-30",
     "delta = 1e-30: expected a number from 1e-12 to below 1. Pass --delta 1e-5, for example: well below 1 / "
     "records."),
    ("an epsilon for a preset with a fixed noise", {}, "train --preset paper --epsilon 10",
     "epsilon = 10.0: expected no epsilon with a preset whose noise is fixed. To see the noise that a target "
     "needs: `gswgan privacy calibrate --sampling one ...`."),
    ("a rate of zero", {}, "privacy account --noise-multiplier 1 --rate 0",
     "rate = 0.0: expected a number above 0 (at least 1e-09), at most 1. It is the probability that a contributor "
     "takes part: pass --rate 0.1, for example."),
    ("a rate above one", {}, "privacy account --noise-multiplier 1 --rate 1.5",
     "rate = 1.5: expected a number above 0 (at least 1e-09), at most 1. It is the probability that a contributor "
     "takes part: pass --rate 0.1, for example."),
    ("a rate that is nan", {}, "privacy calibrate --rate nan",
     "rate = nan: expected a number above 0 (at least 1e-09), at most 1. It is the probability that a contributor "
     "takes part: pass --rate 0.1, for example."),
    ("a rate that is no 1/K", {}, "privacy account --noise-multiplier 1 --rate 0.3 --sampling one",
     "rate = 0.3: expected 1/K for a whole number K of contributors, with --sampling one. Pass --rate 0.001 for "
     "one of a thousand, for example."),
    ("a rate where everybody takes part", {}, "privacy account --noise-multiplier 1 --rate 0.3 --sampling all",
     "rate = 0.3: expected 1 with --sampling all. Use --sampling poisson for a rate below 1."),
    ("no noise", {}, "privacy account --noise-multiplier 0",
     "noise multiplier = 0.0: expected a number from 0.01 to 1e+06. Pass --noise-multiplier 1, for example."),
    ("so little noise that nothing is private", {}, "privacy account --noise-multiplier 1e-9",
     "noise multiplier = 1e-09: expected a number from 0.01 to 1e+06. Pass --noise-multiplier 1, for example."),
    ("no releases", {}, "privacy account --noise-multiplier 1 --steps 0",
     "steps = 0: expected a whole number from 1 to 1000000. Pass another --steps, or leave it out."),
    ("a billion releases", {}, "privacy calibrate --steps 1000000000",
     "steps = 1000000000: expected a whole number from 1 to 1000000. Pass another --steps, or leave it out."),
    ("an unknown sampling", {}, "privacy account --noise-multiplier 1 --sampling two",
     "sampling = 'two': expected poisson, all or one. Leave --sampling out for poisson."),
    ("unknown neighbours", {}, "privacy account --noise-multiplier 1 --neighbours all",
     "neighbours = 'all': expected replace-one or zeroed. Leave --neighbours out for replace-one."),
    ("a target of zero", {}, "privacy calibrate --epsilon 0",
     "epsilon = 0.0: expected a number above 0, at most 10000. Pass --epsilon 10, for example; less is more "
     "private."),
    ("nothing to account for", {}, "privacy account",
     "arguments = 0: expected exactly one of RUN, --preset (or --method) or --noise-multiplier. For example: gswgan "
     "privacy account --preset paper."),
    ("a preset without records", {}, "privacy account --preset ensemble --records 0",
     "records = 0: expected a whole number from 2 to 1099511627776. Pass another --records, or leave it out."),
    # the run
    ("more shards than records", {"a.npz": GOOD}, "train --data a.npz --classes 3 --preset ensemble --shards 25",
     "shards = 25: expected a whole number from 1 to 24, the number of records. Each shard needs a record of its "
     "own: pass fewer --shards."),
    ("no shards", {"a.npz": GOOD}, "train --data a.npz --classes 3 --preset ensemble --shards 0",
     "shards = 0: expected a whole number from 1 to 24, the number of records. Each shard needs a record of its "
     "own: pass fewer --shards."),
    ("shards for a critic without shards", {}, "train --shards 10",
     "shards = 10: expected no shards with the kernel critic. Use --preset ensemble."),
    ("no steps", {}, "train --steps 0",
     "steps = 0: expected a whole number from 1 to 1000000. Pass another --steps, or leave it out."),
    ("no steps of the ensemble", {}, "train --steps 0 --preset ensemble",
     "steps = 0: expected a whole number from 1 to 1000000. Pass another --steps, or leave it out."),
    ("a negative seed", {}, "train --seed -1",
     "seed = -1: expected a whole number from 0 to 9223372036854775807. Pass another --seed, or leave it out."),
    ("an unknown preset", {}, "train --preset papers",
     "preset = 'papers': expected one of default, refined, ensemble, ensemble-alone, paper, paper-federated for method "
     "gswgan. Leave --preset out for the first of them."),
    ("a preset for clients", {}, "train --preset paper-federated",
     "preset = 'paper-federated': expected a centralized preset. This one is for clients: "
     "`gswgan federate simulate --preset paper-federated`."),
    ("an unknown method", {}, "train --method pategan",
     "method = 'pategan': expected one of gswgan, dp-merf, dp-merf-ae, dp-sgd-gan, g-pate, pate-gan, gan, "
     "fed-avg-gan. Leave --method out for GS-WGAN."),
    ("a preset of another method", {}, "train --method dp-merf --preset ensemble",
     "preset = 'ensemble': expected one of default, paper for method dp-merf. Leave --preset out for the first of "
     "them."),
    ("an epsilon for what has no guarantee", {}, "train --method gan --epsilon 10",
     "epsilon = 10.0: expected no epsilon: this method has no guarantee. Leave --epsilon out."),
    ("an epsilon for a run as published", {}, "train --method dp-sgd-gan --preset dp-cgan --epsilon 10",
     "epsilon = 10.0: expected no epsilon with a preset whose noise is fixed. To see the noise that a target needs: "
     "`gswgan privacy calibrate --sampling poisson ...`."),
    ("shards for a method without any", {}, "train --method gan --shards 5",
     "shards = 5: expected no shards with method gan. Leave --shards out."),
    ("more teachers than records", {}, "train --method g-pate --shards 2000",
     "shards = 2000: expected a whole number from 1 to 1437, the number of records. Each shard needs a record of its "
     "own: pass fewer --shards."),
    ("an unknown device", {}, "train --device tpu",
     "device = 'tpu': expected cpu, cuda, cuda:N or auto. Leave --device out to let it be chosen."),
    ("a device with a bad number", {}, "train --device cpu:x",
     "device = 'cpu:x': expected cpu, cuda, cuda:N or auto. Leave --device out to let it be chosen."),
    ("a device that is not there", {}, "train --device cuda:77",
     "device = 'cuda:77': expected a CUDA device of this machine, which has 0. Use --device cpu or auto."),
    ("an output folder that exists", {"run/card.md": b"mine"}, "train --out run",
     "out = 'run': expected a folder that does not exist yet. Choose another --out, or --resume it."),
    ("an output folder that is a file", {"run": b"mine"}, "train --out run",
     "out = 'run': expected a folder that does not exist yet. Choose another --out, or --resume it."),
    ("an output folder inside a file", {"run": b"mine", "a.npz": GOOD},
     "train --data a.npz --classes 3 --epsilon 50 --out run/one",
     "out = 'run/one': expected a folder that can be made inside HERE/run. Choose another --out."),
    ("a plan written over a file", {"a.npz": GOOD}, "train --data a.npz --classes 3 --save-plan a.npz",
     "plan = 'a.npz': expected a file that does not exist yet. Choose another --save-plan."),
    ("a plan written to no folder", {"a.npz": GOOD},
     "train --data a.npz --classes 3 --epsilon 50 --save-plan nowhere/plan.json",
     "plan = 'nowhere/plan.json': expected a place that can be written (No such file or directory). Choose another"
     " --save-plan."),
    ("no such plan", {}, "train --plan plan.json",
     "plan = 'plan.json: No such file or directory': expected a plan saved by `gswgan train --save-plan`. Copy it "
     "again, or make a new one with `gswgan train --save-plan PLAN`."),
    ("a plan that is no JSON", {"plan.json": b"steps = 3"}, "train --plan plan.json",
     "plan = 'plan.json: no JSON': expected a plan saved by `gswgan train --save-plan`. Copy it again, or make a "
     "new one with `gswgan train --save-plan PLAN`."),
    ("a plan cut short", {"plan.json": PLAN[: len(PLAN) // 2]}, "train --plan plan.json",
     "plan = 'plan.json: no JSON': expected a plan saved by `gswgan train --save-plan`. Copy it again, or make a "
     "new one with `gswgan train --save-plan PLAN`."),
    ("a plan of another version", {"plan.json": changed(PLAN, "format_version", 1)}, "train --plan plan.json",
     "plan.format_version = 1: expected 4. Copy it again, or make a new one with `gswgan train --save-plan PLAN`."),
    ("a plan with an unknown key", {"plan.json": changed(PLAN, "privacy.sigma", 1.07)}, "train --plan plan.json",
     "plan.privacy.sigma = 1.07: expected one of clip_norm, counts, delta, neighbours, noise_std, observer, rate, "
     "releases, rows, sampling, shards, unit. Make the plan with `gswgan train --save-plan PLAN`; do not write it "
     "by hand."),
    ("a plan without noise", {"plan.json": changed(PLAN, "privacy.noise_std", 0.0)}, "train --plan plan.json",
     "plan.privacy.noise_std = 0.0: expected a positive finite number. Make the plan with `gswgan train "
     "--save-plan PLAN`; do not write it by hand."),
    ("a plan that was edited", {"plan.json": changed(PLAN, "privacy.noise_std", 0.5)}, "train --plan plan.json",
     "plan.digest = 'HEX...': expected HEX..., as its content has. It was damaged or edited. Copy it again, or "
     "make a new one with `gswgan train --save-plan PLAN`."),
    ("a plan for other data", {"plan.json": PLAN}, "train --plan plan.json",
     "data: records = 1437: expected 96, as planned. Pass the data that the plan is for."),
    ("a plan and what it fixes", {"plan.json": PLAN}, "train --plan plan.json --epsilon 3",
     "options = '--epsilon': expected nothing of the kind with --resume, --from or --plan. The plan is fixed: "
     "leave it out."),
    ("two ways to continue", {}, "train --resume a --from b",
     "options = '--resume, --from, --plan': expected at most one of them. Leave the others out."),
    ("no run to resume", {"a/notes.txt": b"hello"}, "train --resume a",
     "resume = 'a': expected the folder of a run that was stopped. Check the path (--resume)."),
    ("a run that has ended", {}, "train --resume RUN",
     "run = 'RUN': expected a run that has not ended. It has: `gswgan sample` draws from it."),
    ("a run that is elsewhere", {}, "train --resume RUN --out here",
     "options = '--out': expected nothing of the kind with --resume, --from or --plan. The plan is fixed: leave it"
     " out."),
    ("a source that is no run", {}, "train --from nowhere",
     "run = 'HERE/nowhere': expected a run folder or its release folder. `gswgan train --out RUN` makes one."),
    # what was released
    ("samples of no run", {}, "sample nowhere",
     "run = 'nowhere': expected a run folder or its release folder. `gswgan train --out RUN` makes one."),
    ("samples of a folder that is no run", {"a/notes.txt": b"hello"}, "sample a",
     "run = 'a': expected a run folder or its release folder. `gswgan train --out RUN` makes one."),
    ("samples of the private half", {}, "sample RUN/private",
     "run = 'RUN/private': expected a run folder or its release folder. `gswgan train --out RUN` makes one."),
    ("a negative number of samples", {}, "sample RUN -n -1",
     "n = -1: expected a whole number from 1 to 134217728. Pass another --n, or leave it out."),
    ("no samples", {}, "sample RUN -n 0",
     "n = 0: expected a whole number from 1 to 134217728. Pass another --n, or leave it out."),
    ("more samples than memory", {}, "sample RUN -n 1000000000000",
     "n = 1000000000000: expected a whole number from 1 to 134217728. Pass another --n, or leave it out."),
    ("a negative seed for samples", {}, "sample RUN --seed -1",
     "seed = -1: expected a whole number from 0 to 9223372036854775807. Pass another --seed, or leave it out."),
    ("labels that were not released", {}, "sample RUN --labels sorted",
     "labels = 'sorted': expected 'uniform', 'released' (where counts were released) or an array of labels. Leave "
     "it out for all classes alike."),
    ("samples into a file that exists", {"s.npz": b"mine"}, "sample RUN --out s.npz",
     "out = 's.npz': expected a path that does not exist yet. Choose another one."),
    ("samples into another kind of file", {}, "sample RUN --out s.txt",
     "out = 's.txt': expected a name that ends in .npz. For PNG or CSV: gswgan export."),
    ("samples into no folder", {}, "sample RUN --out nowhere/s.npz",
     "out = 'nowhere/s.npz': expected a path in a folder that exists. Make the folder first."),
    ("samples on an unknown device", {}, "sample RUN --device gpu",
     "device = 'gpu': expected cpu, cuda, cuda:N or auto. Leave --device out to let it be chosen."),
    ("an export of no run", {}, "export nowhere out",
     "run = 'nowhere': expected a run folder or its release folder. `gswgan train --out RUN` makes one."),
    ("an export over a folder that exists", {"out/a.png": PNG}, "export RUN out",
     "out = 'out': expected a path that does not exist yet. Choose another one."),
    ("an export in an unknown form", {}, "export RUN out.gif",
     "out = 'out.gif': expected a folder, a .npz or a .csv. Choose another name."),
    ("the account of no run", {}, "privacy account nowhere",
     "run = 'nowhere': expected a run folder or its release folder. `gswgan train --out RUN` makes one."),
    ("the explanation of no run", {}, "privacy explain nowhere",
     "run = 'nowhere': expected a run folder or its release folder. `gswgan train --out RUN` makes one."),
]  # fmt: skip


def make(folder: Path, files: Files) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("/"):
            path.mkdir()
        elif isinstance(content, str):
            path.symlink_to(content)
        else:
            path.write_bytes(content)


def call(line: str, *, run: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    words = [re.sub(r"\bRUN\b", str(run), word).replace("LONG", "x" * 300) for word in shlex.split(line)]
    monkeypatch.setattr(sys, "argv", ["gswgan", *words])
    try:
        main.run()
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def state(*folders: Path) -> dict[str, str]:
    """Everything in the folders: names, kinds and contents."""
    return {
        str(path): "folder" if path.is_dir() else hashlib.sha256(path.read_bytes()).hexdigest()
        for folder in folders
        for path in sorted(folder.rglob("*"))
        if not path.is_symlink()
    }


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    data = tiny_images()
    GSWGAN(steps=2, epsilon=50, device="cpu").fit(data.images[:, 0], data.labels, classes=3, out=out)
    return out


def said(capsys: pytest.CaptureFixture[str], folder: Path, run: Path) -> str:
    """All that stands on stderr, with the folders by their names; stdout is for results and may have none."""
    text = capsys.readouterr().err.replace(str(folder), "HERE").replace(str(run), "RUN").replace("x" * 300, "LONG")
    assert "Traceback" not in text
    return re.sub(r"\b[0-9a-f]{12}\.\.\.", "HEX...", text)


@pytest.mark.parametrize(("files", "line", "message"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_a_bad_input_gets_its_message_and_nothing_is_lost(
    files: Files, line: str, message: str, tmp_path: Path, run: Path, monkeypatch, capsys
) -> None:
    make(tmp_path, files)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    before = state(tmp_path, run)
    capsys.readouterr()
    assert call(line, run=run, monkeypatch=monkeypatch) == 2
    assert said(capsys, tmp_path, run) == f"gswgan: {message}\n"
    assert re.fullmatch(r"(?s).+ = .{1,200}: expected .+\. [A-Z`].+\.", message), (
        "name, value, what was expected, what to do"
    )
    assert state(tmp_path, run) == before


def test_the_table_is_long_and_its_rows_differ() -> None:
    assert len(BAD) >= 100
    assert len({(str(sorted(files)), line, title) for title, files, line, _ in BAD}) == len(BAD)
    assert len({title for title, *_ in BAD}) == len(BAD)


@pytest.mark.parametrize(
    "title",
    ["a pixel that is nan", "a pickle called npz", "epsilon nan", "a plan that was edited", "samples of no run"],
)
def test_the_console_script_says_the_same(title: str, tmp_path: Path) -> None:
    _, files, line, message = next(row for row in BAD if row[0] == title)
    make(tmp_path, files)
    script = "from gswgan.cli.main import run; run()"
    done = subprocess.run(
        [sys.executable, "-c", script, *shlex.split(line)], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 2
    found = re.sub(r"\b[0-9a-f]{12}\.\.\.", "HEX...", done.stderr.replace(str(tmp_path), "HERE"))
    assert found == f"gswgan: {message}\n"
    assert done.stdout == ""
    assert set(os.listdir(tmp_path)) == {name.split("/")[0] for name in files}


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("train --epsilon ten", "--epsilon"), ("train --steps 1.5", "--steps"), ("train --shard 3", "--shard"),
        ("sample RUN -n many", "-n"), ("sample", "Missing argument"), ("trian", "trian"), ("train digits", "digits"),
    ],
)  # fmt: skip
def test_a_word_that_is_not_understood(line: str, named: str, run: Path, monkeypatch, capsys) -> None:
    assert call(line, run=run, monkeypatch=monkeypatch) == 2
    output = capsys.readouterr()
    assert named in output.err
    assert "Traceback" not in output.err
    assert "--help" in output.err
    assert output.out == ""


# --- a release that was damaged on its way


def edited(**values: object):
    return lambda content: json.dumps({**json.loads(content), **values}).encode()


def half(content: bytes) -> bytes:
    return content[: len(content) // 2]


BROKEN = [
    (
        "model.json",
        half,
        "sample RUN",
        "file = 'RUN/model.json': expected the model.json of a run. Check that the folder is whole, or copy it again.",
    ),
    ("model.json", edited(labels=[7]), "sample RUN",
     "labels = 'a list of 1': expected classes from 0 to 2 in model.json. Resume the run (gswgan train --resume), or "
     "copy the release again."),
    ("model.json", edited(labels=None), "sample RUN",
     "labels = None: expected classes from 0 to 2 in model.json. Resume the run (gswgan train --resume), or copy the "
     "release again."),
    ("model.json", edited(plan={}), "privacy explain RUN",
     "plan.format_version = None: expected 4. Copy it again, or make a new one with `gswgan train --save-plan PLAN`."),
    ("generator.safetensors", half, "export RUN out",
     "generator = 'RUN/generator.safetensors': expected the weights of a finished run. Resume the run (gswgan train "
     "--resume), or copy the release again."),
    ("generator.safetensors", lambda content: pickle.dumps(content), "sample RUN",
     "generator = 'RUN/generator.safetensors': expected the weights of a finished run. Resume the run (gswgan train "
     "--resume), or copy the release again."),
    ("embedding.safetensors", half, "sample RUN --labels released",
     "embedding = 'RUN/embedding.safetensors': expected a released embedding. Train anew."),
    ("privacy.json", edited(epsilon=1.0), "privacy account RUN",
     "RUN/privacy.json: epsilon and delta = (1.0, 1e-05): expected (49.998, 1e-05), which its ledger costs. The file "
     "was damaged or edited: copy the release again."),
    ("privacy.json", edited(epsilon=None), "privacy explain RUN",
     "RUN/privacy.json: epsilon and delta = (None, 1e-05): expected (49.998, 1e-05), which its ledger costs. The file "
     "was damaged or edited: copy the release again."),
    ("privacy.json", edited(epsilon=60.0, delta=1e-9), "privacy explain RUN",
     "RUN/privacy.json: epsilon and delta = (60.0, 1e-09): expected (49.998, 1e-05), which its ledger costs. The file "
     "was damaged or edited: copy the release again."),
]  # fmt: skip


@pytest.mark.parametrize(("name", "damage", "line", "message"), BROKEN)
def test_a_damaged_release_is_refused(
    name: str, damage, line: str, message: str, tmp_path: Path, run: Path, monkeypatch, capsys
) -> None:
    release = tmp_path / "release"
    shutil.copytree(run / "release", release)
    (release / name).write_bytes(damage((release / name).read_bytes()))
    monkeypatch.chdir(tmp_path)
    before = state(tmp_path)
    assert call(line, run=release, monkeypatch=monkeypatch) == 2
    assert said(capsys, tmp_path, Path("HERE/release")) == f"gswgan: {message}\n"
    assert state(tmp_path) == before


# --- a machine that refuses


@contextlib.contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """A real error of the operating system in the middle of a write, as a full disk gives."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


TRAIN = "train --data a.npz --classes 3 --epsilon 50 --steps 2"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("sample RUN --out s.npz",
         "out = 's.npz': expected a place that can be written (File too large). Make room, or choose another one."),
        ("export RUN s.csv",
         "out = 's.csv': expected a place that can be written (File too large). Make room, or choose another one."),
        ("export RUN pictures -n 3",
         "out = 'pictures': expected a place that can be written (File too large). Make room, or choose another one."),
        (f"{TRAIN} --save-plan plan.json",
         "plan = 'plan.json': expected a place that can be written (File too large). Choose another --save-plan."),
        (f"{TRAIN} --out out", "out = 'out': expected a folder that can be written (File too large)."),
        (TRAIN, "out = 'runs/a-default': expected a folder that can be written (File too large)."),
    ],
)  # fmt: skip
def test_no_space(line: str, message: str, tmp_path: Path, run: Path, monkeypatch, capsys) -> None:
    make(tmp_path, {"a.npz": GOOD})
    monkeypatch.chdir(tmp_path)
    with files_of_at_most(50):
        assert call(line, run=run, monkeypatch=monkeypatch) == 2
    assert said(capsys, tmp_path, run) == f"gswgan: {message}\n"
    assert list(state(tmp_path)) == [str(tmp_path / "a.npz")]


@pytest.mark.parametrize(
    ("refused", "line", "message"),
    [
        ("HERE", f"{TRAIN} --out deep/out",
         "out = 'deep/out': expected a folder that can be made inside HERE. Choose another --out."),
        ("HERE", TRAIN, "out = 'runs': expected a folder that can be made inside HERE. Choose another --out."),
        ("HERE/a.npz", TRAIN,
         "HERE/a.npz = 'Permission denied': expected an npz file that is whole, without pickled objects. Check the "
         "file, or copy it again."),
        ("HERE/pictures", "train --data pictures",
         "HERE/pictures = 'Permission denied': expected a folder that can be read. Check its permissions."),
        ("HERE/plan.json", "train --plan plan.json",
         "plan = 'plan.json: Permission denied': expected a plan saved by `gswgan train --save-plan`. Copy it again, "
         "or make a new one with `gswgan train --save-plan PLAN`."),
    ],
)  # fmt: skip
def test_no_permission(refused: str, line: str, message: str, tmp_path: Path, run: Path, monkeypatch, capsys) -> None:
    """The operating system is stood in for: whoever runs the tests may be allowed everything."""
    make(tmp_path, {"a.npz": GOOD, "pictures/a.png": PNG, "plan.json": PLAN})
    monkeypatch.chdir(tmp_path)
    before, path = state(tmp_path), Path(refused.replace("HERE", str(tmp_path)))

    def guarded(function):
        def call(name, *rest, **options):
            if not isinstance(name, int) and Path(os.fsdecode(name)).absolute() == path:  # no descriptor
                raise PermissionError(errno.EACCES, "Permission denied", str(name))
            return function(name, *rest, **options)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda name, mode: Path(name) != path)
        for module, name in ((io, "open"), (os, "open"), (os, "listdir"), (os, "scandir")):
            patch.setattr(module, name, guarded(getattr(module, name)))
        assert call(line, run=run, monkeypatch=monkeypatch) == 2
    assert said(capsys, tmp_path, run) == f"gswgan: {message}\n"
    assert state(tmp_path) == before


# --- allowed, but hardly meant


DELTA = (
    "delta = 0.05: expected less than 1/24: it allows one record to be published in the clear. Pass a smaller --delta."
)
SINGLE = (
    "labels = 'a single class': expected records of several classes. Check the labels, or train without them: "
    "--no-labels."
)


@pytest.mark.parametrize(
    ("labels", "options", "expected"),
    [
        (LABELS, "--classes 3 --delta 0.05 --allow-large-delta", [DELTA]),
        (LABELS * 0 + 1, "--classes 3", [SINGLE]),
        (LABELS * 0, "--classes 1 --delta 0.05 --allow-large-delta", [DELTA, SINGLE]),
        (LABELS, "--classes 3 --delta 0.04", []),
    ],
)
def test_a_warning_is_said_and_the_run_goes_on(
    labels: np.ndarray, options: str, expected: list[str], tmp_path: Path, run: Path, monkeypatch, capsys
) -> None:
    make(tmp_path, {"a.npz": npz(images=IMAGES, labels=labels)})
    monkeypatch.chdir(tmp_path)
    line = f"train --data a.npz --epsilon 50 --steps 2 --out out --device cpu {options}"
    assert call(line, run=run, monkeypatch=monkeypatch) == 0
    assert capsys.readouterr().err == "".join(f"warning: {text}\n" for text in expected)
    assert (tmp_path / "out/release/generator.safetensors").exists()


def test_the_same_warnings_in_python() -> None:
    model = GSWGAN(epsilon=50, delta=0.05, steps=2, device="cpu", allow_large_delta=True)
    with pytest.warns(GswganWarning) as caught:
        model.fit(IMAGES, LABELS * 0, classes=3)
    assert [str(warning.message) for warning in caught] == [DELTA, SINGLE]
    assert caught[0].filename == __file__
    assert model.sample(3)[0].shape == (3, 8, 8)
