"""DP-SGD of preset `refined` where a few sites hold the records: local steps at a site, an average at the server.

In a round the server sends the denoiser's weights. Every site makes R steps of DP-SGD on its own records, with its own
coins, clip and noise, and sends the weights that result, which are post-processing of its own releases. The server
averages them. With R = 1 this is in effect one step along the sum of the sites' noisy gradients, with R = all steps
every site trains alone and the results are averaged once.

The server shares what it has learnt without records: weights and, once, the preconditioner. Its size (for the largest
denoiser 47 MB) is sent rather than computed again, because samples differ in their last bits between machines.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from gswgan.critics.ensemble.ensemble import Mechanism
from gswgan.critics.refined.gradients import Gradients
from gswgan.critics.refined.records import HeldRecords
from gswgan.critics.refined.steps import DPSGD
from gswgan.data import ImageData
from gswgan.errors import FederationError, short
from gswgan.generators.denoised import DenoisedSampler
from gswgan.generators.preconditioner import Preconditioner
from gswgan.generators.scaled_descent import ScaledDescent, put_weights, weights_of
from gswgan.privacy.randomness import BatchStreams


def rounds_of(releases: int, local: int) -> list[range]:
    """The steps of each round; in each, `local` of them are made at every site (in the last one what is left)."""
    return [range(first, min(releases, first + local)) for first in range(0, releases, local)]


def shares_of(sizes: Mapping[str, int]) -> dict[str, float]:
    """What each site's weights count for in the average: its share of the records, which is public.

    A site divides its way by the size of its own noisy gradients, which is mostly noise and goes with 1 / records. So
    the ways of all sites have one length, and the signal in them goes with the records: of all averages, the one with
    these shares has the most signal for its noise (Cauchy and Schwarz), and never less than the largest site alone.
    """
    total = sum(sizes.values())
    return {name: size / total for name, size in sorted(sizes.items())}


def farther(sizes: Mapping[str, int]) -> float:
    """How many times the learning rate a site's step goes.

    Independent noise in the sites' ways averages out to this part less: so the average moves as far as the steps of
    centralized training do, sqrt(sites) for sites of one size.
    """
    return 1 / math.sqrt(sum(share**2 for share in shares_of(sizes).values()))


class SiteSteps:
    """A site's side: its records behind its own mechanism, and the momentum that it keeps from round to round."""

    def __init__(
        self,
        dp_sgd: DPSGD,
        data: ImageData,
        mechanism: Mechanism,
        batches: BatchStreams,
        *,
        network: DenoisedSampler,
        preconditioner: Preconditioner,
        gradients: Gradients,
        farther: float,
    ) -> None:
        """`gradients` are those of `network`, whose weights are put there in each round."""
        self._dp_sgd, self._batches, self._network, self._farther = dp_sgd, batches, network, farther
        self.records = HeldRecords(data, preconditioner.scales.device)
        self.records.begin(network, preconditioner, gradients, mechanism, at_once=False)  # within the site's limits
        self.descent = ScaledDescent(network, preconditioner)

    def answer(self, weights: Tensor, steps: range) -> Tensor:
        """The weights [P] that these steps lead to from those of the server: all that leaves the site."""
        put_weights(self._network, weights)
        for step in steps:
            self._dp_sgd.step(step, self.records, self.descent, self._batches, farther=self._farther)
        return weights_of(self._network)


class ServerAverage:
    """The server's side: the weights of the denoiser, and their average over the rounds, which is published."""

    def __init__(self, dp_sgd: DPSGD, sizes: Mapping[str, int], weights: Tensor, averaged: Tensor) -> None:
        """`sizes`: the records of each site. The start: `weights` of the pre-trained denoiser, and `averaged`."""
        self._dp_sgd, self.sizes = dp_sgd, dict(sizes)
        self.weights, self.averaged = weights.clone(), averaged.clone()

    def take(self, answers: Mapping[str, Tensor], steps: range) -> None:
        """The sites' weights after these steps. Sites that are missing are left out of the average."""
        for name, found in answers.items():
            self._check(name, found)
        if not answers:
            raise FederationError("answers", 0, "those of at least one site")
        shares = shares_of({name: self.sizes[name] for name in answers})
        mean = sum(share * answers[name].double() for name, share in shares.items())
        assert isinstance(mean, Tensor)
        self.weights = mean.to(self.weights)
        kept = math.prod(self._dp_sgd.kept(step) for step in steps)
        self.averaged.lerp_(self.weights, 1 - kept)

    def _check(self, name: str, found: Tensor) -> None:
        if name not in self.sizes:
            raise FederationError("site", short(name), "a site of the plan")
        if found.shape != self.weights.shape or found.dtype != self.weights.dtype:
            raise FederationError("weights", (found.dtype, tuple(found.shape)), f"{tuple(self.weights.shape)} numbers")
        if not bool(torch.isfinite(found).all()):
            raise FederationError("weights", "some that are not numbers", f"finite weights of {short(name)}")
