from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from conftest import tiny_images
from gswgan import load_data
from gswgan.evaluation.references import cache_folder, data_checksum


def test_checksum_tells_any_two_data_sets_apart() -> None:
    data = tiny_images()
    images, labels = data.images.copy(), data.labels.copy()
    images[5, 0, 3, 3] ^= 1
    labels[5] = (labels[5] + 1) % 3
    others = [
        dataclasses.replace(data, images=images), dataclasses.replace(data, labels=labels),
        dataclasses.replace(data, labels=None, classes=1), dataclasses.replace(data, classes=4),
        dataclasses.replace(data, images=data.images.reshape(24, 1, 16, 16)[:24], labels=data.labels[:24]),
        dataclasses.replace(data, images=data.images[::-1]),
    ]  # fmt: skip
    checksums = [data_checksum(one) for one in [data, *others]]
    assert len(set(checksums)) == len(checksums)
    same = dataclasses.replace(data, name="other", images=np.asfortranarray(data.images))
    assert data_checksum(same) == checksums[0]


def test_public_sets_go_to_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = [
        cache_folder("digits", data_checksum(load_data("digits", split=split)), None) for split in ("train", "test")
    ]
    assert found == [tmp_path / "cache" / "gswgan" / "references" / f"digits-{split}" for split in ("train", "test")]
    assert all(folder is not None and folder.is_dir() for folder in found)


def test_everything_else_stays_with_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever its name, and nowhere at all if there is no private folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    checksum = data_checksum(tiny_images())
    run = tmp_path / "run"
    run.mkdir()
    assert cache_folder("mnist", checksum, None) is None
    assert cache_folder("mnist", checksum, run) is None
    (run / "private").mkdir(mode=0o700)
    folder = cache_folder("mnist/../..", checksum, run)
    assert folder is not None
    assert folder.parent == run / "private" / "evaluation"
    assert folder.is_dir()
    assert folder != cache_folder("mnist/../..", checksum[::-1], run)
    assert not (tmp_path / "cache").exists()
