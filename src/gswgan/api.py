"""GSWGAN: fit, sample, save, load and the guarantee, for every method."""

from __future__ import annotations

import shutil
import warnings
import weakref
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gswgan.data import make_image_data
from gswgan.errors import GswganWarning, PrivacyError, RunError
from gswgan.methods import make_plan
from gswgan.plan.facts import Facts
from gswgan.plan.make import check_large_delta, plan_warnings
from gswgan.plan.plan import Plan
from gswgan.plan.settings import pick_device
from gswgan.privacy import PrivacyCost
from gswgan.privacy.storage import make_folder, read_file, write_durably
from gswgan.run.folder import RunFolder, find_release, read_json
from gswgan.run.loop import run
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
        allow_large_delta: bool = False,
    ) -> None:
        """`epsilon` defaults to 10, `delta` to 1e-5 (0.1/n from 100,000 records on); a delta of 1/n or more is refused
        unless `allow_large_delta`. Presets as published (`paper`, `dp-cgan`) have a fixed noise.

        `neighbours` is "replace-one" or "zeroed" (one record's contribution removed, n public: a weaker statement, for
        comparison with epsilons of one record added or removed).

        `method` is GS-WGAN or one of the baselines (docs/methods.md), which differ in nothing else.
        """
        self._options: dict[str, Any] = {
            "epsilon": epsilon,
            "delta": delta,
            "method": method,
            "preset": preset,
            "critics": critics,
            "steps": steps,
            "seed": seed,
            "insecure_reproducible": insecure_reproducible,
            "neighbours": neighbours,
        }
        self._allow_large_delta = allow_large_delta
        self._device = pick_device(device)
        self._model: ReleasedModel | None = None

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

    def sample(self, n: int, labels: Labels | None = None, *, seed: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """`n` uint8 images, [n, h, w] or [n, h, w, 3], with labels [n].

        `labels`: "uniform" over the classes (the default), "released" (in proportion to the noisy counts), the name of
        one class, or a list of classes by name or number: `n` of them, one per image, or fewer different ones, which
        are drawn in equal parts. A class that is called "uniform" is asked for as ["uniform"].
        """
        return self._fitted().sample(n, labels, seed=seed)

    @property
    def plan(self) -> Plan:
        """The plan that was run."""
        return self._fitted().plan

    @property
    def privacy(self) -> PrivacyCost:
        """The guarantee of the release towards the public. Where there is none, this raises PrivacyError.

        So it is for the non-private GAN, and for a run whose noise is known.
        """
        statement = read_json(self._fitted().folder.privacy, "the privacy.json of a run")
        cost, void = cost_from_statement(statement), self.plan.void or statement.get("void")
        if void or cost is None:
            raise PrivacyError("privacy", None, "a run with a guarantee", f"This release was {void}.")
        return cost

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

    def _read(self, folder: RunFolder) -> GSWGAN:
        self._model = load_model(folder, self._device)
        return self


def load(folder: str | Path, *, device: str | None = None) -> GSWGAN:
    """A trained model from a run folder or from its release alone."""
    return GSWGAN(device=device)._read(find_release(Path(folder)))
