"""Rounds of DP-SGD over sites (preset refined) on the operator's disk, and the critic that waits for the answers.

    RUN/round-1.safetensors, ...        what the operator sends to every site, one after another
       /private/rounds/1/*.bin, ...     answers that count, each on the disk before the next is looked at
                        /closed.json    which answers count: from now on all are late

Whoever has answered the plan itself is asked in every round. The weights are averaged over the sites that answer, with
the noise that they have; a site that is missing takes its noise along. All of it is post-processing of what sites have
released, so it is public but for the log.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from gswgan.critics.refined.critic import RefinedStart
from gswgan.critics.refined.sites import ServerAverage
from gswgan.critics.resumable import Stopped
from gswgan.errors import FederationError, RunError, short
from gswgan.federated.answers import log_of
from gswgan.federated.messages import Fields
from gswgan.federated.site_steps import Turn, check_weights, planned_steps, read_turn, sizes_of, steps_of
from gswgan.federated.statement import observers
from gswgan.generators.generator import Generator
from gswgan.generators.refined import RefinedGenerator
from gswgan.generators.scaled_descent import put_weights, weights_of
from gswgan.methods.refined import PlannedRefined
from gswgan.plan.context import RunContext
from gswgan.privacy.events import BaseEvent
from gswgan.privacy.storage import append_durably, read_file, write_durably
from gswgan.run.folder import RunFolder, read_json, write_json


class SiteRounds:
    """What was asked, and what came in."""

    def __init__(self, folder: RunFolder) -> None:
        """Of a run whose kernel round is over."""
        self.plan, self._root, self._log = folder.plan(), folder.root, log_of(folder)
        self._places = folder.private / "rounds"
        self._federation = folder.federation
        self.roster: list[str] = list(read_json(folder.federation, "federation.json")["sites"]["answered"])
        silos = self.plan.facts.silos
        assert silos is not None
        self._min_sites = silos.min_sites

    def question(self, number: int) -> Path:
        """The file for all sites; rounds are numbered from 1 for people."""
        return self._root / f"round-{number + 1}.safetensors"

    @property
    def waiting(self) -> int | None:
        """The round that was asked and is not closed; None where there is none."""
        asked = [number for number in range(len(steps_of(self.plan))) if self.question(number).exists()]
        return asked[-1] if asked and not self._closed(asked[-1]).exists() else None

    def ask(self, number: int, generator: RefinedGenerator) -> None:
        """Write the question: the weights as they are, and at first the axes."""
        axes = generator.preconditioner.state() if number == 0 else {}
        Turn(number=number, weights=weights_of(generator.denoised), axes=axes).save(self.question(number), self.plan)

    def missing(self, number: int) -> list[str]:
        """Who has not answered."""
        return [name for name in self.roster if not self._path(number, name).exists()]

    def taken(self) -> dict[str, tuple[str, str]]:
        """Whose answers to the round that waits were taken: their digests, and where they lie."""
        number = self.waiting
        if number is None:
            return {}
        paths = {name: self._path(number, name) for name in self.roster}
        return {name: (self._digest(number, name), str(path)) for name, path in paths.items() if path.exists()}

    def refused(self, fields: Fields) -> str | None:
        """Why this is no answer to the round that waits, whoever else has answered; None if it is one."""
        client, raw, number = fields.get("client"), fields.get("weights"), self.waiting
        try:
            if number is None or fields.get("round") != str(number):
                found = short(str(fields.get("round")), 12)
                raise FederationError("round", found, f"{'none' if number is None else number}, the one that waits")
            if fields.get("plan") != self.plan.digest():
                raise FederationError("plan", short(str(fields.get("plan")), 12), f"{self.plan.digest()[:12]}")
            if not isinstance(client, str) or client not in self.roster:
                raise FederationError("client", short(str(client), 60), "a site that has answered the plan")
            check_weights(self.plan, raw, self._sent(number), steps_of(self.plan)[number])
        except FederationError as wrong:
            self._note(client, refused=str(wrong), round=number)
            return str(wrong)
        return None

    def take(self, fields: Fields) -> str | None:
        """Look at one answer to the round that waits; None if it counts, else why it does not."""
        if (why := self.refused(fields)) is not None:
            return why
        client, raw, number = fields["client"], fields["weights"], self.waiting
        assert isinstance(client, str)
        assert number is not None
        path = self._path(number, client)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_durably(path, bytes(raw), mode=0o600)  # type: ignore[call-overload]
        self._note(client, digest=hashlib.sha256(bytes(raw)).hexdigest(), round=number, up=len(bytes(raw)))  # type: ignore[call-overload]
        return None

    def close(self, number: int) -> None:
        """Fix what counts; an error where fewer sites have answered than the plan needs."""
        missing = self.missing(number)
        answered = [name for name in self.roster if name not in missing]
        if len(answered) < self._min_sites:
            raise FederationError(
                "answers", f"{len(answered)} of {len(self.roster)} sites; none of {', '.join(missing)[:300]}",
                f"at least {self._min_sites}, as planned", "Run it again when they are there.",
            )  # fmt: skip
        write_json(self._closed(number), {"answers": {name: self._digest(number, name) for name in answered}})

    def answers(self, number: int) -> dict[str, Tensor] | None:
        """The weights that count, read and checked again; None where the round is not closed."""
        if not self._closed(number).exists():
            return None
        found, before = {}, self._sent(number)
        for name, digest in read_json(self._closed(number), "closed.json")["answers"].items():
            if self._digest(number, name) != digest:
                raise RunError("answers", name, "the answer that was taken", f"Restore {self._path(number, name)}.")
            raw = read_file(self._path(number, name), 4 * len(before))
            found[name] = check_weights(self.plan, raw, before, steps_of(self.plan)[number])
        return found

    def state_cost(self, events: Sequence[BaseEvent]) -> None:
        """Write again what is promised to each observer: of all that the ledger has, also of what came twice."""
        closed = [self._closed(number) for number in range(len(steps_of(self.plan)))]
        rounds = [list(read_json(path, "closed.json")["answers"]) for path in closed if path.exists()]
        write_json(self._federation, observers(self.plan, events, self.roster, rounds))

    def fingerprint(self, number: int) -> str:
        """Equal for equal answers that count."""
        return hashlib.sha256(read_file(self._closed(number), 2**24)).hexdigest()

    def _sent(self, number: int) -> Tensor:
        return read_turn(self.question(number), self.plan).weights

    def _closed(self, number: int) -> Path:
        return self._places / str(number + 1) / "closed.json"

    def _path(self, number: int, name: str) -> Path:
        return self._places / str(number + 1) / f"{hashlib.blake2b(name.encode(), digest_size=12).hexdigest()}.bin"

    def _digest(self, number: int, name: str) -> str:
        return hashlib.sha256(self._path(number, name).read_bytes()).hexdigest()

    def _note(self, client: object, **more: Any) -> None:
        shown = client[:256] if isinstance(client, str) else None
        row = {"time": round(time.time(), 3), "client": shown, "node": "0", "down": 0, "up": 0, **more}
        append_durably(self._log, json.dumps(row) + "\n", mode=0o600)


class RefinedBySites(RefinedStart):
    """Preset refined where DP-SGD happens at sites: it asks them, waits, and averages what they send."""

    def __init__(self, rounds: SiteRounds, context: RunContext) -> None:
        """`context`: of the operator's run, whose ledger says what every site goes through."""
        settings = rounds.plan.critic
        assert isinstance(settings, PlannedRefined)
        super().__init__(**settings.start_on(rounds.plan, context.embedding, context.device))
        self._rounds, self._ledger, self._steps = rounds, context.ledger, steps_of(rounds.plan)

    def learn(self, step: int, generator: Generator) -> None:
        """The stage's step; in the first step of a round all of it."""
        if step < self.steps:
            super().learn(step, generator)
            return
        self._step, step = step, step - self.steps
        assert isinstance(generator, RefinedGenerator)
        for number, steps in enumerate(self._steps):
            if steps.start == step:
                self._round(number, steps, generator)

    def _round(self, number: int, steps: range, generator: RefinedGenerator) -> None:
        answers, plan = self._rounds.answers(number), self._rounds.plan
        if answers is None:
            if not self._rounds.question(number).exists():
                if number == 0:
                    self.fit(generator)
                self._rounds.ask(number, generator)
            raise Stopped  # until the answers are there
        for step in steps:
            self._ledger.record(f"step {step}", plan.sums.event, f"{self._rounds.fingerprint(number)} {step}")
        self._rounds.state_cost([entry.event for entry in self._ledger.entries])
        weights, averaged = (weights_of(one) for one in (generator.denoised, generator.denoised_average))
        server = ServerAverage(planned_steps(plan), sizes_of(plan), weights, averaged)
        server.take({name: found.to(weights.device) for name, found in answers.items()}, steps)
        put_weights(generator.denoised, server.weights)
        put_weights(generator.denoised_average, server.averaged)
