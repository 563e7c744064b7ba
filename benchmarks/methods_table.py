"""The paper's Table 1 with all methods at a true epsilon of 10, from records: a table of docs/results.md.

    gswgan evaluate RELEASE --data mnist --classifiers all --train-size 10000 --samples 10000 \\
        --metrics classifiers,inception_score --json > EVALUATIONS/mnist-dp-sgd-gan.json
    python benchmarks/methods_table.py EVALUATIONS      # keeps their figures in benchmarks/results/methods-10000.json
    python benchmarks/results_page.py                   # makes the page anew

CNN (60,000 images) and FID are those of the training records (`train_plan.py`), all else is from the evaluations.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from record import record
from result_runs import RESULTS, SETS, read, table

KEPT = RESULTS / "methods-10000.json"
METHODS = ("paper", "dp-sgd-gan", "dp-merf-ae", "dp-merf", "g-pate")
PUBLISHED = {  # the paper's Table 1: IS, FID, CNN, average
    ("mnist", "paper"): ("9.23", "61.3", "0.80", "0.60"),
    ("mnist", "dp-sgd-gan"): ("4.76", "179", "0.63", "0.52"),
    ("mnist", "dp-merf"): ("2.91", "248", "0.63", "0.57"),
    ("mnist", "dp-merf-ae"): ("3.06", "161", "0.68", "0.42"),
    ("mnist", "g-pate"): ("3.85", "177", "0.51", "0.34"),
    ("fashion-mnist", "paper"): ("5.32", "131", "0.65", "0.53"),
    ("fashion-mnist", "dp-sgd-gan"): ("3.55", "244", "0.46", "0.43"),
    ("fashion-mnist", "dp-merf"): ("2.32", "268", "0.62", "0.51"),
    ("fashion-mnist", "dp-merf-ae"): ("3.68", "214", "0.62", "0.45"),
    ("fashion-mnist", "g-pate"): ("3.35", "206", "0.50", "0.40"),
}


def table_1() -> str:
    """Ours and, in brackets, the paper's: its Table 1 without the columns of the MLP and of calibrated accuracy."""
    kept = read(KEPT.stem)["evaluations"]
    head = ["", "IS", "FID", "CNN", "average of 13"]
    return table(head, (row(data, method, kept) for data in SETS for method in METHODS))


def averages(method: str) -> str:
    """The average of the 13 classifiers on both data sets, in words."""
    kept = read(KEPT.stem)["evaluations"]
    return " and ".join(f"{average(kept[f'{data}-{method}']):.3f}" for data in SETS)


def average(found: dict[str, Any]) -> float:
    ours = found["classifiers"]
    return float(sum(ours.values()) / len(ours))


def keep(folder: Path) -> None:
    """The figures of all evaluations in one record."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text())
        accuracies = {name: (part["mean"], part["real"]) for name, part in content["classifiers"].items()}
        found[path.stem] = {
            "inception_score": content["inception_score"]["mean"],
            "classifiers": {name: mean for name, (mean, _) in accuracies.items()},
            "real": {name: real for name, (_, real) in accuracies.items()},
        }
    record(KEPT, {"train_size": 10_000, "settings": "paper", "evaluations": found})


def row(data: str, method: str, kept: dict[str, Any]) -> list[str]:
    """A line of the table."""
    trained = read(f"{data}-{method}-h200")
    found = kept[f"{data}-{method}"]
    fid = f"{trained['fid']:#.3g}".rstrip(".") if trained.get("fid") else "-"
    cells = [f"{found['inception_score']:.2f}", fid, f"{trained['cnn_accuracy']:.3f}", f"{average(found):.3f}"]
    cells = [f"{mine} ({theirs})" for mine, theirs in zip(cells, PUBLISHED[data, method], strict=True)]
    return [f"{SETS[data]}, `{method}`", *cells]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("evaluations", type=Path, help="folder with DATA-METHOD.json of `gswgan evaluate --json`")
    keep(parser.parse_args().evaluations)


if __name__ == "__main__":
    main()
