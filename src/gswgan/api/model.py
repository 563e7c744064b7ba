"""GSWGAN: plan, fit, sample, export, save and the guarantee, for every method."""

from __future__ import annotations

import atexit
import dataclasses
import inspect
import shutil
import warnings
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from gswgan.api import progress
from gswgan.api.inputs import open_input
from gswgan.api.samples import SampleDataset
from gswgan.api.show import as_html, as_text, draw_grid
from gswgan.api.training import Interrupted, PlannedRun, check_out, plan_training, run_folder
from gswgan.api.wording import in_python_words, python_words
from gswgan.critics.kernel.streaming import Workers
from gswgan.data import ImageData, ImageStream
from gswgan.errors import GswganWarning, PlanError, PrivacyError, RunError
from gswgan.plan.plan import Plan
from gswgan.plan.settings import pick_device
from gswgan.privacy import PrivacyCost
from gswgan.privacy.storage import make_folder, read_file, write_durably
from gswgan.run.exports import KINDS, check_new_path, export_warnings, write_images
from gswgan.run.folder import RunFolder, read_json
from gswgan.run.publish import cost_from_statement
from gswgan.run.released import MAX_SAMPLE_BYTES, Labels, ReleasedModel, load_model
from gswgan.run.temporary import temporary_folder


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
        critics: int | None = None,
        steps: int | None = None,
        seed: int = 0,
        device: str | None = None,
        insecure_reproducible: bool = False,
        neighbours: str = "replace-one",
        public_features: str = "",
        allow_large_delta: bool = False,
        force_spend: bool = False,
        budget: str | Path | None = None,
        verbose: bool = True,
        callback: progress.Callback | None = None,
    ) -> None:
        """`epsilon` defaults to 10, `delta` to 1e-5 (0.1/n from 100,000 records on); a delta of 1/n or more is refused
        unless `allow_large_delta`, and so is data too small for any class to be told from the noise, unless
        `force_spend`. Presets as published (`paper`, `dp-cgan`) have a fixed noise.

        `neighbours` is "replace-one" or "zeroed" (one record's contribution removed, n public: a weaker statement, for
        comparison with epsilons of one record added or removed). `public_features` "vgg19": features by a network that
        others trained on public photographs (docs/data.md).

        `method` is GS-WGAN or one of the baselines (docs/methods.md), which differ in nothing else. `budget` is a file
        (`gswgan budget`) that a run is entered into before it releases anything.

        `verbose` shows a bar in terminals and notebooks; elsewhere the logger "gswgan" gets lines. `callback` is called
        after each step with a `StepDone`. None of them is told anything private.
        """
        self.epsilon, self.delta, self.method, self.preset = epsilon, delta, method, preset
        self.critics, self.steps, self.seed, self.device = critics, steps, seed, device
        self.insecure_reproducible, self.neighbours = insecure_reproducible, neighbours
        self.public_features = public_features
        self.allow_large_delta, self.force_spend, self.budget = allow_large_delta, force_spend, budget
        self.verbose, self.callback = verbose, callback
        self._model: ReleasedModel | None = None

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The arguments of the constructor, as scikit-learn's `clone` asks for them."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    @in_python_words
    def set_params(self, **arguments: Any) -> GSWGAN:
        """Change arguments of the constructor; they hold for the next fit."""
        known = self.get_params()
        for name, value in arguments.items():
            if name not in known:
                raise PlanError("argument", name, f"one of {', '.join(known)}", "Check its spelling.")
            setattr(self, name, value)
        return self

    @in_python_words
    def plan(
        self,
        images: Any,
        labels: Any = None,
        *,
        classes: int | None = None,
        class_names: Sequence[str] | None = None,
        persons: Any = None,
        image_size: int | None = None,
        name: str | None = None,
        saved: str | Path | None = None,
        public: Any = None,
        **reading: Any,
    ) -> PlannedRun:
        """What `fit` would do with this data. Nothing is released; `print` shows it, `fit` takes it.

        The arguments are those of `fit`. `name` is a public name of the data for card and report. `saved` is the file
        of a plan to run as it is. `public` are images that nobody needs to protect (a name, a path or an object in
        memory), as you state by passing them: presets `kernel` and `refined` train on them first. Their number and
        digest are published.
        """
        reading |= {"classes": classes, "image_size": image_size}
        opened = open_input(images, labels, class_names=class_names, persons=persons, **reading)
        kind = "cuda" if str(self.device).partition(":")[0] == "cuda" else pick_device(self.device).type
        options = ("epsilon", "delta", "method", "preset", "critics", "steps", "seed", "neighbours", "public_features")
        planned = plan_training(
            opened,
            {name: getattr(self, name) for name in (*options, "insecure_reproducible")} | {"device": kind},
            saved=None if saved is None else Path(saved),
            name=name,
            budget=None if self.budget is None else Path(self.budget),
            allow_large_delta=self.allow_large_delta,
            force_spend=self.force_spend,
            public=public,
        )
        return dataclasses.replace(planned, in_python=True)

    @in_python_words
    def fit(
        self, images: Any, labels: Any = None, *, out: str | Path | None = None, workers: Workers = 1, **data: Any
    ) -> GSWGAN:
        """Train on uint8 images (or floats in [0, 1]), [n, h, w] or [n, h, w, 3], with labels [n].

        `images` may also be a name or path as for `gswgan train --data`, a torch Dataset or DataLoader, a Hugging Face
        dataset, a list or pandas column of images or paths, or what `plan` has returned.

        More arguments: `classes` or `class_names`, which are public and must be given with labels, unless the data set
        states them; `persons`, one id per record, makes the person the protected unit; `image_size` scales and pads to
        squares; `name` is a public name of the data; for paths, the options of `load_data` (`group_by`, `channels`).

        `out` keeps the run folder, which otherwise lives as long as this object. `workers` processes read data that
        stays in its files. After Ctrl-C `gswgan.resume` continues.
        """
        pick_device(self.device)  # refuse one that is not here before any work is done
        if out is not None:
            check_out(Path(out))
        if isinstance(images, PlannedRun):
            planned = images
        else:
            planned = self.plan(images, labels, **data)
            for doubt in planned.warnings:
                warnings.warn(python_words(doubt), GswganWarning, stacklevel=3)
        keep = None
        if out is None:
            temporary, remove = temporary_folder()
            keep = weakref.finalize(self, remove)
            out = temporary / "run"
        try:
            self.run(planned.create(Path(out)), planned.data, workers, in_memory=planned.source is None)
        except Interrupted:
            if keep is not None:  # until this process ends
                keep.detach()
                atexit.register(remove)
            raise
        return self

    def run(
        self, folder: RunFolder, data: ImageData | ImageStream | None, workers: Workers = 1, *, in_memory: bool = True
    ) -> None:
        """Run the plan of a run folder to its end, and take its model; Ctrl-C ends in `Interrupted`."""
        plan, device = folder.plan(), pick_device(self.device)
        progress.logger.info("run folder: %s", folder.root)
        with progress.watch(plan, verbose=self.verbose, callback=self.callback) as watch:
            ended = run_folder(folder, data, device=device, watch=watch, workers=workers)
        if not ended:
            again = f"gswgan.resume({str(folder.root)!r}{', images, labels' if in_memory and data is not None else ''})"
            raise Interrupted(f"stopped; nothing that was released is lost. Continue with: {again}", folder.root)
        self.read(folder)

    @in_python_words
    def sample(self, n: int, labels: Labels | None = None, *, seed: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """`n` uint8 images, [n, h, w] or [n, h, w, 3], with labels [n].

        `labels`: "uniform" over the classes (the default), "released" (in proportion to the noisy counts), the name of
        one class, or a list of classes by name or number: `n` of them, one per image, or fewer different ones, which
        are drawn in equal parts. A class that is called "uniform" is asked for as ["uniform"].
        """
        return self._fitted().sample(n, labels, seed=seed)

    @in_python_words
    def export(self, out: str | Path, n: int = 1000, labels: Labels | None = None, *, seed: int | None = None) -> None:
        """Draw as `sample` does, into a .npz, .csv or .parquet file or a folder of PNG files, with class names."""
        path, names = Path(out), self.class_names
        check_new_path(path, *KINDS)
        write_images(path, *self.sample(n, labels, seed=seed), names)
        for warning in export_warnings(path, names):
            warnings.warn(warning, GswganWarning, stacklevel=3)

    @in_python_words
    def dataset(self, n: int, labels: Labels | None = None, *, seed: int | None = None) -> SampleDataset:
        """A torch data set of `n` samples that are drawn while it is read; `labels` and `seed` as in `sample`."""
        return SampleDataset(self._fitted(), n, labels, seed=seed)

    @in_python_words
    def picture(self, columns: int = 10, *, seed: int = 0) -> Image.Image:
        """A Pillow image with a row of samples for each class (of at most 20)."""
        return draw_grid(self._fitted(), columns, seed=seed)

    def __repr__(self) -> str:
        defaults = {name: known.default for name, known in inspect.signature(type(self)).parameters.items()}
        return as_text(self.get_params(), defaults, self._model, "" if self._model is None else self._guarantee())

    def _repr_html_(self) -> str:
        return as_html(repr(self), self._model)

    def _guarantee(self) -> str:
        try:
            return str(self.privacy)
        except PrivacyError as wrong:
            return f"NONE. {wrong.todo}"

    @property
    def plan_(self) -> Plan:
        """The plan that was run."""
        return self._fitted().plan

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes; a label is a place in this list."""
        return self._fitted().plan.facts.class_names

    @property
    def privacy(self) -> PrivacyCost:
        """The guarantee of the release towards the public. Where there is none, this raises PrivacyError.

        So it is for the non-private GAN, and for a run whose noise is known.
        """
        statement = read_json(self._fitted().folder.privacy, "the privacy.json of a run")
        cost, void = cost_from_statement(statement), self.plan_.void or statement.get("void")
        if void or cost is None:
            raise PrivacyError("privacy", None, "a run with a guarantee", f"This release was {void}.")
        return cost

    @in_python_words
    def save(self, folder: str | Path) -> None:
        """Copy the release (and nothing private) to a new folder, from which `load` works."""
        release = self._fitted().folder.release
        target = Path(folder)
        if target.exists():
            raise RunError("folder", str(target), "a folder that does not exist yet", "Choose another one.")
        make_folder(target)
        try:
            for path in sorted(release.rglob("*")):  # which does not go into folders that are links
                copied = target / path.relative_to(release)
                if path.is_dir() and not path.is_symlink():
                    make_folder(copied)
                else:
                    write_durably(copied, read_file(path, MAX_SAMPLE_BYTES))
        except BaseException:
            shutil.rmtree(target, ignore_errors=True)
            raise

    def _fitted(self) -> ReleasedModel:
        if self._model is None:
            raise RunError("model", "not trained", "a trained one", "Call fit first, or use gswgan.load(folder).")
        return self._model

    def read(self, folder: RunFolder) -> GSWGAN:
        """Take the model of a finished run."""
        self._model = load_model(folder, pick_device(self.device))
        return self
