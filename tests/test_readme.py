"""README.md: short, its commands run, and its table and docs/results.md are those of the records."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

import gswgan
import quality_figure
import result_runs
import result_tables
import results_page
from gswgan.cli.main import app
from gswgan.methods.advice import BEARABLE
from gswgan.plan.defaults import gradient_noise
from gswgan.plan.facts import Facts

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()

STALE = "run `python benchmarks/results_page.py`"


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", README, re.S | re.M)


def test_it_has_one_picture_and_a_short_table() -> None:
    assert README.count("![") == 1
    rows = [line for line in README.splitlines() if line.startswith("| ")]
    assert 1 < len(rows) <= 1 + 8


def test_its_python_runs_as_it_stands(tmp_path: Path, monkeypatch) -> None:
    """With fewer steps than by default, in an empty folder."""
    (code,) = blocks("python")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gswgan, "GSWGAN", functools.partial(gswgan.GSWGAN, steps=30, device="cpu"), raising=False)
    found: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, found)
    assert printed.getvalue().strip() in code  # the comment says what is printed
    assert found["images"].shape == (1000, 8, 8)
    with Image.open(tmp_path / "digits.png") as picture:
        assert picture.size == (600, 600)  # ten classes, ten samples each


def test_its_commands_run_as_they_stand(tmp_path: Path, monkeypatch) -> None:
    """With fewer steps than by default, in an empty folder."""
    (console,) = blocks("console")
    monkeypatch.chdir(tmp_path)
    said = []
    for line in console.splitlines():
        name, verb, *words = line.split()
        assert name == "gswgan"
        few = ["--steps", "30", "--device", "cpu"] if verb == "train" else []
        result = CliRunner().invoke(app, [verb, *words, *few], catch_exceptions=False)
        assert result.exit_code == 0, (line, result.output)
        said.append(result.output)
    assert (tmp_path / "synthetic.npz").exists()
    assert "epsilon 10" in said[-1]


def test_the_records_that_are_asked_for_make_the_noise_bearable() -> None:
    """1,500 and 11,500 records for ten classes of 28x28 at epsilon 10 and 1, whose noise is 1.000 and 7.462."""
    said = re.search(r"about ([\d,]+) records at epsilon 10 and ([\d,]+) at epsilon 1 ", " ".join(README.split()))
    assert said is not None
    for count, noise_std in zip(said.groups(), (1.0, 7.462), strict=True):
        facts = Facts(
            data="example", records=int(count.replace(",", "")), persons=None, classes=10,
            class_names=tuple("0123456789"), labelled=True, image_size=28, channels=1,
        )  # fmt: skip
        assert gradient_noise(facts, noise_std) == pytest.approx(BEARABLE, rel=0.05)


# -- results ------------------------------------------------------------------------------------------------------


def test_the_page_of_results_is_that_of_the_records() -> None:
    assert results_page.PAGE.read_text() == results_page.page(), STALE


def test_the_table_of_the_readme_is_that_of_the_records() -> None:
    assert results_page.readme(README) == README, STALE


def test_the_picture_is_that_of_the_records() -> None:
    with Image.open(results_page.PICTURE) as picture:
        assert picture.info.get("Source") == quality_figure.digest(quality_figure.points()), STALE


def test_a_record_that_changes_makes_the_page_stale(tmp_path: Path, monkeypatch) -> None:
    for path in result_runs.RESULTS.glob("*.json"):
        (tmp_path / path.name).write_text(path.read_text())
    changed = tmp_path / "mnist-eps10-seed0-h200.json"
    changed.write_text(json.dumps(json.loads(changed.read_text()) | {"fid": 5.0}))
    monkeypatch.setattr(result_runs, "RESULTS", tmp_path)
    assert results_page.PAGE.read_text() != results_page.page()
    assert results_page.readme(README) != README
    with Image.open(results_page.PICTURE) as picture:
        assert picture.info["Source"] != quality_figure.digest(quality_figure.points())


def test_figures_with_another_guarantee_are_not_put_beside_the_others(tmp_path: Path, monkeypatch) -> None:
    record = json.loads((result_runs.RESULTS / "mnist-eps10-seed0-h200.json").read_text())
    record["privacy"]["delta"] = 1e-3
    (tmp_path / "mnist-eps10-seed0-h200.json").write_text(json.dumps(record))
    monkeypatch.setattr(result_runs, "RESULTS", tmp_path)
    with pytest.raises(ValueError, match=r"0\.001"):
        result_runs.by_record()


def test_what_others_report_has_its_relation_and_is_recomputed() -> None:
    """FETA-Pro's 10, added or removed, is 18.6 replaced; Bie et al.'s is 20.97 (docs/methods.md)."""
    rows = result_runs.read("published")["rows"]
    assert all(row["relation"] in ("replaced", "added-or-removed") for row in rows)
    settings = {(row["source"], row["epsilon"]): row["setting"] for row in rows if "setting" in row}
    assert result_tables.recomputed(settings["FETA-Pro", 10], "replace-one") == pytest.approx(18.57, abs=0.01)
    assert result_tables.recomputed(settings["Bie et al. 2023", 10], "replace-one") == pytest.approx(20.97, abs=0.01)
    for (source, epsilon), setting in settings.items():  # not tighter than they say by more than Renyi accounting loses
        assert 0.8 * epsilon < result_tables.recomputed(setting, "zeroed") < epsilon, source
    assert "is 18.6 in our relation" in README
