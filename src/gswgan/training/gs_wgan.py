"""GS-WGAN as a method: the kernel critic (preset default) and the ensemble of critics (ensemble, paper)."""

from __future__ import annotations

from collections.abc import Callable

import torch

from gswgan.critics import Critic
from gswgan.critics.ensemble import Ensemble, Mechanism
from gswgan.critics.kernel import KernelSettings, RandomFeatures
from gswgan.critics.kernel_critic import KernelCritic
from gswgan.critics.learners import EnsembleSettings
from gswgan.critics.network import CriticShape
from gswgan.critics.one_pass import OnePass
from gswgan.critics.ranks import SpreadEnsemble, Summed
from gswgan.critics.refined.critic import Refined, RefinedSettings
from gswgan.critics.started import KernelStart, Started, StartedSettings
from gswgan.critics.warm_start import WarmStart
from gswgan.privacy import GaussianMechanism
from gswgan.privacy.mechanism import ClippedSum
from gswgan.training.checkpoint import Checkpoint
from gswgan.training.gs_wgan_plan import PRESETS, check, claimed, draft, lower_bound, own_noise, total, words
from gswgan.training.method import Method, Tools
from gswgan.training.plan import Plan
from gswgan.training.run_folder import RunFolder, write_json


def make_critic(plan: Plan, tools: Tools) -> Critic:
    """Kernel, ensemble, one after the other, or the kernel and a denoiser, by the type of the settings."""
    settings, privacy = plan.critic, plan.privacy
    assert privacy is not None
    if isinstance(settings, EnsembleSettings):
        return _ensemble(settings, plan, tools)
    if not tools.folder.embedding.exists():
        tools.note("releasing the embedding: one pass over the data")
    if isinstance(settings, KernelSettings):
        alone = tools.mechanism(privacy.contribution, privacy.event)
        return kernel_critic(plan, tools.folder, tools.device, alone, _summed(plan, tools, alone))
    first = tools.mechanism(settings.contribution(plan.facts.labelled), settings.event(plan.facts.labelled))
    kernel = kernel_critic(plan, tools.folder, tools.device, first)
    if isinstance(settings, RefinedSettings):
        return Refined(
            settings, plan.optimizer, kernel, tools.mechanism(privacy.contribution, privacy.event),
            releases=privacy.releases, public=tools.public, batches=tools.batches, device=tools.device,
        )  # fmt: skip
    return Started(settings, kernel, _ensemble(settings.ensemble, plan, tools))


def _ensemble(settings: EnsembleSettings, plan: Plan, tools: Tools) -> Ensemble | SpreadEnsemble:
    privacy = plan.privacy
    assert privacy is not None
    assert privacy.shards is not None
    mechanism = tools.mechanism(privacy.contribution, privacy.event)
    if tools.ranks is not None:
        mechanism = Summed(
            tools.ranks, tools.device, contribution=privacy.contribution, event=privacy.event, ledger=tools.ledger,
            streams=tools.secret,
        )  # fmt: skip
    units = plan.facts.persons or plan.facts.records
    write_json(tools.folder.shards, {"shards": privacy.shards, "units": units, "unused": units % privacy.shards})
    part = ensemble_part(settings, plan, tools, mechanism)
    return part if tools.ranks is None else SpreadEnsemble(tools.ranks, part)


def ensemble_part(settings: EnsembleSettings, plan: Plan, tools: Tools, mechanism: Mechanism) -> Ensemble:
    """The critics that this process holds: all, where it is the only one."""
    privacy = plan.privacy
    assert privacy is not None
    assert privacy.shards is not None
    held = range(privacy.shards) if tools.ranks is None else tools.ranks.held(privacy.shards)
    return Ensemble(
        settings,
        CriticShape(**tools.shape, width=settings.width),
        mechanism,
        count=privacy.shards,
        held=held,
        public=tools.public,
        batches=tools.batches,
        device=tools.device,
        warm_start=_warm_start(settings, plan, tools, held),
        note=tools.note,
    )


def _summed(plan: Plan, tools: Tools, mechanism: GaussianMechanism) -> Callable[[], tuple[ClippedSum, int]] | None:
    """How data that stays in its files is summed; None where it is handed over."""
    if tools.stream is None:
        return None
    summing = OnePass(
        stream=tools.stream,
        workers=tools.workers,
        store=Checkpoint(tools.folder.sums, plan.digest()),
        progress=tools.reading,
        stopped=tools.stopped,
        keep=lambda left_out: write_json(tools.folder.left_out, {"records": plan.facts.records, "left_out": left_out}),
    )
    return lambda: summing.total(plan.critic, mechanism.contribution, tools.device)


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


def _warm_start(settings: EnsembleSettings, plan: Plan, tools: Tools, held: range) -> WarmStart | None:
    if settings.warm_start == 0:
        return None
    path = tools.folder.warm_start
    if tools.ranks is not None:  # another number of ranks begins it anew
        path = path.with_stem(f"{path.stem}-{held.start}-{held.stop}")
    return WarmStart(
        iterations=settings.warm_start,
        generator=plan.generator,
        learning_rate=plan.optimizer.learning_rate,
        betas=plan.optimizer.betas,
        store=Checkpoint(path, plan.digest()),
        stopped=tools.stopped,
    )


METHOD = Method(
    name="gswgan",
    about="GS-WGAN (Chen, Orekondy, Fritz 2020), made true: gradients sanitized on their way to the generator",
    settings=KernelSettings | EnsembleSettings | StartedSettings | RefinedSettings,
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
