"""`gswgan verify RELEASE --site LEDGER`: whether a site's own ledger and the public statement of a round agree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gswgan.errors import FederationError, path_problem, short
from gswgan.federated.silos import first_sums
from gswgan.federated.trust import in_relation, is_refined, spent_with_repeats
from gswgan.plan.plan import Plan
from gswgan.privacy.events import Sampled, gaussian_of
from gswgan.privacy.ledger import MAX_LEDGER_BYTES, read_ledger
from gswgan.privacy.storage import read_file, whole_lines
from gswgan.run.folder import read_json
from gswgan.run.publish import TOLERANCE


class OwnLedger:
    """The answers that a site has recorded for the plan of a release, before it sent them."""

    def __init__(self, place: Path, public: Path, plan: Plan) -> None:
        """`place`: the site's ledger.jsonl, or the state folder that has it. `public`: the release's own ledger."""
        if not plan.critic.can_stream and not is_refined(plan):
            raise FederationError("release", plan.preset, "a release of preset kernel or refined")
        self.plan, self.context = plan, str(read_ledger(public)[0]["context"])
        self.path, home = _find(place, self.context)
        raw = read_file(self.path, MAX_LEDGER_BYTES) if self.path.exists() else b""
        whole = whole_lines(raw)
        self.is_torn = len(whole) < len(raw)  # the site died while it wrote a line: nothing of that answer was sent
        self.header, self.entries, _ = read_ledger(self.path, torn=True) if whole else ({}, [], "")
        known = home / "client.json"
        self.name = str(read_json(known, "client.json")["client"]) if known.exists() else ""

    @property
    def epsilon(self) -> float:
        """Of all that it has recorded for the plan, at the plan's delta and under its relation."""
        cost, again = self.plan.cost, [entry.event for entry in self.entries if entry.attempt]
        first = [entry.event for entry in self.entries if not entry.attempt]
        return spent_with_repeats(first, again, neighbours=cost.neighbours, delta=cost.delta)

    def disagreements(self, statement: Mapping[str, Any]) -> Iterator[str]:
        """What the site's ledger and the statement say differently, a sentence each."""
        cost = self.plan.cost
        if self.header and self.header["context"] != self.context:
            yield f"this ledger is of another plan: {short(str(self.header['context']), 16)}"
            return
        yield from self._unplanned()
        stated = float(statement["epsilon"])
        if self.epsilon > stated * (1 + TOLERANCE):
            yield (
                f"this site has recorded {len(self.entries)} answers, epsilon {self.epsilon:.4g} at delta "
                f"{cost.delta:g}; the statement says {stated:.4g}"
            )
        if self.plan.facts.silos is None:
            return
        counts = self.name in statement["sites"]["answered"]
        if counts and not self.entries:
            yield f"the statement counts an answer of {self.name}, and this site has recorded none"
        if self.name and not counts and self.entries:
            yield f"the statement does not count {self.name}, and this site has recorded {len(self.entries)} answers"

    def _unplanned(self) -> Iterator[str]:
        """Lines that the plan does not have; with preset refined also steps that came twice."""
        planned = gaussian_of(first_sums(self.plan).event)
        for entry in self.entries:
            known = entry.event == self.plan.sums.event and entry.name.startswith("step ")
            if is_refined(self.plan) and known:
                continue
            if isinstance(entry.event, Sampled) or in_relation(entry.event, planned.neighbours) != planned:
                yield f"line {entry.name!r} is not the release that the plan says"

    def describe(self) -> str:
        """What agrees."""
        cost = self.plan.cost
        how = {"zeroed": "zeroed", "replace-one": "replaced"}[cost.neighbours]
        return (
            f"site:      {self.name or self.path}: answers recorded for this plan: {len(self.entries)}, epsilon "
            f"{self.epsilon:.4g} at delta {cost.delta:g} (one {cost.unit} {how}), as the statement says"
        )


def _find(place: Path, context: str) -> tuple[Path, Path]:
    """The ledger of this plan, the file itself or in a site's state folder, and the folder of that site.

    There is no such file where the site has not answered the plan.
    """
    if place.is_file():
        return place, place.parent.parent
    homes = [path.parent for path in sorted(place.glob("**/client.json"))] if place.is_dir() else []
    found = [home for home in homes if (home / context[:32] / "ledger.jsonl").exists()] or homes
    if len(found) != 1:
        expected = f"a site's ledger.jsonl, or the state folder of one site{path_problem(place)}"
        raise FederationError("site", f"{place}, of {len(found)} sites", expected, "Check the path.")
    return found[0] / context[:32] / "ledger.jsonl", found[0]
