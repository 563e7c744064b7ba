"""docs/proof.md names a guard for every assumption; the guards must exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "proof.md").read_text()


def missing(page: str) -> list[str]:
    """Named tests that no file defines."""
    lost = []
    for path, name in sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page))):
        file = ROOT / path
        tree = ast.parse(file.read_text()) if file.exists() else ast.Module([], [])
        if name not in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}:
            lost.append(f"{path}::{name}")
    return lost


def test_every_named_test_exists() -> None:
    assert missing(PAGE) == []


def test_the_check_finds_a_missing_test() -> None:
    here = "tests/privacy/test_proof_page.py"
    assert missing(f"`{here}::test_nowhere` `{here}::test_every_named_test_exists`") == [f"{here}::test_nowhere"]
    assert missing("`tests/nowhere.py::test_a`") == ["tests/nowhere.py::test_a"]


def test_every_assumption_has_a_guard_or_is_a_caveat() -> None:
    entries = re.split(r"\n- (?=\*\*A\d+\*\*)", PAGE[PAGE.index("## 11.") :])[1:]
    assert [int(re.match(r"\*\*A(\d+)", entry)[1]) for entry in entries] == list(range(1, len(entries) + 1))
    assert all("::test_" in entry or "*Caveat*" in entry or "*Caveat.*" in entry for entry in entries)
