"""Accuracy on held-out real digits of a logistic regression trained on synthetic ones.

    python benchmarks/digits.py --preset kernel --seeds 1,2,3

Each seed is a run of its own: other features, weights and latent codes, and fresh noise. The digits of
scikit-learn are public, so the figure may be published; on private data it may not.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from gswgan import GSWGAN, load_data
from gswgan.evaluation.classifiers import logistic_accuracy
from record import record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="kernel")
    parser.add_argument("--epsilon", type=float, default=10.0)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="write the result as JSON")
    options = parser.parse_args()

    train, test = load_data("digits"), load_data("digits", split="test")
    rows = []
    for seed in map(int, options.seeds.split(",")):
        began = time.perf_counter()
        model = GSWGAN(epsilon=options.epsilon, preset=options.preset, seed=seed, device=options.device)
        model.fit(train.images[:, 0], train.labels, classes=10)
        seconds = time.perf_counter() - began
        images, labels = model.sample(5000, seed=seed)
        accuracy = logistic_accuracy(images, labels, test.images, test.labels)
        print(f"{options.preset} seed {seed}: accuracy {accuracy:.4f}, {seconds:.1f} s, {model.privacy}", flush=True)
        rows.append({"seed": seed, "accuracy": accuracy, "seconds": seconds, "privacy": model.privacy.to_json()})
    mean = float(np.mean([row["accuracy"] for row in rows]))
    print(f"{options.preset}: mean accuracy {mean:.4f} over {len(rows)} seeds")
    record(options.out, {"preset": options.preset, "mean_accuracy": mean, "runs": rows})


if __name__ == "__main__":
    main()
