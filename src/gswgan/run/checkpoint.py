"""Checkpoints: named tensors in one safetensors file, written aside and renamed, bound to their plan. Private."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from gswgan.errors import RunError
from gswgan.privacy.storage import check_file, write_durably

FORMAT_VERSION = "3"
EVERY_SECONDS = 20.0
SHARE = 20.0
"""A checkpoint may take at most one part in SHARE of the time."""

PIECE = 2**26
"""Bytes that are digested at a time, by as many threads as there are cores."""

WITHOUT = (
    "Remove it and resume: the steps are done again. A release that comes out the same, bit for bit, is not counted "
    "again; one that does not is."
)
"""What is safe and true for every critic: the key and the journal stay, so nothing is lost but time."""


class Checkpoint:
    """One checkpoint file of a run."""

    def __init__(self, path: Path, plan_digest: str) -> None:
        self._path, self._plan = path, plan_digest
        self._due = time.monotonic() + EVERY_SECONDS

    def is_due(self) -> bool:
        """Whether it is time for another one."""
        return time.monotonic() >= self._due

    def save(self, step: int, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Keep the state after `step` steps."""
        began = time.monotonic()
        tensors = {f"{part}|{name}": value for part, state in parts.items() for name, value in state.items()}
        tensors = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
        metadata = {"format_version": FORMAT_VERSION, "step": str(step), "plan": self._plan}
        metadata["digest"] = _digest(metadata, tensors)
        write_durably(self._path, safetensors.torch.save(tensors, metadata), mode=0o600)
        now = time.monotonic()
        self._due = now + max(EVERY_SECONDS, SHARE * (now - began))

    def remove(self) -> None:
        """Begin anew."""
        self._path.unlink(missing_ok=True)

    def load(self) -> tuple[int, dict[str, dict[str, Tensor]]] | None:
        """Steps done and the state after them; None where there is no checkpoint yet."""
        if not self._path.exists():
            return None
        try:
            check_file(self._path)
            with safetensors.safe_open(self._path, framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            step, plan, digest = int(metadata["step"]), metadata["plan"], metadata.pop("digest")
            if metadata["format_version"] != FORMAT_VERSION or digest != _digest(metadata, tensors):
                raise ValueError("its digest does not fit")
        except (OSError, KeyError, ValueError, safetensors.SafetensorError) as wrong:
            raise RunError("checkpoint", str(self._path), "a whole checkpoint of this run", WITHOUT) from wrong
        if plan != self._plan:
            raise RunError("checkpoint", f"of plan {plan[:12]}", f"one of plan {self._plan[:12]}", WITHOUT)
        parts: dict[str, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            part, name = key.split("|", 1)
            parts.setdefault(part, {})[name] = value
        return step, parts


def _digest(metadata: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    """Of everything in the file: a bit that the disk has turned must not go on training."""
    heads, pieces = [repr(sorted(metadata.items()))], []
    for name in sorted(tensors):
        value = tensors[name]
        heads.append(f"{name} {value.dtype} {tuple(value.shape)}")
        whole = value.reshape(-1).view(torch.uint8).numpy().data
        pieces += [whole[start : start + PIECE] for start in range(0, len(whole), PIECE)]
    with ThreadPoolExecutor() as pool:
        digests = pool.map(lambda piece: hashlib.blake2b(piece, digest_size=32).digest(), pieces)
        return hashlib.blake2b(repr(heads).encode() + b"".join(digests), digest_size=32).hexdigest()
