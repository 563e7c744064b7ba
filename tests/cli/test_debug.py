"""`gswgan federate debug` with every critic, on tiny data."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import gswgan.data
from conftest import lines
from gswgan.cli.main import app
from gswgan.data import ImageData
from gswgan.evaluation import debugging
from gswgan.evaluation.reference_classifier import train_reference_classifier
from gswgan.methods import read_plan
from gswgan.privacy.ledger import read_ledger
from gswgan.run.folder import RunFolder, write_json

CLIENTS = 24


def pictures(seed: int) -> ImageData:
    data = lines(480, seed=seed)
    ids = tuple(f"client-{k}" for k in range(CLIENTS))
    persons = np.arange(data.n) // 3 % CLIENTS
    return dataclasses.replace(data, name="lines", persons=persons, person_ids=ids)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        gswgan.data, "load_data", lambda spec, split="train", **_: pictures(0 if split == "train" else 1)
    )
    monkeypatch.setattr(debugging, "EPOCHS", 8)  # few records, few steps


@pytest.fixture
def trained(tmp_path: Path, tiny: None) -> Path:
    """A folder that has its classifier, or a random one: what the groups are does not matter."""
    place, public = tmp_path / "d", pictures(1)
    train_reference_classifier(dataclasses.replace(public, persons=None), epochs=1).save(place / "public.safetensors")
    write_json(place / "public.json", {"public": "mnist-writers:test", "threshold": 0.35})
    return place


def run(*options: object) -> str:
    found = CliRunner().invoke(app, ["federate", "debug", "--device", "cpu", "--delta", "1e-3", *map(str, options)])
    assert found.exit_code == 0, (found.output, found.exception)
    return found.output


def test_the_bug_is_seen_with_the_kernel_critic(tiny: None, tmp_path: Path):
    said = run("--out", tmp_path / "d", "--steps", 120, "--epsilon", 30)
    found = json.loads((tmp_path / "d" / "debug.json").read_text())
    assert found["difference"] > 0.4, found
    assert found["bright_share"]["suspected"] > found["bright_share"]["unsuspected"]
    cost = found["guarantee"]
    assert (cost["neighbours"], cost["unit"], cost["delta"]) == ("zeroed", "person", 1e-3)
    assert 29.9 < cost["epsilon"] <= 30
    page = (tmp_path / "d" / "debug.html").read_text()
    assert "Epsilon <strong>30</strong> at delta 0.001, one client zeroed, for both generators together" in page
    assert "Towards the public; the aggregator" in page
    assert page.index('id="samples"') < page.index('id="numbers"') < page.index('id="guarantee"')
    assert page.count("<article>") == 2
    assert "bright background" in said
    for group in ("suspected", "unsuspected"):
        assert len(read_ledger(RunFolder(tmp_path / "d" / group).ledger)[1]) == 1
        assert (tmp_path / "d" / f"{group}.png").exists()
    before = (tmp_path / "d" / "debug.json").read_bytes()
    plan = RunFolder(tmp_path / "d" / "suspected").plan()
    plan.save(tmp_path / "plan.json")
    run("--out", tmp_path / "d", "--plan", tmp_path / "plan.json")  # all is there: it only draws again
    assert (tmp_path / "d" / "debug.json").read_bytes() == before


@pytest.mark.parametrize("options", [("--preset", "ensemble"), ("--method", "fed-avg-gan", "--preset", "noise-0.1")])
def test_it_runs_with_critics_at_clients_that_may_have_no_part_in_a_group(
    trained: Path, tmp_path: Path, options: tuple[str, ...]
):
    saved = tmp_path / "plan.json"
    run("--save-plan", saved, "--steps", 6, *options)
    run("--out", trained, "--plan", saved)
    plan = read_plan(saved)
    for group in ("suspected", "unsuspected"):
        _, entries, _ = read_ledger(RunFolder(tmp_path / "d" / group).ledger)
        assert len(entries) == sum(plan.releases().values())
    found = json.loads((tmp_path / "d" / "debug.json").read_text())
    assert found["guarantee"]["neighbours"] == "zeroed"
    assert (found["claimed"] is None) == (plan.method == "gswgan")


def scans(folder: Path, names: tuple[str, ...], seed: int) -> None:
    """Pictures of 12 bits in 16, in a folder for each person with one for each class."""
    data = pictures(seed)
    for index, (image, label, person) in enumerate(zip(data.images[:, 0], data.labels, data.persons)):  # type: ignore[arg-type]
        place = folder / f"p{person}" / names[label]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.astype(np.uint16) * 16).save(place / f"{index}.png")


def test_pictures_are_read_as_it_was_said_and_matched_by_the_names_of_their_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(debugging, "EPOCHS", 8)
    scans(tmp_path / "data", ("low", "middle", "top"), 0)
    scans(tmp_path / "public", ("low", "middle", "top"), 1)
    scans(tmp_path / "other", ("low", "centre", "top"), 1)
    read = ("--data", "data", "--layout", "person/class/", "--pixel-range", "0:4080")
    common = (*read, "--steps", 2, "--epsilon", 30)
    words = ["federate", "debug", "--device", "cpu", "--delta", "1e-3", *map(str, common)]
    wrong = CliRunner().invoke(app, [*words, "--public", "other", "--out", "d"])
    assert "public: classes = 'centre': expected names of classes that the run knows" in str(wrong.exception)
    assert not (tmp_path / "d").exists()
    run(*common, "--public", "public", "--out", "d")
    facts = RunFolder(tmp_path / "d" / "suspected").plan().facts
    assert (facts.persons, facts.class_names) == (CLIENTS, ("low", "middle", "top"))
    assert (facts.reading.layout, facts.reading.pixel_range) == ("person/class/", (0.0, 4080.0))


def test_nothing_is_spent_on_too_few_clients(tiny: None, tmp_path: Path):
    found = CliRunner().invoke(app, ["federate", "debug", "--device", "cpu", "--delta", "1e-3", "--epsilon", "0.5",
                                     "--out", str(tmp_path / "d")])  # fmt: skip
    assert str(found.exception).startswith("persons = 24: expected at least")
    assert not (tmp_path / "d").exists()


def test_wrong_wishes_are_refused(tiny: None, tmp_path: Path):
    for options in (
        ("--out", tmp_path / "d", "--save-plan", tmp_path / "p"),
        (),
        ("--out", tmp_path / "d", "--preset", "paper"),
        ("--out", tmp_path / "d", "--method", "dp-merf"),
    ):
        found = CliRunner().invoke(app, ["federate", "debug", *map(str, options)])
        assert found.exit_code != 0
        assert type(found.exception).__name__ == "PlanError"
    assert not (tmp_path / "d").exists()
