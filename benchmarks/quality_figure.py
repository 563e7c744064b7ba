"""Accuracy and FID over epsilon, and the table of them, from the recorded runs of `train_plan.py`.

    python benchmarks/quality_figure.py docs/quality.png

Reads benchmarks/results/DATA-epsE-seedS-h200.json; every point is the mean over its seeds, with their range.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent / "results"
SETS = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST"}
REAL = {"mnist": (0.990, 1.02), "fashion-mnist": (0.912, 1.49)}  # real_classifiers.py, real_rows.py


def recorded() -> dict[str, dict[float, list[dict[str, Any]]]]:
    """Runs by data set and epsilon."""
    found: dict[str, dict[float, list[dict[str, Any]]]] = {name: defaultdict(list) for name in SETS}
    for path in sorted(RESULTS.glob("*-eps*-seed*-h200.json")):
        run = json.loads(path.read_text())
        found[path.name.split("-eps")[0]][round(run["privacy"]["epsilon"], 3)].append(run)
    return found


def table(runs: dict[str, dict[float, list[dict[str, Any]]]]) -> str:
    lines = ["| data | true epsilon | seeds | CNN | FID | IS | seconds |", "|---|---|---|---|---|---|---|"]
    for name, by_epsilon in runs.items():
        for epsilon, some in sorted(by_epsilon.items(), reverse=True):
            figures = [
                spread([run[key] for run in some], digits)
                for key, digits in (("cnn_accuracy", 4), ("fid", 2), ("inception_score", 2), ("seconds", 0))
            ]
            lines.append(f"| {SETS[name]} | {epsilon:g} | {len(some)} | {' | '.join(figures)} |")
    return "\n".join(lines)


def spread(values: list[float], digits: int) -> str:
    mean = f"{np.mean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def draw(runs: dict[str, dict[float, list[dict[str, Any]]]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for axis, key, title in zip(axes, ("cnn_accuracy", "fid"), ("CNN accuracy on real images", "FID"), strict=True):
        for name, colour in zip(SETS, ("#1f77b4", "#ff7f0e"), strict=True):
            points = sorted((e, [run[key] for run in some]) for e, some in runs[name].items())
            if not points:
                continue
            mean = np.array([np.mean(values) for _, values in points])
            low, high = (np.array([f(values) for _, values in points]) for f in (np.min, np.max))
            where = [e for e, _ in points]
            axis.errorbar(where, mean, [mean - low, high - mean], fmt="o-", color=colour, capsize=3, label=SETS[name])
            real = REAL[name][0 if key == "cnn_accuracy" else 1]
            axis.axhline(real, color=colour, linestyle=":", linewidth=1)
            axis.annotate("real data", (0.1, real), color=colour, fontsize=8, va="bottom")
        axis.set(xscale="log", xlabel="true epsilon (delta 1e-5, one record replaced)", title=title)
        axis.set_xticks([0.1, 0.3, 1, 3, 10], ["0.1", "0.3", "1", "3", "10"])
        axis.grid(alpha=0.3)
        axis.legend()
    axes[1].set_yscale("log")
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("picture", type=Path)
    options = parser.parse_args()
    runs = recorded()
    print(table(runs))
    draw(runs, options.picture)


if __name__ == "__main__":
    main()
