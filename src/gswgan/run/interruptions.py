"""What ends a run from outside: Ctrl-C, and a disk that is full or fails."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from gswgan.errors import RunError
from gswgan.run.folder import RunFolder


@contextmanager
def report_disk_errors(folder: RunFolder) -> Iterator[None]:
    """A full or failing disk stops the run; say that nothing is lost and how to go on."""
    try:
        yield
    except BrokenPipeError:  # whoever read our output has gone: nothing is wrong with the disk
        raise
    except OSError as wrong:
        where = f", {wrong.filename}" if wrong.filename else ""
        raise RunError(
            "run", str(folder.root), f"a disk that takes its files ({wrong.strerror or wrong}{where})",
            f"Nothing that was released is lost. When it does: gswgan train --resume {folder.root}",
        ) from wrong  # fmt: skip


@contextmanager
def stop_on_interrupt(note: Callable[[str], None], *, forced: bool = True) -> Iterator[threading.Event]:
    """The first Ctrl-C asks the loop to stop after the step and save; the second stops at once, if it may.

    (Below torchrun one Ctrl-C is heard twice: from the terminal, and from torchrun.)
    """
    stopped = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return

    def handler(number: int, frame: object) -> None:
        if stopped.is_set() and forced:
            raise KeyboardInterrupt
        stopped.set()
        with suppress(RuntimeError):  # it came while a line was written
            note("stopping after this step" + (" (Ctrl-C again stops at once)" if forced else ""))

    before = signal.signal(signal.SIGINT, handler)
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, before)
