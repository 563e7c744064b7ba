"""GS-WGAN as a method: the kernel critic (preset kernel) and the ensemble of critics (ensemble, paper)."""

from __future__ import annotations

from collections.abc import Callable

import torch

from gswgan.critics import Critic
from gswgan.critics.ensemble.distributed import AllReduceMechanism, DistributedEnsemble
from gswgan.critics.ensemble.ensemble import Ensemble, Mechanism
from gswgan.critics.ensemble.learners import EnsembleSettings
from gswgan.critics.ensemble.network import CriticShape
from gswgan.critics.ensemble.warm_start import WarmStart
from gswgan.critics.kernel.critic import KernelCritic
from gswgan.critics.kernel.features import KernelSettings, RandomFeatures
from gswgan.critics.kernel.streaming import OnePass
from gswgan.critics.kernel_then_ensemble import KernelStart, KernelThenEnsemble, KernelThenEnsembleSettings
from gswgan.critics.refined.critic import Refined, RefinedSettings
from gswgan.methods.gs_wgan_plan import PRESETS, check, claimed, draft, lower_bound, own_noise, total, words
from gswgan.methods.method import Method, RunContext
from gswgan.plan.plan import Plan
from gswgan.privacy import GaussianMechanism
from gswgan.privacy.mechanism import ClippedSum
from gswgan.run.checkpoint import Checkpoint
from gswgan.run.folder import RunFolder, write_json


def make_critic(plan: Plan, context: RunContext) -> Critic:
    """Kernel, ensemble, one after the other, or the kernel and a denoiser, by the type of the settings."""
    settings, privacy = plan.critic, plan.privacy
    assert privacy is not None
    if isinstance(settings, EnsembleSettings):
        return _ensemble(settings, plan, context)
    if not context.folder.embedding.exists():
        context.note("releasing the embedding: one pass over the data")
    if isinstance(settings, KernelSettings):
        alone = context.mechanism(privacy.contribution, privacy.event)
        return kernel_critic(plan, context.folder, context.device, alone, _summed(plan, context, alone))
    first = context.mechanism(settings.contribution(plan.facts.labelled), settings.event(plan.facts.labelled))
    kernel = kernel_critic(plan, context.folder, context.device, first)
    if isinstance(settings, RefinedSettings):
        return Refined(
            settings, plan.optimizer, kernel, context.mechanism(privacy.contribution, privacy.event),
            releases=privacy.releases, public=context.public, batches=context.batches, device=context.device,
        )  # fmt: skip
    return KernelThenEnsemble(settings, kernel, _ensemble(settings.ensemble, plan, context))


def _ensemble(settings: EnsembleSettings, plan: Plan, context: RunContext) -> Ensemble | DistributedEnsemble:
    privacy = plan.privacy
    assert privacy is not None
    assert privacy.shards is not None
    mechanism = context.mechanism(privacy.contribution, privacy.event)
    if context.ranks is not None:
        mechanism = AllReduceMechanism(
            context.ranks, context.device, contribution=privacy.contribution, event=privacy.event,
            ledger=context.ledger, streams=context.secret,
        )  # fmt: skip
    units = plan.facts.persons or plan.facts.records
    write_json(context.folder.shards, {"shards": privacy.shards, "units": units, "unused": units % privacy.shards})
    part = ensemble_part(settings, plan, context, mechanism)
    return part if context.ranks is None else DistributedEnsemble(context.ranks, part)


def ensemble_part(settings: EnsembleSettings, plan: Plan, context: RunContext, mechanism: Mechanism) -> Ensemble:
    """The critics that this process holds: all, where it is the only one."""
    privacy = plan.privacy
    assert privacy is not None
    assert privacy.shards is not None
    held = range(privacy.shards) if context.ranks is None else context.ranks.held(privacy.shards)
    return Ensemble(
        settings,
        CriticShape(**context.shape, width=settings.width),
        mechanism,
        count=privacy.shards,
        held=held,
        public=context.public,
        batches=context.batches,
        device=context.device,
        warm_start=_warm_start(settings, plan, context, held),
        note=context.note,
    )


def _summed(
    plan: Plan, context: RunContext, mechanism: GaussianMechanism
) -> Callable[[], tuple[ClippedSum, int]] | None:
    """How data that stays in its files is summed; None where it is handed over."""
    if context.stream is None:
        return None
    summing = OnePass(
        stream=context.stream,
        workers=context.workers,
        store=Checkpoint(context.folder.sums, plan.digest()),
        progress=context.reading,
        stopped=context.stopped,
        keep=lambda left_out: write_json(
            context.folder.left_out, {"records": plan.facts.records, "left_out": left_out}
        ),
    )
    return lambda: summing.total(plan.critic, mechanism.contribution, context.device)


def kernel_critic(
    plan: Plan,
    folder: RunFolder,
    device: torch.device,
    mechanism: GaussianMechanism | None,
    summed: Callable[[], tuple[ClippedSum, int]] | None = None,
) -> KernelCritic:
    """The kernel critic of the plan; without a mechanism, on an embedding that was released before."""
    settings = plan.critic.kernel if isinstance(plan.critic, KernelStart) else plan.critic
    return KernelCritic(
        RandomFeatures(settings, plan.facts.channels, plan.facts.image_size, device),
        mechanism,
        folder.embedding,
        summed=summed,
        blocks=plan.training.feature_blocks,
        memory=plan.training.memory,
        smoothing=plan.training.smoothing,
    )


def _warm_start(settings: EnsembleSettings, plan: Plan, context: RunContext, held: range) -> WarmStart | None:
    if settings.warm_start == 0:
        return None
    path = context.folder.warm_start
    if context.ranks is not None:  # another number of ranks begins it anew
        path = path.with_stem(f"{path.stem}-{held.start}-{held.stop}")
    return WarmStart(
        iterations=settings.warm_start,
        generator=plan.generator,
        learning_rate=plan.optimizer.learning_rate,
        betas=plan.optimizer.betas,
        store=Checkpoint(path, plan.digest()),
        stopped=context.stopped,
    )


METHOD = Method(
    name="gswgan",
    about="GS-WGAN (Chen, Orekondy, Fritz 2020), made true: gradients sanitized on their way to the generator",
    settings=KernelSettings | EnsembleSettings | KernelThenEnsembleSettings | RefinedSettings,
    presets=PRESETS,
    draft=draft,
    total=total,
    critic=make_critic,
    words=words,
    check=check,
    own_noise=own_noise,
    claimed=claimed,
    lower_bound=lower_bound,
    takes_shards=True,
)
