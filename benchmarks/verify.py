"""How long `gswgan verify` takes for a ledger of 20,000 releases, the number that the paper's run has.

    python benchmarks/verify.py --out benchmarks/results/verify-cpu.json

Plans an ensemble of so many steps on the digits, has the real Ledger write every line (the releases themselves are not
made: verification does not look at them), and publishes an untrained generator with the real code. The chain is then
cut short in the middle, once, to see that it is found. Each verification is a process of its own, as users have it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from gswgan import load_data
from gswgan.methods import make_plan
from gswgan.plan.facts import Facts
from gswgan.privacy import Ledger
from gswgan.release.pack import pack
from gswgan.run.folder import RunFolder
from gswgan.run.loop import make_generator
from gswgan.run.publish import publish
from record import record


def verify(folder: Path) -> tuple[float, int]:
    began = time.perf_counter()
    command = [sys.executable, "-c", "from gswgan.cli.main import run; run()", "verify", str(folder)]
    code = subprocess.run(command, capture_output=True, check=False).returncode
    return time.perf_counter() - began, code


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--out", type=Path, help="write the result as JSON")
    options = parser.parse_args()
    rows = []
    for preset in ("ensemble", "paper"):
        plan = make_plan(Facts.of(load_data("digits")), preset=preset, critics=100, steps=options.steps)
        with tempfile.TemporaryDirectory() as place:
            folder = RunFolder.create(Path(place) / "run", plan)
            ledger = Ledger(folder.ledger, observer="public", context=plan.digest())
            assert plan.privacy is not None
            for step in range(options.steps):
                ledger.record(f"step {step}", plan.privacy.event, "")
            publish(plan, folder, make_generator(plan, torch.device("cpu")))
            began = time.perf_counter()
            pack(folder.root, Path(place) / "release")
            packed = time.perf_counter() - began
            runs = [verify(Path(place) / "release") for _ in range(3)]
            assert all(code == 0 for _, code in runs), runs
            lines = (Path(place) / "release" / "ledger.jsonl").read_text().splitlines(keepends=True)
            (Path(place) / "release" / "ledger.jsonl").write_text("".join(lines[: options.steps // 2]))
            broken, code = verify(Path(place) / "release")
            assert code == 1
        seconds = sorted(second for second, _ in runs)
        print(f"{preset}: {options.steps} releases verified in {seconds[1]:.2f} s (median), packed in {packed:.2f} s")
        rows.append({"preset": preset, "releases": options.steps, "seconds": seconds, "pack_seconds": packed,
                     "seconds_until_a_cut_is_found": broken})  # fmt: skip
    record(options.out, {"runs": rows})


if __name__ == "__main__":
    main()
