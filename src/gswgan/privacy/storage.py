"""Files and folders: durable writes, locks, and reads that trust neither a name nor what lies under it.

A folder may have been prepared by somebody else: a release that was handed over, a run folder, a folder that another
user of the machine made first. So nothing here follows a symbolic link at the end of a path, whatever is written
goes to a new file under a random name and is renamed when the disk has it, and only regular files of a bounded size
are read. Private files go only into folders that belong to this user and are closed to all others.
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
"""The most that a folder is opened to others, whatever the umask is."""

MAX_JSON_BYTES = 2**23
"""Of a JSON file that is read whole. Parsed, the worst file of this size takes a few hundred MB."""

PART = ".part"
"""How the name of a file ends while it is being written."""

_OWN = "Use a new folder. If it is yours and nobody else has changed it: "


def write_durably(path: Path, data: bytes, *, mode: int = 0o644) -> None:
    """Write aside, flush to the disk, rename: the file is the old one or the new one, never a part.

    The folder must not be a symbolic link, and what is replaced must be a regular file.
    """
    with opened_folder(path.parent) as folder:
        _check_replaceable(path, folder)
        aside = f"{path.name}.{secrets.token_hex(8)}{PART}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(aside, flags, mode, dir_fd=folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(aside, dir_fd=folder)  # a full disk needs the space
            raise
        os.fsync(folder)


def append_durably(path: Path, text: str, *, mode: int = 0o644, expected_size: int | None = None) -> None:
    """Append and do not return before the disk has it; refuse a file that another process has written to."""
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
    """Refuse a file of another size than this process left it with."""
    if size != expected:
        raise LedgerError("ledger size", size, f"{expected} bytes, as this run left it", "One run at a time.")


def drop_torn_tail(path: Path) -> None:
    """Cut a last line without its end: it was being written when the run died, so its release never happened."""
    descriptor = _open(path, os.O_RDWR)
    with os.fdopen(descriptor, "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # a line that is being written now is not torn
        data = file.read()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            file.truncate(whole)


def read_file(path: Path, most: int = MAX_JSON_BYTES, *, follow_link: bool = False) -> bytes:
    """The bytes of a regular file of at most `most` bytes: never a pipe or a device, which may have no end.

    `follow_link`: for a path that the user gave. A link in somebody's folder is not followed.
    """
    descriptor = _open(path, os.O_RDONLY, follow_link=follow_link)
    with os.fdopen(descriptor, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(most + 1) if size <= most else b""
    if max(size, len(data)) > most:
        raise StorageError("file", str(path), f"at most {most} bytes (it has {size})", "Check the path.")
    return data


def read_private(path: Path, most: int) -> bytes:
    """As `read_file`, of a file that belongs to this user and that others cannot read."""
    descriptor = _open(path, os.O_RDONLY)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(file.fileno())
        if found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise StorageError(
                "private file", f"{path}, owner {found.st_uid}, mode {stat.S_IMODE(found.st_mode):04o}",
                f"a file of user {os.geteuid()} with mode 0600", "Others may have read or written it.",
            )  # fmt: skip
        return file.read(most)


def check_file(path: Path, most: int | None = None, *, follow_link: bool = False) -> int:
    """The size of a regular file; refuses everything else, and a file of more than `most` bytes."""
    descriptor = _open(path, os.O_RDONLY, follow_link=follow_link)
    try:
        size = os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)
    if most is not None and size > most:
        raise StorageError("file", str(path), f"at most {most} bytes (it has {size})", "Check the path.")
    return size


def make_folder(path: Path, *, private: bool = False) -> None:
    """Make a folder and those above it. One that is there must be no link and, if private, this user's alone."""
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
    """Refuse a folder that is not this user's own, or that others can look into."""
    found = _status(folder)
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise StorageError(
            "private folder", f"{folder}, owner {found.st_uid}, mode {stat.S_IMODE(found.st_mode):04o}",
            f"a folder of user {os.geteuid()} with mode 0700, closed to all others",
            f"{_OWN}chown and chmod 700.",
        )  # fmt: skip


def check_own(folder: Path) -> None:
    """Refuse a folder that is not this user's own, or in which others can put files."""
    found = _status(folder)
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise StorageError(
            "folder", f"{folder}, owner {found.st_uid}, mode {stat.S_IMODE(found.st_mode):04o}",
            f"a folder of user {os.geteuid()} that nobody else can write to", f"{_OWN}chown and chmod go-w.",
        )  # fmt: skip


@contextlib.contextmanager
def opened_folder(folder: Path) -> Iterator[int]:
    """A descriptor of the folder itself: what happens to its name meanwhile does not matter."""
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
    """Hold the lock file at `path`. Where another process has it: wait, or raise BlockingIOError."""
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
    """What writers of `path` that died have left beside it."""
    return sorted(path.parent.glob(f"{path.name}*{PART}"))


def named_by_user(path: Path) -> Path:
    """The same place, for writing, with the links on the way to it followed: the user chose them."""
    return path.parent.resolve() / path.name


def _status(folder: Path) -> os.stat_result:
    with opened_folder(folder) as descriptor:
        return os.fstat(descriptor)


def _open(path: Path, flags: int, mode: int = 0o600, *, follow_link: bool = False) -> int:
    """Open a regular file, without waiting for whoever holds the other end of a pipe."""
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
    """What it is, in words."""
    kinds = {
        stat.S_IFLNK: "a symbolic link", stat.S_IFDIR: "a folder", stat.S_IFIFO: "a named pipe",
        stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFREG: "a file",
    }  # fmt: skip
    return kinds.get(stat.S_IFMT(mode), "something else")
