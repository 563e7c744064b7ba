"""Preset `refined` over a few sites: R local steps of DP-SGD in a round, for several R from one shared start.

The plans come from `silos_refined_plans.py`, which needs dp-accounting; this does not. GSWGAN_DATA says where the data
lies, GSWGAN_COMMIT which commit this is. A command that was interrupted (`timeout -s INT 540 ...`) goes on when it is
given again:

    python benchmarks/silos_refined.py plans/silos-mnist-5-kernel.json --device cuda --keep runs \\
        --inception-weights FILE --out benchmarks/results
    python benchmarks/silos_refined.py plans/silos-mnist-5.json --local 1 10 450 --device cuda --keep runs \\
        --inception-weights FILE --out benchmarks/results

The first is the kernel's round with the whole budget. The second measures what comes before the records are looked at
again (the generator of the kernel's round at its part of the budget, and the pre-trained denoiser), and then every
number of local steps. What is tested on: the training images that the plan leaves out, or the test set where it leaves
out none. `--farther 1` goes as far as each site's learning rate says; without it a step goes farther, by the root of
the sites (critics/refined/sites.py). `--classes-per-site 4`, as the plan was made with, gives a site some classes only.

Every site has its own records, key, coins, noise and ledger; they take their turns on one device. MNIST is public and
the split is made up, so nothing here is a statement about real sites.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import gswgan
from gswgan.critics.kernel.embedding import Embedding, record_blocks
from gswgan.critics.kernel.features import RandomFeatures, products
from gswgan.critics.refined.critic import RefinedStart
from gswgan.critics.refined.sites import ServerAverage, SiteSteps, farther, rounds_of
from gswgan.critics.refined.steps import DPSGD
from gswgan.data import ImageData
from gswgan.evaluation import inception as inception_module
from gswgan.evaluation.classifiers import accuracy
from gswgan.evaluation.frechet import Moments, frechet_distance
from gswgan.evaluation.inception import image_moments, load_inception, reference_moments
from gswgan.evaluation.references import cache_folder, data_checksum
from gswgan.generators import GeneratorSettings
from gswgan.generators.sampling import balanced_labels, grid_png, latent_codes
from gswgan.generators.scaled_descent import put_weights, weights_of
from gswgan.methods import read_plan
from gswgan.methods.refined import PlannedRefined
from gswgan.plan.plan import Plan
from gswgan.plan.settings import pick_device
from gswgan.privacy import GaussianMechanism, Ledger, Streams
from gswgan.privacy.events import tally
from gswgan.privacy.randomness import BatchStreams, create_key, load_key
from gswgan.run.checkpoint import Checkpoint
from gswgan.run.loop import make_generator, train
from record import record
from silos import places
from train_plan import faster, part

DRAWN_TOGETHER = 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--classes-per-site", type=int)
    parser.add_argument("--local", type=int, nargs="*", default=[], help="local steps in a round: each is a run")
    parser.add_argument("--farther", type=float)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--images", type=int, help="to measure; without it, as many as the sites hold")
    parser.add_argument("--inception-weights", type=Path, help="without it, no FID but a distance of pixels")
    parser.add_argument("--keep", type=Path, default=Path("runs"), help="the start and unfinished runs")
    parser.add_argument("--out", type=Path, default=Path("results"))
    options = parser.parse_args()
    work = Work(read_plan(options.plan), options)
    work.start()
    for local in options.local:
        work.refine(local)


class Judge:
    """What images are worth: accuracy of a CNN that learns from them, and their distance to real ones."""

    def __init__(self, whole: ImageData, test: ImageData, device: torch.device, weights: Path | None) -> None:
        self.test, self.device = test, device
        inception_module.full_precision = faster
        self.inception = None if weights is None else load_inception(weights, device)
        if self.inception is None:
            self.real = Moments()
            self.real.update(whole.images.reshape(whole.n, -1) / 255)
        else:
            folder = cache_folder(whole.name, data_checksum(whole), None)
            self.real = reference_moments(whole.images, self.inception, folder)

    def measure(self, images: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
        found: dict[str, Any] = {"images": len(images)}
        found["cnn_accuracy"] = accuracy(
            "cnn", images, labels, self.test.images, np.asarray(self.test.labels), classes=self.test.classes,
            device=self.device,
        )  # fmt: skip
        if self.inception is None:
            moments = Moments()
            moments.update(images.reshape(len(images), -1) / 255)
            return found | {"frechet_distance_of_pixels": frechet_distance(self.real, moments)}
        return found | {"fid": frechet_distance(self.real, image_moments(images, self.inception)), "fid_tf32": True}


class Work:
    """A plan's sites on one device."""

    def __init__(self, plan: Plan, options: argparse.Namespace) -> None:
        self.plan, self.options, self.device = plan, options, pick_device(options.device)
        self.name, silos = options.plan.stem, plan.facts.silos
        assert silos is not None
        whole, count = self.load(), plan.facts.records
        self.held_out = count < whole.n
        test = part(whole, slice(count, None)) if self.held_out else self.load(split="test")
        data = part(whole, slice(count))
        where = places(data, len(silos.sites), options.classes_per_site)
        self.sites = {site.name: part(data, where == number) for number, site in enumerate(silos.sites)}
        self.sizes = {name: own.n for name, own in self.sites.items()}
        if self.sizes != {site.name: site.records for site in silos.sites}:
            raise SystemExit(f"the plan has other sizes than {self.sizes}: pass --classes-per-site as when it was made")
        self.place = options.keep / self.name
        self.place.mkdir(parents=True, exist_ok=True)
        self.judge = Judge(whole, test, self.device, options.inception_weights)
        self.generator: Any = make_generator(plan, self.device)

    def load(self, **split: str) -> ImageData:
        return gswgan.load_data(self.plan.facts.data, image_size=self.plan.facts.image_size, **split)

    def secret_side(self, name: str, folder: Path) -> tuple[Ledger, Streams]:
        """A site's ledger and key."""
        place, context = folder / name, self.plan.digest()
        place.mkdir(parents=True, exist_ok=True)
        key = place / "key.json"
        streams = load_key(key, context) if key.exists() else create_key(key, context)
        journal = place / "journal.jsonl"
        return Ledger(place / "ledger.jsonl", observer="server", context=context, journal=journal), streams

    def start(self) -> None:
        """The kernel's round, its generator and the pre-training, and what they are worth. Done once and kept."""
        began, embedding = time.perf_counter(), self.place / "embedding.safetensors"
        if not embedding.exists():
            self.kernel_round(embedding)
        settings = self.plan.critic
        refined = isinstance(settings, PlannedRefined)
        made = RefinedStart(**settings.start_on(self.plan, embedding, self.device)) if refined else None
        critic = made or settings.reuse(self.plan, embedding, self.device)
        critic.prepare(None)
        steps = critic.steps if isinstance(critic, RefinedStart) else self.plan.training.steps
        saved = Checkpoint(self.place / "start.safetensors", self.plan.digest())
        done, parts = saved.load() or (0, {})
        if parts:
            self.generator.load_state(parts["generator"])
            critic.load_state(parts["critic"])

        def save(step: int) -> bool:
            if step == steps or saved.is_due():
                if step == steps and isinstance(critic, RefinedStart):
                    critic.fit(self.generator)
                saved.save(step, {"generator": self.generator.state(), "critic": critic.state()})
            return step == steps

        if done < steps:
            train(self.plan, critic, self.generator, start=done, after_step=save)
        self.critic, seconds = critic, time.perf_counter() - began
        if not refined:
            if not self.is_told("kernel"):
                found = self.drawn(self.generator.released_network(), self.plan.generator)
                self.tell("kernel", {"seconds": seconds, **self.judge.measure(*found)}, found)
            return
        if not self.is_told("start"):
            found = self.drawn(self.generator.first_network(), settings.start)
            self.tell("start", {"seconds": seconds, **self.judge.measure(*found)}, found)
        if not self.is_told("pretrained"):
            found = self.drawn(self.generator.denoised_average, self.plan.generator)
            self.tell("pretrained", self.judge.measure(*found), found)

    @products(tf32=False)
    def kernel_round(self, path: Path) -> None:
        """Every site's sums with its own noise, added up."""
        plan, facts = self.plan, self.plan.facts
        settings, labelled = plan.critic, facts.labelled
        refined = isinstance(settings, PlannedRefined)
        bound = settings.contribution(labelled) if refined else plan.sums.contribution
        event = settings.event(labelled, plan.sums.neighbours) if refined else plan.sums.event
        features = RandomFeatures(settings.kernel_settings, facts.channels, facts.image_size, self.device)
        shape, answers = {"slots": facts.classes, "width": features.width}, []
        for name, data in self.sites.items():
            ledger, secret = self.secret_side(name, self.place / "sites")
            mechanism = GaussianMechanism(contribution=bound, event=event, ledger=ledger, streams=secret)
            answers.append(mechanism.answer("embedding", record_blocks(data, features), **shape))
        sums, counts = (torch.from_numpy(sum(getattr(one, what) for one in answers)) for what in ("sums", "counts"))
        noise = mechanism.noise_std * math.sqrt(len(answers))
        Embedding(sums=sums, counts=counts, noise_std=noise, count_noise_std=noise / bound.clip_norm).save(path)

    def refine(self, local: int) -> None:
        """All rounds with so many local steps, from the shared start. Each site goes on with a copy of its ledger."""
        far = farther(self.sizes) if self.options.farther is None else self.options.farther
        name, releases = f"local-{local}-farther-{far:.3g}", self.plan.sums.releases
        if self.is_told(name):
            return
        place, generator, privacy = self.place / name, self.generator, self.plan.sums
        if not place.exists():
            part_of_it = place.with_suffix(".part")
            shutil.rmtree(part_of_it, ignore_errors=True)
            shutil.copytree(self.place / "sites", part_of_it).rename(place)
        began, found = time.perf_counter(), Checkpoint(self.place / "start.safetensors", self.plan.digest()).load()
        assert found is not None
        generator.load_state(found[1]["generator"])
        dp_sgd = DPSGD(settings=self.plan.critic, optimizer=self.plan.optimizer, releases=releases)
        averaged = weights_of(generator.denoised_average)
        server = ServerAverage(dp_sgd, self.sizes, weights_of(generator.denoised), averaged)
        gradients, sites, ledgers = self.critic.gradients(generator), {}, []
        for site, data in self.sites.items():
            ledger, secret = self.secret_side(site, place)
            mechanism = GaussianMechanism(
                contribution=privacy.contribution, event=privacy.event, ledger=ledger, streams=secret
            )
            sites[site] = SiteSteps(
                dp_sgd, data, mechanism, BatchStreams(secret), network=generator.denoised,
                preconditioner=generator.preconditioner, gradients=gradients, farther=far,
            )  # fmt: skip
            ledgers.append(ledger)
        rounds = rounds_of(releases, local)
        before = run_rounds(sites, server, rounds, Checkpoint(place / "rounds.safetensors", self.plan.digest()))
        seconds = before + time.perf_counter() - began
        assert all(tally(ledger.total()) == tally(self.plan.total()) for ledger in ledgers), "not what was planned"
        put_weights(generator.denoised_average, server.averaged)
        images = self.drawn(generator.denoised_average, self.plan.generator)
        given = {"local_steps": local, "rounds": len(rounds), "farther": far, "seconds": seconds}
        given["bytes_per_round_and_site"] = 2 * 4 * server.weights.numel()
        given["bytes_once_per_site"] = 4 * sum(value.numel() for value in generator.preconditioner.state().values())
        self.tell(name, {**given, **self.judge.measure(*images)}, images)
        shutil.rmtree(place)

    def drawn(self, network: nn.Module, settings: GeneratorSettings) -> tuple[np.ndarray, np.ndarray]:
        """Images uint8 [n, c, side, side] with balanced labels, the same codes for the same settings."""
        count, rng = self.options.images or self.plan.facts.records, np.random.default_rng(0)
        labels = balanced_labels(count, np.arange(self.plan.facts.classes), rng)
        images = []
        network.eval()
        with torch.no_grad(), faster():
            for some in labels.split(DRAWN_TOGETHER):
                codes = latent_codes(len(some), settings.latent, settings.latent_kind, rng)
                made = network(codes.to(self.device), some.to(self.device))
                images.append((made.float() * 255).round().to(torch.uint8).cpu())
        return torch.cat(images).numpy(), labels.numpy()

    def is_told(self, name: str) -> bool:
        return self.result(name).exists()

    def result(self, name: str) -> Path:
        return Path(self.options.out / f"{self.name}-{name}.json")

    def tell(
        self, name: str, result: dict[str, Any], images: tuple[np.ndarray, ...] = (), *, quietly: bool = False
    ) -> None:
        """Print it and write it down with the plan, what it promises, and a picture."""
        print(self.name, name, json.dumps(result), flush=True)
        tested = "training images that were held out" if self.held_out else "test set"
        facts = {"sizes": self.sizes, "classes_per_site": self.options.classes_per_site, "tested_on": tested}
        record(self.result(name), {"name": name, **result, **facts, "privacy": self.plan.cost.to_json(),
                                   "plan": self.plan.to_json()})  # fmt: skip
        rows = [np.flatnonzero(images[1] == label)[:10] for label in np.unique(images[1])]
        self.result(name).with_suffix(".png").write_bytes(grid_png(images[0][np.concatenate(rows)], 10, side=28))


def run_rounds(sites: dict[str, SiteSteps], server: ServerAverage, rounds: list[range], saved: Checkpoint) -> float:
    """The sites' turns in every round, from where an interrupted command stopped; the seconds that came before."""
    began, before, answers = time.perf_counter(), 0.0, dict[str, Tensor]()
    done, parts = saved.load() or (0, {})
    if parts:
        device = server.weights.device
        server.weights, server.averaged = (parts["server"][name].to(device) for name in ("weights", "averaged"))
        answers = {name: value.to(device) for name, value in parts.get("answers", {}).items()}
        before = float(parts["server"]["seconds"])
        for name, site in sites.items():
            site.descent.load_state(parts[name])
    turns = [(steps, name) for steps in rounds for name in sites]
    for turn, (steps, name) in enumerate(turns[done:], start=done + 1):
        answers[name] = sites[name].answer(server.weights, steps)
        if len(answers) == len(sites):
            server.take(answers, steps)
            answers = {}
        if saved.is_due():
            seconds = torch.tensor(before + time.perf_counter() - began)
            held = {"weights": server.weights, "averaged": server.averaged, "seconds": seconds}
            states = {name: site.descent.state() for name, site in sites.items()}
            saved.save(turn, {"server": held, "answers": answers, **states})
            print(f"step {steps.stop} at {name}: {float(seconds):.0f} s", flush=True)
    return before


if __name__ == "__main__":
    main()
