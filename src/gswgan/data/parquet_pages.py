"""The sizes that a Parquet file claims for its pages: taken from the pages' headers and checked before one is read.

A page is unpacked into as many bytes as its header says, and a value of a dictionary is repeated for every row that
names it: a file of 2 KB can ask for 8 GB. What stands in the footer is not looked at, since the reader does not look
at it either.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from gswgan.data.readers import DEFLATE_RATIO
from gswgan.errors import DataError

SMALL_PAGE_BYTES = 2**23
"""A page of at most this size may be packed as well as one likes."""

MAX_PAGE_BYTES = 2**28
MAX_BATCH_BYTES = 2**28
_DEPTH = 16
_BOOLEANS, _BYTE, _INTEGERS, _DOUBLE, _BINARY, _LISTS, _STRUCT = (1, 2), 3, (4, 5, 6), 7, 8, (9, 10), 12


def rows_at_a_time(path: Path, metadata: Any, groups: range, columns: tuple[str, ...], most: int) -> int:
    """How many rows of these row groups fit into MAX_BATCH_BYTES, whatever they hold: from 1 to `most`.

    Refuses a page whose stated size its packed bytes cannot give.
    """
    largest = 1
    with path.open("rb") as stream:
        size = stream.seek(0, 2)
        for group in groups:
            for index in range(metadata.num_columns):
                column = metadata.row_group(group).column(index)
                if column.path_in_schema.split(".")[0] in columns:
                    largest = max(largest, *_checked(path, stream, size, column))
    return max(1, min(most, MAX_BATCH_BYTES // largest))


def _checked(path: Path, stream: IO[bytes], size: int, column: Any) -> list[int]:
    """The unpacked sizes of a column chunk's pages, none of which is out of proportion."""
    start, first = column.data_page_offset, column.dictionary_page_offset
    start = first if first is not None and 0 < first < start else start
    end = start + column.total_compressed_size
    if not 0 <= start <= end <= size:
        raise DataError(str(path), "pages outside the file", "a Parquet file that is whole", "Copy the file again.")
    found = [1]
    for unpacked, packed in _pages(stream, start, end):
        most = max(SMALL_PAGE_BYTES, min(MAX_PAGE_BYTES, (packed + 64) * DEFLATE_RATIO))
        if not 0 <= unpacked <= most:
            raise DataError(
                str(path), f"a page of {unpacked} bytes, packed into {packed}", f"at most {most} bytes",
                "Write it with smaller row groups, or check where it comes from.",
            )  # fmt: skip
        found.append(unpacked)
    return found


def _pages(stream: IO[bytes], start: int, end: int) -> Iterator[tuple[int, int]]:
    """The unpacked and packed size of each page between two places of a file."""
    stream.seek(start)
    while stream.tell() < end:
        header = dict(_fields(stream, {2, 3}))
        unpacked, packed = header[2], header[3]  # PageHeader.uncompressed_page_size, .compressed_page_size
        if packed < 0:
            raise ValueError("a page of negative size")
        yield unpacked, packed
        stream.seek(packed, 1)


def _fields(stream: IO[bytes], wanted: set[int], depth: int = 0) -> Iterator[tuple[int, int]]:
    """The wanted integers of a struct in Thrift's compact protocol, by field number; everything else is passed over."""
    if depth > _DEPTH:
        raise ValueError("a header that is nested too deeply")
    number = 0
    while (head := _byte(stream)) != 0:
        kind, step = head & 15, head >> 4
        number = number + step if step else _signed(stream)
        if kind in _INTEGERS:
            value = _signed(stream)
            if number in wanted:
                yield number, value
        else:
            _skip(stream, kind, depth)


def _skip(stream: IO[bytes], kind: int, depth: int, *, in_list: bool = False) -> None:
    if kind in _BOOLEANS or kind == _BYTE:
        stream.seek(int(in_list or kind == _BYTE), 1)  # a boolean field has its value in its type
    elif kind in _INTEGERS:
        _signed(stream)
    elif kind == _DOUBLE:
        stream.seek(8, 1)
    elif kind == _BINARY:
        stream.seek(_unsigned(stream), 1)
    elif kind in _LISTS:
        head = _byte(stream)
        count = head >> 4 if head >> 4 < 15 else _unsigned(stream)
        if count > _bytes_left(stream):  # each takes one at the least
            raise ValueError(f"a list of {count} elements")
        for _ in range(count):
            _skip(stream, head & 15, depth + 1, in_list=True)
    elif kind == _STRUCT:
        for _ in _fields(stream, set(), depth + 1):
            pass
    else:
        raise ValueError(f"a header with a field of type {kind}")  # maps: no page header has one


def _bytes_left(stream: IO[bytes]) -> int:
    here = stream.tell()
    end = stream.seek(0, 2)
    stream.seek(here)
    return end - here


def _byte(stream: IO[bytes]) -> int:
    found = stream.read(1)
    if not found:
        raise EOFError
    return found[0]


def _unsigned(stream: IO[bytes]) -> int:
    value = 0
    for shift in range(0, 70, 7):
        byte = _byte(stream)
        value |= (byte & 127) << shift
        if byte < 128:
            return value
    raise ValueError("a number of more than 64 bits")


def _signed(stream: IO[bytes]) -> int:
    value = _unsigned(stream)
    return (value >> 1) ^ -(value & 1)
