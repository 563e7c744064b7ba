"""Data that could be misread: each mistake is refused before anything is released or written, or it is understood."""

from __future__ import annotations

import dataclasses
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from bad_inputs import IMAGES, Files, npz
from PIL import Image
from sklearn.linear_model import LogisticRegression
from test_bad_input import call, check_message, make, state

import gswgan
from conftest import tiny_images, tiny_plan
from gswgan.data import load_data
from gswgan.plan.plan import Plan
from gswgan.report.explain import explanation
from gswgan.run.folder import RunFolder
from gswgan.run.publish import privacy_statement


def encoded(pixels: np.ndarray, kind: str = "PNG") -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind)
    return out.getvalue()


def several(name: str, content: bytes, number: int = 30) -> Files:
    return {f"d/{kind}/{index:02}.{name}": content for index in range(number) for kind in ("a", "b")}


DEEP, CLEAR, GREY = np.full((8, 8), 4067, np.uint16), np.zeros((8, 8, 4), np.uint8), encoded(IMAGES[0])
PATIENTS: Files = {f"d/{kind}/p{person}/{i}.png": GREY for kind in "abcdefghij" for person in (1, 2) for i in range(6)}
FLAT: Files = {f"d/a/{index}.png": GREY for index in range(4)}
ROWS = [f"a/{index}.png,p{index // 2}" for index in range(4)]


def table(*rows: str) -> bytes:
    return "\n".join(["file,person", *rows]).encode()


def parquet(image: bytes, persons: list[str | None] | None = None) -> bytes:
    """30 records of each of two classes; `persons` are repeated."""
    import pyarrow
    import pyarrow.parquet

    labels = [index % 2 for index in range(60)]
    columns: dict[str, list[object]] = {"image": [{"bytes": image, "path": None}] * 60, "label": [*labels]}
    if persons is not None:
        columns["patient"] = [*(persons * 60)[:60]]
    out = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), out)
    return out.getvalue()


def dicom(pixels: np.ndarray) -> bytes:
    """A scan that states a window of its own."""
    import pydicom

    image = pydicom.Dataset()
    image.file_meta = pydicom.dataset.FileMetaDataset()
    image.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    image.file_meta.MediaStorageSOPClassUID = image.SOPClassUID = pydicom.uid.CTImageStorage
    image.file_meta.MediaStorageSOPInstanceUID = image.SOPInstanceUID = "1.2.3"
    image.Rows, image.Columns, image.PhotometricInterpretation = *pixels.shape, "MONOCHROME2"
    image.SamplesPerPixel, image.PixelRepresentation = 1, 0
    image.BitsAllocated, image.BitsStored, image.HighBit = 16, 12, 11
    image.WindowCenter, image.WindowWidth, image.PixelData = 40, 80, pixels.tobytes()
    out = io.BytesIO()
    image.save_as(out, enforce_file_format=True)
    return out.getvalue()


TRAIN = "train --steps 2 --device cpu --data"
MISTAKES: list[tuple[str, Files, str, str]] = [
    ("12-bit pixels in 16-bit PNG", several("png", encoded(DEEP)), f"{TRAIN} d", "pixel_range"),
    ("12-bit pixels in 16-bit TIFF", several("tif", encoded(DEEP, "TIFF")), f"{TRAIN} d", "pixel_range"),
    ("integers of more than 8 bits in npz", {"a.npz": npz(images=IMAGES.astype(np.uint16))},
     f"{TRAIN} a.npz", "pixel_range"),
    ("a folder of such npz files", {"d/a.npz": npz(images=IMAGES.astype(np.int32))}, f"{TRAIN} d", "pixel_range"),
    ("a range for pixels of 8 bits", several("png", GREY), f"{TRAIN} d --pixel-range 0:4095", "pixel_range"),
    ("a range that is none", several("png", encoded(DEEP)), f"{TRAIN} d --pixel-range 4095", "pixel_range"),
    ("transparent pictures", several("png", encoded(CLEAR)), f"{TRAIN} d", "background"),
    ("a background that is none", several("png", encoded(CLEAR)), f"{TRAIN} d --background grey", "background"),
    ("patients inside classes", PATIENTS, f"{TRAIN} d", "layout"),
    ("a layout that the folder has not", several("png", GREY), f"{TRAIN} d --layout class/person/", "layout"),
    ("an unknown layout", PATIENTS, f"{TRAIN} d --layout patient/", "layout"),
    ("one id per line", {**FLAT, "p.csv": b"p0\np0\np1\np1\n"}, f"{TRAIN} d --group-by p.csv", "group_by"),
    ("a file without a row", {**FLAT, "p.csv": table(*ROWS[1:])}, f"{TRAIN} d --group-by p.csv", "group_by"),
    ("a file with two rows", {**FLAT, "p.csv": table(*ROWS, ROWS[0])}, f"{TRAIN} d --group-by p.csv", "group_by"),
    ("a missing id", {**FLAT, "p.csv": table(*ROWS[1:], "a/0.png,NA")}, f"{TRAIN} d --group-by p.csv", "group_by"),
    ("an empty id", {**FLAT, "p.csv": table(*ROWS[1:], "a/0.png,")}, f"{TRAIN} d --group-by p.csv", "group_by"),
    ("a column of data without columns", FLAT, f"{TRAIN} d --group-by patient", "group_by"),
    ("12-bit PNG in Parquet", {"d/a.parquet": parquet(encoded(DEEP))}, f"{TRAIN} d --classes 2", "pixel_range"),
    ("transparent pictures in Parquet", {"d/a.parquet": parquet(encoded(CLEAR))}, f"{TRAIN} d --classes 2",
     "background"),
    ("a column that Parquet has not", {"d/a.parquet": parquet(GREY)}, f"{TRAIN} d --classes 2 --group-by patient",
     "HERE/d/a.parquet"),
    ("a missing id in Parquet", {"d/a.parquet": parquet(GREY, ["p1", None])},
     f"{TRAIN} d --classes 2 --group-by patient", "group_by"),
    ("DICOM without a stated window", several("dcm", dicom(DEEP)), f"{TRAIN} d", "pixel_range"),
    ("9 images", {"a.npz": npz(images=IMAGES[:9], labels=np.arange(9) % 3)}, f"{TRAIN} a.npz --classes 3", "records"),
    ("0 and 1 saved as bytes", {"a.npz": npz(images=np.repeat(IMAGES > 99, 9, 0).astype(np.uint8))},
     f"{TRAIN} a.npz", "images"),
    ("two clients", {"c.txt": b"a\nb\n"}, "federate plan --clients c.txt --classes 3 --image-size 8 --out RUN2",
     "persons"),
    ("9 simulated clients", {}, "federate simulate --clients 9 --out RUN2", "persons"),
    ("12-bit PNG to compare methods on", several("png", encoded(DEEP)), "benchmark --data d --out RUN2", "pixel_range"),
    ("patients inside classes to compare methods on", PATIENTS, "benchmark --data d --out RUN2", "layout"),
    ("patients inside classes to look for a bug in", PATIENTS, "federate debug --data d --out RUN2", "layout"),
    ("no persons to look for a bug in", several("png", GREY), "federate debug --data d --out RUN2", "data"),
]  # fmt: skip


@pytest.mark.parametrize(("title", "files", "line", "field"), MISTAKES, ids=[row[0] for row in MISTAKES])
def test_a_mistake_is_refused_and_nothing_is_released_or_left(
    title: str, files: Files, line: str, field: str, tmp_path: Path, monkeypatch, capsys
) -> None:
    make(tmp_path, files)
    monkeypatch.chdir(tmp_path)
    before = state(tmp_path)
    assert call(line, run=tmp_path / "none", monkeypatch=monkeypatch) == 2
    message = check_message(capsys.readouterr().err, field, tmp_path, tmp_path / "none")
    if title == "patients inside classes":
        assert "10 classes of 2 persons (class/person/), 10 persons with 2 classes (person/class/)" in message
    assert state(tmp_path) == before  # no run folder, no ledger, no file


EVALUATED: list[tuple[str, tuple[str | None, ...], str | None]] = [
    ("all classes", ("low", "middle", "top"), None),
    ("classes in another order", ("top", "low", "middle"), None),
    ("a missing class", ("low", None, "top"), None),
    ("an unknown class name", ("low", "centre", "top"), "test-data: classes = 'centre': expected names of classes"),
    ("the case of a name", ("low", "Middle", "top"), "test-data: classes = 'Middle': expected names of classes"),
    ("a single class", (None, None, "top"), "test-data: classes = 1: expected records of at least two classes"),
    ("no class", (), "held = 'no images': expected at least one image"),
]
"""The names of the folders with the three kinds of stripes that were held out, and how the message begins."""


def stripes(names: tuple[str | None, ...], folder: str, seed: int) -> Files:
    data = tiny_images(120, seed=seed)
    kinds = {place: name for place, name in enumerate(names) if name is not None}
    rows = [row for row in enumerate(zip(data.images[:, 0], data.labels)) if int(row[1][1]) in kinds]  # type: ignore[arg-type]
    return {f"{folder}/": b""} | {f"{folder}/{kinds[int(y)]}/{index}.png": encoded(x) for index, (x, y) in rows}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on pictures of three classes with names."""
    folder = tmp_path_factory.mktemp("measured")
    make(folder, stripes(("low", "middle", "top"), "train", 1))
    gswgan.GSWGAN(steps=40, device="cpu").fit(folder / "train", out=folder / "run")
    return folder / "run"


@pytest.mark.parametrize(("title", "names", "wrong"), EVALUATED, ids=[row[0] for row in EVALUATED])
def test_held_out_pictures_are_matched_by_name_or_refused(
    title: str, names: tuple[str | None, ...], wrong: str | None, measured: Path, tmp_path: Path, monkeypatch, capsys
) -> None:
    make(tmp_path, stripes(names, "held", 2))
    monkeypatch.chdir(tmp_path)
    before, released = state(tmp_path, measured), state(measured / "release")
    line = "evaluate RUN --test-data held --metrics classifiers --classifiers lda --device cpu --json"
    code = call(line, run=measured, monkeypatch=monkeypatch)
    shown = capsys.readouterr()
    if wrong is not None:
        assert code == 2
        assert check_message(shown.err, wrong.partition(" = ")[0], tmp_path, measured).startswith(wrong)
        assert state(tmp_path, measured) == before
        return
    assert code == 0
    found = json.loads(shown.out)
    score, note = found["classifiers"]["lda"]["real"], "".join(found["notes"])
    assert score < 0.1 if title == "classes in another order" else score > 0.95  # names decide, not places
    assert ("no records of middle: left out of the scores" in note) == (title == "a missing class")
    assert state(measured / "release") == released


def upscaled(split: str) -> tuple[np.ndarray, np.ndarray]:
    """The embedded digits with 12 bits per pixel, 16x16."""
    digits = load_data("digits", split=split)
    return np.kron(digits.images[:, 0], np.ones((2, 2), np.uint16)).astype(np.uint16) * 16, digits.labels


def test_12_bit_pictures_with_their_range_train_to_digits_that_a_classifier_reads(
    tmp_path: Path, monkeypatch, capsys
) -> None:
    images, labels = upscaled("train")
    for index, (image, label) in enumerate(zip(images, labels)):
        path = tmp_path / "scans" / str(label) / f"{index:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    line = f"{TRAIN} scans --image-size 8 --pixel-range 0:4080 --seed 1 --out out".replace("--steps 2", "--steps 800")
    monkeypatch.chdir(tmp_path)
    assert call(line, run=tmp_path / "none", monkeypatch=monkeypatch) == 0
    assert "read as:   pixel values from 0 (black) to 4080 (white)" in capsys.readouterr().out
    assert "pixel values from 0 (black) to 4080 (white)" in (tmp_path / "out/release/card.md").read_text()
    stored = json.loads((tmp_path / "out/release/model.json").read_text())["plan"]["facts"]["reading"]
    assert stored["pixel_range"] == [0.0, 4080.0]
    assert RunFolder(tmp_path / "out").remembered_source()["pixel_range"] == "0:4080"
    real = load_data("digits")
    reader = LogisticRegression(max_iter=2000).fit(real.images.reshape(real.n, -1) / 255.0, real.labels)
    drawn, asked = gswgan.load(tmp_path / "out", device="cpu").sample(1000, seed=1)
    assert reader.score(drawn.reshape(1000, -1) / 255.0, asked) >= 0.8


def test_a_run_without_any_class_is_over_and_every_command_says_so(tmp_path: Path, monkeypatch, capsys) -> None:
    np.savez(tmp_path / "a.npz", images=IMAGES[:9], labels=np.arange(9) % 9)
    monkeypatch.chdir(tmp_path)
    lines = [f"{TRAIN} a.npz --classes 9 --force-spend --out out", "train --resume out", "release out"]
    for line in lines:
        assert call(line, run=tmp_path / "none", monkeypatch=monkeypatch) == 2
        said = capsys.readouterr().err
        assert "class counts = 'all below their noise'" in said
        assert "This run is over: its release is spent" in said
        assert "more records, fewer classes or a larger epsilon" in said
    assert not (tmp_path / "out-release").exists()


def test_force_spend_goes_on_with_a_warning(tmp_path: Path, monkeypatch, capsys) -> None:
    np.savez(tmp_path / "a.npz", images=IMAGES[:14], labels=np.arange(14) % 3)
    monkeypatch.chdir(tmp_path)
    assert call(f"{TRAIN} a.npz --classes 3 --dry-run", run=tmp_path, monkeypatch=monkeypatch) == 0
    assert re.search(r"^warning: records = 14: expected at least 15 for 3 classes", capsys.readouterr().err, re.M)
    assert not (tmp_path / "runs").exists()


def test_classes_without_records_are_warned_about(tmp_path: Path, monkeypatch, capsys) -> None:
    """Labels that were numbered from 1, and an empty folder."""
    np.savez(tmp_path / "a.npz", images=np.repeat(IMAGES, 9, 0), labels=1 + np.arange(9 * len(IMAGES)) % 3)
    make(tmp_path, {**several("png", GREY), "d/c/": b""})
    monkeypatch.chdir(tmp_path)
    for data, missing in (("a.npz --classes 4", "0"), ("d", "c")):
        assert call(f"{TRAIN} {data} --dry-run", run=tmp_path, monkeypatch=monkeypatch) == 0
        said = (
            f"warning: labels = 'no record of {missing}': expected records of every class. Classes are numbered from 0"
        )
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(("epsilon", "factor"), [(10.0, "e^10 = 2.2e+04, except"), (5000.0, "e^5000, except")])
def test_explain_states_no_figure_that_is_false(epsilon: float, factor: str) -> None:
    plan: Plan = tiny_plan(tiny_images())
    cost = dataclasses.replace(plan.cost, epsilon=epsilon)
    text = explanation(plan, privacy_statement(plan, cost))
    assert factor in text
    assert ("Such a factor rules nothing out: this guarantee is not meaningful." in text) == (epsilon > 50)
    assert "e+30" not in text
