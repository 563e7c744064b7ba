"""Bad inputs: what is made in an empty folder, what is called there, and the field that the message names.

RUN is a finished run, LONG a name of 300 characters.
"""

from __future__ import annotations

import gzip
import io
import json
import pickle
import struct
import zipfile

import numpy as np
from PIL import Image

from conftest import tiny_images, tiny_plan

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


def persons(ids: list[str]) -> bytes:
    return "\n".join(["index,person", *(f"{index},{person}" for index, person in enumerate(ids))]).encode()


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
    ("no image at all", {"a.npz": npz(images=IMAGES[:0])}, "train --data a.npz", "images"),
    ("a single image", {"a.npz": npz(images=IMAGES[:1])}, "train --data a.npz", "records"),
    ("a single person", {"a.npz": npz(images=IMAGES), "p.csv": persons(["anna"] * 24)},
     "train --data a.npz --group-by p.csv", "persons"),
    ("too few records for the epsilon", {"a.npz": GOOD}, "train --data a.npz --classes 3 --epsilon 0.5", "records"),
    ("a pixel that is nan", {"a.npz": npz(images=spoilt(np.nan))}, "train --data a.npz", "images"),
    ("a pixel that is infinite", {"a.npz": npz(images=spoilt(-np.inf))}, "train --data a.npz", "images"),
    ("a pixel above 1", {"a.npz": npz(images=spoilt(1.5))}, "train --data a.npz", "images"),
    ("a pixel below 0", {"a.npz": npz(images=spoilt(-1e-9))}, "train --data a.npz", "images"),
    ("integer pixels of unknown scale", {"a.npz": npz(images=IMAGES.astype(np.int64))}, "train --data a.npz",
     "pixel_range"),
    ("channels first", {"a.npz": npz(images=np.zeros((5, 3, 16, 16), np.uint8))}, "train --data a.npz", "images"),
    ("one image without its axis", {"a.npz": npz(images=IMAGES[0])}, "train --data a.npz", "images"),
    ("images that are not square", {"a.npz": npz(images=IMAGES[:, :, :7])}, "train --data a.npz", "images"),
    ("images that are too large", {"a.npz": npz(images=np.zeros((4, 129, 129), np.uint8))},
     "train --data a.npz", "images"),
    ("a side that is too small", {"a.npz": GOOD}, "train --data a.npz --classes 3 --image-size 7", "image_size"),
    ("the data itself as public images", {"a.npz": GOOD},
     "train --data a.npz --classes 3 --preset refined --public a.npz", "public"),
    ("public images that are a copy of the data", {"a.npz": GOOD, "b.npz": GOOD},
     "train --data a.npz --classes 3 --preset refined --public b.npz --force-spend", "public"),
    ("public images for a preset without use for them", {"a.npz": GOOD, "b.npz": npz(images=255 - IMAGES)},
     "train --data a.npz --classes 3 --preset ensemble-alone --public b.npz", "public"),
    ("public images for a run that goes on", {}, "train --resume RUN --public digits", "options"),
    ("images cut to no side", {"a.npz": GOOD}, "train --data a.npz --classes 3 --fit crop", "fit"),
    ("fewer labels than images", {"a.npz": npz(images=IMAGES, labels=LABELS[:-1])},
     "train --data a.npz --classes 3", "labels"),
    ("a negative label", {"a.npz": npz(images=IMAGES, labels=LABELS - 1)},
     "train --data a.npz --classes 3", "labels[0]"),
    ("a label beyond the classes", {"a.npz": GOOD}, "train --data a.npz --classes 2", "labels[2]"),
    ("labels that are floats", {"a.npz": npz(images=IMAGES, labels=LABELS / 2)},
     "train --data a.npz --classes 3", "labels"),
    ("labels without a number of classes", {"a.npz": GOOD}, "train --data a.npz", "classes"),
    ("no classes", {"a.npz": GOOD}, "train --data a.npz --classes 0", "classes"),
    ("a billion classes", {"a.npz": GOOD}, "train --data a.npz --classes 1000000000", "classes"),
    ("classes without labels", {"a.npz": npz(images=IMAGES)}, "train --data a.npz --classes 3", "classes"),
    ("other classes than the data has", {}, "train --data digits --classes 11", "classes"),
    # the file or folder
    ("a name that is not known", {}, "train --data minst", "data"),
    ("no name", {}, "train --data \"\"", "data"),
    ("a name of 300 characters", {}, "train --data LONG", "data"),
    ("a file of another kind", {"a.txt": b"hello"}, "train --data a.txt", "data"),
    ("an npz without `images`", {"a.npz": npz(x=IMAGES, y=LABELS)}, "train --data a.npz", "HERE/a.npz"),
    ("an npz of pickled objects", {"a.npz": npz(images=np.array([{"a": 1}]))},
     "train --data a.npz", "HERE/a.npz: images"),
    ("a pickle called npz", {"a.npz": pickle.dumps([1, 2, 3])}, "train --data a.npz", "HERE/a.npz"),
    ("an npz cut in half", {"a.npz": GOOD[: len(GOOD) // 2]}, "train --data a.npz", "HERE/a.npz"),
    ("an npz with a turned byte", {"a.npz": flip(GOOD, 300)}, "train --data a.npz --classes 3", "HERE/a.npz"),
    ("an npz that claims 10^12 images", {"a.npz": zipped("images.npy", npy_header((10**12, 8, 8)))},
     "train --data a.npz", "HERE/a.npz"),
    ("an empty file called npz", {"a.npz": b""}, "train --data a.npz", "HERE/a.npz"),
    ("an empty folder", {"pictures/": b""}, "train --data pictures", "HERE/pictures"),
    ("a folder without pictures", {"pictures/notes.txt": b"hello"}, "train --data pictures", "HERE/pictures"),
    ("a picture that cannot be read", {"pictures/a.png": PNG, "pictures/b.png": PNG[:40]},
     "train --data pictures", "HERE/pictures/b.png"),
    ("pictures of two sizes", {"pictures/a.png": PNG, "pictures/b.png": png((16, 16))},
     "train --data pictures", "HERE/pictures/b.png"),
    ("pictures with and without colour", {"pictures/a.png": PNG, "pictures/b.png": png(mode="RGB")},
     "train --data pictures", "HERE/pictures/b.png"),
    ("pictures that are not square", {"pictures/a.png": png((8, 12))}, "train --data pictures", "HERE/pictures/a.png"),
    ("a link that leaves the folder", {"secret.png": PNG, "pictures/b.png": "../secret.png"},
     "train --data pictures", "HERE/pictures/b.png"),
    ("pictures beside classes", {"pictures/a.png": PNG, "pictures/cat/b.png": PNG},
     "train --data pictures", "HERE/pictures"),
    ("folders inside classes", {"pictures/train/cat/b.png": PNG}, "train --data pictures", "HERE/pictures/train"),
    ("a class name with a control character", {"pictures/cat\x1b[2J/b.png": PNG},
     "train --data pictures", "class_names[0]"),
    ("a number of channels that does not exist", {"pictures/a.png": PNG},
     "train --data pictures --channels 2", "channels"),
    ("an idx file with another start", {"d/train-images-idx3-ubyte": b"\x89PNG" + bytes(99)},
     "train --data d", "HERE/d/train-images-idx3-ubyte"),
    ("an idx file cut short", {"d/train-images-idx3-ubyte": idx(IMAGES)[:-1]},
     "train --data d", "HERE/d/train-images-idx3-ubyte"),
    ("an idx header of 10^12 images", {"d/train-images-idx3-ubyte": idx(IMAGES, (1_275_510_205, 28, 28))},
     "train --data d", "HERE/d/train-images-idx3-ubyte"),
    ("a damaged gzip", {"d/train-images-idx3-ubyte.gz": flip(gzip.compress(idx(IMAGES)), -6)},
     "train --data d", "HERE/d/train-images-idx3-ubyte.gz"),
    ("idx labels of another number",
     {"d/train-images-idx3-ubyte": idx(IMAGES), "d/train-labels-idx1-ubyte": idx(LABELS[:9])},
     "train --data d --classes 3", "labels"),
    ("an idx folder with a test part only", {"d/t10k-images-idx3-ubyte": idx(IMAGES)}, "train --data d", "HERE/d"),
    ("an idx file that is a link", {"x": idx(IMAGES), "d/train-images-idx3-ubyte": "../x"},
     "train --data d", "HERE/d/train-images-idx3-ubyte"),
    # persons
    ("no such file of persons", {"a.npz": GOOD}, "train --data a.npz --classes 3 --group-by p.csv", "group_by"),
    ("persons of another number", {"a.npz": GOOD, "p.csv": persons(["anna", "bert"])},
     "train --data a.npz --classes 3 --group-by p.csv", "group_by"),
    ("persons in no table", {"a.npz": GOOD, "p.npy": npy(np.zeros(24))},
     "train --data a.npz --classes 3 --group-by p.npy", "group_by"),
    ("persons in lines", {"a.npz": GOOD, "p.csv": b"anna\n" * 24},
     "train --data a.npz --classes 3 --group-by p.csv", "group_by"),
    # the guarantee
    ("epsilon zero", {}, "train --epsilon 0", "epsilon"),
    ("a negative epsilon", {}, "train --epsilon -1", "epsilon"),
    ("epsilon nan", {}, "train --epsilon nan", "epsilon"),
    ("an infinite epsilon", {}, "train --epsilon inf", "epsilon"),
    ("an epsilon without any meaning", {}, "train --epsilon 1e9", "epsilon"),
    ("delta zero", {}, "train --delta 0", "delta"),
    ("delta one", {}, "train --delta 1", "delta"),
    ("a negative delta", {}, "train --delta -1e-5", "delta"),
    ("delta nan", {}, "train --delta nan", "delta"),
    ("a delta that no accountant can resolve", {}, "train --delta 1e-30", "delta"),
    ("an epsilon for a preset with a fixed noise", {}, "train --preset paper --epsilon 10", "epsilon"),
    ("a rate of zero", {}, "privacy account --noise-multiplier 1 --rate 0", "rate"),
    ("a rate above one", {}, "privacy account --noise-multiplier 1 --rate 1.5", "rate"),
    ("a rate that is nan", {}, "privacy calibrate --rate nan", "rate"),
    ("a rate that is no 1/K", {}, "privacy account --noise-multiplier 1 --rate 0.3 --sampling one", "rate"),
    ("a rate where everybody takes part", {}, "privacy account --noise-multiplier 1 --rate 0.3 --sampling all", "rate"),
    ("no noise", {}, "privacy account --noise-multiplier 0", "noise multiplier"),
    ("so little noise that nothing is private", {}, "privacy account --noise-multiplier 1e-9", "noise multiplier"),
    ("no releases", {}, "privacy account --noise-multiplier 1 --steps 0", "steps"),
    ("a billion releases", {}, "privacy calibrate --steps 1000000000", "steps"),
    ("an unknown sampling", {}, "privacy account --noise-multiplier 1 --sampling two", "sampling"),
    ("unknown neighbours", {}, "privacy account --noise-multiplier 1 --neighbours all", "neighbours"),
    ("a target of zero", {}, "privacy calibrate --epsilon 0", "epsilon"),
    ("nothing to account for", {}, "privacy account", "arguments"),
    ("a preset without records", {}, "privacy account --preset ensemble --records 0", "records"),
    # the run
    ("more critics than records", {"a.npz": GOOD},
     "train --data a.npz --classes 3 --preset ensemble --critics 25", "critics"),
    ("no critics", {"a.npz": GOOD}, "train --data a.npz --classes 3 --preset ensemble --critics 0", "critics"),
    ("critics for a preset without a number of them", {}, "train --critics 10", "critics"),
    ("no steps", {}, "train --steps 0", "steps"),
    ("no steps of the ensemble", {}, "train --steps 0 --preset ensemble", "steps"),
    ("a negative seed", {}, "train --seed -1", "seed"),
    ("an unknown preset", {}, "train --preset papers", "preset"),
    ("a preset for clients", {}, "train --preset paper-federated", "preset"),
    ("an unknown method", {}, "train --method pategan", "method"),
    ("a preset of another method", {}, "train --method dp-merf --preset ensemble", "preset"),
    ("an epsilon for what has no guarantee", {}, "train --method gan --epsilon 10", "epsilon"),
    ("an epsilon for a run as published", {}, "train --method dp-sgd-gan --preset dp-cgan --epsilon 10", "epsilon"),
    ("critics for a method without any", {}, "train --method gan --critics 5", "critics"),
    ("more teachers than records", {}, "train --method g-pate --critics 2000", "critics"),
    ("an unknown device", {}, "train --device tpu", "device"),
    ("a device with a bad number", {}, "train --device cpu:x", "device"),
    ("a device that is not there", {}, "train --device cuda:77", "device"),
    ("an output folder that exists", {"run/card.md": b"mine"}, "train --out run", "out"),
    ("an output folder that is a file", {"run": b"mine"}, "train --out run", "out"),
    ("an output folder inside a file", {"run": b"mine", "a.npz": GOOD},
     "train --data a.npz --classes 3 --epsilon 20 --out run/one", "out"),
    ("a plan written over a file", {"a.npz": GOOD}, "train --data a.npz --classes 3 --save-plan a.npz", "plan"),
    ("a plan written to no folder", {"a.npz": GOOD},
     "train --data a.npz --classes 3 --epsilon 20 --save-plan nowhere/plan.json", "plan"),
    ("no such plan", {}, "train --plan plan.json", "plan"),
    ("a plan that is no JSON", {"plan.json": b"steps = 3"}, "train --plan plan.json", "plan"),
    ("a plan cut short", {"plan.json": PLAN[: len(PLAN) // 2]}, "train --plan plan.json", "plan"),
    ("a plan of another version", {"plan.json": changed(PLAN, "format_version", 1)},
     "train --plan plan.json", "plan.format_version"),
    ("a plan with an unknown key", {"plan.json": changed(PLAN, "privacy.sigma", 1.07)},
     "train --plan plan.json", "plan.privacy.sigma"),
    ("a plan without noise", {"plan.json": changed(PLAN, "privacy.noise_std", 0.0)},
     "train --plan plan.json", "plan.privacy.noise_std"),
    ("a plan that was edited", {"plan.json": changed(PLAN, "privacy.noise_std", 0.5)},
     "train --plan plan.json", "plan.digest"),
    ("a plan for other data", {"plan.json": PLAN}, "train --plan plan.json", "data: records"),
    ("a plan and what it fixes", {"plan.json": PLAN}, "train --plan plan.json --epsilon 3", "options"),
    ("two ways to continue", {}, "train --resume a --from b", "options"),
    ("no run to resume", {"a/notes.txt": b"hello"}, "train --resume a", "resume"),
    ("a run that has ended", {}, "train --resume RUN", "run"),
    ("a run that is elsewhere", {}, "train --resume RUN --out here", "options"),
    ("a source that is no run", {}, "train --from nowhere", "run"),
    # what was released
    ("samples of no run", {}, "sample nowhere", "run"),
    ("samples of a folder that is no run", {"a/notes.txt": b"hello"}, "sample a", "run"),
    ("samples of the private half", {}, "sample RUN/private", "run"),
    ("a negative number of samples", {}, "sample RUN -n -1", "n"),
    ("no samples", {}, "sample RUN -n 0", "n"),
    ("more samples than memory", {}, "sample RUN -n 1000000000000", "n"),
    ("a negative seed for samples", {}, "sample RUN --seed -1", "seed"),
    ("labels that were not released", {}, "sample RUN --labels sorted", "labels"),
    ("samples into a file that exists", {"s.npz": b"mine"}, "sample RUN --out s.npz", "out"),
    ("samples into another kind of file", {}, "sample RUN --out s.txt", "out"),
    ("samples into no folder", {}, "sample RUN --out nowhere/s.npz", "out"),
    ("samples on an unknown device", {}, "sample RUN --device gpu", "device"),
    ("an export of no run", {}, "export nowhere out", "run"),
    ("an export over a folder that exists", {"out/a.png": PNG}, "export RUN out", "out"),
    ("an export in an unknown form", {}, "export RUN out.gif", "out"),
    ("the account of no run", {}, "privacy account nowhere", "run"),
    ("the explanation of no run", {}, "privacy explain nowhere", "run"),
]  # fmt: skip
