"""The search for the kernel critic's features in colour, on training images that are held out.

    gswgan train --data blood_cells --preset kernel --device cuda --save-plan PLAN.json
    python benchmarks/colour_search.py PLAN.json JOBS.json --data TRAIN.npz --inception-weights FILE --out FOLDER

JOBS is a list of objects: `{"name": ..., "groups": [...], "critic": {...}, "training": {...}, "optimizer": {...},
"generator": {...}}`, all but the name optional: what is left out is the plan's. With `--public IMAGES` (a folder or npz
file of images, as `gswgan train` takes it) jobs may have an encoder that is trained on them; jobs with equal settings
share one. Pixels alone, a network untrained (as planned in colour), trained, and one that others trained:

    [{"name": "pixels", "critic": {"convolutions": []}},
     {"name": "untrained"},
     {"name": "encoder", "critic": {"convolutions": [64, 128, 256], "encoder_steps": 4000, "encoder_batch": 512}},
     {"name": "vgg19", "critic": {"convolutions": [], "public_network": "vgg19"}}]

Groups are kinds of frequencies over
pixels, with equally many features each: `scale` (length scale in pixel distance), `window` (radius in pixels, 0: the
whole image), `low` and `high` (details finer than `low` pixels are left out, and what is coarser than `high`), `gains`
(of the sum of the colours, of red minus green, of yellow minus blue). Each record is mapped alone to a row of length 1
by a public map, so every job has the plan's guarantee; the choice between jobs is made on protected images and has
none, so it is made on public data sets only.

Prints accuracy of the CNN on held-out training images and the FID to all training images after each job.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

import gswgan
from gswgan.critics import Critic
from gswgan.critics.kernel.critic import gaussian_blur
from gswgan.critics.kernel.features import KernelSettings, RandomFeatures, _windows
from gswgan.data import ImageData
from gswgan.data.public import read_public
from gswgan.evaluation import inception as inception_module
from gswgan.evaluation.classifiers import cnn_accuracy
from gswgan.evaluation.inception import image_moments, load_inception
from gswgan.evaluation.reference_classifier import train_reference_classifier
from gswgan.generators.sampling import grid_png
from gswgan.methods import read_plan
from gswgan.plan.facts import PublicFacts
from gswgan.plan.plan import Plan
from gswgan.privacy import Streams
from gswgan.run.folder import RunFolder
from gswgan.run.loop import make_critic, make_generator, train
from record import record
from train_plan import faster, part

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
OPPONENT = np.array([[1, 1, 1], [1, -1, 0], [1, 1, -2]]) / np.sqrt([[3], [2], [6]])
"""Orthonormal: the sum of the colours, red minus green, yellow minus blue."""


class Waves(RandomFeatures):
    """Random features of pixels whose frequencies are drawn by groups."""

    def __init__(self, groups: list[dict[str, Any]], count: int, channels: int, side: int, seed: int) -> None:
        settings = KernelSettings(features=count, length_scales=(1.0,), seed=seed)
        super().__init__(settings, channels, side, DEVICE)
        half, streams = count // 2, Streams.public(seed)
        every = np.zeros((channels * side**2, half), np.float32)
        for number, group in enumerate(groups):
            mine = np.arange(number, half, len(groups))
            draws = streams.gaussian((channels * side**2, len(mine)), "features", number)
            every[:, mine] = shaped(draws, group, channels, side, Streams.public(seed + 1 + number)) / group["scale"]
        self.frequencies = torch.from_numpy(every).to(DEVICE)


def shaped(draws: np.ndarray, group: dict[str, Any], channels: int, side: int, streams: Streams) -> np.ndarray:
    """White noise [channels x side^2, n], limited to a band, faded to a window, with gains of colours."""
    low, high = group.get("low", 0.0), group.get("high", 0.0)
    fine, coarse = np.eye(side), np.zeros((side, side))
    if low:
        fine = gaussian_blur(side, low).double().numpy()
    if high:
        coarse = gaussian_blur(side, high).double().numpy()
    image = draws.reshape(channels, side, side, -1)
    if low or high:
        image = both(fine, image) - both(coarse, image)
        image /= math.sqrt(np.mean(image**2))  # as strong as white noise: `scale` alone sets the length
    image = image.reshape(channels, side**2, -1)
    if group.get("window"):
        image = image * _windows(np.full(image.shape[-1], group["window"]), side, streams)
    if channels == 3 and "gains" in group:
        gains = np.asarray(group["gains"])[:, None, None]
        image = np.einsum("kc,kpn->cpn", OPPONENT, image * gains)
    return image.reshape(channels * side**2, -1)


def both(blur: np.ndarray, image: np.ndarray) -> np.ndarray:
    """Blur [c, side, side, n] along rows and columns."""
    return np.einsum("ij,cjkn,lk->ciln", blur, image, blur, optimize=True)


class Search:
    """One data set, any number of jobs."""

    def __init__(self, plan: Plan, options: argparse.Namespace) -> None:
        whole = gswgan.load_data(options.data, classes=plan.facts.classes)
        order = np.random.default_rng(0).permutation(whole.n)
        whole = dataclasses.replace(whole, images=whole.images[order], labels=np.asarray(whole.labels)[order])
        first = options.first or whole.n * 5 // 6
        self.train, self.test = part(whole, slice(first)), part(whole, slice(first, None))
        self.plan = dataclasses.replace(plan, facts=dataclasses.replace(plan.facts, records=self.train.n))
        self.options, self.public, self.encoders = options, None, dict[str, bytes]()
        if options.public is not None:
            shape = {"image_size": plan.facts.image_size, "channels": plan.facts.channels}
            self.public = read_public(options.public, **shape)
        began = time.perf_counter()
        if options.inception_weights is not None:
            inception_module.full_precision = faster
            self.see = load_inception(options.inception_weights, DEVICE)
        else:  # a quick look: the same distance in the features of a classifier
            some = part(self.train, slice(2000))
            self.see = train_reference_classifier(some, device=DEVICE, epochs=4).features
            whole = part(whole, slice(4000))
        self.real = image_moments(whole.images, self.see)
        accuracy = self.cnn(part(self.train, slice(options.images)))
        self.tell("real", {"cnn_accuracy": accuracy, "seconds": time.perf_counter() - began})

    def cnn(self, data: ImageData) -> float:
        return cnn_accuracy(
            data.images, np.asarray(data.labels), self.test.images, np.asarray(self.test.labels),
            classes=self.test.classes, device=str(DEVICE),
        )  # fmt: skip

    def distance(self, images: np.ndarray) -> float:
        """The Frechet distance to the training images, on the device."""
        made = image_moments(images, self.see)
        one, other = self.real.covariance.to(DEVICE), made.covariance.to(DEVICE)
        values, vectors = torch.linalg.eigh(one)
        root = (vectors * values.clamp_min(0).sqrt()) @ vectors.T
        cross = torch.linalg.eigvalsh(root @ other @ root).clamp_min(0).sqrt().sum()
        apart = self.real.mean.to(DEVICE) - made.mean.to(DEVICE)
        return float(apart @ apart + one.trace() + other.trace() - 2 * cross)

    def tell(self, name: str, result: dict[str, Any]) -> None:
        print(name, json.dumps(result), flush=True)
        record(self.options.out / f"colour-{name}.json", {"tested_on": "training images that were held out", **result})

    def with_encoder(self, plan: Plan, folder: RunFolder) -> Critic:
        """The plan's critic, with the encoder of an earlier job where that had the same settings."""
        settings = json.dumps(
            [plan.critic.convolutions, plan.critic.encoder_steps, plan.critic.encoder_batch, plan.seed]
        )
        if settings in self.encoders:
            folder.encoder.write_bytes(self.encoders[settings])
        critic = make_critic(plan, folder, self.train, DEVICE, note=print)
        if plan.public is not None:
            self.encoders[settings] = folder.encoder.read_bytes()
        return critic

    def run(self, name: str, **job: Any) -> None:
        """Train, measure, tell."""
        began, plan, facts = time.perf_counter(), self.plan, self.plan.facts
        changes = {key: tuples(job.get(key, {})) for key in ("critic", "training", "optimizer", "generator")}
        parts = {key: dataclasses.replace(getattr(plan, key), **value) for key, value in changes.items()}
        trained = self.public is not None and parts["critic"].encoder_steps > 0
        stated = PublicFacts.of(self.public) if trained else None
        plan = dataclasses.replace(plan, **parts, public=stated)
        with TemporaryDirectory() as place:
            folder = RunFolder.create(Path(place) / "run", plan, public=self.public if trained else None)
            critic = self.with_encoder(plan, folder)
            encoder_s = time.perf_counter() - began
            if job.get("groups"):
                shape = (facts.channels, facts.image_size, plan.critic.seed)
                critic.features = Waves(job["groups"], plan.critic.features, *shape)
            critic.prepare(self.train)
            generator = make_generator(plan, DEVICE)
            released = time.perf_counter() - began
            train(plan, critic, generator)
        network, trained_s = generator.released_network(), time.perf_counter() - began
        images, labels = [], []
        with torch.no_grad(), faster():
            for batch in range(-(-self.options.images // 500)):
                codes, mine = generator.latents(500, "judged", batch)
                images.append((network(codes, mine).float() * 255).round().to(torch.uint8).cpu().numpy())
                labels.append(mine.cpu().numpy())
        made = dataclasses.replace(self.test, images=np.concatenate(images), labels=np.concatenate(labels))
        rows = [np.flatnonzero(made.labels == label)[:10] for label in np.unique(made.labels)]
        (self.options.out / f"colour-{name}.png").write_bytes(grid_png(made.images[np.concatenate(rows)], 10, side=56))
        accuracy, distance = self.cnn(made), self.distance(made.images)
        result = {"cnn_accuracy": round(accuracy, 4), "fid": round(distance, 2), "fid_images": len(made.images)}
        result |= {"encoder_s": round(encoder_s, 1)} if trained else {}
        result |= {"released_s": round(released, 1), "trained_s": round(trained_s, 1)}
        result |= {"all_s": round(time.perf_counter() - began, 1), "distance": critic.metrics()["distance"], "job": job}
        self.tell(name, result)


def tuples(table: dict[str, Any]) -> dict[str, Any]:
    """JSON has lists where settings have tuples."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=Path)
    parser.add_argument("jobs", type=Path)
    parser.add_argument("--data", required=True, help="the training set; a sixth of it is held out")
    parser.add_argument("--first", type=int, help="train on so many images and test on the rest")
    parser.add_argument("--images", type=int, default=10_000, help="synthetic images to measure")
    parser.add_argument("--inception-weights", type=Path, help="without: the distance by a classifier's features")
    parser.add_argument("--public", help="images that are stated to be public, for jobs with an encoder")
    parser.add_argument("--only", help="comma-separated names of jobs")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    search = Search(read_plan(options.plan), options)
    for job in json.loads(options.jobs.read_text()):
        if options.only is None or job["name"] in options.only.split(","):
            try:
                search.run(**job)
            except RuntimeError as wrong:  # the others go on
                print(job["name"], "failed:", wrong, flush=True)


if __name__ == "__main__":
    main()
