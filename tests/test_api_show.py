"""A model in a notebook or a terminal, and its samples as a torch data set."""

from __future__ import annotations

import base64
import html
import io
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

import gswgan
from conftest import tiny_images
from gswgan import GSWGAN
from gswgan.errors import PlanError

NAMES = ("<b>bag</b>", "shoe", "uniform")


@pytest.fixture(scope="module")
def model() -> GSWGAN:
    data = tiny_images(300)
    return GSWGAN(steps=60, device="cpu").fit(data.images[:, 0], data.labels, class_names=NAMES)


def test_the_text_says_what_it_is_and_what_it_guarantees(model: GSWGAN) -> None:
    assert repr(GSWGAN()) == "GSWGAN()"
    assert repr(GSWGAN(epsilon=3, preset="refined")) == "GSWGAN(epsilon=3, preset='refined')"
    first, data, guarantee = repr(model).splitlines()
    assert first == "GSWGAN(steps=60, device='cpu')"
    assert data == "  data:      arrays: 300 records, 3 classes (<b>bag</b>, shoe, uniform), 8x8x1"
    assert guarantee == f"  guarantee: {model.privacy}"


def test_a_notebook_shows_samples_and_guarantee(model: GSWGAN) -> None:
    shown = model._repr_html_()
    (data,) = re.findall(r'src="data:image/png;base64,([^"]+)"', shown)
    with Image.open(io.BytesIO(base64.b64decode(data))) as picture:
        assert np.array_equal(np.asarray(picture), np.asarray(model.picture()))
        assert picture.size == (10 * 60, 3 * 60)  # a row per class
    assert html.escape(str(model.privacy)) in shown
    assert "<b>" not in shown  # names are text
    assert "<img" not in GSWGAN()._repr_html_()


def test_no_guarantee_is_said(tmp_path: Path) -> None:
    data = tiny_images(300)
    known = GSWGAN(steps=2, device="cpu", insecure_reproducible=True).fit(data.images[:, 0], data.labels, classes=3)
    assert "guarantee: NONE. This release was made with --insecure-reproducible" in repr(known)
    known.save(tmp_path / "release")
    assert "guarantee: NONE" in repr(gswgan.load(tmp_path / "release", device="cpu"))


def test_rows_of_the_picture_are_classes(model: GSWGAN) -> None:
    pixels = np.asarray(model.picture(columns=4))
    rows = pixels.reshape(3, 60, -1)[:, 2:-2]
    bright = [row.reshape(8, 7, -1).mean(axis=(1, 2)) for row in rows]
    assert [int(np.argmax(row[:4])) for row in bright] == [0, 1, 2]  # the stripes of each class


def test_a_data_set_draws_as_it_goes(model: GSWGAN, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    real = type(model._fitted()).sample
    monkeypatch.setattr(type(model._fitted()), "sample", lambda *a, **b: drawn.append(a[1]) or real(*a, **b))
    samples = model.dataset(600, ["shoe", 0], seed=1)
    assert drawn == []
    image, label = next(iter(samples))
    assert drawn == [256]
    assert image.shape == (1, 8, 8)
    assert image.dtype == torch.float32
    assert 0 <= float(image.min()) < float(image.max()) <= 1
    assert label in (0, 1)
    assert samples.classes == list(NAMES)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_gets_every_image_once(model: GSWGAN, workers: int) -> None:
    how = {"num_workers": workers, "multiprocessing_context": "forkserver" if workers else None}
    images, labels = zip(*DataLoader(model.dataset(301), batch_size=50, **how))
    counts = torch.bincount(torch.cat(labels))
    assert sorted(counts.tolist()) == [100, 100, 101]
    found = torch.cat(images).reshape(301, -1)
    assert len(found.unique(dim=0)) == 301  # workers do not draw the same


def test_passes_repeat_with_a_seed_alone(model: GSWGAN) -> None:
    def drawn(seed: int | None) -> list[float]:
        return [float(image.sum()) for image, _ in samples[seed]]

    samples = {seed: model.dataset(20, seed=seed) for seed in (1, None)}
    assert drawn(1) == drawn(1)
    assert drawn(None) != drawn(None)


@pytest.mark.parametrize(("n", "labels"), [(0, None), (-1, None), (1.5, None), (5, "cap"), (5, [9])])
def test_wrong_data_sets_are_refused_at_once(model: GSWGAN, n: int, labels: object) -> None:
    with pytest.raises(PlanError):
        model.dataset(n, labels)  # type: ignore[arg-type]
