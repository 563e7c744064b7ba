"""An encoder: the convolutions of the random features, trained on public images before anything is released.

It learns without labels, as SimCLR does (Chen et al. 2020): of many images it must tell which two views (parts of an
image, mirrored or in other colours) are of the same one. So it sees what makes a picture this picture and not another.
It looks at public images alone, and draws from public streams. Its weights are published with the release: anybody can
recompute the features.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from gswgan.critics.kernel.convolutions import Convolutions, scaled, untrained_weights, weight_shapes
from gswgan.critics.kernel.features import KernelSettings, average, pooled_side, products
from gswgan.critics.kernel.vgg import is_vgg, read_vgg, vgg_shapes
from gswgan.critics.resumable import Stopped, Store, TimeLeft
from gswgan.errors import RunError
from gswgan.generators.cuda_graphs import Captured
from gswgan.generators.optimizer_state import load_optimizer, optimizer_tensors
from gswgan.privacy import Streams
from gswgan.privacy.storage import read_file, write_durably

ENCODER = "encoder.safetensors"
"""Beside the embedding that was released with it."""

CODE = 128
"""Numbers that two views are compared by."""

TEMPERATURE = 0.2
LEARNING_RATE, WEIGHT_DECAY = 2e-3, 1e-4

WARM_UP = 0.05
"""The part of the steps in which the learning rate rises; then it falls to 0 along a cosine."""

LEAST_AREA = 0.25
"""Of an image that a view shows."""

COLOUR = 0.4
"""How much brightness, contrast and colours of a view differ from the image's."""

GREY = 0.15
"""The share of the views without colours."""

DRAWS = 14
"""Uniform numbers that a view follows from."""

AT_ONCE = 1024
"""Images that are averaged together."""

SCALED_WITH = 1024
"""Public images that the output is scaled with."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """What an encoder is trained with: nothing here is private. `images`: called once, if there is work to do."""

    images: Callable[[], np.ndarray]
    streams: Streams
    device: torch.device
    store: Store
    stopped: Callable[[], bool] = lambda: False
    note: Callable[[str], None] = lambda text: None


class Shape(Protocol):
    """The public facts of data that an encoder needs."""

    @property
    def channels(self) -> int: ...  # noqa: D102
    @property
    def image_size(self) -> int: ...  # noqa: D102


def encoder_of(settings: KernelSettings, facts: Shape, path: Path, training: Training | None) -> bytes | None:
    """The file of the encoder, made and written durably where there is none yet; None for untrained convolutions.

    It is trained, or it is a network that others trained. It is there before the first release, so that whoever resumes
    has the same features.
    """
    if not settings.has_encoder:
        return None
    if not path.exists():
        if training is None:
            expected = "the encoder that the embedding was released with"
            raise RunError("encoder", str(path), expected, "Restore the file, or start a new run.")
        weights = read_vgg() if settings.public_network else EncoderTraining(settings, facts, training).run()
        write_durably(path, safetensors.torch.save(weights, {"format_version": "1"}))
        training.store.remove()
    return read_encoder(path, settings, facts.channels)


def encoder_shapes(settings: KernelSettings, channels: int) -> dict[str, tuple[int, ...]]:
    """The shape of each of its weights, all of them float32."""
    return vgg_shapes() if settings.public_network else weight_shapes(settings.convolutions, channels)


def read_encoder(path: Path, settings: KernelSettings, channels: int) -> bytes:
    """Read the file, and see that it holds weights of this network: somebody else may have made it."""
    shapes = encoder_shapes(settings, channels)
    most = sum(4 * math.prod(shape) + 2**12 for shape in shapes.values())
    try:
        content = read_file(path, most)
        found = safetensors.torch.load(content)
    except (OSError, ValueError, KeyError, safetensors.SafetensorError) as wrong:  # KeyError: a type unknown to torch
        raise RunError("encoder", str(path), "the encoder of the run", "Restore the file.") from wrong
    sound = {name: (tuple(value.shape), value.dtype) for name, value in found.items()} == {
        name: (shape, torch.float32) for name, shape in shapes.items()
    } and all(bool(value.isfinite().all()) for value in found.values())
    if not sound or (settings.public_network and not is_vgg(found)):
        raise RunError("encoder", str(path), "the encoder of the plan", "Restore the file.")
    return content


class EncoderTraining:
    """The training: it can be stopped after any step and goes on where it was."""

    def __init__(self, settings: KernelSettings, facts: Shape, training: Training) -> None:
        self._settings, self._training, device = settings, training, training.device
        self._channels, self._side = facts.channels, pooled_side(facts.image_size, settings.pooled)
        streams = training.streams
        first = untrained_weights(settings.convolutions, self._channels, self._side, streams)
        self._scale, wide = {"scale": first.pop("scale").to(device)}, settings.convolutions[-1]
        head = {
            "head.0": torch.from_numpy(streams.gaussian((2 * wide, wide), "encoder head", 0)) / math.sqrt(wide),
            "head.1": torch.from_numpy(streams.gaussian((CODE, 2 * wide), "encoder head", 1)) / math.sqrt(2 * wide),
        }
        self._weights = {name: value.float().to(device).requires_grad_() for name, value in {**first, **head}.items()}
        self._rate = torch.zeros((), device=device)
        self._adam = torch.optim.AdamW(
            self._weights.values(), lr=self._rate, weight_decay=WEIGHT_DECAY, fused=True,
            capturable=device.type == "cuda",
        )  # fmt: skip
        self._images = torch.zeros(0)

    def run(self) -> dict[str, Tensor]:
        """Train to the end and return the weights; raise `Stopped`, after saving, when asked to stop."""
        training, steps = self._training, self._settings.encoder_steps
        done, saved = training.store.load() or (0, {})
        if saved:
            self._load(saved["encoder"])
        self._images = self._averaged(training.images()).to(training.device)
        left = TimeLeft(steps, done, training.note, "training the encoder on public images")
        step_on_device = Captured(self._descend)
        with products(tf32=True):
            for step in range(done, steps):
                step_on_device(*self._drawn(step))
                left.report(step + 1)
                stop = training.stopped()
                if stop or training.store.is_due():
                    training.store.save(step + 1, {"encoder": self._state()})
                if stop:
                    raise Stopped
        weights = {name: value.detach() for name, value in self._layers().items()}
        some = self._images[:SCALED_WITH].float() / 255
        found = {name: value.float().cpu().contiguous() for name, value in scaled(weights, some).items()}
        if not all(bool(value.isfinite().all()) for value in found.values()):
            expected = "a training that stays finite"
            raise RunError("encoder", "weights that are not numbers", expected, "Plan anew with other --public images.")
        return found

    def _averaged(self, images: np.ndarray) -> Tensor:
        """What the network sees of the images [n, c, h, w], as uint8."""
        parts = torch.from_numpy(images).split(AT_ONCE)
        return torch.cat([average(part.float(), self._settings.pooled).round().to(torch.uint8) for part in parts])

    def _drawn(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """Which images a step has, what its views follow from, and the learning rate."""
        rng = self._training.streams.generator("encoder", step)
        count, steps = self._settings.encoder_batch, self._settings.encoder_steps
        some = rng.permutation(len(self._images))[:count] if count < len(self._images) else np.arange(len(self._images))
        draws = rng.random((2 * len(some), DRAWS), dtype=np.float32)
        rate = LEARNING_RATE * min(1.0, (step + 1) / (WARM_UP * steps)) * (1 + math.cos(math.pi * step / steps)) / 2
        found = torch.from_numpy(some), torch.from_numpy(draws), torch.tensor(rate)
        device = self._training.device
        return found[0].to(device), found[1].to(device), found[2].to(device)

    def _descend(self, some: Tensor, draws: Tensor, rate: Tensor) -> None:
        self._rate.copy_(rate)
        images = self._images[some].float() / 255
        views = changed(torch.cat([images, images]), draws)
        network = Convolutions(self._layers(), self._channels, self._side, some.device)
        self._adam.zero_grad(set_to_none=True)
        with torch.enable_grad():
            seen = network.layers(views)[-1].mean(dim=(2, 3))
            code = nn.functional.silu(seen @ self._weights["head.0"].T) @ self._weights["head.1"].T
            contrast(nn.functional.normalize(code, dim=1)).backward()
        self._adam.step()

    def _layers(self) -> dict[str, Tensor]:
        """The weights of the convolutions, which are all that is kept."""
        return {name: value for name, value in self._weights.items() if not name.startswith("head")} | self._scale

    def _state(self) -> dict[str, Tensor]:
        return {**self._weights, **optimizer_tensors(self._adam, "adam.")}

    def _load(self, tensors: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, value in self._weights.items():
                value.copy_(tensors[name])
        load_optimizer(self._adam, tensors, "adam.")
        self._adam.param_groups[0]["lr"] = self._rate  # loading made a copy


def contrast(codes: Tensor) -> Tensor:
    """The loss of codes [2n, k] of length 1, where i and n + i are of one image: each is to be told from all others."""
    alike = codes @ codes.T / TEMPERATURE
    alike = alike - 1e4 * torch.eye(len(codes), device=codes.device)  # not with itself
    same = torch.arange(len(codes), device=codes.device).roll(len(codes) // 2)
    return nn.functional.cross_entropy(alike, same)


def changed(images: Tensor, draws: Tensor) -> Tensor:
    """Views of images [n, c, h, w] by uniform numbers [n, DRAWS]: a part of each, mirrored or not, in other colours."""
    centred = 2 * draws[:, :, None, None, None] - 1  # [n, DRAWS, 1, 1, 1] in [-1, 1]
    area, aspect = LEAST_AREA + (1 - LEAST_AREA) * draws[:, 0], torch.exp(0.3 * (2 * draws[:, 1] - 1))
    across, down = (area * aspect).sqrt().clamp(max=1.0), (area / aspect).sqrt().clamp(max=1.0)
    mirrored = 2 * (draws[:, 2] >= 0.5).float() - 1
    side = images.shape[-1]
    place = (torch.arange(side, device=images.device) * 2 + 1) / side - 1
    columns = (mirrored * across)[:, None] * place + ((2 * draws[:, 3] - 1) * (1 - across))[:, None]
    rows = down[:, None] * place + ((2 * draws[:, 4] - 1) * (1 - down))[:, None]
    shape = (len(images), side, side)
    grid = torch.stack([columns[:, None, :].expand(shape), rows[:, :, None].expand(shape)], dim=-1)
    views = nn.functional.grid_sample(images, grid, padding_mode="border", align_corners=False)
    views = views * (1 + COLOUR * centred[:, 5])
    mean = views.mean(dim=(1, 2, 3), keepdim=True)
    views = mean + (views - mean) * (1 + COLOUR * centred[:, 6])
    grey = views.mean(dim=1, keepdim=True)
    colourful = (centred[:, 8] >= 2 * GREY - 1).float() * (1 + 2 * COLOUR * centred[:, 7])
    views = grey + (views - grey) * colourful
    tint = 0.5 * COLOUR * (2 * draws[:, 9 : 9 + images.shape[1]] - 1)
    return (views * (1 + tint[:, :, None, None])).clamp(0.0, 1.0)
