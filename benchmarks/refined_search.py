"""The search for preset `refined`, on training images that are held out: ways of pre-training and of DP-SGD.

    python benchmarks/refined_search.py PLAN.json JOBS.json --first 50000 --inception-weights FILE --out FOLDER

PLAN is a saved plan of the preset (`gswgan train --save-plan`): its kernel stage is the start of all jobs. JOBS is a
list of objects, `{"do": "pretrain", "name": ..., ...}`, `"signal"` or `"refine"`, done in order; see the functions
below for what each takes. After each job its figures are written to FOLDER. The steps of DP-SGD here have the law of
the preset's (the same coins, clip and noise), but their noise is drawn on the device: nothing that comes of a search
may be published, and no figure of it states a guarantee.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import gswgan
import refined_sampling
from gswgan.critics.refined.draws import LEVEL_MEAN, LEVEL_STD
from gswgan.critics.refined.gradients import Gradients
from gswgan.critics.refined.pretraining import Pretraining
from gswgan.data import ImageData
from gswgan.evaluation import inception as inception_module
from gswgan.evaluation.classifiers import accuracy, predictions
from gswgan.evaluation.frechet import Moments
from gswgan.evaluation.inception import image_moments, load_inception, reference_moments
from gswgan.evaluation.references import cache_folder, data_checksum
from gswgan.generators import denoised
from gswgan.generators.cuda_graphs import Captured
from gswgan.generators.denoised import DenoisedSampler
from gswgan.generators.denoiser import loss_of_draws
from gswgan.generators.preconditioner import FLOOR, LARGEST
from gswgan.generators.refined import RefinedGenerator
from gswgan.methods import read_plan
from gswgan.plan.plan import Plan
from gswgan.privacy import Streams
from gswgan.run.folder import RunFolder
from gswgan.run.loop import make_critic, make_generator, train
from record import record
from refined_sampling import Way
from train_plan import faster, part

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CHUNK = {"cuda": 2**29, "cpu": 2**24}  # numbers in the gradients of a chunk of records
LEVELS = (0.03, 0.07, 0.15, 0.3, 0.6, 1.2, 2.5, 5.0, 10.0, 20.0)


class Judge:
    """FID against all training images, loss on those that were held out."""

    def __init__(self, whole: ImageData, first: int, options: argparse.Namespace) -> None:
        self.test, self.size = part(whole, slice(first, None)), options.images
        inception_module.full_precision = faster
        self.inception = load_inception(options.inception_weights, DEVICE) if options.inception_weights else None
        if self.inception is not None:
            folder = cache_folder(whole.name, data_checksum(whole), None)
            self.real = self._root(reference_moments(whole.images, self.inception, folder))
        rng = torch.Generator().manual_seed(0)
        images = torch.from_numpy(self.test.images[:2000]).permute(0, 2, 3, 1).float() / 127.5 - 1
        self.held = images.to(DEVICE), torch.randn(images.shape, generator=rng).to(DEVICE)
        self.labels = torch.from_numpy(np.asarray(self.test.labels)[:2000]).to(DEVICE)

    def cnn(self, images: np.ndarray, labels: np.ndarray) -> float:
        """Accuracy of the paper's CNN on the images that were held out."""
        return accuracy(
            "cnn", images, labels, self.test.images, np.asarray(self.test.labels), classes=self.test.classes,
            device=DEVICE,
        )  # fmt: skip

    @staticmethod
    def _root(moments: Moments) -> tuple[Tensor, Tensor, Tensor]:
        mean, covariance = moments.mean.to(DEVICE), moments.covariance.to(DEVICE)
        values, vectors = torch.linalg.eigh(covariance)
        return mean, covariance, (vectors * values.clamp_min(0).sqrt()) @ vectors.T

    def distance(self, images: np.ndarray, real: tuple[Tensor, Tensor, Tensor] | None = None) -> float:
        if self.inception is None:
            return 0.0
        mean, covariance, root = real or self.real
        made = image_moments(images, self.inception)
        other = made.covariance.to(DEVICE)
        cross = torch.linalg.eigvalsh(root @ other @ root).clamp_min(0).sqrt().sum()
        return float((mean - made.mean.to(DEVICE)).square().sum() + covariance.trace() + other.trace() - 2 * cross)

    @torch.no_grad()
    def losses(self, sampler: DenoisedSampler) -> list[float]:
        """At each of LEVELS."""
        found = []
        for level in LEVELS:
            held = torch.full((len(self.labels),), level, device=DEVICE)
            found.append(round(float(loss_of_draws(sampler.denoiser, *self.held, held, self.labels).mean()), 5))
        return found

    @torch.no_grad()
    def draw(self, sampler: DenoisedSampler, count: int, **changes: Any) -> np.ndarray:
        """Images with balanced labels; `changes` are of the sampler's attributes, or of constants of its module."""
        owners = {name: denoised if name.isupper() else sampler for name in changes}
        before = {name: getattr(owner, name) for name, owner in owners.items()}
        for name, value in changes.items():
            setattr(owners[name], name, value)
        torch.manual_seed(0)
        labels, parts = torch.arange(count, device=DEVICE) % self.test.classes, []
        size = sampler.shape[0] ** 2 * sampler.shape[2] * sampler.evaluations
        with faster():
            for some in labels.split(1000 if DEVICE.type == "cuda" else 100):
                made = sampler(torch.randn(len(some), size, device=DEVICE), some)
                parts.append((made * 255).round().to(torch.uint8).cpu())
        for name, value in before.items():
            setattr(owners[name], name, value)
        return torch.cat(parts).numpy()

    def all(self, sampler: DenoisedSampler, samplers: list[dict[str, Any]]) -> dict[str, Any]:
        losses = self.losses(sampler)
        result: dict[str, Any] = {"losses": losses, "mean_loss": round(float(np.mean(losses[1:9])), 5), "found": {}}
        for changes in samplers:
            images = self.draw(sampler, self.size, **changes)
            name = " ".join(f"{key} {value}" for key, value in changes.items()) or "usual"
            accuracy = self.cnn(images, np.arange(self.size) % self.test.classes)
            result["found"][name] = {"cnn": round(accuracy, 4), "fid": round(self.distance(images), 3)}
            print(name, result["found"][name], flush=True)
        return result


class Search:
    """One data set, one kernel stage, any number of jobs."""

    def __init__(self, plan: Plan, options: argparse.Namespace) -> None:
        whole = gswgan.load_data(options.data or plan.facts.data, classes=plan.facts.classes)
        order = np.random.default_rng(0).permutation(whole.n)
        whole = dataclasses.replace(whole, images=whole.images[order], labels=np.asarray(whole.labels)[order])
        first = options.first or whole.n * 5 // 6
        self.train = part(whole, slice(first))
        plan = dataclasses.replace(plan, facts=dataclasses.replace(plan.facts, records=self.train.n))
        self.plan, self.options, self.judge = plan, options, Judge(whole, first, options)
        self.images = torch.from_numpy(self.train.images).to(DEVICE)
        self.labels = torch.from_numpy(np.asarray(self.train.labels)).to(DEVICE)
        generator = make_generator(plan, DEVICE)
        assert isinstance(generator, RefinedGenerator)
        self.generator, self.kept = generator, dict[str, list[Tensor]]()
        began = time.perf_counter()
        saved = options.out / f"kernel-{options.tag}.safetensors"
        if options.start is not None:
            self.load(load_file(options.start))
        else:
            folder = RunFolder.create(Path(mkdtemp()) / "run", plan)
            critic = make_critic(plan, folder, self.train, DEVICE)
            critic.prepare(self.train)
            train(plan, critic, generator, after_step=lambda done: done == plan.critic.steps)
            save_file({k: v.cpu().contiguous() for k, v in generator.state().items() if "adam" not in k}, saved)
        self.kept["blank"] = [value.clone() for value in generator.denoised.parameters()]
        samples, labels = generator.samples(self.judge.size)
        made, seconds = samples.float().mul(255).round().byte().cpu().numpy(), time.perf_counter() - began
        found = {"cnn": self.judge.cnn(made, labels.cpu().numpy()), "fid": self.judge.distance(made)}
        self.tell("kernel", {"seconds": seconds, **found})
        if self.judge.inception is not None:
            self.kernel = self.judge._root(image_moments(made, self.judge.inception))

    def load(self, tensors: dict[str, Tensor]) -> None:
        state = self.generator.state()
        self.generator.load_state({k: tensors[k].to(v.device) if k in tensors else v for k, v in state.items()})

    def tell(self, name: str, result: dict[str, Any]) -> None:
        print(name, json.dumps(result), flush=True)
        out = self.options.out / f"search-{name}{self.options.tag}.json"
        record(out, {"tested_on": "training images that were held out", "fid_images": self.judge.size, **result})

    def put(self, network: DenoisedSampler, values: list[Tensor]) -> None:
        with torch.no_grad():
            torch._foreach_copy_(list(network.parameters()), values)

    def begin(self, name: str) -> None:
        for network in (self.generator.denoised, self.generator.denoised_average):
            self.put(network, self.kept[name])
        self.generator.begin()

    def pretrain(
        self, name: str, *, on: str = "kernel", samples: int = 2**18, steps: int = 8000, batch: int = 512,
        rate: float = 1e-3, average: float = 0.98, start: str = "blank", samplers: list[dict[str, Any]] | None = None,
    ) -> None:  # fmt: skip
        """`on` the kernel's samples, or (to see what the network can do) on real images."""
        self.begin(start)
        if on == "kernel":
            images, labels = self.generator.samples(samples)
        else:
            images, labels = (self.images.float() / 255).half(), self.labels
        gradients = Gradients(self.generator.denoised.denoiser, draws=1)

        def work(some: Tensor, seed: Tensor, now: Tensor, keep: Tensor) -> None:
            gradient = gradients.of_samples(images[some].float(), labels[some], seed)
            self.generator.descend_denoiser(gradient, now, keep)

        step_of, began = Captured(work), time.perf_counter()
        for step in range(steps):
            some = torch.randint(len(images), (batch,), device=DEVICE)
            now = rate * min(1.0, (step + 1) / 100) * (1 - step / steps)
            keep = min(average, step / (step + 10))
            step_of(some, *(torch.tensor(value).to(DEVICE) for value in (step, now, keep)))
        torch.cuda.synchronize() if DEVICE.type == "cuda" else None
        seconds = time.perf_counter() - began
        network = self.generator.denoised_average
        self.kept[name] = [value.clone() for value in network.parameters()]
        kept = {f"{number}": value.cpu() for number, value in enumerate(self.kept[name])}
        save_file(kept, self.options.out / f"{name}{self.options.tag}.safetensors")
        result = self.judge.all(network, samplers or [{}])
        if self.judge.inception is not None:
            result["fid_to_kernel"] = self.judge.distance(self.judge.draw(network, self.judge.size), self.kernel)
        given = {"on": on, "samples": samples, "steps": steps, "batch": batch, "rate": rate, "average": average}
        self.tell(name, {"seconds": seconds, **given, **result})

    def restore(self, name: str, path: str) -> None:
        """Weights that an earlier command left."""
        found = load_file(path)
        self.kept[name] = [found[str(number)].to(DEVICE) for number in range(len(found))]

    def signal(self, name: str, *, start: str, ways: list[dict[str, Any]], records: int = 2048) -> None:
        """|mean of normalised gradients|, from two halves of the records: what DP-SGD has to work with."""
        self.begin(start)
        found = {}
        for way in ways:
            gradients, _ = self.gradients(way)
            halves, chunk = [], min(128, records // 2)
            for half in range(2):
                total = torch.zeros(0, device=DEVICE)
                for first in range(half * records // 2, (half + 1) * records // 2, chunk):
                    some = torch.arange(first, first + chunk, device=DEVICE)
                    rows = gradients.of_records(self.images[some], self.labels[some], some, torch.tensor(7).to(DEVICE))
                    part_ = self.normalised(rows)
                    total = part_ if not len(total) else total + part_
                halves.append(total / (records // 2))
            found[json.dumps(way)] = round(float((halves[0] @ halves[1]).clamp_min(0).sqrt()), 4)
        self.tell(name, {"signal": found})

    def rehearse(self, law: tuple[float, float]) -> Callable[[int, float], None]:
        """A step on samples at such noise levels; the averaged weights follow with the next step of DP-SGD."""
        images, labels = self.generator.samples(2**16)
        one = Gradients(self.generator.denoised.denoiser, draws=8, level_mean=law[0], level_std=law[1])

        def step_of(step: int, rate: float) -> None:
            some = torch.randint(len(images), (256,), device=DEVICE)
            many = images[some].float().mul(255).round().byte()
            rows = one.of_records(many, labels[some], some, torch.tensor(step).to(DEVICE))
            keep = torch.ones((), device=DEVICE)
            self.generator.descend_denoiser(rows.float().mean(dim=0), torch.tensor(rate).to(DEVICE), keep)

        return step_of

    def experts(
        self, name: str, *, high: str, low: str, switches: list[float], fresh: bool = True, relabel: bool = False
    ) -> None:
        """Images from two networks: `high` above a noise level of each of the `switches`, `low` below."""
        network, other = self.generator.denoised_average, copy.deepcopy(self.generator.denoised_average)
        self.put(network, self.kept[low])
        self.put(other, self.kept[high])
        usual, found = denoised.denoise, {}
        teacher_on = self.generator.samples(self.judge.size)
        made = teacher_on[0].float().mul(255).round().byte().cpu().numpy(), teacher_on[1].cpu().numpy()
        for switch in switches:

            def either(denoiser: Any, images: Tensor, level: float, labels: Tensor, now: float = switch) -> Tensor:
                return usual(other.denoiser if level > now else denoiser, images, level, labels)

            denoised.denoise = either
            images, labels = (
                self.judge.draw(network, self.judge.size),
                np.arange(self.judge.size) % self.judge.test.classes,
            )
            result = {"cnn": self.judge.cnn(images, labels), "fid": self.judge.distance(images)}
            if relabel:
                told = predictions("cnn", *made, images, classes=self.judge.test.classes, device=DEVICE)
                result |= {"agree": float((told == labels).mean()), "relabelled": self.judge.cnn(images, told)}
                kept = told == labels
                result |= {"kept": self.judge.cnn(images[kept], labels[kept])}
            found[str(switch)] = result
            print(switch, result, flush=True)
        denoised.denoise = usual
        self.tell(name, {"high": high, "low": low, "switches": found})

    def ways(
        self, name: str, *, of: str, ways: list[dict[str, Any]], images: int = 10_000, from_samples: bool = False
    ) -> None:
        """What images are worth that one network makes on several ways (benchmarks/refined_sampling.py).

        `from_samples`: the ways begin at samples of the kernel's generator.
        """
        network, found, begins = self.generator.denoised_average, {}, [None]
        self.put(network, self.kept[of])
        labels = torch.arange(images, device=DEVICE) % self.judge.test.classes
        parts = labels.split(1000)
        if from_samples:
            first, labels = self.generator.samples(images)
            parts, begins = labels.split(1000), list((first.permute(0, 2, 3, 1).float() * 2 - 1).split(1000))
        for way in ways:
            rng, made = torch.Generator(DEVICE).manual_seed(0), []
            with torch.no_grad(), faster():
                for some, begin in zip(parts, itertools.cycle(begins)):
                    made.append(refined_sampling.draw(network, some, Way(**way), rng, begin).cpu())
            stacked = torch.cat(made).numpy()
            result = {"cnn": self.judge.cnn(stacked, labels.cpu().numpy()), "fid": self.judge.distance(stacked)}
            found[json.dumps(way)] = {key: round(value, 4) for key, value in result.items()}
            print(way, found[json.dumps(way)], flush=True)
        self.tell(name, {"of": of, "from_samples": from_samples, "ways": found})

    def gradients(self, way: dict[str, Any]) -> tuple[Gradients, int]:
        """The gradients of records for a way of DP-SGD, and records in a chunk; the preconditioner is made for it."""
        draws, levels = way.get("draws", 8), way.get("levels", [LEVEL_MEAN, LEVEL_STD])
        denoiser = self.generator.denoised.denoiser
        gradients = Gradients(denoiser, draws=draws, level_mean=levels[0], level_std=levels[1])
        chunk = CHUNK[DEVICE.type] // sum(value.numel() for value in denoiser.parameters())
        chunk = max(32, min(chunk, 352 * 8 // draws) // 32 * 32)
        settings = dataclasses.replace(self.plan.critic, public_steps=0, public_share=0.0)
        public = Pretraining(
            settings, self.generator, gradients, streams=Streams.public(self.plan.seed), average=0.0,
            public_images=lambda: np.zeros(0, np.uint8),
        ).gradients(way.get("samples", 2**14))  # fmt: skip
        limits = {"largest": way.get("largest", LARGEST), "floor": way.get("floor", FLOOR)}
        self.generator.preconditioner.fit(public, power=way.get("scaling", 0.0), **limits)
        return gradients, chunk

    def normalised(self, rows: Tensor) -> Tensor:
        """The sum of preconditioned rows, each divided by its length, which is what a small clip norm does."""
        rows = self.generator.preconditioner.forward(rows)
        norms = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float32)
        return ((1 / norms).to(rows.dtype) @ rows).float()

    def refine(
        self, name: str, *, start: str, noise: float, steps: int, batch: int, rate: float = 3e-4,
        constant: float = 0.6, averaging: float = 3.0, way: dict[str, Any] | None = None,
        also: list[float] | None = None, samplers: list[dict[str, Any]] | None = None, rehearsal: float = 0.0,
        rehearsed: tuple[float, float] = (1.0, 0.7),
    ) -> None:  # fmt: skip
        """DP-SGD with so much `noise` over the clip norm; `batch` is that of the whole data set.

        `rehearsal`: the rate of a step of Adam on samples of the kernel's generator after each of DP-SGD, at noise
        levels whose logarithm has the mean and deviation `rehearsed`.
        """
        way = way or {}
        self.begin(start)
        gradients, chunk = self.gradients(way)
        q, began, losses = batch / (self.train.n * 6 / 5), time.perf_counter(), {}
        torch.manual_seed(1)
        self.generator.descent.velocity.zero_(), self.generator.descent.size.zero_()
        averages = {kept: [value.clone() for value in self.kept[start]] for kept in also or ()}
        again = self.rehearse(rehearsed) if rehearsal else None
        for step in range(steps):
            members = (torch.rand(self.train.n, device=DEVICE) < q).nonzero()[:, 0]
            total = torch.zeros_like(self.generator.descent.velocity)
            for some in members.split(chunk):
                filled, seed = some.repeat(chunk // len(some) + 1)[:chunk], torch.tensor(step).to(DEVICE)
                rows = gradients.of_records(self.images[filled], self.labels[filled], filled, seed)[: len(some)]
                total += self.normalised(rows)
            gradient = (total + noise * torch.randn_like(total)) / (q * self.train.n)
            now = torch.tensor(rate * min(1.0, (1 - step / steps) / (1 - constant))).to(DEVICE)
            keep = torch.tensor(step / (step + averaging)).to(DEVICE)
            self.generator.descent.step(gradient, now, step=step)
            self.generator.average_denoiser(keep)
            if again is not None:
                again(step, rehearsal * float(now) / rate)
            for kept, values in averages.items():
                with torch.no_grad():
                    torch._foreach_lerp_(values, list(self.generator.denoised.parameters()), kept / (step + kept))
            if step + 1 in (steps // 4, steps // 2, 3 * steps // 4):
                losses[step + 1] = round(float(np.mean(self.judge.losses(self.generator.denoised_average)[1:9])), 5)
        torch.cuda.synchronize() if DEVICE.type == "cuda" else None
        seconds = time.perf_counter() - began
        network = self.generator.denoised_average
        self.kept[name] = [value.clone() for value in network.parameters()]
        result = self.judge.all(network, samplers or [{}])
        for kept, values in averages.items():
            self.put(network, values)
            result["found"][f"averaging {kept}"] = self.judge.all(network, (samplers or [{}])[:1])["found"]
        given = {"start": start, "noise": noise, "steps": steps, "batch": batch, "rate": rate, "constant": constant}
        given |= {"averaging": averaging, "way": way, "losses_on_the_way": losses}
        given |= {"rehearsal": rehearsal, "rehearsed": rehearsed} if rehearsal else {}
        self.tell(name, {"seconds": seconds, **given, **result})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=Path)
    parser.add_argument("jobs", type=Path)
    parser.add_argument("--data", type=Path, help="where the data is, if it is none of the sets known by name")
    parser.add_argument("--first", type=int, help="train on so many images and test on the rest")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--inception-weights", type=Path)
    parser.add_argument("--start", type=Path, help="the kernel stage of an earlier command")
    parser.add_argument("--tag", default="")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    search = Search(read_plan(options.plan), options)
    for job in json.loads(options.jobs.read_text()):
        getattr(search, job.pop("do"))(**job)


if __name__ == "__main__":
    main()
