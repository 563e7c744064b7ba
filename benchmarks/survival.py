"""Runs on digits that are killed with SIGKILL, up to three times each, and resumed: does every one end as it should?

    python benchmarks/survival.py --runs 50 --jobs 2

Real child processes go through the real command line. Half of the runs have preset `kernel`, with half of their
kills inside the release (at a fault point), half have preset `ensemble` and are killed at random moments of their
life, imports included. All of it twice: with --insecure-reproducible every run must end with the weights, embedding
and ledger, byte for byte, of a run that was never killed; without it the ledger must count, and privacy.json state,
at least what was planned. Either way key, journal and checkpoint must be gone.

Fault points are no part of the product. `Faults` stands between a run and the operating system and names each
operation on a file of the run folder, such as `write ledger.jsonl half:2` (in the middle of the second write to that
file); at the chosen one it acts. `survival.py --child POINT -- train ...` is the command line with a fault point.
"""

from __future__ import annotations

import argparse
import dataclasses
import errno
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from gswgan.privacy import Streams
from gswgan.privacy.ledger import read_ledger
from gswgan.run import checkpoint
from gswgan.run.folder import RunFolder

FOLDERS = ("release", "private")


class Died(BaseException):
    """The simulated death of a process: nothing may catch it, and nothing reaches the disk after it."""


def kill() -> None:
    """A true death: no handler, no `finally`, no flush."""
    os.kill(os.getpid(), signal.SIGKILL)


def die() -> None:
    raise Died


def disk_full() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Faults:
    """Names the operations of a run, keeps their order in `passed`, and acts at the point `at`.

    An act that returns lets the run go on. One that raises is repeated at every later operation of its kind: a dead
    process does nothing more, a full disk takes nothing more (but files can still be removed).
    """

    def __init__(self, at: str | None = None, act: Callable[[], None] = die, *, sync: bool = True) -> None:
        """`sync` False leaves out the waiting for the disk, which a simulated death does not need."""
        self.at, self._act, self._acting, self._sync = at, act, False, sync
        self.passed: list[str] = []
        self._seen: Counter[str] = Counter()

    def _point(self, name: str) -> None:
        if self._acting and (self._act is die or name.startswith(("open", "write", "mkdir"))):
            self._act()
        self._seen[name] += 1
        self.passed.append(f"{name}:{self._seen[name]}")
        if self.passed[-1] == self.at:
            self._acting = True
            self._act()

    def _around(self, kind: str, path: str, original: Callable[..., Any], *given: Any) -> Any:
        self._point(f"{kind} {_name(path)} before")
        result = original(*given)
        self._point(f"{kind} {_name(path)} after")
        return result

    def _write(self, path: str, data: Any, put: Callable[[Any], Any]) -> int:
        name, view = f"write {_name(path)}", memoryview(data)
        self._point(f"{name} before")
        put(view[: len(view) // 2])
        self._point(f"{name} half")
        put(view[len(view) // 2 :])
        self._point(f"{name} after")
        return len(view)

    @contextmanager
    def installed(self) -> Iterator[Faults]:
        """Watch this process."""
        names = ("open", "write", "pwrite", "fsync", "replace", "unlink", "mkdir", "fdopen")
        real = {name: getattr(os, name) for name in names}

        def opened(path: Any, flags: int, *rest: Any, **options: Any) -> int:
            where = _inside(path, options.get("dir_fd"))
            if not _is_ours(where) or not flags & (os.O_CREAT | os.O_TRUNC) or Path(where).name == "lock":
                return int(real["open"](path, flags, *rest, **options))
            return int(self._around("open", where, lambda: real["open"](path, flags, *rest, **options)))

        def write(descriptor: int, data: Any) -> int:
            path = _path_of(descriptor)
            if not _is_ours(path):
                return int(real["write"](descriptor, data))
            return self._write(path, data, lambda part: _all(part, lambda rest: real["write"](descriptor, rest)))

        def pwrite(descriptor: int, data: Any, offset: int) -> int:
            return int(self._around("overwrite", _path_of(descriptor), real["pwrite"], descriptor, data, offset))

        def fsync(descriptor: Any) -> None:
            path = _path_of(descriptor)
            if not _is_ours(path):
                real["fsync"](descriptor)
            else:
                self._around("sync", path, real["fsync"] if self._sync else lambda _: None, descriptor)

        def replace(source: Any, target: Any, **options: Any) -> None:
            where = _inside(target, options.get("dst_dir_fd"))
            if not _is_ours(where):
                real["replace"](source, target, **options)
            else:
                self._around("replace", where, lambda: real["replace"](source, target, **options))

        def unlink(path: Any, **options: Any) -> None:
            where = _inside(path, options.get("dir_fd"))
            if not _is_ours(where) or not os.path.exists(where):
                real["unlink"](path, **options)
            else:
                self._around("unlink", where, lambda: real["unlink"](path, **options))

        def mkdir(path: Any, *rest: Any, **options: Any) -> None:
            if not _is_ours(path):
                real["mkdir"](path, *rest, **options)
            else:
                self._around("mkdir", os.fspath(path), lambda: real["mkdir"](path, *rest, **options))

        def fdopen(descriptor: int, *rest: Any, **options: Any) -> Any:
            path, file = _path_of(descriptor), real["fdopen"](descriptor, *rest, **options)
            return _Watched(file, self, path) if _is_ours(path) else file

        draw = Streams.rounded_gaussian

        def noise(streams: Streams, *given: Any) -> Any:
            return self._around("draw", "noise", draw, streams, *given)

        with mock.patch.multiple(
            os, open=opened, write=write, pwrite=pwrite, fsync=fsync, replace=replace, unlink=unlink, mkdir=mkdir,
            fdopen=fdopen,
        ), mock.patch.object(Streams, "rounded_gaussian", noise):  # fmt: skip
            yield self


class _Watched:
    """A file whose writes are fault points."""

    def __init__(self, file: Any, faults: Faults, path: str) -> None:
        self._file, self._faults, self._path = file, faults, path

    def write(self, data: bytes) -> int:
        def put(part: Any) -> None:
            self._file.write(part)
            self._file.flush()  # what a dead process has buffered would be lost

        return self._faults._write(self._path, data, put)

    def __enter__(self) -> _Watched:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _all(part: Any, write: Callable[[Any], int]) -> None:
    while len(part):
        part = part[write(part) :]


def _path_of(descriptor: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{int(descriptor)}")
    except OSError:
        return ""


def _name(path: str) -> str:
    """The name of a file, without what is random in that of one that is being written."""
    return re.sub(r"\.[0-9a-f]{16}\.part$", ".part", Path(path).name)


def _inside(path: Any, folder: int | None) -> Any:
    """The whole path of a name that is relative to an open folder."""
    return path if folder is None else os.path.join(_path_of(folder), path)


def _is_ours(path: Any) -> bool:
    """Whether this is a file or the folder of a run: release/, private/ or something in them."""
    try:
        place = Path(os.fspath(path))
    except TypeError:
        return False
    return place.name in FOLDERS or place.parent.name in FOLDERS


EARLY = (
    "open journal.jsonl after:1", "write journal.jsonl half:1", "sync journal.jsonl after:1",
    "open ledger.jsonl before:2", "write ledger.jsonl half:2", "sync ledger.jsonl after:2",
)  # fmt: skip
"""In a first start: around the line in the journal and the line in the ledger (whose first write is its header)."""

LATE = (
    "draw noise before:1", "draw noise after:1", "open embedding.safetensors.part after:1",
    "write embedding.safetensors.part half:1", "replace embedding.safetensors before:1",
    "replace embedding.safetensors after:1",
)  # fmt: skip
"""In any start that has not saved its embedding yet."""

ELSEWHERE = (
    "write checkpoint.safetensors.part half:1", "replace checkpoint.safetensors after:1",
    "write model.json.part half:1", "write privacy.json.part half:1", "replace privacy.json after:1",
    "write generator.safetensors.part half:1", "replace generator.safetensors before:1",
    "replace generator.safetensors after:1", "overwrite key.json after:1", "unlink key.json after:1",
    "unlink journal.jsonl after:1",
)  # fmt: skip
"""Checkpoints, publication, clean-up."""

RANDOM = "a random moment"
BEGUN = "run folder:"
"""What the command line says before a run begins or goes on."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """One plan, its folder of runs, and the run that was never killed."""

    preset: str
    reproducible: bool
    plan: Path
    reference: RunFolder
    life: float  # seconds from birth to end
    imports: float  # seconds of it before the run began


@dataclass(kw_only=True)
class Row:
    """What became of one run."""

    number: int
    preset: str
    mode: str
    kills: list[str] = field(default_factory=list)
    resumed_from: list[str] = field(default_factory=list)
    result: str = ""
    seconds: float = 0.0


def child(point: str, arguments: list[str]) -> None:
    """The command line, with frequent checkpoints and a fault point."""
    from gswgan.cli.main import run

    checkpoint.EVERY_SECONDS, checkpoint.SHARE = 0.3, 1.0
    sys.argv = ["gswgan", *arguments]
    with Faults(None if point == "none" else point, kill).installed():
        run()


def start(
    arguments: list[str], log: Path, *, point: str = "none", moment: float | None = None, begun: bool = False
) -> tuple[int, str, float]:
    """Run a child; kill it at the `moment`, in seconds of its life or, if `begun`, from when its run has begun.

    Its exit code, its output, and how many seconds passed before its run began.
    """
    command = [sys.executable, __file__, "--child", point, "--", "train", *arguments]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120", "PYTHONUNBUFFERED": "1"}
    log.write_text("")
    with log.open("w") as output:
        process, born = subprocess.Popen(command, stdout=output, stderr=output, env=env), time.monotonic()
        began: float | None = None
        while process.poll() is None:
            now = time.monotonic()
            if began is None and BEGUN in log.read_text():
                began = now
            since = born if not begun else began
            if moment is not None and since is not None and now - since >= moment:
                process.kill()
                process.wait()
            time.sleep(0.02)
    return process.returncode, log.read_text(), (began or time.monotonic()) - born


def save_plan(preset: str, reproducible: bool, coins: bool, folder: Path) -> None:
    from gswgan.data import load_data
    from gswgan.methods import ensemble, gswgan, make_plan
    from gswgan.plan.facts import Facts

    table = ensemble.load_preset(preset)
    if coins:  # digits have so few records that all critics would take part
        table["privacy"]["rate"] = 0.2
    options = {"steps": 150} if preset == "kernel" else {"steps": 16, "shards": 60}
    with mock.patch.object(gswgan, "load_preset", return_value=table):
        plan = make_plan(Facts.of(load_data("digits")), preset=preset, insecure_reproducible=reproducible, **options)
    folder.mkdir()
    plan.save(folder / "plan.json")


def never_killed(preset: str, reproducible: bool, coins: bool, folder: Path) -> Config:
    """The run that the others are compared with."""
    began = time.monotonic()
    arguments = ["--plan", str(folder / "plan.json"), "--data", "digits", "--device", "cpu"]
    code, text, imports = start([*arguments, "--out", str(folder / "straight")], folder / "straight.log")
    if code != 0:
        raise SystemExit(f"the run that was not killed failed:\n{text}")
    name = preset + (", coins" if coins else "")
    return Config(
        preset=name, reproducible=reproducible, plan=folder / "plan.json",
        reference=RunFolder(folder / "straight"), life=time.monotonic() - began, imports=imports,
    )  # fmt: skip


def kills_of(number: int, preset: str, draw: random.Random) -> list[str]:
    """One to three kills; of those of preset kernel half are inside the release, and these come first."""
    turn = number // 2  # every other run has this preset
    count = 1 + turn % 3
    if preset != "kernel":
        return [RANDOM] * count
    inside = (count + turn // 3 % 2) // 2  # odd numbers of kills are halved up and down in turn
    early = [draw.choice(EARLY + LATE[:-1])] if inside else []
    points = early + [draw.choice(LATE)] * (inside - 1)
    return points + [draw.choice([RANDOM, draw.choice(ELSEWHERE)]) for _ in range(count - inside)]


def survive(number: int, config: Config, draw: random.Random) -> Row:
    """Kill, resume, check; a run that was never resumed (killed before it had a folder, or too late) is made again."""
    mode = "reproducible" if config.reproducible else "secret"
    began = time.monotonic()
    for attempt in itertools.count():
        row = Row(number=number, preset=config.preset, mode=mode)
        folder = RunFolder(config.plan.parent / f"run-{number}-{attempt}")
        try:
            hurry = 2.0**-attempt  # the machine may be quicker by now
            _until_it_ends(folder, config, kills_of(number, config.preset, draw), row, draw, hurry)
            row.result = faults_of(folder, config) or "ok"
        except RuntimeError as wrong:
            row.result = str(wrong)
        row.seconds = round(time.monotonic() - began, 1)
        if attempt == 5 and row.result == "ok":
            row.result = "never resumed"
        if set(row.resumed_from) - {"new"} or row.result != "ok":
            return row
        shutil.rmtree(folder.root)


def _until_it_ends(
    folder: RunFolder, config: Config, kills: list[str], row: Row, draw: random.Random, hurry: float
) -> None:
    log = folder.root.with_suffix(".log")
    for kill_at in [*kills, None]:
        is_run = folder.model.exists()
        arguments = (
            ["--resume", str(folder.root)] if is_run else ["--plan", str(config.plan), "--out", str(folder.root)]
        )
        if not folder.source.exists():
            arguments += ["--data", "digits"]
        last_chance = kills[len(row.kills) :] == [RANDOM] and not set(row.resumed_from) - {"new"}
        begun = kill_at == RANDOM and (last_chance or draw.random() < 0.5)  # half over the whole life, half in the run
        span = hurry * (config.life - config.imports) if begun else config.life
        moment = draw.uniform(0, span) if kill_at == RANDOM else None
        point = "none" if kill_at in (None, RANDOM) else str(kill_at)
        code, text, _ = start([*arguments, "--device", "cpu"], log, point=point, moment=moment, begun=begun)
        if row.kills:
            step = re.search(r"resuming after step (\d+)", text)
            row.resumed_from.append(step.group(1) if step else "0" if is_run else "new")
        if code == -signal.SIGKILL:
            row.kills.append(point if moment is None else f"{moment:.1f} s" + (" of the run" if begun else ""))
        elif code == 0 or (code == 2 and "a run that has not ended" in text and folder.is_finished):
            return
        else:
            raise RuntimeError(f"exit code {code}: {text[-300:]}")
    raise RuntimeError("killed once more than was planned")


def faults_of(folder: RunFolder, config: Config) -> str:
    """What is wrong with a run that has ended; nothing, if all is well."""
    wrong = []
    if config.reproducible:
        for name in ("generator", "embedding", "ledger"):
            mine, straight = getattr(folder, name), getattr(config.reference, name)
            if straight.exists() and (not mine.exists() or mine.read_bytes() != straight.read_bytes()):
                wrong.append(f"another {mine.name}")
    plan = folder.plan()
    if len(read_ledger(folder.ledger)[1]) < plan.privacy.releases:
        wrong.append("releases that were not counted")
    if json.loads(folder.privacy.read_text())["epsilon"] < plan.guarantee.epsilon:
        wrong.append("an epsilon below the planned one")
    left = [path for path in (folder.key, folder.journal, folder.checkpoint) if path.exists()]
    wrong += [f"{path.name} left" for path in (*left, *folder.root.rglob("*.part"))]
    return ", ".join(wrong)


def _draw(seed: int, number: int, config: Config) -> random.Random:
    return random.Random(f"{seed} {number} {config.preset} {config.reproducible}")


def show(rows: list[Row], seconds: float) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("run", "preset", "mode", "killed", "resumed from step", "result", "seconds")
    for row in rows:
        cells = (row.number, row.preset, row.mode, "; ".join(row.kills), ", ".join(row.resumed_from), row.result)
        table.add_row(*map(str, cells), f"{row.seconds:.1f}")
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    good, kills = sum(row.result == "ok" for row in rows), sum(len(row.kills) for row in rows)
    print(f"{good} of {len(rows)} runs ended as they should after {kills} kills; {seconds:.0f} s")


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2], sys.argv[4:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=50, help="in each of the two modes")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0, help="of the kills")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/survival.json"))
    options = parser.parse_args()
    from record import record

    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="survival-") as place, ThreadPoolExecutor(options.jobs) as pool:
        kinds = [("kernel", False), ("ensemble", False), ("ensemble", True)]
        wanted: list[Any] = [(preset, mode, coins) for mode in (True, False) for preset, coins in kinds]
        wanted = [(*kind, Path(place) / str(index)) for index, kind in enumerate(wanted)]
        for kind in wanted:
            save_plan(*kind)
        configs = list(pool.map(lambda kind: never_killed(*kind), wanted))
        turns = [(0, 1, 0, 2)[i % 4] for i in range(options.runs)]  # half default, half ensemble
        jobs = [(number, configs[3 * mode + turn]) for mode in (0, 1) for number, turn in enumerate(turns)]
        rows = list(pool.map(lambda job: survive(*job, _draw(options.seed, *job)), jobs))
    seconds = time.monotonic() - began
    show(rows, seconds)
    failed = [row for row in rows if row.result != "ok"]
    kills = [kill for row in rows for kill in row.kills]
    points = Counter(kill for kill in kills if kill in EARLY + LATE + ELSEWHERE)
    inside = sum(points[point] for point in EARLY + LATE)
    result = {
        "machine": f"{os.cpu_count()} CPU cores", "seconds": round(seconds), "runs": len(rows), "failed": len(failed),
        "kills": len(kills), "kills_of_default": sum(len(row.kills) for row in rows if row.preset == "kernel"),
        "kills_inside_the_release": inside, "kills_at_fault_points": dict(points),
        "rows": [dataclasses.asdict(row) for row in rows],
    }  # fmt: skip
    record(options.out, result)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
