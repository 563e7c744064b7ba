from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import gswgan.privacy
from gswgan.privacy.errors import PrivacyError

FOLDER = Path(gswgan.privacy.__file__).parent


def imported(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level == 0:
                for alias in node.names:
                    yield f"{node.module}.{alias.name}"
            elif node.level > 1:
                yield "gswgan"  # a relative import that leaves the package


def outward(source: str) -> list[str]:
    """Imports of gswgan outside gswgan.privacy."""
    return [n for n in imported(source) if n.split(".")[0] == "gswgan" and n.split(".")[:2] != ["gswgan", "privacy"]]


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.py")), ids=lambda p: p.name)
def test_the_privacy_core_imports_nothing_else_of_the_package(path: Path) -> None:
    assert outward(path.read_text()) == []


def test_the_import_check_finds_an_outward_import() -> None:
    for bad in ("import gswgan.critics", "from gswgan import errors", "from gswgan.data import x", "from .. import y"):
        assert outward(bad), bad
    assert not outward("from gswgan.privacy.errors import PrivacyError\nimport numpy")


def test_dp_accounting_is_imported_only_when_a_question_is_asked() -> None:
    code = (
        "import sys; from gswgan.privacy import *; from gswgan.privacy import claims; "
        "print(sorted(m for m in ('dp_accounting', 'mpmath') if m in sys.modules))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"


def test_everything_that_is_exported_exists() -> None:
    assert all(hasattr(gswgan.privacy, name) for name in gswgan.privacy.__all__)


def test_an_error_names_value_expectation_and_remedy() -> None:
    error = PrivacyError("rate", 2.0, "at most 1", "Lower it.")
    assert str(error) == "rate = 2.0: expected at most 1. Lower it."
