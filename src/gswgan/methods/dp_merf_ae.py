"""DP-MERF AE (Harder, Adamczewski, Park 2021): DP-MERF on the codes of an auto-encoder that is trained with DP-SGD.

1. An auto-encoder learns with DP-SGD: each update is one release. Encoder and decoder are made of releases alone.
2. The mean embedding of each class under random features of the encoder's *codes* is released once, by the kernel
   critic. The encoder is public by then and looks at each record alone (no batch norm), so a record still adds one row
   of norm 1 and one count. Both parts are one composition: one ledger, one epsilon.
3. The generator learns to make codes with that embedding; the decoder makes images of them. Both are post-processing.

The preset `paper` is the GS-WGAN paper's run: a noisy embedding of a minibatch in each of 2040 iterations, noise scale
0.686. Its appendix has one noise scale and one number of iterations for the method, and they cost the claimed 10 for
one of the two parts. Here the auto-encoder has them too (17 passes), and the stated epsilon is for both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from gswgan.critics import Critic
from gswgan.critics.autoencoder import Autoencoder, AutoencoderSettings, train
from gswgan.critics.dp_sgd import RecordGradients
from gswgan.critics.kernel.critic import KernelCritic
from gswgan.critics.kernel.embedding import PlannedEmbedding
from gswgan.critics.kernel.features import KernelSettings, RandomFeatures
from gswgan.data import ImageData
from gswgan.errors import PlanError
from gswgan.generators import GeneratorSettings
from gswgan.generators.decoded import CODE, DecodedGenerator
from gswgan.generators.generator import Generator, OptimizerSettings
from gswgan.methods.dp_merf_minibatch import MinibatchSettings, check_embedding
from gswgan.methods.gan_generator import is_tiny
from gswgan.plan.context import RunContext
from gswgan.plan.facts import Facts
from gswgan.plan.method import Method, PlanRequest
from gswgan.plan.plan import CriticSettings, Draft, Plan, TrainingSettings
from gswgan.privacy import Composed, Contribution, Event, Gaussian, Repeated
from gswgan.privacy.claims import Claim
from gswgan.ranges import Features, LengthScale, Seed

FEATURES = 2000
LENGTH_SCALE = round(0.5 * math.sqrt(CODE), 2)
"""Codes have norm sqrt(CODE)."""

PAPER_NOISE_SCALE, PAPER_ITERATIONS, PAPER_BATCH = 0.686, 2040, 500
"""Of the GS-WGAN paper's run; the noise is relative to the sensitivity, as for DP-MERF."""

UPDATES, TINY_UPDATES = 400, 200
"""Of the auto-encoder. Few and quiet ones: a small auto-encoder is soon good enough."""

EMBEDDING_SHARE = 0.25
"""Of the budget that the embedding has, about, counted in mu^2."""


@dataclass(frozen=True, kw_only=True)
class EmbeddingSettings:
    """The kernel on codes, and the noise of its one release."""

    noise_std: float
    features: Features = FEATURES
    length_scale: LengthScale = LENGTH_SCALE
    seed: Seed = 0  # of the random frequencies

    accounted_steps: ClassVar[None] = None  # any number: they release nothing

    def released_embedding(self, draft: Draft) -> PlannedEmbedding:
        """The one release."""
        return PlannedEmbedding(features=self.features, noise_std=self.noise_std)

    @property
    def kernel(self) -> KernelSettings:
        """The features."""
        return KernelSettings(features=self.features, length_scales=(self.length_scale,), seed=self.seed)

    def contribution(self, facts: Facts) -> Contribution:
        """Features of norm 1, and a count where there are classes."""
        return Contribution(clip_norm=1.0, counts=facts.labelled)

    def event(self, facts: Facts) -> Gaussian:
        """The release."""
        return Gaussian(noise_std=self.noise_std, sensitivity=self.contribution(facts).sensitivity("replace-one"))

    def events(self, facts: Facts, steps: int) -> Event:
        """One release, whatever the steps."""
        return self.event(facts)

    def how_often(self, facts: Facts) -> str:
        """How often an embedding is released."""
        return "once"

    def claimed(self, draft: Draft, delta: float) -> None:
        """No figure is stated elsewhere."""

    def make_on(self, features: RandomFeatures, plan: Plan, context: RunContext) -> KernelCritic:
        """The kernel critic on these features, behind its mechanism."""
        mechanism = context.mechanism(self.contribution(plan.facts), self.event(plan.facts))
        return KernelCritic(features, mechanism, context.embedding, memory=plan.training.memory)


@dataclass(frozen=True, kw_only=True)
class DPMerfAESettings(CriticSettings):
    """Both parts: all that the guarantee depends on, with the number of records."""

    autoencoder: AutoencoderSettings
    embedding: EmbeddingSettings | MinibatchSettings

    def events(self, facts: Facts, steps: int) -> Event:
        """All updates of the auto-encoder, before the first step, and the embedding: one, or one in each step."""
        updates = Repeated(event=self.autoencoder.event(facts.records), times=self.autoencoder.releases)
        return Composed(events=(updates, self.embedding.events(facts, steps)))

    def released_embedding(self, draft: Draft) -> PlannedEmbedding | None:
        """Of codes, where it is released once."""
        return self.embedding.released_embedding(draft)

    def total(self, draft: Draft, steps: int) -> Event:
        """Of both parts."""
        return self.events(draft.facts, steps)

    def describe(self, draft: Draft) -> str:
        """Auto-encoder and kernel on one line."""
        auto, embedding = self.autoencoder, self.embedding
        return (
            f"auto-encoder of width {draft.generator.width} with codes of {CODE}, trained with DP-SGD: {auto.releases} "
            f"updates on {auto.learning_batch} records on average, gradients clipped to {auto.clip_norm:g}; kernel on "
            f"its codes, {embedding.features:,} random features, length scale {embedding.length_scale:.3g}, "
            f"released {embedding.how_often(draft.facts)}"
        )

    def check(self, plan: Plan) -> None:
        """A record is protected, not a person; the generator is one of codes; what is accounted for is what happens."""
        if plan.facts.persons is not None:
            raise PlanError("persons", plan.facts.persons, "none: DP-SGD protects one record at a time")
        if plan.generator.architecture != "decoded":
            raise PlanError("architecture", plan.generator.architecture, "decoded: the generator makes codes")
        check_embedding(self.embedding.features, self.embedding.accounted_steps, plan)

    def claimed(self, draft: Draft, delta: float) -> Claim | None:
        """The GS-WGAN paper's figure, which covers one of the two parts (9.999 for its MNIST run)."""
        return self.embedding.claimed(draft, delta)

    def make(self, plan: Plan, context: RunContext) -> DPMerfAE:
        """Both parts, each behind its own mechanism."""
        return DPMerfAE(self, plan, context)


class CodeFeatures(RandomFeatures):
    """phi(encode(x)): random features of codes, of norm 1 as all are."""

    def __init__(self, settings: KernelSettings, autoencoder: Autoencoder, device: torch.device) -> None:
        super().__init__(settings, CODE, 1, device)
        self.autoencoder = autoencoder

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """Features [n, D] of images [n, c, h, w] in [0, 1]."""
        return super().__call__(self.autoencoder.encode(images))


class DPMerfAE(Critic):
    """The auto-encoder behind its barrier, and the kernel critic on its codes."""

    def __init__(self, settings: DPMerfAESettings, plan: Plan, context: RunContext) -> None:
        self.settings, self._stopped, self._note = settings.autoencoder, context.stopped, context.note
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(context.public.integer("autoencoder weights"))
            network = Autoencoder(
                image_size=plan.facts.image_size, channels=plan.facts.channels, width=plan.generator.width
            )
        self.autoencoder = network.to(context.device)
        mechanism = context.mechanism(self.settings.contribution, self.settings.event(plan.facts.records))
        self.gradients = RecordGradients(self.autoencoder, mechanism)
        features = CodeFeatures(settings.embedding.kernel, self.autoencoder, context.device)
        self.kernel: KernelCritic = settings.embedding.make_on(features, plan, context)

    @property
    def can_be_captured(self) -> bool:
        """As the kernel critic."""
        return self.kernel.can_be_captured

    def prepare(self, data: ImageData | None, *, resumed: bool = False) -> None:
        """Train the auto-encoder, then release the embedding of its codes. A resumed run has both already."""
        assert data is not None, "an auto-encoder learns from data"
        if not resumed:
            self._train(data)
        self.kernel.prepare(data, resumed=resumed)

    def _train(self, data: ImageData) -> None:
        self._note(f"training the auto-encoder: {self.settings.releases} updates")
        train(self.autoencoder, self.gradients, data, self.settings, self._stopped)

    def learn(self, step: int, generator: Generator) -> None:
        """Hand over the decoder, which never changes; the kernel critic's own step."""
        for network in (generator.network, generator.averaged):
            assert isinstance(network, DecodedGenerator)
            network.decoder.load_state_dict(self.autoencoder.decoder.state_dict())
        self.kernel.learn(step, generator)

    def upstream_gradient(self, fake: Tensor, labels: Tensor) -> Tensor:
        """Gradient with respect to each code."""
        return self.kernel.upstream_gradient(fake, labels)

    def metrics(self) -> dict[str, Any]:
        """The kernel critic's."""
        return self.kernel.metrics()

    def state(self) -> dict[str, Tensor]:
        """The auto-encoder and the kernel critic's state: made of releases and of codes."""
        weights = {f"autoencoder.{name}": value for name, value in self.autoencoder.state_dict().items()}
        return weights | {f"kernel.{name}": value for name, value in self.kernel.state().items()}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `state`."""
        parts: dict[str, dict[str, Tensor]] = {"autoencoder": {}, "kernel": {}}
        for name, value in tensors.items():
            part, _, rest = name.partition(".")
            parts[part][rest] = value
        self.autoencoder.load_state_dict(parts["autoencoder"])
        self.kernel.load_state(parts["kernel"])


def _calibrated_run(request: PlanRequest, noise: float) -> DPMerfAESettings:
    """A few hundred updates on a fifth of the records, or 500; the embedding gets its share of the budget.

    q sqrt(T) times one update's mu is about that of T updates at rate q (the central limit theorem of Dong et al. 2022,
    for much noise), which says what share a noise of the embedding has.
    """
    records, tiny = request.facts.records, is_tiny(request.facts)
    batch, updates = max(1, min(500, records // 5)), TINY_UPDATES if tiny else UPDATES
    odds = EMBEDDING_SHARE / (1 - EMBEDDING_SHARE)
    return DPMerfAESettings(
        autoencoder=AutoencoderSettings(
            noise_multiplier=noise, learning_batch=batch, releases=updates, learning_rate=2e-2 if tiny else 5e-3
        ),
        embedding=EmbeddingSettings(noise_std=noise * records / batch / math.sqrt(updates * odds), seed=request.seed),
    )


def _paper_run(request: PlanRequest, noise: float) -> DPMerfAESettings:
    """Both parts with the appendix's figures."""
    batch, times = min(PAPER_BATCH, request.facts.records), request.steps or PAPER_ITERATIONS
    return DPMerfAESettings(
        autoencoder=AutoencoderSettings(noise_multiplier=noise, learning_batch=batch, releases=times),
        embedding=MinibatchSettings(
            features=FEATURES,
            length_scale=LENGTH_SCALE,
            noise_std=noise,
            learning_batch=batch,
            releases=times,
            seed=request.seed,
        ),
    )


class DPMerfAEMethod(Method):
    """`noise` is the noise multiplier of the auto-encoder; that of the embedding is in proportion."""

    name = "dp-merf-ae"
    about = "DP-MERF AE (Harder, Adamczewski, Park 2021): noisy mean embeddings of a DP-SGD auto-encoder's codes"
    settings = DPMerfAESettings
    presets = ("default", "paper")

    def critic(self, request: PlanRequest, noise: float) -> DPMerfAESettings:
        """Both parts at this noise."""
        return _paper_run(request, noise) if request.preset == "paper" else _calibrated_run(request, noise)

    def events(self, request: PlanRequest, noise: float) -> Event:
        """Of both parts."""
        critic = self.critic(request, noise)
        return critic.events(request.facts, critic.embedding.accounted_steps or 1)

    def draft(self, request: PlanRequest, noise: float) -> Draft:
        """All settings, with a generator of codes."""
        critic, tiny = self.critic(request, noise), is_tiny(request.facts)
        steps = critic.embedding.accounted_steps or request.steps or 1500
        return Draft(
            method=self.name,
            preset=request.preset,
            facts=request.facts,
            critic=critic,
            generator=GeneratorSettings(architecture="decoded", width=8 if tiny else 16),
            optimizer=OptimizerSettings(learning_rate=3e-3, decay=True),
            training=TrainingSettings(steps=steps, batch_size=200 if tiny else 500),
        )

    def own_noise(self, preset: str) -> float | None:
        """That of the GS-WGAN paper's run."""
        return 2 * PAPER_NOISE_SCALE if preset == "paper" else None


METHOD = DPMerfAEMethod()
