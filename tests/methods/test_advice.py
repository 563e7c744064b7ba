from __future__ import annotations

import dataclasses
import functools
import math
import re
from pathlib import Path

import pytest
import torch

from gswgan.api.plan_text import advice, outlook
from gswgan.critics.kernel.features import KernelSettings, RandomFeatures
from gswgan.methods import advice as module
from gswgan.methods import make_plan
from gswgan.methods.advice import BEARABLE, Comparison, ensemble_noise, kernel_noise
from gswgan.plan.facts import Facts
from gswgan.plan.plan import PrivacySettings
from gswgan.privacy import Accountant

compare, plan_for = functools.cache(module.compare), functools.cache(make_plan)  # calibration takes a second


def images(records: int, *, classes: int = 10, size: int = 28, channels: int = 1, persons: int | None = None) -> Facts:
    return Facts(
        data="images", records=records, persons=persons, classes=classes, class_names=tuple(map(str, range(classes))),
        labelled=classes > 1, image_size=size, channels=channels,
    )  # fmt: skip


MNIST = images(60_000)


def test_mnist_by_hand() -> None:
    """Noise multipliers of the two mechanisms at (10, 1e-5): 1.000 for one release, 3.150 for q = 0.1, T = 1000."""
    found = compare(MNIST, epsilon=10, delta=1e-5)
    assert found.kernel_noise == pytest.approx(1.000 * 10 / 60_000 * 28 * math.e**0.5, rel=2e-3)
    assert found.step_noise == pytest.approx(3.150 * 8 * 28 / (0.1 * 1000), rel=2e-3)  # B = 64, C = 1
    assert found.run_noise == pytest.approx(3.150 * 8 * 28 / 100 / 1000**0.5, rel=2e-3)
    assert found.ratio == pytest.approx((64 / math.e) ** 0.5 * 6, rel=1e-2)  # 6 records of a class per critic
    assert found.class_per_critic == 6


@pytest.mark.parametrize("epsilon", [1.0, 10.0])
@pytest.mark.parametrize(
    "facts", [images(1437, size=8), images(10_000, classes=26), images(10**6, channels=3, size=32)]
)
def test_ratio_is_the_records_of_a_class_per_critic(facts: Facts, epsilon: float) -> None:
    """Epsilon, T, q and the image cancel: both spend the same budget, one on n / L records, the other on K critics."""
    found = compare(facts, epsilon=epsilon, delta=1e-7)
    assert found.ratio == pytest.approx((64 / math.e) ** 0.5 * found.class_per_critic, rel=0.02)


def test_kernel_noise_is_what_the_features_give() -> None:
    """The formula against real features: gradient of a noisy class mean's score, and of one record's own."""
    facts, scale, std = images(500, classes=5, size=8), 1.5, 2.0
    features = RandomFeatures(KernelSettings(features=4096, length_scales=(scale,)), 1, 8, torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)

    def gradient(weights: torch.Tensor, fakes: torch.Tensor) -> torch.Tensor:
        fakes = fakes.clone().requires_grad_(True)
        return torch.autograd.grad((features(fakes) * weights).sum(), fakes)[0].flatten(1).norm(dim=1)

    noise = torch.randn(200, 4096, generator=generator) * std / 100  # 100 records a class
    lengths = gradient(noise, torch.rand(200, 1, 8, 8, generator=generator))
    record = torch.rand(1, 1, 8, 8, generator=generator)
    direction = torch.nn.functional.normalize(torch.randn(1, 64, generator=generator)).view(1, 1, 8, 8)
    path = record + torch.linspace(0, 4 * scale, 200).view(-1, 1, 1, 1) * direction
    longest = gradient(features(record).expand(200, -1), path).max()
    measured = float(lengths.square().mean().sqrt() / longest)
    settings = PrivacySettings(delta=1e-5, noise_std=std, clip_norm=1.0, counts=True)
    assert kernel_noise(facts, settings) == pytest.approx(measured, rel=0.05)


def test_ensemble_noise_is_what_a_step_gives() -> None:
    """Noise on a sum over qK critics, divided by qK, against rows of length C; the paper's draw divides by one."""
    settings = PrivacySettings(
        delta=1e-5, noise_std=6.0, clip_norm=0.5, rows=16, releases=9, sampling="poisson", rate=0.2, critics=50
    )
    facts = images(1000, size=8)
    rows = torch.randn(4000, 64, generator=torch.Generator().manual_seed(0)) * 6 / 10
    assert ensemble_noise(facts, settings) == pytest.approx(float(rows.square().sum(1).mean().sqrt()) / 0.5, rel=0.01)
    drawn = dataclasses.replace(settings, sampling="one", rate=1.0)
    assert ensemble_noise(facts, drawn) == pytest.approx(10 * ensemble_noise(facts, settings))
    assert Comparison(facts=facts, kernel=settings, ensemble=settings).run_noise == pytest.approx(9.6 / 3)


def test_more_critics_mean_less_noise() -> None:
    few, many = (compare(MNIST, epsilon=10, delta=1e-5, critics=critics) for critics in (500, 2000))
    assert few.run_noise == pytest.approx(4 * many.run_noise)
    assert few.kernel_noise == many.kernel_noise


def test_enough_records_and_enough_epsilon_are_enough_and_no_more() -> None:
    few = images(1437, size=8)
    found = compare(few, epsilon=0.3, delta=1e-5)
    assert found.is_loud
    enough = found.enough_units
    assert not compare(images(enough, size=8), epsilon=0.3, delta=1e-5).is_loud
    assert compare(images(enough - 1, size=8), epsilon=0.3, delta=1e-5).is_loud
    quiet = dataclasses.replace(found.kernel, noise_std=BEARABLE * 1437 / 10 / (8 * math.e**0.5))
    assert found.enough_epsilon == pytest.approx(Accountant().epsilon(quiet.total(), 1e-5), rel=1e-3)
    assert not compare(few, epsilon=found.enough_epsilon * 1.01, delta=1e-5).is_loud
    assert compare(few, epsilon=found.enough_epsilon * 0.99, delta=1e-5).is_loud


@pytest.mark.parametrize(
    ("facts", "options", "expected"),
    [
        (MNIST, {}, ["kernel (as planned)\n", "kernel 0.0077, ensemble 0.22: the kernel critic has 29 times less"]),
        (
            MNIST,
            {"preset": "ensemble-alone"},
            ["kernel (--preset kernel)", "K = 1000, noise 7.1 a step", "29 times"],
        ),
        (MNIST, {"preset": "paper"}, ["kernel (--preset kernel)", "noise 60 a step", "852 times"]),
        (images(1437, size=8), {"epsilon": 0.3}, ["too few records", "9,883 records, or epsilon 2.5"]),
        (images(60_000, size=64, channels=3), {}, ["kernel (as planned)", "expect coarse images", "--public-features"]),
        (images(500, classes=62), {}, ["the ensemble has", "but its critics would know 0.05 records of a class"]),
        (images(60_000, persons=100), {"epsilon": 1, "delta": 1e-3}, ["too few persons"]),
        (images(9, classes=1000), {}, ["enough would be 153,847 records\n"]),  # no epsilon with a meaning would do
    ],
)
def test_advice_in_words(facts: Facts, options: dict, expected: list[str]) -> None:
    text = advice(plan_for(facts, **options))
    assert text.startswith("which critic: ")
    assert len(text.splitlines()) <= 6
    for part in expected:
        assert part in text


@pytest.mark.parametrize(
    ("facts", "options"),
    [
        pytest.param(MNIST, {"preset": "paper", "critics": 1}, marks=pytest.mark.slow),  # epsilon 282,688
        (MNIST, {"epsilon": 1e-9, "delta": 0.5}),  # a guarantee of 0
        (images(2, classes=1, size=8), {"epsilon": 20}),
    ],
)
def test_advice_never_fails_where_a_plan_was_made(facts: Facts, options: dict) -> None:
    """Guarantees without a meaning still have a plan."""
    assert "which critic: kernel" in advice(plan_for(facts, **options))


@pytest.mark.parametrize("options", [{"device": "cuda"}, {"neighbours": "zeroed"}, {"steps": 50}])
@pytest.mark.parametrize("preset", ["kernel", "refined"])
def test_the_outlook_is_for_the_guarantee_and_the_steps_of_the_plan(preset: str, options: dict) -> None:
    """A tenth and ten times the records, at one noise, rate and number of steps: that is one guarantee."""
    plan = make_plan(MNIST, preset=preset, epsilon=10, delta=1e-5, **options)
    tenth, as_planned, tenfold = (float(part) for part in re.findall(r"noise (\S+) on", outlook(plan)))
    assert tenth == pytest.approx(10 * as_planned, rel=0.1)  # of two digits each
    assert tenfold == pytest.approx(as_planned / 10, rel=0.1)


def test_without_dp_accounting_a_saved_plan_can_still_be_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_for(MNIST)
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *rest: None)
    assert "install dp-accounting" in advice(plan)


def test_the_page_has_the_figures_of_the_code() -> None:
    page = " ".join((Path(__file__).parents[2] / "docs" / "methods.md").read_text().split())
    found = compare(MNIST, epsilon=10.0, delta=1e-5)
    assert f"{found.ratio:.0f} times for MNIST with K = {found.ensemble.critics}" in page
    assert f"at noise {found.kernel_noise:.2g}, 0.057 and 0.47" in page
    assert f"Up to {BEARABLE:g} both critics work" in page
