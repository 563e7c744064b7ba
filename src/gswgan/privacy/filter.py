"""A privacy filter: a budget for runs that are chosen after the results of earlier ones (docs/proof.md, section 8).

Composition by privacy-loss distributions holds for mechanisms that are fixed beforehand. For adaptively chosen ones two
rules are proven: the mu^2 of plain Gaussians add up to a bound that was fixed beforehand, and so do the epsilons and
the deltas of mechanisms of any kind.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gswgan.privacy.accountant import Accountant
from gswgan.privacy.events import BaseEvent, Composed, Event, Gaussian, Laplace, Repeated, Sampled, tally, unsampled

_ROUNDING = 1 + 1e-12
"""Tolerance for float64 sums of epsilons and deltas: ten times 1e-6 counts as 1e-5."""


def is_plain(event: Event) -> bool:
    """Return whether the event consists of Gaussians without sampling: only these add up by their mu^2."""
    return all(isinstance(one, Gaussian) or (isinstance(one, Sampled) and one.rate >= 1) for one in tally(event))


@dataclass(frozen=True, kw_only=True)
class Charge:
    """The cost of one event in a filter: its mu^2 in the Gaussian part, or an epsilon and a delta in the other part."""

    event: Event
    cost: tuple[float, float] | None
    """None where it counts by its mu^2."""


@dataclass(frozen=True, kw_only=True)
class Used:
    """What is spent of a filter: epsilon of the Gaussian part at its delta, and the sums of the other part."""

    plain: float
    epsilon: float
    delta: float


@dataclass(frozen=True, kw_only=True)
class Filter:
    """A budget for adaptively chosen events, in two parts that are fixed beforehand.

    `share` of epsilon and of delta is for events that count by an epsilon and a delta each; the rest is for plain
    Gaussians, whose mu^2 add up. Any adaptive choice within the two parts is (epsilon, delta)-private in total.
    """

    epsilon: float
    delta: float
    share: float
    neighbours: str

    def charge(self, event: Event, delta: float) -> Charge:
        """Return the cost of an event. Where it does not count by its mu^2, it costs its epsilon at `delta`."""
        if is_plain(event) and self.share < 1:
            return Charge(event=event, cost=None)
        if isinstance(event, Laplace):
            return Charge(event=event, cost=(event.pure_epsilon, 0.0))
        return Charge(event=event, cost=(Accountant(self.neighbours).epsilon(event, delta), delta))

    def used(self, charges: Iterable[Charge]) -> Used:
        """Return what these charges cost in total."""
        charges = tuple(charges)
        plain = tuple(charge.event for charge in charges if charge.cost is None)
        added = [charge.cost for charge in charges if charge.cost is not None]
        epsilon = Accountant(self.neighbours).epsilon(Composed(events=plain), self.plain_delta) if plain else 0.0
        return Used(plain=epsilon, epsilon=math.fsum(e for e, _ in added), delta=math.fsum(d for _, d in added))

    def has_room(self, used: Used) -> bool:
        """Return whether so much may be spent."""
        return (
            used.plain <= self.epsilon * (1 - self.share)
            and used.epsilon <= self.epsilon * self.share * _ROUNDING
            and used.delta <= self.delta * self.share * _ROUNDING
        )

    @property
    def plain_delta(self) -> float:
        """The delta of the Gaussian part."""
        return self.delta * (1 - self.share)

    def describe(self, used: Used) -> str:
        """Describe what is spent of each part."""
        share, rest = self.share, 1 - self.share
        plain = f"epsilon {used.plain:.4g} of {self.epsilon * rest:.4g} at delta {self.plain_delta:g}"
        added = f"epsilon {used.epsilon:.4g} of {self.epsilon * share:.4g} and delta {used.delta:.3g} of "
        added += f"{self.delta * share:g}"
        if 0 < share < 1:
            return f"plain Gaussian releases: {plain}; other runs: {added}"
        return added if share else plain


def with_repeats(planned: Mapping[BaseEvent, int], found: Mapping[BaseEvent, int]) -> tuple[Event, float]:
    """Return a fixed event that covers a run with repeated answers, and the share of delta to state its cost at.

    Whether an answer is repeated may depend on earlier answers. So the allowance for repeats comes in levels that are
    fixed beforehand: level k covers repeated Gaussians of 2^k times the smallest mu^2 of the plan in total, and 2^k
    repeats of each kind of Laplace event, and is stated at delta / 2^(k+1). Without repeats the share is 1.
    """
    events: list[Event] = [Repeated(event=event, times=times) for event, times in planned.items()]
    repeats = [(unsampled(event), max(0, times - planned.get(event, 0))) for event, times in found.items()]
    gaussian = sum(event.mu**2 * times for event, times in repeats if isinstance(event, Gaussian))
    laplace = max((times for event, times in repeats if isinstance(event, Laplace)), default=0)
    if gaussian == laplace == 0:
        return Composed(events=tuple(events)), 1.0
    kinds = dict.fromkeys(unsampled(event) for event in planned)
    smallest = min((kind.mu**2 for kind in kinds if isinstance(kind, Gaussian)), default=0.0)
    level = 0
    while gaussian > smallest * 2**level * (1 + 1e-9) or laplace > 2**level:
        level += 1
    for kind in kinds:
        if isinstance(kind, Laplace):
            events.append(Repeated(event=kind, times=2**level))
    if smallest > 0:
        relation = next(kind.neighbours for kind in kinds if isinstance(kind, Gaussian))
        size = math.sqrt(smallest * 2**level)
        events.append(Gaussian(noise_std=1.0, sensitivity=size * (1 + 1e-9), neighbours=relation))
    return Composed(events=tuple(events)), 0.5 ** (level + 1)


def epsilon_with_repeats(
    planned: Mapping[BaseEvent, int], found: Mapping[BaseEvent, int], delta: float, neighbours: str
) -> float:
    """Return epsilon of a run that answered what was planned and, where `found` has more, repeated some of it."""
    event, share = with_repeats(planned, found)
    return Accountant(neighbours).epsilon(event, delta * share)
