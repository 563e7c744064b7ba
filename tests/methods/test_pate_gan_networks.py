"""PATE-GAN's networks, its student and generator: what they learn, and a log that says when they stall."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from teachers import COUNT, play
from test_pate_gan import SETTINGS, make

from conftest import tiny_generator, tiny_images
from gswgan.critics.ensemble.network import CriticShape, init_critics, score
from gswgan.errors import DataError, PlanError
from gswgan.methods.pate_gan import weights_of
from gswgan.privacy import VoteMechanism


def test_the_student_is_taught_the_noisy_majority(tmp_path, stripes, monkeypatch) -> None:
    """Labels are the larger of the released counts, and neither the exact votes nor anything else."""
    critic, seen = make(tmp_path, stripes), []
    counts = np.random.default_rng(0).normal(6, 3, (6, 2))
    monkeypatch.setattr(VoteMechanism, "answer", lambda *_: counts)
    from gswgan.methods import pate_gan

    original = pate_gan.learn_labels

    def watch(params, adam, images, labels, real, settings):
        seen.append((params is critic.student, real))
        return original(params, adam, images, labels, real, settings)

    monkeypatch.setattr(pate_gan, "learn_labels", watch)
    critic.learn(0, tiny_generator())
    taught = [real for is_student, real in seen if is_student]
    assert len(taught) == SETTINGS.student_updates
    for real in taught:
        assert real.tolist() == [(counts[:, 1] > counts[:, 0]).astype(float).tolist()]
    for is_student, real in seen:
        if not is_student:  # records are real, fakes are not
            assert (real[:, :6] == 1).all()
            assert (real[:, 6:] == 0).all()


def test_the_networks_are_plain_and_start_with_their_gain() -> None:
    shape = CriticShape(image_size=8, channels=1, classes=3, width=4)
    params, _ = init_critics(shape, 2, seed=0)
    images, labels = torch.rand(2, 5, 1, 8, 8), torch.arange(10).view(2, 5) % 3
    once = score(weights_of(params), images, labels)
    head = {name: value * (2.0 if name.startswith(("linear", "embed")) else 1.0) for name, value in params.items()}
    assert torch.allclose(score(weights_of(head), images, labels), 2 * once)  # a spectral norm would undo it
    k, i = 1, 2
    x = images[k, i : i + 1]
    for layer in (1, 2):
        weight, bias = params[f"conv{layer}.weight"][k], params[f"conv{layer}.bias"][k]
        x = torch.relu(torch.nn.functional.conv2d(x, weight, bias, stride=2, padding=2))
    row = params["linear.weight"][k, 0] + params["embed.weight"][k, labels[k, i]]
    assert once[k, i] == pytest.approx(float(x.flatten() @ row + params["linear.bias"][k, 0]), abs=1e-5)


def test_the_remedies_are_settings(tmp_path) -> None:
    usual = make(tmp_path, None)
    other = make(tmp_path, None, gain=2.0, teacher_width=6, student_width=8)
    again = make(tmp_path, None, gain=2.0)
    assert torch.allclose(again.student["conv1.weight"], 2 * usual.student["conv1.weight"])
    assert torch.allclose(again.teachers.params["conv1.weight"], 2 * usual.teachers.params["conv1.weight"])
    assert other.teachers.params["conv1.weight"].shape[1] == 6
    assert other.student["conv1.weight"].shape[:2] == (1, 8)
    for wrong in ({"gain": 0.0}, {"teacher_updates": 0}, {"student_updates": 0}, {"generator_updates": 0}):
        with pytest.raises(PlanError):
            dataclasses.replace(SETTINGS, **wrong)
    with pytest.raises(DataError):
        make(tmp_path, tiny_images(8))


def test_teachers_learn_to_tell_records_from_fakes(tmp_path, stripes) -> None:
    critic = make(tmp_path, stripes)
    generator = tiny_generator()
    for step in range(30):
        critic.teachers.learn(step, generator)
    images, labels = generator.fakes(30, "judged")
    assert critic.teachers.votes(images, labels).double().mean() < 0.1
    records = torch.from_numpy(stripes.images[:30]).float() / 255
    assert critic.teachers.votes(records, torch.from_numpy(stripes.labels[:30])).double().mean() > 0.9


def test_the_upstream_gradient_is_that_of_the_papers_loss(tmp_path) -> None:
    """Of the sum of log(1 - S(G(z))), by automatic differentiation."""
    critic = make(tmp_path, None)
    fake = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()
    labels = torch.arange(5) % 3
    logits = score(weights_of(critic.student), fake[None], labels[None])[0]
    (expected,) = torch.autograd.grad(torch.log1p(-torch.sigmoid(logits)).sum(), fake)
    assert torch.allclose(critic.upstream_gradient(fake, labels), expected, atol=1e-6)


def test_a_generator_follows_what_the_votes_reward(tmp_path, monkeypatch) -> None:
    """Teachers that call bright fakes real: student and generator learn to be bright through the votes alone."""
    critic = make(tmp_path, tiny_images(), student_updates=5, batch_size=30, scale=1.0)
    monkeypatch.setattr(
        critic.teachers,
        "votes",
        lambda fake, labels: (fake.mean(dim=(1, 2, 3)) > fake.mean()).long().expand(COUNT, -1),
    )
    monkeypatch.setattr(critic.teachers, "learn", lambda step, generator: None)
    generator = tiny_generator(40, learning_rate=1e-2)
    before = float(generator.fakes(60, "test")[0].mean())
    play(critic, generator, steps=40, batch_size=8)
    assert float(generator.fakes(60, "test")[0].mean()) > before + 0.1


def test_a_stall_is_logged(tmp_path, monkeypatch) -> None:
    """All teachers call all fakes fake: the student learns to say so, its gradient vanishes, and the log says when."""
    critic = make(tmp_path, tiny_images(), scale=1e-3, student_updates=5, learning_rate=2e-2)
    unanimous = torch.zeros(COUNT, 6, dtype=torch.int64)
    monkeypatch.setattr(critic.teachers, "votes", lambda fake, labels: unanimous)
    monkeypatch.setattr(critic.teachers, "learn", lambda step, generator: None)
    generator, log = tiny_generator(40, learning_rate=1e-5), []
    play(critic, generator, 40, batch_size=8, after_step=lambda done: log.append(critic.metrics()) or False)
    norms = [row["gradient_norm"] for row in log]
    at = log[-1]["vanished_at"]
    assert at is not None
    shares = [norm / max(norms[: i + 1]) for i, norm in enumerate(norms)]
    assert [share < 0.01 for share in shares].index(True) == at - 1
    assert log[at - 2]["vanished_at"] is None
    assert log[-1]["unanimous_since"] == 1
    assert log[-1]["labelled_real"] == log[-1]["votes_real"] == 0.0
    unanimous[4, 2] = 1  # one teacher calls one fake real
    critic.learn(40, generator)
    assert critic.metrics()["unanimous_since"] is None
