"""Small finished runs for the report's tests, made once; whoever changes one takes a copy."""

from __future__ import annotations

import atexit
import dataclasses
import functools
import hashlib
import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch
from works import small_refined

from conftest import tiny_images, tiny_plan
from gswgan.data import ImageData, make_image_data
from gswgan.evaluation.result import Results
from gswgan.methods import make_plan
from gswgan.plan.facts import Facts
from gswgan.plan.make import epsilon_curve
from gswgan.run.folder import RunFolder
from gswgan.run.loop import run

EVIL = ("<script>alert(1)</script>", '"><img src=x onerror=alert(2)>', "--> $a_b$ &amp; '")
CANARY = "canary-7f3a"
CLASSIFIERS = ("cnn", "gaussian_nb", "logistic_regression")
NORMS = {"norm_before": [0.0, 0.1, 0.5, 1.2, 2.0, 5.0, 40.0], "norm_after": [0.0, 0.1, 0.5, 1.0, 1.0, 1.0, 1.0]}


@functools.cache
def _place() -> Path:
    place = Path(tempfile.mkdtemp(prefix="gswgan-report-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return place


def data_of(kind: str) -> ImageData:
    """What the run of this kind was trained on."""
    stripes = tiny_images(300)
    if kind == "evil":
        return dataclasses.replace(stripes, class_names=EVIL, name=EVIL[0])
    if kind == "unlabelled":
        return make_image_data(stripes.images[:, 0], name="plain")
    if kind == "persons":
        return make_image_data(
            stripes.images[:, 0], stripes.labels, classes=3, persons=np.arange(300) // 3, name="people"
        )
    if kind == "colour":
        rng = np.random.default_rng(0)
        return make_image_data(
            rng.integers(0, 256, (60, 32, 32, 3), dtype=np.uint8), np.arange(60) % 2, classes=2, name="hues"
        )
    return stripes


OPTIONS: dict[str, dict[str, object]] = {
    "kernel": {"epsilon": 10.0}, "private": {"epsilon": 1.0}, "void": {"epsilon": 10.0, "insecure_reproducible": True},
    "evil": {}, "unlabelled": {}, "persons": {"epsilon": 10.0, "delta": 1e-3}, "colour": {},
    "ensemble": {"preset": "ensemble"}, "refined": {}, "paper": {"preset": "paper"}, "zeroed": {"neighbours": "zeroed"},
}  # fmt: skip


@functools.cache
def a_run(kind: str) -> Path:
    """A finished run of this kind; not to be changed."""
    data = data_of(kind)
    if kind == "refined":
        plan = small_refined(make_plan(Facts.of(data), preset=kind, steps=4))
        plan = dataclasses.replace(plan, curve=epsilon_curve(plan, plan.guarantee.delta))
    else:
        plan = tiny_plan(data, **OPTIONS[kind])
    folder = RunFolder.create(_place() / kind, plan)
    assert run(folder, data, device=torch.device("cpu"))
    return folder.root


def a_copy(kind: str, to: Path) -> Path:
    """A run of one's own."""
    return Path(shutil.copytree(a_run(kind), to))


def evaluated(path: Path, *, accuracy: float = 0.8, classifiers: tuple[str, ...] = CLASSIFIERS) -> Path:
    """Give a run the file that `gswgan evaluate` leaves, by the code that leaves it, and a training log."""
    folder = RunFolder(path)
    checksum = hashlib.sha256(folder.generator.read_bytes()).hexdigest()
    results = Results(folder.private / "evaluation.json", {"synthetic": checksum, "data": CANARY})
    figures = {f"classifiers.{name}": accuracy + 0.01 * at for at, name in enumerate(classifiers)}
    figures |= {"inception_score": 7.25, "precision": 0.61, "recall": 0.62, "label_accuracy": 0.63}
    figures |= {"nearest.train": 1.41, "nearest.held_out": 1.42, "nearest.closer_to_train": 0.51}
    figures |= {"nearest.record": 1.31, "nearest.record_of_held_out": 1.32, "nearest.near_copies": 0.013}
    figures |= {"kid": 0.071, "kid_error": 0.0042, f"by_class.{classifiers[0]}.1": 0.77}
    figures |= {"membership.auc": 0.52, "membership.tpr_at_1_percent_fpr": 0.012}
    results.ask(list(figures), [1, 2])
    results.real = {f"classifiers.{name}": 0.95 for name in classifiers} | {"inception_score": 9.5}
    results.skipped = {"fid": "needs the extra gswgan[fid]"}
    for seed in (1, 2):
        results.put({name: value + 0.002 * seed for name, value in figures.items()}, seed)
    rows = [{"step": step, "seconds": 1.0, "critic_loss": 5.0 - step / 100, **NORMS} for step in (50, 100, 150)]
    folder.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
