"""`gswgan federate debug --protect record`: the site with the broken scanner is found, at the cost of one site."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from gswgan.cli.main import app
from gswgan.data import ImageData, load_data
from gswgan.evaluation.debugging import with_broken_scanner
from gswgan.federated.silos import site_parts
from gswgan.privacy.ledger import read_ledger
from gswgan.run.folder import RunFolder


def test_the_site_with_the_broken_scanner_is_found(tmp_path: Path):
    words = ["federate", "debug", "--data", "digits", "--protect", "record", "--sites", "3", "--epsilon", "20",
             "--delta", "1e-5", "--steps", "150", "--seed", "1", "--device", "cpu", "--out",
             str(tmp_path / "d")]  # fmt: skip
    said = CliRunner().invoke(app, words, catch_exceptions=False)
    assert said.exit_code == 0, said.output
    parts = dict(site_parts(load_data("digits"), "record", number=3, concentration=None, seed=1))
    faulty = with_broken_scanner(parts, seed=1)
    (broken,) = (name for name in parts if not np.array_equal(parts[name].images, faulty[name].images))
    found = json.loads((tmp_path / "d/debug.json").read_text())
    assert found["unlike"] == broken
    assert found["difference"] > 0.3, found
    cost = found["guarantee"]
    assert (cost["unit"], cost["neighbours"], cost["delta"]) == ("record", "replace-one", 1e-5)
    assert 19.9 < cost["epsilon"] <= 20.001  # of one site, not three times that
    for name in parts:
        assert len(read_ledger(RunFolder(tmp_path / "d" / name).ledger)[1]) == 1
    page = (tmp_path / "d/debug.html").read_text()
    assert "one record of one site replaced" in page
    assert page.count("<article>") == 3


def test_a_record_with_another_label_changes_its_own_site_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    data = load_data("digits")
    labels = data.labels.copy()
    labels[:100] = 9 - labels[:100]
    seen = []

    def stop(parts: dict[str, ImageData], *, seed: int) -> dict[str, ImageData]:
        seen.append(parts)
        raise InterruptedError

    monkeypatch.setattr("gswgan.evaluation.debugging.with_broken_scanner", stop)
    for number, known in enumerate((data, dataclasses.replace(data, labels=labels))):
        monkeypatch.setattr("gswgan.data.load_data", lambda name, known=known, **reading: known)
        words = ["federate", "debug", "--data", "digits", "--protect", "record", "--epsilon", "20", "--device", "cpu"]
        CliRunner().invoke(app, [*words, "--out", str(tmp_path / str(number))])
    before, after = seen
    for name, part in before.items():
        assert np.array_equal(part.images, after[name].images)  # every record stays where it was


def test_too_few_records_and_no_folder_are_refused(tmp_path: Path):
    words = ["federate", "debug", "--data", "digits", "--protect", "record", "--device", "cpu"]
    assert "Pass --out" in str(CliRunner().invoke(app, words).exception)
    words += ["--epsilon", "0.01", "--out", str(tmp_path / "d")]
    assert "records" in str(CliRunner().invoke(app, words).exception)
    assert not (tmp_path / "d").exists()
