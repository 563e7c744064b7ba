"""Algorithm 1 as one loop, for every critic, and the run around it: resume, checkpoint, publish."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from gswgan.critics import Critic
from gswgan.critics.ensemble import Ensemble, EnsembleSettings
from gswgan.critics.kernel import KernelCritic, KernelSettings, RandomFeatures
from gswgan.critics.network import CriticShape
from gswgan.critics.warm_start import WarmStart
from gswgan.data import ImageData
from gswgan.errors import RunError
from gswgan.generators.generator import Generator
from gswgan.privacy import GaussianMechanism, Ledger, Streams
from gswgan.privacy.ledger import append_durably
from gswgan.privacy.randomness import erase_key
from gswgan.training.checkpoint import Checkpoint
from gswgan.training.plan import Facts, Plan
from gswgan.training.publish import publish
from gswgan.training.run_folder import RunFolder, write_json

LOG_EVERY = 50

Progress = Callable[[int], None]
"""Called after each step with the number of steps done."""

Note = Callable[[str], None]
"""Called with a line about what is going on; never anything private."""


def train(
    plan: Plan,
    critic: Critic,
    generator: Generator,
    *,
    start: int = 0,
    after_step: Callable[[int], bool] = lambda done: False,
) -> int:
    """Algorithm 1, main phase. Returns the number of steps done; `after_step` may ask to stop.

    The critic has been prepared: the kernel critic made its one release, the ensemble cut its shards and
    warmed up.
    """
    for step in range(start, plan.training.steps):
        critic.learn(step, generator)  # participants: n_dis updates on their shards  [paper: k ~ U[1, K]]
        fake, labels = generator.sample(plan.training.batch_size, step)  # G(z_i), z_i ~ P_z
        upstream = critic.upstream_gradient(fake, labels)  # M_{sigma,C}(gradient w.r.t. G(z_i)): sanitized
        generator.descend(fake, upstream)  # times the local Jacobian; Adam
        if after_step(step + 1):
            return step + 1
    return plan.training.steps


def run(
    folder: RunFolder,
    data: ImageData | None,
    *,
    device: torch.device,
    progress: Progress = lambda done: None,
    note: Note = lambda text: None,
) -> bool:
    """Run the folder's plan from wherever it stands to the end; False if it was interrupted (and can resume)."""
    plan = folder.plan()
    if folder.is_finished:
        with folder.locked():
            _clean_up(folder)  # it may have died after its last file
        raise RunError("run", str(folder.root), "a run that has not ended", "It has: `gswgan sample` draws from it.")
    if data is not None and not plan.fits(Facts.of(data)):
        raise RunError("data", Facts.of(data), f"data with the plan's facts {plan.facts}")
    with folder.locked(), _stop_on_interrupt() as stopped:
        generator = make_generator(plan, device)
        critic = make_critic(plan, folder, data, device, note)
        checkpoint = Checkpoint(folder.checkpoint, plan.digest())
        saved = checkpoint.load()
        if isinstance(plan.critic, KernelSettings) and not folder.embedding.exists():
            note("releasing the embedding: one pass over the data")
        critic.prepare(data, resumed=saved is not None)
        if saved is not None:
            note(f"resuming after step {saved[0]}")
            generator.load_state(saved[1]["generator"])
            critic.load_state(saved[1].get("critic", {}))
        began = time.monotonic()

        def after_step(done: int) -> bool:
            progress(done)
            if done % LOG_EVERY == 0:
                row = {"step": done, "seconds": round(time.monotonic() - began, 3), **critic.metrics()}
                append_durably(folder.metrics, json.dumps(row) + "\n", mode=0o600)
            if stopped.is_set() or checkpoint.is_due():
                checkpoint.save(done, {"generator": generator.state(), "critic": critic.state()})
            return stopped.is_set()

        start = 0 if saved is None else saved[0]
        done = train(plan, critic, generator, start=start, after_step=after_step)
        if done < plan.training.steps:
            return False
        publish(plan, folder, generator)
        _clean_up(folder)
    return True


def _clean_up(folder: RunFolder) -> None:
    """What must not outlive the run: the key first."""
    erase_key(folder.key)
    for spent in (folder.journal, folder.checkpoint):
        spent.unlink(missing_ok=True)


def make_generator(plan: Plan, device: torch.device) -> Generator:
    """The untrained generator of the plan."""
    return Generator(
        plan.generator,
        plan.optimizer,
        classes=plan.facts.classes,
        channels=plan.facts.channels,
        image_size=plan.facts.image_size,
        updates=plan.training.steps,
        streams=Streams.public(plan.seed),
        device=device,
        mixed_precision=plan.training.mixed_precision and device.type == "cuda",
    )


def make_critic(
    plan: Plan, folder: RunFolder, data: ImageData | None, device: torch.device, note: Note = lambda text: None
) -> Critic:
    """The plan's critic behind its barrier: mechanism, ledger and key."""
    facts, privacy = plan.facts, plan.privacy

    def kernel(mechanism: GaussianMechanism | None) -> Critic:
        assert isinstance(plan.critic, KernelSettings)
        features = RandomFeatures(plan.critic, facts.pixels, device)
        return KernelCritic(features, mechanism, folder.embedding, blocks=plan.training.feature_blocks)

    if plan.source is not None:  # a released embedding is used again: no data, no mechanism
        return kernel(None)
    if data is None:
        raise RunError("data", None, "the data of the plan", "Pass --data.")
    secret = folder.secret(plan)
    folder.bind_data(data, secret)
    ledger = Ledger(folder.ledger, observer=privacy.observer, context=plan.digest(), journal=folder.journal)
    mechanism = GaussianMechanism(contribution=privacy.contribution, event=privacy.event, ledger=ledger, streams=secret)
    if isinstance(plan.critic, KernelSettings):
        return kernel(mechanism)
    assert isinstance(plan.critic, EnsembleSettings)
    assert privacy.shards is not None
    units = facts.persons or facts.records
    write_json(folder.shards, {"shards": privacy.shards, "units": units, "unused": units % privacy.shards})
    return Ensemble(
        plan.critic,
        CriticShape(
            image_size=facts.image_size, channels=facts.channels, classes=facts.classes, width=plan.critic.width
        ),
        mechanism,
        count=privacy.shards,
        sampling=privacy.sampling,
        rate=privacy.rate,
        public=Streams.public(plan.seed),
        secret=secret,
        device=device,
        warm_start=_warm_start(plan),
        note=note,
    )


def _warm_start(plan: Plan) -> WarmStart | None:
    assert isinstance(plan.critic, EnsembleSettings)
    if plan.critic.warm_start == 0:
        return None
    rate, betas = plan.optimizer.learning_rate, plan.optimizer.betas
    return WarmStart(iterations=plan.critic.warm_start, generator=plan.generator, learning_rate=rate, betas=betas)


@contextmanager
def _stop_on_interrupt() -> Iterator[threading.Event]:
    """The first Ctrl-C asks the loop to stop after the step and save; the second stops at once."""
    stopped = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return

    def handler(number: int, frame: object) -> None:
        if stopped.is_set():
            raise KeyboardInterrupt
        stopped.set()

    before = signal.signal(signal.SIGINT, handler)
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, before)
