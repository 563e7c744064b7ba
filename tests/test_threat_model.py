"""docs/threat_model.md leads from each claim to a function; the functions must exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "threat_model.md").read_text()


def names(path: Path) -> set[str]:
    """Functions, classes and methods that a file defines."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
            inside = node.body if isinstance(node, ast.ClassDef) else []
            found |= {f"{node.name}.{inner.name}" for inner in inside if isinstance(inner, ast.FunctionDef)}
    return found


def missing(page: str) -> list[str]:
    lost = []
    for file, name in sorted(set(re.findall(r"`([\w/]+\.py): ([\w.]+)`", page))):
        path = ROOT / "src" / "gswgan" / file
        if not path.exists() or name not in names(path):
            lost.append(f"{file}: {name}")
    return lost


def test_every_named_function_exists() -> None:
    assert missing(PAGE) == []
    assert len(re.findall(r"`[\w/]+\.py: [\w.]+`", PAGE)) > 35


def test_the_check_finds_what_is_missing() -> None:
    page = "`privacy/ledger.py: Ledger.record` `privacy/ledger.py: Ledger.nothing` `privacy/no.py: run`"
    assert missing(page) == ["privacy/ledger.py: Ledger.nothing", "privacy/no.py: run"]


def test_every_claim_names_a_function_and_every_gap_is_there() -> None:
    claims = PAGE[PAGE.index("## What is protected") : PAGE.index("## What was attacked")].splitlines()
    rows = [row for row in claims if row.startswith("| ")][1:]
    assert len(rows) > 15
    assert all(re.search(r"`[\w/]+\.py: [\w.]+`", row) for row in rows)
    gaps = PAGE[PAGE.index("## What is not protected") :]
    for gap in (
        "Side channels",
        "Tuning on private data",
        "Repeated runs",
        "Several records",
        "Intermediate checkpoints",
    ):
        assert f"**{gap}" in gaps
