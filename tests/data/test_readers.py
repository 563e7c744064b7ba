"""idx, npy and npz: whole files read back exactly, broken and hostile ones end in a DataError, cheaply."""

from __future__ import annotations

import contextlib
import gzip
import io
import struct
import tempfile
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gswgan.data.readers import read_idx, read_npy, read_npz
from gswgan.errors import DataError

FUZZ = settings(derandomize=True, deadline=None, max_examples=150)
BYTES = np.random.default_rng(3).integers(0, 256, (5, 9, 8), dtype=np.uint8)


def idx(array: np.ndarray, shape: tuple[int, ...] | None = None) -> bytes:
    code = {"u": 0x08, "i": 0x0C}[array.dtype.kind]
    shape = array.shape if shape is None else shape
    body = array.astype(">i4" if code == 0x0C else np.uint8).tobytes()
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, code, len(shape), *shape) + body


def npz(compressed: bool = False, **arrays: np.ndarray) -> bytes:
    out = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(out, **arrays)  # type: ignore[arg-type]
    return out.getvalue()


def npy(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def npy_header(shape: str, descr: str = "'|u1'") -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def zip_with(name: str, content: bytes, method: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        archive.writestr(name, content)
    return out.getvalue()


def put(folder: Path, content: bytes, name: str = "file") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def peak_of(call: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_idx_bytes_come_back(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    result = read_idx(put(tmp_path, pack(idx(BYTES))))
    assert result.dtype == np.uint8
    assert (result == BYTES).all()


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_idx_integers_come_back(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    table = np.array([[1, -2, 300], [2**31 - 1, 0, -(2**31)]])
    result = read_idx(put(tmp_path, pack(idx(table))))
    assert result.tolist() == table.tolist()


BAD_IDX = {
    "empty": b"", "short start": b"\0\0\x08", "not idx": b"hello, world, this is no idx",
    "float type": struct.pack(">BBBBI", 0, 0, 0x0D, 1, 1) + b"\0\0\0\0",
    "no dimension": struct.pack(">BBBB", 0, 0, 0x08, 0) + b"\0",
    "four dimensions": struct.pack(">BBBB4I", 0, 0, 0x08, 4, 1, 1, 1, 1) + b"\0",
    "short header": b"\0\0\x08\x03\0\0\0\x01", "one byte short": idx(BYTES)[:-1], "one byte long": idx(BYTES) + b"\0",
    "ten to the twelve": idx(BYTES, (2**31, 28, 28)),
}  # fmt: skip


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize("kind", BAD_IDX)
def test_broken_idx_is_named(tmp_path: Path, kind: str, pack: Callable[[bytes], bytes]) -> None:
    path = put(tmp_path, pack(BAD_IDX[kind]), "broken-idx3-ubyte")
    with pytest.raises(DataError, match="broken-idx3-ubyte"):
        read_idx(path)


@pytest.mark.parametrize("damage", ["cut", "flipped sum", "cut in the header"])
def test_damaged_gzip(tmp_path: Path, damage: str) -> None:
    whole = bytearray(gzip.compress(idx(BYTES)))
    whole[-6] ^= damage == "flipped sum"
    end = {"cut": -9, "flipped sum": len(whole), "cut in the header": 5}[damage]
    with pytest.raises(DataError):
        read_idx(put(tmp_path, bytes(whole[:end])))


@pytest.mark.parametrize("shape", [(2**31, 28, 28), (10**6, 28, 28), (10**4, 28, 28)])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_lying_idx_header_allocates_nothing(
    tmp_path: Path, shape: tuple[int, ...], pack: Callable[[bytes], bytes]
) -> None:
    path = put(tmp_path, pack(idx(BYTES, shape)))

    def call() -> None:
        with pytest.raises(DataError, match=r"a header for shape|of values"):  # the latter: gzip, below its ratio
            read_idx(path)

    assert peak_of(call) < 2_000_000


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_ten_to_the_twelve_is_refused_by_the_header_alone(
    tmp_path: Path, pack: Callable[[bytes], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gswgan.data.readers._read_exactly", lambda *_: pytest.fail("read on"))
    with pytest.raises(DataError, match="a header for shape"):
        read_idx(put(tmp_path, pack(idx(BYTES, (1_275_510_205, 28, 28)))))


def test_the_limit_of_one_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path, idx(BYTES))
    monkeypatch.setattr("gswgan.data.readers.MAX_ARRAY_BYTES", BYTES.nbytes - 1)
    with pytest.raises(DataError, match="at most"):
        read_idx(path)


def test_a_gzip_bomb_behind_a_small_header_is_not_unpacked(tmp_path: Path) -> None:
    path = put(tmp_path, gzip.compress(idx(BYTES) + bytes(64 * 2**20)))

    def call() -> None:
        with pytest.raises(DataError, match="more bytes"):
            read_idx(path)

    assert peak_of(call) < 2_000_000


@FUZZ
@given(content=st.binary(max_size=300), start=st.sampled_from([b"", b"\0\0\x08\x01", b"\0\0\x0c\x02"]))
def test_random_bytes_give_an_array_or_a_data_error(content: bytes, start: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for packed in (start + content, gzip.compress(start + content), b"\x1f\x8b" + content):
            path = put(Path(folder), packed)
            with contextlib.suppress(DataError):
                assert read_idx(path).nbytes <= 1200


@FUZZ
@given(data=st.data(), compressed=st.booleans())
def test_damaged_npz_and_npy_give_the_array_or_a_data_error(data: st.DataObject, compressed: bool) -> None:
    images = np.arange(48, dtype=np.uint8).reshape(3, 4, 4)
    whole = npz(compressed, images=images)
    header = npy(images)
    with tempfile.TemporaryDirectory() as folder:
        for content, read in ((whole, read_npz), (header, read_npy)):
            damaged = bytearray(content)
            for _ in range(data.draw(st.integers(1, 3))):
                damaged[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
            cut = data.draw(st.integers(0, len(content)))
            for broken in (bytes(damaged), content[:cut], data.draw(st.binary(max_size=100))):
                path = put(Path(folder), broken)
                with contextlib.suppress(DataError):
                    read(path)


@FUZZ
@given(
    shape=st.text("0123456789,()-+ LeE.'", max_size=20),
    descr=st.sampled_from(["'|u1'", "'<f8'", "'|O'", "'<U9'", "'|V0'", "'|S0'", "[('a', '<i4')]", "3", "'x'"]),
    body=st.binary(max_size=50),
)
def test_any_npy_header_is_survived(shape: str, descr: str, body: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        content = npy_header(shape, descr) + body
        for path, read in (
            (put(Path(folder), content, "a.npy"), read_npy),
            (put(Path(folder), zip_with("images.npy", content), "a.npz"), read_npz),
        ):
            with contextlib.suppress(DataError):
                read(path)


@pytest.mark.parametrize("compressed", [False, True])
def test_npz_arrays_come_back(tmp_path: Path, compressed: bool) -> None:
    labels, names = np.array([3, -1, 2]), np.array(["a", "bcd"])
    columns = np.asfortranarray(np.arange(12.0).reshape(3, 4))
    path = put(tmp_path, npz(compressed, images=BYTES, labels=labels, names=names, columns=columns))
    found = read_npz(path)
    assert list(found) == ["images", "labels", "names", "columns"]
    assert (found["images"] == BYTES).all()
    assert found["labels"].tolist() == [3, -1, 2]
    assert found["names"].tolist() == ["a", "bcd"]
    assert (found["columns"] == columns).all()
    assert list(read_npz(path, "labels", "absent")) == ["labels"]


def test_an_array_that_is_not_asked_for_is_not_read(tmp_path: Path) -> None:
    path = put(tmp_path, npz(images=BYTES, extra=np.array([None])))
    assert list(read_npz(path, "images")) == ["images"]


class Trap:
    """Unpickling this would make the test fail loudly."""

    def __reduce__(self) -> tuple[object, ...]:
        return (pytest.fail, ("a pickle was loaded",))


@pytest.mark.parametrize("compressed", [False, True])
def test_pickles_are_never_loaded(tmp_path: Path, compressed: bool) -> None:
    objects = np.array([Trap()], dtype=object)
    with pytest.raises(DataError, match="never pickled"):
        read_npz(put(tmp_path, npz(compressed, images=objects)))
    with pytest.raises(DataError, match="never pickled"):
        read_npy(put(tmp_path, npy(objects)))


@pytest.mark.parametrize(
    ("shape", "problem"),
    [
        ("(1000000000000,)", "a header for shape"), ("(4, 1000000)", "a header for shape"),
        ("(-1, -5)", "without negative lengths"), ("(2,)", "more bytes"),
    ],
)  # fmt: skip
def test_a_lying_npy_header_allocates_nothing(tmp_path: Path, shape: str, problem: str) -> None:
    content = npy_header(shape) + b"\0" * 5
    paths = [
        (read_npy, put(tmp_path, content, "a.npy")),
        (read_npz, put(tmp_path, zip_with("images.npy", content), "a.npz")),
        (read_npz, put(tmp_path, zip_with("images.npy", content, zipfile.ZIP_DEFLATED), "b.npz")),
    ]

    def call() -> None:
        for read, path in paths:
            with pytest.raises(DataError, match=rf"{path.name}.*{problem}"):
                read(path)  # type: ignore[operator]

    assert peak_of(call) < 2_000_000


def test_a_member_larger_than_its_archive_could_hold(tmp_path: Path) -> None:
    content = bytearray(zip_with("images.npy", npy_header("(2000000000,)") + b"\0" * 5))
    directory = content.rindex(b"PK\x01\x02")
    content[directory + 24 : directory + 28] = struct.pack("<I", 2_000_000_100)
    with pytest.raises(DataError, match="size that fits"):
        read_npz(put(tmp_path, bytes(content)))


def test_other_compression_is_refused(tmp_path: Path) -> None:
    path = put(tmp_path, zip_with("images.npy", npy(BYTES), zipfile.ZIP_BZIP2))
    with pytest.raises(DataError, match="stored or deflated"):
        read_npz(path)


@pytest.mark.parametrize("read", [read_idx, read_npz, read_npy])
def test_absent_file_and_folder(tmp_path: Path, read: Callable[[Path], object]) -> None:
    with pytest.raises(DataError, match="no such file"):
        read(tmp_path / "absent")
    with pytest.raises(DataError, match=tmp_path.name):
        read(tmp_path)
