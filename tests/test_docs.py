"""README.md and docs/ name files, functions and links: they must exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "gswgan"
PAGES = ("README.md", "CHANGELOG.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")))
THREATS = (ROOT / "docs" / "threat_model.md").read_text()

FUNCTION = r"`([\w/]+\.py): ([\w.]+)`"
FILE = r"`([\w/-]+/[\w-]+\.(?:py|toml|json))(?=[`: ])"
LINK = r"\]\(([^)#:]+)(?:#[^)]*)?\)"
OF_A_RUN = ("release/", "private/")
"""Folders that hold a run's files, unless they hold Python."""


def names(path: Path) -> set[str]:
    """Functions, classes and methods that a file defines."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
            inside = node.body if isinstance(node, ast.ClassDef) else []
            found |= {f"{node.name}.{inner.name}" for inner in inside if isinstance(inner, ast.FunctionDef)}
    return found


def place(file: str) -> Path:
    """Paths are those of the repository, or below src/gswgan/."""
    return ROOT / file if (ROOT / file).exists() else PACKAGE / file


def missing(page: str, folder: Path = ROOT) -> list[str]:
    """The files, functions and links of a page in this folder that are not there."""
    lost = []
    for file in sorted(set(re.findall(FILE, page))):
        if not place(file).exists() and not (file.startswith(OF_A_RUN) and file.endswith(".json")):
            lost.append(file)
    for file, name in sorted(set(re.findall(FUNCTION, page))):
        if place(file).exists() and name not in names(place(file)):
            lost.append(f"{file}: {name}")
    return lost + [link for link in re.findall(LINK, page) if not (folder / link).exists()]


@pytest.mark.parametrize("page", PAGES)
def test_everything_that_is_named_exists(page: str) -> None:
    path = ROOT / page
    assert missing(path.read_text(), path.parent) == []


def test_the_check_finds_what_is_missing() -> None:
    page = "`privacy/ledger.py: Ledger.record` `privacy/ledger.py: Ledger.no` `privacy/no.py: run` `tests/no.py`"
    lost = ["privacy/no.py", "tests/no.py", "privacy/ledger.py: Ledger.no", "no.md"]
    assert missing(page + " [here](README.md#use) [gone](no.md)") == lost
    assert len(re.findall(FUNCTION, THREATS)) > 35


def test_every_claim_names_a_function_and_every_gap_is_there() -> None:
    claims = THREATS[THREATS.index("## What is protected") : THREATS.index("## What was attacked")].splitlines()
    rows = [row for row in claims if row.startswith("| ")][1:]
    assert len(rows) > 15
    assert all(re.search(FUNCTION, row) for row in rows)
    attacks = THREATS[THREATS.index("## What was attacked: a server against its clients") :].splitlines()
    rows = [
        row for row in attacks[: attacks.index("## What was attacked: whole trainings, kills, files")] if "|" in row
    ]
    assert len(rows) > 10
    assert all(re.search(r"`tests/[\w/]+\.py: test_\w+`", row) for row in rows[2:])
    gaps = THREATS[THREATS.index("## What is not protected") :]
    for gap in (
        "Side channels",
        "Tuning on private data",
        "Repeated runs",
        "Several records",
        "Intermediate checkpoints",
    ):
        assert f"**{gap}" in gaps
