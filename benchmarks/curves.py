"""The paper's privacy-utility curves for the ensemble: IS and FID over epsilon, by iterations, by noise, by K.

    python benchmarks/curves.py --data mnist fashion-mnist --device cuda --out benchmarks/results/curves
    python benchmarks/curves.py --data mnist fashion-mnist --out benchmarks/results/curves --figures docs

A cell is one training of preset `ensemble-alone`, one seed (one of DP-SGD GAN stands beside it in the figures of the
gradients' norms); its JSON is its result. Cells that are there are not made again, so the command may be stopped and
given again. Plans are made where dp-accounting is (`--plans-only` stops after them) and may be carried to where it is
not. The kernel critic's points are the recorded runs of `train_plan.py`. MNIST and Fashion-MNIST are public, so the
figures may be published; on private data they may not.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from gswgan.data import load_data
from gswgan.evaluation import inception as inception_module
from gswgan.evaluation.frechet import frechet_distance
from gswgan.evaluation.inception import image_moments
from gswgan.evaluation.inception_score import inception_score
from gswgan.generators.generator import Generator
from gswgan.methods import make_plan, read_plan
from gswgan.plan.facts import Facts
from gswgan.plan.plan import Plan
from gswgan.plan.settings import pick_device
from gswgan.run.folder import RunFolder
from gswgan.run.loop import make_critic, make_generator, train
from record import record
from train_plan import Scorer, faster

RESULTS = Path(__file__).parent / "results"
TITLES = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST"}
LONG, SHORT = 1000, 300  # steps of the run over the iterations, and of all others
EPSILONS, CRITICS = (1.0, 3.0, 10.0), (250, 500, 1000, 1500)
IMAGES = 10_000


def cells(*, long: int, short: int) -> dict[str, dict[str, Any]]:
    """Name of a cell, and what its plan is asked for."""
    found: dict[str, dict[str, Any]] = {"iterations": {"epsilon": 10.0, "steps": long}}
    found |= {f"noise-{epsilon:g}": {"epsilon": epsilon, "steps": short} for epsilon in EPSILONS[:-1]}
    found |= {f"critics-{count}": {"epsilon": 10.0, "steps": short, "critics": count} for count in CRITICS}
    found["dp-sgd"] = {"epsilon": 10.0, "steps": long, "method": "dp-sgd-gan", "preset": None}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=list(TITLES), choices=list(TITLES))
    parser.add_argument("--only", nargs="*", help="the cells to make")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--steps", type=int, nargs=2, default=(LONG, SHORT), help="long and short runs")
    parser.add_argument("--plans-only", action="store_true")
    parser.add_argument("--inception-weights", type=Path)
    parser.add_argument("--tf32", action="store_true", help="faster features for the FID")
    parser.add_argument("--out", type=Path, required=True, help="folder for plans and results")
    parser.add_argument("--figures", type=Path, help="draw the figures into this folder, from the results")
    options = parser.parse_args()
    if options.figures is not None:
        for name in options.data:
            draw(name, options.out, options.figures)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    long, short = options.steps
    plans = {
        (name, cell): plan_of(options.out / f"plan-{name}-{cell}.json", name, request)
        for name in options.data
        for cell, request in cells(long=long, short=short).items()
        if not options.only or cell in options.only
    }
    if options.plans_only:
        return
    device = pick_device(options.device)
    if options.tf32:
        inception_module.full_precision = faster
    scorers: dict[str, Scorer] = {}
    for (name, cell), plan in plans.items():
        path = options.out / f"{name}-{cell}.json"
        if path.exists():
            print(f"{path.name} is there", flush=True)
            continue
        if name not in scorers:
            wanted = argparse.Namespace(only="all", first=None, inception_weights=options.inception_weights)
            scorers = {name: Scorer(name, plan.facts.classes, device, wanted)}
        record(path, {"data": name, "cell": cell, "plan": plan.to_json(), **trained(plan, cell, scorers[name], device)})


def plan_of(path: Path, name: str, request: dict[str, Any]) -> Plan:
    """The plan that is there, or a new one."""
    if not path.exists():
        facts = Facts.of(load_data(name))
        make_plan(facts, **{"preset": "ensemble-alone", "device": "cuda", **request}).save(path)
    return read_plan(path)


def trained(plan: Plan, cell: str, scorer: Scorer, device: torch.device) -> dict[str, Any]:
    """A whole training: a point for each step at which the plan states epsilon, and the norms of the gradients."""
    points: list[dict[str, float]] = []
    norms: list[dict[str, Any]] = []
    stated = dict(plan.curve or ()) if cell == "iterations" else {}
    stated[plan.training.steps] = plan.guarantee.epsilon if plan.guarantee is not None else float("nan")
    began = time.perf_counter()
    with TemporaryDirectory() as temporary:
        folder = RunFolder.create(Path(temporary) / "run", plan)
        generator = make_generator(plan, device)
        critic = make_critic(plan, folder, scorer.train, device)
        critic.prepare(scorer.train)

        def after_step(done: int) -> bool:
            if done % max(1, plan.training.steps // 50) == 0:
                norms.append({"step": done, **critic.metrics()})
            if done in stated:
                points.append({"step": done, "epsilon": stated[done], **scores(generator, scorer)})
                print(f"{plan.facts.data} {time.perf_counter() - began:.0f} s: {points[-1]}", flush=True)
            return False

        train(plan, critic, generator, after_step=after_step)
    return {"points": points, "gradients": norms, "images": IMAGES, "seconds": time.perf_counter() - began}


@torch.no_grad()
def scores(generator: Generator, scorer: Scorer) -> dict[str, float]:
    """IS and FID of the generator as it would be released now."""
    network, images = generator.released_network(), []
    for batch in range(IMAGES // 500):
        codes, labels = generator.latents(500, "curves", batch)
        images.append((network(codes, labels) * 255).round().to(torch.uint8).cpu().numpy())
    stacked = np.concatenate(images)
    assert scorer.inception is not None
    score, _ = inception_score(scorer.judge.probabilities(stacked))
    return {"inception_score": score, "fid": frechet_distance(scorer.real, image_moments(stacked, scorer.inception))}


def draw(name: str, folder: Path, figures: Path) -> None:
    """Figures 4 and A.2 of the paper (IS and FID) for the ensemble, and 2 and A.1 (norms) for both methods."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    found = {path.stem.removeprefix(f"{name}-"): json.loads(path.read_text()) for path in folder.glob(f"{name}-*.json")}
    kernel = [json.loads(path.read_text()) for path in sorted(RESULTS.glob(f"{name}-eps*-seed0-h200.json"))]
    kernel = sorted((run for run in kernel if "fid" in run), key=lambda run: run["privacy"]["epsilon"])
    figure, axes = plt.subplots(2, 3, figsize=(10, 5.4), layout="constrained", sharey="row")
    for row, (key, title) in enumerate((("inception_score", "IS"), ("fid", "FID"))):
        ends = {cell: run["points"][-1] for cell, run in found.items()}
        series = {
            "over the iterations": [(p["epsilon"], p[key]) for p in found.get("iterations", {"points": []})["points"]],
            "over the noise": [
                (ends[cell]["epsilon"], ends[cell][key])
                for cell in ("noise-1", "noise-3", "critics-1000")
                if cell in ends
            ],
            "over the number of critics": [
                (count, ends[f"critics-{count}"][key]) for count in CRITICS if f"critics-{count}" in ends
            ],
        }
        for axis, (where, points) in zip(axes[row], series.items(), strict=True):
            axis.plot(*zip(*points), "o-", color="#1f77b4", label="ensemble")
            if "number" not in where and kernel:
                some = [(run["privacy"]["epsilon"], run[key]) for run in kernel if run["privacy"]["epsilon"] >= 0.9]
                axis.plot(*zip(*some), "s", color="#ff7f0e", label="kernel, one run each")
            axis.set_title(where if row == 0 else "")
            axis.set_xlabel("critics, epsilon 10" if "number" in where else "epsilon")
            axis.set_yscale("log" if key == "fid" else "linear")
            axis.grid(alpha=0.3)
        axes[row][0].set_ylabel(title)
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    figure.suptitle(f"{TITLES[name]}, delta 1e-5, one record replaced, observer: the public")
    figures.mkdir(parents=True, exist_ok=True)
    figure.savefig(figures / f"curves-{name}.png", dpi=120)
    plt.close(figure)
    if "iterations" not in found:
        return
    figure, axes = plt.subplots(1, 4, figsize=(11, 2.8), layout="constrained")
    panels = [(cell, moment) for cell in ("dp-sgd", "iterations") if cell in found for moment in ("before", "after")]
    for axis, (cell, moment) in zip(axes, panels):
        rows = [row for row in found[cell]["gradients"] if "norm_before" in row]
        quantiles, steps = np.array([row[f"norm_{moment}"] for row in rows]), [row["step"] for row in rows]
        axis.fill_between(steps, quantiles[:, 1], quantiles[:, 5], alpha=0.25, color="#1f77b4", label="5 % to 95 %")
        axis.plot(steps, quantiles[:, 3], color="#1f77b4", label="median")
        axis.set_title(f"{'DP-SGD GAN' if cell == 'dp-sgd' else 'ensemble'}, {moment} clipping", fontsize="medium")
        axis.set_ylim(0, 1.08 * quantiles[:, 5].max())
        axis.set_xlabel("step")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("norm of what is clipped")
    axes[0].legend()
    figure.suptitle(f"{TITLES[name]}, both at epsilon 10, delta 1e-5, one record replaced, observer: the public")
    figure.savefig(figures / f"gradient-norms-{name}.png", dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    main()
