from __future__ import annotations

import math

import numpy as np
import pytest

from gswgan.privacy import Gaussian
from gswgan.privacy.claims import claimed_centralized, claimed_federated, gaussian_rdp, subsampled_rdp
from gswgan.privacy.errors import PrivacyError

SAMPLE = Gaussian(noise_std=1.07 * 2, sensitivity=2.0)  # the reference code's noise on one sample's gradient, C = 1


def test_the_papers_centralized_figure() -> None:
    claim = claimed_centralized(SAMPLE, critics=1000, steps=20_000, batch_size=32, delta=1e-5)
    assert claim.epsilon == pytest.approx(9.993, abs=0.01)
    assert "does not hold" in claim.accounting
    assert claim.to_json() == {"epsilon": claim.epsilon, "delta": 1e-5, "accounting": claim.accounting}


def test_the_papers_federated_figure() -> None:
    claim = claimed_federated(SAMPLE, clients=866, rounds=30_000, batch_size=32, delta=1.15e-3)
    assert claim.epsilon == pytest.approx(598.61, abs=0.1)
    assert "does not hold" in claim.accounting


def test_the_federated_figure_is_the_best_real_order() -> None:
    rho = 30_000 * 32 / 866 * SAMPLE.mu**2 / 2
    orders = 1 + np.geomspace(1e-4, 100, 200_001)
    best = (rho * orders + math.log(1 / 1.15e-3) / (orders - 1)).min()
    claim = claimed_federated(SAMPLE, clients=866, rounds=30_000, batch_size=32, delta=1.15e-3)
    assert claim.epsilon == pytest.approx(float(best), rel=1e-6)


def test_the_centralized_figure_grows_with_what_it_should() -> None:
    def epsilon(steps: int, batch_size: int, critics: int) -> float:
        return claimed_centralized(SAMPLE, critics=critics, steps=steps, batch_size=batch_size, delta=1e-5).epsilon

    assert epsilon(20_000, 32, 1000) > epsilon(10_000, 32, 1000)
    assert epsilon(20_000, 32, 1000) > epsilon(20_000, 32, 1500)
    assert epsilon(10_000, 32, 1000) == pytest.approx(epsilon(20_000, 16, 1000))  # it counts samples, not draws


def test_the_bound_is_never_below_nothing_and_never_below_rate_zero() -> None:
    values = [subsampled_rdp(SAMPLE, rate, 8) for rate in (1e-6, 1e-3, 0.1)]
    assert values == sorted(values)
    assert values[0] >= 0
    assert float(gaussian_rdp(SAMPLE, 3)) == pytest.approx(3 * SAMPLE.mu**2 / 2)


def test_a_claim_has_a_delta() -> None:
    with pytest.raises(PrivacyError):
        claimed_centralized(SAMPLE, critics=10, steps=1, batch_size=1, delta=0.0)
    with pytest.raises(PrivacyError):
        claimed_federated(SAMPLE, clients=10, rounds=1, batch_size=1, delta=1.0)
