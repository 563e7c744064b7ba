"""FEMNIST in its forms: the same people from each of them, ink bright, the paper's 36 classes, faults refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from by_client import FORMATS, by_id, expected, load_npz, load_people, made_people, write_h5, write_leaf

from gswgan.data import load_data
from gswgan.data.femnist import CHARACTERS, merge_case
from gswgan.errors import DataError

PEOPLE = made_people()


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_gives_the_same_people(kind: str, tmp_path: Path) -> None:
    data = load_people(kind, PEOPLE, tmp_path / "made")
    assert by_id(data) == expected(PEOPLE)
    assert data.person_ids == tuple(sorted(PEOPLE))
    assert (data.n, data.number_of_persons, data.classes) == (63, 9, 62)
    assert (data.left_out, data.public_records) == (0, 63)
    if kind != "folder":
        assert "".join(data.class_names) == "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


@pytest.mark.parametrize("kind", ["leaf", "h5", "npz"])
@pytest.mark.parametrize("ink", [0, 1, 254, 255])
def test_polarity_is_a_constant_of_the_format(kind: str, ink: int, tmp_path: Path) -> None:
    """A page that is nearly all ink is turned as any other: nobody looks which of the two colours is more common."""
    images = np.full((2, 28, 28), ink, np.uint8)
    images[0, 3, 5] = 77
    data = load_people(kind, {"one": (images, np.array([1, 2]))}, tmp_path / "made")
    assert (data.images[:, 0] == images).all()


def test_the_papers_36_classes() -> None:
    names = CHARACTERS[:36]
    merged = merge_case(np.arange(62))
    assert [names[label] for label in merged] == [name.upper() for name in CHARACTERS]


@pytest.mark.parametrize("kind", ["leaf", "npz"])
def test_36_classes_as_an_option(kind: str, tmp_path: Path) -> None:
    people = {"one": (PEOPLE["f01"][0][:4], np.array([9, 10, 36, 61]))}
    if kind == "leaf":
        write_leaf(tmp_path / "all_data_0.json", people)
        data = load_data(tmp_path, classes=36)
    else:
        data = load_npz(tmp_path, people, classes=36)
    assert [data.class_names[label] for label in data.labels] == ["9", "A", "A", "Z"]
    assert data.classes == len(data.class_names) == 36


def test_other_numbers_of_classes_are_refused(tmp_path: Path) -> None:
    write_leaf(tmp_path / "all_data_0.json", PEOPLE)
    for classes in (10, 37, 63):
        with pytest.raises(DataError, match="62, the number of classes"):
            load_data(tmp_path, classes=classes)
    assert load_data(tmp_path, classes=62).classes == 62
    assert load_data(tmp_path, labels=False).classes == 1


def test_leaf_has_its_held_out_part_beside(tmp_path: Path) -> None:
    write_leaf(tmp_path / "train" / "all_data_0_niid_0_keep_0_train_9.json", PEOPLE)
    one = {"f01": PEOPLE["f01"]}
    with pytest.raises(DataError, match="path of the test set"):
        load_data(tmp_path, split="test")
    write_leaf(tmp_path / "test" / "all_data_0_niid_0_keep_0_test_9.json", one)
    assert by_id(load_data(tmp_path)) == by_id(load_data(tmp_path / "train")) == expected(PEOPLE)
    assert by_id(load_data(tmp_path, split="test")) == expected(one)
    with pytest.raises(DataError, match="path of the test set"):
        load_data(tmp_path / "train", split="test")


def test_tff_has_its_held_out_part_beside(tmp_path: Path) -> None:
    path = write_h5(tmp_path / "fed_emnist_train.h5", PEOPLE)
    with pytest.raises(DataError, match="path of the test set"):
        load_data(path, split="test")
    one = {"f01": PEOPLE["f01"]}
    test = write_h5(tmp_path / "fed_emnist_test.h5", one)
    assert by_id(load_data(path, split="test")) == by_id(load_data(test)) == expected(one)
    with pytest.raises(DataError, match="path of the test set"):
        load_data(test, split="test")


def test_tff_digits_only_by_its_name(tmp_path: Path) -> None:
    people = {"one": (PEOPLE["f01"][0][:2], np.array([3, 9]))}
    assert load_data(write_h5(tmp_path / "fed_emnist_digitsonly_train.h5", people)).classes == 10
    assert load_data(write_h5(tmp_path / "fed_emnist_train.h5", people)).classes == 62


def test_held_out_records_of_the_npz(tmp_path: Path) -> None:
    data = load_npz(tmp_path, PEOPLE, split="test")
    assert data.n == len(PEOPLE)
    assert (data.images == 255).all()
    assert data.person_ids == tuple(sorted(PEOPLE))


@pytest.mark.parametrize("kind", ["leaf", "h5", "folder"])
def test_a_client_without_records_keeps_its_place(kind: str, tmp_path: Path) -> None:
    nothing = (np.zeros((0, 28, 28), np.uint8), np.zeros(0, np.int64))
    people = {**PEOPLE, "f0200_11": nothing, "zz": nothing}
    data = load_people(kind, people, tmp_path / "made")
    assert data.person_ids == tuple(sorted(people))
    assert by_id(data) == expected(people)


def test_without_h5py_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fed_emnist_train.h5").write_bytes(b"\x89HDF\r\n\x1a\n")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(DataError, match=r"gswgan\[h5\]"):
        load_data(tmp_path / "fed_emnist_train.h5")


def _leaf(**changes: Any) -> dict[str, Any]:
    white = [1.0] * 784
    content: dict[str, Any] = {
        "users": ["a", "b"],
        "num_samples": [2, 1],
        "user_data": {"a": {"x": [white, white], "y": [0, 1]}, "b": {"x": [white], "y": [61]}},
    }
    return {**content, **changes}


def _part(x: Any, y: Any) -> dict[str, Any]:
    return _leaf(user_data={"a": {"x": [[1.0] * 784] * 2, "y": [0, 1]}, "b": {"x": x, "y": y}})


def _named(person: str) -> dict[str, Any]:
    one, other = _leaf()["user_data"].values()
    return _leaf(users=["a", person], user_data={"a": one, person: other})


FAULTS: dict[str, Any] = {
    "no users": {key: value for key, value in _leaf().items() if key != "users"},
    "a list": [1, 2],
    "a user twice": _leaf(users=["a", "a"]),
    "a user too many": _leaf(users=["a", "b", "c"], num_samples=[2, 1, 0]),
    "a user of no list": _leaf(users=["a"], num_samples=[2]),
    "users that are numbers": _leaf(users=[1, 2]),
    "another number of samples": _leaf(num_samples=[2, 2]),
    "a number of samples missing": _leaf(num_samples=[2]),
    "user_data as a list": _leaf(user_data=[["a"], ["b"]]),
    "a short image": _part([[1.0] * 783], [1]),
    "a ragged image": _leaf(user_data={"a": {"x": [[1.0] * 784, [1.0]], "y": [0, 1]}, "b": {"x": [], "y": []}}),
    "a pixel above 1": _part([[255.0] + [1.0] * 783], [1]),
    "a pixel below 0": _part([[-0.01] + [1.0] * 783], [1]),
    "a pixel that is not a number": _part([[float("nan")] + [1.0] * 783], [1]),
    "pixels in quotes": _part([["1.0"] * 784], [1]),
    "true pixels": _part([[True] * 784], [1]),
    "a fraction as label": _part([[1.0] * 784], [0.5]),
    "a label too large": _part([[1.0] * 784], [62]),
    "a label below 0": _part([[1.0] * 784], [-1]),
    "labels missing": _part([[1.0] * 784], []),
    "x missing": _leaf(user_data={"a": {"y": [0, 1]}, "b": {"y": [1]}}),
    "an id that cannot be printed": _named("b\n"),
    "an id without characters": _named(""),
}  # fmt: skip


def test_the_unchanged_leaf_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "all_data_0.json").write_text(json.dumps(_leaf()))
    assert load_data(tmp_path).n == 3


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("classes", [None, 36])
def test_refused_leaf_files(fault: str, classes: int | None, tmp_path: Path) -> None:
    (tmp_path / "all_data_0.json").write_text(json.dumps(FAULTS[fault]))
    with pytest.raises(DataError):
        load_data(tmp_path, classes=classes)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 100_000, b"1" * 10_000, b'{"users": 1}'])
def test_damaged_leaf_files(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "all_data_0.json").write_bytes(content)
    with pytest.raises(DataError, match=r"all_data_0\.json"):
        load_data(tmp_path)


def test_a_user_in_two_files_is_refused(tmp_path: Path) -> None:
    write_leaf(tmp_path / "all_data_0.json", PEOPLE)
    write_leaf(tmp_path / "all_data_1.json", {"f01": PEOPLE["f01"]})
    with pytest.raises(DataError, match=r"f01.*no other file"):
        load_data(tmp_path)


def test_a_linked_leaf_file_is_refused(tmp_path: Path) -> None:
    write_leaf(tmp_path / "elsewhere.json", PEOPLE)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "all_data_0.json").symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(DataError, match="symbolic link"):
        load_data(tmp_path / "data")


def test_the_size_of_a_leaf_file_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gswgan.data.femnist.MAX_JSON_BYTES", 100)
    write_leaf(tmp_path / "all_data_0.json", PEOPLE)
    with pytest.raises(DataError, match="at most 100"):
        load_data(tmp_path)


def _h5_faults() -> list[str]:
    return [
        "no examples", "no label", "lengths", "a side", "bytes", "labels as floats", "a soft link", "an external link",
        "an external file", "a virtual array", "a claim", "a group as pixels", "out of range",
    ]  # fmt: skip


@pytest.mark.parametrize("fault", _h5_faults())
def test_refused_h5_files(fault: str, tmp_path: Path) -> None:
    path = write_h5(tmp_path / "fed_emnist_train.h5", {"a": PEOPLE["f01"]})
    import h5py

    other = write_h5(tmp_path / "other.h5", {"a": PEOPLE["f01"]})
    (tmp_path / "raw").write_bytes(bytes(11 * 784 * 4))
    with h5py.File(path, "a") as file:
        group = file["examples/a"]
        pixels = group["pixels"][()]
        if fault == "no examples":
            file.move("examples", "samples")
        elif fault in ("no label", "lengths", "labels as floats"):
            labels = group["label"][()]
            del group["label"]
            if fault != "no label":
                group["label"] = labels[1:] if fault == "lengths" else labels.astype(np.float32)
        else:
            del group["pixels"]
            if fault == "a side":
                group["pixels"] = pixels[:, 1:]
            elif fault == "bytes":
                group["pixels"] = (pixels * 255).astype(np.uint8)
            elif fault == "a soft link":
                file["kept"] = pixels
                group["pixels"] = h5py.SoftLink("/kept")
            elif fault == "an external link":
                group["pixels"] = h5py.ExternalLink(str(other), "/examples/a/pixels")
            elif fault == "an external file":
                group.create_dataset(
                    "pixels", pixels.shape, np.float32, external=[(str(tmp_path / "raw"), 0, 11 * 784 * 4)]
                )
            elif fault == "a virtual array":
                layout = h5py.VirtualLayout(pixels.shape, np.float32)
                layout[...] = h5py.VirtualSource(str(other), "/examples/a/pixels", pixels.shape)
                group.create_virtual_dataset("pixels", layout)
            elif fault == "a claim":
                group.create_dataset("pixels", (10**9, 28, 28), np.float32, chunks=(1, 28, 28), compression="gzip")
            elif fault == "a group as pixels":
                group.create_group("pixels")
            else:
                group["pixels"] = pixels * 255
    reason = r"fed_emnist_train\.h5.*at most 0 can be there" if fault == "a claim" else r"fed_emnist_train\.h5"
    with pytest.raises(DataError, match=reason):
        load_data(path)


def test_compressed_h5_files_are_read(tmp_path: Path) -> None:
    path = write_h5(tmp_path / "fed_emnist_train.h5", {"a": PEOPLE["f01"]})
    import h5py

    with h5py.File(path, "a") as file:
        group = file["examples/a"]
        pixels = group["pixels"][()]
        del group["pixels"]
        group.create_dataset("pixels", data=pixels, compression="gzip", shuffle=True)
    assert by_id(load_data(path)) == expected({"a": PEOPLE["f01"]})


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.6, 0.9])
def test_an_h5_file_that_was_cut_is_refused(share: float, tmp_path: Path) -> None:
    path = write_h5(tmp_path / "fed_emnist_train.h5", PEOPLE)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(DataError, match=r"fed_emnist_train\.h5"):
        load_data(path)
