"""What a client does. Everything that must survive is on its own disk before anything leaves.

    STATE/<name of the client>/client.json, log.jsonl                               memory.py
                              /<digest of a plan>/ledger.jsonl, journal.jsonl, key.json; its answers: client_answers.py

The order is: plan, limits and cap are checked before the data is looked at; budget, if the client keeps one (all
answers that the plan can ask for), ledger, answer on the disk, key erased after the last answer, answer sent. What
leaves is an answer or one fixed sentence. The reason for a refusal is in the client's own log: it may tell what was
spent, and the text of an error may show records.

Whether there is an answer does not depend on the records. A plan is refused for what was stated before it came: the
shape of the images, a site's size, the classes that the owner names. Data that cannot be used, or that is no longer
what was stated, is answered for with zeros (and the client's noise, where it adds any). Classes are matched by name,
and a record of a class that the plan lacks adds nothing: no server can try names and see which of them a client has.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from gswgan.data import ImageData
from gswgan.data.partition import check_own_names
from gswgan.errors import FederationError, GswganError, short
from gswgan.federated.client_answers import Answer, CriticAtClient, SumsAtClient, SumsAtSite, Work
from gswgan.federated.limits import Limits
from gswgan.federated.memory import (
    AGREED,
    Cap,
    CappedLedger,
    Memory,
    home_of,
    keep_agreed,
    recorded,
    repeated,
    write_log,
)
from gswgan.federated.messages import Batch, Fields, answer, read_batch, read_plan
from gswgan.federated.silos import Protect, check_listed, held, of_unit, protect_of
from gswgan.federated.site_steps import StepsAtSite, Turn, bind_data, sizes_of
from gswgan.federated.stated import SHAPE, Stated, as_planned
from gswgan.federated.trust import Trust, answer_event, check_cost, has_rounds, is_refined, planned_events, trust_of
from gswgan.plan.facts import Facts
from gswgan.plan.plan import Plan
from gswgan.privacy import Streams
from gswgan.privacy.accountant import NOT_RECOMPUTED
from gswgan.privacy.events import Event, Repeated
from gswgan.privacy.randomness import create_key, erase_key, load_key
from gswgan.privacy.storage import locked, make_folder, sync_folder
from gswgan.run.budget_entry import enter_into
from gswgan.run.folder import write_json

REFUSED = "this client does not answer this question"
"""All that a server learns of a refusal, whatever its reason."""


class Client:
    """One person's side, or one site's: its data, whom it trusts, its cap, its limits and its memory."""

    def __init__(
        self,
        name: str,
        data: ImageData | Callable[[Facts], ImageData],
        state: Path,
        *,
        trust: Trust,
        cap: Cap,
        limits: Limits | None = None,
        stated: Stated | None = None,
        budget: Path | None = None,
        protect: Protect = "client",
        insecure: bool = False,
    ) -> None:
        """`data`: the records, or how to read them when a plan with these facts has been accepted.

        `protect`: the unit of the cap; a plan that protects another unit is refused.
        `stated`: of the data; by default what it shows of itself, where it is here. `budget`: the client's own budget
        file, which counts its answers with whatever else is entered there. `insecure` lets it take part in a run whose
        noise is known, which has no guarantee: for tests.
        """
        self.name, self.trust, self._budget, self._insecure = name, trust, budget, insecure
        self._limits = limits or Limits()
        self.protect = protect
        if protect != "client" and cap.neighbours != "replace-one":
            raise FederationError("neighbours", cap.neighbours, f"replace-one, with protect {protect}")
        if isinstance(data, ImageData):
            found = of_one_person(data) if protect == "client" else of_unit(data, protect)
            stated = Stated.of(name, found, protect) if stated is None else stated
            self._read: Callable[[Facts], ImageData] = lambda facts: found
        else:
            self._read = data
        self.stated, self.home = stated or Stated(), home_of(state, name)
        if protect != "client" and self.stated.size is None:
            raise FederationError("size", None, f"how many records a site has, with protect {protect}")
        make_folder(self.home, private=True)
        _keep_unit(self.home, protect)
        write_json(self.home / "client.json", {"client": name, "cap": vars(cap), "protect": protect})

    def reply(self, fields: Fields) -> dict[str, str | bytes]:
        """The answer to a question, or REFUSED. Nothing that is raised on the way leaves, whatever it is."""
        try:
            if "hello" in fields:  # who is there?
                return {"client": self.name}
            plan = read_plan(fields)
            batch = read_batch(plan, fields)
            raw = self.answer(plan, batch)
            return answer(self.name, plan, raw, None if batch is None else batch.number)
        except Exception as wrong:
            self._log("refused", wrong)
            return {"client": self.name, "refused": REFUSED}

    def answer(self, plan: Plan, batch: Batch | Turn | None = None) -> bytes:
        """This client's answer as it travels: kept, or computed, recorded and kept.

        `batch`: in Algorithm 2, or in a round of DP-SGD.
        """
        self._accept(plan)
        with locked(self.home / "lock", wait=True):  # Flower may start a process for each question
            folder = self._place(plan)
            made = self._answer_to(folder, plan, batch)
            raw = made.kept()
            if raw is None:
                with self._prepared(plan, made.name) as work:
                    raw = made.make(work)
            if made.is_last or not (is_refined(plan) or self._has_room(plan)):
                erase_key(folder / "key.json")
            return raw

    def _answer_to(self, folder: Path, plan: Plan, batch: Batch | Turn | None) -> Answer:
        if isinstance(batch, Turn):
            return StepsAtSite(folder, plan, batch, sizes_of(plan).get(self.name, 0))
        if batch is not None:
            return CriticAtClient(folder, plan, batch)
        return SumsAtClient(folder, plan) if self.protect == "client" else SumsAtSite(folder, plan)

    def check(self, plan: Plan) -> None:
        """Raise an error if the plan is refused, whatever the client has spent so far. The data is not looked at."""
        self._accept(plan)
        self._limits.check(plan)

    def _accept(self, plan: Plan) -> None:
        """Whom the plan trusts, its cost, secret noise, what is stated: what needs neither the data nor an estimate."""
        if trust_of(plan) != self.trust:
            raise FederationError("trust", trust_of(plan), f"{self.trust}, as this client is set up")
        if protect_of(plan) != self.protect:
            raise FederationError("protect", protect_of(plan), f"{self.protect}, as this client is set up")
        if check_cost(plan) is None and not self._place(plan).exists():
            stated = FederationError("dp-accounting", None, f"the package, to compute the cost: {NOT_RECOMPUTED}")
            self._log("the plan's epsilon", stated)
        if plan.insecure_reproducible and not self._insecure:
            raise FederationError("plan", "insecure-reproducible", "a plan with secret noise")
        self.stated.check(plan)

    @contextmanager
    def _prepared(self, plan: Plan, name: str) -> Iterator[Work]:
        """All that the answer `name` takes. A plan that is refused leaves no folder, and so no key."""
        folder = self._place(plan)
        self._limits.check(plan)
        known, own = recorded(folder / "ledger.jsonl"), folder / "ledger.jsonl" if is_refined(plan) else None
        if own and known and not (folder / AGREED).exists():
            raise FederationError(AGREED, None, "the file in the plan's folder, with what was agreed to", "Restore it.")
        if all(entry.name != name for entry in known):  # a repeated one is counted there
            memory = Memory.read(self.home, but=own)  # preset refined: counted as a whole, answered or not
            memory.check_cap(*planned_events(plan), repeats=repeated(known) if own else ())
        is_new, total = not folder.exists(), _all_answers(plan)
        try:
            if is_new:
                folder.mkdir(mode=0o700)
                sync_folder(self.home)
            if is_refined(plan):  # always: it may have died before it was written
                keep_agreed(folder, plan)
            data = self._records(plan)
            secret, entered = self._secret(plan, folder), None
            if is_refined(plan):
                bind_data(folder / "data.json", data, secret)
            if self._budget is not None:
                entered = enter_into(self._budget, plan, data, secret, where=folder, total=total)
            ledger = CappedLedger(self.home, folder / "ledger.jsonl", plan, entered)
        except Exception:
            if is_new:
                erase_key(folder / "key.json")
                shutil.rmtree(folder, ignore_errors=True)
            raise
        failed = "zeros in place of an answer"
        yield Work(data=data, ledger=ledger, secret=secret, failed=lambda wrong: self._log(failed, wrong))

    def _records(self, plan: Plan) -> ImageData:
        """The client's records of the plan's classes, or none at all where what is there cannot be used."""
        try:
            data = self._read(plan.facts)
            data = of_one_person(data) if self.protect == "client" else of_unit(data, self.protect)
            if self.protect != "client":
                check_listed(plan, held(self.name, data, self.protect))
            if is_refined(plan):  # coins go by the places of records
                check_own_names(data.repeated_names)
            found, asked = ([getattr(what, name) for name in SHAPE] for what in (data, plan.facts))
            if found != asked:
                raise FederationError("data", dict(zip(SHAPE, found)), f"{asked}, as planned")
            planned = as_planned(data, plan.facts, in_place=not has_rounds(plan))
        except Exception as wrong:
            self._log("data that cannot be used, so zeros in its place", wrong)
            return no_records(plan.facts, self.name)
        kept = planned.n if planned.labels is None else int((planned.labels >= 0).sum())
        if kept < data.n:
            self._log("records of other classes, which add nothing", FederationError(
                "classes", short(", ".join(data.class_names), 200), f"those of the plan: {short(plan.facts.names)}",
                f"{data.n - kept} of {data.n} records.",
            ))  # fmt: skip
        return planned

    def _place(self, plan: Plan) -> Path:
        return self.home / plan.digest()[:32]

    def _secret(self, plan: Plan, folder: Path) -> Streams:
        """The client's key for this plan."""
        key, context, fixed = folder / "key.json", plan.digest(), None
        if plan.insecure_reproducible:
            fixed = hashlib.blake2b(f"insecure {plan.seed} {self.name}".encode(), digest_size=32).digest()
        return load_key(key, context) if key.exists() else create_key(key, context, secret=fixed)

    def _has_room(self, plan: Plan) -> bool:
        """Whether the cap allows one more answer to this plan."""
        memory = Memory.read(self.home)
        try:
            memory.check_cap(answer_event(plan))
        except FederationError:
            return False
        return True

    def _log(self, what: str, wrong: Exception) -> None:
        why = str(wrong) if isinstance(wrong, GswganError) else "".join(traceback.format_exception(wrong))[-2000:]
        with contextlib.suppress(OSError):  # a full disk changes nothing of what leaves
            write_log(self.home, what, why)


def _all_answers(plan: Plan) -> Event:
    """All that a plan can ask of one client, whatever coins the server tosses."""
    if is_refined(plan):
        total = plan.total()
        assert total is not None
        return total
    return Repeated(event=answer_event(plan), times=plan.sums.releases)


def _keep_unit(home: Path, protect: Protect) -> None:
    """Refuse to count answers of two units against one cap: an epsilon is for one of them."""
    if (home / "client.json").exists() and (known := Memory.read(home)).protect != protect and known.events:
        raise FederationError(
            "protect", protect, f"{known.protect}, as the answers in {home} are for", "Choose another state folder."
        )


def of_one_person(data: ImageData) -> ImageData:
    """Return the data if it is that of one person."""
    if data.persons is None or data.number_of_persons != 1:
        raise FederationError("data", data.name, "the records of one person")
    return data


def no_records(facts: Facts, name: str) -> ImageData:
    """No records, in the shape that a plan asks for."""
    return ImageData(
        name=name,
        images=np.zeros((0, facts.channels, facts.image_size, facts.image_size), np.uint8),
        labels=np.zeros(0, np.int64) if facts.labelled else None,
        classes=facts.classes,
        class_names=facts.class_names,
        persons=None if facts.persons is None else np.zeros(0, np.int64),
        person_ids=() if facts.persons is None else (name,),
    )
