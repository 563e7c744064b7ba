"""How long a run will take on this machine, by a few timed steps on random numbers. No data is looked at."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import numpy as np
import torch

from gswgan.critics.kernel.critic import KernelCritic
from gswgan.critics.kernel.embedding import Embedding, record_blocks
from gswgan.data import make_image_data
from gswgan.plan.plan import Plan
from gswgan.plan.wording import public_text
from gswgan.run.loop import make_generator, train

RECORDS, STEPS, FIRST_STEPS = 256, 12, 4
"""How many random records are embedded, and how many steps are taken; the first ones are not counted."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Seconds for the release, and for each step after it."""

    release: float
    step: float
    steps: int
    device: str

    @property
    def seconds(self) -> float:
        """Of the whole run."""
        return self.release + self.steps * self.step

    def __str__(self) -> str:
        milliseconds = f"{1000 * self.step:,.{1 if self.step < 0.1 else 0}f}"
        return (
            f"about {duration(self.seconds)} on this machine ({self.device}): {duration(self.release)} for the "
            f"release, {self.steps:,} steps of {milliseconds} ms; timed just now, on random numbers"
        )


def estimate(plan: Plan, device: torch.device) -> Estimate | None:
    """Time the plan's release and steps; None for critics whose steps need data, or an encoder to be trained first."""
    if not plan.critic.can_stream or plan.source is not None or public_text(plan):
        return None
    rng = np.random.default_rng(0)
    facts, features = plan.facts, plan.critic.kernel_settings.features
    counts = torch.full((facts.classes,), 1e6, dtype=torch.float64)
    sums = torch.from_numpy(rng.standard_normal((facts.classes, features)))
    ends: list[float] = []

    def after_step(done: int) -> bool:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        ends.append(monotonic())
        return done >= STEPS

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "embedding.safetensors"
        Embedding(sums=sums, counts=counts, noise_std=1.0, count_noise_std=1.0).save(path)
        critic = plan.critic.reuse(plan, path, device)
        assert isinstance(critic, KernelCritic)
        critic.prepare(None)
        train(plan, critic, make_generator(plan, device), after_step=after_step)
    counted = ends[FIRST_STEPS - 1 :] if len(ends) > FIRST_STEPS else ends
    step = (counted[-1] - counted[0]) / max(1, len(counted) - 1)
    return Estimate(release=_release(plan, critic), step=step, steps=plan.training.steps, device=device.type)


def _release(plan: Plan, critic: KernelCritic) -> float:
    """Seconds for the features of all records, by those of a few random ones."""
    facts, rng = plan.facts, np.random.default_rng(0)
    shape = (RECORDS, facts.image_size, facts.image_size) + ((3,) if facts.channels == 3 else ())
    labels = np.arange(RECORDS) % facts.classes
    images = make_image_data(rng.integers(0, 256, shape, dtype=np.uint8), labels, classes=facts.classes)
    began = monotonic()
    for rows, _ in record_blocks(images, critic.features):
        rows.sum().item()
    return (monotonic() - began) * facts.records / RECORDS


def duration(seconds: float) -> str:
    """A time in words, in the unit that suits it."""
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.2g} {unit}" if seconds < 10 * size else f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0.1):.2g} s" if seconds < 10 else f"{seconds:.0f} s"
