"""What a method is: the same loop, ledger, accountant and release, with its own settings, releases and critic.

A method is one file with a class for its critic's settings (`CriticSettings`, which say what is released and make the
critic) and a subclass of `Method`, and one line in `METHODS` (gswgan/methods/__init__.py). Everything else
(calibration, plan, resume, guarantee, card, report) follows. docs/methods.md has an example that runs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from gswgan.critics.kernel.features import PublicNetwork
from gswgan.errors import PrivacyError
from gswgan.plan.facts import Facts, PublicFacts
from gswgan.plan.plan import Draft
from gswgan.privacy import Event
from gswgan.privacy.events import Neighbours


@dataclass(frozen=True, kw_only=True)
class Federation:
    """What a plan of clients has that a centralized plan has not: each person is a client."""

    observer: Literal["public", "server"]
    """To whom the epsilon is promised. `server`: every client adds the full noise itself."""

    neighbours: Neighbours
    rate: float = 1.0
    """The probability that a client takes part in a round, where each client has a critic."""

    rounds: int | None = None
    """In so many rounds sites make the steps of DP-SGD of preset refined; None: as many as the preset has."""


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """What was asked for. Public, all of it. None: as the method, the preset or the facts say."""

    facts: Facts
    preset: str
    delta: float
    epsilon: float | None = None
    critics: int | None = None
    steps: int | None = None
    seed: int = 0
    device: str = "cpu"
    insecure_reproducible: bool = False
    neighbours: Neighbours = "replace-one"
    federation: Federation | None = None
    public: PublicFacts | None = None
    public_features: PublicNetwork = ""


class Method(ABC):
    """One way to train a generator on private images."""

    name: ClassVar[str]
    about: ClassVar[str]
    """What it is, on one line."""

    settings: ClassVar[Any]
    """The type of `Plan.critic`, a frozen dataclass and `CriticSettings` (or a union of some)."""

    presets: ClassVar[tuple[str, ...]] = ("default",)
    """The first is taken when nothing is said."""

    takes_critics: ClassVar[bool] = False
    """Whether the number of its critics or teachers can be asked for."""

    zeroed_presets: ClassVar[tuple[str, ...]] = ()
    """Those that can also be planned for one record zeroed instead of replaced."""

    public_presets: ClassVar[tuple[str, ...]] = ()
    """Those that images which are stated to be public, or features by a network that has seen some, are of use to."""

    has_guarantee: ClassVar[bool] = True

    def events(self, request: PlanRequest, noise: float) -> Event:
        """All that a run at this noise releases: the noise, in whatever unit, is calibrated on this.

        It is the `total` of the draft at this noise, made from the privacy settings alone.
        """
        raise PrivacyError("method", self.name, "a method with a guarantee")

    @abstractmethod
    def draft(self, request: PlanRequest, noise: float) -> Draft:
        """All settings at this noise."""

    def own_noise(self, preset: str) -> float | None:
        """The noise that a preset fixes; None where it is calibrated to epsilon."""
        return None
