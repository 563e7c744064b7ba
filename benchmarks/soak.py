"""One process at work for an hour: train with both critics, save, load, sample, verify, over and over. Is memory flat?

    python benchmarks/soak.py --minutes 60 --out benchmarks/results/soak-cpu.json

Each round makes two whole runs on the digits in a temporary folder and removes it. The result has the resident memory
after each round, and its slope over the second half of the time in MB an hour.
"""

from __future__ import annotations

import argparse
import gc
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from gswgan import GSWGAN, load
from gswgan.data import load_data
from gswgan.release.pack import pack
from gswgan.release.verify import verify
from record import record


def resident() -> float:
    """Memory of this process, MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def one_round(number: int, folder: Path) -> None:
    data = load_data("digits")
    for preset, steps in (("kernel", 200), ("ensemble-alone", 40)):
        model = GSWGAN(epsilon=10, preset=preset, steps=steps, seed=number, device="cpu")
        model.fit(data.images[:, 0], data.labels, classes=data.classes, out=folder / preset)
        release, packed = folder / f"{preset}-release", folder / f"{preset}.zip"
        model.save(release)
        pack(release, packed)
        verify(packed)
        images, labels = load(release, device="cpu").sample(2000, seed=number)
        assert len(images) == len(labels) == 2000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    began, rounds = time.monotonic(), []
    while time.monotonic() - began < 60 * options.minutes:
        with TemporaryDirectory() as folder:
            one_round(len(rounds), Path(folder))
        gc.collect()
        files = len(list(Path("/proc/self/fd").iterdir()))
        row = {"seconds": round(time.monotonic() - began, 1), "mb": round(resident(), 1), "files": files}
        rounds.append(row | {"threads": threading.active_count()})
        print(rounds[-1], flush=True)
    late = [row for row in rounds if row["seconds"] > 30 * options.minutes]
    slope = float(np.polyfit([row["seconds"] / 3600 for row in late], [row["mb"] for row in late], 1)[0])
    print(f"{len(rounds)} rounds, {slope:+.1f} MB an hour over the second half", flush=True)
    record(options.out, {"rounds": len(rounds), "mb_an_hour_in_the_second_half": slope, "memory": rounds})


if __name__ == "__main__":
    main()
