"""Fault points: `Faults` stands between a run and the operating system and acts at a chosen operation.

Each operation on a file of the run folder has a name, such as `write ledger.jsonl half:2` (in the middle of the second
write to that file). `start` runs the command line in a process of its own with a fault point, or kills it at a moment.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from gswgan.privacy import Streams

BEGUN = "run folder:"
"""What the command line says before a run begins or goes on."""
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


def child(point: str, arguments: list[str]) -> None:
    """The command line, with frequent checkpoints and a fault point."""
    from gswgan.cli.main import run
    from gswgan.run import checkpoint

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


if __name__ == "__main__":
    child(sys.argv[2], sys.argv[4:])
