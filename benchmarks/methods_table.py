"""The paper's Table 1 with all methods at a true epsilon of 10, from records, into README.md.

    gswgan evaluate RELEASE --data mnist --classifiers all --train-size 10000 --samples 10000 \\
        --metrics classifiers,inception_score --json > EVALUATIONS/mnist-dp-sgd-gan.json
    python benchmarks/methods_table.py --evaluations EVALUATIONS --into README.md

CNN (60,000 images) and FID are those of the training records (`train_plan.py`), all else is from the evaluations, which
are kept in benchmarks/results/methods-10000.json: without `--evaluations` the table is made from there.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from record import record

RESULTS = Path(__file__).parent / "results"
KEPT = RESULTS / "methods-10000.json"
BEGIN, END = "<!-- table 1 -->", "<!-- end of table 1 -->"
DATA = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST"}
METHODS = {  # title, training record
    "default": ("`default`", "eps10-seed0"),
    "ensemble": ("`ensemble`", "ensemble-eps10-seed0"),
    "paper": ("`paper`", "paper"),
    **{name: (f"`{name}`", name) for name in ("dp-sgd-gan", "dp-merf-ae", "dp-merf", "g-pate", "pate-gan", "gan")},
}
PUBLISHED = {  # the paper's Table 1: IS, FID, MLP, CNN, average, calibrated
    ("mnist", "paper"): ("9.23", "61.3", "0.79", "0.80", "0.60", "69 %"),
    ("mnist", "dp-sgd-gan"): ("4.76", "179", "0.60", "0.63", "0.52", "59 %"),
    ("mnist", "dp-merf"): ("2.91", "248", "0.63", "0.63", "0.57", "66 %"),
    ("mnist", "dp-merf-ae"): ("3.06", "161", "0.54", "0.68", "0.42", "47 %"),
    ("mnist", "g-pate"): ("3.85", "177", "0.25", "0.51", "0.34", "40 %"),
    ("fashion-mnist", "paper"): ("5.32", "131", "0.65", "0.65", "0.53", "67 %"),
    ("fashion-mnist", "dp-sgd-gan"): ("3.55", "244", "0.50", "0.46", "0.43", "53 %"),
    ("fashion-mnist", "dp-merf"): ("2.32", "268", "0.56", "0.62", "0.51", "65 %"),
    ("fashion-mnist", "dp-merf-ae"): ("3.68", "214", "0.56", "0.62", "0.45", "55 %"),
    ("fashion-mnist", "g-pate"): ("3.35", "206", "0.30", "0.50", "0.40", "54 %"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--evaluations", type=Path, help="folder with DATA-METHOD.json of `gswgan evaluate --json`")
    parser.add_argument("--into", type=Path, help="a page with the table's two marks")
    options = parser.parse_args()
    if options.evaluations is not None:
        keep(options.evaluations)
    kept = json.loads(KEPT.read_text())["evaluations"]
    lines = ["| | true epsilon | IS | FID | MLP | CNN | average of 13 | calibrated |", "|" + "---|" * 8]
    lines += [row(data, method, kept) for data in DATA for method in METHODS if f"{data}-{method}" in kept]
    print("\n".join(lines))
    if options.into is not None:
        page = options.into.read_text()
        before, after = page.split(BEGIN)[0], page.split(END)[1]
        options.into.write_text(before + BEGIN + "\n" + "\n".join(lines) + "\n" + END + after)


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


def row(data: str, method: str, kept: dict[str, Any]) -> str:
    """A line of the table: ours and, in brackets, the paper's."""
    title, name = METHODS[method]
    trained = json.loads((RESULTS / f"{data}-{name}-h200.json").read_text())
    found = kept[f"{data}-{method}"]
    ours, real = found["classifiers"], found["real"]
    average = sum(ours.values()) / len(ours)
    calibrated = 100 * sum(ours[kind] / real[kind] for kind in ours) / len(ours)
    epsilon = f"{trained['privacy']['epsilon']:.4g}" if trained["privacy"] else "none: no guarantee"
    if claimed := trained["plan"]["claimed"]:
        epsilon = f"**{epsilon}** (claimed {claimed['epsilon']:.3g})"
    fid = f"{trained['fid']:#.3g}".rstrip(".") if trained.get("fid") else "-"
    cells = [f"{found['inception_score']:.2f}", fid, f"{ours['mlp']:.3f}", f"{trained['cnn_accuracy']:.3f}"]
    cells += [f"{average:.3f}", f"{calibrated:.0f} %"]
    if published := PUBLISHED.get((data, method)):
        cells = [f"{mine} ({theirs})" for mine, theirs in zip(cells, published)]
    return f"| {DATA[data]}, {title} | {epsilon} | " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
