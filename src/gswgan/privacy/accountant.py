"""The accountant: epsilon at a delta of composed events, for one observer under one neighbouring relation.

Gaussian, Laplace and Poisson-sampled events are composed by Google's privacy-loss distributions (dp-accounting), whose
discretization rounds towards a larger epsilon. The paper's draw of one contributor has no such pair (docs/proof.md,
section 5): its guarantee shows the draw to the observer and averages delta, exactly, over the binomial number of times
that the changed contributor was drawn.

dp-accounting takes a second to import, so it is imported on first use.
"""

from __future__ import annotations

import functools
import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import log_ndtr
from scipy.stats import binom

from gswgan.privacy.errors import PrivacyError
from gswgan.privacy.events import (
    BaseEvent,
    DrawnOne,
    Event,
    Gaussian,
    Laplace,
    Neighbours,
    Sampled,
    check_neighbours,
    gaussian_of,
    tally,
    unsampled,
)

PLD = "privacy-loss distribution (dp-accounting, pessimistic)"
TAIL = 1e-15
"""The probability that is cut off a composed loss, and counted as delta."""

PLAIN = 50.0
"""The mu above which a sampled answer does not hide who contributed."""

MAX_NUMBERS = 2e7
"""In a discretized loss, up to which losses are composed: 6 GB of memory."""

VISIBLE_DRAW = "visible draw, delta averaged over the binomial number of uses (exact Gaussian)"


NOT_RECOMPUTED = "as planned, not recomputed"
"""The beginning of `accountant` in a statement that was made without dp-accounting installed."""


@dataclass(frozen=True, kw_only=True)
class PrivacyCost:
    """An epsilon with its delta, neighbouring relation, unit, observer, sampling and accountant."""

    epsilon: float
    delta: float
    neighbours: Neighbours
    unit: str
    observer: str
    sampling: str
    accountant: str

    def __post_init__(self) -> None:
        check_delta(self.delta)

    def to_json(self) -> dict[str, Any]:
        """Return plain data, for privacy.json."""
        return asdict(self)

    def __str__(self) -> str:
        how = {"replace-one": f"one {self.unit} replaced", "zeroed": f"one {self.unit} zeroed"}[self.neighbours]
        doubt = f"; {NOT_RECOMPUTED}" if self.accountant.startswith(NOT_RECOMPUTED) else ""
        return f"epsilon {self.epsilon:.4g} at delta {self.delta:.3g} ({how}; observer: {self.observer}{doubt})"


def check_delta(delta: float) -> float:
    """Return delta if it is a probability strictly between 0 and 1."""
    if not 0 < delta < 1:
        raise PrivacyError("delta", delta, "a number strictly between 0 and 1", "Well below 1 / records is usual.")
    return delta


class Accountant:
    """Computes epsilon of events under one neighbouring relation, which every event must have."""

    def __init__(self, neighbours: str = "replace-one") -> None:
        self.neighbours = check_neighbours(neighbours)

    def epsilon(self, event: Event, delta: float) -> float:
        """Return the smallest epsilon that we can prove for the event at this delta."""
        check_delta(delta)
        return _epsilon(tuple(self._checked(event).items()), delta, self.neighbours)

    def method(self, event: Event) -> str:
        """Describe how `epsilon` is computed for the event."""
        counts = tally(event)
        visible = any(isinstance(single, DrawnOne) for single in counts) or _plainly_seen(counts)
        return VISIBLE_DRAW if visible else PLD

    def delta(self, event: Event, epsilons: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the smallest delta that we can prove at each epsilon; events with `DrawnOne` are refused."""
        counts = self._checked(event)
        if any(isinstance(single, DrawnOne) for single in counts):
            raise PrivacyError("event", "DrawnOne", "Gaussian, Laplace and sampled releases")
        loss = _compose(counts, self.neighbours)
        return np.array([loss.get_delta_for_epsilon(float(epsilon)) for epsilon in epsilons])

    def numbers(self, event: Event) -> float:
        """About how many numbers a discretized loss of the event has: for those who compute what a stranger asks."""
        counts = self._checked(event)
        if not counts or _plainly_seen(counts):
            return 0.0
        interval, reach = _grid(counts)
        return reach / interval

    def _checked(self, event: Event) -> dict[BaseEvent, int]:
        counts = tally(event)
        for single in counts:
            found = unsampled(single).neighbours
            if found != self.neighbours:
                raise PrivacyError("neighbours", found, f"{self.neighbours}, this accountant's relation")
        return counts


@functools.lru_cache(maxsize=4096)
def _epsilon(tallied: tuple[tuple[BaseEvent, int], ...], delta: float, neighbours: Neighbours) -> float:
    """Return epsilon of so many of each event; cached, since plans, calibration and ledger checks repeat questions."""
    counts = dict(tallied)
    if not counts:
        return 0.0
    drawn = {single: times for single, times in counts.items() if isinstance(single, DrawnOne)}
    if seen := _plainly_seen(counts):
        return visible_draw_epsilon(seen.event.mu, 1 / seen.rate, counts[seen], delta)
    if not drawn:
        pure = sum(s.pure_epsilon * n if isinstance(s, Laplace) else math.inf for s, n in counts.items())
        try:
            with np.errstate(over="ignore"):  # a ratio beyond float64 is infinite, and the pure figure is less
                return min(pure, float(_compose(counts, neighbours).get_epsilon_for_delta(delta)))
        except PrivacyError:
            if pure == math.inf:
                raise
            return pure
    plain = sum(s.mu**2 * n for s, n in counts.items() if isinstance(s, Gaussian))
    if len(drawn) > 1 or any(isinstance(single, Sampled | Laplace) for single in counts):
        raise PrivacyError(
            "composition", sorted({type(s).__name__ for s in counts}), "one kind of draw per ledger",
        )  # fmt: skip
    ((single, times),) = drawn.items()
    return visible_draw_epsilon(single.event.mu, single.count, times, delta, also_mu_squared=plain)


def _plainly_seen(counts: dict[BaseEvent, int]) -> Sampled | None:
    """Return the one kind of sampled event, if its noise is so small that an observer sees who contributed.

    Showing the coins can only cost more, so the figure for a visible draw holds. Where one unit is zeroed it costs
    little more: log(1 / rate) beside mu^2 / 2 per use. A discretized loss would need a grid of millions.
    """
    if len(counts) != 1:
        return None
    (single,) = counts
    return single if isinstance(single, Sampled) and single.event.mu > PLAIN else None


def _kinds(counts: dict[BaseEvent, int]) -> tuple[float, dict[Sampled, int], dict[Laplace, int]]:
    """Return the mu^2 of all plain Gaussians together, the sampled ones, and the single values of Laplace events."""
    sampled = {single: times for single, times in counts.items() if isinstance(single, Sampled) and single.rate < 1}
    laplace = {single: times * single.values for single, times in counts.items() if isinstance(single, Laplace)}
    plain = sum(
        gaussian_of(single).mu * gaussian_of(single).mu * times  # infinite, where a square would raise
        for single, times in counts.items()
        if single not in sampled and single not in laplace
    )
    return plain, sampled, laplace


def _grid(counts: dict[BaseEvent, int]) -> tuple[float, float]:
    """Return the interval of a discretized loss, and about how far the loss reaches."""
    plain, sampled, laplace = _kinds(counts)
    spread = plain / 2 + sum(_mean_loss(single) * times for single, times in sampled.items())
    spread += sum(_mean_loss(value) * times for value, times in laplace.items())
    size = spread + 4 * math.sqrt(spread)  # about epsilon; the grid adds about steps x interval^2 to it
    many = 100 + sum(sampled.values()) + sum(laplace.values()) / 100  # Laplace values come in millions
    rarest = max((single.event.mu * (single.event.mu / 2 + 10) for single in sampled), default=0.0)
    return math.sqrt(1e-5 * size / many), size + rarest


def _compose(counts: dict[BaseEvent, int], neighbours: Neighbours) -> Any:
    """Return the privacy-loss distribution of so many of each event (dp-accounting)."""
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution as pld

    plain, sampled, laplace = _kinds(counts)
    if laplace and sampled:
        raise PrivacyError("composition", ["Laplace", "Sampled"], "one of them in a ledger")
    interval, reach = _grid(counts)
    if not reach / interval <= MAX_NUMBERS:
        expected = f"at most {MAX_NUMBERS:g} numbers in a privacy loss that is to be computed"
        raise PrivacyError("epsilon", f"about {reach:.3g}", expected, "Use more noise.")
    grid = {"value_discretization_interval": interval}
    zeroed, replaced = NeighboringRelation.REPLACE_SPECIAL, NeighboringRelation.REPLACE_ONE
    parts: list[Any] = []
    if plain > 0:  # Gaussians compose exactly into one: their mu^2 add, and under all relations it is a shift
        parts.append(pld.from_gaussian_mechanism(1 / math.sqrt(plain), **grid))
    for single, times in sampled.items():
        relation = zeroed if neighbours == "zeroed" else replaced
        one = pld.from_gaussian_mechanism(
            single.event.noise_multiplier, sampling_prob=single.rate, neighboring_relation=relation, **grid
        )
        parts.append(one.self_compose(times))
    for value, times in laplace.items():
        one = pld.from_laplace_mechanism(value.scale / value.sensitivity, **grid)
        parts.append(_compose_many(one, times))
    return functools.reduce(lambda total, part: total.compose(part), parts)


def _compose_many(one: Any, times: int) -> Any:
    """Compose very many equal losses in two stages: dp-accounting truncates tails well only for sums of few terms."""
    blocks = math.isqrt(times)
    each, rest = divmod(times, blocks)
    total = one.self_compose(each, TAIL / blocks).self_compose(blocks, TAIL)  # what is cut counts as delta
    return total.compose(one.self_compose(rest, TAIL)) if rest else total


def _mean_loss(single: Sampled | Laplace) -> float:
    """Estimate what an event adds to the mean privacy loss; this only sets the discretization."""
    if isinstance(single, Laplace):
        ratio = single.sensitivity / single.scale
        return ratio + math.expm1(-ratio)
    mu_squared = single.event.mu * single.event.mu
    return min(single.rate * mu_squared / 2, single.rate**2 * math.expm1(min(mu_squared, 700.0)))


def gaussian_log_delta(mu: NDArray[np.float64] | float, epsilon: float) -> NDArray[np.float64]:
    """Return log delta(epsilon) of a mu-Gaussian: log(Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu)).

    The exact trade-off of the Gaussian mechanism (Balle and Wang 2018), in logarithms so that the far tail holds.
    """
    size = np.asarray(mu, dtype=np.float64)
    first = log_ndtr(size / 2 - epsilon / size)
    second = epsilon + log_ndtr(-size / 2 - epsilon / size)
    return np.asarray(first + np.log(-np.expm1(np.minimum(second - first, -1e-300))))


def visible_draw_epsilon(mu: float, count: float, steps: int, delta: float, *, also_mu_squared: float = 0.0) -> float:
    """Return epsilon when one of `count` contributors is drawn in each step and the draw is visible.

    Given the draws the run is a Gaussian with mu^2 times the number of uses; delta is the mean over its law,
    Binomial(steps, 1/count). This is exact, not a bound. `also_mu_squared` adds plain Gaussians to every outcome.
    """
    low, high = (int(x) for x in binom.interval(1 - 1e-13, steps, 1 / count))
    uses = np.arange(max(0, low - 1), min(steps, high + 1) + 1)
    weights = binom.pmf(uses, steps, 1 / count)
    missed = max(0.0, 1.0 - float(weights.sum()))  # all of it counts as delta
    total = uses * mu**2 + also_mu_squared
    matters = total > 0
    sizes, weights = np.sqrt(total[matters]), weights[matters]

    def excess(epsilon: float) -> float:
        return float(np.sum(weights * np.exp(gaussian_log_delta(sizes, epsilon)))) + missed - delta

    if missed >= delta:
        return math.inf
    if excess(0.0) <= 0:
        return 0.0
    top = 1.0
    while excess(top) > 0:
        top *= 2
    root = float(brentq(excess, 0.0, top, xtol=1e-9, rtol=1e-12))
    return math.nextafter(root + 1e-8, math.inf)


def drawn_one_lower_bound(event: DrawnOne, steps: int, delta: float) -> float:
    """Return a lower bound on what any analysis can prove for the paper's draw, even with the draw hidden.

    When all other critics answer as the changed one does in the second world, each step shows
    (1 - 1/count) N(0) + (1/count) N(sensitivity) against N(0): the Poisson-sampled Gaussian, composed `steps`
    times. The value is computed with a discretization that rounds up, by less than 0.1 %.
    """
    return float(drawn_one_loss(event, steps).get_epsilon_for_delta(delta))


def drawn_one_loss(event: DrawnOne, steps: int) -> Any:
    """Return the privacy-loss distribution of that worst known pair (dp-accounting)."""
    from dp_accounting.pld import privacy_loss_distribution

    loss = privacy_loss_distribution.from_gaussian_mechanism(
        event.event.noise_std,
        sensitivity=event.event.sensitivity,
        sampling_prob=1 / event.count,
        value_discretization_interval=1e-3 * min(1.0, (event.event.mu / 5) ** 2),
    )
    return loss.self_compose(steps)
