"""The command line in this process, for files that somebody has planted."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gswgan.cli import main


def gswgan(*arguments: object) -> int:
    """Run a command; its exit code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["gswgan", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main.run()
    return int(ended.value.code or 0)


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Run a command that must be refused with one message and exit code 2; the message."""
    capsys.readouterr()
    code = gswgan(*arguments)
    shown = capsys.readouterr().err
    said = [line for line in shown.splitlines() if line.startswith("gswgan: ")]
    assert code == 2, shown
    assert len(said) == 1, shown
    assert "Traceback" not in shown
    return said[0]


def everything(folder: Path) -> dict[str, bytes | str]:
    """All files and links below a folder, to see that it has not changed."""
    return {
        str(path.relative_to(folder)): f"-> {path.readlink()}" if path.is_symlink() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }
