"""The search for preset `refined`, on training images that are held out: ways of DP-SGD from one start.

    python benchmarks/refined_search.py plans --data mnist --variants k8,k16 --out plans
    python benchmarks/refined_search.py run plans/*.json --first 50000 --inception-weights FILE --out results

`plans` needs an accountant and no GPU, `run` the other way round. Variants with the same start (kernel, pre-training)
share it, so a variant here is no run that could be published: the kernel's release is in another ledger. Figures that
count come from `gswgan train` or train_plan.py. The noise is calibrated to the whole run, the kernel's part included.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import shutil
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import torch

import gswgan
from gswgan.data import ImageData
from gswgan.evaluation import inception as inception_module
from gswgan.evaluation.classifiers import cnn_accuracy
from gswgan.evaluation.frechet import Moments, frechet_distance
from gswgan.evaluation.inception import image_moments, load_inception
from gswgan.generators.denoised import DenoisedSampler
from gswgan.generators.denoiser import loss_of_draws
from gswgan.generators.refined import RefinedGenerator
from gswgan.generators.sampling import draw_images, save_grid
from gswgan.methods import make_plan, read_plan, refined
from gswgan.plan.facts import Facts
from gswgan.plan.plan import Plan
from gswgan.run.folder import RunFolder
from gswgan.run.loop import make_critic, make_generator, train
from record import record
from train_plan import faster, part

AVERAGES = (0.9, 0.99)
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

VARIANTS: dict[str, dict[str, Any]] = {
    "usual": {},
    "k4": {"draws": 4}, "k16": {"draws": 16}, "k32": {"draws": 32},
    "t300": {"releases": 300}, "t1000": {"releases": 1000}, "t1500": {"releases": 1500},
    "rate-2.5e-4": {"learning_rate": 2.5e-4}, "rate-1e-3": {"learning_rate": 1e-3},
    "rate-2e-3": {"learning_rate": 2e-3},
    "share-0.08": {"share": 0.08}, "share-0.3": {"share": 0.3},
    "pretraining-15000": {"pretraining": 15_000},
    "batch-4096": {"batch": 4096},
    "width-48": {"width": 48},
}  # fmt: skip
"""What differs from the preset's recipe."""


def make_plans(options: argparse.Namespace) -> None:
    """Variants as saved plans, the noise calibrated."""
    usual, share = refined.sizes, refined.SHARE
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.variants.split(","):
        changes: dict[str, Any] = {}
        for one in name.split("+"):
            changes |= VARIANTS.get(one) or dict(json.loads(one)) if one != "usual" else {}
        if options.changes:
            changes |= json.loads(options.changes)
        refined.SHARE = changes.pop("share", share)
        refined.sizes = lambda facts, device, changes=changes: dataclasses.replace(usual(facts, device), **changes)
        facts = Facts.of(gswgan.load_data(options.data))
        plan = make_plan(facts, preset="refined", epsilon=options.epsilon, device="cuda", seed=options.seed)
        plan.save(options.out / f"{options.data}-{options.tag}{name}.json")
        assert plan.privacy is not None
        print(f"{name}: noise {plan.privacy.noise_std:.4g}, kernel's {plan.critic.noise_std:.4g}", flush=True)
        refined.sizes, refined.SHARE = usual, share


class Judge:
    """A data set and what is measured on it."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self.options = options
        whole = gswgan.load_data(name, classes=10)
        self.train, self.test = part(whole, slice(options.first)), part(whole, slice(options.first, None))
        if options.first is None:
            self.test = gswgan.load_data(name, split="test", classes=10)
        inception_module._full_precision = faster
        self.inception = load_inception(options.inception_weights, DEVICE)
        self.real = image_moments(whole.images, self.inception)
        self.pool, self.held = ThreadPoolExecutor(2), _held_out(self.test)

    def loss(self, sampler: DenoisedSampler) -> float:
        """The denoiser's loss on images that nobody trained on."""
        with torch.no_grad():
            found = [
                loss_of_draws(sampler.denoiser, *chunk)
                for chunk in zip(*(held.split(1000) for held in self.held), strict=True)
            ]
        return float(torch.cat(found).mean())

    def images(self, sampler: DenoisedSampler, plan: Plan, count: int) -> tuple[np.ndarray, np.ndarray]:
        labels = np.resize(np.arange(plan.facts.classes), count)
        return draw_images(sampler, plan.generator, labels, np.random.default_rng(0)), labels

    def fid(self, images: np.ndarray) -> Future[float]:
        made = image_moments(images, self.inception)
        return self.pool.submit(_distance, self.real, made)

    def accuracy(self, images: np.ndarray, labels: np.ndarray) -> float:
        return cnn_accuracy(
            images, labels, self.test.images, self.test.labels, classes=self.test.classes, device=str(DEVICE)
        )


def _held_out(test: ImageData) -> tuple[torch.Tensor, ...]:
    rng = torch.Generator().manual_seed(0)
    images = torch.from_numpy(test.images[:4000]).permute(0, 2, 3, 1).float() / 127.5 - 1
    noise = torch.randn(images.shape, generator=rng)
    levels = (-0.8 + 1.2 * torch.randn(len(images), generator=rng)).exp()
    assert test.labels is not None
    labels = torch.from_numpy(test.labels[: len(images)])
    return tuple(value.to(DEVICE) for value in (images, noise, levels, labels))


def _distance(real: Moments, made: Moments) -> float:
    return frechet_distance(real, made)


class Averages:
    """Other averages of the denoiser's weights than the plan's, beside it."""

    def __init__(self, generator: RefinedGenerator) -> None:
        self.generator = generator
        self.kept = {keep: [value.clone() for value in generator.denoised.parameters()] for keep in AVERAGES}
        self.done = 0

    @torch.no_grad()
    def update(self) -> None:
        now = list(self.generator.denoised.parameters())
        for keep, ours in self.kept.items():
            share = 1 - min(keep, self.done / (self.done + 10))
            for mine, current in zip(ours, now):
                mine.lerp_(current, share)
        self.done += 1


def start_key(plan: Plan) -> str:
    """What the state after pre-training depends on."""
    kept = {name: value for name, value in vars(plan.critic).items() if name != "draws"}
    return repr((plan.facts, plan.generator, plan.seed, kept, plan.training.batch_size))


def run(options: argparse.Namespace) -> None:
    plans = {path.stem: read_plan(path) for path in options.plans}
    judges: dict[str, Judge] = {}
    for _, group in itertools.groupby(plans.items(), key=lambda item: start_key(item[1])):
        found = list(group)
        plan = found[0][1]
        if plan.facts.data not in judges:
            began = time.perf_counter()
            judges[plan.facts.data] = Judge(plan.facts.data, options)
            print(f"real moments: {time.perf_counter() - began:.1f} s", flush=True)
        judge = judges[plan.facts.data]
        start = Start(plan, judge)
        for name, plan in found:
            result = refine(name, plan, judge, start)
            record(None if options.out is None else options.out / f"search-{name}{options.tag}.json", result)


class Start:
    """Kernel stage and pre-training, once for several plans."""

    def __init__(self, plan: Plan, judge: Judge) -> None:
        plan = dataclasses.replace(plan, facts=dataclasses.replace(plan.facts, records=judge.train.n))
        self.folder = RunFolder.create(Path(mkdtemp()) / "run", plan)
        generator = make_generator(plan, DEVICE)
        assert isinstance(generator, RefinedGenerator)
        critic = make_critic(plan, self.folder, judge.train, DEVICE)
        critic.prepare(judge.train)
        self.stop = plan.critic.steps + plan.critic.pretraining
        marks = {0: time.perf_counter()}

        def after(done: int) -> bool:
            if done in (plan.critic.steps, self.stop):
                torch.cuda.synchronize() if DEVICE.type == "cuda" else None
                marks[done] = time.perf_counter()
            return done == self.stop

        train(plan, critic, generator, after_step=after)
        times = list(marks.values())
        self.figures = {"kernel_seconds": times[1] - times[0], "pretraining_seconds": times[2] - times[1]}
        self.state = {name: value.clone() for name, value in generator.state().items()}
        self.critic = {name: value.clone() for name, value in critic.state().items()}
        count = judge.options.start_images
        if count:
            made = generator.samples(count)[0].float().mul(255).round().byte().cpu().numpy()
            fids = {"kernel": judge.fid(made)}
            network = generator.released_network()
            assert isinstance(network, DenoisedSampler)
            self.figures["pretrained_loss"] = judge.loss(network)
            fids["pretrained"] = judge.fid(judge.images(network, plan, count)[0])
            self.figures |= {f"{name}_fid": value.result() for name, value in fids.items()}
        print({name: round(value, 4) for name, value in self.figures.items()}, flush=True)


def refine(name: str, plan: Plan, judge: Judge, start: Start) -> dict[str, Any]:
    """DP-SGD from the start, and what comes of it."""
    saved = plan
    plan = dataclasses.replace(plan, facts=dataclasses.replace(plan.facts, records=judge.train.n))
    folder = RunFolder.create(Path(mkdtemp()) / "run", plan)
    shutil.copy(start.folder.embedding, folder.embedding)
    generator = make_generator(plan, DEVICE)
    assert isinstance(generator, RefinedGenerator)
    critic = make_critic(plan, folder, judge.train, DEVICE)
    critic.prepare(judge.train, resumed=True)
    generator.load_state({key: value.cpu() if key == "label_set" else value for key, value in start.state.items()})
    critic.load_state(start.critic)
    averages, began, losses = Averages(generator), time.perf_counter(), {}
    every = max(1, plan.privacy.releases // 4)  # type: ignore[union-attr]
    paused = 0.0

    def after(done: int) -> bool:
        nonlocal paused
        averages.update()
        if (done - start.stop) % every == 0:
            before = time.perf_counter()
            losses[done - start.stop] = judge.loss(generator.denoised_average)
            paused += time.perf_counter() - before
        return False

    train(plan, critic, generator, start=start.stop, after_step=after)
    seconds = time.perf_counter() - began - paused
    result: dict[str, Any] = {"name": name, "seconds": seconds, "losses": losses, **start.figures, **critic.metrics()}
    network = generator.released_network()
    assert isinstance(network, DenoisedSampler)
    count, fids = judge.options.images, {}
    images, labels = judge.images(network, plan, count)
    fids["plan"] = judge.fid(images)
    result["cnn_accuracy"] = judge.accuracy(images, labels) if judge.options.cnn else None
    if judge.options.out is not None:
        judge.options.out.mkdir(parents=True, exist_ok=True)
        save_grid(images[np.argsort(labels[:120], kind="stable")], 12, judge.options.out / f"{name}.png", side=28)
    for keep, values in averages.kept.items() if judge.options.averages else ():
        with torch.no_grad():
            for mine, other in zip(network.parameters(), values):
                mine.copy_(other)
        fids[f"average {keep}"] = judge.fid(judge.images(network, plan, count)[0])
    for evaluations in judge.options.evaluations:
        for mine, other in zip(network.parameters(), generator.denoised_average.parameters()):
            mine.data.copy_(other)
        network.evaluations = evaluations
        fids[f"evaluations {evaluations}"] = judge.fid(judge.images(network, plan, count)[0])
    result["fid"] = {key: value.result() for key, value in fids.items()}
    result |= {"fid_images": count, "fid_tf32": True, "plan": saved.to_json()}
    result["tested_on"] = "training images that were held out" if judge.options.first else "test set"
    shown: Mapping[str, Any] = {key: value for key, value in result.items() if key != "plan"}
    print(json.dumps(shown), flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    plans = verbs.add_parser("plans")
    plans.set_defaults(work=make_plans)
    plans.add_argument("--data", required=True)
    plans.add_argument("--variants", default="usual", help="names of VARIANTS, several joined by +")
    plans.add_argument("--changes", help="more changes for all, as JSON")
    plans.add_argument("--epsilon", type=float, default=10.0)
    plans.add_argument("--seed", type=int, default=0)
    plans.add_argument("--tag", default="")
    plans.add_argument("--out", type=Path, required=True)
    runs = verbs.add_parser("run")
    runs.set_defaults(work=run)
    runs.add_argument("plans", type=Path, nargs="+")
    runs.add_argument("--first", type=int, help="train on so many images and test on the rest")
    runs.add_argument("--images", type=int, default=20_000)
    runs.add_argument("--start-images", type=int, default=0, help="judge the start with so many")
    runs.add_argument("--averages", action="store_true", help="judge other averages too")
    runs.add_argument("--evaluations", type=int, nargs="*", default=[], help="judge with so many evaluations too")
    runs.add_argument("--cnn", action="store_true")
    runs.add_argument("--inception-weights", type=Path)
    runs.add_argument("--tag", default="")
    runs.add_argument("--out", type=Path)
    options = parser.parse_args()
    options.work(options)


if __name__ == "__main__":
    main()
