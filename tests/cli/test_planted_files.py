"""Pipes, devices and odd names in what somebody hands over: no command hangs, reads without end or obeys a name."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from planted import gswgan, refused
from report_runs import EVIL, a_run

from gswgan.cli.console import PlainConsole
from gswgan.data import load_data
from gswgan.errors import DataError, GswganError, printable
from gswgan.evaluation.inception import read_weights
from gswgan.federated import site
from gswgan.run.folder import find_release, read_json
from gswgan.run.publish import card, plain_text
from processes import command_line

FILES = ("model.json", "privacy.json", "ledger.jsonl", "generator.safetensors", "embedding.safetensors")


@pytest.fixture
def release(tmp_path: Path) -> Path:
    return Path(shutil.copytree(a_run("kernel") / "release", tmp_path / "release"))


def plant(path: Path, kind: str) -> None:
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "endless":
        path.symlink_to("/dev/zero")
    else:
        path.touch()
        os.truncate(path, 2**42)  # a hole: it takes no space


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["pipe", "endless", "hole"])
def test_no_file_of_a_release_makes_a_command_hang(
    release: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, kind: str
) -> None:
    plant(release / name, kind)
    shown = refused(capsys, "report", release)
    assert name in shown
    if name in ("model.json", "generator.safetensors"):
        assert name in refused(capsys, "sample", release, "--out", tmp_path / "s.npz", "-n", 3)
    if name == "model.json":
        assert name in refused(capsys, "train", "--from", release, "--out", tmp_path / "again")
    assert not (tmp_path / "s.npz").exists()


@pytest.mark.parametrize("kind", ["pipe", "endless", "hole"])
def test_no_plan_makes_train_hang(tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    plant(tmp_path / "plan.json", kind)
    words = {"pipe": "not a named pipe", "endless": "not a", "hole": "at most 8388608 bytes"}[kind]
    assert words in refused(capsys, "train", "--plan", tmp_path / "plan.json", "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", ["pipe", "endless"])
def test_no_data_makes_train_hang(tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    for name in ("data.npz", "persons.csv", "public.st"):
        plant(tmp_path / name, kind)
    for given in (
        ("--data", tmp_path / "data.npz"),
        ("--data", "digits", "--group-by", tmp_path / "persons.csv"),
        (
            "--data",
            "mnist-writers",
            "--accuracy",
            "0.9..1",
            "--reference-classifier",
            tmp_path / "classifier.safetensors",
        ),
    ):
        refused(capsys, "train", *given, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", ["pipe", "endless"])
def test_no_other_file_makes_a_reader_hang(tmp_path: Path, kind: str) -> None:
    for name in ("leaf/all_data_0.json", "site.toml", "inception.pt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        plant(tmp_path / name, kind)
    with pytest.raises(DataError, match=r"a named pipe|a symbolic link"):
        load_data(tmp_path / "leaf", classes=62)
    with pytest.raises(GswganError, match=r"site\.toml.*a regular file, not a"):
        site.read_file(tmp_path / "site.toml")
    with pytest.raises(GswganError, match=r"inception\.pt.*a regular file, not a"):
        read_weights(tmp_path / "inception.pt")


# --- names that a terminal would obey

ESCAPES = "\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202e"


def test_escape_codes_of_an_image_name_do_not_reach_the_terminal(tmp_path: Path) -> None:
    folder = tmp_path / "data" / f"cats{ESCAPES}"
    folder.mkdir(parents=True)
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(folder / "a.png")
    (folder / f"b{ESCAPES}\ngswgan: all is well.png").write_bytes(b"no image")
    done = command_line("train", "--data", tmp_path / "data", "--out", tmp_path / "r").wait()
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.rstrip("\n").isprintable(), ascii(done.stderr)
    assert done.stdout == ""


def test_every_error_and_line_is_printable() -> None:
    wrong = DataError(f"name{ESCAPES}\nline", f"value{ESCAPES}", f"expected{ESCAPES}", f"todo{ESCAPES}")
    assert str(wrong).isprintable()
    assert isinstance(wrong, GswganError)
    assert printable(f"a{ESCAPES}\nb") == r"a\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202e" + "\nb"
    assert printable("Grüße, 数字, 🙂\n") == "Grüße, 数字, 🙂\n"
    console = PlainConsole(record=True, markup=False, file=open(os.devnull, "w"), width=200)  # noqa: SIM115
    console.print(f"run folder: {ESCAPES}")
    console.file.close()
    assert "\x1b" not in console.export_text(styles=False)


# --- the card


def test_a_card_holds_no_html_and_no_links_of_others() -> None:
    folder = find_release(a_run("kernel"))
    plan, statement = folder.plan(), read_json(folder.privacy, "privacy.json")
    names = (EVIL[0], EVIL[1], "[a](javascript:alert(1)) ![b](x) `code` **bold** | # h")
    facts = dataclasses.replace(plan.facts, data=EVIL[0], class_names=names)
    text = card(dataclasses.replace(plan, facts=facts), statement, [0])
    assert "<script" not in text
    assert "<img" not in text
    assert "](javascript" not in text
    assert "![b]" not in text
    assert "&lt;script&gt;alert\\(1\\)&lt;/script&gt;" in text
    assert plain_text("T-shirt/top 3") == "T-shirt/top 3"


def test_a_run_on_data_with_such_names_writes_such_a_card() -> None:
    text = find_release(a_run("evil")).card.read_text()
    assert "<script" not in text
    assert "after &lt;script&gt;" in text
    assert gswgan("report", a_run("evil")) == 0
