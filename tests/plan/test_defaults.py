"""The recipe follows from public facts and the noise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gswgan.plan.defaults import (
    QUIET,
    Defaults,
    ensemble_defaults,
    gradient_noise,
    kernel_defaults,
    length_scale,
    memory,
    seen_side,
    smoothing,
)
from gswgan.plan.facts import Facts
from gswgan.plan.settings import from_plain, to_plain

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
MEASURED = sorted(RESULTS.glob("*mnist-eps*-h200.json")) + sorted(RESULTS.glob("mnist-eps*-cpu.json"))
ENSEMBLES = [
    *sorted(RESULTS.glob("*mnist-ensemble-eps10-*h200.json")),
    RESULTS / "federated-ensemble-mnist-writers-eps10-h200.json",
    *sorted(path for path in (RESULTS / "curves").glob("*.json") if "dp-sgd" not in path.stem),
]


def facts(records: int = 60_000, classes: int = 10, size: int = 28, channels: int = 1) -> Facts:
    names = tuple(str(label) for label in range(classes))
    return Facts(
        data="made", records=records, persons=None, classes=classes, class_names=names, labelled=classes > 1,
        image_size=size, channels=channels,
    )  # fmt: skip


def test_the_moving_mean_is_as_exact_as_the_release_deserves() -> None:
    """1 / (effective number of fakes) is a quarter of D x noise^2; a moving mean of n keeps n (1 + k) / (1 - k)."""
    features, score, fakes = 32768, 0.00046, 20
    kept = memory(features, score, fakes)
    effective = fakes * (1 + kept) / (1 - kept)
    assert 1 / effective == pytest.approx(features * score**2 / 4, rel=0.01)
    assert memory(features, 1e-6, fakes) == 0.99  # never so long that it lags
    assert memory(features, 0.1, fakes) == 0.0


def test_the_more_noise_the_longer_the_scale_and_the_smoother_the_answers() -> None:
    quiet = facts()
    assert length_scale(quiet, QUIET / 2) == 4.0
    assert smoothing(quiet, QUIET / 2) == 0.0
    scales = [length_scale(quiet, noise) for noise in (0.008, 0.06, 0.5)]
    smooth = [smoothing(quiet, noise) for noise in (0.008, 0.06, 0.5)]
    assert scales == sorted(scales)
    assert smooth == sorted(smooth)
    assert smooth[-1] < 2


def test_the_recipe_scales_with_the_facts() -> None:
    """Side, channels, classes and records; epsilon 10 for MNIST is noise 1."""
    mnist = kernel_defaults(facts(), 1.0, "cuda")
    assert gradient_noise(facts(), 1.0) == pytest.approx(0.0077, abs=1e-4)
    assert mnist.critic.length_scales == (4.0, 2.0)
    assert mnist.critic.windows == (0.0, 4.0)
    assert kernel_defaults(facts(), 7.46, "cuda").critic.windows == (0.0,)  # too much noise for neighbourhoods
    assert kernel_defaults(facts(size=42), 1.0, "cuda").critic.length_scales[0] == 6
    assert kernel_defaults(facts(classes=62), 1.0, "cuda").training.batch_size == 1240
    assert kernel_defaults(facts(classes=1), 1.0, "cuda").training.batch_size == 200
    few, many = kernel_defaults(facts(records=600), 1.0, "cuda"), kernel_defaults(facts(records=600_000), 1.0, "cuda")
    assert few.training.steps < many.training.steps
    for noise_std in (1.0, 7.46):  # what is released does not depend on the device
        here, there = (kernel_defaults(facts(), noise_std, device) for device in ("cpu", "cuda"))
        assert here.critic == there.critic


def test_of_larger_images_averages_are_seen() -> None:
    """So noise, memory and time do not grow with the pixels: 128x128 costs what 32x32 does."""
    small = kernel_defaults(facts(size=32, channels=3), 1.0, "cuda").critic
    for size, averaged in ((28, 1), (47, 1), (48, 2), (64, 2), (96, 3), (128, 4)):
        critic = kernel_defaults(facts(size=size, channels=3), 1.0, "cuda").critic
        assert critic.pooled == averaged
        assert 24 <= seen_side(facts(size=size)) <= 47 or size < 32
        if seen_side(facts(size=size)) == 32:
            assert (critic.length_scales, critic.windows) == (small.length_scales, small.windows)
    assert gradient_noise(facts(size=128), 1.0) == gradient_noise(facts(size=32), 1.0)


def test_without_a_gpu_many_classes_do_not_make_a_step_long() -> None:
    assert [kernel_defaults(facts(classes=n), 1.0, "cpu").training.batch_size for n in (1, 10, 62)] == [100, 100, 248]


@pytest.mark.parametrize("path", MEASURED, ids=lambda path: path.stem)
def test_what_was_measured_is_the_recipe_of_today(path: Path) -> None:
    """The figures of README and docs/results.md are those of the defaults: whoever changes these measures again."""
    plan = json.loads(path.read_text())["plan"]
    device = "cuda" if path.stem.endswith("h200") else "cpu"
    recipe = kernel_defaults(from_plain(Facts, plan["facts"], "facts"), plan["privacy"]["noise_std"], device)
    agree(recipe, plan, "critic", "generator", "optimizer", "training")


@pytest.mark.parametrize("path", ENSEMBLES, ids=lambda path: path.stem)
def test_the_ensemble_that_was_measured_is_that_of_today(path: Path) -> None:
    """The figures of docs/results.md; the steps are those of the record."""
    plan = json.loads(path.read_text())["plan"]
    recipe = ensemble_defaults(from_plain(Facts, plan["facts"], "facts"), "cuda")
    if "ensemble" in plan["critic"]:  # after a start: all but the critics is the kernel critic's
        agree(recipe, {"critic": plan["critic"]["ensemble"]}, "critic")
        return
    if plan["facts"]["persons"] is not None:  # Algorithm 2 sends one batch of fakes a round
        plan["critic"]["fakes_per_step"] = recipe.critic.fakes_per_step
    agree(recipe, plan, "critic", "generator", "optimizer")


def agree(recipe: Defaults, plan: dict[str, Any], *parts: str) -> None:
    for part in parts:
        today, measured = (json.loads(json.dumps(found)) for found in (to_plain(getattr(recipe, part)), plan[part]))
        assert today | {"seed": 0} == measured | {"seed": 0}, part


def test_both_data_sets_were_measured_at_five_epsilons_and_both_ensembles() -> None:
    assert len(MEASURED) >= 16
    assert len(ENSEMBLES) == 4 + 1 + 2 * 7
