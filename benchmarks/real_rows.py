"""The "Real" row of the paper's Table 1 from our own functions: is the ruler right?

    python benchmarks/real_rows.py --data mnist --device cuda --out benchmarks/results/real-mnist-h200.json

Inception Score of the test set (10 splits) by the judge, the judge's accuracy on the test set, and FID of the training
set against the test set. The judge and the moments are kept in `--cache` and found there again. The accuracies of the
13 classifiers (Tables 3 and 4) come from real_classifiers.py.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import xlogy

import gswgan
from gswgan.data import ImageData
from gswgan.evaluation.frechet import frechet_distance
from gswgan.evaluation.inception import Inception, load_inception, reference_moments
from gswgan.evaluation.inception_score import inception_score
from gswgan.evaluation.precision_recall import precision_recall
from gswgan.evaluation.reference_classifier import cached_reference_classifier
from gswgan.evaluation.references import cache_folder, data_checksum
from gswgan.plan.settings import pick_device
from record import record

PAPER = {  # value, how near we must come (below the accuracy is a miss, above is none)
    "mnist": {"inception_score": (9.80, 0.1), "fid": (1.02, 0.5), "judge_accuracy": (0.9925, 0.0)},
    "fashion-mnist": {"inception_score": (8.98, 0.3), "fid": (1.49, 0.5), "judge_accuracy": (0.9375, 0.0)},
}


def printer(what: str) -> Callable[[int, int], None]:
    began = last = time.perf_counter()

    def progress(done: int, total: int) -> None:
        nonlocal last
        now = time.perf_counter()
        if now - last > 5 or done == total:
            last = now
            left = (now - began) / done * (total - done)
            print(f"  {what}: {done}/{total}, {now - began:.0f} s, {left:.0f} s left", flush=True)

    return progress


def judge_rows(train: ImageData, test: ImageData, folder: Path | None, device: str, seed: int) -> dict[str, Any]:
    began = time.perf_counter()
    judge = cached_reference_classifier(train, folder, device=device, seed=seed, progress=printer("judge"))
    probabilities = judge.probabilities(test.images)
    mean, std = inception_score(probabilities, splits=10)
    number = min(10_000, test.n, train.n)
    precision, recall = precision_recall(judge.features(train.images[:number]), judge.features(test.images[:number]))
    return {
        "inception_score": mean,
        "inception_score_std": std,
        "judge_accuracy": float((probabilities.argmax(1) == test.labels).mean()),
        "judge_accuracy_train": judge.accuracy(train.images, train.labels),
        "judge_mean_entropy": float(-xlogy(probabilities, probabilities).sum(1).mean()),
        "judge": vars(judge.facts),
        "precision_test_in_train": precision,
        "recall_train_in_test": recall,
        "judge_seconds": time.perf_counter() - began,
    }


def fid_rows(
    train: ImageData, test: ImageData, folders: list[Path | None], inception: Inception, check: Inception | None
) -> dict[str, Any]:
    began = time.perf_counter()
    result: dict[str, Any] = {"inception_weights": inception.weights_kind}
    if check is not None:  # the device's arithmetic against the CPU's
        few = test.images[:16]
        ours, theirs = inception(few).cpu(), check(few)
        result["largest_relative_difference_to_cpu"] = float(((ours - theirs).norm(dim=1) / theirs.norm(dim=1)).max())
        print(f"  features differ from the CPU's by {result['largest_relative_difference_to_cpu']:.1e}", flush=True)
    moments = [
        reference_moments(data.images, inception, folder, progress=printer(f"Inception, {split}"))
        for split, data, folder in zip(("train", "test"), (train, test), folders, strict=True)
    ]
    result["fid"] = frechet_distance(moments[0], moments[1])
    result["fid_images"] = [found.count for found in moments]
    result["fid_seconds"] = time.perf_counter() - began
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=PAPER, required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--inception-weights", type=Path, help="default: those of the `fid` extra")
    parser.add_argument("--rows", default="judge,fid", help="judge, fid or both")
    parser.add_argument("--seed", type=int, default=0, help="of the judge")
    parser.add_argument("--cache", type=Path, help="folder for judge and moments; default: the user's cache")
    parser.add_argument("--limit", type=int, help="use only so many images of each split: a trial, never recorded")
    parser.add_argument("--out", type=Path, help="write the result as JSON")
    options = parser.parse_args()

    device = str(pick_device(options.device))
    train, test = (gswgan.load_data(options.data, split=split) for split in ("train", "test"))
    folders = [cache_folder(one.name, data_checksum(one), None) for one in (train, test)]
    if options.cache is not None:
        folders = [options.cache / f"{options.data}-{split}" for split in ("train", "test")]
    if options.limit is not None:
        train, test = (first(one, options.limit) for one in (train, test))
        folders = [None, None]

    result: dict[str, Any] = {"data": options.data}
    if "judge" in options.rows.split(","):
        result |= judge_rows(train, test, folders[0], device, options.seed)
    if "fid" in options.rows.split(","):
        inception = load_inception(options.inception_weights, device)
        check = load_inception(options.inception_weights, "cpu") if device != "cpu" else None
        result |= fid_rows(train, test, folders, inception, check)
    for name, (value, near) in PAPER[options.data].items():
        if name in result:
            good = result[name] >= value if near == 0 else abs(result[name] - value) <= near
            result[f"{name}_paper"] = value
            wanted = f"{value}, at least" if near == 0 else f"{value} within {near}"
            print(
                f"{options.data} {name}: {result[name]:.4f} (paper: {wanted}) {'ok' if good else 'MISSED'}", flush=True
            )
    record(None if options.limit else options.out, result)


def first(data: ImageData, number: int) -> ImageData:
    labels = None if data.labels is None else data.labels[:number]
    return ImageData(
        name=data.name, images=np.ascontiguousarray(data.images[:number]), labels=labels, classes=data.classes,
        class_names=data.class_names,
    )  # fmt: skip


if __name__ == "__main__":
    main()
