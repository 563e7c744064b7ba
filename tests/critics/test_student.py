from __future__ import annotations

import torch
from torch import Tensor

from gswgan.critics.student import Student, StudentSettings
from gswgan.generators import GeneratorSettings
from gswgan.generators.generator import Generator, OptimizerSettings
from gswgan.privacy import Streams

CPU = torch.device("cpu")


class NoisyField:
    """An ensemble that releases x - 0.3 with noise, and counts its releases."""

    def __init__(self) -> None:
        self.releases = 0

    def prepare(self, data: object, *, resumed: bool = False) -> None: ...

    def learn(self, step: int, generator: Generator) -> None: ...

    def upstream_gradient(self, fake: Tensor, labels: Tensor) -> Tensor:
        self.releases += 1
        noise = torch.randn(fake.shape, generator=torch.Generator().manual_seed(self.releases))
        return fake - 0.3 + noise

    def state(self) -> dict[str, Tensor]:
        return {"releases": torch.tensor(self.releases)}

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        self.releases = int(tensors["releases"])

    def metrics(self) -> dict[str, float]:
        return {}


def make() -> tuple[Student, NoisyField, Generator]:
    generator = Generator(
        GeneratorSettings(architecture="mlp", width=16), OptimizerSettings(learning_rate=1e-3), classes=2, channels=1,
        image_size=8, updates=10, streams=Streams.public(0), device=CPU,
    )  # fmt: skip
    field = NoisyField()
    settings = StudentSettings(width=32, memory=50, updates=10)
    student = Student(field, settings, shape=(1, 8, 8), classes=2, batch_size=32, public=Streams.public(0), device=CPU)
    return student, field, generator


def test_the_student_averages_the_noise_away_and_answers_for_free() -> None:
    student, field, generator = make()
    for step in range(60):
        student.learn(step, generator)
    assert field.releases == 60  # one a step, however often the student is asked
    fake, labels = generator.fakes(64, "test")
    error = (student.upstream_gradient(fake, labels) - (fake - 0.3)).square().mean().sqrt()
    assert error < 0.25  # a single answer is off by 1
    assert field.releases == 60


def test_a_student_goes_on_where_it_stopped() -> None:
    straight, _, generator = make()
    for step in range(6):
        straight.learn(step, generator)
    first, _, _ = make()
    for step in range(3):
        first.learn(step, generator)
    second, _, _ = make()
    second.load_state({name: value.clone() for name, value in first.state().items()})
    for step in range(3, 6):
        second.learn(step, generator)
    fake, labels = generator.fakes(8, "test")
    assert torch.equal(straight.upstream_gradient(fake, labels), second.upstream_gradient(fake, labels))
