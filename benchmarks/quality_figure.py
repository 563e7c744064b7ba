"""Accuracy and FID over epsilon: the picture of docs/results.md (see results_page.py).

Every point is the mean over its seeds, with their range. The picture carries a digest of its points, so that a test
can tell whether it is that of the records.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from result_runs import SETS, preset, read, trainings

MEASURES = {"cnn_accuracy": "CNN accuracy on real images", "fid": "FID"}


def points() -> dict[str, Any]:
    """For each measure and data set: what real data has, and the runs' values for each epsilon of preset `kernel`."""
    found: dict[str, Any] = {key: {data: {"real": real(data, key), "runs": {}} for data in SETS} for key in MEASURES}
    for run in trainings():
        data = run["plan"]["facts"]["data"]
        kernel = run["plan"].get("method", "gswgan") == "gswgan" and preset(run["plan"]) == "kernel"
        if not kernel or data not in SETS or run["machine"] != "NVIDIA H200":
            continue
        for key in MEASURES:
            values = found[key][data]["runs"].setdefault(f"{round(run['privacy']['epsilon'], 3):g}", [])
            values.append(round(run[key], 4))
    return found


def real(data: str, key: str) -> float:
    """The same figure of real training data."""
    if key == "fid":
        return round(read(f"real-rows-{data}-h200")["fid"], 4)
    file = {"mnist": "real_classifiers_mnist", "fashion-mnist": "real_classifiers_fashion"}[data]
    return read(file)["classifiers"]["cnn"]["accuracy"]


def digest(found: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def draw(path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    found = points()
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for axis, (key, title) in zip(axes, MEASURES.items(), strict=True):
        for data, colour in zip(SETS, ("#1f77b4", "#ff7f0e"), strict=True):
            runs = sorted((float(epsilon), values) for epsilon, values in found[key][data]["runs"].items())
            where = [epsilon for epsilon, _ in runs]
            mean, low, high = (np.array([f(values) for _, values in runs]) for f in (np.mean, np.min, np.max))
            axis.errorbar(where, mean, [mean - low, high - mean], fmt="o-", color=colour, capsize=3, label=SETS[data])
            level = found[key][data]["real"]
            axis.axhline(level, color=colour, linestyle=":", linewidth=1)
            axis.annotate("real data", (0.1, level), color=colour, fontsize=8, va="bottom")
        axis.set(xscale="log", xlabel="true epsilon (delta 1e-5, one record replaced)", title=title)
        axis.set_xticks([0.1, 0.3, 1, 3, 10], ["0.1", "0.3", "1", "3", "10"])
        axis.grid(alpha=0.3)
        axis.legend()
    axes[1].set_yscale("log")
    figure.savefig(path, dpi=130, metadata={"Source": digest(found)})
    plt.close(figure)
