"""Durable writes, locks, and reads that do not trust a path, for Linux and macOS.

A folder may have been prepared by somebody else: a release that was handed over, a run folder, a folder that another
user of the machine made first. So nothing here follows a symbolic link at the end of a path, what is written goes to a
new file under a random name and is renamed once it is on the disk, and only regular files of a bounded size are read.
Private files go only into folders that belong to this user and are closed to all others.

Locks are our own and not those of the library `filelock`, which opens the lock file through symbolic links.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from gswgan.privacy.errors import LedgerError, StorageError

FOLDER_MODE, PRIVATE_MODE = 0o755, 0o700
"""The largest permissions that a new folder gets, whatever the umask is."""

MAX_JSON_BYTES = 2**23
"""The largest JSON file that is read. Parsed, the worst file of this size takes a few hundred MB of memory."""

PART = ".part"
"""The end of the name of a file that is being written."""

_OWN = "Use a new folder. If it is yours and nobody else has changed it: "


def write_durably(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Replace a file as a whole: after a crash it is the old one or the new one, never a part.

    The folder must not be a symbolic link, and what is replaced must be a regular file.
    """
    with opened_folder(path.parent) as folder:
        _check_replaceable(path, folder)
        aside = f"{path.name}.{secrets.token_hex(8)}{PART}"
        _write_new(aside, data, mode, folder)
        try:
            os.replace(aside, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            _remove(aside, folder)
            raise
        os.fsync(folder)


def create_durably(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Write a file that does not exist yet; raise FileExistsError where anything has its name."""
    with opened_folder(path.parent) as folder:
        _write_new(path.name, data, mode, folder)
        os.fsync(folder)


def _write_new(name: str, data: bytes, mode: int, folder: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(name, flags, mode, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        _remove(name, folder)  # a full disk needs the space
        raise


def _remove(name: str, folder: int) -> None:
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=folder)


def append_durably(path: Path, text: str, *, mode: int = 0o644, expected_size: int | None = None) -> None:
    """Append and return once it is on the disk; refuse a file whose size is not `expected_size`, if that is given."""
    fresh = not path.exists()
    descriptor = _open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, mode)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)  # until it is closed
        if expected_size is not None:
            check_size(os.fstat(descriptor).st_size, expected_size)
        data = memoryview(text.encode())
        while data:
            data = data[os.write(descriptor, data) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    if fresh:
        sync_folder(path.parent)


def check_size(size: int, expected: int) -> None:
    """Refuse a ledger file that another process has written to since this one did."""
    if size != expected:
        raise LedgerError("ledger size", size, f"{expected} bytes, as this run left it", "One run at a time.")


def drop_torn_tail(path: Path) -> None:
    """Cut off an incomplete last line: the process died while writing it, so what it announces never happened."""
    descriptor = _open(path, os.O_RDWR)
    with os.fdopen(descriptor, "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # a line that is being written now is not torn
        data = file.read()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            file.truncate(whole)


def whole_lines(data: bytes) -> bytes:
    """Return the data without an incomplete last line: for those who read a file and must not write to it."""
    return data[: data.rfind(b"\n") + 1]


def read_file(path: Path, most: int = MAX_JSON_BYTES, *, follow_link: bool = False) -> bytes:
    """Return the bytes of a regular file of at most `most` bytes; refuse a pipe or a device, which may have no end.

    `follow_link` is for a path that the user gave. A link inside a folder is not followed.
    """
    descriptor = _open(path, os.O_RDONLY, follow_link=follow_link)
    with os.fdopen(descriptor, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(most + 1) if size <= most else b""
    _check_bytes(path, max(size, len(data)), most)
    return data


def read_private(path: Path, most: int) -> bytes:
    """Return the first `most` bytes of a file that belongs to this user and that others cannot read."""
    descriptor = _open(path, os.O_RDONLY)
    with os.fdopen(descriptor, "rb") as file:
        expected = "a file of user {user} with mode 0600"
        _check_owner(
            "private file", path, os.fstat(file.fileno()), 0o077, expected, "Others may have read or written it."
        )
        return file.read(most)


def check_file(path: Path, most: int | None = None, *, follow_link: bool = False) -> int:
    """Return the size of a regular file; refuse anything else, and a file of more than `most` bytes."""
    descriptor = _open(path, os.O_RDONLY, follow_link=follow_link)
    try:
        size = os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)
    _check_bytes(path, size, size if most is None else most)
    return size


def erase_file(path: Path) -> None:
    """Overwrite a regular file in place and remove it; a link is removed, and what it points to is left alone.

    Copies that the storage keeps by itself (a journaling or copy-on-write file system, a flash drive, a backup) are
    out of reach from here.
    """
    if not os.path.lexists(path):
        return
    if stat.S_ISREG(path.lstat().st_mode):
        descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
        try:
            os.pwrite(descriptor, b"\0" * os.fstat(descriptor).st_size, 0)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    path.unlink()
    sync_folder(path.parent)


def make_folder(path: Path, *, private: bool = False) -> None:
    """Make a folder and those above it. An existing one must be no link; if private, it must be this user's alone."""
    for new in reversed([place for place in (path, *path.parents) if not os.path.lexists(place)]):
        with contextlib.suppress(FileExistsError):  # another process was quicker
            os.mkdir(new, PRIVATE_MODE if private and new == path else FOLDER_MODE)
            sync_folder(new.parent)
    if private:
        check_private(path)
    else:
        with opened_folder(path):
            pass


def check_private(folder: Path) -> None:
    """Refuse a folder that does not belong to this user, or that others can list or enter."""
    expected = "a folder of user {user} with mode 0700, closed to all others"
    _check_owner("private folder", folder, _status(folder), 0o077, expected, f"{_OWN}chown and chmod 700.")


def check_own(folder: Path) -> None:
    """Refuse a folder that does not belong to this user, or in which others can put files."""
    expected = "a folder of user {user} that nobody else can write to"
    _check_owner("folder", folder, _status(folder), 0o022, expected, f"{_OWN}chown and chmod go-w.")


def _check_owner(what: str, path: Path, found: os.stat_result, refused: int, expected: str, todo: str) -> None:
    if found.st_uid != os.geteuid() or found.st_mode & refused:
        value = f"{path}, owner {found.st_uid}, mode {stat.S_IMODE(found.st_mode):04o}"
        raise StorageError(what, value, expected.format(user=os.geteuid()), todo)


def _check_bytes(path: Path, size: int, most: int) -> None:
    if size > most:
        raise StorageError("file", str(path), f"at most {most} bytes (it has {size})", "Check the path.")


@contextlib.contextmanager
def opened_folder(folder: Path) -> Iterator[int]:
    """Give a descriptor of the folder, which stays valid when the folder is renamed; refuse a link."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as wrong:
        if os.path.lexists(folder) and not stat.S_ISDIR(os.lstat(folder).st_mode):
            what = _kind(os.lstat(folder).st_mode)
            raise StorageError("folder", str(folder), f"a folder, not {what}", "Nothing was written to it.") from wrong
        raise
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked(path: Path, *, wait: bool) -> Iterator[None]:
    """Hold the lock file at `path`; where another process has it, wait, or raise BlockingIOError.

    The operating system releases the lock when the process ends, however it ends.
    """
    descriptor = _open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Make a rename or a new file in the folder survive a power loss."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def left_asides(path: Path) -> list[Path]:
    """Return the unfinished files that interrupted writers of `path` have left beside it."""
    return sorted(path.parent.glob(f"{path.name}*{PART}"))


def named_by_user(path: Path) -> Path:
    """Return the path with links in its parent folders resolved: the user chose them."""
    return path.parent.resolve() / path.name


def _status(folder: Path) -> os.stat_result:
    with opened_folder(folder) as descriptor:
        return os.fstat(descriptor)


def _open(path: Path, flags: int, mode: int = 0o600, *, follow_link: bool = False) -> int:
    """Open a regular file and refuse anything else, without waiting for the other end of a pipe."""
    flags |= os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow_link else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags, mode)
        found = os.fstat(descriptor).st_mode
    except OSError as wrong:
        if wrong.errno not in (errno.ELOOP, errno.ENXIO, errno.EISDIR) or not os.path.lexists(path):
            raise
        descriptor, found = -1, os.lstat(path).st_mode
    if stat.S_ISREG(found):
        return descriptor
    if descriptor >= 0:
        os.close(descriptor)
    raise _not_a_file(path, found)


def _check_replaceable(path: Path, folder: int) -> None:
    try:
        found = os.stat(path.name, dir_fd=folder, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(found):
        raise _not_a_file(path, found)


def _not_a_file(path: Path, mode: int) -> StorageError:
    return StorageError("file", str(path), f"a regular file, not {_kind(mode)}", "Check who made it, or remove it.")


def _kind(mode: int) -> str:
    """Name the kind of a file for a message."""
    kinds = {
        stat.S_IFLNK: "a symbolic link", stat.S_IFDIR: "a folder", stat.S_IFIFO: "a named pipe",
        stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFREG: "a file",
    }  # fmt: skip
    return kinds.get(stat.S_IFMT(mode), "something else")
