"""Whether weights, embedding, picture and card are what plan and ledger say, and hold nothing else."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import torch
from PIL import Image
from torch import Tensor, nn

from gswgan.baselines.dp_merf_ae import EmbeddingSettings
from gswgan.critics.embedding import Embedding
from gswgan.critics.kernel import KernelSettings
from gswgan.federated.trust import sum_noise
from gswgan.generators import build_network
from gswgan.privacy.mechanism import GRID_BITS
from gswgan.release.finding import Finding
from gswgan.training.plan import Plan
from gswgan.training.publish import card, draw_picture
from gswgan.training.run_folder import RunFolder

PICTURE_TOLERANCE = 2.0
"""Mean difference in grey levels: another machine rounds differently, another picture differs by tens."""

_OTHER = "It is not what this run released, or it holds more: do not rely on it."


def has_embedding(plan: Plan) -> bool:
    """Whether the run releases an embedding that is kept."""
    return isinstance(_embedding_settings(plan), KernelSettings | EmbeddingSettings)


def wrong_contents(folder: RunFolder, plan: Plan, statement: Mapping[str, Any], kept: Any) -> Iterator[Finding]:
    """All that is wrong with the files that are not JSON."""
    classes = plan.facts.classes
    if not isinstance(kept, list) or not kept or kept != [i for i in range(classes) if i in kept]:
        yield Finding(where="model.json", what=f"has labels that are not some of 0 to {classes - 1}", means=_OTHER)
        return
    if has_embedding(plan):
        yield from _wrong_embedding(folder.embedding, plan, kept)
    network = _network(folder.generator, plan)
    if network is None:
        what = "does not hold just the finite weights of the plan's generator"
        yield Finding(where=folder.generator.name, what=what, means=_OTHER)
    elif not _is_picture(folder.samples, draw_picture(plan, network, kept)):
        yield Finding(where=folder.samples.name, what="is not a picture of what the generator draws", means=_OTHER)
    if folder.card.read_text() != card(plan, statement, kept):
        what = "is not the card that this version of gswgan writes for plan and privacy.json"
        yield Finding(where=folder.card.name, what=what, means=_OTHER)


def _tensors(path: Path) -> dict[str, Tensor] | None:
    """The tensors of a file of ours; None where it is none, or has more to say than they."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            if file.metadata() != {"format_version": "1"}:
                return None
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, safetensors.SafetensorError):
        return None


def _network(path: Path, plan: Plan) -> nn.Module | None:
    facts, found = plan.facts, _tensors(path)
    network = build_network(plan.generator, classes=facts.classes, channels=facts.channels, image_size=facts.image_size)
    shapes = {name: (value.shape, value.dtype) for name, value in network.state_dict().items()}
    if found is None or {name: (value.shape, value.dtype) for name, value in found.items()} != shapes:
        return None
    network.load_state_dict(found)
    return network.eval() if all(bool(torch.isfinite(value).all()) for value in found.values()) else None


def _embedding_settings(plan: Plan) -> Any:
    return getattr(plan.critic, "embedding", plan.critic)


def _wrong_embedding(path: Path, plan: Plan, kept: list[int]) -> Iterator[Finding]:
    """Shape and noise of the plan, values on the mechanism's grid, and the classes that model.json names."""
    settings, facts = _embedding_settings(plan), plan.facts
    found = _tensors(path)
    shapes = {"sums": (facts.classes, settings.features), "counts": (facts.classes,), "noise": (2,)}
    sound = found is not None and {name: tuple(value.shape) for name, value in found.items()} == shapes
    if found is None or not sound or not all(bool(torch.isfinite(v).all()) for v in found.values()):
        yield Finding(where=path.name, what="does not hold just the sums, counts and noise of the plan", means=_OTHER)
        return
    embedding = Embedding.load(path)
    clip, noise = 1.0, getattr(settings, "noise_std", None)
    if plan.privacy is not None:
        clip, noise = plan.privacy.clip_norm, sum_noise(facts, plan.privacy)
    if embedding.noise_std != noise:
        what = f"says noise {embedding.noise_std:.6g}, where the plan says {noise:.6g}"
        yield Finding(where=path.name, what=what, means=_OTHER)
    grid, sums = clip * 2.0**-GRID_BITS, embedding.sums.numpy()
    with np.errstate(over="ignore", invalid="ignore"):  # what is so far off is not on the grid
        whole = np.rint(sums / grid) * grid
    if not np.array_equal(whole, sums):
        what = "holds values that the noisy sum cannot have had"
        yield Finding(where=path.name, what=what, means="It did not come out of the mechanism: do not rely on it.")
    if embedding.kept.tolist() != kept:
        yield Finding(where="model.json", what="has other labels than the embedding", means=_OTHER)


def _is_picture(path: Path, expected: np.ndarray) -> bool:
    """Whether a PNG shows this and holds no chunk but its pixels."""
    data = path.read_bytes()
    at, kinds = 8, []
    while at + 8 <= len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        kinds.append(data[at + 4 : at + 8])
        at += 12 + length
    if at != len(data) or set(kinds) != {b"IHDR", b"IDAT", b"IEND"} or kinds[-1] != b"IEND":
        return False
    try:
        with Image.open(path, formats=["PNG"]) as image:
            if image.size != expected.shape[1::-1]:
                return False
            found = np.asarray(image)
    except (OSError, SyntaxError, ValueError):
        return False
    apart = np.abs(found.astype(float) - expected) if found.shape == expected.shape else np.array(np.inf)
    return bool(apart.mean() <= PICTURE_TOLERANCE)
