"""What a run of the DP-SGD GAN costs: the papers' runs under both relations, by other accountants."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from dp_sgd_critics import CLIP, CPU, SETTINGS
from scipy import stats

from gswgan.critics.dp_sgd_gan import DPSGDGAN
from gswgan.data import ImageData
from gswgan.errors import PlanError, PrivacyError
from gswgan.methods.dp_sgd_gan import PRESETS
from gswgan.privacy import Accountant, Gaussian, Sampled, Streams, calibrate

# What it costs


def test_the_papers_run_is_7_93_under_replace_one() -> None:
    """n = 60,000, batch 600, noise 2.1 C, 30,000 updates (the GS-WGAN paper's appendix)."""
    total = PRESETS["dp-cgan"].events(60_000)
    assert Accountant().epsilon(total, 1e-5) == pytest.approx(7.93, abs=0.005)
    assert replace_one_by_fft(rate=0.01, multiplier=2.1, times=30_000, delta=1e-5) == pytest.approx(7.93, abs=0.005)


def replace_one_by_fft(*, rate: float, multiplier: float, times: int, delta: float) -> float:
    """Epsilon of (1-q) N(0) + q N(1) against (1-q) N(0) + q N(-1), composed: an integral and an FFT of our own."""
    x = np.linspace(-12, 12, 2_000_001) * multiplier
    edges = np.concatenate([[-np.inf], (x[1:] + x[:-1]) / 2, [np.inf]])

    def mixture(mean: float) -> np.ndarray:
        law = (1 - rate) * stats.norm.cdf(edges, 0, multiplier) + rate * stats.norm.cdf(edges, mean, multiplier)
        return np.diff(law)

    def log_density(mean: float) -> np.ndarray:
        return np.logaddexp(
            math.log1p(-rate) - x**2 / (2 * multiplier**2), math.log(rate) - (x - mean) ** 2 / (2 * multiplier**2)
        )

    loss, step, half = log_density(1.0) - log_density(-1.0), 2e-4, 2**18
    one = np.bincount(np.rint(loss / step).astype(np.int64) + half, weights=mixture(1.0), minlength=2 * half)
    composed = np.fft.irfft(np.fft.rfft(np.roll(one, -half)) ** times, 2 * half)
    losses = np.fft.fftfreq(2 * half, 1 / (2 * half)) * step
    epsilons = np.linspace(0, 20, 4001)
    deltas = [float((composed * np.maximum(0, -np.expm1(e - losses)))[losses > e].sum()) for e in epsilons[::20]]
    place = int(np.argmax(np.array(deltas) <= delta)) * 20
    fine = epsilons[place - 20 : place + 1]
    exact = [float((composed * np.maximum(0, -np.expm1(e - losses)))[losses > e].sum()) for e in fine]
    return float(np.interp(math.log(delta), np.log(exact)[::-1], fine[::-1]))


def poisson_event(rate: float, multiplier: float, times: int):
    import dp_accounting as dp

    one = dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(multiplier))
    return dp.SelfComposedDpEvent(one, times)


def test_the_papers_run_is_3_77_under_add_or_remove() -> None:
    """The relation of DP-SGD's own literature, straight from dp-accounting."""
    import dp_accounting as dp

    accountant = dp.pld.PLDAccountant(dp.NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=1e-4)
    accountant.compose(poisson_event(0.01, 2.1, 30_000))
    assert accountant.get_epsilon(1e-5) == pytest.approx(3.77, abs=0.005)


def test_opacus_agrees_under_add_or_remove() -> None:
    accountants = pytest.importorskip("opacus.accountants")
    prv, rdp = accountants.PRVAccountant(), accountants.RDPAccountant()
    prv.history = rdp.history = [(2.1, 0.01, 30_000)]
    assert prv.get_epsilon(1e-5) == pytest.approx(3.77, abs=0.02)
    assert 3.77 < rdp.get_epsilon(1e-5) < 4.15


@pytest.mark.parametrize(
    ("rate", "multiplier", "times", "stated"),
    [(1 / 118, 2.0, 174_000, 10.0), (1 / 469, 1.0, 450_000, 10.0), (1 / 118, 14.0, 165_000, 1.0)],
)
def test_the_epsilons_of_private_gans_revisited(rate: float, multiplier: float, times: int, stated: float) -> None:
    """Bie et al. 2023 state 10, 10 and 1 for their runs: Renyi accounting, add-or-remove, one over the batches."""
    import dp_accounting as dp

    accountant = dp.rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(poisson_event(rate, multiplier, times))
    assert 0.98 * stated < accountant.get_epsilon(1e-5) <= stated


def test_revisited_is_21_under_replace_one() -> None:
    """Twice what its paper states, as for every DP-SGD run: the table's relation has to be said."""
    assert Accountant().epsilon(PRESETS["revisited"].events(60_000), 1e-5) == pytest.approx(20.97, abs=0.01)


def test_noise_is_calibrated_on_the_whole_run() -> None:
    def run(multiplier: float):
        return dataclasses.replace(SETTINGS, noise_multiplier=multiplier, releases=300).events(1437)

    noise = calibrate(run, epsilon=10, delta=1e-5, accountant=Accountant())
    assert 9.99 < Accountant().epsilon(run(noise), 1e-5) <= 10
    half = dataclasses.replace(SETTINGS, noise_multiplier=noise, releases=150)
    assert Accountant().epsilon(half.events(1437), 1e-5) < 8  # each update costs


def test_the_presets_are_the_papers() -> None:
    paper, bie = PRESETS["dp-cgan"], PRESETS["revisited"]
    assert (paper.clip_norm, paper.noise_multiplier, paper.learning_batch, paper.releases) == (1.1, 2.1, 600, 30_000)
    assert (bie.clip_norm, bie.noise_multiplier, bie.learning_batch) == (1.0, 2.0, 512)
    assert (bie.learning_rate, bie.betas) == (2e-4, (0.5, 0.999))
    assert paper.event(60_000).event.noise_std == pytest.approx(2.31)
    assert paper.event(60_000).rate == 0.01


@pytest.mark.parametrize("batch", [0, 97])
def test_a_batch_that_no_rate_gives_is_refused(batch: int) -> None:
    with pytest.raises(PlanError, match="learning_batch"):
        dataclasses.replace(SETTINGS, learning_batch=batch).event(96)


def test_a_mechanism_that_accounts_for_something_else_is_refused(mechanism_for, stripes: ImageData) -> None:
    shape = {"image_size": 8, "channels": 1, "classes": 3, "public": Streams.public(0), "device": CPU}
    too_small = Gaussian(noise_std=1.0, sensitivity=CLIP)  # that of one contribution: half of what replacing moves
    with pytest.raises(PrivacyError, match="sensitivity"):
        mechanism_for(SETTINGS.contribution, event=Sampled(rate=0.25, event=too_small))
    everyone = mechanism_for(SETTINGS.contribution)
    looser = mechanism_for(
        dataclasses.replace(SETTINGS, clip_norm=1.0).contribution,
        event=dataclasses.replace(SETTINGS, clip_norm=1.0).event(96),
    )
    for mechanism in (everyone, looser):
        with pytest.raises(PrivacyError, match="mechanism"):
            DPSGDGAN(SETTINGS, mechanism, **shape)
