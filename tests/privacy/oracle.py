"""Independent truth for the accountant: a closed form with mpmath, and a numerical composition of our own."""

from __future__ import annotations

import math

import mpmath
import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

Mixture = dict[float, float]
"""Mean of a normal of the common standard deviation -> its weight."""


def gaussian_delta(mu: float, epsilon: float) -> mpmath.mpf:
    """delta(epsilon) of one Gaussian release of sensitivity / noise = mu, to 40 digits."""
    with mpmath.workdps(40):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)

        def cdf(x: mpmath.mpf) -> mpmath.mpf:
            return mpmath.erfc(-x / mpmath.sqrt(2)) / 2

        return cdf(m / 2 - e / m) - mpmath.exp(e) * cdf(-m / 2 - e / m)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The epsilon of one Gaussian release at delta, by bisection."""
    low, high = 0.0, 1.0
    if gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    while gaussian_delta(mu, high) > delta:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_delta(mu, middle) > delta else (low, middle)
    return high


def replaced(rate: float) -> list[tuple[Mixture, Mixture]]:
    """The worst pair of a sampled sum, in units of one contribution's bound: antipodal, and symmetric."""
    return [({0.0: 1 - rate, 1.0: rate}, {0.0: 1 - rate, -1.0: rate})]


def zeroed(rate: float) -> list[tuple[Mixture, Mixture]]:
    """With the unit or without it: two directions."""
    here: Mixture = {0.0: 1 - rate, 1.0: rate}
    return [(here, {0.0: 1.0}), ({0.0: 1.0}, here)]


def epsilon_bracket(
    pairs: list[tuple[Mixture, Mixture]], noise: float, steps: int, delta: float, *, grid: float, reach: float,
    start: float | None = None,
) -> tuple[float, float]:  # fmt: skip
    """Certain bounds (low, high) on the epsilon of `steps` compositions, the larger over the pairs.

    The privacy loss of one step is put on a grid, rounded down for the lower and up for the upper bound, and
    composed by a power of its Fourier transform; the total must stay within +- reach. `start`: the noise of one release
    of everybody, a unit replaced, that comes beside the steps.
    """
    size, found = 2 ** math.ceil(math.log2(2 * reach / grid)), []
    losses = np.fft.fftfreq(size, 1 / (size * grid))
    for p, q in pairs:
        spectra = [np.fft.rfft(one) ** steps for one in _on_grid(p, q, noise, grid, size)]
        if start is not None:
            first = _on_grid({1.0: 1.0}, {-1.0: 1.0}, start, grid, size)
            spectra = [some * np.fft.rfft(one) for some, one in zip(spectra, first)]
        totals = [np.maximum(np.fft.irfft(spectrum, size), 0.0) for spectrum in spectra]
        found.append([_epsilon_of(losses, total, delta) for total in totals])
    lows, highs = zip(*found)
    return max(lows), max(highs)


def _on_grid(p: Mixture, q: Mixture, noise: float, grid: float, size: int) -> list[NDArray[np.float64]]:
    """The law of one privacy loss, rounded down and rounded up."""
    edges = np.linspace(-1 - 10 * noise, 1 + 10 * noise, 100_001)

    def log_density(mixture: Mixture) -> NDArray[np.float64]:
        terms = [math.log(w) + norm.logpdf(edges, mean, noise) for mean, w in mixture.items() if w > 0]
        return np.asarray(np.logaddexp.reduce(terms, axis=0))

    loss = log_density(p) - log_density(q)
    mass = np.diff(sum(w * norm.cdf(edges, mean, noise) for mean, w in p.items()))
    below, above = np.minimum(loss[:-1], loss[1:]), np.maximum(loss[:-1], loss[1:])
    return [  # negative losses wrap
        np.bincount(index.astype(np.int64) % size, weights=mass, minlength=size)
        for index in (np.floor(below / grid), np.ceil(above / grid))
    ]


def _epsilon_of(losses: NDArray[np.float64], total: NDArray[np.float64], delta: float) -> float:
    """The smallest grid point whose delta, the sum of p (1 - e^(epsilon - loss)) above it, is small enough."""
    x, p = losses[: len(losses) // 2], total[: len(losses) // 2]
    above, weighted = p[::-1].cumsum()[::-1], (p * np.exp(-x))[::-1].cumsum()[::-1]
    return float(x[np.argmax(above - np.exp(x) * weighted <= delta)])
