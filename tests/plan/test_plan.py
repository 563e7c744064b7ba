from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from conftest import MNIST, tiny_images, tiny_plan
from gswgan.cli.main import app
from gswgan.critics.kernel.features import KernelSettings
from gswgan.critics.kernel_then_ensemble import KernelThenEnsembleSettings
from gswgan.errors import PlanError, PrivacyError
from gswgan.methods import make_plan, read_plan
from gswgan.plan.facts import Facts
from gswgan.plan.plan import Plan
from processes import Child


def without_device(plan: Plan) -> dict:
    """What may not depend on the device: everything that is released or accounted for."""
    content = plan.to_json()
    for key in ("generator", "optimizer", "training", "digest"):
        del content[key]
    if isinstance(plan.critic, KernelSettings):
        return content
    critic = content["critic"]
    if isinstance(plan.critic, KernelThenEnsembleSettings):
        del critic["steps"], content["curve"]  # after the kernel's release, which is one whatever their number
        critic = critic["ensemble"]
    del critic["precision"]  # arithmetic before the clip: covered by the bound whatever it is
    return content


def test_plan_depends_on_public_facts_only() -> None:
    """Two data sets with other pixels and other labels have one plan; so no value in it comes from the data."""
    one, other = tiny_images(seed=0), tiny_images(seed=1)
    rng = np.random.default_rng(0)
    other = dataclasses.replace(
        other, images=rng.integers(0, 2, other.images.shape).astype(np.uint8), labels=np.zeros(96, np.int64)
    )
    for preset in ("kernel", "ensemble"):
        plans = [tiny_plan(data, preset=preset) for data in (one, other)]
        assert plans[0] == plans[1]
        assert plans[0].facts.classes == 3  # not the one class that occurs
    assert {field.name for field in dataclasses.fields(Facts)} == {
        "data", "records", "persons", "classes", "class_names", "labelled", "image_size", "channels",
        "reading", "silos",
    }  # fmt: skip


@pytest.mark.parametrize("preset", ["kernel", "ensemble", "ensemble-alone"])
def test_device_changes_nothing_private(preset: str) -> None:
    here, there = (make_plan(MNIST, preset=preset, device=device) for device in ("cpu", "cuda"))
    assert without_device(here) == without_device(there)
    assert here.generator != there.generator


def test_default_plan_is_one_release_of_sensitivity_two() -> None:
    plan = make_plan(MNIST, epsilon=10, delta=1e-5)
    assert plan.privacy.releases == 1
    assert plan.privacy.contribution.sensitivity("replace-one") == 2.0
    assert plan.privacy.noise_std == pytest.approx(1.0, rel=5e-3)
    assert plan.guarantee.epsilon <= 10
    assert plan.guarantee.epsilon == pytest.approx(10, rel=1e-3)
    assert (plan.guarantee.neighbours, plan.guarantee.unit, plan.guarantee.observer) == (
        "replace-one",
        "record",
        "public",
    )


@pytest.mark.parametrize("preset", ["ensemble", "ensemble-alone"])
def test_ensemble_plan_never_overshoots_and_has_a_curve(preset: str) -> None:
    plan = make_plan(MNIST, preset=preset, epsilon=3)
    assert plan.guarantee.epsilon <= 3
    assert plan.privacy.critics == 1000
    assert plan.privacy.rows == plan.training.batch_size
    steps, spent = zip(*plan.curve)
    assert list(steps) == sorted(steps)
    assert list(spent) == sorted(spent)
    assert steps[-1] == plan.training.steps
    assert spent[-1] == pytest.approx(plan.guarantee.epsilon)
    assert plan.epsilon_after(1) == spent[0]


def test_paper_plan_states_claim_and_guarantee() -> None:
    plan = make_plan(MNIST, preset="paper")
    assert plan.claimed is not None
    assert plan.claimed.epsilon == pytest.approx(9.993, abs=0.01)
    assert plan.guarantee.epsilon == pytest.approx(610.3, rel=5e-3)
    assert plan.lower_bound is not None
    assert plan.lower_bound.epsilon == pytest.approx(329.4, rel=5e-3)
    assert plan.lower_bound.delta == 1e-5
    assert plan.privacy.noise_std == 2.14
    assert (plan.critic.updates, plan.critic.warm_start, plan.training.steps) == (5, 2000, 20000)


def test_paper_refuses_an_epsilon_and_points_at_calibrate() -> None:
    with pytest.raises(PlanError, match="privacy calibrate --sampling one"):
        make_plan(MNIST, preset="paper", epsilon=10)


def test_person_unit_is_stated_and_bounded() -> None:
    facts = dataclasses.replace(MNIST, persons=539)
    plan = make_plan(facts, delta=1e-3)
    assert plan.guarantee.unit == "person"
    assert plan.privacy.clip_norm == pytest.approx(0.7 * 10**-0.5)
    assert plan.privacy.contribution.sensitivity("replace-one") == pytest.approx(1.4 * 10**-0.5)
    assert not plan.privacy.counts  # they are inside the person's clipped table
    assert make_plan(facts, preset="ensemble", delta=1e-3).privacy.critics <= 539


def test_unlabelled_plan_has_no_counts() -> None:
    plan = make_plan(dataclasses.replace(MNIST, labelled=False, classes=1, class_names=("all",)))
    assert not plan.privacy.counts
    assert plan.privacy.contribution.sensitivity("replace-one") == 2.0


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"epsilon": 0.0}, PrivacyError), ({"epsilon": float("nan")}, PrivacyError), ({"epsilon": -1.0}, PrivacyError),
        ({"delta": 0.0}, PrivacyError), ({"delta": 1.0}, PrivacyError), ({"preset": "nope"}, PlanError),
        ({"critics": 5}, PlanError), ({"preset": "ensemble", "critics": 60_001}, PlanError),
        ({"preset": "ensemble", "critics": 0}, PlanError), ({"preset": "paper-federated"}, PlanError),
        ({"epsilon": 1e5}, PrivacyError), ({"epsilon": "ten"}, PrivacyError), ({"epsilon": True}, PrivacyError),
        ({"delta": 1e-13}, PrivacyError), ({"delta": "small"}, PrivacyError), ({"steps": 0}, PlanError),
        ({"steps": 1.5}, PlanError), ({"steps": 10**7}, PlanError), ({"preset": "ensemble", "steps": -1}, PlanError),
        ({"seed": -1}, PlanError), ({"preset": "ensemble", "critics": 2.5}, PlanError),
    ],
)  # fmt: skip
def test_bad_requests_are_refused(options: dict, error: type[Exception]) -> None:
    with pytest.raises(error):
        make_plan(MNIST, **options)


def test_what_could_never_be_told_from_the_noise_is_refused_before_it_is_paid_for() -> None:
    few = dataclasses.replace(MNIST, records=36, classes=1, class_names=("all",))
    with pytest.raises(PlanError, match="at least 38 at this epsilon"):  # 5 x 7.46
        make_plan(few, epsilon=1)
    assert make_plan(dataclasses.replace(few, records=38), epsilon=1).privacy.counts
    assert make_plan(dataclasses.replace(few, labelled=False), epsilon=1)  # n is public: nothing to be told
    with pytest.raises(PlanError, match="persons = 30: expected at least"):
        make_plan(dataclasses.replace(few, records=1000, persons=30), epsilon=1)
    for facts in (dataclasses.replace(few, records=1), dataclasses.replace(few, persons=1)):
        with pytest.raises(PlanError, match="= 1: expected at least 2"):
            make_plan(facts, epsilon=100)


def test_numbers_of_numpy_are_numbers() -> None:
    plan = make_plan(MNIST, epsilon=np.float32(10), delta=np.float64(1e-5), steps=np.int64(7), seed=np.uint8(3))
    assert json.dumps(plan.to_json())
    assert (plan.training.steps, plan.seed) == (7, 3)


def test_saved_plan_is_the_plan(tmp_path: Path) -> None:
    for preset in ("kernel", "ensemble", "paper"):
        plan = tiny_plan(tiny_images(), preset=preset)
        path = tmp_path / f"{preset}.json"
        plan.save(path)
        assert read_plan(path) == plan
        assert read_plan(path).digest() == plan.digest()
        assert json.loads(path.read_text())["format_version"] == 6
    other = dataclasses.replace(plan, privacy=dataclasses.replace(plan.privacy, noise_std=2.15))
    assert other.digest() != plan.digest()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda p: p.update(format_version=1), "format_version"),
        (lambda p: p.pop("privacy"), "privacy"),
        (lambda p: p.update(extra=1), "extra"),
        (lambda p: p["privacy"].update(noise_std="much"), "noise_std"),
        (lambda p: p["privacy"].update(sampling="sometimes"), "sampling"),
        (lambda p: p["training"].update(steps=True), "steps"),
        (lambda p: p["critic"].update(length_scales=3), "length_scales"),
    ],
)
def test_a_broken_plan_file_names_what_is_wrong(tmp_path: Path, change, named: str) -> None:
    content = tiny_plan(tiny_images()).to_json()
    change(content)
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(content))
    with pytest.raises(PlanError, match=named):
        read_plan(path)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda p: p["privacy"].update(sampling="poisson", rate=0.01), "guarantee"),
        (
            lambda p: (p["privacy"].update(sampling="poisson"), p["guarantee"].update(sampling="poisson")),
            "kernel critic",
        ),
        (lambda p: p["guarantee"].update(delta=1e-9), "guarantee"),
        (lambda p: (p["privacy"].update(unit="person"), p["guarantee"].update(unit="person")), "unit"),
        (lambda p: p["privacy"].update(counts=True), "kernel critic"),
        (lambda p: p["training"].update(steps=0), "steps"),
        (lambda p: p["privacy"].update(noise_std=2.0**21), "at most 1048576 times clip_norm"),
        (lambda p: p["privacy"].update(noise_std=float("nan")), "finite"),
        (lambda p: p["privacy"].update(releases=0), "releases"),
        (lambda p: p["facts"].update(classes=2), "facts"),
        (lambda p: p["facts"].update(persons=97), "persons"),
        (lambda p: p["facts"].update(class_names=["a\n## Guarantee"]), "printable"),
        (lambda p: p["facts"].update(data="\ud800"), "printable"),
        (lambda p: p["critic"].update(features=63), "features"),
        (lambda p: p["critic"].update(length_scales=[]), "features"),
        (lambda p: p["critic"].update(length_scales=[0.0]), "length_scales"),
        (lambda p: p["generator"].update(width=0), "width"),
        (lambda p: p["optimizer"].update(betas=[0.5, 1.0]), "betas"),
        (lambda p: p["privacy"].update(noise_std=0.5), "digest"),
    ],
)
def test_a_plan_cannot_claim_what_its_critic_does_not_do(tmp_path: Path, change, named: str) -> None:
    """A hand-made plan for unlabelled data that asks for amplification, another delta or another unit."""
    data = dataclasses.replace(tiny_images(), labels=None, classes=1, class_names=("all",))
    content = tiny_plan(data).to_json()
    change(content)
    with pytest.raises(PlanError, match=named):
        read_plan(content)


def test_a_plan_for_drawn_critics_needs_their_number(tmp_path: Path) -> None:
    for critics in (None, 97):
        content = tiny_plan(tiny_images(), preset="ensemble").to_json()
        content["privacy"]["critics"] = critics
        with pytest.raises(PlanError, match="critics"):
            read_plan(content)
    content = tiny_plan(tiny_images(), preset="paper").to_json()
    content["privacy"]["critics"] = None
    with pytest.raises(PlanError, match="critics"):
        read_plan(content)


def test_steps_of_the_ensemble_cannot_differ_from_what_is_accounted_for() -> None:
    plan = tiny_plan(tiny_images(), preset="ensemble")
    with pytest.raises(PlanError, match="accounted"):
        dataclasses.replace(plan, training=dataclasses.replace(plan.training, steps=9))
    with pytest.raises(PlanError, match="accounted"):
        dataclasses.replace(plan, training=dataclasses.replace(plan.training, batch_size=1000))


def call_without_dp_accounting(arguments: list[str]) -> None:
    assert "dp_accounting" not in sys.modules, "it was imported with the package"
    sys.modules["dp_accounting"] = None
    find = importlib.util.find_spec
    importlib.util.find_spec = lambda name, *rest: None if name == "dp_accounting" else find(name, *rest)
    app(arguments, standalone_mode=False)


def test_a_saved_plan_runs_without_dp_accounting(tmp_path: Path) -> None:
    data = tiny_images()
    tiny_plan(data).save(tmp_path / "plan.json")
    np.savez(tmp_path / "data.npz", images=data.images[:, 0], labels=data.labels)
    plan = read_plan(tmp_path / "plan.json")
    facts = dataclasses.replace(plan.facts, data="data", class_names=("0", "1", "2"))
    dataclasses.replace(plan, facts=facts).save(tmp_path / "plan.json")
    command = ["train", "--plan", tmp_path / "plan.json", "--data", tmp_path / "data.npz", "--classes", 3]
    command += ["--out", tmp_path / "run", "--device", "cpu"]
    done = Child(call_without_dp_accounting, [str(word) for word in command]).wait()
    assert done.returncode == 0, done.stderr
    statement = json.loads((tmp_path / "run/release/privacy.json").read_text())
    assert statement["epsilon"] == plan.guarantee.epsilon
