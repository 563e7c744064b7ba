"""What holds for every method behind the one command."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import norm
from typer.testing import CliRunner

import gswgan
from conftest import MNIST, tiny_baseline, tiny_images, tiny_plan
from gswgan.api.plan_text import describe
from gswgan.cli.main import app
from gswgan.critics.kernel.features import KernelSettings
from gswgan.data import ImageData
from gswgan.errors import PlanError
from gswgan.methods import METHODS, make_plan, read_plan
from gswgan.plan.facts import Facts
from gswgan.plan.plan import Plan
from gswgan.privacy import Accountant, Gaussian, Laplace
from gswgan.run.folder import RunFolder

CPU = torch.device("cpu")
DATA = tiny_images()
BASELINES = [name for name in METHODS if name != "gswgan"]
PRIVATE = [name for name in BASELINES if name != "gan"]


@functools.cache
def plan_of(method: str, *, secret: bool = False) -> Plan:
    return tiny_baseline(DATA, method, insecure_reproducible=not secret)


def test_the_methods_are_those_of_the_issue() -> None:
    assert list(METHODS) == ["gswgan", "dp-merf", "dp-merf-ae", "dp-sgd-gan", "g-pate", "pate-gan", "gan"]
    assert all(METHODS[name].name == name for name in METHODS)
    assert METHODS["dp-sgd-gan"].presets == ("revisited", "dp-cgan")


# --- plans


@pytest.mark.parametrize("method", BASELINES)
def test_a_plan_depends_on_public_facts_only_and_comes_back(method: str, tmp_path: Path) -> None:
    other = dataclasses.replace(tiny_images(seed=1), labels=np.zeros(96, np.int64))
    plan = plan_of(method)
    assert tiny_baseline(other, method, insecure_reproducible=True) == plan
    plan.save(tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json") == plan
    content = json.loads((tmp_path / "plan.json").read_text())
    assert (content["method"], content["format_version"]) == (method, 6)


@pytest.mark.parametrize("method", BASELINES)
def test_an_edited_plan_is_refused(method: str) -> None:
    """Also one whose settings are those of another method, or that takes another method's name."""
    for change in ({"seed": 1}, {"critic": {"width": 3}}, {"method": "gan" if method != "gan" else "g-pate"}):
        with pytest.raises(PlanError):
            read_plan(plan_of(method).to_json() | change)


@pytest.mark.parametrize("method", PRIVATE)
def test_the_device_changes_no_release(method: str) -> None:
    here, there = (make_plan(MNIST, method=method, steps=50, device=device) for device in ("cpu", "cuda"))
    assert here.releases() == there.releases()
    assert here.guarantee == there.guarantee


@pytest.mark.parametrize("method", PRIVATE)
def test_noise_is_calibrated_to_replace_one(method: str) -> None:
    costs = [plan_of(method).guarantee, tiny_baseline(DATA, method, epsilon=1.0).guarantee]
    for cost, target in zip(costs, (10, 1), strict=True):
        assert target * 0.999 < cost.epsilon <= target
        assert (cost.delta, cost.neighbours, cost.unit, cost.observer) == (1e-5, "replace-one", "record", "public")


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Balle and Wang 2018."""
    return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu))


def test_g_pate_costs_the_closed_form_of_its_gaussians() -> None:
    plan = make_plan(MNIST, method="g-pate", epsilon=3.0)
    steps, rows = plan.training.steps, plan.training.batch_size * plan.critic.projection
    mu = math.sqrt(steps * rows * (1 / plan.critic.check_noise**2 + 2 / plan.critic.vote_noise**2))
    assert gaussian_delta(mu, plan.guarantee.epsilon) == pytest.approx(1e-5, rel=0.01)
    assert plan.critic.check_noise == pytest.approx(6 * plan.critic.vote_noise)  # 600 and 100
    assert plan.critic.teachers == 2000


def laplace_delta(scale: float, values: int, epsilon: float) -> float:
    """Of so many values that move by 1: the exact law of one loss on a fine grid, composed by FFT."""
    size = 2**18
    span = 8 * math.sqrt(values) / scale + values / scale**2 + epsilon
    width = 2 * span / size
    edges = (np.arange(-(size // 2), size // 2 + 1) - 0.5) * width
    # loss (|x - 1| - |x|) / scale under Laplace(0): atoms at both ends, a density between
    x = (1 - np.clip(edges * scale, -1, 1)) / 2  # the loss is above an edge where the value is below x
    law = np.where(x < 0, 0.5 * np.exp(x / scale), 1 - 0.5 * np.exp(-x / scale))
    law = np.where(edges >= 1 / scale, 0.0, np.where(edges < -1 / scale, 1.0, law))
    one = np.diff(1 - law)
    total = np.fft.fftshift(np.fft.irfft(np.fft.rfft(np.fft.ifftshift(one)) ** values, size))
    loss = (edges[:-1] + edges[1:]) / 2
    above = loss > epsilon
    return float(np.sum(total[above] * -np.expm1(epsilon - loss[above])))


def test_pate_gan_costs_the_fft_of_its_laplaces() -> None:
    plan = plan_of("pate-gan")
    values = 2 * plan.critic.batch_size * plan.critic.student_updates * plan.training.steps
    found = laplace_delta(plan.critic.scale, values, plan.guarantee.epsilon)
    assert found == pytest.approx(1e-5, rel=0.05)
    assert laplace_delta(plan.critic.scale, values // 2, plan.guarantee.epsilon) < 1e-6  # one count of two forgotten


def test_dp_cgan_runs_as_published_and_says_what_it_costs() -> None:
    """7.93 under replace-one: by FFT in test_dp_sgd_gan.py."""
    plan = make_plan(MNIST, method="dp-sgd-gan", preset="dp-cgan")
    assert plan.guarantee.epsilon == pytest.approx(7.93, abs=0.005)
    assert (plan.critic.noise_multiplier, plan.critic.clip_norm, plan.training.steps) == (2.1, 1.1, 30_000)
    assert plan.claimed.epsilon == pytest.approx(10.10, abs=0.005)  # the GS-WGAN paper says 10
    assert "Wang et al. 2019" in plan.claimed.accounting
    assert make_plan(MNIST, method="dp-sgd-gan", steps=50).claimed is None
    assert len(plan.curve) == 8
    with pytest.raises(PlanError, match="noise is fixed"):
        make_plan(MNIST, method="dp-sgd-gan", preset="dp-cgan", epsilon=10)


def test_revisited_keeps_its_settings_but_the_noise() -> None:
    plan = make_plan(MNIST, method="dp-sgd-gan")
    critic = plan.critic
    assert (critic.learning_batch, critic.clip_norm, critic.raise_below) == (1024, 1.0, 0.6)
    assert (critic.releases, critic.pairs) == (8000, True)
    assert critic.noise_multiplier == pytest.approx(1.541, abs=0.001)
    whole = dataclasses.replace(
        critic, learning_batch=512, releases=174_000, noise_multiplier=3.56
    )  # theirs: 2.0, which costs 20.97
    assert Accountant().epsilon(whole.events(60_000), 1e-5) == pytest.approx(10, abs=0.01)
    assert plan.curve == ()  # how many releases a step makes is not known beforehand
    assert plan.epsilon_after(1) == plan.guarantee.epsilon
    tiny = make_plan(Facts.of(DATA), method="dp-sgd-gan").critic  # soon learned
    assert (tiny.releases, tiny.pairs, tiny.learning_batch) == (300, True, DATA.n // 10)


@pytest.mark.parametrize(
    ("method", "options", "named"),
    [
        ("gan", {"epsilon": 10}, "no guarantee"),
        ("gan", {"critics": 5}, "critics"),
        ("dp-sgd-gan", {"critics": 5}, "critics"),
        ("g-pate", {"critics": 97}, "critics"),
        ("pate-gan", {"preset": "paper"}, "preset"),
        ("dp-gan", {}, "method"),
        (None, {}, "method"),
    ],
)
def test_what_a_method_has_not_is_refused(method, options: dict, named: str) -> None:
    with pytest.raises(PlanError, match=named):
        make_plan(Facts.of(DATA), method=method, **options)


def test_persons_are_divided_among_teachers_and_refused_by_dp_sgd() -> None:
    facts = dataclasses.replace(Facts.of(DATA), persons=20)
    assert make_plan(facts, method="g-pate", steps=2).guarantee.unit == "person"
    assert make_plan(facts, method="pate-gan", steps=2).critic.teachers <= 20
    with pytest.raises(PlanError, match="persons"):
        make_plan(facts, method="dp-sgd-gan", steps=2)
    plan = plan_of("g-pate")
    with pytest.raises(PlanError, match="unit"):
        dataclasses.replace(plan, guarantee=dataclasses.replace(plan.guarantee, unit="person"))


def test_a_plan_says_what_it_is() -> None:
    for method in BASELINES:
        text = describe(plan_of(method))
        assert METHODS[method].about in text
        assert ("x Laplace" in text) == (method == "pate-gan")
        assert ("guarantee: NONE" in text) == (method == "gan")
    assert text.count("WITHOUT differential privacy") >= 2
    assert "epsilon 10" not in text


# --- the one way in: GSWGAN(method=...) and --method


def test_a_method_from_python(stripes: ImageData, tmp_path: Path) -> None:
    model = gswgan.GSWGAN(method="dp-sgd-gan", steps=1, epsilon=5, device="cpu")
    model.fit(stripes.images[:, 0], stripes.labels, classes=3)
    assert 4.99 < model.privacy.epsilon <= 5
    assert model.plan_.method == "dp-sgd-gan"


def test_a_method_from_the_command_line(tmp_path: Path, monkeypatch) -> None:
    np.savez(tmp_path / "stripes.npz", images=DATA.images[:, 0], labels=DATA.labels)
    monkeypatch.chdir(tmp_path)
    common = ["train", "--data", "stripes.npz", "--classes", "3", "--device", "cpu", "--steps", "2"]
    for method in ("gan", "g-pate"):
        done = CliRunner().invoke(app, [*common, "--method", method])
        assert done.exit_code == 0, done.output
        assert RunFolder(tmp_path / "runs" / f"stripes-{method}").is_finished
        assert ("NO guarantee" in done.output) == (method == "gan")
        assert ("may be published" in done.output) == (method != "gan")
    dry = CliRunner().invoke(app, [*common, "--method", "pate-gan", "--dry-run"]).output
    assert "x Laplace" in dry
    assert "which critic" not in dry  # a question of GS-WGAN's


def test_accounting_for_a_method() -> None:
    call = ["privacy", "account", "--method", "dp-sgd-gan", "--preset", "dp-cgan", "--json"]
    content = json.loads(CliRunner().invoke(app, call).stdout)
    assert content["epsilon"] == pytest.approx(7.93, abs=0.005)
    assert (content["delta"], content["neighbours"], content["sampling"]) == (1e-5, "replace-one", "poisson")
    assert "30000 x Gaussian" in content["planned"][0]
    assert "NO GUARANTEE" in CliRunner().invoke(app, ["privacy", "account", "--method", "gan"]).output


def test_a_method_needs_no_other_file(monkeypatch) -> None:
    """No part of the loop, the plan, the release or the report knows a baseline by name."""
    source = Path(gswgan.__file__).parent
    for path in [
        *source.glob("plan/*.py"),
        *source.glob("run/*.py"),
        *source.glob("report/*"),
        *source.glob("privacy/*.py"),
    ]:
        if path.is_file() and path.suffix in (".py", ".j2"):
            text = path.read_text()
            for name in ("DPSGDGAN", "GPate", "PateGan", "GANSettings", '"g-pate"', '"pate-gan"', '"dp-merf"'):
                assert name not in text, (path.name, name)


def test_gs_wgan_is_a_method_like_the_others() -> None:
    plan = tiny_plan(DATA)
    assert plan.method == "gswgan"
    assert isinstance(plan.critic, KernelSettings)
    assert list(map(type, plan.releases())) == [Gaussian]
    assert list(map(type, plan_of("pate-gan").releases())) == [Laplace]
