"""What one release shows about the changed record, as one number: the sufficient statistic.

The worst neighbours move one contribution (a critic's whole block, a record's gradient, a voter's votes) from -v to v.
Along v, in units of the noise, a release is a normal number around a mean that tells whether the contributor took part,
and with which contribution; across v it is noise alone. The audit ties these laws to real runs (`wiring.Observed`).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gswgan.privacy import DrawnOne, Sampled
from gswgan.privacy.events import BaseEvent, gaussian_of

NUMBERS_PER_CHUNK = 2**20
"""Numbers drawn at a time by one thread."""


@dataclass(frozen=True, kw_only=True)
class StepLaw:
    """A mixture of two unit normals in each world: the changed critic is out, or in.

    Poisson participation: the others answer 0, so without the changed critic the mean is 0 in both worlds. The
    paper's draw of one: the others answer as the changed critic does in the second world, which then is constant.
    """

    rate: float
    out: float  # mean when the changed critic does not take part
    size: float  # mean size when it does: +size in the first world, -size in the second

    @classmethod
    def of(cls, event: BaseEvent) -> StepLaw:
        """The law of the worst neighbours of one release under replace-one, from -v to v."""
        gaussian = gaussian_of(event)
        size = gaussian.mu / 2
        if isinstance(event, DrawnOne):
            return cls(rate=1 / event.count, out=-size, size=size)
        return cls(rate=event.rate if isinstance(event, Sampled) else 1.0, out=0.0, size=size)

    def draw(self, shape: tuple[int, int], world: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Statistics [trials, steps] of world 1 or 2."""
        values = rng.standard_normal(shape)
        values += self.out
        takes_part = np.flatnonzero(rng.random(shape, dtype=np.float32) < self.rate) if self.rate < 1 else slice(None)
        values.reshape(-1)[takes_part] += (self.size if world == 1 else -self.size) - self.out
        return values

    def log_ratio(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Log-likelihood ratio of the two worlds for statistics [trials, steps], summed over the steps."""
        if self.rate == 1:
            return 2 * self.size * values.sum(axis=1)
        ratio = self._lift(values, self.size)
        if self.out == 0:
            ratio /= self._lift(values, -self.size)
        total = np.zeros(len(values))
        for start in range(0, values.shape[1], 8):  # a few products before each logarithm
            total += np.log(ratio[:, start : start + 8].prod(axis=1))
        return total

    def scores(self, trials: int, steps: int, world: int, *, seed: int) -> NDArray[np.float64]:
        """Log-likelihood ratios of many independent trials, in threads; the seed fixes them."""
        rows = max(1, NUMBERS_PER_CHUNK // steps)
        parts = [min(rows, trials - start) for start in range(0, trials, rows)]
        seeds = np.random.SeedSequence([seed, world]).spawn(len(parts))

        def part(index: int) -> NDArray[np.float64]:
            rng = np.random.Generator(np.random.PCG64(seeds[index]))
            return self.log_ratio(self.draw((parts[index], steps), world, rng))

        with ThreadPoolExecutor() as pool:
            return np.concatenate(list(pool.map(part, range(len(parts)))))

    def _lift(self, values: NDArray[np.float64], mean: float) -> NDArray[np.float64]:
        """(1 - rate) + rate N(mean) / N(out): a world's density over that of a step without the changed critic."""
        ratio = (mean - self.out) * values
        ratio -= (mean**2 - self.out**2) / 2
        np.exp(np.minimum(ratio, 80.0, out=ratio), out=ratio)  # so sure already; eight factors stay finite
        ratio *= self.rate
        ratio += 1 - self.rate
        return ratio
