"""The generator of the first stage of preset `refined` is part of its bundle, and is checked as the last one is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
from packed import a_copy, a_release, repack

from gswgan.release.verify import verify

FIRST = "first_generator.safetensors"


def change(folder: Path, do: Callable[[dict[str, torch.Tensor]], object]) -> None:
    weights = safetensors.torch.load_file(folder / FIRST)
    do(weights)
    safetensors.torch.save_file(weights, folder / FIRST, {"format_version": "1"})


def test_it_is_packed_and_verified() -> None:
    assert (a_release("refined") / FIRST).exists()
    assert not verify(a_release("refined")).findings


@pytest.mark.parametrize(
    ("do", "said"),
    [
        (lambda weights: weights.update(record=torch.zeros(64)), "just the weights of the plan's generator"),
        (lambda weights: weights["body.0.bias"].fill_(torch.nan), "of their types and finite"),
    ],
    ids=["one tensor more", "not a number"],
)
def test_other_weights_are_found(tmp_path: Path, do: Callable[[dict[str, torch.Tensor]], object], said: str) -> None:
    folder = a_copy("refined", tmp_path / "copy")
    change(folder, do)
    (finding,) = verify(repack(folder)).findings
    assert finding.where == FIRST
    assert said in finding.what


def test_a_bundle_of_an_earlier_version_has_none_and_another_preset_must_not_have_one(tmp_path: Path) -> None:
    older = a_copy("refined", tmp_path / "older")
    (older / FIRST).unlink()
    assert not verify(repack(older)).findings
    kernel = a_copy("kernel", tmp_path / "kernel")
    (kernel / FIRST).write_bytes((kernel / "generator.safetensors").read_bytes())
    (finding,) = verify(repack(kernel)).findings
    assert "is there, and the plan has none" in finding.what
