"""A published generator: load it from a run or from its release alone, draw images from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import nn

from gswgan.critics.kernel.embedding import Embedding
from gswgan.errors import PlanError, RunError, short
from gswgan.generators import GeneratorSettings, build_network, network_shapes
from gswgan.generators.sampling import channels_last, draw_images
from gswgan.methods import read_plan
from gswgan.plan.facts import MAX_NAMED, Facts
from gswgan.plan.plan import Plan
from gswgan.plan.settings import check_whole, pick_device
from gswgan.privacy.storage import check_file
from gswgan.run.folder import RunFolder, find_release, read_json

Labels = Literal["uniform", "released"] | str | Sequence[str | int] | np.ndarray
"""Which classes to draw: "uniform", "released", the name of a class, or a list of names and numbers of classes."""

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
        self,
        n: int,
        labels: Labels | None = None,
        *,
        seed: int | None = None,
        progress: Callable[[int], None] = lambda done: None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """`n` uint8 images, [n, h, w] or [n, h, w, 3], with labels [n].

        `labels`: "uniform" over the classes (the default), "released" (in proportion to the noisy counts), the name of
        one class, or a list of classes by name or number: `n` of them, one per image, or fewer different ones, which
        are drawn in equal parts. A class that is called "uniform" is asked for as ["uniform"]. `progress` is told how
        many images are drawn.
        """
        rng = np.random.default_rng(None if seed is None else check_whole("seed", seed, 0, 2**63 - 1))
        wanted = self.choose_labels(check_whole("n", n, 1, MAX_SAMPLE_BYTES // self.plan.facts.pixels), labels, rng)
        return channels_last(draw_images(self.network, self.plan.generator, wanted, rng, progress)), wanted

    def choose_labels(self, n: int, labels: Labels | None, rng: np.random.Generator) -> np.ndarray:
        """The labels of `n` images, as `sample` is asked for them."""
        if labels is None or (isinstance(labels, str) and labels == "uniform"):
            return _in_equal_parts(self.kept, n, rng)
        if isinstance(labels, str) and labels == "released":
            if not self.folder.embedding.exists():
                expected = "'uniform' or classes: this run released no counts"
                raise PlanError("labels", labels, expected, "Leave it out for all classes alike.")
            return rng.choice(self.kept, size=n, p=self._released_shares())
        wanted = self.class_numbers(labels)
        if len(wanted) == n:
            return wanted
        if 0 < len(wanted) < n and len(np.unique(wanted)) == len(wanted):
            return _in_equal_parts(wanted, n, rng)
        raise PlanError(
            "labels", f"{len(wanted)} labels", f"{n} labels, one per image, or fewer different classes",
            "Leave it out for all classes alike.",
        )  # fmt: skip

    def class_numbers(self, labels: object) -> np.ndarray:
        """The numbers of classes that are given by name or number; a PlanError for those that are not made."""
        one = isinstance(labels, str | int | np.integer)
        listed = [labels] if one else labels.tolist() if hasattr(labels, "tolist") else labels
        if not isinstance(listed, list | tuple):
            raise PlanError("labels", type(labels).__name__, "a class, or a list of classes", self._known)
        number = {name: label for label, name in enumerate(self.plan.facts.class_names)}
        makes = set(self.kept.tolist())
        found = []
        for given in listed:
            label = number.get(given) if isinstance(given, str) else given
            if isinstance(label, bool) or not isinstance(label, int | np.integer) or label not in makes:
                expected = "'uniform', 'released', or classes that the generator makes, by name or number"
                raise PlanError("labels", short(given), expected, self._known)
            found.append(int(label))
        return np.array(found, np.int64)

    @property
    def _known(self) -> str:
        names = self.plan.facts.class_names
        known = [f"{label} ({names[label]})" for label in self.kept[:MAX_NAMED].tolist()]
        return f"The classes are {', '.join(known)}{', ...' if len(self.kept) > MAX_NAMED else ''}."

    def _released_shares(self) -> np.ndarray:
        counts = Embedding.load(self.folder.embedding).counts.numpy()
        weight = counts[self.kept] if counts.shape == (self.plan.facts.classes,) else np.zeros(1)
        if not np.isfinite(weight).all() or not (weight > 0).all():
            raise RunError("embedding", str(self.folder.embedding), "a positive count for each class", _FINISHED)
        shares: np.ndarray = weight / weight.sum()
        return shares


def _in_equal_parts(classes: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """`n` labels in which every class occurs as often as any other, or once more, in a random order."""
    mixed: np.ndarray = rng.permutation(np.resize(rng.permutation(classes), n))
    return mixed


def load_model(folder: RunFolder, device: torch.device) -> ReleasedModel:
    """The model of a finished run; a RunError where its files are damaged or do not fit its plan."""
    content = read_json(folder.model, "the model.json of a run")
    plan = read_plan(content.get("plan"))
    facts, labels = plan.facts, content.get("labels")
    network = read_network(folder.generator, plan.generator, facts)
    whole = isinstance(labels, list) and all(type(label) is int and 0 <= label < facts.classes for label in labels)
    if not whole or not labels:
        raise RunError("labels", short(labels), f"classes from 0 to {facts.classes - 1} in model.json", _FINISHED)
    return ReleasedModel(folder=folder, plan=plan, network=network.to(device), kept=np.array(labels))


def read_network(path: Path, settings: GeneratorSettings, facts: Facts) -> nn.Module:
    """The network of these settings in a file of a release."""
    expected = "the weights of a finished run"
    try:
        check_file(path)
        with safetensors.safe_open(path, framework="pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            found = {name: tuple(part.get_shape()) for name, part in slices.items()}
        if found != {name: tuple(size) for name, (size, _) in network_shapes(settings, **facts.shape).items()}:
            raise RunError("generator", str(path), f"{expected}, of the plan's sizes", _FINISHED)
        network = build_network(settings, **facts.shape)
        network.load_state_dict(safetensors.torch.load_file(path))
    except (OSError, RuntimeError, safetensors.SafetensorError) as wrong:
        raise RunError("generator", str(path), expected, _FINISHED) from wrong
    return network.eval()


def load(folder: str | Path, *, device: str | None = None) -> ReleasedModel:
    """A trained model from a run folder or from its release alone."""
    return load_model(find_release(Path(folder)), pick_device(device))
