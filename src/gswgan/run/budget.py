"""The budget file: a budget for all runs over one body of data. It is a privacy filter (docs/proof.md, section 8).

A run enters all its planned releases before the first of them, under a lock, or is refused; what is entered stays,
whatever becomes of the run. A release that is repeated after a stop is entered before it happens as well.

The next run is chosen after the last one was seen, so costs add up only by rules that hold for such a choice, in
parts of the budget that are fixed before the first release: plain Gaussian releases by their mu^2 in one part, every
other run with its own epsilon and delta in the other. What holds for all runs together is the budget.

A run is known by its key, so copies of a run folder are one run. They share one journal, beside the budget: a copy
that computes the same sums releases the same bytes, and one that computes other sums repeats a release, which counts.

Everything in a budget counts together. Beside each run stands a mark of its data: a keyed digest of images, labels and
persons as they were read, the very arrays that a run is bound to (`data_digest`); where the data stays with clients, of
the list of their ids. Two marks may be two views of the
same people (scaled, without labels, one record more), which no digest can tell: so other data is marked, and still
counted.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import importlib.util
import json
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gswgan.data import ImageData, ImageStream
from gswgan.errors import LedgerError, PrivacyError, RunError, path_problem
from gswgan.plan.plan import Plan
from gswgan.plan.settings import check_delta, check_epsilon
from gswgan.privacy.events import Event, check_neighbours, from_json, to_json
from gswgan.privacy.filter import Charge, Filter, Used, is_plain
from gswgan.privacy.ledger import Entry, chained_line, read_chain
from gswgan.privacy.storage import append_durably, create_durably, drop_torn_tail, locked, make_folder, named_by_user
from gswgan.run.folder import data_digest

FORMAT_VERSION = 2

REPEAT_SHARE = 0.01
"""Of the budget's delta, for one repeated Gaussian release where there is no part for Gaussian releases."""


@dataclass(frozen=True, kw_only=True)
class BudgetedRun:
    """One run in a budget, with the releases that it repeated."""

    run: str
    where: str
    when: str
    what: str
    data: str
    relation: tuple[str, str, str]  # neighbours, unit, observer
    charges: tuple[Charge, ...]
    repeated: int


class Budget:
    """A file with a budget and the runs that were entered."""

    def __init__(self, path: Path) -> None:
        """Open a budget; `Budget.create` makes one."""
        self.path = path.resolve()
        if not self.path.is_file():
            todo = f"Make one with a budget: `gswgan budget {path} --epsilon 10 --delta 1e-5`."
            raise RunError("budget", str(path), f"a budget file{path_problem(path)}", todo)
        if importlib.util.find_spec("dp_accounting") is None:
            raise RunError("dp-accounting", None, "an accountant to add up costs with", "pip install dp-accounting")
        with self._locked():
            self._read()

    @classmethod
    def create(cls, path: Path, *, epsilon: float, delta: float, sampled_share: float | None = None) -> Budget:
        """A new budget with this budget, which cannot be changed later.

        `sampled_share`: the share of epsilon and delta that is kept for runs that are not plain Gaussian releases (0 to
        1). Without it the first run decides, before anything is released: 0 if it is plain Gaussian, 1 otherwise.
        """
        header: dict[str, Any] = {"format_version": FORMAT_VERSION}
        header |= {"epsilon": check_epsilon(epsilon), "delta": check_delta(delta)}
        header["sampled_share"] = None if sampled_share is None else check_share(sampled_share)
        text, _ = chained_line({**header, "key": secrets.token_hex(32), "index": 0}, "")
        try:
            create_durably(named_by_user(path), text.encode())
        except FileExistsError as wrong:
            raise RunError("budget", str(path), "a new file", "The budget of a budget cannot be changed.") from wrong
        except OSError as wrong:
            expected = f"a new file in a folder that is there ({wrong.strerror})"
            raise RunError("budget", str(path), expected, "Make the folder, or choose another file.") from wrong
        return cls(path)

    def check(self, plan: Plan) -> str:
        """What would be used with this run, in words, or a PrivacyError if there is no room. Nothing is entered."""
        with self._locked():
            self._read()
            rule, charge = self._admit(plan, plan.total())
            return f"{rule.describe(rule.used([*self._charges(), charge]))} with this run"

    def reserve(
        self,
        run: str,
        plan: Plan,
        data: ImageData | ImageStream | Sequence[str],
        *,
        where: str,
        total: Event | None = None,
    ) -> Path:
        """Enter a run with all that it will release, or refuse it; a run that is in the budget is not entered again.

        `run`: what it is known by (entering.py). `data`: or the ids of the clients who have it. `total`: the most that
        is released, where it is not the plan's. Returns the journal that all copies of the run share.
        """
        total, journal = plan.total() if total is None else total, self._journals / f"{run}.jsonl"
        with self._locked():
            self._read()
            if run in {budgeted.run for budgeted in self.runs}:
                if not journal.is_file():
                    raise RunError(
                        "journal", str(journal), "what this run and its copies have released",
                        "Restore it beside the budget, or start a new run, which counts again.",
                    )  # fmt: skip
                return journal
            _, charge = self._admit(plan, total)
            now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            row: dict[str, Any] = {"run": run, "where": where, "when": now}
            row["what"] = f"{plan.method} {plan.preset}: {plan.facts.data}"
            row |= {"data": _mark(data, self._key), "relation": list(_relation(plan))}
            make_folder(self._journals, private=True)
            append_durably(journal, "", mode=0o600)
            self._append({**row, "releases": to_json(charge.event), "cost": charge.cost})
        return journal

    def add_repeat(self, run: str, entry: Entry) -> None:
        """Enter a release that a run has to make again, before it does; refuse it where there is no room."""
        with self._locked():
            self._read()
            row = {"repeat_of": run, "name": entry.name, "attempt": entry.attempt}
            if any(row.items() <= known.items() for known in self._rows):
                return
            rule = self._rule()
            charge = rule.charge(entry.event, rule.delta * REPEAT_SHARE)
            self._afford(
                rule, charge, "The run stops before the release. On the machine where it began it repeats exactly."
            )
            self._append({**row, "releases": to_json(entry.event), "cost": charge.cost})

    def spent(self) -> float:
        """Epsilon that is used up: of the Gaussian part at its delta, with that of the other runs."""
        used = self._rule().used(self._charges()) if self.runs else Used(plain=0.0, epsilon=0.0, delta=0.0)
        return used.plain + used.epsilon

    def words(self) -> str:
        """How much of the budget is used up, part by part."""
        return self._rule().describe(self._rule().used(self._charges())) if self.runs else "nothing"

    def alone(self, budgeted: BudgetedRun) -> str:
        """What one run takes, with the releases that it repeated."""
        used = self._rule().used(budgeted.charges)
        plain = [f"{used.plain:.4g} at delta {self._rule().plain_delta:g}"] if used.plain else []
        added = [f"{used.epsilon:.4g} and delta {used.delta:.3g}"] if used.epsilon else []
        return ", ".join(plain + added)

    def _charges(self) -> list[Charge]:
        return [charge for budgeted in self.runs for charge in budgeted.charges]

    def _rule(self, first: Event | None = None, neighbours: str = "") -> Filter:
        """How costs add up: by the share that the budget was made with, or that its first run has fixed."""
        share = self._share
        if share is None:
            plain = is_plain(first) if first is not None else self.runs[0].charges[0].cost is None
            share = 0.0 if plain else 1.0
        neighbours = self.runs[0].relation[0] if self.runs else neighbours
        return Filter(epsilon=self.epsilon, delta=self.delta, share=share, neighbours=neighbours)

    def _admit(self, plan: Plan, total: Event | None) -> tuple[Filter, Charge]:
        """What the run takes, and by which rule; a PrivacyError if it has no place here, or no room."""
        if plan.guarantee is None or total is None or plan.void is not None:
            raise PrivacyError(
                "budget", str(self.path), "a run with a guarantee", "No budget has room for one without."
            )
        relation = _relation(plan)
        if self.runs and relation != self.runs[0].relation:
            raise PrivacyError(
                "budget", str(self.path), f"{self.runs[0].relation}, as the runs in it, not {relation}",
                "Costs of different units or relations do not add up: keep a budget for each.",
            )  # fmt: skip
        rule = self._rule(None if self.runs else total, relation[0])
        if rule.share == 0 and not is_plain(total):
            raise PrivacyError(
                "budget", f"a run of {plan.method} {plan.preset}", f"plain Gaussian releases alone in {self.path}",
                "For both kinds of runs a budget has a share for each from the start: gswgan budget FILE --epsilon 10 "
                "--delta 1e-5 --sampled-share 0.5. Nothing was released.",
            )  # fmt: skip
        charge = rule.charge(total, plan.guarantee.delta)
        self._afford(rule, charge, "Nothing was released.")
        return rule, charge

    def _afford(self, rule: Filter, charge: Charge, todo: str) -> None:
        used = rule.used([*self._charges(), charge])
        if not rule.has_room(used):
            found = f"{rule.describe(used)} for {len(self.runs)} run(s) and this one"
            raise PrivacyError("budget", found, f"at most the budget of {self.epsilon:.4g} ({self.path})", todo)

    def _append(self, content: dict[str, Any]) -> None:
        text, _ = chained_line({**content, "index": len(self._rows)}, self._head)
        append_durably(self.path, text, mode=0o600)
        self._read()

    @property
    def _journals(self) -> Path:
        return self.path.with_name(self.path.name + ".runs")

    def _read(self) -> None:
        try:
            drop_torn_tail(self.path)  # it was being written when its run died, before anything was released
            self._rows, self._head = read_chain(self.path)
            header, *rows = self._rows
            if header["format_version"] == 1:
                expected = (
                    "a budget of this version: the earlier one added up costs in a way that does not hold for runs "
                )
                expected += "that are chosen after earlier ones were seen"
                raise RunError("budget", str(self.path), expected, "Make a new one with what you allow from now on.")
            if header["format_version"] != FORMAT_VERSION:
                raise ValueError(f"format_version {header['format_version']}")
            self.epsilon, self.delta = check_epsilon(header["epsilon"]), check_delta(header["delta"])
            self._share = None if header["sampled_share"] is None else check_share(header["sampled_share"])
            self._key = bytes.fromhex(header["key"])
            self.runs = [_budgeted(row, rows) for row in rows if "run" in row]
        except RunError:
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as wrong:
            expected = f"a budget file that is whole ({wrong})"
            raise LedgerError(
                "budget", str(self.path), expected, "Restore it: without it nobody knows what is spent."
            ) from wrong

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One process at a time, the others wait. The lock is a file beside the budget, and stays there."""
        with contextlib.ExitStack() as held:
            try:
                held.enter_context(locked(self.path.with_name(self.path.name + ".lock"), wait=True))
            except OSError as wrong:
                raise RunError("budget", str(self.path), f"a folder that can be written ({wrong.strerror})") from wrong
            yield


def _budgeted(row: dict[str, Any], rows: list[dict[str, Any]]) -> BudgetedRun:
    neighbours, unit, observer = row["relation"]
    mine = [row, *(other for other in rows if other.get("repeat_of") == row["run"])]
    return BudgetedRun(
        run=row["run"], where=row["where"], when=row["when"], what=row["what"], data=row["data"],
        relation=(check_neighbours(neighbours), unit, observer), repeated=len(mine) - 1,
        charges=tuple(map(_charge, mine)),
    )  # fmt: skip


def _charge(row: dict[str, Any]) -> Charge:
    cost = row["cost"]
    return Charge(event=from_json(row["releases"]), cost=None if cost is None else (float(cost[0]), float(cost[1])))


def _relation(plan: Plan) -> tuple[str, str, str]:
    return plan.cost.neighbours, plan.cost.unit, plan.cost.observer


def check_share(share: Any) -> float:
    """The share of a budget that is for runs that are not plain Gaussian releases."""
    if not isinstance(share, int | float) or isinstance(share, bool) or not 0 <= share <= 1:
        raise PrivacyError("sampled share", share, "a number from 0 to 1", "Leave it out: the first run decides.")
    return float(share)


def _mark(data: ImageData | ImageStream | Sequence[str], key: bytes) -> str:
    if isinstance(data, ImageData | ImageStream):
        return data_digest(data, key)
    return hashlib.blake2b(json.dumps(["clients", *sorted(data)]).encode(), key=key).hexdigest()
