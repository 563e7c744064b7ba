"""Ways to change a bundle: each is a function of its folder."""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from packed import a_release, edit, rechain, replan, rows
from PIL import Image

from conftest import tiny_images
from gswgan.generators.sampling import png_bytes

Tamper = Callable[[Path], Any]


def flip(name: str, at: float) -> Tamper:
    def tamper(folder: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        data[int(at * (len(data) - 1))] ^= 1
        (folder / name).write_bytes(data)

    return tamper


def cut(name: str) -> Tamper:
    return lambda folder: os.truncate(folder / name, (folder / name).stat().st_size - 1)


def lines(change: Callable[[list[str]], list[str]]) -> Tamper:
    """Change the ledger's lines as they are, digests and all."""

    def tamper(folder: Path) -> None:
        path = folder / "ledger.jsonl"
        path.write_text("".join(change(path.read_text().splitlines(keepends=True))))

    return tamper


def ledger(change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> Tamper:
    """Change the ledger's lines and build its chain anew."""
    return lambda folder: rechain(folder, change(rows(folder)))


def statement(**values: object) -> Tamper:
    return lambda folder: edit(folder / "privacy.json", lambda content: content.update(values))


def plan(*keys: str, value: object) -> Tamper:
    """Change one setting of the plan, its digest and the ledger's context with it."""

    def change(table: dict[str, Any]) -> None:
        for key in keys[:-1]:
            table = table[key]
        table[keys[-1]] = value

    return lambda folder: replan(folder, change)


def tensors(name: str, change: Callable[[dict[str, torch.Tensor]], Any], **metadata: str) -> Tamper:
    def tamper(folder: Path) -> None:
        found = safetensors.torch.load_file(folder / name)
        change(found)
        (folder / name).write_bytes(safetensors.torch.save(found, {"format_version": "1", **metadata}))

    return tamper


def text_in_picture(folder: Path) -> None:
    data = (folder / "samples.png").read_bytes()
    body = b"tEXtComment\0record 17"
    chunk = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    (folder / "samples.png").write_bytes(data[:33] + chunk + data[33:])


def another_picture(folder: Path) -> None:
    with Image.open(folder / "samples.png") as image:
        noise = np.random.default_rng(0).integers(0, 256, np.asarray(image).shape, np.uint8)
    (folder / "samples.png").write_bytes(png_bytes(noise))


def hidden_in_picture(folder: Path) -> None:
    """The lowest bit of each pixel is a bit of raw training images; seen from afar it is the same picture."""
    with Image.open(folder / "samples.png") as image:
        pixels = np.asarray(image).copy()
    secret = np.resize(np.unpackbits(tiny_images(300).images), pixels.shape)
    changed = (pixels & 254) | secret
    assert np.abs(changed.astype(int) - pixels).mean() < 1
    (folder / "samples.png").write_bytes(png_bytes(changed))


def one_level_off(folder: Path) -> None:
    with Image.open(folder / "samples.png") as image:
        pixels = np.asarray(image).copy()
    pixels[5, 5] += 1 if pixels[5, 5] < 255 else -1
    (folder / "samples.png").write_bytes(png_bytes(pixels))


def compressed_picture(folder: Path) -> None:
    """The same pixels; which of many compressed forms it is could be a message."""
    with Image.open(folder / "samples.png") as image:
        image.load()
    image.save(folder / "samples.png")


def padded(name: str) -> Tamper:
    """4 kB more in the header of a safetensors file; every reader finds the same tensors in it."""

    def tamper(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        header = data[8 : 8 + length] + b" \t" * 2048
        (folder / name).write_bytes(struct.pack("<Q", len(header)) + header + data[8 + length :])
        safetensors.torch.load_file(folder / name)

    return tamper


def exact_counts(found: dict[str, torch.Tensor]) -> None:
    """The true counts, with a message below the grid."""
    found["counts"] = torch.tensor([100.0, 100.0, 100.0], dtype=torch.float64) + 2.0**-30


def from_another_run(name: str) -> Tamper:
    return lambda folder: (folder / name).write_bytes((a_release("private") / name).read_bytes())


def link(name: str) -> Tamper:
    def tamper(folder: Path) -> None:
        (folder / name).rename(folder.parent / "elsewhere")
        (folder / name).symlink_to(folder.parent / "elsewhere")

    return tamper


def wrote(name: str, change: Callable[[str], str]) -> Tamper:
    return lambda folder: (folder / name).write_text(change((folder / name).read_text()))


def keyless(content: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in content.items() if key != "open_to"}
