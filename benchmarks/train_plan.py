"""Run a saved plan, time it, and score it with the appendix's CNN on the real test set.

gswgan train --data mnist --device cuda --save-plan plan.json
python benchmarks/train_plan.py plan.json --data mnist --device cuda --out benchmarks/results/NAME.json
"""

from __future__ import annotations

import argparse
import itertools
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

import gswgan
from gswgan.evaluation.classifiers import cnn_accuracy
from gswgan.synthesizer import pick_device
from gswgan.training.centralized import run
from gswgan.training.plan import Plan
from gswgan.training.run_folder import RunFolder
from record import record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--data", required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--images", type=int, default=60_000, help="synthetic images for the CNN; 0 skips it")
    parser.add_argument("--keep", type=Path, help="keep the run folder here")
    parser.add_argument("--out", type=Path, help="write the result as JSON")
    options = parser.parse_args()

    device = pick_device(options.device)
    train, test = (gswgan.load_data(options.data, split=split) for split in ("train", "test"))
    times = [time.perf_counter()]

    def progress(done: int) -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter())

    with TemporaryDirectory() as temporary:
        folder = RunFolder.create(options.keep or Path(temporary) / "run", Plan.load(options.plan))
        run(folder, train, device=device, progress=progress)
        seconds = time.perf_counter() - times[0]
        steps = sorted(after - before for before, after in itertools.pairwise(times[1:]))
        model = gswgan.load(folder.root, device=options.device)
        result = {"seconds": seconds, "median_step_seconds": steps[len(steps) // 2], "steps": len(times) - 1}
        result |= {"privacy": model.privacy.to_json(), "plan": model.plan.to_json()}
        print(f"{result['steps']} steps in {seconds:.1f} s, median step {result['median_step_seconds'] * 1e3:.2f} ms")
        if options.images:
            images, labels = model.sample(options.images, seed=0)
            stacked = images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
            result["cnn_accuracy"] = cnn_accuracy(
                stacked, labels, test.images, test.labels, classes=test.classes, device=str(device)
            )
            print(f"CNN accuracy {result['cnn_accuracy']:.4f}; {model.privacy}")
    record(options.out, result)


if __name__ == "__main__":
    main()
