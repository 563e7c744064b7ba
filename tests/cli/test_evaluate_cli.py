from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from PIL import Image
from typer.testing import CliRunner

from conftest import tiny_images
from gswgan.cli.evaluate import evaluate
from gswgan.cli.main import app as everything
from gswgan.data import load_data
from gswgan.data.femnist import Writers
from gswgan.errors import DataError, PlanError
from gswgan.evaluation.inputs import EvaluationInputs
from gswgan.methods import make_plan
from gswgan.plan.facts import Facts
from gswgan.run.folder import RunFolder

app = typer.Typer()
app.command()(evaluate)
QUICK = ("--metrics", "classifiers", "--classifiers", "gaussian_nb,lda", "--device", "cpu")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def call(*arguments: object, code: int = 0) -> Any:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result


@pytest.fixture(scope="module")
def stripes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Private data in two files, and a run on the first."""
    folder = tmp_path_factory.mktemp("stripes")
    for name, seed in (("train", 1), ("test", 2)):
        data = tiny_images(120, seed=seed)
        np.savez(folder / f"{name}.npz", images=data.images[:, 0], labels=data.labels)
    arguments = ["train", "--data", folder / "train.npz", "--classes", 3, "--steps", 40, "--device", "cpu"]
    result = CliRunner().invoke(everything, [str(a) for a in [*arguments, "--out", folder / "run"]])
    assert result.exit_code == 0, result.output
    return folder


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    data = load_data("digits")
    path = tmp_path / "digits.npz"
    np.savez(path, images=data.images[:, 0], labels=data.labels)
    return path


def test_a_file_against_digits(digits: Path) -> None:
    result = call(digits, "--data", "digits", *QUICK, "--seeds", "1,2", "--json")
    content = json.loads(result.stdout)  # nothing else on stdout
    assert content["classifiers"]["lda"]["calibrated"] == pytest.approx(1, abs=0.02)
    assert set(content["classifiers"]["lda"]) >= {"mean", "std", "real", "calibrated"}
    assert {"inception_score", "fid", "precision", "recall", "label_accuracy"} <= set(content)
    assert content["chosen_on"] == "nothing: fixed recipe, last epoch"
    assert content["seeds"] == [1, 2]
    assert "gaussian nb" in result.stderr
    kept = json.loads(digits.with_suffix(".evaluation.json").read_text())
    assert kept["classifiers"] == content["classifiers"]
    table = call(digits, "--data", "digits", *QUICK, "--seeds", "1,2").stdout
    assert "PRIVATE" in table
    assert "lda" in table
    assert "digits.evaluation.json" in table


def test_a_run_keeps_its_figures_under_private(stripes: Path, cache: Path) -> None:
    run = stripes / "run"
    before = {path: path.read_bytes() for path in (run / "release").iterdir()}
    result = call(run, "--test-data", stripes / "test.npz", *QUICK, "--samples", 90, "--json")
    content = json.loads(result.stdout)
    assert content["classifiers"]["lda"]["real"] > 0.95
    assert content["basis"]["samples"] == 90
    assert json.loads((run / "private" / "evaluation.json").read_text())["basis"] == content["basis"]
    assert len(list((run / "private" / "evaluation").rglob("real.json"))) == 1
    assert {path: path.read_bytes() for path in (run / "release").iterdir()} == before
    assert not cache.exists()

    without = call(run, "--metrics", "classifiers", "--json")
    assert json.loads(without.stdout)["classifiers"] == {}
    assert "--test-data" in without.stderr


def test_a_release_alone_keeps_nothing(stripes: Path, tmp_path: Path, cache: Path) -> None:
    release = tmp_path / "published"
    shutil.copytree(stripes / "run" / "release", release)
    (tmp_path / "private").mkdir()  # of something else
    call(release / ".." / "published", "--data", stripes / "train.npz", "--test-data", stripes / "test.npz", *QUICK)
    images = np.random.default_rng(0).integers(0, 256, (90, 8, 8), dtype=np.uint8)
    np.savez(release / "set.npz", images=images, labels=np.arange(90) % 3)
    names = sorted(path.name for path in release.iterdir())
    more = ("--data", stripes / "train.npz", "--test-data", stripes / "test.npz", "--classes", 3)
    assert "Nothing is kept" in call(release / "set.npz", *more, *QUICK).stderr
    assert sorted(path.name for path in release.iterdir()) == names
    assert list((tmp_path / "private").iterdir()) == []
    assert not cache.exists()
    with pytest.raises(DataError, match="Pass --data"):
        call(release, *QUICK)


def test_train_size_and_samples(digits: Path) -> None:
    options = ("--data", "digits", *QUICK, "--json")
    content = json.loads(call(digits, *options, "--train-size", 150).stdout)
    small = content["classifiers"]["lda"]
    assert content["basis"]["train_size"] == 150
    assert small["real"] < json.loads(call(digits, *options).stdout)["classifiers"]["lda"]["real"]
    for option, value in (("--train-size", 5000), ("--train-size", 50), ("--samples", 5000), ("--samples", 20)):
        with pytest.raises(DataError):
            call(digits, *options, option, value)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--metrics", "accuracy"), "inception_score, fid"), (("--classifiers", "svm"), "linear_svc"),
        (("--classifiers", ","), "fast, all"), (("--settings", "best"), "paper or defaults"),
        (("--seeds", "1,x"), "such as 1,2,3"), (("--seeds", "-1"), "such as 1,2,3"),
    ],
)  # fmt: skip
def test_unknown_options(options: tuple[str, ...], reason: str, digits: Path) -> None:
    with pytest.raises(PlanError, match=reason):
        call(digits, "--data", "digits", *options)


def test_names_may_have_dashes(digits: Path) -> None:
    content = json.loads(
        call(digits, "--data", "digits", "--metrics", "classifiers", "--classifiers", "gaussian-nb", "--json").stdout
    )
    assert list(content["classifiers"]) == ["gaussian_nb"]


def test_bad_files_and_bad_pairs(digits: Path, stripes: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.npz"
    np.savez(bad, images=np.full((200, 8, 8), 254.0), labels=np.arange(200) % 10)
    with pytest.raises(DataError, match=r"outside \[0, 1\]"):
        call(bad, "--data", "digits", *QUICK)
    assert not bad.with_suffix(".evaluation.json").exists()
    with pytest.raises(DataError, match="no such file"):
        call(tmp_path / "nothing.npz", "--data", "digits", *QUICK)
    with pytest.raises(DataError, match="Pass --data"):
        call(digits, *QUICK)
    with pytest.raises(DataError, match="10 classes': expected 3 classes, as the run has"):
        call(stripes / "run", "--data", "digits", *QUICK)


def test_ctrl_c_says_how_to_go_on(digits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gswgan.evaluation import metrics

    def stop(*_: object, **__: object) -> float:
        raise KeyboardInterrupt

    monkeypatch.setattr(metrics, "predictions", stop)
    result = call(digits, "--data", "digits", *QUICK, code=130)
    assert "the same command continues" in result.stderr


def test_femnist_is_read_with_the_classes_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writers = Writers(
        images=np.zeros((62, 28, 28), np.uint8), labels=np.arange(62), persons=np.arange(62) % 20,
        ids=tuple(f"writer {index:02}" for index in range(20)),
    )  # fmt: skip
    monkeypatch.setattr("gswgan.data.sources.read_femnist_writers", lambda path, split: writers)
    monkeypatch.setattr("gswgan.data.download.Published.file", lambda self, name: tmp_path / name)
    for classes in (36, 62):
        facts = Facts.of(load_data("femnist-writers", classes=classes))
        RunFolder.create(tmp_path / str(classes), make_plan(facts, epsilon=10, delta=1e-3))
        train, test = EvaluationInputs(tmp_path / str(classes), "femnist-writers", None, None).real()
        assert train.classes == test.classes == classes


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a folder of three named classes, and held-out folders with all, without the second, with another."""
    folder = tmp_path_factory.mktemp("named")
    names = ("low", "middle", "top")
    for place, seed, renamed in (
        ("train", 1, names), ("all", 2, names), ("two", 2, ("low", None, "top")),
        ("other", 2, ("low", "centre", "top")), ("one", 2, (None, None, "top")),
    ):  # fmt: skip
        data = tiny_images(120, seed=seed)
        for index, (image, label) in enumerate(zip(data.images[:, 0], data.labels)):
            if renamed[label] is not None:
                (folder / place / renamed[label]).mkdir(parents=True, exist_ok=True)
                Image.fromarray(image).save(folder / place / renamed[label] / f"{index:03}.png")
    np.savez(folder / "numbers.npz", images=data.images[:, 0], labels=data.labels)
    arguments = ["train", "--data", folder / "train", "--steps", 40, "--device", "cpu", "--out", folder / "run"]
    result = CliRunner().invoke(everything, [str(argument) for argument in arguments])
    assert result.exit_code == 0, result.output
    return folder


def test_held_out_classes_are_matched_by_name(named: Path) -> None:
    whole = json.loads(call(named / "run", "--test-data", named / "all", *QUICK, "--json").stdout)
    assert whole["classifiers"]["lda"]["real"] > 0.95
    assert whole["notes"] == []
    said = call(named / "run", "--test-data", named / "two", *QUICK, "--json")
    content = json.loads(said.stdout)
    assert content["classifiers"]["lda"]["real"] > 0.95  # by number, `top` would be taken for `middle`
    (note,) = content["notes"]
    assert "no records of middle: left out of the scores, which are about the other 2 classes" in note
    assert note in said.stderr
    shutil.copytree(named / "run" / "release", named / "release")
    read = (named / "release", "--data", named / "train", "--test-data", named / "two")
    assert "no records of middle" in call(*read, *QUICK).stderr


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("other", r"test-data: classes = 'centre': expected names of classes that the run knows: low, middle, top"),
        ("numbers.npz", r"test-data: classes = '0, 1, 2': expected names"),
        ("one", r"test-data: classes = 1: expected records of at least two classes"),
    ],
)
def test_held_out_classes_that_are_not_known_are_refused(named: Path, place: str, said: str) -> None:
    before = sorted(path for path in (named / "run").rglob("*"))
    with pytest.raises(DataError, match=said):
        call(named / "run", "--test-data", named / place, *QUICK)
    assert sorted(path for path in (named / "run").rglob("*")) == before
