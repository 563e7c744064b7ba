"""DICOM files as scanners write them: stored values, rescaling, and the stated window."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gswgan.data import Reading, load_data
from gswgan.data.picture import read_image
from gswgan.errors import DataError

pydicom = pytest.importorskip("pydicom", reason="pydicom is not installed (the extra dicom)")

STORED = np.arange(64, dtype=np.uint16).reshape(8, 8) * 65


def write_dicom(
    path: Path, pixels: np.ndarray, *, kind: str = "MONOCHROME2", syntax: str = "", **fields: object
) -> Path:
    """A file of the kind "CT image" with a window of its own, which must not matter."""
    from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

    path.parent.mkdir(parents=True, exist_ok=True)
    image = pydicom.Dataset()
    image.file_meta = pydicom.dataset.FileMetaDataset()
    image.file_meta.TransferSyntaxUID = syntax or ExplicitVRLittleEndian
    image.SOPClassUID, image.SOPInstanceUID, image.PatientID = CTImageStorage, generate_uid(), "p1"
    image.file_meta.MediaStorageSOPClassUID, image.file_meta.MediaStorageSOPInstanceUID = (
        CTImageStorage,
        image.SOPInstanceUID,
    )
    image.Rows, image.Columns, image.PhotometricInterpretation = *pixels.shape[:2], kind
    image.SamplesPerPixel = 1 if pixels.ndim == 2 else 3
    if pixels.ndim == 3:
        image.PlanarConfiguration = 0
    bits = 8 * pixels.dtype.itemsize
    image.BitsAllocated, image.BitsStored, image.HighBit = bits, bits, bits - 1
    image.PixelRepresentation = int(pixels.dtype.kind == "i")
    image.WindowCenter, image.WindowWidth = 40, 80
    for name, value in fields.items():
        setattr(image, name, value)
    image.PixelData = pixels.tobytes()
    image.save_as(path, enforce_file_format=True)
    return path


def scaled(values: np.ndarray, low: float, high: float) -> np.ndarray:
    return np.rint((np.clip(values.astype(float), low, high) - low) * 255 / (high - low)).astype(np.uint8)


def test_the_window_is_stated_and_never_taken_from_the_file(tmp_path: Path) -> None:
    for number, shift in enumerate((0, 100)):
        write_dicom(tmp_path / ("sick", "well")[number] / f"{number}.dcm", STORED + shift)
    with pytest.raises(DataError, match=r"^pixel_range = None.*0\.dcm is a DICOM image.*--pixel-range"):
        load_data(tmp_path)
    data = load_data(tmp_path, pixel_range="0:4095")
    assert data.class_names == ("sick", "well")
    assert (data.images[:, 0] == [scaled(STORED, 0, 4095), scaled(STORED + 100, 0, 4095)]).all()


def test_values_are_those_of_the_modality(tmp_path: Path) -> None:
    """Hounsfield units: stored values times slope plus intercept."""
    path = write_dicom(tmp_path / "a.dcm", STORED.astype(np.int16), RescaleSlope=2, RescaleIntercept=-1024)
    found = read_image(path, reading=Reading(pixel_range=(-1000, 400)))
    assert (found == scaled(STORED.astype(float) * 2 - 1024, -1000, 400)).all()
    path = write_dicom(tmp_path / "b.DCM", STORED, kind="MONOCHROME1")
    assert (read_image(path, reading=Reading(pixel_range=(0, 4095))) == 255 - scaled(STORED, 0, 4095)).all()


def test_colour_and_what_is_refused(tmp_path: Path) -> None:
    colours = np.dstack([scaled(STORED, 0, 4095)] * 2 + [np.zeros((8, 8), np.uint8)])
    path = write_dicom(tmp_path / "a.dcm", colours, kind="RGB")
    assert (read_image(path) == colours).all()
    assert read_image(path, channels=1).shape == (8, 8)
    with pytest.raises(DataError, match=r"pixel_range.*8 bits"):
        read_image(path, reading=Reading(pixel_range=(0, 4095)))
    for fields, said in (
        ({"kind": "YBR_FULL"}, "YBR_FULL"), ({"kind": "RGB", "NumberOfFrames": 3}, "3 frames"),
        ({"kind": "RGB", "Rows": 60_000, "Columns": 60_000}, "60000 x 60000"),
    ):  # fmt: skip
        with pytest.raises(DataError, match=said):
            read_image(write_dicom(tmp_path / "b.dcm", colours, **fields))
    whole = path.read_bytes()
    for content in (b"", b"no picture", whole[:200], whole[:-40]):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"a\.dcm"):
            read_image(path)


def test_a_file_that_is_compressed_as_a_whole_is_refused_before_it_is_inflated(tmp_path: Path) -> None:
    path = write_dicom(tmp_path / "a.dcm", np.zeros((512, 512), np.uint16), syntax="1.2.840.10008.1.2.1.99")
    assert path.stat().st_size < 4096  # of half a megabyte
    with pytest.raises(DataError, match="a compression that cannot be read here"):
        read_image(path, reading=Reading(pixel_range=(0, 4095)))


def test_without_pydicom_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_dicom(tmp_path / "a.dcm", STORED)
    monkeypatch.setitem(__import__("sys").modules, "pydicom", None)
    with pytest.raises(DataError, match=r"pip install 'gswgan\[dicom\]'"):
        load_data(tmp_path, pixel_range="0:4095")
