"""Tables of docs/results.md that are no trainings: others' figures, real data, digits, speed (see results_page.py)."""

from __future__ import annotations

from typing import Any

import numpy as np

from gswgan.benchmark.tables import main_table
from gswgan.privacy import Accountant, Gaussian
from gswgan.privacy.events import Repeated, Sampled
from result_runs import SETS, read, table

DELTA = 1e-5


def recomputed(setting: dict[str, Any], neighbours: str) -> float:
    """Epsilon at delta 1e-5 of a published DP-SGD run: records drawn by coins, noise relative to the clip norm of 1."""
    above, below = setting["rate"]
    noise = setting["noise_multiplier"]
    one = Gaussian(noise_std=noise, sensitivity=2.0 if neighbours == "replace-one" else 1.0, neighbours=neighbours)
    event = Repeated(times=setting["steps"], event=Sampled(rate=above / below, event=one))
    return Accountant(neighbours).epsilon(event, DELTA)


def published() -> str:
    """What others report, each with the relation of its epsilon and, where its setting is known, ours."""
    head = ["method", "source", "their epsilon", "one record", "in our relation (replaced, delta 1e-5)"]
    head += ["MNIST: accuracy, FID", "Fashion-MNIST: accuracy, FID"]
    rows = []
    for one in read("published")["rows"]:
        ours = "the same relation" if one["relation"] == "replaced" else "not recomputed, more than theirs"
        if "setting" in one:
            ours = f"**{recomputed(one['setting'], 'replace-one'):.1f}**"
        relation = one["relation"].replace("-", " ")
        if "note" in one:
            relation += f" ({one['note']})"
        pairs = [_pair(*one[data]) for data in SETS]
        rows.append([one["method"], one["source"], f"{one['epsilon']:g}", relation, ours, *pairs])
    return table(head, rows)


def _pair(accuracy: float | list[float] | None, fid: float | None) -> str:
    """Accuracy in percent, or its range, and FID."""
    if accuracy is None:
        return "-"
    shares = accuracy if isinstance(accuracy, list) else [accuracy]
    return f"{' to '.join(f'{share / 100:.3f}' for share in shares)}, {'-' if fid is None else f'{fid:g}'}"


def real() -> str:
    """The "Real" rows of the paper's tables: ours, then the paper's."""
    head = ["real data", "IS of the test set", "FID, training against test set", "CNN", "average of 13"]
    head += ["further than 0.02 from the paper"]
    rows = []
    for data, file in (("mnist", "real_classifiers_mnist"), ("fashion-mnist", "real_classifiers_fashion")):
        scores, found = read(f"real-rows-{data}-h200"), read(file)
        cnn, kinds = found["classifiers"]["cnn"], found["classifiers"]
        off = [f"{kind}: {one['accuracy']:.3f} ({one['paper']})" for kind, one in kinds.items() if not one["within"]]
        rows.append([
            SETS[data], f"{scores['inception_score']:.2f} ({scores['inception_score_paper']:.2f})",
            f"{scores['fid']:.2f} ({scores['fid_paper']:.2f})", f"{cnn['accuracy']:.3f} ({cnn['paper']:.2f})",
            f"{found['average']:.3f} ({found['paper_average']:.2f})", ", ".join(off) or "none",
        ])  # fmt: skip
    return table(head, rows)


def samme_r() -> str:
    """AdaBoost as the paper had it, on both data sets."""
    kinds = [read(file)["classifiers"] for file in ("real_classifiers_mnist", "real_classifiers_fashion")]
    return " and ".join(f"{found['adaboost_samme_r']['accuracy']:.3f}" for found in kinds)


def digits() -> str:
    """Logistic regression on synthetic 8x8 digits."""
    head = ["preset", "true epsilon", "seeds", "accuracy of a logistic regression", "seconds, two cores"]
    rows = []
    for preset in ("default", "ensemble"):
        runs = read(f"digits-{preset}-cpu")["runs"]
        scores, took = ([run[key] for run in runs] for key in ("accuracy", "seconds"))
        epsilon = max(run["privacy"]["epsilon"] for run in runs)
        score = f"{np.mean(scores):.3f} ({min(scores):.3f} to {max(scores):.3f})"
        rows.append([f"`{preset}`", f"{epsilon:.4g}", str(len(runs)), score, f"{min(took):.0f} to {max(took):.0f}"])
    return table(head, rows)


def digits_methods() -> str:
    """`gswgan benchmark` on digits: all methods at two epsilons."""
    made = main_table(read("benchmark-digits-cpu"), "digits")
    return table(made.head, made.rows)


def batched() -> str:
    """K critics as one batched model against a loop over modules."""
    head = ["machine", "critics", "images, batch, width", "batched", "loop", "ratio"]
    rows = []
    for device, title in (("cpu", "2 cores"), ("h200", "H200")):
        found = read(f"ensemble-critics-{device}")
        speed = {(one["setting"], one["critics"], one["form"]): one for one in found["results"]}
        for setting, critics in (("small", 64), ("paper", 64), ("paper", 256)):
            fast, loop = speed[setting, critics, "batched"], speed[setting, critics, "loop"]
            has = found["settings"][setting]
            shape = f"{has['image_size']}x{has['image_size']}, {has['batch']}, {has['width']}"
            rates = [f"{_short(one['updates_per_second'])}/s" for one in (fast, loop)]
            rows.append([title, str(critics), shape, *rates, _short(fast["times_the_loop"])])
    return table(head, rows)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def release_cost() -> str:
    """The kernel critic's one release."""
    head = ["records", "features", "seconds", "MiB beside data and frequencies"]
    found = read("cost-h200")["releases"]
    rows = [
        [f"{one['n']:,}", str(one["features"]), f"{one['seconds']:.2f}", f"{one['extra_mib']:.0f}"] for one in found
    ]
    return table(head, rows)


def step_cost() -> str:
    """A step of the generator against a released embedding."""
    head = ["image", "features", "batch", "ms per step"]
    rows = []
    for one in read("cost-h200")["steps"]:
        image = f"{one['side']}x{one['side']}{' colour' if one['channels'] == 3 else ''}"
        rows.append([image, str(one["features"]), str(one["batch"]), f"{one['ms']:.2f}"])
    return table(head, rows)


def ensemble_cost() -> str:
    """A step of the ensemble."""
    head = ["image", "critics", "participants", "ms per step", "GiB"]
    rows = [
        [f"{one['side']}x{one['side']}", str(one["critics"]), str(one["participants"]), f"{one['step_ms']:.0f}",
         f"{one['gib']:.1f}"]
        for one in read("ensemble-cost-h200")["rows"]
    ]  # fmt: skip
    return table(head, rows)
