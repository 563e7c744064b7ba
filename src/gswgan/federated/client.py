"""What a client does. Everything that must survive is on its own disk before anything leaves.

    STATE/<name of the client>/client.json, log.jsonl     memory.py
                              /<digest of a plan>/ledger.jsonl, journal.jsonl, key.json, answer.bin

The order is: plan, limits and cap are checked before the data is looked at; budget, if the client keeps one (all
answers that the plan can ask for), ledger (written ahead, within the cap), answer on the disk, key erased, answer
sent. A client that is asked again sends the bytes it has kept. One that died before it had kept them computes them
again from the same key and the same data, which gives the same bytes; from other data it is another answer, and counts
again. What leaves is an answer or one fixed sentence. The reason for a refusal is in the client's own log: it may tell
what was spent, and the text of an error may show records. Data that cannot be used is answered for with zeros (and the
client's noise, where it adds any), so that whether there is an answer does not depend on the records.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gswgan.critics.kernel.embedding import person_row
from gswgan.critics.kernel.features import KernelSettings, RandomFeatures
from gswgan.data import ImageData
from gswgan.errors import FederationError, GswganError
from gswgan.federated import critic_messages
from gswgan.federated.critic_client import CriticAtClient, kept_answer, was_last
from gswgan.federated.critic_messages import Batch
from gswgan.federated.critic_plan import answer_event
from gswgan.federated.limits import Limits
from gswgan.federated.memory import Cap, CappedLedger, Memory, home_of, recorded, write_log
from gswgan.federated.messages import Fields, answer, pack, read_question, width
from gswgan.federated.records import SHAPE, no_records, of_one_person
from gswgan.federated.trust import Trust, check_cost, trust_of, weight_of_counts
from gswgan.plan.facts import Facts
from gswgan.plan.plan import Plan
from gswgan.privacy import GaussianMechanism, Streams
from gswgan.privacy.accountant import NOT_RECOMPUTED
from gswgan.privacy.events import BaseEvent, Event, Repeated
from gswgan.privacy.mechanism import GRID_BITS, announce, clip_to_grid
from gswgan.privacy.randomness import create_key, erase_key, load_key
from gswgan.privacy.storage import locked, make_folder, read_file, sync_folder, write_durably
from gswgan.run.budget_entry import enter_into
from gswgan.run.folder import write_json

CPU = torch.device("cpu")
REFUSED = "this client does not answer this question"
"""All that a server learns of a refusal, whatever its reason."""


@dataclass(frozen=True, kw_only=True)
class _Work:
    """What one answer is made with."""

    folder: Path
    data: ImageData
    ledger: CappedLedger
    secret: Streams


class Client:
    """One person's side: its data, whom it trusts, its cap, its limits and its memory."""

    def __init__(
        self,
        name: str,
        data: ImageData | Callable[[Facts], ImageData],
        state: Path,
        *,
        trust: Trust,
        cap: Cap,
        limits: Limits | None = None,
        shape: Mapping[str, object] | None = None,
        budget: Path | None = None,
        insecure: bool = False,
    ) -> None:
        """`data`: the records, or how to read them when a plan with these facts has been accepted.

        `shape`: what is stated of the data (some of SHAPE); a plan of another shape is refused. `budget`: the client's
        own budget file, which counts its answers with whatever else is entered there. `insecure` lets it take part
        in a run whose noise is known, which has no guarantee: for tests.
        """
        self.name, self.trust, self._budget, self._insecure = name, trust, budget, insecure
        self._limits = limits or Limits()
        if isinstance(data, ImageData):
            found = of_one_person(data)
            shape = {name: getattr(found, name) for name in SHAPE} if shape is None else shape
            self._read: Callable[[Facts], ImageData] = lambda facts: found
        else:
            self._read = data
        self._shape, self.home = dict(shape or {}), home_of(state, name)
        make_folder(self.home, private=True)
        write_json(self.home / "client.json", {"client": name, "cap": vars(cap)})

    def reply(self, fields: Fields) -> dict[str, str | bytes]:
        """The answer to a question, or REFUSED. Nothing that is raised on the way leaves, whatever it is."""
        try:
            if "hello" in fields:  # who is there?
                return {"client": self.name}
            if "round" in fields:
                plan = critic_messages.read_plan(fields)
                self._accept(plan)
                batch = critic_messages.read_batch(plan, fields)
                return critic_messages.answer(self.name, plan, batch.number, self.block(plan, batch))
            plan = read_question(fields)
            return answer(self.name, plan, self.sums(plan))
        except Exception as wrong:
            self._log("refused", wrong)
            return {"client": self.name, "refused": REFUSED}

    def sums(self, plan: Plan) -> bytes:
        """This client's averaged, clipped class sums as they travel: kept, or computed, recorded and kept."""
        self._accept(plan)
        with locked(self.home / "lock", wait=True):  # Flower may start a process for each question
            folder = self._place(plan)
            kept = folder / "answer.bin"
            if not kept.exists():
                with self._prepared(plan, "embedding") as work:
                    write_durably(kept, self._compute(plan, work), mode=0o600)
            erase_key(folder / "key.json")  # the bytes are kept: nothing needs it any more
            return read_file(kept, 8 * width(plan))

    def block(self, plan: Plan, batch: Batch) -> bytes:
        """This client's sanitized gradients in a round of Algorithm 2 as they travel; its plan was accepted."""
        with locked(self.home / "lock", wait=True):  # Flower may start a process for each question
            folder = self._place(plan)
            block = kept_answer(folder, plan, batch)
            if block is None:
                with self._prepared(plan, f"step {batch.number}") as work:
                    critic = self._critic(folder, plan, work.data, work.ledger, work.secret)
                    critic.failed = lambda wrong: self._log("zeros in place of an answer", wrong)
                    block = critic.answer(batch)
            if was_last(plan, batch) or not self._has_room(answer_event(plan)):
                erase_key(folder / "key.json")
            return block

    _critic = CriticAtClient

    def _accept(self, plan: Plan) -> None:
        """Whom the plan trusts, its cost, secret noise, the shape: what needs neither the data nor an estimate."""
        if trust_of(plan) != self.trust:
            raise FederationError("trust", trust_of(plan), f"{self.trust}, as this client is set up")
        if check_cost(plan) is None and not self._place(plan).exists():
            stated = FederationError("dp-accounting", None, f"the package, to compute the cost: {NOT_RECOMPUTED}")
            self._log("the plan's epsilon", stated)
        if plan.insecure_reproducible and not self._insecure:
            raise FederationError("plan", "insecure-reproducible", "a plan with secret noise")
        asked = {name: getattr(plan.facts, name) for name in self._shape}
        if asked != self._shape:
            raise FederationError("plan", asked, f"{self._shape}, as the client's data has")

    @contextmanager
    def _prepared(self, plan: Plan, name: str) -> Iterator[_Work]:
        """All that the answer `name` takes. A plan that is refused leaves no folder, and so no key."""
        assert plan.privacy is not None
        folder, event = self._place(plan), _event(plan)
        self._limits.check(plan)
        repeated = any(entry.name == name for entry in recorded(folder / "ledger.jsonl"))
        if not repeated:  # a repeated answer is counted where it is recorded
            memory = Memory.read(self.home)
            memory.cap.check((*memory.events, event))
        is_new = not folder.exists()
        try:
            if is_new:
                folder.mkdir(mode=0o700)
                sync_folder(self.home)
            secret, data, entered = self._secret(plan, folder), self._records(plan), None
            if self._budget is not None:
                entered = enter_into(self._budget, plan, data, secret, where=folder, total=_all_answers(plan))
            ledger = CappedLedger(self.home, folder / "ledger.jsonl", plan, entered)
        except Exception:
            if is_new:
                erase_key(folder / "key.json")
                shutil.rmtree(folder, ignore_errors=True)
            raise
        yield _Work(folder=folder, data=data, ledger=ledger, secret=secret)

    def _records(self, plan: Plan) -> ImageData:
        """The client's records, or none at all where what is there cannot be used for this plan."""
        try:
            data = of_one_person(self._read(plan.facts))
            found, asked = ([getattr(what, name) for name in SHAPE] for what in (data, plan.facts))
            if found != asked:
                raise FederationError("data", dict(zip(SHAPE, found)), f"{asked}, as planned")
        except Exception as wrong:
            self._log("data that cannot be used, so zeros in its place", wrong)
            return no_records(plan.facts, self.name)
        return data

    def _compute(self, plan: Plan, work: _Work) -> bytes:
        assert plan.privacy is not None
        features = RandomFeatures(plan.critic.kernel_settings, plan.facts.channels, plan.facts.image_size, CPU)
        row = self._row(plan, work.data, features)
        bound, event = plan.privacy.contribution, plan.privacy.event
        if trust_of(plan) == "trusted-aggregator":
            grid = clip_to_grid(row, bound.clip_norm).numpy().reshape(1, -1)
            announce("embedding", grid, bound, event, work.ledger, work.secret)
            return pack(grid, plan)
        mechanism = GaussianMechanism(contribution=bound, event=event, ledger=work.ledger, streams=work.secret)
        noisy = mechanism.answer("embedding", [(row, torch.zeros(1, dtype=torch.int64))], slots=1, width=width(plan))
        return pack(np.rint(noisy.sums / (bound.clip_norm * 2.0**-GRID_BITS)).astype(np.int64), plan)

    def _row(self, plan: Plan, data: ImageData, features: RandomFeatures) -> Tensor:
        try:
            return person_row(data, features, weight_of_counts(plan))
        except Exception as wrong:
            self._log("zeros in place of an answer", wrong)
            return torch.zeros(1, 1, width(plan), dtype=torch.float64)

    def _place(self, plan: Plan) -> Path:
        return self.home / plan.digest()[:32]

    def _secret(self, plan: Plan, folder: Path) -> Streams:
        """The client's key for this plan."""
        key, context, fixed = folder / "key.json", plan.digest(), None
        if plan.insecure_reproducible:
            fixed = hashlib.blake2b(f"insecure {plan.seed} {self.name}".encode(), digest_size=32).digest()
        return load_key(key, context) if key.exists() else create_key(key, context, secret=fixed)

    def _has_room(self, event: BaseEvent) -> bool:
        """Whether the cap allows one more such answer."""
        memory = Memory.read(self.home)
        try:
            memory.cap.check((*memory.events, event))
        except FederationError:
            return False
        return True

    def _log(self, what: str, wrong: Exception) -> None:
        why = str(wrong) if isinstance(wrong, GswganError) else "".join(traceback.format_exception(wrong))[-2000:]
        with contextlib.suppress(OSError):  # a full disk changes nothing of what leaves
            write_log(self.home, what, why)


def _event(plan: Plan) -> BaseEvent:
    """What one answer to this plan is recorded as."""
    assert plan.privacy is not None
    return plan.privacy.event if isinstance(plan.critic, KernelSettings) else answer_event(plan)


def _all_answers(plan: Plan) -> Event:
    """What a plan can ask of one client at the most: an answer in every round, whatever coins the server tosses."""
    assert plan.privacy is not None
    return Repeated(event=answer_event(plan), times=plan.privacy.releases)
