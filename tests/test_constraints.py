"""constraints.txt: one tested version of everything that is installed, within the ranges of pyproject.toml."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LINES = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]


def pinned() -> dict[str, str]:
    found = [re.fullmatch(r"([A-Za-z0-9._-]+)==([A-Za-z0-9.]+)", line) for line in LINES]
    assert all(found), [line for line, match in zip(LINES, found) if match is None]  # no hosts, paths or local versions
    return {canonicalize_name(match[1]): match[2] for match in found if match is not None}


def test_every_requirement_has_a_tested_version_within_its_range() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    used = ("eval", "federated", "parquet", "h5")
    wanted = [*project["dependencies"], *(one for name in used for one in extras[name])]
    wanted += [one for one in extras["dev"] if not one.startswith("gswgan")]
    versions = pinned()
    for requirement in map(Requirement, wanted):
        version = versions.get(canonicalize_name(requirement.name))
        assert version is not None, requirement
        assert requirement.specifier.contains(version), (requirement, version)


def test_a_newer_torch_is_allowed_and_the_tested_one_is_installed() -> None:
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    torch = next(one for one in map(Requirement, wanted) if one.name == "torch")
    assert torch.specifier.contains("2.14.0")
    assert torch.specifier.contains("3.0.0")
    assert SpecifierSet(">=2.8,<2.14").contains(pinned()["torch"])  # the CPU wheel is in this range


def test_the_makefile_installs_them() -> None:
    installs = [line for line in (ROOT / "Makefile").read_text().splitlines() if "pip install" in line]
    assert len(installs) == 2
    assert all("-c constraints.txt" in line for line in installs)
