from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

import gswgan
from conftest import tiny_images
from gswgan import GSWGAN
from gswgan.errors import DataError, GswganError, GswganWarning, PlanError, RunError
from gswgan.plan.settings import pick_device


@pytest.fixture(scope="module")
def model() -> GSWGAN:
    data = tiny_images(300)
    return GSWGAN(epsilon=10, delta=1e-5, steps=400, device="cpu").fit(data.images[:, 0], data.labels, classes=3)


def test_fit_sample_privacy(model: GSWGAN) -> None:
    images, labels = model.sample(60, seed=1)
    assert images.shape == (60, 8, 8)
    assert images.dtype == np.uint8
    assert np.bincount(labels).tolist() == [20, 20, 20]
    assert model.privacy.epsilon <= 10
    assert model.privacy.delta == 1e-5
    # the stripes of each class are learnt: rows `label :: 4` are brighter than the others
    for label in range(3):
        mean = images[labels == label].mean(axis=(0, 2))
        assert mean[label::4].min() > 2 * np.delete(mean, np.s_[label::4]).max()


def test_samples_vary_within_a_class_and_repeat_with_a_seed(model: GSWGAN) -> None:
    images, _ = model.sample(20, labels=np.zeros(20, int), seed=2)
    assert len(np.unique(images.reshape(20, -1), axis=0)) == 20
    assert np.array_equal(images, model.sample(20, labels=np.zeros(20, int), seed=2)[0])


def test_save_and_load(model: GSWGAN, tmp_path: Path) -> None:
    model.save(tmp_path / "release")
    again = gswgan.load(tmp_path / "release", device="cpu")
    assert again.privacy == model.privacy
    assert np.array_equal(again.sample(9, seed=3)[0], model.sample(9, seed=3)[0])
    with pytest.raises(RunError):
        model.save(tmp_path / "release")
    (tmp_path / "release/generator.safetensors").write_bytes(b"\x80\x04pickle")
    with pytest.raises(RunError, match="weights"):
        gswgan.load(tmp_path / "release")


def test_uniform_means_every_class_in_turn_comes_first(model: GSWGAN) -> None:
    assert {int(model.sample(1, seed=seed)[1][0]) for seed in range(40)} == {0, 1, 2}


def test_released_proportions(model: GSWGAN) -> None:
    _, labels = model.sample(3000, "released", seed=4)
    assert np.bincount(labels) / 3000 == pytest.approx([1 / 3] * 3, abs=0.05)


def test_bad_requests(model: GSWGAN) -> None:
    for wrong in ("always", [0, 0], np.full(5, 7)):
        with pytest.raises(PlanError, match="labels"):
            model.sample(5, wrong)  # type: ignore[arg-type]
    with pytest.raises(RunError, match="Call fit first"):
        GSWGAN().sample(3)
    with pytest.raises(DataError, match="classes"):
        GSWGAN().fit(np.zeros((4, 8, 8), np.uint8), np.zeros(4, int))
    with pytest.raises(GswganError, match="epsilon"):
        GSWGAN(epsilon=-1).fit(np.zeros((4, 8, 8), np.uint8))


@pytest.mark.parametrize("n", [0, -1, 10**15, 2.5, True, "5", None])
def test_a_number_of_samples_that_cannot_be_drawn(model: GSWGAN, n: object) -> None:
    with pytest.raises(PlanError, match=r"n = .*expected a whole number from 1 to 134217728"):
        model.sample(n)  # type: ignore[arg-type]


def test_numpy_counts_are_counts_and_seeds_are_checked(model: GSWGAN) -> None:
    assert model.sample(np.int64(3), seed=np.uint8(1))[0].shape == (3, 8, 8)  # type: ignore[arg-type]
    for seed in (-1, 1.5, 2**63):
        with pytest.raises(PlanError, match="seed"):
            model.sample(3, seed=seed)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "device", ["tpu", "cpu:0", "cpu:x", "cuda:x", "cuda:-1", "cuda:9999", "CPU", "", "cuda:0 ", "cudax"]
)
def test_a_device_that_is_not_there(device: str) -> None:
    data = tiny_images(300)
    with pytest.raises(PlanError, match="device = ") as wrong:
        GSWGAN(device=device).fit(data.images[:, 0], data.labels, classes=3)
    assert "--" not in str(wrong.value)


def test_a_device_beyond_those_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert str(pick_device("cuda:1")) == "cuda:1"
    assert str(pick_device("auto")) == str(pick_device("cuda")) == "cuda"
    with pytest.raises(PlanError, match=r"cuda:2.*has 2"):
        pick_device("cuda:2")


def test_counts_that_cannot_be_are_refused(model: GSWGAN, tmp_path: Path) -> None:
    model.save(tmp_path / "release")
    path = tmp_path / "release/embedding.safetensors"
    whole = safetensors.torch.load_file(path)
    for counts in ([1.0], [1.0, 2.0, float("nan")], [1.0, -2.0, 3.0], [float("inf")] * 3):
        path.write_bytes(safetensors.torch.save({**whole, "counts": torch.tensor(counts, dtype=torch.float64)}))
        with pytest.raises(RunError, match="a positive count for each class"):
            gswgan.load(tmp_path / "release", device="cpu").sample(5, "released")


def test_colour_without_labels_of_another_size(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (40, 12, 20, 3)).astype(np.uint8)
    trained = GSWGAN(steps=4, device="cpu").fit(images, image_size=16, out=tmp_path / "run")
    drawn, labels = trained.sample(3)
    assert drawn.shape == (3, 16, 16, 3)
    assert labels.tolist() == [0, 0, 0]
    assert (tmp_path / "run/release/card.md").exists()


def test_classes_too_rare_are_left_out_and_named(tmp_path: Path) -> None:
    data = tiny_images(300)
    labels = data.labels.copy()
    labels[labels == 2] = 0
    labels[5] = 2  # one record of class 2
    with pytest.warns(GswganWarning, match="no record of 3"):
        trained = GSWGAN(steps=4, device="cpu").fit(data.images[:, 0], labels, classes=4, out=tmp_path / "run")
    _, drawn = trained.sample(40)
    assert set(drawn.tolist()) == {0, 1}
    assert "left out, too rare to be told from the noise: 2, 3" in (tmp_path / "run/release/card.md").read_text()


def test_the_public_api_is_one_screen() -> None:
    assert all(hasattr(gswgan, name) for name in gswgan.__all__)
    with pytest.raises(AttributeError):
        gswgan.nothing  # noqa: B018
