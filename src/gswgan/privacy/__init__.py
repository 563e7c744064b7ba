"""The privacy core: events, the mechanism, the ledger, the accountant. It knows nothing of GANs or images.

Read in this order: events.py (what a release is), mechanism.py (how one happens), ledger.py (how it is recorded),
accountant.py (what it costs), then randomness.py, calibration.py and claims.py.
"""

from gswgan.privacy.accountant import Accountant, PrivacyCost
from gswgan.privacy.calibration import calibrate
from gswgan.privacy.events import Composed, Contribution, DrawnOne, Event, Gaussian, Repeated, Sampled
from gswgan.privacy.ledger import Ledger
from gswgan.privacy.mechanism import GaussianMechanism, Released
from gswgan.privacy.randomness import Streams

__all__ = [
    "Accountant",
    "Composed",
    "Contribution",
    "DrawnOne",
    "Event",
    "Gaussian",
    "GaussianMechanism",
    "Ledger",
    "PrivacyCost",
    "Released",
    "Repeated",
    "Sampled",
    "Streams",
    "calibrate",
]
