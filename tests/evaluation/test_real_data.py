"""`--min-records`, `--accuracy`, `--reference-classifier`: who is left out, what stays public, what is refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from conftest import write_persons
from gswgan.cli.main import app
from gswgan.data import clients, make_image_data
from gswgan.errors import DataError, RunError
from gswgan.evaluation.real_data import NO_CHOICE_OF_PERSONS, load_data
from gswgan.evaluation.reference_classifier import ReferenceClassifier, train_reference_classifier
from gswgan.plan.facts import Facts

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tells bright pictures (class 1) from dark ones."""
    images = np.repeat([20, 200], 40).astype(np.uint8)[:, None, None] + RNG.integers(0, 30, (80, 8, 8), dtype=np.uint8)
    found = train_reference_classifier(make_image_data(images, np.repeat([0, 1], 40), classes=2), epochs=4)
    path = tmp_path_factory.mktemp("classifier") / "public.safetensors"
    found.save(path)
    return path


@pytest.fixture
def where(tmp_path: Path) -> dict[str, Any]:
    """ann is labelled as the classifier sees it, bea half so, carl has one record."""
    shade = np.array([20, 200, 20, 200, 20, 200, 20, 200, 20], np.uint8)
    labels = np.array([0, 1, 0, 1, 0, 1, 1, 0, 0])
    np.savez(tmp_path / "mine.npz", images=shade[:, None, None].repeat(8, 1).repeat(8, 2), labels=labels)
    table = write_persons(tmp_path / "ids.csv", ["ann"] * 4 + ["bea"] * 4 + ["carl"])
    return {"spec": str(tmp_path / "mine.npz"), "classes": 2, "group_by": str(table)}


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({}, [4, 4, 1]), ({"min_records": 2}, [4, 4, 0]), ({"min_records": 4, "accuracy": "0.939..1"}, [4, 0, 0]),
        ({"accuracy": "0.939.."}, [4, 0, 1]), ({"accuracy": "..0.882"}, [0, 4, 0]),
    ],
)  # fmt: skip
def test_who_is_left_out(options: dict[str, Any], sizes: list[int], where: dict[str, Any], classifier: Path) -> None:
    if "accuracy" in options:
        options = {**options, "reference_classifier": str(classifier)}
    data = load_data(**where, **options)
    assert [mine.n for _, mine in clients(data)] == sizes
    assert data.person_ids == ("ann", "bea", "carl")
    facts = Facts.of(data)
    assert (facts.records, facts.persons) == (9, 3)  # what is public does not say who belongs


def test_somebody_must_belong(where: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=r"none that belongs.*--min-records"):
        load_data(**where, min_records=5)


def test_a_classifier_is_trained_by_a_command(tmp_path: Path, where: dict[str, Any]) -> None:
    shade = RNG.permutation(np.repeat([20, 200], 60)).astype(np.uint8)
    images = shade[:, None, None] + RNG.integers(0, 30, (120, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "public.npz", images=images, labels=(shade == 200).astype(np.int64))
    command = [
        "reference-classifier", "--data", str(tmp_path / "public.npz"), "--classes", "2", "--out",
        str(tmp_path / "classifier.st"),
    ]  # fmt: skip
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "108 records, 2 classes" in result.output
    assert "accuracy:   1.000 on the 12 records" in result.output
    data = load_data(**where, accuracy="0.939..1", reference_classifier=str(tmp_path / "classifier.st"))
    assert [mine.n for _, mine in clients(data)] == [4, 0, 1]
    with pytest.raises(RunError, match="does not exist yet"):
        CliRunner().invoke(app, command, catch_exceptions=False)


def test_critics_of_persons_who_were_left_out_are_refused_before_the_run(tmp_path: Path, where: dict[str, Any]) -> None:
    options = ["--data", where["spec"], "--classes", "2", "--group-by", where["group_by"], "--dry-run"]
    for method in (["--preset", "ensemble"], ["--method", "g-pate"]):
        assert "3 persons" in _plan(*options, *method)
        with pytest.raises(DataError, match=r"without records.*kernel critic"):
            _plan(*options, *method, "--min-records", "2")


def test_everybody_is_the_source_alone(where: dict[str, Any]) -> None:
    remembered = {**where, "min_records": 4, "accuracy": "0..1", "reference_classifier": "gone"}
    data = load_data(**remembered | NO_CHOICE_OF_PERSONS)
    assert (data.n, data.persons) == (9, None)


@pytest.mark.parametrize("text", ["0.9", "", "a..b", "0.9..0.8", "0.5..1.5", "nan..1"])
def test_refused_ranges(text: str, where: dict[str, Any], classifier: Path) -> None:
    with pytest.raises(DataError, match=r"--accuracy 0\.939\.\.1"):
        load_data(**where, accuracy=text, reference_classifier=str(classifier))


def test_a_range_and_a_classifier_go_together(where: dict[str, Any], classifier: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="both --accuracy and --reference-classifier"):
        load_data(**where, accuracy="0.5..1")
    with pytest.raises(DataError, match="both --accuracy and --reference-classifier"):
        load_data(**where, reference_classifier=str(classifier))
    with pytest.raises(DataError, match=r"absent.*--reference-classifier"):
        load_data(**where, accuracy="0.5..1", reference_classifier=str(tmp_path / "absent"))
    with pytest.raises(DataError, match=r"reference_classifier.*\(1, 8, 3\)"):
        load_data(**{**where, "classes": 3}, accuracy="0.5..1", reference_classifier=str(classifier))


def test_nobody_is_left_out_of_a_held_out_part(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_data(spec="digits", split="test", min_records=7).n == 360
    with pytest.raises(DataError, match="by person"):
        load_data(spec="digits", min_records=7)


def test_the_plan_speaks_of_persons(tmp_path: Path) -> None:
    for client in range(20):
        (tmp_path / "people" / str(client) / "one").mkdir(parents=True)
        (tmp_path / "people" / str(client) / "two").mkdir()
        for index in range(1 + client % 2):
            Image.new("L", (8, 8), 10 * client).save(tmp_path / "people" / str(client) / "one" / f"{index}.png")
    text = _plan("--data", str(tmp_path / "people"), "--layout", "person/class/", "--min-records", "2")
    assert "30 records of 20 persons, 2 classes" in text
    assert "300 records of 200 persons: noise" in text  # what more data would buy
    assert "one person replaced" in text


def test_mnist_by_writer_is_planned_for_539_persons() -> None:
    folder = os.environ.get("GSWGAN_DATA")
    if not folder or not all((Path(folder) / name).is_dir() for name in ("mnist", "qmnist_writers")):
        pytest.skip("GSWGAN_DATA names no folder with mnist and qmnist_writers")
    assert "60,000 records of 539 persons" in _plan("--data", "mnist-writers", "--epsilon", "10", "--delta", "1e-4")


def _plan(*options: str) -> str:
    result = CliRunner().invoke(app, ["train", *options, "--dry-run"], catch_exceptions=False)
    assert result.exit_code == 0, result.exception
    return result.output


def test_the_fixture_tells_classes_apart(classifier: Path) -> None:
    assert (
        ReferenceClassifier.load(classifier).accuracy(np.full((3, 1, 8, 8), 200, np.uint8), np.array([1, 1, 1])) == 1.0
    )
