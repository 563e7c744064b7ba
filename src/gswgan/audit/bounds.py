"""From scores in two neighbouring worlds to lower bounds on epsilon that hold with a given confidence.

A distinguisher says "first world" where its score exceeds a threshold. If the mechanism is (epsilon, delta)-private,
the probabilities p and q of that answer in the two worlds satisfy p <= e^epsilon q + delta, and so do 1 - q and 1 - p.
The threshold is chosen on one part of the trials; its rates are measured on the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri
from scipy.stats import beta

from gswgan.privacy import Accountant, Composed, DrawnOne, Event, Gaussian, Repeated
from gswgan.privacy.accountant import drawn_one_loss, visible_draw_epsilon
from gswgan.privacy.events import Laplace, tally, unsampled

Scores = NDArray[np.float64]

MAX_LOG_SCALE = 4.0
"""How far the noise scale is searched, as a logarithm: a factor of 55 either way."""

PILOT_SHARE = 1 / 6
"""The part of the trials on which thresholds are chosen."""


@dataclass(frozen=True, kw_only=True)
class Rates:
    """How often a distinguisher says "first world" in each: estimates and one-sided Clopper-Pearson bounds."""

    trials: int  # in each world, without the pilot
    power: float
    level: float
    power_low: float
    level_high: float


@dataclass(frozen=True, kw_only=True)
class Bound:
    """A lower bound on epsilon with the rates that it was read from."""

    epsilon: float
    rates: Rates


class Family(Protocol):
    """The mechanism's own trade-off curves, one for each noise scale: 1 is the noise that the plan states."""

    def power(self, level: float, scale: float) -> float:
        """The most that any distinguisher of this level can have."""

    def epsilon(self, scale: float) -> float:
        """Epsilon of the audited releases at this noise scale."""


def measure(first: Scores, second: Scores, threshold: float, *, error: float) -> Rates:
    """Rates of `score > threshold`; both bounds hold at once with probability at least 1 - error."""
    return _measure_all(first, second, np.array([threshold]), error)[0]


def _measure_all(first: Scores, second: Scores, thresholds: Scores, error: float) -> list[Rates]:
    sizes = len(first), len(second)
    hits, false = (
        size - np.searchsorted(np.sort(scores), thresholds, side="right")
        for size, scores in zip(sizes, (first, second), strict=True)
    )
    low = np.where(hits == 0, 0.0, beta.ppf(error / 2, np.maximum(hits, 1), sizes[0] - hits + 1))
    high = np.where(false == sizes[1], 1.0, beta.isf(error / 2, false + 1, np.maximum(sizes[1] - false, 1)))
    return [
        Rates(
            trials=min(sizes), power=int(h) / sizes[0], level=int(f) / sizes[1], power_low=float(lo),
            level_high=float(hi),
        )
        for h, f, lo, hi in zip(hits, false, low, high, strict=True)
    ]  # fmt: skip


def distribution_free(rates: Rates, delta: float) -> float:
    """The epsilon that these rates rule out, whatever the mechanism is."""
    ratios = (
        (rates.power_low - delta) / rates.level_high,
        (1 - rates.level_high - delta) / max(1 - rates.power_low, 1e-300),
    )
    return max(0.0, *(math.log(ratio) if ratio > 0 else 0.0 for ratio in ratios))


def by_trade_off(rates: Rates, family: Family) -> float:
    """The epsilon that these rates rule out for a mechanism of the family with unknown noise.

    Where even the best distinguisher against noise scale s has less power than was seen, the scale is below s.
    """
    if rates.power_low <= rates.level_high:
        return 0.0

    def excess(log_scale: float) -> float:
        return family.power(rates.level_high, math.exp(log_scale)) - rates.power_low

    step = 0.25 if excess(0.0) > 0 else -0.25  # from the stated noise towards where the power matches
    edge = 0.0
    while abs(edge) < MAX_LOG_SCALE and excess(edge + step) * step > 0:
        edge += step
    if abs(edge) >= MAX_LOG_SCALE:
        return 0.0 if step > 0 else family.epsilon(math.exp(edge))
    root = float(brentq(excess, min(edge, edge + step), max(edge, edge + step), xtol=1e-3))
    return family.epsilon(math.exp(root + 1e-3))  # rounded towards more noise: the smaller claim


def lower_bounds(
    first: Scores, second: Scores, *, delta: float, family: Family | None, error: float
) -> tuple[Bound, Bound | None]:
    """Distribution-free and trade-off bounds, each wrong with probability at most `error`."""
    pilot = max(1, int(len(first) * PILOT_SHARE)), max(1, int(len(second) * PILOT_SHARE))
    trial = first[: pilot[0]], second[: pilot[1]]
    rest = first[pilot[0] :], second[pilot[1] :]
    spread = float(np.median(trial[0]) - np.median(trial[1]))
    shifted = trial[1] + 0.1 * max(0.0, spread)  # some distance to the largest score that was seen
    free = measure(*rest, _best(trial[0], shifted, lambda rates: distribution_free(rates, delta), error), error=error)
    found = Bound(epsilon=distribution_free(free, delta), rates=free)
    if family is None:
        return found, None
    own = measure(*rest, _best(*trial, _probit_distance, error), error=error)
    return found, Bound(epsilon=by_trade_off(own, family), rates=own)


def _best(first: Scores, second: Scores, objective: Callable[[Rates], float], error: float) -> float:
    candidates = np.unique(np.quantile(np.concatenate([first, second]), np.linspace(0.001, 0.999, 400)))
    values = [objective(rates) for rates in _measure_all(first, second, candidates, error)]
    return float(candidates[int(np.argmax(values))])


def _probit_distance(rates: Rates) -> float:
    """The mu of Gaussian differential privacy that the rates show."""
    return float(ndtri(rates.power_low) - ndtri(rates.level_high))


@dataclass(frozen=True, kw_only=True)
class GaussianFamily:
    """Plain Gaussian releases: mu-GDP, in closed form."""

    mu: float
    delta: float

    def power(self, level: float, scale: float) -> float:
        """Phi(mu / scale + Phi^-1(level))."""
        return float(ndtr(self.mu / scale + ndtri(level)))

    def epsilon(self, scale: float) -> float:
        """The exact Gaussian curve at delta."""
        return visible_draw_epsilon(self.mu / scale, 1, 1, self.delta)


class LossFamily:
    """Any releases: the curve of their privacy-loss distribution, which rounds against us on both sides."""

    def __init__(self, total: Event, delta: float) -> None:
        """`total`: what is audited, under one neighbouring relation; the noise scale is that of all its releases."""
        self._total, self._delta = total, delta
        self._neighbours = unsampled(next(iter(tally(total)))).neighbours
        self._epsilons = np.linspace(0.0, 25.0, 101)
        self._known: dict[float, NDArray[np.float64]] = {}

    def power(self, level: float, scale: float) -> float:
        """The least that the privacy curve allows at any epsilon, for the answer and for its opposite.

        p <= e^epsilon q + delta(epsilon), and 1 - q <= e^epsilon (1 - p) + delta(epsilon).
        """
        growth, deltas = np.exp(self._epsilons), self._deltas(scale)
        return float(min(np.min(growth * level + deltas), 1 - np.max((1 - level - deltas) / growth)))

    def epsilon(self, scale: float) -> float:
        """Epsilon at the plan's delta."""
        drawn = self._drawn_one(scale)
        if drawn is not None:
            return float(drawn_one_loss(*drawn).get_epsilon_for_delta(self._delta))
        return Accountant(self._neighbours).epsilon(scale_noise(self._total, scale), self._delta)

    def _drawn_one(self, scale: float) -> tuple[DrawnOne, int] | None:
        """The paper's draw and how often it is made, where that is all there is: it has a curve of its own."""
        (event, times), *others = tally(scale_noise(self._total, scale)).items()
        return (event, times) if isinstance(event, DrawnOne) and not others else None

    def _deltas(self, scale: float) -> NDArray[np.float64]:
        if scale not in self._known:
            drawn = self._drawn_one(scale)
            if drawn is not None:
                found = np.asarray(drawn_one_loss(*drawn).get_delta_for_epsilon(self._epsilons))
            else:
                accountant = Accountant(self._neighbours)
                found = accountant.delta(scale_noise(self._total, scale), self._epsilons)
            self._known[scale] = found
        return self._known[scale]


def scale_noise(total: Event, scale: float) -> Event:
    """The same releases with all noise multiplied by `scale`."""
    if isinstance(total, Composed):
        return Composed(events=tuple(scale_noise(part, scale) for part in total.events))
    if isinstance(total, Repeated):
        return replace(total, event=scale_noise(total.event, scale))
    if isinstance(total, Gaussian):
        return replace(total, noise_std=total.noise_std * scale)
    if isinstance(total, Laplace):
        return replace(total, scale=total.scale * scale)
    return replace(total, event=replace(total.event, noise_std=total.event.noise_std * scale))
