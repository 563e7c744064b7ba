"""Small Parquet files that ask for much memory: refused, or read in so few rows at a time that it is bounded."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from gswgan.data import load_data, open_stream, parquet_pages
from gswgan.data.parquet_pages import _pages, rows_at_a_time
from gswgan.errors import DataError

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install 'gswgan[parquet]'")
pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed: pip install 'gswgan[parquet]'")

MEBIBYTE = 2**20


def repeated(folder: Path, value: bytes, rows: int = 256, **options: Any) -> Path:
    """One value in the dictionary, named by every row."""
    folder.mkdir()
    images = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([value], pa.binary()))
    table = pa.table({"image": images, "label": pa.array(np.zeros(rows, np.int64))})
    options = {"compression": "zstd", "compression_level": 19, **options}
    pq.write_table(
        table, folder / "train.parquet", write_statistics=False, store_schema=False,
        dictionary_pagesize_limit=2**30, **options,
    )  # fmt: skip
    return folder


def plain(folder: Path, value: bytes, rows: int, **options: Any) -> Path:
    """Every row with the value itself."""
    folder.mkdir()
    table = pa.table({"image": pa.array([value] * rows, pa.binary()), "label": pa.array(np.zeros(rows, np.int64))})
    options = {"compression": "zstd", "compression_level": 19, **options}
    pq.write_table(table, folder / "train.parquet", use_dictionary=False, write_statistics=False, **options)
    return folder


def peak_of(folder: Path) -> int:
    """The most that Arrow has held while the folder was refused."""
    pool = pa.system_memory_pool()
    before = pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        start = pool.max_memory()
        for read in (load_data, open_stream):
            with pytest.raises(DataError):
                read(folder, classes=2)
        return int(pool.max_memory() - start)
    finally:
        pa.set_memory_pool(before)


@pytest.mark.parametrize("make", [repeated, plain])
def test_a_page_out_of_proportion_is_refused(tmp_path: Path, make: Any) -> None:
    """A file of a few KB whose one page unpacks to 32 MiB; as a dictionary's value 256 rows of it are 8 GB."""
    folder = make(tmp_path / "data", bytes(32 * MEBIBYTE), *(() if make is repeated else (1,)))
    assert (folder / "train.parquet").stat().st_size < 10_000
    with pytest.raises(DataError, match=r"train.parquet.*a page of 335\d+ bytes, packed into \d+.*at most 8388608"):
        load_data(folder, classes=2)
    assert peak_of(folder) < 4 * MEBIBYTE


def test_a_repeated_value_is_read_in_few_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page within the bounds, 256 times: not all rows at once."""
    monkeypatch.setattr(parquet_pages, "MAX_BATCH_BYTES", 8 * MEBIBYTE, raising=False)
    folder = repeated(tmp_path / "data", bytes(MEBIBYTE))
    assert (folder / "train.parquet").stat().st_size < 10_000
    assert peak_of(folder) < 40 * MEBIBYTE  # 256 MiB where all rows are expanded


def picture(seed: int) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (8, 8), dtype=np.uint8)).save(out, "PNG")
    return out.getvalue()


@pytest.mark.parametrize("options", [
    {}, {"compression": "none"}, {"compression": "gzip"}, {"compression": "zstd", "data_page_version": "2.0"},
    {"use_dictionary": False, "data_page_size": 500}, {"row_group_size": 7}, {"write_page_checksum": True},
    {"write_page_index": True}, {"dictionary_pagesize_limit": 400},
], ids=str)  # fmt: skip
def test_every_page_of_an_honest_file_is_seen(tmp_path: Path, options: dict[str, Any]) -> None:
    """Our sizes add up to the footer's, which counts the headers as well; and the images are read as before."""
    images = [{"bytes": picture(seed), "path": f"{seed}.png"} for seed in range(40)]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table({"image": pa.array(images, kind), "label": pa.array(np.arange(40) % 3)})
    path = tmp_path / "data" / "train.parquet"
    path.parent.mkdir()
    pq.write_table(table, path, **options)
    metadata = pq.ParquetFile(path).metadata
    with path.open("rb") as stream:
        for group in range(metadata.num_row_groups):
            for index in range(metadata.num_columns):
                column = metadata.row_group(group).column(index)
                start = min(filter(None, (column.dictionary_page_offset, column.data_page_offset)))
                pages = list(_pages(stream, start, start + column.total_compressed_size))
                unpacked, packed = map(sum, zip(*pages))
                assert 0 < column.total_uncompressed_size - unpacked < 400 * len(pages)
                assert 0 < column.total_compressed_size - packed < 400 * len(pages)
    rows = rows_at_a_time(path, metadata, range(metadata.num_row_groups), ("image", "label"), 256)
    assert rows == 256
    data = load_data(path.parent, classes=3)
    expected = [np.asarray(Image.open(io.BytesIO(picture(seed)))) for seed in range(40)]
    assert (data.images[:, 0] == np.stack(expected)).all()


def test_a_list_that_is_longer_than_the_file_is_refused_at_once() -> None:
    """2^62 booleans in a header of a few bytes."""
    endless = bytes([0xF1, *([0xFF] * 8), 0x3F])
    with pytest.raises(ValueError, match="a list of"):
        parquet_pages._skip(io.BytesIO(endless), 9, 0)


@pytest.mark.parametrize("seed", range(30))
def test_damaged_page_headers_are_a_data_error_or_data(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    folder = plain(tmp_path / "data", picture(0), 20)
    path = folder / "train.parquet"
    content = bytearray(path.read_bytes())
    for place in rng.integers(4, 60, 3):
        content[place] = rng.integers(0, 256)
    path.write_bytes(content)
    with contextlib.suppress(DataError):
        assert load_data(folder, classes=2).n == 20
