"""Latent codes and labels, images from a trained network as 8-bit arrays, and pictures of them."""

from __future__ import annotations

import copy
import struct
import zlib

import numpy as np
import torch
from torch import Tensor, nn

from gswgan.generators import GeneratorSettings, LatentKind

BATCH = 500
MAX_ACTIVATIONS = 2**29
"""The largest output of a layer for a batch: 2 GiB. Networks wider than any preset get smaller batches."""

LARGEST_SIDE = 72
"""The largest side of a feature map: images have at most 64 pixels per side and are cropped from it."""

PIXELS_AT = 41
"""The offset of the pixels in a PNG by `png_bytes`: after the signature, the header and the name of their chunk."""


def latent_codes(count: int, dim: int, kind: LatentKind, rng: np.random.Generator) -> Tensor:
    """Draw z ~ P_z: standard normal, or Bernoulli(0.5) as in the published code."""
    if kind == "normal":
        return torch.from_numpy(rng.standard_normal((count, dim), dtype=np.float32))
    return torch.from_numpy(rng.integers(0, 2, (count, dim)).astype(np.float32))


def balanced_labels(count: int, classes: np.ndarray, rng: np.random.Generator) -> Tensor:
    """Draw labels with a uniform prior, as evenly spread as `count` allows, in random order.

    Every class that occurs does so at least twice (the kernel's distance needs pairs): with too many classes
    for one batch, a random subset of them is taken.
    """
    chosen = rng.permutation(classes)[: max(1, count // 2)]
    return torch.from_numpy(rng.permutation(np.resize(chosen, count)).astype(np.int64))


@torch.no_grad()
def draw_images(
    network: nn.Module, settings: GeneratorSettings, labels: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Return uint8 images [n, channels, side, side], one per label."""
    device = next(network.parameters()).device
    parts = []
    maps = settings.width * (1 if settings.architecture == "mlp" else LARGEST_SIDE**2)
    size = max(1, min(BATCH, MAX_ACTIVATIONS // maps))
    for start in range(0, len(labels), size):
        wanted = torch.from_numpy(labels[start : start + size].astype(np.int64)).to(device)
        codes = latent_codes(len(wanted), settings.latent, settings.latent_kind, rng).to(device)
        parts.append((network(codes, wanted) * 255).round().clamp(0, 255).to(torch.uint8).cpu())
    return torch.cat(parts).numpy() if parts else np.zeros((0, 1, 1, 1), np.uint8)


@torch.no_grad()
def draw_levels(
    network: nn.Module, settings: GeneratorSettings, labels: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Return the same images before they are rounded: float64 [n, channels, side, side] from 0 to 255.

    In double precision on the CPU, where machines differ by far less than a rounding to 8 bits could show.
    """
    exact = copy.deepcopy(network).to("cpu", torch.float64)
    parts = []
    for start in range(0, len(labels), BATCH):
        wanted = torch.from_numpy(labels[start : start + BATCH].astype(np.int64))
        codes = latent_codes(len(wanted), settings.latent, settings.latent_kind, rng).to(torch.float64)
        parts.append((exact(codes, wanted) * 255).clamp(0, 255))
    return torch.cat(parts).numpy()


def channels_last(images: np.ndarray) -> np.ndarray:
    """Convert [n, c, h, w] to [n, h, w] (grey) or [n, h, w, 3] (colour), the layout that `fit` takes."""
    return images[:, 0] if images.shape[1] == 1 else images.transpose(0, 2, 3, 1)


def grid_of(images: np.ndarray, columns: int, *, side: int = 56) -> np.ndarray:
    """Return a picture of images [n, c, h, w] in rows of `columns`, each enlarged to about `side` pixels."""
    scale = max(1, side // images.shape[2])
    pictures = channels_last(images).repeat(scale, axis=1).repeat(scale, axis=2)
    pictures = np.pad(pictures, [(0, 0), (2, 2), (2, 2)] + [(0, 0)] * (pictures.ndim - 3), constant_values=96)
    rows = [np.concatenate(list(row), axis=1) for row in np.split(pictures, len(pictures) // columns)]
    return np.concatenate(rows, axis=0)


def grid_png(images: np.ndarray, columns: int, *, side: int = 56) -> bytes:
    """Return the picture of `grid_of` as a PNG."""
    return png_bytes(grid_of(images, columns, side=side))


def png_bytes(pixels: np.ndarray) -> bytes:
    """Return uint8 pixels [h, w] or [h, w, 3] as a PNG whose bytes follow from the pixels alone.

    It is not compressed: what a compressor makes depends on its version, and choices of it could hide a message.
    """
    height, width = pixels.shape[:2]
    rows = np.ascontiguousarray(pixels).reshape(height, -1)
    raw = np.pad(rows, [(0, 0), (1, 0)]).tobytes()  # each row behind the number of its filter, 0: none
    most = 2**16 - 1
    blocks = [raw[start : start + most] for start in range(0, len(raw), most)]
    stored = b"".join(
        struct.pack("<BHH", index == len(blocks) - 1, len(block), most - len(block)) + block
        for index, block in enumerate(blocks)
    )
    header = struct.pack(">IIBBBBB", width, height, 8, 0 if pixels.ndim == 2 else 2, 0, 0, 0)
    data = b"\x78\x01" + stored + struct.pack(">I", zlib.adler32(raw))
    chunks = (b"IHDR" + header, b"IDAT" + data, b"IEND")
    framed = [struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body)) for body in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(framed)
