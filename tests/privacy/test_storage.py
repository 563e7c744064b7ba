"""Durable writes, locks and reads against names that somebody else has prepared."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from gswgan.privacy import storage
from gswgan.privacy.errors import StorageError
from gswgan.privacy.storage import (
    append_durably,
    check_file,
    check_own,
    check_private,
    create_durably,
    drop_torn_tail,
    locked,
    make_folder,
    named_by_user,
    read_file,
    write_durably,
)

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A file that must stay as it is."""
    path = tmp_path / "precious"
    path.write_bytes(b"precious")
    return path


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "place").mkdir(mode=0o700)
    return tmp_path / "place"


WRITERS: dict[str, Callable[[Path], object]] = {
    "write": lambda path: write_durably(path, b"new"),
    "append": lambda path: append_durably(path, "new\n"),
    "torn tail": drop_torn_tail,
    "lock": lambda path: locked(path, wait=False).__enter__(),
}


@pytest.mark.parametrize("name", sorted(WRITERS))
def test_a_link_is_never_written_through(place: Path, target: Path, name: str) -> None:
    (place / "file").symlink_to(target)
    with pytest.raises(StorageError, match="a regular file, not a symbolic link"):
        WRITERS[name](place / "file")
    assert target.read_bytes() == b"precious"
    assert (place / "file").is_symlink()


@pytest.mark.parametrize("name", sorted(WRITERS))
def test_a_dangling_link_makes_no_file(place: Path, tmp_path: Path, name: str) -> None:
    (place / "file").symlink_to(tmp_path / "new")
    with pytest.raises(StorageError, match="not a symbolic link"):
        WRITERS[name](place / "file")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", sorted(WRITERS))
def test_a_pipe_is_refused_and_does_not_hang(place: Path, name: str) -> None:
    os.mkfifo(place / "file")
    with pytest.raises(StorageError, match="a regular file, not a named pipe"):
        WRITERS[name](place / "file")


def test_a_new_file_takes_no_name_that_is_in_use(place: Path, target: Path) -> None:
    create_durably(place / "new", b"new")
    assert (place / "new").read_bytes() == b"new"
    assert stat.S_IMODE((place / "new").stat().st_mode) == 0o600
    (place / "link").symlink_to(target)
    (place / "dangling").symlink_to(place / "nothing")
    for name in ("new", "link", "dangling"):
        with pytest.raises(FileExistsError):
            create_durably(place / name, b"other")
    assert ((place / "new").read_bytes(), target.read_bytes()) == (b"new", b"precious")
    assert not (place / "nothing").exists()


def test_names_that_can_be_foreseen_are_not_used(place: Path, target: Path) -> None:
    """Links under the names that earlier versions wrote to."""
    for name in ("file.part", ".file-part", "file.tmp"):
        (place / name).symlink_to(target)
    write_durably(place / "file", b"new")
    assert (place / "file").read_bytes() == b"new"
    assert target.read_bytes() == b"precious"


def test_a_name_that_is_taken_is_not_opened(place: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even somebody who guesses the random name gets nothing."""
    monkeypatch.setattr(storage.secrets, "token_hex", lambda size: "0" * 16)
    (place / f"file.{'0' * 16}.part").symlink_to(target)
    with pytest.raises(FileExistsError):
        write_durably(place / "file", b"new")
    assert target.read_bytes() == b"precious"


def test_a_folder_that_is_a_link_is_refused(tmp_path: Path, place: Path) -> None:
    (tmp_path / "link").symlink_to(place)
    with pytest.raises(StorageError, match="a folder, not a symbolic link"):
        write_durably(tmp_path / "link" / "file", b"new")
    for private in (False, True):
        with pytest.raises(StorageError, match="a folder, not a symbolic link"):
            make_folder(tmp_path / "link", private=private)
    assert not list(place.iterdir())
    write_durably(named_by_user(tmp_path / "link" / "file"), b"new")  # but a user may name one
    assert (place / "file").read_bytes() == b"new"


def test_a_folder_that_is_renamed_meanwhile_still_gets_its_file(
    tmp_path: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is held open: a link put in its place between check and write leads nowhere."""
    (tmp_path / "elsewhere").mkdir()
    real = storage._check_replaceable

    def swap(path: Path, folder: int) -> None:
        real(path, folder)
        place.rename(tmp_path / "moved")
        place.symlink_to(tmp_path / "elsewhere")

    monkeypatch.setattr(storage, "_check_replaceable", swap)
    write_durably(place / "file", b"new")
    assert (tmp_path / "moved" / "file").read_bytes() == b"new"
    assert not list((tmp_path / "elsewhere").iterdir())


def test_what_fails_leaves_nothing_aside(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in (OSError(28, "No space left on device"), KeyboardInterrupt()):

        def fail(*given: object, wrong: BaseException = wrong, **options: object) -> None:
            raise wrong

        with monkeypatch.context() as patch:
            patch.setattr(storage.os, "replace", fail)
            with pytest.raises(type(wrong)):
                write_durably(place / "file", b"new")
        assert not list(place.iterdir())


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_nobody_else_can_write_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        make_folder(tmp_path / "a" / "b")
        make_folder(tmp_path / "a" / "private", private=True)
        write_durably(tmp_path / "a" / "file", b"")
        append_durably(tmp_path / "a" / "log", "line\n")
        write_durably(tmp_path / "a" / "private" / "key", b"", mode=0o600)
    finally:
        os.umask(before)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "a").rglob("*")}
    assert not any(mode & 0o022 for mode in modes.values()), modes
    assert modes[tmp_path / "a" / "private"] == 0o700
    assert modes[tmp_path / "a" / "private" / "key"] == 0o600


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o710, 0o701, 0o777])
def test_a_private_folder_is_closed_to_others(tmp_path: Path, mode: int) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "private").chmod(mode)
    with pytest.raises(StorageError, match=rf"mode {mode:04o}.*closed to all others"):
        make_folder(tmp_path / "private", private=True)


@needs_root
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(mode=0o700)
    os.chown(tmp_path / "theirs", NOBODY, NOBODY)
    for check in (check_own, check_private, lambda folder: make_folder(folder, private=True)):
        with pytest.raises(StorageError, match=r"owner 65534.*a folder of user 0"):
            check(tmp_path / "theirs")


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o777])
def test_a_folder_in_which_others_can_put_files_is_not_our_own(tmp_path: Path, mode: int) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(mode)
    with pytest.raises(StorageError, match="nobody else can write to"):
        check_own(tmp_path / "open")
    (tmp_path / "open").chmod(0o755)
    check_own(tmp_path / "open")


@pytest.mark.parametrize("what", ["pipe", "/dev/zero", "folder", "link"])
def test_only_regular_files_are_read(place: Path, target: Path, what: str) -> None:
    path = place / "file"
    if what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    else:
        path.symlink_to(what if what.startswith("/") else target)
    for read in (read_file, check_file):
        with pytest.raises(StorageError, match="a regular file, not a"):
            read(path)
    if what == "/dev/zero":
        with pytest.raises(StorageError, match="not a"):
            read_file(path, follow_link=True)
    if what == "link":
        assert read_file(path, follow_link=True) == b"precious"


def test_a_file_has_a_limit(place: Path) -> None:
    (place / "large").write_bytes(b"")
    os.truncate(place / "large", 2**40)  # a hole
    with pytest.raises(StorageError, match="at most 8388608 bytes"):
        read_file(place / "large")
    with pytest.raises(StorageError, match="at most 100 bytes"):
        check_file(place / "large", 100)
    (place / "small").write_bytes(b"12345")
    assert read_file(place / "small", 5) == b"12345"
    with pytest.raises(StorageError, match="at most 4 bytes"):
        read_file(place / "small", 4)


def test_a_lock_is_held_by_one_at_a_time(place: Path) -> None:
    with locked(place / "lock", wait=False):
        with pytest.raises(BlockingIOError), locked(place / "lock", wait=False):
            pass
        entered = threading.Event()

        def wait() -> None:
            with locked(place / "lock", wait=True):
                entered.set()

        waiting = threading.Thread(target=wait)
        waiting.start()
        assert not entered.wait(0.05)
    assert entered.wait()
    waiting.join()
