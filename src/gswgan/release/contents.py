"""Whether weights, embedding, picture and card are what plan and ledger say, written as gswgan writes them.

Every file is made again from what it says, and compared byte for byte. What the numbers themselves are is not known
here: whatever the weights hold in their low bits stays unseen, and so does an embedding to which no noise was added.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from gswgan.critics.kernel.embedding import Embedding
from gswgan.critics.kernel.vgg import is_vgg
from gswgan.federated.silo_statement import answered_of
from gswgan.generators import GeneratorSettings, build_network
from gswgan.generators.sampling import PIXELS_AT, png_bytes
from gswgan.plan.plan import Plan
from gswgan.release.embedding import Shapes, expected_embedding, expected_encoder
from gswgan.release.files import plain_size, read_plain
from gswgan.release.verdict import Finding
from gswgan.run.folder import RunFolder
from gswgan.run.publish import card, draw_picture, encoder_digest

LEVEL_SLACK = 1e-6
"""Of 256 levels: between two machines that compute a pixel in double precision, before it is rounded."""

_OTHER = "It is not what this run released, or it holds more: do not rely on it."


def wrong_contents(folder: RunFolder, plan: Plan, statement: Mapping[str, Any], kept: Any) -> Iterator[Finding]:
    """All that is wrong with the files that are not JSON."""
    answers = None if plan.facts.silos is None else len(answered_of(statement, plan))
    classes, expected = plan.facts.classes, expected_embedding(plan, answers)
    if not isinstance(kept, list) or not kept or kept != [i for i in range(classes) if i in kept]:
        yield Finding(where="model.json", what=f"has labels that are not some of 0 to {classes - 1}", means=_OTHER)
        return
    made, encoder = None, expected_encoder(plan)
    if encoder is not None:
        weights = yield from _tensors(folder.encoder, encoder, "the weights of the plan's encoder")
        if weights is not None and plan.critic.network_statement() and not is_vgg(weights):
            what = "holds other weights than those that were published as VGG19"
            yield Finding(where=folder.encoder.name, what=what, means=_OTHER)
    if expected is not None:
        shapes = expected.shapes if encoder is None else {**expected.shapes, "encoder": ((32,), torch.uint8)}
        found = yield from _tensors(folder.embedding, shapes, "the sums, counts and noise of the plan")
        if found is None:
            return
        embedding = Embedding.load(folder.embedding)
        if encoder is not None and embedding.encoder != encoder_digest(folder):
            what = "was released with another encoder than the one that is here"
            yield Finding(where=folder.embedding.name, what=what, means=_OTHER)
        noise = (embedding.noise_std, embedding.count_noise_std)
        for name, recorded, planned in zip(("sums", "counts"), noise, expected.noise):
            if recorded != planned:
                what = f"says noise {recorded:.6g} on its {name}, where the plan says {planned:.6g}"
                yield Finding(where=folder.embedding.name, what=what, means=_OTHER)
        if not expected.holds(embedding):
            what = "holds values that the noisy sum cannot have had"
            means = "It did not come out of the mechanism: do not rely on it."
            yield Finding(where=folder.embedding.name, what=what, means=means)
        made = embedding.kept.tolist() if expected.names_classes else None
    if kept != (list(range(classes)) if made is None else made):
        yield Finding(where="model.json", what="has other labels than the run released", means=_OTHER)
        return
    yield from _wrong_generator(folder, plan, kept)
    text = card(plan, statement, kept).encode()
    if plain_size(folder.card) != len(text) or read_plain(folder.card) != text:
        what = "is not the card that this version of gswgan writes for plan and privacy.json"
        yield Finding(where=folder.card.name, what=what, means=_OTHER)


def _wrong_generator(folder: RunFolder, plan: Plan, kept: list[int]) -> Iterator[Finding]:
    """Weights of the plan's network and nothing beside them; the picture is what they draw."""
    first = plan.critic.first_generator
    if first is not None and folder.first_generator.exists():
        yield from _weights(folder.first_generator, plan, first)
    found = yield from _weights(folder.generator, plan, plan.generator)
    if found is not None:
        network: nn.Module = build_network(plan.generator, **plan.facts.shape)
        network.load_state_dict(found)
        if not _is_picture(folder.samples, draw_picture(plan, network.eval(), kept)):
            what = "is not the picture that the generator draws, pixel for pixel, as gswgan writes it"
            yield Finding(where=folder.samples.name, what=what, means=_OTHER)


def _weights(path: Path, plan: Plan, settings: GeneratorSettings) -> Generator[Finding, None, dict[str, Tensor] | None]:
    """The weights of a network of these settings, and nothing beside them."""
    with torch.device("meta"):  # nothing is allocated before the file is known to have that size
        outline = build_network(settings, **plan.facts.shape)
    shapes = {name: (tuple(value.shape), value.dtype) for name, value in outline.state_dict().items()}
    return (yield from _tensors(path, shapes, "the weights of the plan's generator"))


def _tensors(path: Path, shapes: Shapes, what: str) -> Generator[Finding, None, dict[str, Tensor] | None]:
    """The finite tensors of these shapes and types in a file of ours; a finding, and None, for anything else."""
    needed = sum(torch.Size(shape).numel() * dtype.itemsize for shape, dtype in shapes.values())
    size = plain_size(path)
    if size is None or not needed < size <= needed + 2**12 * (1 + len(shapes)):  # a header has no more to say
        yield Finding(where=path.name, what=f"does not hold just {what}: it has another size", means=_OTHER)
        return None
    content = read_plain(path, size)
    try:
        found = safetensors.torch.load(content)
    except (ValueError, KeyError, TypeError, safetensors.SafetensorError):
        yield Finding(where=path.name, what="cannot be read as safetensors", means=_OTHER)
        return None
    sound = {name: (tuple(value.shape), value.dtype) for name, value in found.items()} == shapes
    if not sound or not all(bool(torch.isfinite(value).all()) for value in found.values()):
        yield Finding(where=path.name, what=f"does not hold just {what}, of their types and finite", means=_OTHER)
        return None
    if safetensors.torch.save(found, {"format_version": "1"}) != content:
        yield Finding(where=path.name, what=f"holds more than {what}: gswgan writes other bytes", means=_OTHER)
        return None
    return found


def _is_picture(path: Path, levels: np.ndarray) -> bool:
    """Whether a file is our PNG of these levels: each pixel is its level rounded, to the last bit of every byte."""
    expected, height, across = png_bytes(np.rint(levels).astype(np.uint8)), len(levels), levels[0].size
    if plain_size(path) != len(expected):
        return False
    content = read_plain(path)
    if content == expected:
        return True
    try:
        raw = zlib.decompressobj().decompress(content[PIXELS_AT:], height * (1 + across) + 1)
        pixels = np.frombuffer(raw, np.uint8).reshape(height, 1 + across)[:, 1:].reshape(levels.shape)
    except (zlib.error, ValueError):
        return False
    return png_bytes(pixels) == content and bool((np.abs(pixels - levels) <= 0.5 + LEVEL_SLACK).all())
