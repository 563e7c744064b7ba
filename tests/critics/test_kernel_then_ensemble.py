"""The kernel critic leads, then the ensemble: whose turn it is, what they have learnt, what is kept."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from conftest import tiny_images
from gswgan.critics.ensemble.learners import EnsembleSettings
from gswgan.critics.kernel.features import KernelSettings
from gswgan.critics.kernel_then_ensemble import KernelThenEnsemble, KernelThenEnsembleSettings
from gswgan.privacy import Gaussian

SETTINGS = KernelThenEnsembleSettings(
    kernel=KernelSettings(features=64, length_scales=(2.0,)), noise_std=3.0, steps=4, catch_up=2,
    ensemble=EnsembleSettings(width=4),
)  # fmt: skip


class Recorded:
    """A critic that writes down what is asked of it."""

    can_be_captured = False
    shape = type("Shape", (), {"classes": 3})()

    def __init__(self, name: str, log: list[tuple]) -> None:
        self.name, self.log, self.weights = name, log, torch.zeros(2)

    def prepare(self, data, *, resumed: bool = False) -> None:
        self.log.append((self.name, "prepare", resumed))

    def learn(self, step: int, generator) -> None:
        self.log.append((self.name, "learn", step))

    def catch_up(self, times: int, generator) -> None:
        self.log.append((self.name, "catch up", times))

    def upstream_gradient(self, fake: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        self.log.append((self.name, "asked"))
        return torch.full_like(fake, 1.0 if self.name == "kernel" else 2.0)

    def metrics(self) -> dict:
        return {"by": self.name}

    def state(self) -> dict[str, torch.Tensor]:
        return {"weights": self.weights}

    def load_state(self, tensors) -> None:
        self.weights = tensors["weights"]


class Labels:
    label_set = np.array([0, 2])  # the kernel left one class out


def make(log: list[tuple] | None = None) -> KernelThenEnsemble:
    log = [] if log is None else log
    return KernelThenEnsemble(SETTINGS, Recorded("kernel", log), Recorded("ensemble", log))  # type: ignore[arg-type]


def play(critic: KernelThenEnsemble, steps: range) -> list[float]:
    answers = []
    for step in steps:
        critic.learn(step, Labels())  # type: ignore[arg-type]
        answers.append(float(critic.upstream_gradient(torch.zeros(1, 1, 8, 8), torch.zeros(1))[0, 0, 0, 0]))
    return answers


def test_the_kernel_leads_and_the_ensemble_follows_from_its_own_step_zero() -> None:
    log: list[tuple] = []
    critic = make(log)
    critic.prepare(tiny_images(8))
    assert play(critic, range(7)) == [1.0] * 4 + [2.0] * 3
    learnt = [entry for entry in log if entry[1] != "asked"]
    assert learnt == [
        ("kernel", "prepare", False), ("ensemble", "prepare", False),
        *(("kernel", "learn", step) for step in range(4)),
        ("ensemble", "catch up", 2),
        *(("ensemble", "learn", step) for step in range(3)),
    ]  # fmt: skip
    assert critic.metrics() == {"by": "ensemble"}


def test_a_resumed_ensemble_does_not_catch_up_again_and_all_classes_are_asked_for() -> None:
    log: list[tuple] = []
    generator = Labels()
    make(log).learn(5, generator)  # type: ignore[arg-type]
    assert log == [("ensemble", "learn", 1)]
    assert generator.label_set.tolist() == [0, 1, 2]


def test_critics_are_kept_from_their_first_step_on() -> None:
    critic = make()
    play(critic, range(3))
    assert set(critic.state()) == {"kernel|weights"}
    play(critic, range(3, 5))
    critic.kernel.weights, critic.ensemble.weights = torch.ones(2), torch.full((2,), 5.0)  # type: ignore[attr-defined]
    other = make()
    other.load_state(critic.state())
    assert other.kernel.weights.tolist() == [1, 1]  # type: ignore[attr-defined]
    assert other.ensemble.weights.tolist() == [5, 5]  # type: ignore[attr-defined]


@pytest.mark.parametrize(("labelled", "sensitivity"), [(True, 2.0), (False, 2.0)])
def test_the_start_is_the_kernels_release(labelled: bool, sensitivity: float) -> None:
    assert SETTINGS.event(labelled) == Gaussian(noise_std=3.0, sensitivity=sensitivity)
