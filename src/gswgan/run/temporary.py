"""Folders that live as long as the object that needs them, and that no killed process leaves a key in for long."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from gswgan.privacy.ownership import state_folder
from gswgan.privacy.randomness import erase_key
from gswgan.privacy.storage import locked, make_folder


def temporary_folder() -> tuple[Path, Callable[[], None]]:
    """A new folder that only this user can look into, and how to remove it. What dead processes left goes now.

    All of them lie in the user's state folder. Each holds a lock as long as its process lives, also if it is killed.
    """
    parent = state_folder() / "fits"
    make_folder(parent, private=True)
    held = contextlib.ExitStack()
    with locked(parent / "lock", wait=True):  # nobody takes a new folder for an old one
        for old in parent.iterdir():
            if old.is_dir() and not old.is_symlink():
                with contextlib.suppress(OSError), locked(old / "lock", wait=False):
                    _remove(old)
        folder = Path(tempfile.mkdtemp(dir=parent))
        held.enter_context(locked(folder / "lock", wait=False))

    def remove() -> None:
        _remove(folder)
        held.close()

    return folder, remove


def _remove(folder: Path) -> None:
    for key in folder.rglob("key.json*"):
        with contextlib.suppress(OSError):
            erase_key(key)
    shutil.rmtree(folder, ignore_errors=True)
