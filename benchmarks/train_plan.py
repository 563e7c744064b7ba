"""Run saved plans one after another: time, CNN accuracy on the real test set, FID and Inception Score of each.

    gswgan train --data mnist --device cuda --save-plan mnist-eps10.json
    python benchmarks/train_plan.py mnist-eps10.json --device cuda --out benchmarks/results

Each plan NAME.json leaves a picture and OUT/NAME+TAG.json, written when the rest is measured and again with the FID.
FID is that of as many synthetic images as there are training images, against these; the Inception Score is by a judge
trained on the training set; `--only fid` leaves it out, `--only cnn` both. MNIST and Fashion-MNIST are public, so the
figures may be published; on private data they may not.

`--data FOLDER` is where the data of the plans lies if it is none of the sets known by name: files of a training and a
test split (train*.parquet and test*.parquet, or train.npz and test.npz), read as `gswgan train --data FOLDER` does.

A federated plan (`make_federated_plan`, `federated_plans.py`) runs here as well: all clients' vectors, or critics, are
computed in one batch, which is the same mathematics without the network, and the result says so and has what each
observer is promised (of Algorithm 2: from NAME.observers.json, since it takes an accountant).

`--runs DIR` keeps the run folders: a command that was interrupted (`timeout -s INT 540 ...`)
goes on when it is given again.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

import gswgan
from gswgan.critics import Critic
from gswgan.critics.kernel.features import KernelSettings
from gswgan.data import ImageData
from gswgan.data.public import PublicImages, read_public
from gswgan.evaluation import inception as inception_module
from gswgan.evaluation.classifiers import accuracy
from gswgan.evaluation.frechet import frechet_distance
from gswgan.evaluation.inception import Inception, image_moments, load_inception, reference_moments
from gswgan.evaluation.inception_score import inception_score
from gswgan.evaluation.reference_classifier import cached_reference_classifier
from gswgan.evaluation.references import cache_folder, data_checksum
from gswgan.federated.statement import observers
from gswgan.generators.sampling import grid_png
from gswgan.methods import read_plan
from gswgan.plan.context import RunContext
from gswgan.plan.plan import Plan
from gswgan.plan.settings import pick_device
from gswgan.run.folder import RunFolder
from gswgan.run.loop import run
from record import record

IN_ONE_BATCH = "all clients' vectors were computed in one batch: the same mathematics, without the network"
TELL_EVERY = 60.0  # seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plans", type=Path, nargs="+")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--data", type=Path, help="folder of the data; without it, the set that the plan names")
    parser.add_argument("--group-by", type=Path, help="table of the persons, for plans by person")
    parser.add_argument("--public", type=Path, help="public images, for plans that state some")
    parser.add_argument("--images", type=int, help="synthetic images to measure; without it, as many as there are real")
    parser.add_argument("--only", choices=["time", "cnn", "fid", "all"], default="all", help="what to measure")
    parser.add_argument("--first", type=int, help="train on so many images and test on the rest: for choosing")
    parser.add_argument("--inception-weights", type=Path)
    parser.add_argument("--tf32", action="store_true", help="faster features for the FID (see the result's fid_tf32)")
    parser.add_argument(
        "--resnet", action="store_true", help="also a ResNet-18, and what both classifiers reach with real images"
    )
    parser.add_argument("--tag", default="", help="ending of the results' names")
    parser.add_argument("--runs", type=Path, help="keep run folders here")
    parser.add_argument("--out", type=Path, help="folder for the results")
    options = parser.parse_args()

    device = pick_device(options.device)
    if options.tf32:
        inception_module.full_precision = faster
    scorers: dict[str, Scorer] = {}
    with ThreadPoolExecutor(1) as pool:
        waiting: list[Future[None]] = []
        for path in options.plans:
            plan = read_plan(path)
            name, classes = plan.facts.data, plan.facts.classes
            if name not in scorers:
                scorers[name] = Scorer(name, classes, device, options)
            result, distance = scorers[name].measure(plan, path)
            out = None if options.out is None else options.out / f"{path.stem}{options.tag}.json"
            record(out, result)
            if distance is not None:
                waiting.append(pool.submit(finish, out, result, distance))
    for finished in waiting:
        finished.result()  # raises what went wrong with a FID


@contextmanager
def faster() -> Iterator[None]:
    """TF32 for what is done within, and for nothing else."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


def finish(out: Path | None, result: dict[str, Any], distance: Callable[[], float]) -> None:
    """Add the FID to a result that is written already (its linear algebra runs beside the next training)."""
    result["fid"] = distance()
    record(out, result)
    print(f"{result['name']}: FID {result['fid']:.2f}", flush=True)


class Scorer:
    """A data set and what is measured on it."""

    def __init__(self, name: str, classes: int, device: torch.device, options: argparse.Namespace) -> None:
        self.device, self.options = device, options
        place = name if options.data is None else options.data
        whole = gswgan.load_data(place, classes=classes, group_by=options.group_by)
        self.test = gswgan.load_data(place, split="test", classes=classes)
        self.train = whole
        if options.first is not None:
            self.train, self.test = part(whole, slice(options.first)), part(whole, slice(options.first, None))
        self.on_real: dict[str, float] = {}
        if options.resnet and options.only != "time":
            self.on_real = {f"{name}_on_real": self.classified(name, self.train) for name in ("cnn", "resnet")}
            print(name, json.dumps(self.on_real), flush=True)
        self.inception: Inception | None = None
        if options.only in ("fid", "all"):
            folder = cache_folder(whole.name, data_checksum(whole), None)
            self.inception = load_inception(options.inception_weights, device)
            self.real = reference_moments(whole.images, self.inception, folder)
            self.judge = cached_reference_classifier(whole, folder, device=device) if options.only == "all" else None

    def public_images(self, plan: Plan) -> PublicImages | None:
        """Those that the plan states."""
        if plan.public is None:
            return None
        if self.options.public is None:
            raise SystemExit("the plan states public images: pass --public")
        return read_public(self.options.public, image_size=plan.facts.image_size, channels=plan.facts.channels)

    def classified(self, name: str, data: ImageData) -> float:
        """Accuracy on the test set of the named classifier, trained on these images."""
        return accuracy(
            name, data.images, np.asarray(data.labels), self.test.images, np.asarray(self.test.labels),
            classes=self.test.classes, device=self.device,
        )  # fmt: skip

    def measure(self, plan: Plan, path: Path) -> tuple[dict[str, Any], Callable[[], float] | None]:
        """Everything but the FID, and what computes the FID."""
        name, facts = path.stem, dataclasses.replace(plan.facts, records=self.train.n)
        plan = dataclasses.replace(plan, facts=facts)
        times, told = [time.perf_counter()], time.perf_counter()

        def progress(done: int) -> None:
            nonlocal told
            if done % 100 == 0:
                if self.device.type == "cuda":
                    torch.cuda.synchronize()
                times.append(time.perf_counter())
                if times[-1] > told + TELL_EVERY:
                    told = times[-1]
                    print(f"{name}: step {done} of {plan.training.steps}, {told - times[0]:.0f} s", flush=True)

        kept = self.options.runs
        with TemporaryDirectory() if kept is None else nullcontext(str(kept / name)) as place:
            folder = RunFolder(Path(place) / "run")
            if begun_before := folder.model.exists():
                print(f"{name}: going on", flush=True)
            else:
                folder = RunFolder.create(Path(place) / "run", plan, public=self.public_images(plan))
            if folder.plan() != plan:
                raise SystemExit(f"{folder.root} is of another plan: remove it")
            if not folder.is_finished and not run(
                folder, self.train, device=self.device, progress=progress, note=lambda text: print(text, flush=True),
                answerer=functools.partial(here, plan) if plan.privacy and plan.privacy.observer == "server" else None,
            ):  # fmt: skip
                raise SystemExit(f"{name}: stopped; give the command again")
            seconds = time.perf_counter() - times[0]
            model = gswgan.load(folder.root, device=str(self.device))
            steps = sorted((after - before) / 100 for before, after in itertools.pairwise(times[1:]))
            result: dict[str, Any] = {
                "name": name,
                "seconds": None if begun_before else seconds,
                "steps": plan.training.steps,
            }
            result["median_step_seconds"] = steps[len(steps) // 2] if steps else None
            result |= {"privacy": None if plan.void else model.privacy.to_json(), "plan": plan.to_json()}
            if is_of_clients(plan):
                result |= {"clients": IN_ONE_BATCH, "observers": promised(plan, path)}
            line = f"{name}: {seconds:.1f} s, {1e3 * (result['median_step_seconds'] or 0):.2f} ms a step"
            if self.options.only == "time":
                print(line, flush=True)
                return result, None
            images, labels = model.sample(self.options.images or self.train.n, seed=0)
        stacked = images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
        if self.options.out is not None:
            self.options.out.mkdir(parents=True, exist_ok=True)
            rows = [np.flatnonzero(labels == label)[:10] for label in np.unique(labels)]  # one for each class
            picture = grid_png(stacked[np.concatenate(rows)], 10, side=28)
            (self.options.out / f"{name}.png").write_bytes(picture)
        result["tested_on"] = "test set" if self.options.first is None else "training images that were held out"
        made = dataclasses.replace(self.test, images=stacked, labels=labels)
        for classifier in ("cnn", "resnet") if self.options.resnet else ("cnn",):
            result[f"{classifier}_accuracy"] = self.classified(classifier, made)
            line += f", {classifier} {result[f'{classifier}_accuracy']:.4f}"
        result |= self.on_real
        if self.inception is None:
            print(line, flush=True)
            return result, None
        if self.judge is not None:
            result["inception_score"], _ = inception_score(self.judge.probabilities(stacked))
            result["judge_accuracy"] = self.judge.accuracy(stacked, labels)
            line += f", IS {result['inception_score']:.2f}, judge {result['judge_accuracy']:.4f}"
        moments = image_moments(stacked, self.inception)
        result |= {"fid_images": len(stacked), "fid_tf32": self.options.tf32}
        print(line, flush=True)
        return result, functools.partial(frechet_distance, self.real, moments)


def here(plan: Plan, context: RunContext) -> Critic:
    """The clients' critics, where the plan has each answer for itself: one is drawn and adds its own noise."""
    assert plan.sums.sampling == "one", "with noise of everybody's own this would be another run"
    return plan.critic.make(plan, context)


def is_of_clients(plan: Plan) -> bool:
    """Whether each person is a client; a plan by person at one site has the promises of any training."""
    privacy = plan.privacy
    zeroed_or_local = privacy is None or privacy.neighbours == "zeroed" or privacy.observer == "server"
    return plan.facts.persons is not None and zeroed_or_local


def promised(plan: Plan, path: Path) -> dict[str, Any]:
    """What each observer is promised."""
    if isinstance(plan.critic, KernelSettings) and plan.privacy is not None:
        return observers(plan, [plan.privacy.event])
    return dict(json.loads(path.with_suffix(".observers.json").read_text()))


def part(data: ImageData, rows: slice) -> ImageData:
    return ImageData(
        name=data.name, images=data.images[rows], labels=None if data.labels is None else data.labels[rows],
        classes=data.classes, class_names=data.class_names,
    )  # fmt: skip


if __name__ == "__main__":
    main()
