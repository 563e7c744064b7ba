"""A published generator: load it from a run or from its release alone, draw images from it, write them."""

from __future__ import annotations

import csv
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import safetensors
import safetensors.torch
import torch
from numpy.typing import ArrayLike
from PIL import Image
from torch import nn

from gswgan.critics.kernel.embedding import Embedding
from gswgan.errors import PlanError, RunError, short
from gswgan.generators import build_network, network_shapes
from gswgan.generators.sampling import channels_last, draw_images
from gswgan.methods import read_plan
from gswgan.plan.plan import Plan
from gswgan.plan.settings import check_whole, pick_device
from gswgan.privacy.storage import check_file
from gswgan.run.folder import RunFolder, find_release, read_json

Labels = Literal["uniform", "released"]

MAX_SAMPLE_BYTES = 8 * 2**30
"""Of one set of samples: as much as `gswgan.load_data` reads back."""

_FINISHED = "Resume the run (gswgan train --resume), or copy the release again."


@dataclass(frozen=True, kw_only=True)
class ReleasedModel:
    """A trained generator with its plan."""

    folder: RunFolder
    plan: Plan
    network: nn.Module
    kept: np.ndarray  # the classes that the generator was trained for: those that could be told from noise

    @property
    def left_out(self) -> list[str]:
        """The names of the classes that the generator does not make."""
        return [name for label, name in enumerate(self.plan.facts.class_names) if label not in self.kept]

    def sample(
        self, n: int, labels: ArrayLike | Labels | None = None, *, seed: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """`n` uint8 images, [n, h, w] or [n, h, w, 3], with labels [n].

        `labels`: "uniform" over the classes (the default), "released" (in proportion to the noisy counts) or an array.
        """
        rng = np.random.default_rng(None if seed is None else check_whole("seed", seed, 0, 2**63 - 1))
        wanted = self._labels(check_whole("n", n, 1, MAX_SAMPLE_BYTES // self.plan.facts.pixels), labels, rng)
        return channels_last(draw_images(self.network, self.plan.generator, wanted, rng)), wanted

    def _labels(self, n: int, labels: ArrayLike | Labels | None, rng: np.random.Generator) -> np.ndarray:
        if labels is None or isinstance(labels, str):
            if labels in (None, "uniform"):
                return rng.permutation(np.resize(rng.permutation(self.kept), n))
            if labels == "released" and self.folder.embedding.exists():
                return rng.choice(self.kept, size=n, p=self._released_shares())
            raise PlanError(
                "labels", short(labels), "'uniform', 'released' (where counts were released) or an array of labels",
                "Leave it out for all classes alike.",
            )  # fmt: skip
        wanted = np.asarray(labels)
        if wanted.shape != (n,) or not np.isin(wanted, self.kept).all():
            raise PlanError(
                "labels", f"array of shape {wanted.shape}", f"{n} labels of classes that were released",
                f"They are {short(str(self.kept.tolist()))}",
            )  # fmt: skip
        return wanted.astype(np.int64)

    def _released_shares(self) -> np.ndarray:
        counts = Embedding.load(self.folder.embedding).counts.numpy()
        weight = counts[self.kept] if counts.shape == (self.plan.facts.classes,) else np.zeros(1)
        if not np.isfinite(weight).all() or not (weight > 0).all():
            raise RunError("embedding", str(self.folder.embedding), "a positive count for each class", _FINISHED)
        shares: np.ndarray = weight / weight.sum()
        return shares


def load_model(folder: RunFolder, device: torch.device) -> ReleasedModel:
    """The model of a finished run; a RunError where its files are damaged or do not fit its plan."""
    content = read_json(folder.model, "the model.json of a run")
    plan = read_plan(content.get("plan"))
    facts, labels, expected = plan.facts, content.get("labels"), "the weights of a finished run"
    shape = {"classes": facts.classes, "channels": facts.channels, "image_size": facts.image_size}
    try:
        check_file(folder.generator)
        with safetensors.safe_open(folder.generator, framework="pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            found = {name: tuple(part.get_shape()) for name, part in slices.items()}
        if found != {name: tuple(size) for name, (size, _) in network_shapes(plan.generator, **shape).items()}:
            raise RunError("generator", str(folder.generator), f"{expected}, of the plan's sizes", _FINISHED)
        network = build_network(plan.generator, **shape)
        network.load_state_dict(safetensors.torch.load_file(folder.generator))
    except (OSError, RuntimeError, safetensors.SafetensorError) as wrong:
        raise RunError("generator", str(folder.generator), expected, _FINISHED) from wrong
    whole = isinstance(labels, list) and all(type(label) is int and 0 <= label < facts.classes for label in labels)
    if not whole or not labels:
        raise RunError("labels", short(labels), f"classes from 0 to {facts.classes - 1} in model.json", _FINISHED)
    return ReleasedModel(folder=folder, plan=plan, network=network.eval().to(device), kept=np.array(labels))


def load(folder: str | Path, *, device: str | None = None) -> ReleasedModel:
    """A trained model from a run folder or from its release alone."""
    return load_model(find_release(Path(folder)), pick_device(device))


def write_samples(model: ReleasedModel, out: Path, images: np.ndarray, labels: np.ndarray) -> None:
    """The images as an .npz or .csv file, or as a folder of PNG files with a subfolder per class; all or nothing."""
    with new_path(out) as aside:
        if out.suffix == ".npz":
            np.savez_compressed(aside, images=images, labels=labels)
        elif out.suffix == ".csv":
            with aside.open("w", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(["label", *(f"pixel{i}" for i in range(images[0].size))])
                writer.writerows([int(label), *image.reshape(-1).tolist()] for label, image in zip(labels, images))
        else:
            safe = ["".join(c if c.isalnum() else "_" for c in name) for name in model.plan.facts.class_names]
            folders = {int(label): aside / f"{label:02d}-{safe[label]}" for label in np.unique(labels)}
            for folder in folders.values():
                folder.mkdir(parents=True)
            for index, (label, image) in enumerate(zip(labels, images)):
                Image.fromarray(image).save(folders[int(label)] / f"{index:06d}.png")


def check_new_path(out: Path, *suffixes: str) -> None:
    """Refuse a name of another form, an existing path, and a missing parent folder, before any work is done."""
    if out.suffix not in suffixes:
        kinds = " or ".join(suffix or "no suffix (a folder)" for suffix in suffixes)
        raise RunError("out", str(out), f"a name that ends in {kinds}", "Choose another name.")
    if os.path.lexists(out):
        raise RunError("out", str(out), "a path that does not exist yet", "Choose another one.")
    if not out.absolute().parent.is_dir():
        raise RunError("out", str(out), "a path in a folder that exists", "Make the folder first.")


@contextmanager
def new_path(out: Path) -> Iterator[Path]:
    """A path in a new folder beside `out`, which becomes `out` when it is whole; a failure leaves nothing behind."""
    fresh: Path | None = None
    try:
        fresh = Path(tempfile.mkdtemp(prefix=".gswgan-", dir=out.absolute().parent))  # ours alone (0700), never a link
        yield fresh / out.name
        os.rename(fresh / out.name, out)
    except OSError as wrong:
        expected = f"a place that can be written ({wrong.strerror or wrong})"
        raise RunError("out", str(out), expected, "Make room, or choose another one.") from wrong
    finally:
        if fresh is not None:
            shutil.rmtree(fresh, ignore_errors=True)
