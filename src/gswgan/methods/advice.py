"""Both critics compared: the noise of both, relative to their signals, from public facts and the guarantee alone.

Both critics hand the generator a gradient for each fake. Their common measure is the length of the noise in it (all
pixels), in units of the longest gradient that the same critic could give without noise. The kernel critic's noise is
drawn once and stays for the whole training; the ensemble's is drawn anew each step, and falls with the square root
of the number of steps as far as the steps ask the same question. What it does not say: docs/methods.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gswgan.methods import make_draft
from gswgan.plan.defaults import gradient_noise
from gswgan.plan.facts import Facts
from gswgan.plan.plan import Plan, PrivacySettings
from gswgan.plan.settings import MAX_EPSILON
from gswgan.privacy.accountant import visible_draw_epsilon

BEARABLE = 0.3
"""Noise up to which both critics have been seen to work. On digits 0.26 (kernel) cost 0.04 of accuracy and 0.27
(ensemble, averaged over the run) 0.06; 0.68 cost 0.13 and 0.75 cost 0.31."""

MIN_EPSILON = 1e-6
"""The smallest guarantee at which the other critic is looked at."""


def kernel_noise(facts: Facts, privacy: PrivacySettings) -> float:
    """Length of the noise in a fake's gradient, over the longest gradient without noise: the same in every step.

    With n records of a class and length scale l the noise in the score <mean, phi(x)> has a gradient of length
    std / n x sqrt(pixels) / l, and the Gaussian kernel's own gradient is at most exp(-1/2) / l: l cancels.
    """
    return gradient_noise(facts, privacy.noise_std)


def ensemble_noise(facts: Facts, privacy: PrivacySettings) -> float:
    """The same for one step of the ensemble: noise of the sum over qK critics (the paper: one), each at most C."""
    critics = 1.0 if privacy.sampling == "one" else privacy.rate * (privacy.critics or 1)
    return privacy.noise_std * math.sqrt(facts.pixels) / (critics * privacy.clip_norm)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Both critics for the same data and the same guarantee."""

    facts: Facts
    kernel: PrivacySettings
    ensemble: PrivacySettings

    @property
    def units(self) -> int:
        """Records, or persons where they are protected."""
        return self.facts.records if self.facts.persons is None else self.facts.persons

    @property
    def kernel_noise(self) -> float:
        """Kernel critic: noise in a fake's gradient, throughout the training."""
        return kernel_noise(self.facts, self.kernel)

    @property
    def step_noise(self) -> float:
        """Ensemble: noise in a fake's gradient in one step."""
        return ensemble_noise(self.facts, self.ensemble)

    @property
    def run_noise(self) -> float:
        """Ensemble: noise averaged over the run, which is the best that can be said of it."""
        return self.step_noise / math.sqrt(self.ensemble.releases)

    @property
    def ratio(self) -> float:
        """How many times more noise the ensemble has, at best: about sqrt(B / e) x records of a class per critic."""
        return self.run_noise / self.kernel_noise

    @property
    def class_per_critic(self) -> float:
        """Records of one class that a critic has to learn from, for classes of equal size."""
        return self.facts.records / ((self.ensemble.critics or 1) * self.facts.classes)

    @property
    def is_loud(self) -> bool:
        """Whether the kernel critic's noise shows as well: too few records for the classes at this epsilon."""
        return self.kernel_noise > BEARABLE

    @property
    def enough_units(self) -> int:
        """Records (persons) at which the kernel critic's noise would be bearable, at this guarantee."""
        return math.ceil(self.units * self.kernel_noise / BEARABLE)

    @property
    def enough_epsilon(self) -> float:
        """Epsilon at which it would be bearable with these records: the exact figure of one Gaussian release."""
        mu = self.kernel.contribution.sensitivity(self.kernel.neighbours) / self.kernel.noise_std
        return visible_draw_epsilon(mu * self.kernel_noise / BEARABLE, 1, 1, self.kernel.delta)


def compare(facts: Facts, *, epsilon: float, delta: float, critics: int | None = None) -> Comparison:
    """Both critics with their default settings for these facts; `critics` replaces the default number of critics."""
    kernel = make_draft(facts, preset="kernel", epsilon=epsilon, delta=delta).sums
    ensemble = make_draft(facts, preset="ensemble-alone", epsilon=epsilon, delta=delta, critics=critics).sums
    return Comparison(facts=facts, kernel=kernel, ensemble=ensemble)


def compare_plan(plan: Plan) -> Comparison:
    """The critic of the plan as planned, and the other one for the same guarantee (or the nearest with a meaning)."""
    is_kernel = plan.critic.can_stream
    epsilon = min(max(plan.cost.epsilon, MIN_EPSILON), MAX_EPSILON)
    preset = "ensemble-alone" if is_kernel else "kernel"
    other = make_draft(plan.facts, preset=preset, epsilon=epsilon, delta=plan.sums.delta).sums
    kernel, ensemble = (plan.sums, other) if is_kernel else (other, plan.sums)
    return Comparison(facts=plan.facts, kernel=kernel, ensemble=ensemble)
