"""Algorithm 1 as one loop, for every critic, and the run around it: resume, checkpoint, publish."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from gswgan.critics import Critic
from gswgan.critics.ensemble.distributed import Ranks
from gswgan.critics.kernel.streaming import Workers
from gswgan.critics.resumable import Stopped
from gswgan.data import ImageData, ImageStream
from gswgan.data.partition import check_own_names
from gswgan.errors import RunError
from gswgan.generators.generator import Generator
from gswgan.plan.context import RunContext
from gswgan.plan.facts import Facts
from gswgan.plan.plan import Plan
from gswgan.privacy import Streams
from gswgan.privacy.randomness import erase_key
from gswgan.privacy.storage import PART, append_durably, drop_torn_tail, left_asides, sync_folder
from gswgan.run.budget_entry import enter
from gswgan.run.checkpoint import Checkpoint
from gswgan.run.cuda_graphs import captured_step
from gswgan.run.folder import RunFolder
from gswgan.run.interruptions import report_disk_errors, stop_on_interrupt
from gswgan.run.publish import check_stated, publish

LOG_EVERY = 50
"""Steps between two lines of the private log, or fewer where the run is short."""

Progress = Callable[[int], None]
"""Called after each step with the number of steps done."""

Note = Callable[[str], None]
"""Called with a line about what is going on; never anything private."""

Reading = Callable[[int, int], None]
"""Called with how many records have been read, and how many there are."""

Answerer = Callable[[RunContext], Critic]
"""Makes the critic that asks others for its answers, with the run's ledger, key and streams."""


def train(
    plan: Plan,
    critic: Critic,
    generator: Generator,
    *,
    start: int = 0,
    after_step: Callable[[int], bool] = lambda done: False,
) -> bool:
    """Algorithm 1, main phase. Returns whether it came to its end; `after_step` may ask to stop.

    The critic has been prepared: the kernel critic made its one release, the ensemble divided the data and
    warmed up. It ends with the last step, or with a critic that has made all its releases.
    """

    def update(codes: Tensor, labels: Tensor) -> None:
        fake = generator(codes, labels)  # G(z_i)
        upstream = critic.upstream_gradient(fake, labels)  # M_{sigma,C}(gradient w.r.t. G(z_i)): sanitized
        generator.descend(fake, upstream)  # times the local Jacobian; Adam

    do_step = captured_step(update, generator, critic) if generator.device.type == "cuda" else update

    for step in range(start, plan.training.steps):
        if critic.finished:  # only where releases are fixed and steps are not
            break
        critic.learn(step, generator)  # participants: n_dis updates on their parts  [paper: k ~ U[1, K]]
        if not critic.moves_generator:  # a denoiser has learnt already
            codes, labels = generator.latents(plan.training.batch_size, step)  # z_i ~ P_z
            do_step(codes, labels)
        if after_step(step + 1):
            return step + 1 == plan.training.steps or critic.finished
    return True


def run(
    folder: RunFolder,
    data: ImageData | ImageStream | None,
    *,
    device: torch.device,
    progress: Progress = lambda done: None,
    note: Note = lambda text: None,
    answerer: Answerer | None = None,
    workers: Workers = 1,
    reading: Reading = lambda done, total: None,
    ranks: Ranks | None = None,
) -> bool:
    """Run the folder's plan from wherever it stands to the end; False if it was interrupted (and can resume).

    `answerer`: who answers instead of a critic here, where the data is elsewhere. `workers`: who reads data that stays
    in its files, which only the kernel critic can do with. `ranks`: the processes among which an ensemble's critics are
    spread; this one is the first of them.
    """
    with folder.locked(), stop_on_interrupt(note, forced=ranks is None) as stopped, report_disk_errors(folder):
        plan = folder.plan()
        folder.check_made_here(plan)
        if folder.is_finished:
            if _clean_up(folder):  # it died after its last file
                return True
            raise RunError(
                "run", str(folder.root), "a run that has not ended", "It has: `gswgan sample` draws from it."
            )
        if data is not None and not plan.fits(Facts.of(data)):
            raise RunError("data", Facts.of(data), f"data with the plan's facts {plan.facts}")
        check_stated(plan)
        _remove_asides(folder)
        generator = make_generator(plan, device)
        checkpoint = Checkpoint(folder.checkpoint, plan.digest())
        saved = checkpoint.load()
        stream = data if isinstance(data, ImageStream) else None
        if stream is not None and not plan.critic.can_stream:
            raise RunError("data", stream.name, "data in memory for this critic", "Load it with load_data.")
        if isinstance(data, ImageData) and not plan.critic.can_stream:
            check_own_names(data.repeated_names)  # parts and coins go by the places of records
        more: dict[str, Any] = {"stream": stream, "workers": workers, "reading": reading, "ranks": ranks}
        try:
            critic = make_critic(plan, folder, data, device, note, stopped.is_set, answerer, more)
            critic.prepare(data if isinstance(data, ImageData) else None, resumed=saved is not None)
        except Stopped:
            return False
        if saved is not None:
            note(f"resuming after step {saved[0]}")
            generator.load_state(saved[1]["generator"])
            critic.load_state(saved[1].get("critic", {}))
        start = 0 if saved is None else saved[0]
        keeper = _Keeper(plan, folder, critic, generator, checkpoint, progress, stopped, start)
        try:
            if not train(plan, critic, generator, start=start, after_step=keeper.after_step):
                return False
        except Stopped:  # it waits for the answers of others
            keeper.keep()
            return False
        keeper.check_finite(plan.training.steps)
        publish(plan, folder, generator)
        _clean_up(folder)
    return True


@dataclass
class _Keeper:
    """What happens after each step: progress, a line of the private log, a checkpoint, and whether to stop."""

    plan: Plan
    folder: RunFolder
    critic: Critic
    generator: Generator
    checkpoint: Checkpoint
    progress: Progress
    stopped: threading.Event
    good: int  # the last step whose state is kept

    def __post_init__(self) -> None:
        self._began, self.done = time.monotonic(), self.good
        if self.folder.metrics.exists():
            drop_torn_tail(self.folder.metrics)

    def after_step(self, done: int) -> bool:
        """Whether the run was asked to stop; then its state is saved."""
        self.progress(done)
        if done % min(LOG_EVERY, max(1, self.plan.training.steps // 50)) == 0:
            self.check_finite(done)
            row = {"step": done, "seconds": round(time.monotonic() - self._began, 3), **self.critic.metrics()}
            append_durably(self.folder.metrics, json.dumps(row) + "\n", mode=0o600)
        stop = self.stopped.is_set()  # once: a later Ctrl-C must not stop a step that was not saved
        self.done = done
        if stop or self.checkpoint.is_due():
            self.keep()
        return stop

    def keep(self) -> None:
        """Save the state after the last step."""
        self.check_finite(self.done)
        self.good = self.done
        self.checkpoint.save(self.done, {"generator": self.generator.state(), "critic": self.critic.state()})

    def check_finite(self, done: int) -> None:
        """Of the generator alone: that the run stops may tell what was released, and nothing else."""
        if not self.generator.is_finite():
            raise RunError(
                "generator", f"weights that are not numbers after step {done}", "a training that stays finite",
                f"The last good state, after step {self.good}, is kept, and what was released stays counted: resume on "
                "another device, or plan anew with a smaller learning rate.",
            )  # fmt: skip


def _remove_asides(folder: RunFolder) -> None:
    """Remove what a process that died was writing; a key is overwritten first."""
    for path in left_asides(folder.key):
        erase_key(path)
    for path in (part for place in (folder.private, folder.release) for part in place.glob(f"*{PART}")):
        path.unlink(missing_ok=True)


def _clean_up(folder: RunFolder) -> bool:
    """Remove what must not outlive the run, the key first; whether there was anything left to remove."""
    keys = (folder.key, *left_asides(folder.key))
    spent = [
        folder.journal,
        folder.checkpoint,
        folder.sums,
        folder.public_images,
        folder.encoder_state,
        *folder.private.glob(f"{folder.warm_start.stem}*"),
    ]
    spent += [part for place in (folder.private, folder.release) for part in place.glob(f"*{PART}")]
    found = [path for path in (*keys, *spent) if path.exists()]
    for key in keys:
        erase_key(key)
    for path in spent:
        path.unlink(missing_ok=True)
    sync_folder(folder.private)
    return bool(found)


def make_generator(plan: Plan, device: torch.device) -> Generator:
    """The untrained generator of the plan."""
    return plan.critic.make_generator(
        plan,
        **plan.facts.shape,
        streams=Streams.public(plan.seed),
        device=device,
        mixed_precision=plan.training.mixed_precision and device.type == "cuda",
    )


def make_critic(
    plan: Plan,
    folder: RunFolder,
    data: ImageData | ImageStream | None,
    device: torch.device,
    note: Note = lambda text: None,
    stopped: Callable[[], bool] = lambda: False,
    answerer: Answerer | None = None,
    more: Mapping[str, Any] = MappingProxyType({}),
) -> Critic:
    """The plan's critic behind its barrier: ledger and key; or who answers in its place, behind the same."""
    released = folder.federation.exists() and folder.embedding.exists()  # by the clients' round, which is over
    if plan.source is not None or (released and answerer is None):  # no data, no mechanism
        return plan.critic.reuse(plan, folder.embedding, device)
    by_clients = folder.rounds.exists() or (plan.guarantee is not None and plan.guarantee.observer == "server")
    if by_clients and answerer is None:  # data that happens to be here is not what they would answer and record
        raise RunError("run", str(folder.root), "clients that answer", "Go on with `gswgan federate`.")
    if data is None and answerer is None:
        raise RunError("data", None, "the data of the plan", "Pass --data.")
    secret = folder.secret(plan)
    entered = enter(folder, plan, data, secret)  # into its budget, if any, before anything is released
    if data is not None:
        if isinstance(data, ImageStream):
            note("reading the files of the data once, for their checksums")
        folder.bind_data(data, secret)
    public = Streams.public(plan.seed)
    context = folder.context(
        plan, public=public, secret=secret, entered=entered, device=device, note=note, stopped=stopped, **more
    )
    if context.ranks is not None:  # there is a key now
        root = str(folder.root.absolute())
        context.ranks.broadcast(do="begin", root=root, where=context.ranks.where, device=device.type)
    return plan.critic.make(plan, context) if answerer is None else answerer(context)
