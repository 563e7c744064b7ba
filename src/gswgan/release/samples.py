"""A ready-made set of images in a bundle: how it is written, and what can be checked of it."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gswgan.errors import PlanError
from gswgan.generators.sampling import BATCH, channels_last, latent_codes
from gswgan.release.files import MAX_BYTES, SAMPLES, plain_size, read_plain
from gswgan.release.verdict import Finding
from gswgan.run.folder import RunFolder
from gswgan.run.released import ReleasedModel, load_model

CHECKED = 32
"""Images of a set that are drawn again, chosen at random."""

LEVELS = 2
"""Of 255, that an image drawn again may differ in a pixel: between devices, in single precision."""

_NOT_DRAWN = "It is not what the generator draws: do not rely on it."


def draw_samples(
    model: ReleasedModel, count: int, progress: Callable[[int], None] = lambda done: None
) -> tuple[bytes, dict[str, int]]:
    """The file of `count` images, classes in equal parts, and what the manifest says of it. The plan's seed fixes them.

    They are those of `gswgan sample --seed` with that seed.
    """
    pixels, seed = model.plan.facts.pixels, model.plan.seed
    most = (MAX_BYTES[SAMPLES] - 2**24) // (pixels + 8)
    if not 1 <= count <= most:
        raise PlanError("samples", count, f"a number from 1 to {most:,}", "Draw more with `gswgan sample`.")
    images, labels = model.sample(count, seed=seed, progress=progress)
    return npz_bytes(images, labels, model.plan.facts.class_names), {"images": count, "seed": seed}


def npz_bytes(images: np.ndarray, labels: np.ndarray, class_names: tuple[str, ...]) -> bytes:
    """An .npz as `gswgan sample` writes it, but not compressed: its bytes follow from the arrays alone."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as file:
        for name, array in (("images", images), ("labels", labels), ("class_names", np.array(class_names))):
            about, body = zipfile.ZipInfo(f"{name}.npy"), io.BytesIO()
            about.create_system = 3  # the same on every system
            np.lib.format.write_array(body, np.ascontiguousarray(array), version=(1, 0), allow_pickle=False)
            file.writestr(about, body.getbuffer())
    return out.getvalue()


def wrong_samples(folder: RunFolder, stated: Any) -> Iterator[Finding]:
    """All that is wrong with the set of a bundle whose other files are sound; `stated`: by its manifest.

    Number, classes and form are checked for all images. Each of CHECKED, chosen at random, is drawn again.
    """
    model, path = load_model(folder, torch.device("cpu")), folder.release / SAMPLES
    if not _is_statement(stated, model, path):
        what = f"says {json.dumps(stated)[:80]} of its images, not their number and the plan's seed"
        yield Finding(where="manifest.json", what=what, means=_NOT_DRAWN)
        return
    rng = np.random.default_rng(stated["seed"])
    labels = model.choose_labels(stated["images"], None, rng)
    images = _read_images(path, labels, model)
    if images is None:
        what = f"does not hold just {stated['images']:,} images in equal parts of the classes, as gswgan writes them"
        yield Finding(where=SAMPLES, what=what, means=_NOT_DRAWN)
        return
    chosen = np.sort(np.random.default_rng().permutation(len(labels))[:CHECKED])  # nobody can know which
    again = channels_last(_draw_again(model, labels, chosen, rng))
    apart = np.abs(images[chosen] - again).reshape(len(chosen), -1).max(axis=1)
    if (apart > LEVELS + 0.5).any():
        wrong = int(chosen[apart.argmax()])
        what = f"holds an image (number {wrong}) that the generator does not draw with seed {stated['seed']}"
        yield Finding(where=SAMPLES, what=what, means=_NOT_DRAWN)


def describe_samples(stated: Mapping[str, int]) -> str:
    """What was checked of a set, in words."""
    count = min(CHECKED, stated["images"])
    return (
        f"{SAMPLES}, {stated['images']:,} images in equal parts of the classes; {count} of them, chosen at "
        f"random, were drawn again with seed {stated['seed']} (to {LEVELS} of 255 levels), the others were NOT"
    )


def _is_statement(stated: Any, model: ReleasedModel, path: Path) -> bool:
    """Whether a manifest states the plan's seed and a number of images for which the file has room."""
    if not isinstance(stated, dict) or list(stated) != ["images", "seed"] or type(stated["images"]) is not int:
        return False
    room = (plain_size(path) or 0) // model.plan.facts.pixels
    return 0 < stated["images"] <= room and stated["seed"] == model.plan.seed


def _read_images(path: Path, labels: np.ndarray, model: ReleasedModel) -> np.ndarray | None:
    """The images of a file with just these labels and the plan's classes; None for any other file."""
    facts = model.plan.facts
    shape = (len(labels), facts.image_size, facts.image_size, *([facts.channels] if facts.channels > 1 else []))
    frame = npz_bytes(np.zeros((0, *shape[1:]), np.uint8), labels, facts.class_names)
    content = read_plain(path, len(frame) + int(np.prod(shape)) + 2**12)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as file, file.open("images.npy") as part:
            images: np.ndarray = np.lib.format.read_array(part, allow_pickle=False)
    except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile, NotImplementedError, RuntimeError):
        return None
    if images.shape != shape or images.dtype != np.uint8:
        return None
    return images if npz_bytes(images, labels, facts.class_names) == content else None


@torch.no_grad()
def _draw_again(model: ReleasedModel, labels: np.ndarray, chosen: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Levels [n, channels, side, side] from 0 to 255 of the chosen ones among images of these labels."""
    settings, codes = model.plan.generator, []
    for start in range(0, int(chosen[-1]) + 1, BATCH):
        some = latent_codes(min(BATCH, len(labels) - start), settings.latent, settings.latent_kind, rng)
        codes.append(some[chosen[(chosen >= start) & (chosen < start + BATCH)] - start])
    levels = model.network(torch.cat(codes), torch.from_numpy(labels[chosen])) * 255
    return np.asarray(levels.clamp(0, 255).double().numpy())
