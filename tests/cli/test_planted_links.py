"""A stranger hands over a release or prepares a folder with symbolic links in it. Nothing is written through them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from planted import everything, gswgan, refused
from report_runs import a_run

from gswgan import load
from gswgan.errors import StorageError
from gswgan.run.folder import find_release


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """What a stranger would like to have changed."""
    home = tmp_path / "home"
    home.mkdir()
    (home / ".bashrc").write_text("alias ls=ls\n")
    (home / "report.html").write_text("my own page")
    (home / "samples.png").write_text("my own picture")
    return home


@pytest.fixture
def release(tmp_path: Path) -> Path:
    return Path(shutil.copytree(a_run("kernel") / "release", tmp_path / "release"))


PLANTED = {"report.html.part": ".bashrc", "report.html": ".bashrc", "figures": "."}


@pytest.mark.parametrize("name", sorted(PLANTED))
@pytest.mark.parametrize("out", [False, True])
def test_report_writes_through_no_link(
    release: Path, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, out: bool
) -> None:
    before = everything(home)
    place = tmp_path / "prepared" if out else release
    place.mkdir(exist_ok=True)
    (place / name).symlink_to(home / PLANTED[name])
    command = ("report", release, *(("--out", place) if out else ()))
    if name == "report.html.part":  # a name that is not used any more
        assert gswgan(*command) == 0
        assert (place / "report.html").is_file()
    else:
        assert "not a symbolic link" in refused(capsys, *command)
    assert everything(home) == before
    assert (place / name).is_symlink()


def test_a_private_report_writes_through_no_link(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(a_run("kernel"), tmp_path / "run"))
    before = everything(home)
    (run / "private" / "figures").symlink_to(home)
    assert "not a symbolic link" in refused(capsys, "report", run, "--private")
    assert everything(home) == before


def test_a_report_beside_a_packed_release_or_in_a_private_folder_follows_no_link(
    release: Path, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Folders that nobody named: an archive may hold a link of the default name beside the release, or as private/."""
    (home / "figures").mkdir()
    (home / "figures" / "training.png").write_text("my own figure")
    before = everything(home)
    (release / "manifest.json").write_text("{}")
    (tmp_path / "release-report").symlink_to(home)
    refused(capsys, "report", release)
    run = Path(shutil.copytree(a_run("kernel"), tmp_path / "run"))
    (run / "private").rename(tmp_path / "elsewhere")
    (run / "private").symlink_to(home)
    refused(capsys, "report", run, "--private")
    assert everything(home) == before


def test_a_report_may_go_to_a_folder_that_the_user_named_by_a_link(release: Path, tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "near").symlink_to(tmp_path / "far")
    assert gswgan("report", release, "--out", tmp_path / "near") == 0
    assert (tmp_path / "far" / "report.html").is_file()


@pytest.mark.parametrize(
    ("command", "out", "planted"),
    [
        ("sample", "synthetic.npz", ".synthetic-part.npz"), ("export", "set.npz", ".set-part.npz"),
        ("export", "set.csv", ".set-part.csv"), ("export", "set", ".set-part"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["link", "file"])
def test_sample_and_export_leave_alone_what_lies_beside_their_output(
    release: Path, home: Path, tmp_path: Path, command: str, out: str, planted: str, kind: str
) -> None:
    """The names that earlier versions wrote to, as links or as files of the user."""
    place = tmp_path / "place"
    place.mkdir()
    if kind == "link":
        (place / planted).symlink_to(home if out == "set" else home / ".bashrc")
    else:
        (place / planted).write_text("mine")
    before, beside = everything(home), everything(place)
    arguments = ("--out", place / out) if command == "sample" else (place / out,)
    assert gswgan(command, release, *arguments, "-n", 6, "--device", "cpu") == 0
    assert everything(home) == before
    after = everything(place)
    assert {name: after.get(name) for name in beside} == beside
    assert {Path(name).parts[0] for name in after} == {planted, out}


@pytest.mark.parametrize(
    ("command", "out"), [("sample", "s.npz"), ("export", "s.npz"), ("export", "s.csv"), ("export", "s")]
)
def test_sample_and_export_refuse_a_link_as_their_output(
    release: Path, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, out: str
) -> None:
    before = everything(home)
    (tmp_path / out).symlink_to(home / "new")
    arguments = ("--out", tmp_path / out) if command == "sample" else (tmp_path / out,)
    assert "does not exist yet" in refused(capsys, command, release, *arguments, "-n", 6)
    assert everything(home) == before


@pytest.mark.parametrize("name", ["evaluation.json", "evaluation"])
def test_evaluate_writes_through_no_link(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    run = Path(shutil.copytree(a_run("kernel"), tmp_path / "run"))
    (run / "private" / "evaluation.json").unlink(missing_ok=True)
    np.savez(tmp_path / "real.npz", images=np.zeros((60, 8, 8), np.uint8), labels=np.arange(60) % 3)
    before = everything(home)
    (run / "private" / name).symlink_to(home if name == "evaluation" else home / "new.json")
    given = ("--data", tmp_path / "real.npz", "--metrics", "label_accuracy,precision", "--samples", 60)
    assert "symbolic link" in refused(capsys, "evaluate", run, *given, "--device", "cpu")
    assert everything(home) == before


def test_save_plan_writes_through_no_link(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = everything(home)
    (tmp_path / "plan.json").symlink_to(home / "new")
    assert "does not exist yet" in refused(capsys, "train", "--save-plan", tmp_path / "plan.json")
    (tmp_path / "later.json").symlink_to(home / ".bashrc")  # made between the check and the write
    with pytest.raises(StorageError, match="not a symbolic link"):
        find_release(a_run("kernel")).plan().save(tmp_path / "later.json")
    assert everything(home) == before


@pytest.mark.parametrize("name", ["notes.txt", "more"])
def test_save_copies_nothing_that_links_point_to(release: Path, home: Path, tmp_path: Path, name: str) -> None:
    (release / name).symlink_to(home / ".bashrc" if name == "notes.txt" else home)
    model = load(release, device="cpu")
    with pytest.raises(StorageError, match="not a symbolic link"):
        model.save(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    (release / name).unlink()
    model.save(tmp_path / "copy")
    assert everything(tmp_path / "copy") == everything(release)
    assert load(tmp_path / "copy", device="cpu").sample(3)[0].shape == (3, 8, 8)


@pytest.mark.parametrize("name", ["embedding.safetensors", "ledger.jsonl", "privacy.json", "model.json"])
def test_retraining_copies_nothing_that_links_point_to(
    release: Path, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Into a folder that is made to be published."""
    (release / name).rename(home / name)
    (release / name).symlink_to(home / name)
    shown = refused(capsys, "train", "--from", release, "--out", tmp_path / "again", "--steps", 1, "--device", "cpu")
    assert "not a symbolic link" in shown
    assert not (tmp_path / "again").exists()


def test_a_run_folder_prepared_with_links_is_refused(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = everything(home)
    for name in ("release", "private"):
        run = tmp_path / f"run-{name}"
        run.mkdir(mode=0o755)
        (run / name).symlink_to(home)
        shown = refused(capsys, "train", "--data", "digits", "--out", run, "--steps", 2)
        assert "does not exist yet" in shown or "not a symbolic link" in shown
    (tmp_path / "empty").mkdir()
    run = tmp_path / "run-empty"
    run.mkdir(mode=0o755)
    (run / "private").symlink_to(tmp_path / "empty")
    assert "not a symbolic link" in refused(capsys, "train", "--data", "digits", "--out", run, "--steps", 2)
    assert everything(home) == before
    assert not os.listdir(tmp_path / "empty")
