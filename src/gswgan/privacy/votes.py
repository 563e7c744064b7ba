"""Noisy counts of votes (PATE, Papernot et al. 2017 and 2018): count, record, add noise.

Votes are counted as integers, so one voter moves a count by 0 or 1: no value is clipped and none raises. Noise is a
real Gaussian or Laplace draw rounded exactly to a grid on which a vote is 2^GRID_BITS steps: the output is the rounding
of counts plus real noise. (A `GaussianMechanism` over one-hot rows would also work, but must allow for any two rows of
norm 1, which can be 2 apart; two votes are sqrt(2) apart.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gswgan.privacy.errors import PrivacyError
from gswgan.privacy.events import Gaussian, Laplace
from gswgan.privacy.ledger import Ledger
from gswgan.privacy.mechanism import GRID_BITS, MAX_NOISE, announce, check_key
from gswgan.privacy.randomness import Streams


@dataclass(frozen=True, kw_only=True)
class Ballot:
    """One voter's votes: one of `options`, or none, in each of `questions`. Each record has one voter.

    Counted are the votes for each option or, with `largest`, only the largest count of each question.
    """

    questions: int
    options: int
    largest: bool = False

    def __post_init__(self) -> None:
        for name, value, least in (("questions", self.questions, 1), ("options", self.options, 2)):
            if type(value) is not int or value < least:
                raise PrivacyError(name, value, f"a whole number of at least {least}")

    @property
    def moved(self) -> int:
        """The number of values that change, each by at most 1, when one voter's votes are replaced.

        A replaced vote takes 1 from one count and adds 1 to another: two values per question. When all counts of a
        question move by at most 1, so does the largest of them: one value per question.
        """
        return self.questions * (1 if self.largest else 2)

    def gaussian(self, noise_std: float) -> Gaussian:
        """Return the event with Gaussian noise: `moved` values that move by at most 1 move by sqrt(moved) in L2."""
        return Gaussian(noise_std=noise_std, sensitivity=math.sqrt(self.moved))

    def laplace(self, scale: float) -> Laplace:
        """Return the event with Laplace noise."""
        return Laplace(scale=scale, sensitivity=1.0, values=self.moved)


class VoteMechanism:
    """Answers with noisy counts of votes; each answer is recorded as `event` in the ledger first."""

    def __init__(self, *, ballot: Ballot, event: Gaussian | Laplace, ledger: Ledger, streams: Streams) -> None:
        if event.neighbours != "replace-one":
            raise PrivacyError("neighbours", event.neighbours, "replace-one, the relation of votes")
        if isinstance(event, Gaussian):
            enough = event.sensitivity >= math.sqrt(ballot.moved) * (1 - 1e-12)
        else:  # whole moves of 1, put together in the event's values as its docstring allows
            enough = math.floor(event.sensitivity) * event.values >= ballot.moved
        if not enough:
            raise PrivacyError("sensitivity", event, f"{ballot.moved} values that each move by 1, for {ballot}")
        self.noise = event.noise_std if isinstance(event, Gaussian) else event.scale
        if self.noise > MAX_NOISE:
            raise PrivacyError("noise", self.noise, f"at most {MAX_NOISE:.0f} votes")
        check_key(ledger, streams)
        self.ballot, self.event, self.ledger = ballot, event, ledger
        self._streams = streams

    def answer(self, name: str, votes: Tensor) -> NDArray[np.float64]:
        """Count votes [voters, questions], record the event, and add noise to every count.

        A vote is the number of an option; any other number is no vote. Returns counts [questions, options] or, for
        a ballot of the largest, [questions]. `name` is as in `GaussianMechanism.answer`.
        """
        exact = self.counts(votes) << GRID_BITS
        fingerprint = announce(name, exact, self.ballot, self.event, self.ledger, self._streams)
        draw = self._streams.rounded_gaussian if isinstance(self.event, Gaussian) else self._streams.rounded_laplace
        noise = draw(exact.shape, self.noise * 2.0**GRID_BITS, "noise", self.ledger.observer, name, fingerprint)
        return (exact + noise).astype(np.float64) * 2.0**-GRID_BITS

    def counts(self, votes: Tensor) -> NDArray[np.int64]:
        """Return the exact counts: private."""
        ballot = self.ballot
        if votes.ndim != 2 or votes.shape[1] != ballot.questions or votes.is_floating_point():
            found = (str(votes.dtype), tuple(votes.shape))
            raise PrivacyError("votes", found, f"whole numbers [voters, {ballot.questions}], as was accounted for")
        options = torch.arange(ballot.options, device=votes.device)
        counts = torch.stack([(votes == option).sum(dim=0) for option in options], dim=1)
        return np.asarray((counts.amax(dim=1) if ballot.largest else counts).cpu().numpy())
