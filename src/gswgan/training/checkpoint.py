"""Checkpoints: named tensors in one safetensors file, written aside and renamed, bound to their plan. Private."""

from __future__ import annotations

import time
from pathlib import Path

import safetensors
import safetensors.torch
from torch import Tensor

from gswgan.errors import RunError
from gswgan.privacy.randomness import write_durably

EVERY_SECONDS = 20.0
SHARE = 20.0
"""A checkpoint may take at most one part in SHARE of the time."""


class Checkpoint:
    """The one checkpoint of a run."""

    def __init__(self, path: Path, plan_digest: str) -> None:
        self._path, self._digest = path, plan_digest
        self._due = time.monotonic() + EVERY_SECONDS

    def is_due(self) -> bool:
        """Whether it is time for another one."""
        return time.monotonic() >= self._due

    def save(self, step: int, parts: dict[str, dict[str, Tensor]]) -> None:
        """Keep the state after `step` steps."""
        began = time.monotonic()
        tensors = {f"{part}|{name}": value for part, state in parts.items() for name, value in state.items()}
        tensors = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
        metadata = {"format_version": "1", "step": str(step), "plan": self._digest}
        write_durably(self._path, safetensors.torch.save(tensors, metadata), mode=0o600)
        now = time.monotonic()
        self._due = now + max(EVERY_SECONDS, SHARE * (now - began))

    def load(self) -> tuple[int, dict[str, dict[str, Tensor]]] | None:
        """Steps done and the state after them; None where there is no checkpoint yet."""
        if not self._path.exists():
            return None
        try:
            with safetensors.safe_open(self._path, framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            step, plan = int(metadata["step"]), metadata["plan"]
        except (OSError, KeyError, ValueError, safetensors.SafetensorError) as wrong:
            raise RunError("checkpoint", str(self._path), "a whole checkpoint of this run") from wrong
        if plan != self._digest:
            raise RunError("checkpoint", f"of plan {plan[:12]}", f"one of plan {self._digest[:12]}", "Start a new run.")
        parts: dict[str, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            part, name = key.split("|", 1)
            parts.setdefault(part, {})[name] = value
        return step, parts
