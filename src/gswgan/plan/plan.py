"""The plan: everything a run will do, resolved before it starts from public facts alone.

A plan can be printed, saved and run elsewhere (without dp-accounting). Its digest names the run: key and ledger
are bound to it, so one key can never serve two plans. A saved plan carries it: a damaged or edited one is refused.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gswgan.data import ImageData, ImageStream
from gswgan.errors import PlanError, RunError, StorageError, short
from gswgan.generators import GeneratorSettings
from gswgan.generators.generator import OptimizerSettings
from gswgan.plan.settings import check_delta, check_ranges, from_plain, to_plain
from gswgan.privacy import Accountant, Contribution, DrawnOne, Event, Gaussian, PrivacyCost, Repeated, Sampled
from gswgan.privacy.claims import Claim
from gswgan.privacy.events import BaseEvent, Neighbours, Sampling, sampling_of, tally, unsampled
from gswgan.privacy.storage import named_by_user, read_file, write_durably

if TYPE_CHECKING:
    from gswgan.methods.method import Method

FORMAT_VERSION = 5

MAX_NAMED = 20
"""Classes that a text names."""

INSECURE = "made with --insecure-reproducible: the noise can be recomputed from the seed, so there is NO guarantee"

INVENTED = "An invented client is a group of records that a simulation made up: no person, and no holder of data."

_EARLIER = (
    "An earlier version of gswgan made this plan or run: use it with that version, or start anew. Nothing was changed."
)
_AGAIN = "Copy it again, or make a new one with `gswgan train --save-plan PLAN`."


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is public about the data before anything is released."""

    data: str
    records: int
    persons: int | None
    classes: int
    class_names: tuple[str, ...]
    labelled: bool
    image_size: int
    channels: int

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.channels == 2 or len(self.class_names) != self.classes or (self.classes > 1 and not self.labelled):
            found = (self.channels, self.classes, len(self.class_names), self.labelled)
            raise PlanError("facts", found, "1 or 3 channels, a name for each class, one class without labels")
        if not all(name.isprintable() for name in (self.data, *self.class_names)):
            raise PlanError("facts", "a name that cannot be printed", "names of printable characters")
        if self.persons is not None and self.persons > self.records:
            raise PlanError("persons", self.persons, f"at most the number of records, {self.records}")

    @classmethod
    def of(cls, data: ImageData | ImageStream) -> Facts:
        """The facts of a data set: sizes and names, never content."""
        return cls(
            data=data.name,
            records=data.public_records,
            persons=None if data.persons is None else data.number_of_persons,
            classes=data.classes,
            class_names=data.class_names,
            labelled=data.labelled,
            image_size=data.image_size,
            channels=data.channels,
        )

    @property
    def size(self) -> str:
        """How much data, in words: of persons alone where each counts as one record (all that a federation knows)."""
        records = f"{self.records:,} record" + "s" * (self.records != 1)
        if self.persons is None:
            return records
        persons = f"{self.persons:,} person" + "s" * (self.persons != 1)
        return persons if self.persons == self.records else f"{records} of {persons}"

    @property
    def names(self) -> str:
        """The first class names, in words; all of them are in the plan."""
        more = f" and {self.classes - MAX_NAMED:,} more" if self.classes > MAX_NAMED else ""
        return ", ".join(self.class_names[:MAX_NAMED]) + more

    @property
    def pixels(self) -> int:
        """Numbers in one image."""
        return self.channels * self.image_size**2


@dataclass(frozen=True, kw_only=True)
class PrivacySettings:
    """Everything that the guarantee of noisy sums depends on, and nothing else."""

    delta: float
    noise_std: float
    clip_norm: float
    rows: int = 1
    counts: bool = False
    releases: int = 1
    sampling: Sampling = "all"
    rate: float = 1.0
    shards: int | None = None
    neighbours: Neighbours = "replace-one"
    unit: Literal["record", "person", "invented client"] = "record"
    observer: Literal["public", "server"] = "public"

    def __post_init__(self) -> None:
        check_ranges(self)
        check_delta(self.delta)
        if self.sampling == "one" and self.shards is None:
            raise PlanError("shards", None, "a number of shards to draw one from")
        _ = self.event  # made once: noise, bound and rate are checked by what they are used for

    @property
    def contribution(self) -> Contribution:
        """The most that one critic, record or person adds to a release."""
        return Contribution(clip_norm=self.clip_norm, rows=self.rows, counts=self.counts)

    @property
    def event(self) -> BaseEvent:
        """One release."""
        sensitivity = self.contribution.sensitivity(self.neighbours)
        gaussian = Gaussian(noise_std=self.noise_std, sensitivity=sensitivity, neighbours=self.neighbours)
        if self.sampling == "one":
            return DrawnOne(count=self.shards or 1, event=gaussian)
        return Sampled(rate=self.rate, event=gaussian) if self.sampling == "poisson" else gaussian

    def total(self, releases: int | None = None) -> Event:
        """The whole run, or its first `releases`."""
        return Repeated(event=self.event, times=self.releases if releases is None else releases)


@dataclass(frozen=True, kw_only=True)
class LowerBound:
    """What no analysis of a run can prove less than. Not a guarantee."""

    epsilon: float
    delta: float
    neighbours: Neighbours
    observer: str


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """The loop. Not private: every generator step is post-processing."""

    steps: int
    batch_size: int
    feature_blocks: int = 1  # kernel: the features are used a block at a time
    memory: float = 0.0  # kernel: of the fakes' mean embedding, from step to step
    smoothing: float = 0.0  # kernel: of the answers, in pixels
    mixed_precision: bool = False

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A run before its cost is stated: what its method makes of the public facts."""

    method: str
    preset: str
    facts: Facts
    critic: Any  # settings of the method's own type
    generator: GeneratorSettings
    optimizer: OptimizerSettings
    training: TrainingSettings
    privacy: PrivacySettings | None = None  # GS-WGAN and DP-MERF; the others have all in `critic`

    @property
    def recipe(self) -> Method:
        """The method that it is a run of."""
        from gswgan.methods import find_method  # methods are made of what is above

        return find_method(self.method)

    @property
    def size(self) -> str:
        """How much data, in words."""
        invented = self.privacy is not None and self.privacy.unit == "invented client"
        return self.facts.size.replace("person", "invented client") if invented else self.facts.size

    def total(self, steps: int | None = None) -> Event | None:
        """What the first `steps` steps release at the most (without it: the whole run); None: nothing is sanitized."""
        return self.recipe.total(self, self.training.steps if steps is None else steps)

    def releases(self) -> dict[BaseEvent, int]:
        """The kinds of releases of the whole run, with how many there are of each; empty without a guarantee."""
        total = self.total()
        return {} if total is None else tally(total)


@dataclass(frozen=True, kw_only=True)
class Plan(Draft):
    """A run, before it runs."""

    guarantee: PrivacyCost | None  # None: the method has none
    claimed: Claim | None = None
    lower_bound: LowerBound | None = None
    curve: tuple[tuple[int, float], ...] = ()  # (steps done, epsilon spent)
    seed: int = 0
    insecure_reproducible: bool = False
    source: str | None = None  # the ledger head of the run whose embedding is used again

    def __post_init__(self) -> None:
        check_ranges(self)
        self.recipe.check(self)
        total = self.total()
        if total is None or self.guarantee is None:
            if total is not None or self.guarantee is not None:
                raise PlanError("guarantee", self.guarantee, f"one exactly where the method has one ({self.method})")
            return
        check_delta(self.guarantee.delta)
        unit = "record" if self.facts.persons is None else "person" if self.privacy is None else self.privacy.unit
        neighbours = unsampled(next(iter(tally(total)))).neighbours
        stated = (self.guarantee.neighbours, self.guarantee.unit, self.guarantee.sampling, self.guarantee.accountant)
        ruled = (neighbours, unit, sampling_of(total), Accountant(neighbours).method(total))
        if stated != ruled:
            what = "neighbours, unit, sampling and accountant of what is released"
            raise PlanError("guarantee", stated, f"{ruled}: {what}")

    @property
    def void(self) -> str | None:
        """Why the run has no guarantee, where it has none."""
        return self.recipe.void or (INSECURE if self.insecure_reproducible else None)

    def digest(self) -> str:
        """The name of this plan: equal plans have equal digests, whether a number was written 1 or 1.0."""
        plain = to_plain(Plan.from_table(to_plain(self)))
        return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()

    def fits(self, facts: Facts) -> bool:
        """Whether data with these facts is what was planned for; its name may differ."""
        return dataclasses.replace(facts, data=self.facts.data, class_names=self.facts.class_names) == self.facts

    def epsilon_after(self, steps: int) -> float | None:
        """Epsilon spent after so many steps, read from the curve, rounded up to its next point."""
        whole = None if self.guarantee is None else self.guarantee.epsilon
        if not self.curve or self.source is not None:
            return whole
        return next((epsilon for done, epsilon in self.curve if done >= steps), whole)

    def to_json(self) -> dict[str, Any]:
        """Plain data with its format version and its digest."""
        return {"format_version": FORMAT_VERSION, "digest": self.digest(), **to_plain(self)}

    def save(self, path: Path) -> None:
        """Write the plan as JSON."""
        try:
            write_durably(named_by_user(path), (json.dumps(self.to_json(), indent=1) + "\n").encode())
        except OSError as wrong:
            expected = f"a place that can be written ({wrong.strerror})"
            raise RunError("plan", str(path), expected, "Choose another --save-plan.") from wrong

    @classmethod
    def from_json(cls, data: object) -> Plan:
        """Read a plan back; PlanError names what is wrong with it."""
        if not isinstance(data, dict) or data.get("format_version") != FORMAT_VERSION:
            found = data.get("format_version") if isinstance(data, dict) else data
            earlier = type(found) is int and 0 < found < FORMAT_VERSION
            raise PlanError("plan.format_version", short(found), str(FORMAT_VERSION), _EARLIER if earlier else _AGAIN)
        plan = cls.from_table({key: value for key, value in data.items() if key not in ("format_version", "digest")})
        if data.get("digest") != plan.digest():
            raise PlanError(
                "plan.digest", short(data.get("digest"), 12), f"{plan.digest()[:12]}..., as its content has",
                f"It was damaged or edited. {_AGAIN}",
            )  # fmt: skip
        return plan

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> Plan:
        """From plain data; the method says of which type the critic's settings are."""
        from gswgan.methods import find_method

        return from_plain(cls, table, hints={"critic": find_method(table.get("method")).settings})

    @classmethod
    def load(cls, path: Path) -> Plan:
        """Read a saved plan."""
        try:
            content = json.loads(read_file(path, follow_link=True))
        except StorageError:
            raise
        except (OSError, ValueError, RecursionError) as wrong:
            what = wrong.strerror if isinstance(wrong, OSError) else "no JSON"
            raise PlanError("plan", f"{path}: {what}", "a plan saved by `gswgan train --save-plan`", _AGAIN) from wrong
        return cls.from_json(content)
