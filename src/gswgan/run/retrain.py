"""A new generator on an embedding that was released before: post-processing, at no further cost."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from gswgan.errors import RunError
from gswgan.methods import find_method
from gswgan.plan.method import Federation, PlanRequest
from gswgan.plan.plan import Plan
from gswgan.privacy.ledger import read_ledger
from gswgan.run.folder import RunFolder, find_release


def retrain(source: Path, out: Path, *, steps: int | None, device: str, seed: int) -> RunFolder:
    """A run folder that starts from the source's embedding, ledger and guarantee, with this device's generator."""
    origin = find_release(source)
    plan = origin.plan()
    if not plan.critic.can_stream or not origin.embedding.exists() or not origin.privacy.exists():
        raise RunError("from", str(source), "a finished run of the kernel critic (preset kernel)")
    request = PlanRequest(
        facts=plan.facts, preset=plan.preset, delta=plan.sums.delta, steps=steps, device=device, public=plan.public,
        federation=Federation(observer=plan.sums.observer, neighbours=plan.sums.neighbours),
    )  # fmt: skip
    draft = find_method(plan.method).draft(request, plan.sums.noise_std / plan.sums.clip_norm)
    again: Plan = dataclasses.replace(
        plan,
        generator=draft.generator,
        optimizer=draft.optimizer,
        training=draft.training,
        seed=seed,
        source=read_ledger(origin.ledger)[2],
    )
    return RunFolder.create(out, again, origin=origin)
