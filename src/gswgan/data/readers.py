"""Readers for idx, npy and npz files that trust nothing a file says about itself.

A header is checked against the bytes that are there before anything is allocated, pickles are never loaded,
and whatever is wrong with a file ends in a DataError that names it.
"""

from __future__ import annotations

import gzip
import io
import math
import os
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy

from gswgan.errors import DataError, StorageError, short

MAX_ARRAY_BYTES = 8 * 2**30  # of one array
DEFLATE_RATIO = 1032  # no deflate stream grows by more
_CHUNK = 2**20
MAX_HEADER_BYTES = 10_000  # of an npy array, as numpy has it
_IDX_TYPES: dict[int, np.dtype[Any]] = {0x08: np.dtype(np.uint8), 0x0C: np.dtype(">i4")}


def read_idx(path: Path) -> np.ndarray:
    """An idx file of unsigned bytes or 32-bit integers with 1 to 3 dimensions, plain or gzip."""
    with reading(path, "an idx file (plain or gzip) that is whole"), path.open("rb") as raw:
        on_disk = os.fstat(raw.fileno()).st_size
        zipped = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        stream: IO[bytes] = gzip.GzipFile(fileobj=raw) if zipped else raw  # type: ignore[assignment]
        start = stream.read(4)
        if len(start) < 4 or start[:2] != b"\0\0" or start[2] not in _IDX_TYPES or not 1 <= start[3] <= 3:
            raise DataError(
                str(path), start.hex(),
                "an idx file: two zero bytes, type 08 (bytes) or 0c (32-bit integers), 1 to 3 dimensions",
                "Check the file, or copy it again.",
            )  # fmt: skip
        sizes = stream.read(4 * start[3])
        if len(sizes) < 4 * start[3]:
            raise DataError(str(path), "a header cut short", "a whole idx header", "Copy the file again.")
        shape = tuple(int(size) for size in np.frombuffer(sizes, ">u4"))
        dtype = _IDX_TYPES[start[2]]
        claimed = math.prod(shape) * dtype.itemsize
        most = (on_disk + 64) * DEFLATE_RATIO if zipped else on_disk - 4 - len(sizes)
        check_claim(path, shape, claimed, most)
        content = _read_exactly(path, stream, claimed)
        values = np.frombuffer(content, dtype).reshape(shape)
        return values if dtype == np.uint8 else values.astype(np.int64)


def read_npz(path: Path, *names: str) -> dict[str, np.ndarray]:
    """The arrays of an npz, or those of `names` that it has. Numbers and strings only, never pickles."""
    with reading(path, "an npz file that is whole, without pickled objects"), zipfile.ZipFile(path) as archive:
        on_disk = path.stat().st_size
        found = {}
        for info in archive.infolist():
            name = info.filename.removesuffix(".npy")
            if name == info.filename or (names and name not in names):
                continue
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise DataError(str(path), name, "an array that is stored or deflated", _SAVEZ)
            ratio = 1 if info.compress_type == zipfile.ZIP_STORED else DEFLATE_RATIO
            if info.file_size > (on_disk + 64) * ratio:
                raise DataError(f"{path}: {name}", info.file_size, "a size that fits the file", _SAVEZ)
            with archive.open(info) as member:
                found[name] = _read_npy(path, f"{path}: {name}", member, info.file_size)
        return found


def read_npy(path: Path) -> np.ndarray:
    """The array of an npy file. Numbers and strings only, never pickles."""
    with reading(path, "an npy file that is whole, without pickled objects"), path.open("rb") as stream:
        return _read_npy(path, str(path), stream, os.fstat(stream.fileno()).st_size)


_SAVEZ = "Save arrays of numbers or strings with np.savez (or np.save)."


def npz_header(path: Path, name: str) -> tuple[tuple[int, ...], np.dtype[Any]] | None:
    """Shape and type of one array of an npz, without its values; None where it has no such array."""
    with reading(path, "an npz file that is whole, without pickled objects"), zipfile.ZipFile(path) as archive:
        if f"{name}.npy" not in archive.namelist():
            return None
        with archive.open(f"{name}.npy") as member:
            shape, _, dtype = _npy_header(f"{path}: {name}", member)
        return shape, dtype


def _npy_header(title: str, stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether it is stored by column, and type."""
    version = npy.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise DataError(title, f"npy version {version}", "version 1.0 or 2.0", _SAVEZ)
    start = stream.read(2 if version == (1, 0) else 4)
    length = int.from_bytes(start, "little")
    if length > MAX_HEADER_BYTES:  # numpy would read it whole before it looked
        raise DataError(title, f"a header of {length} bytes", f"at most {MAX_HEADER_BYTES} bytes", _SAVEZ)
    header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, by_column, dtype = header(io.BytesIO(start + stream.read(length)))
    if dtype.kind not in "biufUS" or dtype.itemsize == 0:
        raise DataError(title, f"dtype {dtype}", "numbers or strings, never pickled objects", _SAVEZ)
    if any(length < 0 for length in shape):
        raise DataError(title, short(f"shape {shape}"), "a shape without negative lengths", _SAVEZ)
    return shape, by_column, dtype


def _read_npy(path: Path, title: str, stream: IO[bytes], size: int) -> np.ndarray:
    """One array from a stream of `size` bytes, once its header is known to fit them."""
    shape, by_column, dtype = _npy_header(title, stream)
    claimed = math.prod(shape) * dtype.itemsize
    check_claim(path, shape, claimed, size - stream.tell())
    content = _read_exactly(path, stream, claimed)
    return np.frombuffer(content, dtype).reshape(shape, order="F" if by_column else "C")


def check_claim(path: Path, shape: tuple[int, ...], claimed: int, most: int) -> None:
    """Refuse an array of `claimed` bytes where the file has room for `most`, or the machine for less."""
    if claimed > most:
        raise DataError(
            str(path), short(f"a header for shape {shape}"),
            f"what the file has room for: {short(claimed)} bytes are claimed, at most {most} can be there",
            "Copy the file again.",
        )  # fmt: skip
    limit = min(
        MAX_ARRAY_BYTES, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 3
    )  # images are copied once
    if claimed > limit:
        raise DataError(
            str(path), f"{claimed} bytes", f"at most {limit} bytes in one array", "Use fewer or smaller images."
        )


def _read_exactly(path: Path, stream: IO[bytes], count: int) -> bytearray:
    """`count` bytes and not one more, growing with what is there and not with what is claimed."""
    content = bytearray()
    while len(content) < count:
        piece = stream.read(min(_CHUNK, count - len(content)))
        if not piece:
            raise DataError(str(path), f"{len(content)} bytes of values", f"{count} bytes", "Copy the file again.")
        content += piece
    if stream.read(1):  # at the end a compressed stream checks its sum, too
        raise DataError(
            str(path), "more bytes than its header says", f"{count} bytes of values", "Copy the file again."
        )
    return content


@contextmanager
def reading(path: Path, expected: str) -> Iterator[None]:
    """Whatever a damaged or hostile file makes the standard library raise becomes a DataError."""
    try:
        yield
    except DataError:
        raise
    except FileNotFoundError:
        raise DataError(str(path), "no such file", expected, "Check the path.") from None
    except Exception as error:
        problem = error.strerror if isinstance(error, OSError) and error.strerror else _problem(error)
        raise DataError(str(path), problem, expected, "Check the file, or copy it again.") from error


def _problem(error: Exception) -> str:
    """What the standard library found, in words where we have some."""
    words = {
        zipfile.BadZipFile: "no zip archive, or a damaged one", gzip.BadGzipFile: "damaged gzip data",
        zlib.error: "damaged compressed data", EOFError: "an early end", ValueError: "damaged content",
    }  # fmt: skip
    if isinstance(error, StorageError):
        return f"not {error.expected}"
    return words.get(type(error), f"damaged ({type(error).__name__})")
