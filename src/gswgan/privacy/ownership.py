"""Marks that show whether a file was made by this user on this machine: message authentication codes.

The noise of a run is only as secret as its key. A run folder from somebody else may hold a key that they know, so that
they could subtract the noise. The mark is made with a secret in the user's state folder, so a folder from elsewhere is
recognized, wherever it is moved on this machine.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gswgan.privacy.errors import PrivacyError, StorageError
from gswgan.privacy.storage import check_own, locked, make_folder, read_private, write_durably

SECRET_BYTES = 32
MARK = "mark"


def state_folder() -> Path:
    """Return the folder of this user's secret: $GSWGAN_STATE, $XDG_STATE_HOME/gswgan or ~/.local/state/gswgan."""
    if given := os.environ.get("GSWGAN_STATE"):
        return Path(given).absolute()
    base = os.environ.get("XDG_STATE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".local" / "state") / "gswgan"
    except RuntimeError as wrong:
        raise StorageError("home folder", None, "a place for this user's secret", "Set GSWGAN_STATE.") from wrong


def marked(kind: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON content with the mark of this user."""
    return {**content, MARK: _mark(_secret(make=True), kind, content)}


def check_marked(kind: str, content: Mapping[str, Any], path: Path, todo: str = "Start a new run.") -> dict[str, Any]:
    """Return the content of a file without its mark; refuse a mark that is missing or not made with this secret."""
    bare, found = {name: value for name, value in content.items() if name != MARK}, content.get(MARK)
    if not isinstance(found, str):
        raise PrivacyError(
            kind, str(path), "one that was made by this user on this machine; this one has no mark",
            f"An earlier version made it, or somebody else, who may know more of it than they should. {todo}",
        )  # fmt: skip
    if not hmac.compare_digest(found.encode(), _mark(_secret(make=False), kind, bare).encode()):
        raise PrivacyError(
            kind, str(path), "one that was made by this user on this machine; its mark is another's",
            "Somebody else made it, who may know more of it than they should. If you made it on another machine, move "
            f"that machine's state folder (here it is {state_folder()}) as well, or set GSWGAN_STATE to it. {todo}",
        )  # fmt: skip
    return bare


def _mark(secret: bytes, kind: str, content: Mapping[str, Any]) -> str:
    text = json.dumps(["gswgan mark 1", kind, dict(content)], sort_keys=True)
    return hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()


def _secret(*, make: bool) -> bytes:
    """Return this user's secret. Where there is none, `make` creates it; else the result is random and fits no mark."""
    path = state_folder() / "owner.key"
    if make and not path.exists():
        try:
            make_folder(path.parent)
            check_own(path.parent)
            with locked(path.with_name("owner.lock"), wait=True):
                if not path.exists():
                    write_durably(path, os.urandom(SECRET_BYTES), mode=0o600)
        except OSError as wrong:
            raise StorageError(
                "state folder", str(path.parent), f"a folder that can be written ({wrong.strerror})",
                "Set GSWGAN_STATE to a folder of your own that stays.",
            ) from wrong  # fmt: skip
    try:
        check_own(path.parent)
        secret = read_private(path, SECRET_BYTES + 1)
    except FileNotFoundError:
        return os.urandom(SECRET_BYTES)
    if len(secret) != SECRET_BYTES:
        raise StorageError("secret", str(path), f"a file of {SECRET_BYTES} bytes", "Restore it, or remove it.")
    return secret
