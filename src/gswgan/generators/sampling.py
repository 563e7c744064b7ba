"""Latent codes and labels, images from a trained network as 8-bit arrays, and pictures of them."""

from __future__ import annotations

import copy
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from gswgan.generators import GeneratorSettings, LatentKind

BATCH = 500
CPU_BATCH = 32
"""On a CPU: the maps of so many images stay in its cache, which halves the time that they take."""

NUMBERS_AT_ONCE = 2**23
"""Of latent codes in double precision: with a denoiser of large images they are drawn a few images at a time."""

MAX_ACTIVATIONS = 2**31
"""The largest output of a layer for a batch: 8 GiB, for images of 64 pixels per side 2. Networks wider than any preset
get smaller batches."""

LARGEST_SIDE = 144
"""The largest side of a feature map: images have at most 128 pixels per side and are cropped from it."""

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


def draw_images(
    network: nn.Module,
    settings: GeneratorSettings,
    labels: np.ndarray,
    rng: np.random.Generator,
    progress: Callable[[int], None] = lambda done: None,
) -> np.ndarray:
    """Return uint8 images [n, channels, side, side], one per label; `progress` is told how many are done.

    On a CPU several threads draw, as many as PyTorch may use. Each draws whole batches, and PyTorch uses one thread
    inside of it, so that the images do not depend on the number of threads.
    """
    device, has_maps = next(network.parameters()).device, settings.architecture != "mlp"
    size = CPU_BATCH if has_maps and device.type == "cpu" else BATCH
    size = max(1, min(size, MAX_ACTIVATIONS // (settings.width * (LARGEST_SIDE**2 if has_maps else 1))))
    batches = _batches(settings, labels, rng, size)
    parts: dict[int, np.ndarray] = {}
    turn, done = threading.Lock(), 0

    @torch.no_grad()
    def draw(stopped: threading.Event) -> None:
        nonlocal done
        while not stopped.is_set():
            with turn:  # codes are drawn in the order of the images
                taken = next(batches, None)
            if taken is None:
                return
            start, codes, wanted = taken
            levels = network(codes.to(device), wanted.to(device)) * 255
            parts[start] = levels.round().clamp(0, 255).to(torch.uint8).cpu().numpy()
            with turn:
                done += len(wanted)
                progress(done)

    if device.type == "cpu":
        _in_threads(draw)
    else:
        with full_precision():
            draw(threading.Event())
    return np.concatenate([parts[start] for start in sorted(parts)]) if parts else np.zeros((0, 1, 1, 1), np.uint8)


@contextmanager
def full_precision() -> Iterator[None]:
    """No TF32 on a GPU: images are those of a CPU to a level or two of 255, where TF32 moves single pixels by many."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


def _batches(
    settings: GeneratorSettings, labels: np.ndarray, rng: np.random.Generator, size: int
) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """Yield the place of the first image, the latent codes and the labels of each batch."""
    for start in range(0, len(labels), size):
        wanted = torch.from_numpy(labels[start : start + size].astype(np.int64))
        yield start, latent_codes(len(wanted), settings.latent, settings.latent_kind, rng), wanted


def _in_threads(work: Callable[[threading.Event], None]) -> None:
    """Run `work` in as many threads as PyTorch may use; in each of them PyTorch uses one. An error stops them all."""
    allowed, stopped = torch.get_num_threads(), threading.Event()
    if allowed == 1:  # as in a worker of a DataLoader: a process that was forked had better begin no threads
        work(stopped)
        return

    def work_alone() -> None:
        torch.set_num_threads(1)  # in this thread, and in threads that begin later
        try:
            work(stopped)
        except BaseException:
            stopped.set()
            raise

    pool = ThreadPoolExecutor(allowed)
    try:
        for one in [pool.submit(work_alone) for _ in range(allowed)]:
            one.result()
    finally:
        stopped.set()
        pool.shutdown()
        torch.set_num_threads(allowed)


@torch.no_grad()
def draw_levels(
    network: nn.Module, settings: GeneratorSettings, labels: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Return the same images before they are rounded: float64 [n, channels, side, side] from 0 to 255.

    In double precision on the CPU, where machines differ by far less than a rounding to 8 bits could show.
    """
    exact = copy.deepcopy(network).to("cpu", torch.float64)
    parts = []
    batch = max(1, min(BATCH, NUMBERS_AT_ONCE // settings.latent))
    for start in range(0, len(labels), batch):
        wanted = torch.from_numpy(labels[start : start + batch].astype(np.int64))
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
