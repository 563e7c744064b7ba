"""Calibration: the smallest noise, rounded up, that meets a target epsilon at a delta."""

from __future__ import annotations

import math
from collections.abc import Callable

from scipy.optimize import brentq

from gswgan.privacy.accountant import Accountant, check_delta
from gswgan.privacy.errors import PrivacyError
from gswgan.privacy.events import Event


def check_epsilon(epsilon: float) -> float:
    """Return epsilon if it is a positive finite number."""
    if not 0 < epsilon < math.inf:
        raise PrivacyError("epsilon", epsilon, "a positive finite number")
    return epsilon


def round_up(value: float, digits: int = 5) -> float:
    """Return the next number with so many significant digits that is not below `value`."""
    unit = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    rounded = float(f"{math.ceil(value / unit - 1e-9) * unit:.{digits}g}")
    return rounded if rounded >= value else float(f"{rounded + unit:.{digits}g}")


def calibrate(event_with: Callable[[float], Event], *, epsilon: float, delta: float, accountant: Accountant) -> float:
    """Return the noise, to five digits and rounded up, for which `event_with(noise)` costs at most epsilon at delta.

    `event_with` maps a noise (a multiplier or a standard deviation: the caller's unit) to the whole run.
    """
    check_epsilon(epsilon)
    check_delta(delta)

    def log_ratio(log_noise: float) -> float:
        cost = accountant.epsilon(event_with(math.exp(log_noise)), delta)
        return math.log(max(cost, 1e-12) / epsilon)

    low = high = 0.0
    while log_ratio(high) > 0:
        low, high = high, high + 1.0
        if high > 40:
            raise PrivacyError("epsilon", epsilon, "a target that some finite noise reaches")
    while low == high or log_ratio(low) <= 0:
        low, high = low - 1.0, min(high, low) if low < high else high
        if low < -40:
            raise PrivacyError("epsilon", epsilon, "a target that needs some noise")
    noise = round_up(math.exp(float(brentq(log_ratio, low, high, xtol=2e-6))))
    while accountant.epsilon(event_with(noise), delta) > epsilon:
        noise = round_up(noise * (1 + 1e-5))
    return noise
