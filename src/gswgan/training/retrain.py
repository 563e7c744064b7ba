"""A new generator on an embedding that was released before: post-processing, at no further cost."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from gswgan.critics.kernel import KernelSettings
from gswgan.errors import RunError
from gswgan.privacy.ledger import read_ledger
from gswgan.training.defaults import kernel_defaults
from gswgan.training.plan import Plan
from gswgan.training.run_folder import RunFolder, find_release


def retrain(source: Path, out: Path, *, steps: int | None, device: str, seed: int) -> RunFolder:
    """A run folder that starts from the source's embedding, ledger and guarantee, with this device's generator."""
    origin = find_release(source)
    plan = origin.plan()
    if not isinstance(plan.critic, KernelSettings) or not origin.embedding.exists() or not origin.privacy.exists():
        raise RunError("from", str(source), "a finished run of the kernel critic (preset default)")
    defaults = kernel_defaults(plan.facts, plan.privacy.noise_std, device)
    training = defaults.training if steps is None else dataclasses.replace(defaults.training, steps=steps)
    again: Plan = dataclasses.replace(
        plan,
        generator=defaults.generator,
        optimizer=defaults.optimizer,
        training=training,
        seed=seed,
        source=read_ledger(origin.ledger)[2],
    )
    return RunFolder.create(out, again, origin=origin)
