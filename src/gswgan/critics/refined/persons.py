"""Which records are whose, and on which of them a person's noise draws fall in a step.

A person's draws are spread over the person's own records as evenly as can be, beginning at a place that belongs to the
step and the person alone. So everybody has equally many draws, and a row depends on nobody else's records.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gswgan.critics.refined.draws import places
from gswgan.data import ImageData


class OwnRecords:
    """The records of some persons, in the order of these."""

    def __init__(self, data: ImageData, held: range, device: torch.device) -> None:
        """`held`: the persons, by their places in the list of all."""
        assert data.persons is not None
        order = np.argsort(data.persons, kind="stable")
        bounds = np.searchsorted(data.persons[order], np.arange(held.start, held.stop + 1))
        self.order = order[bounds[0] : bounds[-1]]
        """Of all records those that are held, with those of a person next to each other."""
        first, count = bounds[:-1] - bounds[0], np.diff(bounds)
        self._first, self.count = (torch.from_numpy(part).to(device) for part in (first, count))

    def of_draws(self, places_held: Tensor, persons: Tensor, seed: Tensor, draws: int) -> Tensor:
        """[n, draws]: places in `order`, for each draw of the persons [n] one of the person's own records.

        `places_held`: the persons' places among those held. With as many records as draws or more, all are different;
        with fewer, each has equally many draws, or one more. A person without records gets the place after them all.
        """
        count = self.count[places_held]
        some = count.clamp(min=1)
        number = torch.arange(draws, device=persons.device)
        stride = (some // draws).clamp(min=1)
        own = (places(seed, persons, some)[:, None] + number * stride[:, None]) % some[:, None]
        return torch.where(count[:, None] > 0, self._first[places_held][:, None] + own, len(self.order))
