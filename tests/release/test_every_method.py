"""Every method and preset with a guarantee, from data to a release that anybody can verify."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from packed import repack
from typer.testing import CliRunner

from conftest import tiny_images
from gswgan.cli.main import app
from gswgan.critics.ensemble.learners import EnsembleSettings
from gswgan.critics.kernel_then_ensemble import KernelThenEnsembleSettings
from gswgan.critics.refined.settings import RefinedSettings
from gswgan.data import ImageData
from gswgan.errors import PrivacyError
from gswgan.methods import BY_PERSON, METHODS, dp_merf_ae, make_plan
from gswgan.methods.gswgan import load_preset
from gswgan.plan.facts import Facts
from gswgan.plan.plan import Plan
from gswgan.release.verify import verify
from gswgan.run.folder import RunFolder
from gswgan.run.loop import run

CPU = torch.device("cpu")
NARROW = EnsembleSettings(width=4, updates=1, learning_batch=4)
ALL = [(method.name, preset) for method in (METHODS | BY_PERSON).values() for preset in method.presets]
CENTRALIZED = [
    (name, preset) for name, preset in ALL
    if name != "gan" and not (name == "gswgan" and load_preset(preset).get("federated"))
]  # fmt: skip
"""The other ones are `gan`, without a guarantee, and a run of clients (`rounds-published` of test_verify.py)."""


WITH_EMBEDDING = [
    ("gswgan", "kernel"), ("gswgan", "refined"), ("gswgan", "ensemble"), ("dp-merf", "default"),
    ("dp-merf-ae", "default"),
]  # fmt: skip


def small_data(method: str, preset: str) -> ImageData:
    """Grey images of 8x8; of 16x16 for the ensemble, which starts with the kernel critic there; by person if needed."""
    side = 16 if (method, preset) == ("gswgan", "ensemble") else 8
    data = tiny_images(600 if preset == "dp-cgan" else 96, side=side)  # its batch is of 600
    if method in BY_PERSON:
        return dataclasses.replace(data, persons=np.arange(96) // 4, person_ids=tuple(map(str, range(24))))
    return data


def small_plan(data: ImageData, method: str, preset: str) -> Plan:
    """The planner's own plan for a few steps, with narrow critics: which tensors are released stays as it is."""
    divided = METHODS.get(method, BY_PERSON.get(method)).takes_critics and preset not in ("kernel", "refined")
    options = {"critics": 6} if divided else {}
    steps = 12 if method in BY_PERSON else 3
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dp_merf_ae, "TINY_UPDATES", 3)
        plan = make_plan(Facts.of(data), method=method, preset=preset, steps=steps, delta=1e-3, **options)
    plan = dataclasses.replace(plan, generator=dataclasses.replace(plan.generator, width=8))
    if isinstance(plan.critic, KernelThenEnsembleSettings):
        critic = dataclasses.replace(plan.critic, steps=3, catch_up=1, ensemble=NARROW)
        training = dataclasses.replace(plan.training, steps=3 + steps)
        return dataclasses.replace(plan, critic=critic, training=training, curve=())
    if isinstance(plan.critic, RefinedSettings):
        critic = dataclasses.replace(plan.critic, steps=3, pretraining=2, pretraining_batch=16, samples=32)
        training = dataclasses.replace(plan.training, steps=5 + steps)
        return dataclasses.replace(plan, critic=critic, training=training, curve=())
    if isinstance(plan.critic, EnsembleSettings):
        return dataclasses.replace(plan, critic=dataclasses.replace(plan.critic, width=4, updates=1, warm_start=0))
    return plan


@pytest.mark.parametrize(("method", "preset"), CENTRALIZED)
def test_it_is_trained_packed_and_verified(method: str, preset: str, tmp_path: Path) -> None:
    data = small_data(method, preset)
    plan = small_plan(data, method, preset)
    assert isinstance(plan.critic, KernelThenEnsembleSettings) == ((method, preset) == ("gswgan", "ensemble"))
    assert run(RunFolder.create(tmp_path / "run", plan), data, device=CPU)
    packed = CliRunner().invoke(app, ["release", str(tmp_path / "run")])
    assert packed.exit_code == 0, (packed.output, packed.exception)
    verified = CliRunner().invoke(app, ["verify", str(tmp_path / "run-release")])
    assert verified.exit_code == 0, verified.output
    assert "\nVERIFIED" in verified.output
    kept = tmp_path / "run-release" / "embedding.safetensors"
    assert kept.exists() == ((method, preset) in WITH_EMBEDDING)
    if kept.exists():  # the noise that it says it has is the plan's
        tensors = safetensors.torch.load_file(kept)
        tensors["noise"][1] /= 10
        kept.write_bytes(safetensors.torch.save(tensors, {"format_version": "1"}))
        assert "on its counts" in str(verify(repack(tmp_path / "run-release")).findings)


def test_a_gan_without_a_guarantee_is_refused_in_words(tmp_path: Path) -> None:
    data = small_data("gan", "default")
    assert run(RunFolder.create(tmp_path / "run", small_plan(data, "gan", "default")), data, device=CPU)
    with pytest.raises(PrivacyError, match=r"WITHOUT differential privacy"):
        CliRunner().invoke(app, ["release", str(tmp_path / "run")], catch_exceptions=False)
    assert not (tmp_path / "run-release").exists()
