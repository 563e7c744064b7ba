"""The draw of who takes part in a query: by the event's law, from the run's key, under the query's name.

A critic asks its mechanism for the participants (`GaussianMechanism.participants`) and cannot choose how they are
drawn: the rate is that of the event that the ledger records and the accountant counts, and two queries have two names,
so they have independent coins.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from gswgan.privacy.errors import PrivacyError
from gswgan.privacy.events import BaseEvent, DrawnOne, Sampled
from gswgan.privacy.randomness import Streams


def draw_participants(event: BaseEvent, count: int, streams: Streams, *name: str) -> NDArray[np.int64]:
    """Return the indices in `count` of those who take part in the query of this name, in ascending order.

    `Sampled`: each by its own coin at the event's rate, without a cap, a fixed size or a second draw. `DrawnOne`: one
    of the event's `count`, uniformly. Otherwise all.
    """
    if isinstance(event, Sampled):
        return np.flatnonzero(streams.bernoulli(count, event.rate, "participation", *name))
    if isinstance(event, DrawnOne):
        if count != event.count:
            raise PrivacyError("count", count, f"{event.count}, of whom one is drawn, as was accounted for")
        (word,) = streams.words(1, "participation", *name)
        return np.array([int(word) % count])
    return np.arange(count)


def expected_participants(event: BaseEvent, count: int) -> float:
    """Return how many of `count` take part on average: the public number that a noisy sum is divided by."""
    if isinstance(event, DrawnOne):
        return 1.0
    return event.rate * count if isinstance(event, Sampled) else float(count)


def usual_participants(event: BaseEvent, count: int) -> int:
    """Return a number of participants that is rarely exceeded: two standard deviations above the mean."""
    expected = expected_participants(event, count)
    spread = math.sqrt(expected * (1 - event.rate)) if isinstance(event, Sampled) else 0.0
    return math.ceil(min(count, expected + 2 * spread))
