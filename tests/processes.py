"""Processes of their own for tests: forks of a server that has imported the package once, so that each takes little."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

SERVER = get_context("forkserver")
SERVER.set_forkserver_preload([
    "gswgan.api", "gswgan.cli.main", "gswgan.cli.training", "gswgan.critics.kernel.streaming", "gswgan.run.loop",
    "torch._dynamo",  # which torch imports with the first step of an optimizer
])  # fmt: skip


class Child:
    """A process that calls a function of a module with values that can be pickled."""

    def __init__(self, work: Callable[..., object], *given: Any) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="gswgan-child-"))
        self._ended: subprocess.CompletedProcess[str] | None = None
        work = pickle.dumps((work, given))
        self.process = SERVER.Process(target=_run, args=(self._folder, dict(os.environ), work))
        self.process.start()

    def wait(self) -> subprocess.CompletedProcess[str]:
        """Wait for its end: exit code (negative: a signal) and output."""
        if self._ended is None:
            self.process.join()
            said = [path.read_text() if (path := self._folder / name).exists() else "" for name in ("stdout", "stderr")]
            self._ended = subprocess.CompletedProcess([], self.process.exitcode, *said)
            shutil.rmtree(self._folder)
        return self._ended


def command_line(*arguments: object) -> Child:
    """The command line in a process of its own."""
    return Child(_main, [str(argument) for argument in arguments])


def _main(arguments: list[str]) -> None:
    from gswgan.cli.main import run

    sys.argv = ["gswgan", *arguments]
    run()


def _run(folder: Path, environment: dict[str, str], work: bytes) -> None:
    """Call the function, after its process was made like one that has just begun."""
    os.environ.update(environment)
    for number, name in ((1, "stdout"), (2, "stderr")):
        file = (folder / name).open("w", buffering=1)
        os.dup2(file.fileno(), number)
        setattr(sys, name, file)
    import torch

    torch.set_num_threads(1)
    function, given = pickle.loads(work)  # noqa: S301
    function(*given)
