"""The same small runs on two versions of the code: the same events, noise, epsilon and weights?

    python benchmarks/same_results.py --work work-before --keep kept --out before.json
    python benchmarks/same_results.py --work work-after --keep kept --against before.json

Every command runs as `python -m gswgan` with the PYTHONPATH of the caller. Coins and noise come from one fixed secret
(a `sitecustomize.py` in the work folder replaces the key of every run, in all processes), so that weights can be
compared bit for bit. NOTHING made here has a guarantee. `--keep` is a folder outside the work folder: the first
run leaves there a released embedding, a finished and an unfinished run and a budget; later runs train on that
embedding, and try whether runs and budgets of the earlier version are read or refused in words.

With `--against`, differences are printed and the exit code is 1 if anything but a score differs.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import safetensors.torch

from record import record

FIXED_NOISE = """
from gswgan.privacy import randomness

_seed, _fixed = randomness.Streams.seed, randomness.Streams(bytes(32), "same results")


def seed(self, purpose, *index):
    return _seed(self if self.context == randomness.PUBLIC else _fixed, purpose, *index)


randomness.Streams.seed = seed
"""
"""The secret streams of a run without its key and without the digest of its plan, in which words may have changed."""

EARLIER = {"--critics": "--shards", "--budget": "--book", "budget": "book"}
"""Options and commands of this version, and what they were called before."""

NOISE = ("delta", "noise_std", "clip_norm", "rows", "counts", "releases", "sampling", "rate", "neighbours", "unit")
"""What a plan says about noisy sums."""

SPREAD = 0.12
"""Of the accuracies of such short trainings from seed to seed: a larger difference is no matter of the seed."""

TRAININGS = {
    "kernel": ["--steps", "200"],
    "refined": ["--preset", "refined", "--steps", "30"],
    "ensemble": ["--preset", "ensemble", "--critics", "20", "--steps", "12"],
    "ensemble-alone": ["--preset", "ensemble-alone", "--critics", "20", "--steps", "12"],
    "dp-merf": ["--method", "dp-merf", "--steps", "60"],
    "dp-merf-ae": ["--method", "dp-merf-ae", "--steps", "20"],
    "dp-sgd-gan": ["--method", "dp-sgd-gan", "--steps", "20"],
    "g-pate": ["--method", "g-pate", "--critics", "20", "--steps", "6"],
    "pate-gan": ["--method", "pate-gan", "--critics", "20", "--steps", "6"],
    "gan": ["--method", "gan", "--steps", "20"],
}
PLANS = {
    "paper": ["--preset", "paper", "--critics", "20"],
    "kernel-1": ["--epsilon", "1"],
    "ensemble-3": ["--preset", "ensemble", "--epsilon", "3"],
    "dp-cgan": ["--method", "dp-sgd-gan", "--preset", "dp-cgan"],
    "dp-merf-paper": ["--method", "dp-merf", "--preset", "paper"],
}
"""Planned, not run: they would take long, or need no run to be compared."""
FEDERATIONS = {
    "federated-kernel": ["--clients", "12", "--steps", "100", "--allow-large-delta"],
    "federated-ensemble": ["--preset", "ensemble", "--clients", "12", "--rounds", "2", "--allow-large-delta"],
}


class Cli:
    """The command line of one version of the code, in a work folder."""

    def __init__(self, work: Path) -> None:
        self.work = work
        patch = work / "fixed_noise"
        patch.mkdir(parents=True)
        (patch / "sitecustomize.py").write_text(FIXED_NOISE)
        paths = [str(patch), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
        self.environment |= {"COLUMNS": "200", "NO_COLOR": "1", "CUDA_VISIBLE_DEVICES": ""}
        pages = "".join(self._run([*page, "--help"]).stdout for page in ([], ["train"]))
        self.words = {new: new if re.search(rf"│ {new} ", pages) else old for new, old in EARLIER.items()}

    def __call__(
        self, *arguments: str, fails: bool = False, fixed_noise: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a command, with this version's names in it; a failure ends everything unless it is what is looked at."""
        print("gswgan", *arguments, file=sys.stderr, flush=True)
        ended = self._run(list(arguments), fixed_noise=fixed_noise)
        if ended.returncode and not fails:
            raise SystemExit(f"{arguments}: exit {ended.returncode}\n{ended.stdout}\n{ended.stderr}")
        return ended

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """A command that goes on while something else is done."""
        return subprocess.Popen(self._command(list(arguments)), cwd=self.work, env=self.environment, text=True)

    def _command(self, arguments: list[str]) -> list[str]:
        words = getattr(self, "words", {})
        return [sys.executable, "-m", "gswgan", *(words.get(word, word) for word in arguments)]

    def _run(self, arguments: list[str], *, fixed_noise: bool = True) -> subprocess.CompletedProcess[str]:
        own = {} if fixed_noise else {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        return subprocess.run(
            self._command(arguments), cwd=self.work, env=self.environment | own, text=True, capture_output=True,
            check=False,
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="a new folder for the runs")
    parser.add_argument("--keep", type=Path, required=True, help="what is handed from one version to the next")
    parser.add_argument("--only", help="trainings to make, comma-separated (kernel is always made)")
    parser.add_argument("--against", type=Path, help="an earlier result to compare with")
    parser.add_argument("--out", type=Path, help="write the result as JSON")
    options = parser.parse_args()
    work, keep, began = options.work.resolve(), options.keep.resolve(), time.monotonic()
    work.mkdir(parents=True)
    cli, chosen = Cli(work), None if options.only is None else {"kernel", *options.only.split(",")}
    result: dict[str, Any] = {"plans": _plans(cli), "runs": _trainings(cli, chosen)}
    if not keep.exists():
        _keep(cli, keep)
    result["runs"]["from the kept embedding"] = _retrain(cli, keep)
    result |= {"score": _score(cli), "publishing": _publish(cli), "budget": _budget(cli)}
    if chosen is None or "audit" in chosen:
        result["audit"] = _audit(cli)
    result |= {"earlier": _earlier(cli, keep), "seconds": round(time.monotonic() - began)}
    record(options.out, result)
    if options.against is not None:
        before = json.loads(options.against.read_text())
        if chosen is not None:
            before["runs"] = {name: run for name, run in before["runs"].items() if name in result["runs"]}
        sys.exit(1 if compare(before, result) else 0)


def _plans(cli: Cli) -> dict[str, Any]:
    plans = {}
    for name, more in PLANS.items():
        cli("train", "--data", "digits", "--seed", "1", "--device", "cpu", *more, "--save-plan", f"{name}.json")
        plan = json.loads((cli.work / f"{name}.json").read_text())
        noise = {what: plan["privacy"][what] for what in NOISE} if plan["privacy"] is not None else None
        plans[name] = {what: plan[what] for what in ("guarantee", "claimed", "lower_bound", "curve")} | {"noise": noise}
    return plans


def _trainings(cli: Cli, chosen: set[str] | None) -> dict[str, Any]:
    commands = {name: ["train", "--data", "digits", "--seed", "1", *more] for name, more in TRAININGS.items()}
    commands |= {
        name: ["federate", "simulate", "--data", "digits", "--seed", "1", *more] for name, more in FEDERATIONS.items()
    }
    runs = {}
    for name, command in commands.items():
        if chosen is None or name in chosen:
            cli(*command, "--device", "cpu", "--out", name)
            runs[name] = _facts_of(cli.work / name)
    return runs


def _facts_of(run: Path) -> dict[str, Any]:
    """What was planned and released by a finished run, and its weights."""
    release = run / "release"
    statement = json.loads((release / "privacy.json").read_text())
    plan = json.loads((release / "model.json").read_text())["plan"]
    ledger = release / "ledger.jsonl"  # a method without a guarantee has none
    rows = [json.loads(line) for line in ledger.read_text().splitlines()[1:]] if ledger.exists() else []
    events = collections.Counter(json.dumps(row["event"], sort_keys=True) for row in rows if "event" in row)
    return {
        "guarantees": statement["guarantees"],
        "claimed": statement["claimed"],
        "lower bound": statement["lower_bound"],
        "curve": plan["curve"],
        "events": dict(events),
        "released": _tensors(release / "embedding.safetensors"),
        "weights": _tensors(release / "generator.safetensors"),
    }


def _tensors(path: Path) -> dict[str, str] | None:
    if not path.exists():
        return None
    tensors = safetensors.torch.load_file(path)
    return {
        name: hashlib.sha256(str(tuple(value.shape)).encode() + value.contiguous().numpy().tobytes()).hexdigest()
        for name, value in sorted(tensors.items())
    }


def _keep(cli: Cli, keep: Path) -> None:
    """A released embedding, a finished and an unfinished run and a budget, for later versions."""
    keep.mkdir(parents=True)
    shutil.copy(cli.work / "kernel" / "release" / "embedding.safetensors", keep)
    shutil.copytree(cli.work / "kernel", keep / "finished")
    cli("budget", "kept-budget.jsonl", "--epsilon", "20", "--delta", "1e-5")
    begun = cli.start("train", "--data", "digits", "--steps", "200000", "--epsilon", "5", "--device", "cpu",
                      "--budget", "kept-budget.jsonl", "--out", "unfinished")  # fmt: skip
    while begun.poll() is None and not (cli.work / "unfinished" / "private" / "metrics.jsonl").exists():
        time.sleep(0.2)
    begun.send_signal(signal.SIGINT)
    if begun.wait() != 130:
        raise SystemExit(f"the training that was to be stopped: exit {begun.returncode}")
    for name in ("unfinished", "kept-budget.jsonl.runs"):
        shutil.copytree(cli.work / name, keep / name)
    shutil.copy(cli.work / "kept-budget.jsonl", keep)


def _retrain(cli: Cli, keep: Path) -> dict[str, Any]:
    """A generator trained on the kept embedding, which takes the place of that of this version's own run."""
    shutil.copytree(cli.work / "kernel", cli.work / "origin")
    shutil.copy(keep / "embedding.safetensors", cli.work / "origin" / "release")
    cli("train", "--from", "origin", "--steps", "150", "--seed", "2", "--device", "cpu", "--out", "retrained")
    return _facts_of(cli.work / "retrained")


def _score(cli: Cli) -> dict[str, float]:
    ended = cli("evaluate", "kernel", "--metrics", "classifiers", "--classifiers", "logistic_regression",
                "--samples", "2000", "--device", "cpu", "--json")  # fmt: skip
    return {name: found["mean"] for name, found in json.loads(ended.stdout)["classifiers"].items()}


def _publish(cli: Cli) -> dict[str, Any]:
    """report, release, verify; verify of a release with a changed byte."""
    cli("report", "kernel")
    page = (cli.work / "kernel" / "release" / "report.html").read_text()
    statement = json.loads((cli.work / "kernel" / "release" / "privacy.json").read_text())
    cli("release", "kernel", "--out", "packed")
    verified = cli("verify", "packed")
    shutil.copytree(cli.work / "packed", cli.work / "changed")
    weights = cli.work / "changed" / "generator.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.chmod(0o644)
    weights.write_bytes(content)
    return {
        "report names epsilon": f"{statement['epsilon']:.4g}" in page,
        "report names delta": "0.00001" in page,
        "figures in report": len(re.findall(r"<img|<svg", page)),
        "files packed": sorted(str(path.relative_to(cli.work / "packed")) for path in (cli.work / "packed").rglob("*")),
        "verify": verified.returncode,
        "verify says": [verified.stdout.splitlines()[0], "VERIFIED" in verified.stdout],
        "verify of a changed release": cli("verify", "changed", fails=True).returncode,
    }


def _budget(cli: Cli) -> dict[str, Any]:
    """A run that is entered, and one that finds no room."""
    cli("budget", "budget.jsonl", "--epsilon", "12", "--delta", "1e-5")
    train = ["train", "--data", "digits", "--device", "cpu", "--steps", "20", "--budget", "budget.jsonl"]
    cli(*train, "--epsilon", "10", "--out", "entered")
    rows = [json.loads(line) for line in (cli.work / "budget.jsonl").read_text().splitlines()]
    return {
        "rows": len(rows),
        "entered": rows[1]["releases"],
        "cost": rows[1]["cost"],
        "no room": cli(*train, "--epsilon", "9", "--out", "refused", fails=True).returncode,
        "nothing made": not (cli.work / "refused").exists(),
    }


def _audit(cli: Cli) -> dict[str, Any]:
    """With the audit's own seed, from which every trial has other noise."""
    found = json.loads(cli("audit", "--json", fixed_noise=False).stdout)
    return {
        "verdict": found["verdict"],
        "lower bound": found["lower_bound"],
        "pairs": [
            (pair["trials"], pair["distribution_free"]["epsilon"], pair["trade_off"]["epsilon"])
            for pair in found["pairs"]
        ],
    }


def _earlier(cli: Cli, keep: Path) -> dict[str, str]:
    """What happens to the kept runs and the kept budget: `read`, or the words of the refusal."""
    for name in ("finished", "unfinished", "kept-budget.jsonl.runs"):
        shutil.copytree(keep / name, cli.work / "kept" / name)
    shutil.copy(keep / "kept-budget.jsonl", cli.work / "kept")
    commands = {
        "sample a finished run": ["sample", "kept/finished", "-n", "10", "--seed", "1", "--out", "kept/ten.npz"],
        "pack a finished run": ["release", "kept/finished", "--out", "kept/packed"],
        "train on its embedding": ["train", "--from", "kept/finished", "--steps", "20", "--out", "kept/again"],
        "show the budget": ["budget", "kept/kept-budget.jsonl"],
        "enter another run": ["train", "--data", "digits", "--epsilon", "5", "--steps", "20", "--budget",
                              "kept/kept-budget.jsonl", "--out", "kept/entered"],
        "resume an unfinished run": ["train", "--resume", "kept/unfinished"],
    }  # fmt: skip
    found: dict[str, str] = {}
    for name, command in commands.items():
        if command[1] == "--resume" and found["sample a finished run"] == "read":
            continue  # it is read, and has hours to go
        ended = cli(*command, fails=True)
        if "Traceback" in ended.stderr or (ended.returncode and not ended.stderr.startswith("gswgan: ")):
            raise SystemExit(f"{name}: exit {ended.returncode} without words\n{ended.stderr}")
        found[name] = "read" if ended.returncode == 0 else f"refused: {' '.join(ended.stderr.split())}"
    return found


def compare(before: dict[str, Any], after: dict[str, Any]) -> int:
    """Print what differs; how many differences are not of a score."""
    rows, bad = [], 0
    for name in sorted({*before["runs"], *after["runs"]}):
        old, new = before["runs"].get(name), after["runs"].get(name)
        if old is None or new is None:
            rows.append((name, "only before" if new is None else "only after"))
            bad += new is None
            continue
        differing = [fact for fact in old if old[fact] != new[fact]]
        rows.append((name, f"DIFFERS in {', '.join(differing)}" if differing else "same"))
        bad += bool(differing)
    for part in ("plans", "publishing", "budget"):
        if part in before and part in after:
            old, new = json.loads(json.dumps((before[part], after[part])))
            differing = [f"{fact} ({old[fact]} -> {new.get(fact)})" for fact in old if old[fact] != new.get(fact)]
            rows.append((part, f"DIFFERS in {', '.join(differing)}" if differing else "same"))
            bad += bool(differing)
    if "audit" in after:
        old, new = before["audit"], after["audit"]
        near = old["verdict"] == new["verdict"] and math.isclose(old["lower bound"], new["lower bound"], rel_tol=0.05)
        said = "; ".join(f"{one['verdict']}, epsilon at least {one['lower bound']:.4g}" for one in (old, new))
        rows.append(("audit", f"{'same' if near else 'DIFFERS'} ({said})"))
        bad += not near
    for name, score in before["score"].items():
        found = after["score"].get(name, math.nan)
        beyond = "" if math.isclose(score, found, abs_tol=SPREAD) else ", beyond the spread of seeds"
        rows.append((f"accuracy of {name}", f"{score:.4f} -> {found:.4f}{beyond}"))
    rows += [(f"earlier: {name}", what) for name, what in after["earlier"].items()]
    width = max(len(name) for name, _ in rows)
    for name, what in rows:
        print(f"{name:<{width}}  {what}")
    return bad


if __name__ == "__main__":
    main()
