"""The privacy core: events, mechanisms, ledger and accountant. It imports nothing of GANs or images.

Read in this order: events.py (what an answer is), mechanism.py and votes.py (how it is computed), ledger.py (how it
is recorded), accountant.py (what it costs), then randomness.py, participation.py, calibration.py and claims.py.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gswgan.privacy.accountant import Accountant, PrivacyCost
    from gswgan.privacy.calibration import calibrate
    from gswgan.privacy.events import Composed, Contribution, DrawnOne, Event, Gaussian, Laplace, Repeated, Sampled
    from gswgan.privacy.ledger import Ledger
    from gswgan.privacy.mechanism import Answer, GaussianMechanism
    from gswgan.privacy.randomness import BatchStreams, Streams
    from gswgan.privacy.votes import Ballot, VoteMechanism

_HOME = {
    "accountant": ("Accountant", "PrivacyCost"),
    "calibration": ("calibrate",),
    "events": ("Composed", "Contribution", "DrawnOne", "Event", "Gaussian", "Laplace", "Repeated", "Sampled"),
    "ledger": ("Ledger",),
    "mechanism": ("Answer", "GaussianMechanism"),
    "randomness": ("BatchStreams", "Streams"),
    "votes": ("Ballot", "VoteMechanism"),
}

__all__ = [
    "Accountant", "Answer", "Ballot", "BatchStreams", "Composed", "Contribution", "DrawnOne", "Event", "Gaussian",
    "GaussianMechanism", "Laplace", "Ledger", "PrivacyCost", "Repeated", "Sampled", "Streams", "VoteMechanism",
    "calibrate",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a name on first use, so that an error message or `--help` does not wait for torch."""
    for module, names in _HOME.items():
        if name in names:
            return getattr(importlib.import_module(f"gswgan.privacy.{module}"), name)
    raise AttributeError(f"module 'gswgan.privacy' has no attribute {name!r}")
