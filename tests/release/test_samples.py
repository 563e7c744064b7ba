"""A set of images in a bundle: what is packed, what `verify` finds, and what it says that it has not checked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from packed import a_finished_run, edit, repack
from typer.testing import CliRunner

import gswgan
from gswgan.cli.main import app
from gswgan.errors import PlanError
from gswgan.release.files import MANIFEST, SAMPLES
from gswgan.release.pack import pack
from gswgan.release.samples import CHECKED, LEVELS, npz_bytes
from gswgan.release.verify import verify

COUNT = 40


def packed(tmp_path: Path, kind: str = "kernel", count: int = COUNT) -> Path:
    pack(a_finished_run(kind), tmp_path / "bundle", samples=count)
    return tmp_path / "bundle"


@pytest.mark.parametrize("kind", ["kernel", "refined", "colour"])
def test_a_set_is_packed_verified_and_read_back(tmp_path: Path, kind: str) -> None:
    bundle = packed(tmp_path, kind)
    manifest = json.loads((bundle / MANIFEST).read_text())
    assert manifest["samples"] == {"images": COUNT, "seed": 0}
    assert SAMPLES in manifest["files"]
    verdict = verify(bundle)
    assert not verdict.findings
    said = f"{CHECKED} of them, chosen at random, were drawn again with seed 0 (to {LEVELS} of 255 levels), the others"
    assert said in verdict.describe(None)
    data = gswgan.load_data(str(bundle / SAMPLES))
    images, labels = gswgan.load(bundle, device="cpu").sample(COUNT, seed=0)
    assert np.array_equal(data.labels, labels)
    assert np.array_equal(data.images.transpose(0, 2, 3, 1).reshape(images.shape), images)
    pack(a_finished_run(kind), tmp_path / "again", samples=COUNT)
    assert (tmp_path / "again" / MANIFEST).read_bytes() == (bundle / MANIFEST).read_bytes()


def test_a_bundle_without_a_set_says_nothing_of_one(tmp_path: Path) -> None:
    pack(a_finished_run("kernel"), tmp_path / "bundle")
    assert "samples" not in json.loads((tmp_path / "bundle" / MANIFEST).read_text())
    assert SAMPLES not in verify(tmp_path / "bundle").describe(None)


def resealed(bundle: Path) -> Path:
    """With a manifest that fits."""
    before = json.loads((bundle / MANIFEST).read_text())["samples"]
    repack(bundle)
    edit(bundle / MANIFEST, lambda content: content.update(samples=before))
    return bundle


def rewrite(bundle: Path, change: Callable[[dict[str, np.ndarray]], object]) -> None:
    with np.load(bundle / SAMPLES) as file:
        arrays = {name: file[name] for name in file.files}
    change(arrays)
    names = tuple(map(str, arrays["class_names"]))
    (bundle / SAMPLES).write_bytes(npz_bytes(arrays["images"], arrays["labels"], names))


TAMPERED = {
    "other images": (lambda found: found.update(images=255 - found["images"]), "that the generator does not draw"),
    "a few levels more": (
        lambda found: found.update(images=np.where(found["images"] > 128, found["images"] - 4, found["images"] + 4)),
        "that the generator does not draw",
    ),
    "other labels": (lambda found: found.update(labels=found["labels"][::-1].copy()), "does not hold just 40 images"),
    "fewer images": (lambda found: found.update(images=found["images"][:-1]), "does not hold just 40 images"),
    "other names": (lambda found: found.update(class_names=np.array(["a", "b", "c"])), "does not hold just 40 images"),
}


@pytest.mark.parametrize("how", TAMPERED)
def test_another_set_is_found(tmp_path: Path, how: str) -> None:
    bundle, (change, said) = packed(tmp_path), TAMPERED[how]
    assert not verify(resealed(bundle)).findings
    rewrite(bundle, change)
    (finding,) = verify(resealed(bundle)).findings
    assert said in finding.what


def test_bytes_beside_the_arrays_are_found(tmp_path: Path) -> None:
    bundle = packed(tmp_path)
    (bundle / SAMPLES).write_bytes((bundle / SAMPLES).read_bytes() + b"record 17")
    (finding,) = verify(resealed(bundle)).findings
    assert "does not hold just" in finding.what


@pytest.mark.parametrize(
    "stated", [{"images": 41, "seed": 0}, {"images": COUNT, "seed": 1}, {"images": 10**12, "seed": 0}, {}, 7, None]
)
def test_another_statement_is_found(tmp_path: Path, stated: object) -> None:
    bundle = packed(tmp_path)
    edit(bundle / MANIFEST, lambda content: content.update(samples=stated))
    assert verify(bundle).findings


def test_a_statement_without_a_set_is_found(tmp_path: Path) -> None:
    pack(a_finished_run("kernel"), tmp_path / "bundle")
    edit(tmp_path / "bundle" / MANIFEST, lambda content: content.update(samples={"images": 1, "seed": 0}))
    assert verify(tmp_path / "bundle").findings


@pytest.mark.parametrize("count", [0, -1, 10**9])
def test_a_number_that_cannot_be_is_refused_and_leaves_nothing(tmp_path: Path, count: int) -> None:
    with pytest.raises(PlanError, match="samples"):
        packed(tmp_path, count=count)
    assert not list(tmp_path.iterdir())


def test_the_command_line_shows_progress(tmp_path: Path) -> None:
    out = tmp_path / "bundle"
    options = ["release", str(a_finished_run("kernel")), "--out", str(out), "--samples", "40", "--device", "cpu"]
    ended = CliRunner().invoke(app, options)
    assert ended.exit_code == 0, ended.output
    assert "image 40/40" in ended.output
    assert "samples.npz, 40 images" in ended.output
    assert (out / SAMPLES).exists()
