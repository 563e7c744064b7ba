"""Another user of the machine prepares the folder of a run, or looks into one: no key, no private file for them."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import fault_points
import pytest
import torch
from fault_points import Died, Faults
from rounds import make_clients, people, small_plan

from conftest import tiny_images, tiny_plan
from gswgan import GSWGAN
from gswgan.errors import GswganError, StorageError
from gswgan.federated.client import home_of
from gswgan.run.folder import RunFolder
from gswgan.run.loop import run

CPU, DATA, NOBODY = torch.device("cpu"), tiny_images(48), 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act for another user")


def plan() -> object:
    return tiny_plan(DATA, steps=2)


def as_nobody(script: str, path: Path) -> subprocess.CompletedProcess[str]:
    """Run a shell script about a path ($1) as another user."""
    try:
        return subprocess.run(
            ["/bin/sh", "-c", script, "sh", str(path)], user=NOBODY, group=NOBODY, extra_groups=[], cwd="/",
            capture_output=True, text=True, env={"PATH": "/bin:/usr/bin", "LC_ALL": "C"},
        )  # fmt: skip
    except PermissionError as wrong:
        pytest.skip(f"this machine lets no process change its user ({wrong})")


@pytest.fixture
def shared() -> Iterator[Path]:
    """A place that everybody can reach and write to, like /tmp."""
    with tempfile.TemporaryDirectory(prefix="gswgan-shared-") as place:
        Path(place).chmod(0o1777)
        yield Path(place)


def stopped_run(root: Path) -> RunFolder:
    """A run with a key that died in its release."""
    folder = RunFolder.create(root, plan())
    with Faults("sync journal.jsonl after:1", fault_points.die, sync=False).installed(), pytest.raises(Died):
        run(folder, DATA, device=CPU)
    assert folder.key.exists()
    return folder


@needs_root
@pytest.mark.parametrize("prepared", ["root", "release", "private"])
def test_a_folder_that_another_user_made_is_refused(shared: Path, prepared: str) -> None:
    """They would own it: whatever is put there, they can take away, replace or wait for."""
    root = shared / "run"
    made = {"root": [root], "release": [root, root / "release"], "private": [root, root / "private"]}[prepared]
    for path in made:
        path.mkdir(mode=0o755)
    made[-1].chmod(0o777 if prepared == "private" else 0o755)
    os.chown(made[-1], NOBODY, NOBODY)
    with pytest.raises(StorageError, match="owner 65534"):
        RunFolder.create(root, plan())
    assert not list(root.rglob("*.json"))


@needs_root
def test_a_key_that_is_being_written_cannot_be_prepared(shared: Path) -> None:
    """A file of theirs under a name that we write to would stay theirs, with the key in it."""
    made = as_nobody(
        'umask 0; mkdir "$1" "$1/private" && : > "$1/private/key.json.part" && chmod 666 "$1/private/key.json.part"',
        shared / "run",
    )
    if made.returncode:
        pytest.skip(f"the other user cannot write here: {made.stderr[-200:]}")
    with pytest.raises(GswganError):
        run(RunFolder.create(shared / "run", plan()), DATA, device=CPU)
    assert (shared / "run" / "private" / "key.json.part").read_bytes() == b""
    assert not (shared / "run" / "private" / "key.json").exists()


@needs_root
def test_another_user_reads_no_private_file_of_a_run(shared: Path) -> None:
    before = os.umask(0)
    try:
        folder = stopped_run(shared / "run")
    finally:
        os.umask(before)
    tried = as_nobody('cat "$1"', folder.key)
    assert "ermission denied" in tried.stderr
    assert "secret" not in tried.stdout
    planted = as_nobody(': > "$1"', folder.release / "generator.safetensors")
    assert "ermission denied" in planted.stderr
    read = as_nobody('cat "$1"', folder.model)  # what may be published
    assert "format_version" in read.stdout, read.stderr


def test_no_folder_of_a_run_is_open_under_umask_0(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = RunFolder.create(tmp_path / "runs" / "run", plan())
        assert run(folder, DATA, device=CPU)
    finally:
        os.umask(before)
    for path in (folder.root.parent, folder.root, *folder.root.rglob("*")):
        assert not path.stat().st_mode & 0o022, path
        most = 0o755 if path.is_dir() else 0o644
        assert stat.S_IMODE(path.stat().st_mode) & ~most == 0, path
    assert stat.S_IMODE(folder.private.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("name", "mode", "words"),
    [("private", 0o755, "closed to all others"), ("private", 0o770, "closed to all others"),
     ("release", 0o777, "nobody else can write"), (".", 0o775, "nobody else can write")],
)  # fmt: skip
def test_a_run_that_was_opened_to_others_does_not_go_on(tmp_path: Path, name: str, mode: int, words: str) -> None:
    folder = stopped_run(tmp_path / "run")
    right = stat.S_IMODE((folder.root / name).stat().st_mode)
    (folder.root / name).chmod(mode)
    with pytest.raises(StorageError, match=words):
        run(folder, DATA, device=CPU)
    assert not folder.generator.exists()
    (folder.root / name).chmod(right)
    assert run(folder, DATA, device=CPU)


@needs_root
@pytest.mark.parametrize("name", [".", "release", "private"])
def test_a_run_of_another_user_does_not_go_on(tmp_path: Path, name: str) -> None:
    folder = stopped_run(tmp_path / "run")
    os.chown(folder.root / name, NOBODY, NOBODY)
    with pytest.raises(StorageError, match=r"owner 65534.*a folder of user 0"):
        run(folder, DATA, device=CPU)
    os.chown(folder.root / name, 0, 0)
    assert run(folder, DATA, device=CPU)


@needs_root
@pytest.mark.parametrize("how", ["owner", "mode", "link"])
def test_a_clients_home_that_somebody_prepared_is_refused(tmp_path: Path, how: str) -> None:
    data = people(12)
    asked = small_plan(data)
    home = home_of(tmp_path / "state", data.person_ids[0])
    home.parent.mkdir()
    if how == "link":
        (tmp_path / "theirs").mkdir(mode=0o700)
        home.symlink_to(tmp_path / "theirs")
    else:
        home.mkdir(mode=0o700)
        os.chown(home, NOBODY if how == "owner" else 0, -1)
        home.chmod(0o755 if how == "mode" else 0o700)
    with pytest.raises(StorageError, match=r"owner 65534|mode 0755|not a symbolic link"):
        make_clients(tmp_path / "state", data, asked)
    assert not list(tmp_path.rglob("*.json"))


def test_what_a_dead_process_was_writing_is_removed(tmp_path: Path) -> None:
    """Its key as well, and not what a link among it points to."""
    folder = stopped_run(tmp_path / "run")
    shutil.copy(folder.key, folder.private / "key.json.0123456789abcdef.part")
    (tmp_path / "precious").write_text("precious")
    (folder.private / "key.json.0000000000000000.part").symlink_to(tmp_path / "precious")
    os.mkfifo(folder.release / "card.md.0000000000000000.part")
    assert run(folder, DATA, device=CPU)
    assert not list(folder.root.rglob("*.part"))
    assert not folder.key.exists()
    assert (tmp_path / "precious").read_text() == "precious"


def test_fit_keeps_its_temporary_folder_to_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Path] = []
    real = RunFolder.create.__func__  # type: ignore[attr-defined]

    def create(cls: type[RunFolder], root: Path, *given: object, **options: object) -> RunFolder:
        folder = real(cls, root, *given, **options)
        seen.extend([folder.root.parent, folder.private])
        assert all(path.stat().st_uid == os.geteuid() for path in seen)
        assert all(stat.S_IMODE(path.stat().st_mode) == 0o700 for path in seen)
        return folder

    monkeypatch.setattr(RunFolder, "create", classmethod(create))
    before = os.umask(0)
    try:
        GSWGAN(steps=1, device="cpu").fit(DATA.images[:, 0], DATA.labels, classes=3)
    finally:
        os.umask(before)
    assert len(seen) == 2
