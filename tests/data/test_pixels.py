"""More than 8 bits by a stated range, transparency by a stated background, and never by what is in the pixels."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from conftest import tiny_images
from gswgan.data import Reading, load_data, make_image_data, open_stream
from gswgan.data.picture import read_image
from gswgan.errors import DataError
from many_files import write_parquet

DEEP = np.arange(64, dtype=np.uint16).reshape(8, 8) * 65  # 0 to 4095, as 12-bit scanners write them
BYTES = np.rint(DEEP * (255 / 4095)).astype(np.uint8)
RANGE = Reading(pixel_range=(0, 4095))
CLEAR = np.zeros((8, 8, 4), np.uint8)
CLEAR[..., 0], CLEAR[..., 3] = 200, np.arange(8) * 36  # red, from clear to nearly opaque


def save(path: Path, pixels: np.ndarray, **options: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)
    return path


def png_of_16_bits(path: Path, pixels: np.ndarray, colour_type: int) -> Path:
    """A PNG with 16 bits per channel, which Pillow does not write; [h, w, channels]."""
    import struct
    import zlib

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    height, width = pixels.shape[:2]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, 16, colour_type, 0, 0, 0)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    )
    return path


@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.TIFF"])
def test_sixteen_bits_are_read_by_the_stated_range(name: str, tmp_path: Path) -> None:
    path = save(tmp_path / "set" / name, DEEP)
    with pytest.raises(
        DataError, match=rf"^pixel_range = None: expected the public range.*{name}.*--pixel-range 0:4095"
    ):
        load_data(path.parent)
    data = load_data(path.parent, pixel_range="0:4095")
    assert (data.images[0, 0] == BYTES).all()
    assert data.reading == RANGE
    half = load_data(path.parent, pixel_range=(1000, 3000)).images[0, 0]
    assert (half == np.rint((np.clip(DEEP.astype(float), 1000, 3000) - 1000) * 255 / 2000)).all()
    assert (load_data(path.parent, pixel_range=(0, 65535)).images[0, 0] == np.rint(DEEP / 257)).all()
    assert load_data(path.parent, pixel_range="0:4095", channels=3).channels == 3


def test_eight_bits_need_no_range_and_take_none(tmp_path: Path) -> None:
    save(tmp_path / "a.tif", BYTES)
    assert (load_data(tmp_path).images[0, 0] == BYTES).all()
    with pytest.raises(DataError, match=r"^pixel_range = '0:4095'.*a\.tif.*8 bits.*Leave --pixel-range out"):
        load_data(tmp_path, pixel_range="0:4095")
    with pytest.raises(DataError, match="8 bits"):
        load_data("digits", pixel_range="0:4095")
    colours = save(tmp_path / "rgb" / "b.tiff", np.dstack([BYTES, BYTES, 255 - BYTES]))
    assert (read_image(colours) == np.dstack([BYTES, BYTES, 255 - BYTES])).all()


@pytest.mark.parametrize(("channels", "colour_type"), [(2, 4), (3, 2), (4, 6)])
def test_sixteen_bits_in_colour_are_not_cut_to_eight(channels: int, colour_type: int, tmp_path: Path) -> None:
    path = png_of_16_bits(tmp_path / "a.png", np.repeat(DEEP[..., None], channels, axis=2), colour_type)
    for how in (Reading(), RANGE, Reading(background=(0, 0, 0))):
        with pytest.raises(DataError, match=r"a\.png.*16 bits per channel"):
            read_image(path, reading=how)


def test_a_tiff_whose_zero_is_white(tmp_path: Path) -> None:
    path = save(tmp_path / "a.tif", DEEP, tiffinfo={262: 0})
    with Image.open(path) as opened:
        assert opened.tag_v2[262] == 0
    assert (read_image(path, reading=RANGE) == 255 - BYTES).all()


def test_a_tiff_of_floats_and_of_several_pages(tmp_path: Path) -> None:
    path = save(tmp_path / "a.tif", DEEP.astype(np.float32) - 1000)
    with pytest.raises(DataError, match="pixel_range"):
        read_image(path)
    assert (read_image(path, reading=Reading(pixel_range=(-1000, 3095))) == BYTES).all()
    pages = [Image.fromarray(BYTES) for _ in range(3)]
    pages[0].save(tmp_path / "b.tif", save_all=True, append_images=pages[1:])
    with pytest.raises(DataError, match=r"3 pages.*one picture"):
        read_image(tmp_path / "b.tif")


@pytest.mark.parametrize("dtype", [np.uint16, np.int16, np.int32, np.int64, np.float32])
def test_arrays_of_any_depth(dtype: type, tmp_path: Path) -> None:
    values = np.stack([DEEP, DEEP[::-1]]).astype(dtype)
    np.savez(tmp_path / "a.npz", images=values)
    with pytest.raises(DataError) as caught:
        load_data(tmp_path / "a.npz")
    assert caught.value.name == ("images" if dtype == np.float32 else "pixel_range")
    assert "--pixel-range" in caught.value.todo
    assert "astype" not in str(caught.value)  # which would wrap modulo 256
    expected = np.stack([BYTES, BYTES[::-1]])
    assert (load_data(tmp_path / "a.npz", pixel_range="0:4095").images[:, 0] == expected).all()
    assert (make_image_data(values, reading=RANGE).images[:, 0] == expected).all()
    parts = tmp_path / "parts"
    parts.mkdir()
    np.savez(parts / "a.npz", images=values)
    with pytest.raises(DataError, match="--pixel-range"):
        open_stream(parts)
    assert (load_data(parts, pixel_range=(0, 4095)).images[:, 0] == expected).all()
    stream = open_stream(parts, pixel_range=(0, 4095))
    (batch,) = (batch for part in stream.files.parts for batch in stream.reader.read(part))
    assert (batch.images[:, 0] == expected).all()
    assert stream.reading == RANGE


def test_a_pixel_that_is_not_finite_is_refused_with_a_range_too() -> None:
    values = np.zeros((3, 8, 8))
    values[2, 1, 1] = np.nan
    with pytest.raises(DataError, match="record 2 that is not finite"):
        make_image_data(values, reading=RANGE)


@pytest.mark.parametrize("given", ["4095", "a:b", "5:5", "9:1", "0:inf", "nan:1", "1:2:3", (1,), 7])
def test_ranges_that_are_none(given: object) -> None:
    with pytest.raises(DataError, match=r"^pixel_range = .*LOW:HIGH"):
        load_data("digits", pixel_range=given)


@pytest.mark.parametrize("given", ["grey", "1,2", "0,0,256", "a,b,c", (1, 2), -1])
def test_backgrounds_that_are_none(given: object) -> None:
    with pytest.raises(DataError, match=r"^background = .*white, black"):
        load_data("digits", background=given)


# Transparency.


def composed(pixels: np.ndarray, background: tuple[int, int, int]) -> np.ndarray:
    """By Pillow, as another opinion."""
    behind = Image.new("RGBA", (8, 8), (*background, 255))
    return np.asarray(Image.alpha_composite(behind, Image.fromarray(pixels)).convert("RGB")).astype(int)


@pytest.mark.parametrize(("given", "colour"), [("white", (255,) * 3), ("black", (0,) * 3), ("10,20,30", (10, 20, 30))])
def test_transparent_pictures_are_composed_onto_the_stated_background(given: str, colour, tmp_path: Path) -> None:
    save(tmp_path / "a.png", CLEAR)
    with pytest.raises(
        DataError, match=r"^background = None: expected .*a\.png has an alpha channel.*--background white"
    ):
        load_data(tmp_path)
    data = load_data(tmp_path, background=given)
    assert np.abs(np.moveaxis(data.images[0], 0, 2).astype(int) - composed(CLEAR, colour)).max() <= 1
    assert data.reading.background == colour
    grey = load_data(tmp_path, background=given, channels=1).images[0, 0]
    assert (
        np.abs(
            grey.astype(int) - np.asarray(Image.fromarray(composed(CLEAR, colour).astype(np.uint8)).convert("L"))
        ).max()
        <= 1
    )


@pytest.mark.parametrize("mode", ["LA", "P", "L", "RGB"])
def test_every_kind_of_transparency_counts(mode: str, tmp_path: Path) -> None:
    if mode == "LA":
        save(tmp_path / "a.png", np.dstack([BYTES, BYTES]))
    else:
        Image.new(mode, (8, 8)).save(tmp_path / "a.png", transparency=(0, 0, 0) if mode == "RGB" else 0)
    with pytest.raises(DataError, match=r"^background = None"):
        load_data(tmp_path)
    pixels = load_data(tmp_path, background="white").images
    assert pixels[0, :, 0, 0].tolist() == [255] * (1 if mode in ("L", "LA") else 3)


def test_arrays_with_alpha() -> None:
    for pixels in (CLEAR[None], CLEAR[None] / 255):
        with pytest.raises(DataError, match=r"^background"):
            make_image_data(pixels)
        data = make_image_data(pixels, reading=Reading(background=(255, 255, 255)))
        assert np.abs(np.moveaxis(data.images[0], 0, 2).astype(int) - composed(CLEAR, (255,) * 3)).max() <= 1
    with pytest.raises(DataError, match="transparency"):
        make_image_data(CLEAR[None].astype(np.uint16), reading=Reading(pixel_range=(0, 255), background=(0, 0, 0)))


def test_the_same_inside_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed (the extra parquet)")
    parquet = pytest.importorskip("pyarrow.parquet")
    for name, pixels, field, how in (
        ("deep", DEEP, "pixel_range", {"pixel_range": "0:4095"}),
        ("clear", CLEAR, "background", {"background": "white"}),
    ):  # fmt: skip
        content = io.BytesIO()
        Image.fromarray(pixels).save(content, "PNG")
        (tmp_path / name).mkdir()
        parquet.write_table(pyarrow.table({"image": [content.getvalue()] * 3}), tmp_path / name / "train.parquet")
        for read in (load_data, open_stream):
            with pytest.raises(DataError) as caught:
                read(tmp_path / name)
            assert caught.value.name == field
        stream = open_stream(tmp_path / name, **how)
        (batch,) = stream.reader.read(stream.files.parts[0])
        assert (batch.images == load_data(tmp_path / name, **how).images).all()
        assert batch.images.std() > 10
    with pytest.raises(DataError, match=r"layout.*Parquet files have no folders"):
        load_data(write_parquet(tmp_path / "set", tiny_images(6)), layout="class/")
