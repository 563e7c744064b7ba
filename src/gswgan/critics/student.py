"""A public student of the ensemble: a vector field fitted to the gradients of the last steps, as released.

Each released gradient is used once by the paper's generator step, noise and all. The student regresses the recent
(fake, label) -> gradient pairs, which averages their noise, and answers any number of further fakes. It sees only
what was released, so it is post-processing: free and repeatable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from gswgan.critics import Critic
from gswgan.data import ImageData
from gswgan.generators.blocks import label_code
from gswgan.generators.generator import Generator
from gswgan.privacy import Streams


@dataclass(frozen=True, kw_only=True)
class StudentSettings:
    """The field's size, how many steps it remembers and how it is fitted."""

    width: int = 256
    memory: int = 20  # steps whose released pairs are kept
    updates: int = 20  # regression updates a step
    batch_size: int = 256
    learning_rate: float = 1e-3


class _Field(nn.Module):
    """v(x, y): image and label to a gradient of the image's shape."""

    def __init__(self, pixels: int, classes: int, width: int) -> None:
        super().__init__()
        self.classes = classes
        inputs = pixels + (classes if classes > 1 else 0)
        self.body = nn.Sequential(
            nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, pixels)
        )

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        flat = torch.cat([images.flatten(1), label_code(labels, self.classes)], dim=1)
        return self.body(flat).view_as(images)


class Student:
    """Stands between the ensemble and the generator; answers from what the ensemble has released."""

    def __init__(
        self,
        ensemble: Critic,
        settings: StudentSettings,
        *,
        shape: tuple[int, int, int],
        classes: int,
        batch_size: int,
        public: Streams,
        device: torch.device,
    ) -> None:
        self.ensemble, self.settings, self._batch, self._public = ensemble, settings, batch_size, public
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(public.integer("student weights"))
            self.field = _Field(int(np.prod(shape)), classes, settings.width).to(device)
        self.adam = torch.optim.Adam(self.field.parameters(), lr=settings.learning_rate)
        room = settings.memory * batch_size
        self._fakes, self._gradients = torch.zeros(2, room, *shape, device=device)
        self._labels = torch.zeros(room, dtype=torch.int64, device=device)
        self._seen = torch.zeros((), dtype=torch.int64)  # pairs so far; on the host

    def prepare(self, data: ImageData, *, resumed: bool = False) -> None:
        """The ensemble's own preparation."""
        self.ensemble.prepare(data, resumed=resumed)

    def learn(self, step: int, generator: Generator) -> None:
        """Let the ensemble learn and make its one release of the step; then fit the field to the recent ones."""
        self.ensemble.learn(step, generator)
        fake, labels = generator.fakes(self._batch, "judged", step)
        released = self.ensemble.upstream_gradient(fake, labels)
        room, seen = len(self._labels), int(self._seen)
        place = torch.arange(seen, seen + self._batch, device=fake.device) % room
        self._fakes[place], self._gradients[place], self._labels[place] = fake, released, labels
        self._seen += self._batch
        self._fit(min(room, seen + self._batch), self._public.generator("student", step))

    def upstream_gradient(self, fake: Tensor, labels: Tensor) -> Tensor:
        """The field at the fakes."""
        with torch.no_grad():
            return self.field(fake, labels)

    def metrics(self) -> dict[str, float]:
        """The ensemble's."""
        return self.ensemble.metrics()

    def state(self) -> dict[str, Tensor]:
        """The ensemble's state with the student's own."""
        tensors = {f"ensemble/{name}": value for name, value in self.ensemble.state().items()}
        tensors |= {"fakes": self._fakes, "gradients": self._gradients, "labels": self._labels, "seen": self._seen}
        tensors |= {f"field/{name}": value for name, value in self.field.state_dict().items()}
        for index, slots in self.adam.state_dict()["state"].items():
            tensors |= {f"adam/{index}/{name}": value for name, value in slots.items()}
        return tensors

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `state`."""
        self.ensemble.load_state(_under("ensemble/", tensors))
        for mine, name in ((self._fakes, "fakes"), (self._gradients, "gradients"), (self._labels, "labels")):
            mine.copy_(tensors[name])
        self._seen.copy_(tensors["seen"])
        self.field.load_state_dict(_under("field/", tensors))
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in _under("adam/", tensors).items():
            index, slot = name.split("/")
            state.setdefault(int(index), {})[slot] = value
        self.adam.load_state_dict({"state": state, "param_groups": self.adam.state_dict()["param_groups"]})

    def _fit(self, known: int, rng: np.random.Generator) -> None:
        for _ in range(self.settings.updates):
            pick = torch.from_numpy(rng.integers(0, known, self.settings.batch_size)).to(self._labels.device)
            error = self.field(self._fakes[pick], self._labels[pick]) - self._gradients[pick]
            self.adam.zero_grad(set_to_none=True)
            error.square().mean().backward()
            self.adam.step()


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)}
