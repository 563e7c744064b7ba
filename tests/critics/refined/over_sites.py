"""DP-SGD over sites that are all in one process, on embedded digits."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import torch
from works import small_refined

from gswgan.critics.refined.critic import RefinedStart
from gswgan.critics.refined.sites import ServerAverage, SiteSteps, farther
from gswgan.critics.refined.steps import DPSGD
from gswgan.data import ImageData, load_data
from gswgan.federated.silos import site_parts
from gswgan.generators.refined import RefinedGenerator
from gswgan.generators.scaled_descent import weights_of
from gswgan.methods import make_plan
from gswgan.methods.refined import PlannedRefined
from gswgan.plan.facts import Facts, Silos, Site
from gswgan.plan.method import Federation
from gswgan.plan.plan import Plan
from gswgan.privacy import GaussianMechanism, Ledger, Streams
from gswgan.privacy.randomness import BatchStreams
from gswgan.run.loop import make_generator

CPU = torch.device("cpu")
STEPS = 6


def sites(count: int = 3) -> dict[str, ImageData]:
    """Of the embedded digits, so many sites with some of them each."""
    whole = load_data("digits")
    few = dataclasses.replace(whole, images=whole.images[:360], labels=whole.labels[:360])
    return dict(site_parts(few, "record", number=count, concentration=None, seed=0))


def planned(parts: Mapping[str, ImageData], **options) -> Plan:
    """A few steps; every site adds all of the noise."""
    silos = Silos(sites=tuple(Site(name=n, records=d.n) for n, d in sorted(parts.items())), min_sites=len(parts))
    first = next(iter(parts.values()))
    facts = dataclasses.replace(Facts.of(first), records=sum(d.n for d in parts.values()), silos=silos)
    asked = {"preset": "refined", "steps": STEPS, "epsilon": 10.0, "delta": 1e-5} | options
    federation = Federation(observer="server", neighbours="replace-one")
    return small_refined(make_plan(facts, federation=federation, **asked), steps=2)


@dataclasses.dataclass
class Federated:
    """All sites and the server in one process; networks and gradients are shared, weights are put there."""

    plan: Plan
    parts: dict[str, ImageData]
    place: Path

    def __post_init__(self) -> None:
        made = make_generator(self.plan, CPU)
        assert isinstance(made, RefinedGenerator)
        torch.manual_seed(0)
        with torch.no_grad():
            for value in made.denoised.parameters():
                value.add_(0.1 * torch.randn_like(value))
        settings = self.plan.critic
        assert isinstance(settings, PlannedRefined)
        self.start = RefinedStart(**settings.start_on(self.plan, self.place / "embedding", CPU))
        self.generator = made
        self.start.fit(made)
        self.dp_sgd = DPSGD(settings=settings, optimizer=self.plan.optimizer, releases=self.plan.sums.releases)
        sizes = {name: data.n for name, data in self.parts.items()}
        weights = weights_of(made.denoised)
        self.server = ServerAverage(self.dp_sgd, sizes, weights, weights)
        self.ledgers, self.sites = {}, {}
        for name, data in self.parts.items():
            secret = Streams(name.encode().ljust(32, b" ")[:32], self.plan.digest())
            path = self.place / name
            path.mkdir(parents=True, exist_ok=True)
            ledger = Ledger(
                path / "ledger.jsonl", observer="server", context=self.plan.digest(), journal=path / "journal.jsonl"
            )
            privacy = self.plan.sums
            mechanism = GaussianMechanism(
                contribution=privacy.contribution, event=privacy.event, ledger=ledger, streams=secret
            )
            self.ledgers[name] = ledger
            self.sites[name] = SiteSteps(
                self.dp_sgd, data, mechanism, BatchStreams(secret), network=made.denoised,
                preconditioner=made.preconditioner, gradients=self.start.gradients(made), farther=farther(sizes),
            )  # fmt: skip

    def round(self, steps: range) -> None:
        self.server.take({n: site.answer(self.server.weights, steps) for n, site in self.sites.items()}, steps)
