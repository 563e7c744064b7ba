"""The files of a bundle: which there are, how large each may be, and how a file of unknown origin is read."""

from __future__ import annotations

import hashlib
import stat
from pathlib import Path

from gswgan.privacy.storage import MAX_JSON_BYTES, read_file
from gswgan.run.folder import MANIFEST

ALWAYS = ("card.md", "generator.safetensors", "ledger.jsonl", "model.json", "privacy.json", "samples.png")
"""In every bundle."""

SOMETIMES = ("embedding.safetensors", "encoder.safetensors", "federation.json", "first_generator.safetensors")
"""Where the plan has one."""

PAGE = "report.html"
"""The page by `gswgan report`, where there was one when the run was packed. What it says is not checked.

No other file is ever packed: it could hold anything."""

SAMPLES = "samples.npz"
"""A set of images, where one was asked for when the run was packed."""

MAX_BYTES = {
    MANIFEST: 2**16,
    "privacy.json": 2**18,
    "federation.json": 2**18,
    "model.json": MAX_JSON_BYTES,
    "card.md": MAX_JSON_BYTES,  # it may name all classes
    "samples.png": 2**24,
    PAGE: 2**25,
    SAMPLES: 2**31,
    "ledger.jsonl": 2**27,  # 300,000 releases
    "generator.safetensors": 2**30,
    "first_generator.safetensors": 2**30,
    "embedding.safetensors": 2**31,
    "encoder.safetensors": 2**30,
}
"""Whatever the plan says. Where it says more, the stage that reads the file compares its size first."""

MAX_LINE_BYTES = 2**11
"""Bytes in a line of a ledger."""


def plain_size(path: Path) -> int | None:
    """The size of a plain file; None for anything else. Nothing is opened, so no pipe or device can hold it up."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def read_plain(path: Path, most: int | None = None) -> bytes:
    """The content of a plain file of at most so many bytes (without a number: those of its kind)."""
    return read_file(path, MAX_BYTES[path.name] if most is None else most)


def checksum(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
