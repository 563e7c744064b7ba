"""Whatever stands in a file: every reader gives data or a DataError, in memory that the file pays for.

Nothing is unpickled, nothing is written, nothing outside the folder is read, and a file that was cut or turned is
never read as another, shorter one.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import importlib
import io
import struct
import tempfile
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from PIL import Image

from gswgan.data import ImageData, load_data, make_image_data
from gswgan.data.persons import persons_of, read_ids
from gswgan.errors import DataError

FUZZ = settings(
    derandomize=True, database=None, deadline=None, max_examples=100,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
IMAGES = np.random.default_rng(3).integers(0, 256, (4, 8, 8), dtype=np.uint8)
LABELS = np.array([0, 1, 2, 1], np.uint8)
MEGABYTE = 10**6
WORDS = st.text(
    st.characters(exclude_categories=["Cs", "Cc", "Zs", "Zl", "Zp"], exclude_characters=",\ufeff"),
    min_size=1,
    max_size=6,
).filter(str.isprintable)


def idx(array: np.ndarray, shape: tuple[int, ...] | None = None) -> bytes:
    shape = array.shape if shape is None else shape
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape) + array.tobytes()


def npz(save: Callable[..., None] = np.savez, **arrays: np.ndarray) -> bytes:
    out = io.BytesIO()
    save(out, **arrays)
    return out.getvalue()


def npy(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def npy_header(shape: tuple[int, ...], descr: str = "|u1") -> bytes:
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def picture(kind: str) -> bytes:
    out = io.BytesIO()
    Image.fromarray(IMAGES[0]).save(out, kind)
    return out.getvalue()


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


WHOLE = {
    "d/train-images-idx3-ubyte": idx(IMAGES), "d/train-images-idx3-ubyte.gz": gzip.compress(idx(IMAGES), mtime=0),
    "a.npz": npz(images=IMAGES), "b.npz": npz(np.savez_compressed, images=IMAGES), "p/a.png": picture("PNG"),
    "p/a.jpg": picture("JPEG"), "p/a.bmp": picture("BMP"),
}  # fmt: skip


def parquet_of(**columns: list[object]) -> bytes:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed (the extra parquet)")
    out = io.BytesIO()
    importlib.import_module("pyarrow.parquet").write_table(pyarrow.table(columns), out)
    return out.getvalue()


PERSONS = {
    "p.csv": b"\xef\xbb\xbfindex,person\r\n0,anna\r\n1,bert\r\n3,carl\r\n2,anna\r\n",
    "q.csv": b'person;index;age\n7;3;20\n"a;b";1;\n7;2;30\n7;0;20\n',
    "p.parquet": parquet_of(index=[0, 1, 2, 3], person=["anna", "bert", None, "carl"]),
}


def read_persons(path: Path) -> np.ndarray:
    return persons_of(path, None, 4, "own")


@contextlib.contextmanager
def put(name: str, content: bytes) -> Iterator[Path]:
    """The file alone in a fresh folder; whoever reads it may leave nothing else there, nor beside it."""
    with tempfile.TemporaryDirectory() as outer:
        path = Path(outer) / "inside" / name
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
        before = sorted(Path(outer).rglob("*"))
        yield path
        assert sorted(Path(outer).rglob("*")) == before
        assert path.read_bytes() == content


def source(path: Path) -> Path:
    """What a user would name: the file, or the folder that it is in."""
    return path if path.suffix == ".npz" else path.parent


def mutated(data: st.DataObject, content: bytes) -> bytes:
    """Bytes turned, taken out or put in at a few places."""
    changed = bytearray(content)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(changed)))
        count, new = data.draw(st.sampled_from([(0, 1), (1, 1), (1, 0), (4, 4), (30, 0)]))
        changed[place : place + count] = data.draw(st.binary(min_size=new, max_size=new))
    return bytes(changed)


def is_sane(data: ImageData) -> bool:
    """Valid and no larger than what a few hundred bytes can pay for (a picture may be scaled up to 64 x 64)."""
    return data.images.dtype == np.uint8 and data.images.ndim == 4 and data.images.nbytes <= 4 * 3 * 64 * 64


@FUZZ
@given(name=st.sampled_from(sorted(WHOLE)), data=st.data(), image_size=st.sampled_from([None, 8, 64]))
def test_a_mutated_data_set_is_data_or_a_data_error(name: str, data: st.DataObject, image_size: int | None) -> None:
    with put(name, mutated(data, WHOLE[name])) as path, contextlib.suppress(DataError):
        assert is_sane(load_data(source(path), image_size=image_size))


@FUZZ
@given(name=st.sampled_from(sorted(WHOLE)), content=st.binary(max_size=200))
def test_random_bytes_are_data_or_a_data_error(name: str, content: bytes) -> None:
    with put(name, content) as path, contextlib.suppress(DataError):
        assert is_sane(load_data(source(path)))


@FUZZ
@given(name=st.sampled_from(sorted(WHOLE)), data=st.data())
def test_a_data_set_that_was_cut_is_refused(name: str, data: st.DataObject) -> None:
    """Never a shorter data set: n is public, and a record that is missing is another data set."""
    whole = WHOLE[name]
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with put(name, whole) as path:
        intact = load_data(source(path)).images
    with put(name, cut) as path:
        try:
            found = load_data(source(path)).images
        except DataError:
            return
    assert name.endswith(("png", "jpg"))  # an end mark is missing, no pixel is
    assert (found == intact).all()


@FUZZ
@given(name=st.sampled_from(["d/train-images-idx3-ubyte.gz", "a.npz", "b.npz"]), data=st.data())
def test_a_turned_bit_is_found_or_changes_nothing(name: str, data: st.DataObject) -> None:
    """Formats with a checksum keep what it promises."""
    changed = bytearray(WHOLE[name])
    changed[data.draw(st.integers(0, len(changed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with put(name, bytes(changed)) as path, contextlib.suppress(DataError):
        assert (load_data(source(path)).images[:, 0] == IMAGES).all()


@FUZZ
@given(name=st.sampled_from(sorted(PERSONS)), data=st.data())
def test_mutated_persons_are_ids_or_a_data_error(name: str, data: st.DataObject) -> None:
    with put(name, mutated(data, PERSONS[name])) as path, contextlib.suppress(DataError):
        assert len(read_persons(path)) == 4


@FUZZ
@given(name=st.sampled_from(sorted(PERSONS)), content=st.binary(max_size=100))
@example(name="p.csv", content="a\x0bb\x1cc\x85d\u2028e".encode())
@example(name="p.csv", content=b'index,person\n0,"')
def test_random_persons_are_ids_or_a_data_error(name: str, content: bytes) -> None:
    with put(name, content) as path, contextlib.suppress(DataError):
        read_persons(path)
    with put("p.txt", content) as path, contextlib.suppress(DataError):
        assert all(read_ids(path))


@FUZZ
@given(ids=st.lists(WORDS, min_size=1, max_size=12))
def test_ids_of_a_table_are_sorted_like_those_of_an_array(ids: list[str]) -> None:
    ids = [f"p{person}" for person in ids]
    rows = io.StringIO()
    csv.writer(rows).writerows([("index", "person"), *enumerate(ids)])
    with put("p.csv", rows.getvalue().encode()) as path:
        found = persons_of(path, None, len(ids), None)
    blank = np.zeros((len(ids), 8, 8), np.uint8)
    from_file, from_array = make_image_data(blank, persons=found), make_image_data(blank, persons=np.array(ids))
    assert from_file.person_ids == from_array.person_ids == tuple(sorted(set(ids)))
    assert from_file.persons.tolist() == from_array.persons.tolist()


CLAIMS = {
    "d/train-images-idx3-ubyte": idx(IMAGES, (1_275_510_205, 28, 28)),
    "d/train-images-idx3-ubyte.gz": gzip.compress(idx(IMAGES, (1_275_510_205, 28, 28))),
    "a.npz": zipped({"images.npy": npy_header((10**12, 28, 28)) + bytes(99)}, zipfile.ZIP_STORED),
    "b.npz": zipped({"images.npy": npy_header((10**12, 28, 28)) + bytes(99)}),
    "c.npz": zipped({"images.npy": npy_header((10**12,), "<U99999") + bytes(99)}),
    "p/a.png": WHOLE["p/a.png"][:16] + struct.pack(">II", 10**6, 10**6) + WHOLE["p/a.png"][24:],
    "p/a.bmp": WHOLE["p/a.bmp"][:18] + struct.pack("<ii", 10**6, 10**6) + WHOLE["p/a.bmp"][26:],
}
NOISE = np.random.default_rng(0).bytes(100_000)
BOMBS = {
    "e/train-images-idx3-ubyte.gz": gzip.compress(idx(IMAGES, (120_000, 28, 28)) + NOISE),  # as much as it could hold
    "d/train-images-idx3-ubyte.gz": gzip.compress(idx(IMAGES) + bytes(50 * MEGABYTE)),
    "a.npz": zipped({"images.npy": npy(IMAGES) + bytes(50 * MEGABYTE)}),
    "b.npz": zipped({"images.npy": bytes(50 * MEGABYTE)}),
    "c.npz": zipped({"images.npy": b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**31) + b" " * (50 * MEGABYTE)}),
}
for _name, _content in CLAIMS.items():
    assert len(_content) < 10_000, _name


@pytest.mark.parametrize(("name", "content"), [*CLAIMS.items(), *BOMBS.items()])
def test_no_more_memory_than_the_file_pays_for(name: str, content: bytes) -> None:
    with put(name, content) as path:
        load = pytest.raises(DataError, match=path.name)
        tracemalloc.start()
        try:
            with load:
                load_data(source(path), image_size=8)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < 4 * MEGABYTE


@pytest.mark.parametrize("longest", [1, 250])
def test_one_long_id_does_not_make_all_the_others_long(longest: int) -> None:
    rows = "index,person\n" + "".join(f"{place},a\n" for place in range(50_000)) + f"50000,{'x' * longest}\n"
    with put("p.csv", rows.encode()) as path:
        tracemalloc.start()
        try:
            ids = persons_of(path, None, 50_001, None)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert len(ids) == 50_001
    assert peak < 40 * MEGABYTE  # 90 MB where every id is as wide as the longest


def test_a_text_file_of_persons_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gswgan.data.persons.MAX_TEXT_BYTES", 10)
    for name, read in (("p.txt", read_ids), ("p.csv", read_persons)):
        with put(name, b"a\n" * 6) as path, pytest.raises(DataError, match="at most 10 bytes"):
            read(path)
