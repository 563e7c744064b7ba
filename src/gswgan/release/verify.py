"""`gswgan verify`: what anybody can check of a bundle, with no private file.

Checks go from the outside in, and stop at the first stage that finds something: which files there are, their sizes and
checksums, the plan, the ledger against the plan, epsilon from the ledger, and last whether weights, embedding, picture
and card are what plan and ledger say. Whoever rebuilds everything consistently is found only by a digest that was
published elsewhere: the manifest's, which stands for every byte, or the ledger's head, for plan and releases.

`verdict.UNSEEN` lists what no verifier can see.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import math
import os
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

from gswgan.errors import GswganError, RunError, path_problem, short
from gswgan.federated.silo_statement import answered_of, rounds_answered
from gswgan.federated.statement import observers
from gswgan.methods import read_plan
from gswgan.plan.plan import Plan
from gswgan.privacy import PrivacyCost
from gswgan.privacy.events import tally, to_json, unsampled
from gswgan.privacy.filter import epsilon_with_repeats
from gswgan.privacy.ledger import Entry, compose, read_ledger
from gswgan.release.contents import wrong_contents
from gswgan.release.embedding import expected_embedding, expected_encoder
from gswgan.release.files import (
    ALWAYS,
    MAX_BYTES,
    MAX_LINE_BYTES,
    PAGE,
    SAMPLES,
    SOMETIMES,
    checksum,
    plain_size,
    read_plain,
)
from gswgan.release.page import can_make_page, page_of
from gswgan.release.samples import describe_samples, wrong_samples
from gswgan.release.verdict import Finding, Verdict
from gswgan.run.folder import MANIFEST, RunFolder, find_release
from gswgan.run.publish import TOLERANCE, encoder_digest, not_recomputed, privacy_statement

_EDITED = "It was damaged or edited after it was packed: get the bundle again."
_FORGED = "The files contradict each other, so at least one is not what the run wrote: do not rely on the guarantee."
_UNREADABLE = "It was damaged or edited, and nothing that rests on it holds: get the bundle again."
_UNSOUND = (GswganError, ArithmeticError, ValueError, TypeError, KeyError, RecursionError, MemoryError, OSError)
_LINE = {"index", "name", "attempt", "event", "previous", "digest"}
_HEADER = {"index", "format_version", "observer", "context", "previous", "digest"}


def verify(path: Path, digest: str | None = None, *, plan: Plan | None = None) -> Verdict:
    """Check a bundle, and that it is the one of this digest; `plan`: its plan, where the caller has parsed it."""
    if plain_size(path / MANIFEST) is None:
        expected = f"a bundle with its {MANIFEST}{path_problem(path)}"
        raise RunError("folder", str(path), expected, "`gswgan release RUN` packs one.")
    if importlib.util.find_spec("dp_accounting") is None:
        raise RunError("dp-accounting", None, "an accountant to compute epsilon with", "pip install dp-accounting")
    return _Verifier(path, digest, plan).verdict()


class _Verifier:
    """The checks of one bundle. Each may use what the checks before it have found to be sound."""

    def __init__(self, path: Path, expected: str | None, plan: Plan | None) -> None:
        self.path, self.expected, self._parsed = path, expected, plan
        self.folder: RunFolder
        self.plan: Plan
        self.entries: list[Entry]
        self.statement: dict[str, Any]
        self.cost: PrivacyCost
        self.labels: Any
        self.manifest: dict[str, Any]
        self.digest = self.head = ""

    def verdict(self) -> Verdict:
        """The findings of the first check that has any."""
        checks: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
            (MANIFEST, self.check_files), ("model.json", self.check_plan), ("ledger.jsonl", self.check_ledger),
            (MANIFEST, self.check_digest), ("privacy.json", self.check_guarantee), ("bundle", self.check_contents),
            (SAMPLES, self.check_samples),
        ]  # fmt: skip
        for where, check in checks:
            try:
                findings = tuple(check())
            except _UNSOUND as wrong:
                findings = (Finding(where=where, what=f"cannot be read: {wrong}".removesuffix("."), means=_UNREADABLE),)
            if findings:
                return Verdict(findings=findings)
        repeated = sum(entry.attempt > 0 for entry in self.entries)
        return Verdict(
            findings=(), digest=self.digest, head=self.head, plan=self.plan, cost=self.cost, statement=self.statement,
            releases=len(self.entries), repeated=repeated, page=self.describe_page(),
            samples=describe_samples(self.manifest["samples"]) if SAMPLES in self.manifest["files"] else "",
        )  # fmt: skip

    def check_files(self) -> Iterator[Finding]:
        """Only plain files that belong there, all of them, with the manifest's checksums."""
        found = set()
        for name in sorted(os.listdir(self.path)):
            size = plain_size(self.path / name)
            if size is None:
                yield Finding(where=name, what="is not a plain file", means=_smuggled("It may lead anywhere"))
            elif name not in MAX_BYTES:
                yield Finding(where=name, what="is no file of a release", means=_smuggled("It may hold anything"))
            elif size > MAX_BYTES[name]:
                what = f"has {size:,} bytes, where no release has more than {MAX_BYTES[name]:,}"
                yield Finding(where=name, what=what, means=_smuggled("It may hold anything"))
            else:
                found.add(name)
        if MANIFEST not in found:
            return
        self.manifest = yield from self._canonical(MANIFEST)
        listed = self.manifest.get("files")
        keys = {"format_version", "plan", "ledger_head", "files"}
        if not isinstance(listed, dict) or set(self.manifest) != keys | ({"samples"} if SAMPLES in listed else set()):
            yield Finding(where=MANIFEST, what="is not a manifest", means=_EDITED)
            return
        for name in sorted({*ALWAYS, *listed} - found):
            yield Finding(where=name, what="is missing", means="The bundle is not whole: get it again.")
        for name in sorted(found - {*listed, MANIFEST}):
            yield Finding(where=name, what="is not in the manifest", means=_smuggled("It came in later"))
        for name in sorted(found & set(listed)):
            if checksum(self.path / name) != listed[name]:
                yield Finding(where=name, what="has another checksum than in the manifest", means=_EDITED)
        self.digest = checksum(self.path / MANIFEST)

    def check_plan(self) -> Iterator[Finding]:
        """A plan that is whole, has a guarantee, and is the manifest's."""
        model = yield from self._canonical("model.json")
        self.folder = find_release(self.path)
        # A plan that was edited has another digest and is refused; one that was parsed before must be this one.
        self.plan = read_plan(model.get("plan")) if self._parsed is None else self._parsed
        self.labels = model.get("labels")
        written = {"format_version": 1, "method": self.plan.method, "labels": self.labels, "plan": self.plan.to_json()}
        if json.dumps(model) != json.dumps(written):  # in this order, every number as it is read
            yield Finding(where="model.json", what="does not hold just method, labels and plan", means=_FORGED)
        if self.plan.void is not None or self.plan.guarantee is None:
            yield Finding(where="model.json", what=f"was {self.plan.void}", means="There is NO guarantee.")
        if self.manifest["plan"] != self.plan.digest():
            yield Finding(where="model.json", what="is not the plan that the manifest names", means=_FORGED)
        needed = set() if expected_embedding(self.plan) is None else {"embedding.safetensors"}
        needed |= {"encoder.safetensors"} if expected_encoder(self.plan) is not None else set()
        needed |= {"federation.json"} if _is_federated(self.plan) and self.plan.source is None else set()
        first = {"first_generator.safetensors"}  # earlier versions did not publish it
        needed |= first & set(self.manifest["files"]) if self.plan.critic.first_generator is not None else set()
        for name in SOMETIMES:
            if (name in needed) != (name in self.manifest["files"]):
                what = "is missing, and the plan has one" if name in needed else "is there, and the plan has none"
                yield Finding(where=name, what=what, means=_FORGED)

    def check_ledger(self) -> Iterator[Finding]:
        """An unbroken chain of this plan's releases: all of them, no others, repeated ones at their full cost."""
        where, plan = "ledger.jsonl", self.plan
        lines = 100 + 2 * sum(plan.releases().values())  # room for releases that were repeated after a stop
        text = read_plain(self.folder.ledger, lines * MAX_LINE_BYTES)
        header, self.entries, self.head = read_ledger(self.folder.ledger)
        rows = [json.loads(line) for line in text.decode().split("\n")[:-1]]
        forms = {event: to_json(event) for known in plan.releases() for event in (known, unsampled(known))}
        again = [{**row, "event": forms.get(entry.event)} for row, entry in zip(rows[1:], self.entries)]
        written = "".join(json.dumps(row, sort_keys=True) + "\n" for row in rows[:1] + again)
        if written.encode() != text or any(row.keys() != (_LINE if row["index"] else _HEADER) for row in rows):
            yield Finding(where=where, what="holds more than the lines of a ledger", means=_FORGED)
        mine = header["context"] == plan.digest() if plan.source is None else self.head == plan.source
        if not mine:
            yield Finding(where=where, what="is the ledger of another plan than model.json's", means=_FORGED)
        assert plan.guarantee is not None
        if header["observer"] != plan.guarantee.observer:
            yield Finding(where=where, what=f"is for observer {short(header['observer'])}", means=_FORGED)
        if self.manifest["ledger_head"] != self.head:
            yield Finding(where=where, what="ends in another digest than the manifest names", means=_FORGED)
        first = {entry.name: entry.event for entry in self.entries if entry.attempt == 0}
        found, planned = tally(compose(entry for entry in self.entries if entry.attempt == 0)), plan.releases()
        if found != planned or len(first) != sum(found.values()):
            what = f"has {sum(found.values())} releases of {len(found)} kind(s) under {len(first)} names, not the "
            what += f"{sum(planned.values())} of {len(planned)} kind(s) that the plan says"
            yield Finding(where=where, what=what, means="Releases are missing, added or changed: epsilon is not known.")
        attempts: dict[str, int] = {}
        for entry in self.entries:
            before = attempts.get(entry.name, -1)
            if entry.attempt != before + 1 or (entry.attempt and entry.event != unsampled(first[entry.name])):
                what = f"has attempt {entry.attempt} of {short(entry.name)!r} after {before}, or at another cost"
                yield Finding(where=where, what=what, means=_FORGED)
                return
            attempts[entry.name] = entry.attempt

    def check_digest(self) -> Iterator[Finding]:
        """The digest that was published elsewhere."""
        if self.expected is not None and self.expected not in (self.digest, self.head):
            yield Finding(
                where=MANIFEST,
                what=f"has digest {self.digest}, its ledger {self.head}, not {short(self.expected, 64)}",
                means="This is not the bundle that was published: it was replaced or rebuilt, however sound it looks.",
            )

    def check_guarantee(self) -> Iterator[Finding]:
        """Epsilon computed from the ledger is what privacy.json states, with everything it means nothing without."""
        planned, found = self.plan.guarantee, tally(compose(self.entries))
        assert planned is not None
        epsilon = epsilon_with_repeats(self.plan.releases(), found, planned.delta, planned.neighbours)
        self.cost = dataclasses.replace(planned, epsilon=max(epsilon, planned.epsilon))
        if planned.epsilon > epsilon * (1 + TOLERANCE):
            what = f"plans epsilon {planned.epsilon:.6g}, where its ledger costs {epsilon:.6g}"
            yield Finding(where="model.json", what=what, means=_FORGED)
        self.statement = yield from self._canonical("privacy.json")
        written = not_recomputed(self.cost)  # it is recomputed here
        written = written if self.statement.get("accountant") == written.accountant else self.cost
        expected = {"format_version": 1, **privacy_statement(self.plan, written, encoder_digest(self.folder))}
        if _is_federated(self.plan):
            whole = dataclasses.replace(self.plan, source=None)
            answered = [] if self.plan.facts.silos is None else answered_of(self.statement, whole)
            rounds = [] if self.plan.facts.silos is None else rounds_answered(self.statement, whole)
            both = observers(whole, [entry.event for entry in self.entries], answered, rounds)
            expected |= both
            if self.plan.source is None:
                stated = yield from self._canonical("federation.json")
                yield from _differences("federation.json", {"format_version": 1, **both}, stated)
        yield from _differences("privacy.json", expected, self.statement)

    def check_contents(self) -> Iterator[Finding]:
        """Weights, embedding, picture and card are what plan and ledger say."""
        yield from wrong_contents(self.folder, self.plan, self.statement, self.labels)

    def check_samples(self) -> Iterator[Finding]:
        """The set of images, where there is one: some of them are drawn again."""
        if SAMPLES in self.manifest["files"]:
            yield from wrong_samples(self.folder, self.manifest["samples"])

    def describe_page(self) -> str:
        """What is known of the page: whether this version makes the same one. Its words are not checked otherwise."""
        if PAGE not in self.manifest["files"]:
            return ""
        if not can_make_page():
            return "NOT CHECKED (jinja2 and matplotlib, which make it again, are not here): it may say anything"
        if page_of(self.path) != read_plain(self.path / PAGE):
            return "NOT THE PAGE that this version makes of the bundle: other versions, or edited; it may say anything"
        return "as this version makes it of the bundle"

    def _canonical(self, name: str) -> Generator[Finding, None, dict[str, Any]]:
        """A JSON file exactly as we write it: nothing between the lines, no key twice."""
        text = read_plain(self.path / name)
        content = json.loads(text)
        if not isinstance(content, dict) or content.get("format_version") != 1:
            raise RunError("file", name, f"the {name} of a bundle, with format_version 1")
        if text != (json.dumps(content, indent=1) + "\n").encode():
            yield Finding(where=name, what="is not written as gswgan writes it", means=_EDITED)
        return content


def _is_federated(plan: Plan) -> bool:
    """Whether clients answered, in one round or in many: such a run has observers of its own."""
    if plan.privacy is None:
        return False
    by_clients = plan.facts.persons is not None and plan.privacy.neighbours == "zeroed"
    return plan.privacy.observer == "server" or plan.facts.silos is not None or by_clients


def _smuggled(why: str) -> str:
    return f"{why}, private data too: do not publish this folder, pack it again with `gswgan release`."


def _differences(where: str, expected: Any, found: Any, key: str = "") -> Iterator[Finding]:
    """Where a statement differs from what follows from plan and ledger; epsilons within the tolerance are equal."""
    if isinstance(expected, Mapping) and isinstance(found, Mapping) and list(expected) == list(found):
        for name in expected:
            yield from _differences(where, expected[name], found[name], f"{key}.{name}".lstrip("."))
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for index, pair in enumerate(zip(expected, found)):
            yield from _differences(where, *pair, f"{key}[{index}]")
    elif key.endswith("epsilon") and type(expected) is type(found) is float:
        if not math.isclose(expected, found, rel_tol=TOLERANCE):
            what = f"states {key} {found:.6g}, where plan and ledger give {expected:.6g}"
            yield Finding(where=where, what=what, means="The stated guarantee is not what the releases cost.")
    elif expected != found or type(expected) is not type(found) or isinstance(expected, Mapping):
        what = f"states {key or 'keys'} {short(found)!r}, where plan and ledger give {short(expected)!r}"
        yield Finding(where=where, what=what, means="The stated guarantee is not what the releases cost.")
