"""A benchmark's result as JSON: what was run, where, on which commit."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch


def machine() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name(0)
    return f"{platform.machine()}, {os.cpu_count()} cores"


def commit() -> str:
    if given := os.environ.get("GSWGAN_COMMIT"):  # where a copy of the code runs
        return given
    try:
        return subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def record(path: Path | None, result: dict[str, Any]) -> None:
    content = {
        "command": " ".join(["python", *sys.argv]),
        "commit": commit(),
        "machine": machine(),
        "torch": torch.__version__,
        **result,
    }
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=1) + "\n")
