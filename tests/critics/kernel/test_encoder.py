"""The encoder: what a view is, that it learns from public images alone, and that a stopped training goes on."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor

from colour_shapes import colour_shapes
from gswgan.critics.kernel import encoder
from gswgan.critics.kernel.convolutions import Convolutions, untrained_weights, weight_shapes
from gswgan.critics.kernel.encoder import DRAWS, EncoderTraining, Training, changed, contrast, encoder_of
from gswgan.critics.kernel.features import KernelSettings, RandomFeatures, features_of
from gswgan.critics.resumable import Stopped
from gswgan.errors import PlanError, RunError
from gswgan.privacy import Streams

CPU = torch.device("cpu")
SETTINGS = KernelSettings(features=64, length_scales=(2.0,), convolutions=(6, 8), encoder_steps=5, encoder_batch=16)


@dataclass(frozen=True)
class Shape:
    channels: int
    image_size: int


class Memory:
    """A store that keeps the last state, as the run folder's does, and is due when told."""

    def __init__(self, due: bool = False) -> None:
        self.due, self.kept, self.removed = due, None, False

    def is_due(self) -> bool:
        return self.due

    def save(self, step: int, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
        self.kept = step, {part: {name: value.detach().clone() for name, value in state.items()}
                           for part, state in parts.items()}  # fmt: skip

    def load(self):
        return self.kept

    def remove(self) -> None:
        self.kept, self.removed = None, True


def public(number: int = 60, side: int = 16, channels: int = 3) -> np.ndarray:
    return colour_shapes(number, seed=4, side=side).images[:, :channels]


def training(images: np.ndarray, **options) -> Training:
    return Training(
        **{"images": lambda: images, "streams": Streams.public(0), "device": CPU, "store": Memory(), **options}
    )


def trained(images: np.ndarray, settings: KernelSettings = SETTINGS, **options) -> dict[str, Tensor]:
    return EncoderTraining(settings, Shape(images.shape[1], images.shape[-1]), training(images, **options)).run()


def test_a_view_is_a_part_of_its_image_in_other_colours() -> None:
    images = torch.rand(3, 3, 12, 12)
    draws = torch.full((3, DRAWS), 0.5)
    draws[:, 0], draws[:, 2] = 1.0, 0.9  # all of it, not mirrored, no change of colours
    assert torch.allclose(changed(images, draws), images, atol=1e-5)
    draws[:, 2] = 0.1
    assert torch.allclose(changed(images, draws), images.flip(3), atol=1e-5)
    draws[:, 8] = 0.0  # among the grey ones
    grey = changed(images, draws)
    assert torch.allclose(grey[:, 0], grey[:, 2], atol=1e-5)
    draws = torch.from_numpy(np.random.default_rng(0).random((200, DRAWS), dtype=np.float32))
    views = changed(images[:1].expand(200, 3, 12, 12), draws)
    assert (views.min(), views.max()) >= (0, 0)
    assert views.max() <= 1
    assert len({view.numpy().tobytes() for view in views}) == 200
    ramp = torch.linspace(0, 1, 12).expand(1, 1, 12, 12)  # grey images: a part of them is less of the ramp
    spread = changed(ramp.expand(200, 1, 12, 12), draws).amax((1, 2, 3))
    assert spread.std() > 0.05


def test_two_views_of_an_image_have_to_be_told_from_all_others() -> None:
    codes = torch.nn.functional.normalize(torch.randn(8, 16, generator=torch.Generator().manual_seed(0)), dim=1)
    assert contrast(torch.cat([codes, codes])) < 0.5 * contrast(torch.cat([codes, codes.roll(1, dims=0)]))


@pytest.mark.parametrize(("side", "channels"), [(8, 1), (13, 3), (28, 1), (32, 3)])
def test_every_size_is_trained_and_scaled_as_pixels_are(side: int, channels: int) -> None:
    images = public(24, side, channels)
    weights = trained(images)
    assert {name: tuple(value.shape) for name, value in weights.items()} == weight_shapes((6, 8), channels)
    network = Convolutions(weights, channels, side, CPU)
    pixels = torch.from_numpy(images).float() / 255
    seen = network(pixels)
    apart, wanted = (torch.pdist(rows).square().mean().sqrt() for rows in (seen, pixels.flatten(1)))
    assert apart == pytest.approx(float(wanted), rel=0.2)
    features = RandomFeatures(SETTINGS, channels, side, CPU, weights)
    assert torch.allclose(features(pixels).norm(dim=1), torch.ones(24), atol=1e-6)
    assert not features(pixels).requires_grad


def test_it_learns_to_tell_images_apart_whatever_their_view() -> None:
    """Of 120 others by the nearest view: better than untrained, on images that it has not seen."""
    settings = dataclasses.replace(SETTINGS, convolutions=(8, 16), encoder_steps=200, encoder_batch=64)
    weights = trained(public(600), settings)
    images = torch.from_numpy(colour_shapes(120, seed=9).images).float() / 255
    draws = torch.from_numpy(np.random.default_rng(1).random((240, DRAWS), dtype=np.float32))
    views = changed(torch.cat([images, images]), draws)

    def found(given: Mapping[str, Tensor]) -> float:
        seen = Convolutions(given, 3, 16, CPU).layers(views)[-1].mean(dim=(2, 3))
        one, other = (seen - seen.mean(dim=0)).split(120)
        alike = torch.nn.functional.normalize(one, dim=1) @ torch.nn.functional.normalize(other, dim=1).T
        return float((alike.argmax(dim=1) == torch.arange(120)).float().mean())

    before = found(untrained_weights((8, 16), 3, 16, Streams.public(0)))
    assert found(weights) > 1.3 * before


@pytest.mark.parametrize("stop", [1, 4])
def test_a_training_that_was_stopped_goes_on_to_the_same_bits(stop: int) -> None:
    images, store, calls = public(), Memory(), iter(range(1, 9))
    with pytest.raises(Stopped):
        trained(images, store=store, stopped=lambda: next(calls) == stop)
    assert store.kept is not None
    assert store.kept[0] == stop
    notes: list[str] = []
    again, straight = trained(images, store=store, note=notes.append), trained(images)
    assert all(torch.equal(again[name], straight[name]) for name in straight)
    assert notes[-1] == "training the encoder on public images: 100 %, 0 s left"


@pytest.mark.gpu
def test_on_a_gpu_steps_are_recorded_and_a_stopped_training_goes_on_with_them() -> None:
    """The first steps are called and the others replayed; on both sides of the stop there are some of each."""
    settings, cuda = dataclasses.replace(SETTINGS, encoder_steps=12), torch.device("cuda")
    images, store, calls = public(), Memory(), iter(range(1, 20))
    with pytest.raises(Stopped):
        trained(images, settings, device=cuda, store=store, stopped=lambda: next(calls) == 6)
    first = untrained_weights((6, 8), 3, 16, Streams.public(0))

    def way(weights: Mapping[str, Tensor]) -> Tensor:
        return torch.cat([(weights[name] - first[name]).flatten() for name in first if name != "scale"])

    again = way(trained(images, settings, device=cuda, store=store))
    for device in (cuda, CPU):
        straight = way(trained(images, settings, device=device))
        assert (again - straight).norm() < 0.1 * straight.norm()  # products of fewer bits on a GPU


def test_the_file_is_made_once_and_read_as_it_is(tmp_path: Path) -> None:
    path, store, images = tmp_path / "encoder.safetensors", Memory(due=True), public()
    with pytest.raises(RunError, match="the encoder that the embedding was released with"):
        encoder_of(SETTINGS, Shape(3, 16), path, None)
    content = encoder_of(SETTINGS, Shape(3, 16), path, training(images, store=store))
    assert store.removed
    assert content == path.read_bytes()

    def nothing() -> np.ndarray:
        raise AssertionError("the images are not needed again")

    assert encoder_of(SETTINGS, Shape(3, 16), path, dataclasses.replace(training(images), images=nothing)) == content
    assert encoder_of(dataclasses.replace(SETTINGS, encoder_steps=0), Shape(3, 16), path, None) is None
    with pytest.raises(RunError, match="the encoder of the plan"):
        encoder_of(dataclasses.replace(SETTINGS, convolutions=(6, 9)), Shape(3, 16), path, None)
    path.write_bytes(b"nothing of the kind")
    with pytest.raises(RunError, match="the encoder of the run"):
        encoder_of(SETTINGS, Shape(3, 16), path, None)


def content_of(**tensor: object) -> bytes:
    """A file with one tensor."""
    head = json.dumps({"0.weight": tensor}).encode()
    return struct.pack("<Q", len(head)) + head + bytes(4)


STRANGE = {
    "half": safetensors.torch.save({n: torch.ones(s).half() for n, s in weight_shapes((6, 8), 3).items()}),
    "whole": safetensors.torch.save({n: torch.ones(s).int() for n, s in weight_shapes((6, 8), 3).items()}),
    "nan": safetensors.torch.save({n: torch.full(s, torch.nan) for n, s in weight_shapes((6, 8), 3).items()}),
    "unknown type": content_of(dtype="F8_E8M0", shape=[4], data_offsets=[0, 4]),
}


@pytest.mark.parametrize("name", STRANGE)
def test_a_strangers_encoder_ends_in_an_error_of_ours(tmp_path: Path, name: str) -> None:
    """Of shapes that fit: `gswgan train --from` reads it in a bundle that anybody may have made."""
    (tmp_path / "encoder.safetensors").write_bytes(STRANGE[name])
    with pytest.raises(RunError, match="the encoder of the"):
        encoder_of(SETTINGS, Shape(3, 16), tmp_path / "encoder.safetensors", None)


def test_features_are_those_of_the_file_and_no_others() -> None:
    weights = trained(public())
    content, images = safetensors.torch.save(weights), torch.rand(5, 3, 16, 16)
    rows = features_of(SETTINGS, 3, 16, CPU, content)(images)
    assert torch.equal(rows, RandomFeatures(SETTINGS, 3, 16, CPU, weights)(images))
    plain = dataclasses.replace(SETTINGS, encoder_steps=0)
    assert not torch.allclose(rows, RandomFeatures(plain, 3, 16, CPU)(images), atol=1e-3)
    with pytest.raises(PlanError, match="an encoder exactly where it was trained"):
        RandomFeatures(SETTINGS, 3, 16, CPU)
    with pytest.raises(PlanError, match="an encoder exactly where it was trained"):
        RandomFeatures(plain, 3, 16, CPU, weights)


def test_a_training_that_breaks_down_is_not_released(monkeypatch) -> None:
    monkeypatch.setattr(encoder, "LEARNING_RATE", 1e38)
    with pytest.raises(RunError, match="a training that stays finite"):
        trained(public())


def test_images_that_tell_nothing_of_each_other_end_in_an_error_of_ours() -> None:
    with pytest.raises(RunError, match="other --public images"):
        trained(public(1).repeat(30, axis=0))


def test_the_training_is_given_public_images_and_public_streams_alone() -> None:
    """By construction: no data set, mechanism, ledger or key reaches it."""
    assert set(inspect.signature(EncoderTraining.__init__).parameters) == {"self", "settings", "facts", "training"}
    assert {field.name for field in dataclasses.fields(Training)} == {
        "images", "streams", "device", "store", "stopped", "note",
    }  # fmt: skip
    imported = {node.module for node in ast.walk(ast.parse(inspect.getsource(encoder)))
                if isinstance(node, ast.ImportFrom)}  # fmt: skip
    assert not any(name and name.startswith("gswgan.data") for name in imported)
