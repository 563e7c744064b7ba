"""Figures that the paper states for its runs, recomputed by the paper's own rules. They are claims, not guarantees.

Centralized (appendix, "RDP for Subsampled Mechanisms", Wang et al. 2019): each of the T x B sample gradients is
counted as its own subsampled answer, although the B gradients of a step share one draw of a critic. Federated:
plain Renyi composition of the expected number of uses, without amplification.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

from gswgan.privacy.accountant import check_delta
from gswgan.privacy.events import Gaussian

MAX_ORDER = 256


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A figure that is stated elsewhere for a run, and the rule behind it. It is not a guarantee."""

    epsilon: float
    delta: float
    accounting: str

    def to_json(self) -> dict[str, Any]:
        """Return plain data, for privacy.json."""
        return asdict(self)


def gaussian_rdp(sample: Gaussian, order: NDArray[np.float64] | float) -> NDArray[np.float64]:
    """Return the Renyi divergence of a Gaussian: order x mu^2 / 2 (the paper's definition of the mechanism)."""
    return np.asarray(np.asarray(order) * sample.mu**2 / 2)


def step_rdp(sample: Gaussian, batch_size: int, order: float) -> float:
    """Return the RDP of a generator step by Theorem 4.1: the composition of the answers for its samples.

    With noise_std = sigma C and sensitivity 2C this is 2 B order / sigma^2.
    """
    return float(batch_size * gaussian_rdp(sample, order))


def subsampled_rdp(sample: Gaussian, rate: float, order: int) -> float:
    """Return the RDP of a Gaussian by the appendix's theorem for subsampling without replacement."""
    j = np.arange(3, order + 1, dtype=np.float64)
    log_binomial = gammaln(order + 1) - gammaln(j + 1) - gammaln(order - j + 1)
    at_two = float(gaussian_rdp(sample, 2))
    log_four = at_two + math.log(4) + (math.log1p(-math.exp(-at_two)) if at_two > 0 else -math.inf)
    pair = math.log(order * (order - 1) / 2) + 2 * math.log(rate) + min(log_four, at_two + math.log(2))
    rest = j * math.log(rate) + log_binomial + (j - 1) * gaussian_rdp(sample, j) + math.log(2)
    return float(logsumexp([0.0, pair, *rest])) / (order - 1)


def subsampled_epsilon(sample: Gaussian, rate: float, times: int, delta: float) -> float:
    """Return epsilon of so many subsampled answers by that theorem, at the best integer order."""
    check_delta(delta)
    return min(
        times * subsampled_rdp(sample, rate, order) + math.log(1 / delta) / (order - 1)
        for order in range(2, MAX_ORDER + 1)
    )


def claimed_centralized(sample: Gaussian, *, critics: int, steps: int, batch_size: int, delta: float) -> Claim:
    """Return the paper's centralized figure: T x B subsampled answers at rate 1/K (9.993 for its MNIST run)."""
    releases = steps * batch_size
    accounting = (
        f"the paper's: {releases} releases, each subsampled by itself at rate 1/{critics} (Wang et al. 2019); "
        "a step's samples share one draw, so this does not hold"
    )
    return Claim(epsilon=subsampled_epsilon(sample, 1 / critics, releases, delta), delta=delta, accounting=accounting)


def claimed_minibatches(noise_scale: float, *, rate: float, releases: int, delta: float) -> Claim:
    """Return the paper's figure for minibatch baselines: 10.02 DP-MERF, 9.999 DP-MERF AE, 10.10 DP-SGD GAN.

    `noise_scale` is relative to what the paper takes for the sensitivity of one answer.
    """
    sample = Gaussian(noise_std=noise_scale, sensitivity=1.0)
    accounting = (
        f"the GS-WGAN paper's: {releases} batches drawn without replacement at rate {rate:.3g}, by the bound "
        "of Wang et al. 2019; here records take part by secret coins, and the cost of that is known exactly"
    )
    return Claim(epsilon=subsampled_epsilon(sample, rate, releases, delta), delta=delta, accounting=accounting)


def claimed_federated(sample: Gaussian, *, clients: int, rounds: int, batch_size: int, delta: float) -> Claim:
    """Return the paper's federated figure: RDP of the expected number of answers of a client (598.61 for its run)."""
    check_delta(delta)
    rho = rounds * batch_size / clients * sample.mu**2 / 2
    epsilon = rho + 2 * math.sqrt(rho * math.log(1 / delta))  # at the best real order
    accounting = (
        f"the paper's: Renyi composition of the expected {rounds} x {batch_size} / {clients} releases of a client; "
        "the number of uses is random, so this does not hold"
    )
    return Claim(epsilon=epsilon, delta=delta, accounting=accounting)


def claimed_rounds(noise_multiplier: float, *, rate: float, rounds: int, delta: float) -> Claim:
    """Return the figure for Fed-Avg GAN (9.99e6 for 1000 rounds, 10 of 866 clients, noise 0.01, delta 1.15e-3).

    It is the RDP of the Poisson-sampled Gaussian (Mironov et al. 2019) at the best whole order. The bound holds but is
    very loose: with so little noise the lowest order, 2, is the best, and far too high.
    """
    check_delta(delta)

    def rdp(order: int) -> float:
        k = np.arange(order + 1, dtype=np.float64)
        log_binomial = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
        terms = log_binomial + (order - k) * math.log1p(-rate) + k * math.log(rate) if rate < 1 else np.array([0.0])
        powers = k if rate < 1 else np.array([float(order)])
        return float(logsumexp(terms + (powers**2 - powers) / (2 * noise_multiplier**2))) / (order - 1)

    epsilon = min(rounds * rdp(order) + math.log(1 / delta) / (order - 1) for order in range(2, MAX_ORDER + 1))
    accounting = (
        f"as the GS-WGAN paper has it: {rounds} rounds, each client at rate {rate:.3g}, by Renyi divergences of whole "
        "orders (Mironov et al. 2019), one client zeroed; it holds, and is far from tight where the noise is small"
    )
    return Claim(epsilon=epsilon, delta=delta, accounting=accounting)
