"""Accuracy on the real test set of the appendix's CNN, trained on 60,000 synthetic images of a RUN.

    python benchmarks/mnist_cnn.py runs/mnist-default

MNIST and Fashion-MNIST are public, so the figure may be published; on private data it may not.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import gswgan
from gswgan.evaluation.classifiers import cnn_accuracy
from record import record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--data", help="default: the run's own")
    parser.add_argument("--images", type=int, default=60_000)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, help="write the result as JSON")
    options = parser.parse_args()

    model = gswgan.load(options.run, device=options.device)
    plan = model.plan
    test = gswgan.load_data(options.data or plan.facts.data, split="test")
    images, labels = model.sample(options.images, seed=0)
    stacked = images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
    began = time.perf_counter()
    accuracy = cnn_accuracy(stacked, labels, test.images, test.labels, classes=test.classes, device=str(model._device))
    print(f"CNN accuracy {accuracy:.4f} on {test.n} real images ({time.perf_counter() - began:.0f} s); {model.privacy}")
    record(options.out, {"accuracy": accuracy, "privacy": model.privacy.to_json(), "plan": plan.to_json()})


if __name__ == "__main__":
    main()
