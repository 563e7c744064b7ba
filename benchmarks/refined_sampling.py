"""Ways for the denoiser of preset `refined` to draw an image in few evaluations: FID of each against 50 evaluations.

    python benchmarks/refined_sampling.py RUN [RUN ...] --inception-weights FILE --out benchmarks/results/NAME.json

RUN is the folder of a finished run (or its release) on a data set that `gswgan.load_data` knows. The search begins with
the preset's way in `--evaluations` evaluations and changes one setting after another (VALUES); a change is kept if the
mean over all runs of FID over the FID of 50 evaluations falls. It looks at `--screen` images; the way that is found,
the preset's and that of 50 evaluations are then measured with `--images`. The result is written after each FID, and a
command that is given again goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import gswgan
from gswgan.evaluation import inception as inception_module
from gswgan.evaluation.frechet import Moments
from gswgan.evaluation.inception import Inception, image_moments, load_inception, reference_moments
from gswgan.evaluation.references import cache_folder, data_checksum
from gswgan.generators.denoised import BEND, EVALUATIONS, MAX_NOISE, MIN_NOISE, DenoisedSampler, denoise
from gswgan.plan.settings import pick_device
from gswgan.run.released import load
from record import record
from train_plan import faster

AT_ONCE = {"cuda": 2000, "cpu": 100}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Way:
    """From noise to an image."""

    evaluations: int  # of the denoiser for an image, all of them
    begin: str = "twice"  # "twice": at the mean image behind pure noise; "once": its answer is kept; "noise": at noise
    most: float = MAX_NOISE  # noise levels, from here
    least: float = MIN_NOISE  # to here
    bend: float = BEND  # how much denser levels are towards the end; 0: evenly in ln(noise)
    fresh: float = 1.0  # of the noise that a step removes and the stochastic equation replaces; 0: ordinary equation
    order: str = "midpoint"  # "first"; second order by "midpoint", or exact where answers are "linear" in ln(noise)
    end: str = "last answer"  # or "at no noise": the line through the last two answers, continued to noise 0


VALUES: dict[str, tuple[Any, ...]] = {
    "begin": ("once", "noise"),
    "least": (0.08, 0.03, 0.12),
    "bend": (5.0, 10.0, 3.0, 0.0),
    "fresh": (0.8, 0.6, 0.4, 1.2),
    "order": ("linear", "first"),
    "most": (8.0, 20.0),
    "end": ("at no noise",),
}


def noise_levels(way: Way) -> list[float]:
    count = way.evaluations - (way.begin == "twice")
    place = torch.linspace(0, 1, count, dtype=torch.float64)
    if way.bend == 0:
        return torch.exp(math.log(way.most) + place * math.log(way.least / way.most)).tolist()
    first, last = way.most ** (1 / way.bend), way.least ** (1 / way.bend)
    return ((first + place * (last - first)) ** way.bend).tolist()


def draw(
    sampler: DenoisedSampler, labels: Tensor, way: Way, rng: torch.Generator, start: Tensor | None = None
) -> Tensor:
    """uint8 images [n, channels, side, side]: DPM-Solver++(2M) of Lu et al. 2022, stochastic or not.

    `start`: images [n, side, side, channels] in [-1, 1] that the way begins at, with noise of its first level on them
    (Meng et al. 2022): they keep what is larger than that noise. Then `begin` is "noise".
    """
    levels, shape = noise_levels(way), (len(labels), *sampler.shape)

    def noise() -> Tensor:
        return torch.randn(shape, device=labels.device, generator=rng)

    images = noise() * levels[0] + (0.0 if start is None else start)
    clean = denoise(sampler.denoiser, images, levels[0], labels)
    if way.begin != "noise":
        images = images + clean
    if way.begin == "twice":
        clean = denoise(sampler.denoiser, images, levels[0], labels)
    target = before = clean
    for index, (level, following) in enumerate(itertools.pairwise(levels)):
        passed = math.log(level / following) * (1 + way.fresh)
        kept = math.exp(-passed)
        images = kept * images + (1 - kept) * target
        if way.fresh:
            images = images + following * math.sqrt(1 - (following / level) ** (2 * way.fresh)) * noise()
        clean = denoise(sampler.denoiser, images, following, labels)
        target = clean
        if index + 2 < len(levels) and way.order != "first":
            ahead = math.log(following / levels[index + 2])
            slope = (clean - before) / math.log(level / following)
            next_passed = ahead * (1 + way.fresh)
            if way.order == "midpoint":
                target = clean + slope * (ahead / 2)
            else:  # the mean over the step, with the weights of the equation, of an answer linear in ln(noise)
                target = clean + slope * ahead * (1 / (1 - math.exp(-next_passed)) - 1 / next_passed)
        elif index + 2 == len(levels) and way.end == "at no noise":
            clean = clean + (clean - before) * (following / (level - following))
        before = clean
    return ((before.permute(0, 3, 1, 2) + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)


class Judge:
    """A finished run and the training set that it was made from."""

    def __init__(self, folder: Path, inception: Inception, device: torch.device) -> None:
        model = load(folder, device=str(device))
        assert isinstance(model.network, DenoisedSampler), f"{folder} is no run of preset refined"
        self.network, self.kept, self.device, self.inception = model.network, model.kept, device, inception
        self.name = model.plan.facts.data
        data = gswgan.load_data(self.name, classes=model.plan.facts.classes)
        self.mean, self.covariance, self.root = self._root(
            reference_moments(data.images, inception, cache_folder(data.name, data_checksum(data), None))
        )

    def _root(self, moments: Moments) -> tuple[Tensor, Tensor, Tensor]:
        mean, covariance = moments.mean.to(self.device), moments.covariance.to(self.device)
        values, vectors = torch.linalg.eigh(covariance)
        return mean, covariance, (vectors * values.clamp_min(0).sqrt()) @ vectors.T

    @torch.no_grad()
    def measure(self, way: Way, count: int) -> dict[str, float]:
        """FID of `count` images with balanced labels, and the seconds that they took to draw."""
        rng = torch.Generator(self.device).manual_seed(0)
        labels = torch.from_numpy(np.resize(self.kept, count)).to(self.device)
        began = time.perf_counter()
        with faster():
            parts = [draw(self.network, some, way, rng).cpu() for some in labels.split(AT_ONCE[self.device.type])]
        seconds = time.perf_counter() - began
        made = image_moments(torch.cat(parts).numpy(), self.inception)
        other, apart = made.covariance.to(self.device), self.mean - made.mean.to(self.device)
        cross = torch.linalg.eigvalsh(self.root @ other @ self.root).clamp_min(0).sqrt().sum()
        fid = float(apart.square().sum() + self.covariance.trace() + other.trace() - 2 * cross)
        return {"fid": round(fid, 3), "seconds": round(seconds, 2)}


class Search:
    """Measures ways once, and writes down what it has found."""

    def __init__(self, judges: list[Judge], out: Path | None) -> None:
        self.judges, self.out = judges, out
        self.found: list[dict[str, Any]] = []
        if out is not None and out.exists():
            self.found = json.loads(out.read_text())["found"]

    def fids(self, way: Way, images: int) -> list[float]:
        """For each run."""
        fids = []
        for judge in self.judges:
            key = {"data": judge.name, "images": images, "way": dataclasses.asdict(way)}
            known = [one for one in self.found if {name: one[name] for name in key} == key]
            if not known:
                known = [key | judge.measure(way, images)]
                self.found += known
                record(self.out, {"fid_tf32": True, "found": self.found})
            fids.append(known[0]["fid"])
        changed = {k: v for k, v in dataclasses.asdict(way).items() if v != dataclasses.asdict(PRESET)[k]}
        print(images, changed, fids, flush=True)
        return fids

    def best(self, way: Way, images: int, reference: list[float]) -> Way:
        """Change one setting after another."""

        def score(way: Way) -> float:
            return float(np.mean([fid / most for fid, most in zip(self.fids(way, images), reference)]))

        least = score(way)
        for name, values in VALUES.items():
            for value in values:
                changed = dataclasses.replace(way, **{name: value})
                if (found := score(changed)) < least:
                    way, least = changed, found
        return way


PRESET = Way(evaluations=EVALUATIONS + 1)
MANY = Way(evaluations=50)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--evaluations", type=int, default=10)
    parser.add_argument("--screen", type=int, default=20_000, help="images in the search")
    parser.add_argument("--images", type=int, default=60_000, help="images of what is found")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--inception-weights", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = pick_device(options.device)
    inception_module.full_precision = faster
    inception = load_inception(options.inception_weights, device)
    search = Search([Judge(folder, inception, device) for folder in options.runs], options.out)
    way = search.best(Way(evaluations=options.evaluations), options.screen, search.fids(MANY, options.screen))
    for one in (way, MANY, PRESET, Way(evaluations=options.evaluations)):
        search.fids(one, options.images)


if __name__ == "__main__":
    main()
