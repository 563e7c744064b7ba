"""Synthetic images as files: the names of classes stay with them, and other tools find them."""

from __future__ import annotations

import csv
import dataclasses
import sys
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from conftest import tiny_images, tiny_plan
from gswgan import load_data
from gswgan.cli.main import app
from gswgan.errors import PlanError, RunError
from gswgan.run.exports import class_folders, export_warnings, write_images
from gswgan.run.folder import RunFolder
from gswgan.run.loop import run
from gswgan.run.released import ReleasedModel, load

NAMES = ("bag", "uniform", "Bag")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ReleasedModel:
    data = dataclasses.replace(tiny_images(300), class_names=NAMES)
    folder = RunFolder.create(tmp_path_factory.mktemp("runs") / "run", tiny_plan(data))
    assert run(folder, data, device=torch.device("cpu"))
    return load(folder.root, device="cpu")


@pytest.fixture(autouse=True)
def no_progress_bars() -> None:
    datasets.disable_progress_bars()


def written(model: ReleasedModel, out: Path, n: int = 12) -> tuple[np.ndarray, np.ndarray]:
    images, labels = model.sample(n, seed=1)
    write_images(out, images, labels, NAMES)
    return images, labels


def test_npz_keeps_names_and_is_read_back(model: ReleasedModel, tmp_path: Path) -> None:
    images, labels = written(model, tmp_path / "set.npz")
    again = load_data(tmp_path / "set.npz")  # the number of classes is in the file
    assert again.class_names == NAMES
    assert np.array_equal(again.images[:, 0], images)
    assert np.array_equal(again.labels, labels)


def test_csv_keeps_names(model: ReleasedModel, tmp_path: Path) -> None:
    images, labels = written(model, tmp_path / "set.csv")
    with (tmp_path / "set.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["class_name"] for row in rows] == [NAMES[label] for label in labels]
    assert [int(row["label"]) for row in rows] == labels.tolist()
    assert [int(rows[3][f"pixel{place}"]) for place in range(64)] == images[3].reshape(-1).tolist()


def test_parquet_is_that_of_hugging_face(model: ReleasedModel, tmp_path: Path) -> None:
    images, labels = written(model, tmp_path / "set.parquet")
    found = datasets.Dataset.from_parquet(str(tmp_path / "set.parquet"), cache_dir=str(tmp_path / "cache"))
    assert found.features["label"].names == list(NAMES)
    assert found["label"][:] == labels.tolist()
    assert np.array_equal(np.stack([np.asarray(image) for image in found["image"]]), images)
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "set.parquet").rename(folder / "set.parquet")
    again = load_data(folder)
    assert again.class_names == NAMES
    assert np.array_equal(again.images[:, 0], images)


def test_parquet_without_pyarrow_is_refused_before_anything_is_drawn(
    model: ReleasedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    result = CliRunner().invoke(app, ["export", str(model.folder.root), str(tmp_path / "set.parquet")])
    assert isinstance(result.exception, RunError)
    assert "gswgan[parquet]" in str(result.exception)
    assert list(tmp_path.iterdir()) == []


def test_imagefolder_of_hugging_face_finds_the_names(model: ReleasedModel, tmp_path: Path) -> None:
    images, labels = written(model, tmp_path / "png")
    assert {path.name for path in (tmp_path / "png").iterdir()} == {"bag", "uniform", "Bag-2"}
    found = datasets.load_dataset("imagefolder", data_dir=str(tmp_path / "png"), cache_dir=str(tmp_path / "cache"))
    kind = found["train"].features["label"]
    drawn = {tuple(np.asarray(image).reshape(-1)): name for image, name in zip(images, np.array(NAMES)[labels])}
    for row in found["train"]:
        assert kind.int2str(row["label"]).removesuffix("-2") == drawn[tuple(np.asarray(row["image"]).reshape(-1))]


@pytest.mark.parametrize(
    ("names", "folders"),
    [
        (("bag", "T-shirt/top", "shoe"), ("bag", "T-shirt_top", "shoe")),
        (("a", "A", "a-2"), ("a", "A-2", "a-2-2")),
        (("caf\u00e9", "cafe\u0301"), ("caf\u00e9", "caf\u00e9-2")),
        (("a/b", "a_b", "a:b"), ("a_b", "a_b-2", "a_b-3")),
        ((".", "..", ".hidden", "x."), ("_", "_-2", "_.hidden", "x")),
        (("con", "NUL.png", "common"), ("_con", "_NUL.png", "common")),
        (("\u00e9" * 100,), ("\u00e9" * 100,)),
        (("\U0001f45c" * 100,), ("\U0001f45c" * 50,)),
    ],
)
def test_folders_are_named_after_classes(names: tuple[str, ...], folders: tuple[str, ...]) -> None:
    assert class_folders(names) == folders


@pytest.mark.parametrize("name", ["test", "Test-tube", "validation", "pre-train", "dev"])
def test_a_class_that_would_be_taken_for_a_split_is_warned_about(name: str) -> None:
    (warning,) = export_warnings(Path("png"), ("bag", name))
    assert f"'{name}'" in warning
    assert export_warnings(Path("set.parquet"), ("bag", name)) == []
    assert export_warnings(Path("png"), ("bag", "contest", "testament", "trainer")) == []


def test_one_class_by_its_name(model: ReleasedModel) -> None:
    assert model.sample(5, "bag")[1].tolist() == [0] * 5
    assert model.sample(4, 2)[1].tolist() == [2] * 4
    assert model.sample(5, ["uniform"])[1].tolist() == [1] * 5  # a class
    assert set(model.sample(50, "uniform")[1].tolist()) == {0, 1, 2}  # all classes
    assert model.sample(3, ["Bag", 1, "Bag"])[1].tolist() == [2, 1, 2]
    assert model.sample(2, np.array(["Bag", "bag"]))[1].tolist() == [2, 0]
    assert np.bincount(model.sample(10, ["Bag", 0])[1]).tolist() == [5, 0, 5]


@pytest.mark.parametrize("wrong", ["shoe", ["bag", "shoe"], [3], [-1], [1.5], [True], {"bag"}, [], ["bag", "bag", 0]])
def test_classes_that_are_not_there(model: ReleasedModel, wrong: object) -> None:
    with pytest.raises(PlanError, match="labels = "):
        model.sample(5, wrong)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match=r"The classes are 0 \(bag\), 1 \(uniform\), 2 \(Bag\)"):
        model.sample(5, "shoe")


def test_the_command_draws_one_class(model: ReleasedModel, tmp_path: Path) -> None:
    out = tmp_path / "set.npz"
    words = ["sample", str(model.folder.root), "-n", "6", "--out", str(out), "--device", "cpu"]
    assert CliRunner().invoke(app, [*words, "--class", "uniform"]).exit_code == 0
    assert load_data(out).labels.tolist() == [1] * 6
    out.unlink()
    assert CliRunner().invoke(app, [*words, "--class", "bag", "--class", "Bag"]).exit_code == 0
    assert sorted(load_data(out).labels.tolist()) == [0, 0, 0, 2, 2, 2]
    out.unlink()
    wrong = CliRunner().invoke(app, [*words, "--labels", "bag"])
    assert "For one class: --class bag." in str(wrong.exception)
    assert not out.exists()
