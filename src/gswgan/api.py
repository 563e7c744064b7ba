"""The Python interface: train a method on images, sample from it, state its guarantee, save and load it."""

from __future__ import annotations

import re
import shutil
import warnings
import weakref
from pathlib import Path
from typing import Any, Literal

import numpy as np
import safetensors
import safetensors.torch
import torch
from numpy.typing import ArrayLike
from torch import nn

from gswgan.critics.kernel.embedding import Embedding
from gswgan.data import make_image_data
from gswgan.errors import GswganWarning, PlanError, PrivacyError, RunError, short
from gswgan.generators import build_network, network_shapes
from gswgan.generators.sampling import channels_last, draw_images
from gswgan.methods import make_plan
from gswgan.plan.facts import Facts
from gswgan.plan.make import check_large_delta, plan_warnings
from gswgan.plan.plan import Plan
from gswgan.plan.settings import check_whole
from gswgan.privacy import PrivacyCost
from gswgan.privacy.storage import check_file, make_folder, read_file, write_durably
from gswgan.run.folder import RunFolder, find_release, read_json
from gswgan.run.loop import run
from gswgan.run.publish import cost_from_statement
from gswgan.run.temporary import temporary_folder

Labels = Literal["uniform", "released"]

MAX_BYTES = 8 * 2**30
"""Of one set of samples: as much as `gswgan.load_data` reads back."""


_FINISHED = "Resume the run (gswgan train --resume), or copy the release again."


class GSWGAN:
    """Gradient-sanitized Wasserstein GAN: a private generator of images.

    >>> model = GSWGAN(epsilon=10, delta=1e-5).fit(images, labels, classes=10)
    >>> synthetic, their_labels = model.sample(60_000)
    >>> print(model.privacy)
    """

    def __init__(
        self,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        method: str = "gswgan",
        preset: str | None = None,
        shards: int | None = None,
        steps: int | None = None,
        seed: int = 0,
        device: str | None = None,
        insecure_reproducible: bool = False,
        allow_large_delta: bool = False,
    ) -> None:
        """`epsilon` defaults to 10, `delta` to 1e-5 (0.1/n from 100,000 records on); a delta of 1/n or more is refused
        unless `allow_large_delta`. Presets as published (`paper`, `dp-cgan`) have a fixed noise.

        `method` is GS-WGAN or one of the baselines (docs/methods.md), which differ in nothing else.
        """
        self._options: dict[str, Any] = {
            "epsilon": epsilon,
            "delta": delta,
            "method": method,
            "preset": preset,
            "shards": shards,
            "steps": steps,
            "seed": seed,
            "insecure_reproducible": insecure_reproducible,
        }
        self._allow_large_delta = allow_large_delta
        self._device = pick_device(device)
        self._folder: RunFolder | None = None
        self._network: nn.Module | None = None

    def fit(
        self,
        images: ArrayLike,
        labels: ArrayLike | None = None,
        *,
        classes: int | None = None,
        persons: ArrayLike | None = None,
        image_size: int | None = None,
        out: str | Path | None = None,
    ) -> GSWGAN:
        """Train on uint8 images (or floats in [0, 1]), [n, h, w] or [n, h, w, 3].

        `classes` is public and must be given with labels; `persons` makes the person the protected unit; `out`
        keeps the run folder, which otherwise lives as long as this object.
        """
        data = make_image_data(images, labels, classes=classes, persons=persons, image_size=image_size)
        plan = make_plan(Facts.of(data), device=self._device.type, **self._options)
        check_large_delta(plan, allowed=self._allow_large_delta)
        for doubt in plan_warnings(plan, data):
            warnings.warn(doubt, GswganWarning, stacklevel=2)
        if out is None:
            temporary, remove = temporary_folder()
            weakref.finalize(self, remove)
            out = temporary / "run"
        folder = RunFolder.create(Path(out), plan)
        if not run(folder, data, device=self._device):
            raise KeyboardInterrupt
        return self._read(folder)

    def sample(
        self, n: int, labels: ArrayLike | Labels | None = None, *, seed: int | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """`n` uint8 images, [n, h, w] or [n, h, w, 3], with labels [n].

        `labels`: "uniform" over the classes (the default), "released" (in proportion to the noisy counts) or an array.
        """
        _, network = self._fitted()
        rng = np.random.default_rng(None if seed is None else check_whole("seed", seed, 0, 2**63 - 1))
        wanted = self._labels(n, labels, rng)
        return channels_last(draw_images(network, self.plan.generator, wanted, rng)), wanted

    @property
    def plan(self) -> Plan:
        """The plan that was run."""
        return self._fitted()[0].plan()

    @property
    def privacy(self) -> PrivacyCost:
        """The guarantee of the release towards the public. Where there is none, this raises PrivacyError.

        So it is for the non-private GAN, and for a run whose noise is known.
        """
        folder, _ = self._fitted()
        statement = read_json(folder.privacy, "the privacy.json of a run")
        cost, void = cost_from_statement(statement), self.plan.void or statement.get("void")
        if void or cost is None:
            raise PrivacyError("privacy", None, "a run with a guarantee", f"This release was {void}.")
        return cost

    def save(self, folder: str | Path) -> None:
        """Copy the release (and nothing private) to a new folder, from which `load` works."""
        mine, _ = self._fitted()
        target = Path(folder)
        if target.exists():
            raise RunError("folder", str(target), "a folder that does not exist yet", "Choose another one.")
        make_folder(target)
        try:
            for path in sorted(mine.release.rglob("*")):  # which does not go into folders that are links
                copied = target / path.relative_to(mine.release)
                if path.is_dir() and not path.is_symlink():
                    make_folder(copied)
                else:
                    write_durably(copied, read_file(path, MAX_BYTES))
        except BaseException:
            shutil.rmtree(target, ignore_errors=True)
            raise

    def _fitted(self) -> tuple[RunFolder, nn.Module]:
        if self._folder is None or self._network is None:
            raise RunError("model", "not trained", "a trained one", "Call fit first, or use gswgan.load(folder).")
        return self._folder, self._network

    def _labels(self, n: int, labels: ArrayLike | Labels | None, rng: np.random.Generator) -> np.ndarray:
        folder, _ = self._fitted()
        n = check_whole("n", n, 1, MAX_BYTES // self.plan.facts.pixels)
        kept = self._kept()
        if labels is None or isinstance(labels, str):
            if labels in (None, "uniform"):
                return rng.permutation(np.resize(rng.permutation(kept), n))
            if labels == "released" and folder.embedding.exists():
                counts = Embedding.load(folder.embedding).counts.numpy()
                weight = counts[kept] if counts.shape == (self.plan.facts.classes,) else np.zeros(1)
                if not np.isfinite(weight).all() or not (weight > 0).all():
                    raise RunError("embedding", str(folder.embedding), "a positive count for each class", _FINISHED)
                return rng.choice(kept, size=n, p=weight / weight.sum())
            raise PlanError(
                "labels", short(labels), "'uniform', 'released' (where counts were released) or an array of labels",
                "Leave it out for all classes alike.",
            )  # fmt: skip
        wanted = np.asarray(labels)
        if wanted.shape != (n,) or not np.isin(wanted, kept).all():
            raise PlanError(
                "labels", f"array of shape {wanted.shape}", f"{n} labels of classes that were released",
                f"They are {short(str(kept.tolist()))}",
            )  # fmt: skip
        return wanted.astype(np.int64)

    def _kept(self) -> np.ndarray:
        """The classes that the generator was trained for: those that could be told from noise."""
        folder, _ = self._fitted()
        labels, classes = read_json(folder.model, "model.json").get("labels"), self.plan.facts.classes
        whole = isinstance(labels, list) and all(type(label) is int and 0 <= label < classes for label in labels)
        if not whole or not labels:
            raise RunError("labels", short(labels), f"classes from 0 to {classes - 1} in model.json", _FINISHED)
        return np.array(labels)

    def _read(self, folder: RunFolder) -> GSWGAN:
        plan = folder.plan()
        facts = plan.facts
        shape = {"classes": facts.classes, "channels": facts.channels, "image_size": facts.image_size}
        expected = "the weights of a finished run"
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
        self._folder, self._network = folder, network.eval().to(self._device)
        return self


def load(folder: str | Path, *, device: str | None = None) -> GSWGAN:
    """A trained model from a run folder or from its release alone."""
    return GSWGAN(device=device)._read(find_release(Path(folder)))


def pick_device(name: str | None) -> torch.device:
    """The named device, or CUDA where there is one, or the CPU."""
    if name is None or name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if re.fullmatch(r"cpu|cuda(:\d{1,3})?", name) is None:
        raise PlanError("device", short(name), "cpu, cuda, cuda:N or auto", "Leave --device out to let it be chosen.")
    here = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name != "cpu" and int(name.partition(":")[2] or 0) >= here:
        raise PlanError("device", name, f"a CUDA device of this machine, which has {here}", "Use --device cpu or auto.")
    return torch.device(name)
