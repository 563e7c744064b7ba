"""Persons from a table: matched by name, every record once, and a missing id is never taken for a person."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from conftest import tiny_images
from gswgan.data import load_data
from gswgan.data.persons import persons_of, read_ids
from gswgan.errors import DataError
from many_files import write_parquet

FILES = ["cat/1.png", "cat/2.png", "dog/1.png", "dog/3.png"]


def folder(root: Path) -> Path:
    for number, name in enumerate(FILES):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), 10 * number).save(root / name)
    return root


def table(path: Path, rows: list[tuple[str, str]], header: str = "file,person") -> Path:
    path.write_text("\n".join([header, *(",".join(row) for row in rows)]) + "\n")
    return path


def people(data) -> dict[int, str]:
    """Each record's shade and its person."""
    return {int(image[0, 0, 0]): data.person_ids[person] for image, person in zip(data.images, data.persons)}


def test_files_are_matched_by_name_whatever_the_order_of_the_rows(tmp_path: Path) -> None:
    root = folder(tmp_path / "set")
    rows = [("dog/3.png", "eve"), ("./cat/1.png", "ann"), ("2.png", "bob"), ("dog\\1.png", "ann"), ("x.png", "who")]
    data = load_data(root, group_by=table(tmp_path / "ids.csv", rows))
    assert people(data) == {0: "ann", 10: "bob", 20: "ann", 30: "eve"}
    assert data.person_ids == ("ann", "bob", "eve")


def test_other_columns_and_other_separators(tmp_path: Path) -> None:
    path = tmp_path / "ids.csv"
    path.write_bytes(
        b"\xef\xbb\xbfAge;Person;File\r\n" + b"".join(f"9;p{i};{n}\r\n".encode() for i, n in enumerate(FILES))
    )
    assert persons_of(path, FILES, 4, None).tolist() == ["p0", "p1", "p2", "p3"]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([(name, "ann") for name in FILES[:3]], r"no row for 1 of 4 records \(dog/3\.png\).*a row for every record"),
        ([(name, "ann") for name in (*FILES, "cat/2.png")], r"file cat/2\.png twice.*once"),
        ([("1.png", "ann"), *((name, "ann") for name in FILES[1:])], r"1\.png.*2 files have this name.*cat/1\.png"),
        ([(name, "NA" if name == "cat/2.png" else "ann") for name in FILES], r"no id for 1 .*2\.png.*--missing own"),
        ([(name, "") for name in FILES], r"no id for 4 of 4 records"),
        ([(name, "ann", "x") for name in FILES], r"line 2 with 3 values.*2, as the header"),
        ([], r"no row for 4 of 4"),
    ],
)  # fmt: skip
def test_a_table_that_does_not_fit_is_refused(rows: list[tuple[str, str]], said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"^group_by = .*{said}"):
        load_data(folder(tmp_path / "set"), group_by=table(tmp_path / "ids.csv", rows))


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("name,person", "columns file and person"),
        ("file,id", "file and person"),
        ("file,file,person", "file and person"),
    ],
)
def test_columns_are_found_by_their_names(header: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=said):
        persons_of(table(tmp_path / "ids.csv", [], header), FILES, 4, None)


def test_a_missing_id_can_be_a_person_of_its_own(tmp_path: Path) -> None:
    ids = ["ann", "NA", "", "ann"]
    path = table(tmp_path / "ids.csv", list(zip(FILES, ids)))
    data = load_data(folder(tmp_path / "set"), group_by=path, missing="own")
    assert data.number_of_persons == 3
    shades = people(data)
    assert shades[0] == shades[30] == "ann"
    assert shades[10] != shades[20]
    with pytest.raises(DataError, match="do not begin with own:"):
        persons_of(table(tmp_path / "own.csv", [("0", "own:1"), ("1", "")], "index,person"), None, 2, "own")
    with pytest.raises(DataError, match=r"missing.*without --group-by"):
        load_data("digits", missing="own")
    with pytest.raises(DataError, match="missing = 'drop'"):
        load_data("digits", group_by=path, missing="drop")


def test_an_npz_has_its_records_by_index(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.arange(4, dtype=np.uint8)[:, None, None] * np.ones((8, 8), np.uint8))
    rows = [("3", "eve"), ("0", "ann"), ("2", "ann"), ("1", "bob")]
    data = load_data(tmp_path / "a.npz", group_by=table(tmp_path / "ids.csv", rows, "index,person"))
    assert people(data) == {0: "ann", 1: "bob", 2: "ann", 3: "eve"}
    for wrong in (("4", "x"), ("-1", "x"), ("a", "x"), ("0", "x")):
        with pytest.raises(DataError, match="group_by"):
            load_data(tmp_path / "a.npz", group_by=table(tmp_path / "bad.csv", [*rows, wrong], "index,person"))
    with pytest.raises(DataError, match="columns index and person"):
        load_data(tmp_path / "a.npz", group_by=table(tmp_path / "files.csv", list(zip(FILES, "abcd"))))


def test_a_parquet_table(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed (the extra parquet)")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "ids.parquet"
    parquet.write_table(
        pyarrow.table({"file": FILES[::-1], "person": [7.0, 7.0, None, 3.0], "age": [1, 2, 3, 4]}), path
    )
    with pytest.raises(DataError, match=r"no id for 1 of 4 records, the first is cat/2\.png"):
        load_data(folder(tmp_path / "set"), group_by=path)
    data = load_data(tmp_path / "set", group_by=path, missing="own")
    assert people(data) == {0: "3", 10: "own:2", 20: "7", 30: "7"}
    path.write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"ids\.parquet"):
        load_data(tmp_path / "set", group_by=path)


def test_parquet_data_names_its_own_column(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed (the extra parquet)")
    parquet = pytest.importorskip("pyarrow.parquet")
    root = write_parquet(tmp_path / "set", tiny_images(24))
    place = 0
    for path in sorted(root.rglob("*.parquet")):
        stored = parquet.read_table(path)
        ids = [None if index == 5 else f"p{index // 4}" for index in range(place, place + len(stored))]
        place += len(stored)
        parquet.write_table(stored.append_column("patient", pyarrow.array(ids, pyarrow.string())), path)
    with pytest.raises(DataError, match=r"column patient: no id for 1 of 24 records, the first is 5.*--missing own"):
        load_data(root, group_by="patient")
    data = load_data(root, group_by="patient", missing="own")
    assert data.number_of_persons == 7
    assert [data.person_ids[person] for person in data.persons[:8]] == [*["p0"] * 4, "p1", "own:5", "p1", "p1"]
    with pytest.raises(DataError, match=r"columns .*a column nobody"):
        load_data(root, group_by="nobody")


def test_the_column_of_the_images_names_no_persons(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed (the extra parquet)")
    root = write_parquet(tmp_path / "set", tiny_images(24))
    with pytest.raises(DataError, match="not that of the images") as refused:
        load_data(root, group_by="image")
    assert "PNG" not in str(refused.value)  # no bytes of a record


def test_only_parquet_data_has_columns(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"group_by = 'patient'.*a table"):
        load_data(folder(tmp_path / "set"), group_by="patient")
    with pytest.raises(DataError, match=r"group_by.*exists"):
        load_data("digits", group_by=tmp_path / "absent.csv")


def test_a_list_of_clients(tmp_path: Path) -> None:
    path = tmp_path / "clients.txt"
    path.write_bytes(b"\xef\xbb\xbfann\r\nbob\r\n\r\n")
    assert read_ids(path) == ("ann", "bob")
    for content in (b"a\n\nb\n", b"a,b\n", b"x" * 300, b"\xff\xfe\n"):
        path.write_bytes(content)
        with pytest.raises(DataError, match="clients"):
            read_ids(path)
