"""Fed-Avg GAN (Augenstein et al. 2019, Algorithm 1): DP-FedAvg on the discriminator, the generator at the server.

In a round each client takes part with probability q by a secret coin. It copies the discriminator, makes some steps
of SGD on its own records and on fakes, and sends the difference of all weights, clipped to one norm; the differences
are summed, noise is added once (trusted aggregator, one client zeroed), and the sum over the fixed number q x clients
moves the discriminator. What the generator then learns from it is post-processing.

Where it departs from the published code: clients by coins, not ten of them without replacement; our conditional
critic and generator; Adam for the generator. Clients are computed here, in one batch; docs/results.md has the bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gswgan.critics import Critic
from gswgan.critics.ensemble.ensemble import QUANTILES
from gswgan.critics.ensemble.loss import critic_gradients, generator_gradient
from gswgan.critics.ensemble.network import CriticShape, init_critics, power_iteration
from gswgan.critics.one_thread import one_thread
from gswgan.data import ImageData
from gswgan.errors import PlanError, PrivacyError
from gswgan.generators.generator import Generator, OptimizerSettings
from gswgan.methods.gan_generator import gan_generator, is_tiny
from gswgan.plan.context import RunContext
from gswgan.plan.facts import Facts
from gswgan.plan.method import Method, PlanRequest
from gswgan.plan.plan import CriticSettings, Draft, Plan, TrainingSettings
from gswgan.privacy import BatchStreams, Contribution, Event, Gaussian, GaussianMechanism, Repeated, Sampled, Streams
from gswgan.privacy.claims import Claim, claimed_rounds
from gswgan.privacy.mechanism import Block
from gswgan.privacy.participation import expected_participants, usual_participants
from gswgan.ranges import Batch, LearningRate, NoiseMultiplier, PenaltyWeight, Steps, Updates, Width

NOISES = {"noise-0.01": 0.01, "noise-0.1": 0.1, "noise-0.5": 0.5}
"""The three of the GS-WGAN paper's figure 5; the first is that of Augenstein et al."""

PUBLISHED_DISCRIMINATOR, PUBLISHED_GENERATOR = 6_558_913, 13_312_545
"""Numbers in the published networks (convolutions of 64 and 128 maps, 1024 hidden units; latent 128)."""

CLIENTS_PER_CHUNK = {"cpu": 16, "cuda": 128}
"""Clients that are computed together at the most."""


@dataclass(frozen=True, kw_only=True)
class FedAvgSettings(CriticSettings):
    """The discriminator and its rounds. The first four, with the number of clients, are what the guarantee needs."""

    clip_norm: float = 0.1  # of a client's difference of weights
    noise_multiplier: NoiseMultiplier  # noise_std over clip_norm
    clients: int = 10  # in a round, on average
    releases: Steps = 1000  # rounds
    updates: Updates = 6  # steps of a client in a round
    generator_updates: Updates = 6  # steps of the generator after a round
    learning_batch: Batch = 32
    penalty_weight: PenaltyWeight = 10.0
    drift_penalty: PenaltyWeight = 0.0
    width: Width = 64
    learning_rate: LearningRate = 5e-3  # of a client's SGD

    @property
    def contribution(self) -> Contribution:
        """The most that one client adds to a round: one difference of norm clip_norm."""
        return Contribution(clip_norm=self.clip_norm)

    def event(self, persons: int) -> Sampled:
        """One round: a client's difference could as well have been zero."""
        if not 1 <= self.clients <= persons:
            raise PlanError("clients", self.clients, f"a number from 1 to {persons}, the clients")
        bound = self.contribution.sensitivity("zeroed")
        noise = Gaussian(noise_std=self.noise_multiplier * bound, sensitivity=bound, neighbours="zeroed")
        return Sampled(rate=self.clients / persons, event=noise)

    def total(self, draft: Draft, steps: int) -> Event:
        """One release for every `generator_updates` steps that were begun."""
        return Repeated(event=self.event(_clients(draft.facts)), times=math.ceil(steps / self.generator_updates))

    def describe(self, draft: Draft) -> str:
        """The discriminator on one line."""
        return (
            f"discriminator of width {self.width} by DP-FedAvg: {self.releases:,} rounds of {self.clients} clients on "
            f"average, differences clipped to {self.clip_norm:g}, noise {self.noise_multiplier:g} of it"
        )

    def claimed(self, draft: Draft, delta: float) -> Claim:
        """The GS-WGAN paper's figure for such a run."""
        rate = self.clients / _clients(draft.facts)
        return claimed_rounds(self.noise_multiplier, rate=rate, rounds=self.releases, delta=delta)

    def check(self, plan: Plan) -> None:
        """A person is a client; the steps are those of the rounds."""
        _clients(plan.facts)
        steps = self.releases * self.generator_updates
        if plan.training.steps != steps:
            raise PlanError("steps", plan.training.steps, f"{steps}, as accounted for")

    def make(self, plan: Plan, context: RunContext) -> FedAvgGAN:
        """The discriminator behind the mechanism that records what is accounted for."""
        mechanism = context.mechanism(self.contribution, self.event(_clients(plan.facts)))
        return FedAvgGAN(
            self, mechanism, **plan.facts.shape, public=context.public, batches=context.batches, device=context.device
        )


def _clients(facts: Facts) -> int:
    if facts.persons is None:
        raise PlanError("persons", None, "data by person: each is a client", "Pass --data mnist-writers, say.")
    return facts.persons


class FedAvgGAN(Critic):
    """The discriminator at the server; every round of the clients is one release."""

    def __init__(
        self,
        settings: FedAvgSettings,
        mechanism: GaussianMechanism,
        *,
        public: Streams,
        batches: BatchStreams,
        device: torch.device,
        **shape: int,
    ) -> None:
        """`mechanism` is made of the settings' `contribution` and `event`; what it records is what happens here."""
        if not isinstance(mechanism.event, Sampled) or mechanism.contribution != settings.contribution:
            found = (mechanism.event, mechanism.contribution)
            raise PrivacyError("mechanism", found, f"a sampled sum of {settings.contribution}")
        self.settings, self._mechanism, self._batches, self.device = settings, mechanism, batches, device
        self.classes = shape["classes"]
        sizes = CriticShape(width=settings.width, **shape)
        seed = public.integer("discriminator weights")
        self.params, self.buffers = init_critics(sizes, 1, seed=seed, device=device)
        self.width = sum(value.numel() for value in self.params.values())
        self.images = self.labels = torch.zeros(1)
        self._participants, self._norms = np.empty(0, np.int64), list[Tensor]()

    def prepare(self, data: ImageData | None, *, resumed: bool = False) -> None:
        """Whose records are whose. Nothing leaves."""
        assert data is not None, "clients learn from data"
        if data.persons is None:
            raise PrivacyError("persons", None, "records by person: each is a client")
        self.count = data.number_of_persons
        order = np.argsort(data.persons, kind="stable")
        self._own = np.split(order, np.searchsorted(data.persons[order], np.arange(1, self.count)))
        labels = np.zeros(data.n, np.int64) if data.labels is None else data.labels
        self.images = torch.from_numpy(data.images).to(self.device)
        self.labels = torch.from_numpy(labels.clip(0, self.classes - 1)).to(self.device)
        usual = usual_participants(self._mechanism.event, self.count)
        self.chunk = math.ceil(
            usual / math.ceil(usual / CLIENTS_PER_CHUNK[self.device.type])
        )  # one size: kernels never vary

    def draw_participants(self, number: int) -> np.ndarray:
        """Who takes part in a round: independent secret coins."""
        return self._mechanism.participants(f"round {number}", self.count)

    def learn(self, step: int, generator: Generator) -> None:
        """theta_D <- theta_D + (sum clip(delta_k) + noise) / (q clients), before every `generator_updates` steps."""
        number, inside = divmod(step, self.settings.generator_updates)
        if inside:
            return
        self._participants, self._norms = self.draw_participants(number), []
        blocks = self._blocks(number, generator)
        released = self._mechanism.answer(f"round {number}", blocks, slots=1, width=self.width)
        expected = expected_participants(self._mechanism.event, self.count)
        moved = torch.from_numpy((released.sums[0] / expected).astype(np.float32)).to(self.device)
        for value, part in zip(self.params.values(), moved.split([v.numel() for v in self.params.values()])):
            value += part.view_as(value)
        self.buffers = power_iteration(self.params, self.buffers)

    def _blocks(self, number: int, generator: Generator) -> Iterator[Block]:
        """The participants' differences; a client without records adds nothing."""
        size, some = self.settings.learning_batch, max(2, math.ceil(2 * self.settings.learning_batch / self.classes))
        pools = []  # a client has the generator and draws its own fakes; here all have the same
        for update in range(self.settings.updates):
            images, labels = generator.fakes(some * self.classes, "clients", number, update)
            pools.append(images[labels.argsort(stable=True)])
        members = [k for k in self._participants if len(self._own[k])]
        for start in range(0, len(members), self.chunk):
            real = members[start : start + self.chunk]
            draws = [self._draws(number, int(k), size) for k in np.resize(real, self.chunk)]
            rows, mixes = (torch.from_numpy(np.stack(part, axis=1)).to(self.device) for part in zip(*draws))
            with one_thread(self.device):
                found = self.differences(pools, rows, mixes)[: len(real)]
            self._norms.append(found.norm(dim=1))
            yield found[:, None], None

    def _draws(self, number: int, client: int, size: int) -> tuple[np.ndarray, np.ndarray]:
        """A client's records and mixing shares for all its steps, [updates, B]: nobody's depend on others."""
        rng, own = self._batches.generator(number, client), self._own[client]
        shape = self.settings.updates, size
        return own[rng.integers(0, len(own), shape)], rng.random(shape, dtype=np.float32)

    def differences(self, pools: list[Tensor], rows: Tensor, mixes: Tensor) -> Tensor:
        """UserDiscUpdate of m clients at once: SGD from the server's weights, minus these, [m, P]; not clipped."""
        options, count = self.settings, rows.shape[1]
        params = {name: value.repeat(count, *(1,) * (value.ndim - 1)) for name, value in self.params.items()}
        buffers = {name: value.repeat(count, *(1,) * (value.ndim - 1)) for name, value in self.buffers.items()}
        for pool, mine, mix in zip(pools, rows, mixes):
            labels, some = self.labels[mine], len(pool) // self.classes
            fake = pool[labels * some + torch.arange(mine.shape[1], device=self.device) % some]
            real = self.images[mine].to(torch.float32) / 255
            _, grads = critic_gradients(
                params, buffers, real, labels, fake, labels, mix,
                penalty_weight=options.penalty_weight, drift_penalty=options.drift_penalty,
            )  # fmt: skip
            for name, value in params.items():
                value -= options.learning_rate * grads[name]
            buffers = power_iteration(params, buffers)
        return torch.cat([(params[name] - self.params[name]).flatten(1) for name in params], dim=1)

    def upstream_gradient(self, fake: Tensor, labels: Tensor) -> Tensor:
        """Gradient of -D with respect to each fake, through the discriminator as it is: post-processing."""
        return generator_gradient(self.params, self.buffers, fake.detach(), labels)[0]

    def metrics(self) -> dict[str, Any]:
        """The last round: who took part, QUANTILES of the norms of their differences (private)."""
        found: dict[str, Any] = {"participants": len(self._participants)}
        if self._norms:
            norms = torch.cat(self._norms).double().nan_to_num(0.0, 0.0, 0.0).cpu().numpy()
            found["norm_before"] = np.quantile(norms, QUANTILES).tolist()
            found["norm_after"] = np.quantile(norms.clip(max=self.settings.clip_norm), QUANTILES).tolist()
        return found

    def state(self) -> dict[str, Tensor]:
        """The discriminator."""
        return {**self.params, **self.buffers}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `state`."""
        for name, value in self.state().items():
            value.copy_(tensors[name])


class FedAvgGANMethod(Method):
    """The published rounds with our networks; small networks for tiny images. `noise` is the noise multiplier."""

    name = "fed-avg-gan"
    about = "Fed-Avg GAN (Augenstein et al. 2019): DP-FedAvg on the discriminator, for clients; the noise is fixed"
    settings = FedAvgSettings
    presets = tuple(NOISES)

    def critic(self, request: PlanRequest, noise: float) -> FedAvgSettings:
        """The discriminator at this noise."""
        critic = FedAvgSettings(noise_multiplier=noise, clients=min(10, _clients(request.facts)))
        if is_tiny(request.facts):
            critic = replace(critic, width=8, learning_batch=16, releases=200, learning_rate=2e-2)
        if request.steps is not None:
            critic = replace(critic, releases=math.ceil(request.steps / critic.generator_updates))
        return critic

    def events(self, request: PlanRequest, noise: float) -> Event:
        """All rounds."""
        critic = self.critic(request, noise)
        return Repeated(event=critic.event(_clients(request.facts)), times=critic.releases)

    def draft(self, request: PlanRequest, noise: float) -> Draft:
        """All settings, with the generator of the GAN baselines."""
        critic = self.critic(request, noise)
        return Draft(
            method=self.name,
            preset=request.preset,
            facts=request.facts,
            critic=critic,
            generator=gan_generator(request),
            optimizer=OptimizerSettings(learning_rate=5e-4, betas=(0.5, 0.9), average=0.99),
            training=TrainingSettings(steps=critic.releases * critic.generator_updates, batch_size=64),
        )

    def own_noise(self, preset: str) -> float | None:
        """Every preset fixes it."""
        return NOISES[preset]


METHOD = FedAvgGANMethod()
