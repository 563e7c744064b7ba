"""How many files a command goes through, how many calls cross files, and how often the plan is parsed.

    python benchmarks/walk.py --out benchmarks/results/walk.json

Each walk is one process with a profiler: `gswgan train` with the default preset on a folder of PNG images (digits),
`gswgan sample` of 10 images, `gswgan release`, and one round of Algorithm 2 with 4 clients in one process (by
tests/federated/critic_rounds.py). A file counts when one of its functions runs, a call when it goes from a function
in one file to a function in another; each pair of functions counts once. What runs while a module is imported does not
count.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
from PIL import Image

import gswgan
from gswgan import load_data
from record import record

PACKAGE = Path(gswgan.__file__).parent
PARSERS = ("plan_from_table", "Plan.from_table")
"""The function that makes a plan of plain data, in this version and before; all others do it by calling this one."""
DIGESTS = ("Plan._digest", "Plan.digest")
"""The function that computes the digest of a plan, in this version and before."""
IS_FUNCTION = 0x1
"""CO_OPTIMIZED: neither a module nor the body of a class."""
PER_CLASS = 12
LIMITS = {"train": {"files": 35, "parses": 1}, "sample": {"files": 12, "parses": 1}}


class Walk:
    """What a profiler has seen of the package."""

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.calls: set[tuple[str, str]] = set()
        self.counted: Counter[str] = Counter()
        self._names: dict[CodeType, str | None] = {}
        self._importing = 0

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Profile what runs inside, in new threads too."""
        threading.setprofile(self._see)
        sys.setprofile(self._see)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def result(self) -> dict[str, Any]:
        """The figures, with the names of the files."""
        return {
            "files": len(self.files),
            "calls across files": len(self.calls),
            "parses": next((self.counted[name] for name in PARSERS if self.counted[name]), 0),
            "digests": next((self.counted[name] for name in DIGESTS if self.counted[name]), 0),
            "entered": sorted(self.files),
        }

    def _see(self, frame: FrameType, event: str, argument: object) -> None:
        if frame.f_code.co_name == "<module>" and event in ("call", "return"):
            self._importing += 1 if event == "call" else -1
        if event != "call" or self._importing or (file := self._file(frame.f_code)) is None:
            return
        self.files.add(file)
        name = frame.f_code.co_qualname
        if name in PARSERS or name in DIGESTS:
            self.counted[name] += 1
        caller = frame.f_back
        home = None if caller is None else self._file(caller.f_code)
        if caller is not None and home is not None and home != file:
            self.calls.add((f"{home}: {caller.f_code.co_qualname}", f"{file}: {name}"))

    def _file(self, code: CodeType) -> str | None:
        """The file of a function of the package, from its folder on."""
        if code not in self._names:
            path = Path(code.co_filename)
            inside = path.is_relative_to(PACKAGE) and code.co_flags & IS_FUNCTION
            self._names[code] = str(path.relative_to(PACKAGE)) if inside else None
        return self._names[code]


def command(*arguments: str) -> Callable[[], None]:
    """A command of gswgan, in this process."""
    from gswgan.cli.main import app

    def call() -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            app(list(arguments), standalone_mode=False)

    return call


def walk_train(work: Path) -> Callable[[], None]:
    data = load_data("digits")
    for label in range(10):
        folder = work / "png" / str(label)
        folder.mkdir(parents=True)
        for place in np.flatnonzero(data.labels == label)[:PER_CLASS]:
            Image.fromarray(data.images[place, 0]).save(folder / f"{place}.png")
    return command("train", "--data", str(work / "png"), "--steps", "20", "--device", "cpu", "--out", str(work / "run"))


def walk_sample(work: Path) -> Callable[[], None]:
    command("train", "--steps", "20", "--device", "cpu", "--out", str(work / "run"))()
    return command("sample", str(work / "run"), "-n", "10", "--device", "cpu", "--out", str(work / "ten.npz"))


def walk_release(work: Path) -> Callable[[], None]:
    command("train", "--steps", "20", "--device", "cpu", "--out", str(work / "run"))()
    return command("release", str(work / "run"), "--out", str(work / "packed"))


def walk_round(work: Path) -> Callable[[], None]:
    sys.path.insert(0, str(PACKAGE.parents[1] / "tests" / "federated"))
    import critic_rounds

    critic_rounds.DATA = critic_rounds.people(4)
    plan = critic_rounds.critic_plan(critic_rounds.DATA, rounds=1)
    those = critic_rounds.critic_clients(work / "clients", plan, critic_rounds.DATA)
    return lambda: critic_rounds.federate(work / "run", plan, those) and None


WALKS = {"train": walk_train, "sample": walk_sample, "release": walk_release, "round": walk_round}


def one(name: str) -> dict[str, Any]:
    """One walk in this process."""
    with tempfile.TemporaryDirectory() as work:
        call, walk = WALKS[name](Path(work)), Walk()
        with walk.watched():
            call()
    return walk.result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one", choices=WALKS, help="one walk, as JSON on stdout")
    parser.add_argument("--out", type=Path, help="write the result as JSON")
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(one(options.one)))
        return
    found, over = {}, False
    print(f"{'walk':<10}{'files':>6}{'calls across files':>20}{'plan parsed':>13}{'digests':>9}")
    for name in WALKS:
        ended = subprocess.run([sys.executable, __file__, "--one", name], stdout=subprocess.PIPE, text=True, check=True)
        row = found[name] = json.loads(ended.stdout.splitlines()[-1])
        over |= any(row[what] > most for what, most in LIMITS.get(name, {}).items())
        print(f"{name:<10}{row['files']:>6}{row['calls across files']:>20}{row['parses']:>13}{row['digests']:>9}")
    if not any(row["parses"] for row in found.values()):
        raise SystemExit(f"no walk parses a plan by {PARSERS}: say in this program which function does it")
    record(options.out, {"walks": found, "limits": LIMITS, "within": not over})
    sys.exit(1 if over else 0)


if __name__ == "__main__":
    main()
