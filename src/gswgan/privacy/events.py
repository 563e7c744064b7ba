"""Events: descriptions of answers as frozen data. Nothing here draws noise or computes a cost.

A `Gaussian` has the standard deviation of its noise and the L2 sensitivity of the sum, under the neighbouring relation
that it names. A `Laplace` has its scale, the number of values that can move and by how much. Sampling wraps a Gaussian;
`Repeated` and `Composed` wrap any event.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from gswgan.privacy.errors import PrivacyError

Neighbours: TypeAlias = Literal["replace-one", "zeroed"]
"""replace-one: the content of one unit is exchanged (n is public); zeroed: its contribution becomes 0."""

Sampling: TypeAlias = Literal["poisson", "all", "one"]
"""Who contributes to an answer: each independently at a rate; all; exactly one, drawn uniformly."""


def _check(name: str, value: object, ok: bool, expected: str) -> None:
    if not ok:
        raise PrivacyError(name, value, expected)


def _check_whole(name: str, value: int, least: int) -> None:
    _check(name, value, type(value) is int and value >= least, f"a whole number of at least {least}")


def check_neighbours(neighbours: str) -> Neighbours:
    """Return the relation if it is a known one."""
    for known in get_args(Neighbours):
        if neighbours == known:
            return known  # type: ignore[no-any-return]
    raise PrivacyError("neighbours", neighbours, "one of " + ", ".join(get_args(Neighbours)))


@dataclass(frozen=True, kw_only=True)
class Contribution:
    """The largest contribution of one protected unit to a sum.

    It has at most `rows` rows, each of L2 norm at most `clip_norm`, each in another slot of the sum. With `counts` (one
    row only) the slot's count also grows by one, and the count has the weight `clip_norm`.
    """

    clip_norm: float
    rows: int = 1
    counts: bool = False

    def __post_init__(self) -> None:
        _check("clip_norm", self.clip_norm, 0 < self.clip_norm < math.inf, "a positive finite number")
        _check_whole("rows", self.rows, 1)
        if self.counts and self.rows != 1:
            raise PrivacyError("rows", self.rows, "1 when counts are released with the sums")

    def sensitivity(self, neighbours: Neighbours) -> float:
        """Return the largest L2 distance between two sums when one unit is replaced or zeroed.

        Without counts the contribution lies in a ball of radius r = clip_norm sqrt(rows): r when zeroed, 2r
        when replaced. With counts it is u = (x, clip_norm) with |x| <= clip_norm, of norm at most
        sqrt(2) clip_norm when zeroed; two of them have inner product >= 0 in one slot and = 0 in two, so
        replacing moves at most sqrt(2) sqrt(2) clip_norm = 2 clip_norm.
        """
        radius = self.clip_norm * math.sqrt(self.rows)
        if check_neighbours(neighbours) == "replace-one":
            return 2 * radius
        return math.sqrt(2) * radius if self.counts else radius


@dataclass(frozen=True, kw_only=True)
class Gaussian:
    """One answer with a sum of the given sensitivity and N(0, noise_std^2) on every coordinate."""

    noise_std: float
    sensitivity: float
    neighbours: Neighbours = "replace-one"

    def __post_init__(self) -> None:
        _check("noise_std", self.noise_std, 0 < self.noise_std < math.inf, "a positive finite number")
        _check("sensitivity", self.sensitivity, 0 < self.sensitivity < math.inf, "a positive finite number")
        check_neighbours(self.neighbours)

    @property
    def mu(self) -> float:
        """The parameter of Gaussian differential privacy: sensitivity over noise."""
        return self.sensitivity / self.noise_std

    @property
    def noise_multiplier(self) -> float:
        """noise_std over the L2 bound of one contribution (half of the replace-one sensitivity)."""
        return self.noise_std / (self.sensitivity / 2 if self.neighbours == "replace-one" else self.sensitivity)


@dataclass(frozen=True, kw_only=True)
class Laplace:
    """One answer with Laplace noise of this scale: a unit moves at most `values` values by at most `sensitivity`.

    The values have independent noise, so their pairs compose. A single value of sensitivity s also covers any vector
    of L1 sensitivity s: go from one vector to the other one coordinate at a time; each move raises the power of a test
    by no more than the same shift of one Laplace does (half-lines are the best tests of log-concave noise), and these
    shifts add up to s.
    """

    scale: float
    sensitivity: float
    values: int = 1
    neighbours: Neighbours = "replace-one"

    def __post_init__(self) -> None:
        _check("scale", self.scale, 0 < self.scale < math.inf, "a positive finite number")
        _check("sensitivity", self.sensitivity, 0 < self.sensitivity < math.inf, "a positive finite number")
        _check_whole("values", self.values, 1)
        check_neighbours(self.neighbours)

    @property
    def pure_epsilon(self) -> float:
        """The epsilon at delta = 0: the L1 sensitivity over the scale."""
        return self.values * self.sensitivity / self.scale


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """A Gaussian sum to which each unit contributes independently with probability `rate`, by a secret coin."""

    rate: float
    event: Gaussian

    def __post_init__(self) -> None:
        _check("rate", self.rate, 0 < self.rate <= 1, "a number in (0, 1]")
        _check("event", self.event, isinstance(self.event, Gaussian), "a Gaussian: compose first, sample after")


@dataclass(frozen=True, kw_only=True)
class DrawnOne:
    """The paper's draw of exactly one of `count` contributors, uniformly. The guarantee treats the draw as visible."""

    count: int
    event: Gaussian

    def __post_init__(self) -> None:
        _check_whole("count", self.count, 1)
        _check("event", self.event, isinstance(self.event, Gaussian), "a Gaussian: compose first, draw after")


@dataclass(frozen=True, kw_only=True)
class Repeated:
    """The same event, `times` times, each with fresh noise."""

    event: Event
    times: int

    def __post_init__(self) -> None:
        _check_whole("times", self.times, 0)


@dataclass(frozen=True, kw_only=True)
class Composed:
    """Several events. Later queries may depend on earlier answers, but not the kinds and the number of the events."""

    events: tuple[Event, ...]


BaseEvent: TypeAlias = Gaussian | Laplace | Sampled | DrawnOne
Event: TypeAlias = BaseEvent | Repeated | Composed

_KINDS: dict[str, type[Event]] = {
    "gaussian": Gaussian,
    "laplace": Laplace,
    "sampled": Sampled,
    "drawn-one": DrawnOne,
    "repeated": Repeated,
    "composed": Composed,
}


def unsampled(event: BaseEvent) -> Gaussian | Laplace:
    """Return the event without its sampling: its cost when everybody knows who contributed."""
    return event.event if isinstance(event, Sampled | DrawnOne) else event


def gaussian_of(event: BaseEvent) -> Gaussian:
    """Return the Gaussian inside a single event."""
    inner = unsampled(event)
    if not isinstance(inner, Gaussian):
        raise PrivacyError("event", type(inner).__name__, "a Gaussian event")
    return inner


def sampling_of(event: Event) -> Sampling:
    """Return who contributes to the answers of an event."""
    kinds = {type(single) for single in tally(event)}
    return "one" if DrawnOne in kinds else "poisson" if Sampled in kinds else "all"


def describe_event(event: BaseEvent) -> str:
    """Describe a single event on one line."""
    inner = unsampled(event)
    if isinstance(inner, Laplace):
        words = f"Laplace, scale {inner.scale:.5g}, sensitivity {inner.sensitivity:.5g} in {inner.values} values"
    else:
        words = f"Gaussian, noise std {inner.noise_std:.5g}, sensitivity {inner.sensitivity:.5g}"
    if isinstance(event, Sampled):
        return f"{words}, sampling poisson at rate {event.rate:.5g}"
    return f"{words}, sampling one of {event.count}" if isinstance(event, DrawnOne) else f"{words}, sampling all"


def flatten(event: Event, times: int = 1) -> Iterator[tuple[BaseEvent, int]]:
    """Yield the single events with the number of their repetitions."""
    if isinstance(event, Repeated):
        yield from flatten(event.event, times * event.times)
    elif isinstance(event, Composed):
        for part in event.events:
            yield from flatten(part, times)
    elif times > 0:
        yield event, times


def tally(event: Event) -> dict[BaseEvent, int]:
    """Return the distinct single events with their counts, in the order of first appearance."""
    counts: dict[BaseEvent, int] = {}
    for single, times in flatten(event):
        counts[single] = counts.get(single, 0) + times
    return counts


def to_json(event: Event) -> dict[str, Any]:
    """Return the event as plain data for a ledger or a plan."""
    if isinstance(event, Composed):
        return {"kind": "composed", "events": [to_json(part) for part in event.events]}
    kind = next(name for name, cls in _KINDS.items() if isinstance(event, cls))
    if isinstance(event, Gaussian | Laplace):
        return {"kind": kind, **vars(event)}
    inner = {"event": to_json(event.event)}
    return {"kind": kind, **{k: v for k, v in vars(event).items() if k != "event"}, **inner}


def from_json(data: Mapping[str, Any]) -> Event:
    """Return the event of data made by `to_json`; refuse anything else."""
    kind = data.get("kind") if isinstance(data, Mapping) else None
    if kind not in _KINDS:
        raise PrivacyError("event kind", kind, "one of " + ", ".join(_KINDS))
    fields = {k: v for k, v in data.items() if k != "kind"}
    try:
        if "event" in fields:
            fields["event"] = from_json(fields["event"])
        if "events" in fields:
            fields["events"] = tuple(from_json(part) for part in fields["events"])
        return _KINDS[kind](**fields)
    except (TypeError, AttributeError) as wrong:
        raise PrivacyError(f"{kind} event", dict(data), "the fields of that event") from wrong
