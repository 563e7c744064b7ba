"""README.md and docs/ are short, and the files, functions, tests, commands and links that they name exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import typer.main

import architecture
import gswgan
from gswgan.cli.main import app

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "gswgan"
PAGES = ("README.md", "CHANGELOG.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")))
THREATS = (ROOT / "docs" / "guarantee.md").read_text()
MAX_PAGES, MAX_WORDS, MAX_WORDS_OF_README = 9, 12_600, 700
GENERATED = "docs/results.md"  # grows with what is measured

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


def test_every_threat_names_the_code_that_prevents_it_and_a_test_that_attacks_it() -> None:
    tables = THREATS[THREATS.index("## What could void") : THREATS.index("## What is not covered")]
    rows = [line for line in tables.splitlines() if line.startswith("| ") and "attacked in" not in line]
    assert len(rows) > 45
    for row in rows:
        enforced, attacked = row.strip("| ").split(" | ")[-2:]
        assert re.search(FUNCTION, enforced), row
        assert not enforced.startswith("`tests/"), row
        assert re.fullmatch(r"`tests/[\w/]+\.py: test_\w+`", attacked), row


def words(page: str) -> int:
    """Of a page with its tables and examples; the bars of a table and operators are no words."""
    return sum(any(letter.isalnum() for letter in word) for word in (ROOT / page).read_text().split())


def test_every_page_that_the_code_names_exists() -> None:
    code = [path for folder in (PACKAGE, ROOT / "benchmarks") for path in folder.rglob("*.py")]
    named = {(path.name, page) for path in code for page in re.findall(r"docs/\w+\.md", path.read_text())}
    assert len(named) > 10
    assert {one for one in named if not (ROOT / one[1]).exists()} == set()


def test_the_layers_are_those_of_the_package() -> None:
    page = " ".join((ROOT / "docs" / "paper_map.md").read_text().split())
    assert f"): {', '.join(architecture.layers(gswgan.__doc__ or ''))}." in page


def test_the_pages_are_few_and_short() -> None:
    pages = [page for page in PAGES if page.startswith("docs/")]
    assert len(pages) <= MAX_PAGES
    assert sum(words(page) for page in pages if page != GENERATED) <= MAX_WORDS
    assert len((ROOT / "README.md").read_text().split()) <= MAX_WORDS_OF_README


def test_every_picture_is_shown() -> None:
    picture = r"!\[[^]]*\]\((?:docs/)?([^)]+)\)"
    shown = {link for page in PAGES for link in re.findall(picture, (ROOT / page).read_text())}
    assert {path.name for path in (ROOT / "docs").iterdir() if path.suffix != ".md"} == shown


def options(words: list[str]) -> tuple[set[str], set[str]]:
    """The options among the words of a command, and those that the command has."""
    command: Any = typer.main.get_command(app)
    while words and words[0] in getattr(command, "commands", {}):
        command, words = command.commands[words[0]], words[1:]
    assert not hasattr(command, "commands"), words
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    return {word for word in words if word.startswith("-")}, known


@pytest.mark.parametrize("page", PAGES)
def test_every_command_has_its_options(page: str) -> None:
    text = (ROOT / page).read_text()
    shown = re.findall(r"^ {4}(.*)$", text, re.M) + [
        line for block in re.findall(r"^```console\n(.*?)^```", text, re.S | re.M) for line in block.splitlines()
    ]
    lines = [found[1] for line in shown if (found := re.match(r"(?:torchrun .* -m )?gswgan (.*)$", line))]
    for line in lines:
        asked, known = options(line.split("  #")[0].split())
        assert asked <= known, (line, asked - known)
    if page == "docs/tutorial.md":
        assert {line.split()[0] for line in lines} == set(typer.main.get_command(app).commands)  # every verb is shown
