"""Worst-case neighbours of GS-WGAN's own critics, driven through the wiring of a real run.

The attacker knows everything but the changed record and the run's key: the other records, the features, the partition.
What they see is what leaves the barrier, projected on the one direction that tells the worlds apart.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gswgan.audit.wiring import (
    CPU,
    GREY,
    NOISE,
    SIDE,
    Observed,
    ReleaseStatistics,
    Statistics,
    made_data,
    made_facts,
    observed,
    open_real_run,
    restated,
    seed_of,
    sign_of_record,
)
from gswgan.critics.ensemble.ensemble import Ensemble
from gswgan.critics.kernel.embedding import Embedding
from gswgan.critics.kernel.features import KernelSettings, RandomFeatures
from gswgan.data import ImageData
from gswgan.errors import RunError
from gswgan.generators.generator import Generator
from gswgan.methods.kernel import PlannedKernel
from gswgan.plan.facts import Facts
from gswgan.plan.plan import Plan
from gswgan.privacy.participation import expected_participants

Features = Callable[[Tensor], Tensor]

CLASSES = 2
COPIES = 2000
"""Trials in one release of the kernel audit: copies of the tiny data set, each with classes of its own."""

FEATURES = KernelSettings(features=32, length_scales=(0.5,))
"""The product's random features, few of them: the mechanism does not depend on how many there are."""

CRITICS = 4
"""Critics in the real steps of the ensemble: how many others there are changes nothing along the direction."""

SIGNAL_TO_NOISE = 2.5
"""The critic's block over the noise in the real steps: so little noise that a wrong rate of participation shows."""


@dataclass(frozen=True, kw_only=True)
class KernelPair:
    """Two tiny data sets that differ in the last record: (image, label) in the first and in the second world."""

    name: str
    first: tuple[NDArray[np.uint8], int]
    second: tuple[NDArray[np.uint8], int]
    others: tuple[int, int] = (0, 1)
    """The classes of the two records that stay."""

    def data(self, world: int, copies: int) -> ImageData:
        """Independent copies of the world's data set, copy i with the classes i L .. i L + L - 1."""
        image, label = self.first if world == 1 else self.second
        rng = np.random.default_rng(0)
        images = rng.integers(0, 256, (3, 1, SIDE, SIDE), dtype=np.uint8)
        images[-1], labels = image, np.array([*self.others, label])
        shift = np.repeat(np.arange(copies) * CLASSES, 3)
        classes = copies * CLASSES
        return ImageData(
            name="audit", images=np.tile(images, (copies, 1, 1, 1)), labels=np.tile(labels, copies) + shift,
            classes=classes, class_names=tuple(map(str, range(classes))),
        )  # fmt: skip


def public_features() -> RandomFeatures:
    """The features that the kernel's runs release."""
    return RandomFeatures(FEATURES, 1, SIDE, CPU)


def kernel_pairs(features: Features) -> tuple[KernelPair, ...]:
    """A record that changes its class, and the furthest that one can move within its class, of many looked at."""
    rng = np.random.default_rng(1)
    images = rng.integers(0, 256, (400, 1, SIDE, SIDE), dtype=np.uint8)
    rows = features(torch.from_numpy(images).to(torch.float32) / 255)
    one, other = np.unravel_index(int(torch.cdist(rows, rows).argmax()), (len(rows), len(rows)))
    return (
        KernelPair(name="the record changes its class", first=(images[0], 0), second=(images[0], 1)),
        KernelPair(name="the record keeps its class", first=(images[one], 0), second=(images[other], 0)),
    )


def kernel_scores(
    plan: Plan, pair: KernelPair, world: int, trials: int, *, seed: int = 0, features: Any = None
) -> Statistics:
    """Projections of real releases on the difference of the two worlds; a linear likelihood ratio.

    Each batch of trials is a run of its own with the plan's privacy settings. `features`: in place of the run's.
    """
    shown = features or public_features()
    direction = exact_sums(pair.data(1, 1), shown) - exact_sums(pair.data(2, 1), shown)
    scores = []
    for number, start in enumerate(range(0, trials, COPIES)):
        copies = min(COPIES, trials - start)
        released = kernel_release(
            plan, pair.data(world, copies), seed=seed_of(seed, pair.name, world, number), features=features
        )
        seen = torch.cat([released.sums, released.counts[:, None]], dim=1).view(copies, -1)
        scores.append((seen @ direction.flatten()).numpy())
    return np.concatenate(scores)


def kernel_release(plan: Plan, data: ImageData, *, seed: int, features: Any = None) -> Embedding:
    """The embedding that a run of the plan's privacy settings on this data leaves in its folder."""
    run = restated(plan, seed=seed, facts=Facts.of(data), critic=PlannedKernel(**vars(FEATURES)))
    with open_real_run(run, data) as real:
        if features is not None:
            real.critic.features = features
        with contextlib.suppress(RunError):  # no class has enough records: training would end here
            real.critic.prepare(data)
        real.check_ledger([run.privacy.event])  # type: ignore[union-attr]
        return Embedding.load(real.folder.embedding)


def exact_sums(data: ImageData, features: Features) -> Tensor:
    """Class sums of (phi, 1) without noise, as the attacker computes them: [L, D + 1] in float64."""
    labels = np.zeros(data.n, np.int64) if data.labels is None else data.labels
    rows = features(torch.from_numpy(data.images).to(torch.float32) / 255).to(torch.float64)
    rows = torch.cat([rows, torch.ones(len(rows), 1, dtype=torch.float64)], dim=1)
    table = torch.zeros(data.classes, rows.shape[1], dtype=torch.float64)
    return table.index_add(0, torch.from_numpy(labels), rows)


def checkerboard(shape: torch.Size | tuple[int, ...]) -> Tensor:
    """+1 and -1 alternating over samples and pixels: noise that is shared between either cancels out and shows."""
    samples = torch.arange(shape[0]).view(-1, 1)
    pixels = torch.arange(int(np.prod(shape[1:]))).view(1, -1)
    return (1.0 - 2.0 * ((samples + pixels) % 2)).view(shape)


def plant_critics(ensemble: Ensemble) -> None:
    """A critic's gradient follows from its record: v for white, -v for black, 0 for grey, far beyond the clip."""

    def planted(members: np.ndarray, images: Tensor, labels: Tensor) -> Tensor:
        first = ensemble.partitions.table[torch.from_numpy(members), 0]
        said = sign_of_record(ensemble.images[first])
        return 1e3 * said.view(-1, 1, 1, 1, 1) * checkerboard(images.shape)

    ensemble.input_gradients = planted  # type: ignore[method-assign]
    ensemble._learn = lambda *args: None  # type: ignore[method-assign]


def small_ensemble_plan(plan: Plan, *, seed: int) -> Plan:
    """The plan with CRITICS critics that do not learn, a record each, and little noise; sampling as it is planned."""
    privacy = plan.privacy
    assert privacy is not None
    critic: Any = plan.critic
    tiny: Any = replace(critic.ensemble_settings, width=2, warm_start=0)
    if plan.critic.has_embedding:  # the kernel critic starts it
        tiny = replace(critic, ensemble=tiny, kernel=replace(FEATURES, features=4000))
    if privacy.sampling != "one":  # the paper's is little enough
        noise = privacy.contribution.sensitivity("zeroed") / SIGNAL_TO_NOISE
        privacy = replace(privacy, noise_std=noise)
    return restated(
        plan, seed=seed, facts=made_facts(CRITICS), critic=tiny, privacy=replace(privacy, critics=CRITICS),
    )  # fmt: skip


def observe_steps(plan: Plan, world: int, steps: int) -> ReleaseStatistics:
    """Real steps: who takes part, planted gradients, clip, sum, ledger, noise.

    With the paper's draw of one, the others answer as the changed critic does in the second world.
    """
    privacy = plan.privacy
    assert privacy is not None
    data = made_data(plan.facts, world, others=0 if privacy.sampling == "one" else GREY)
    fake = torch.zeros(privacy.rows, 1, plan.facts.image_size, plan.facts.image_size)
    labels = torch.zeros(privacy.rows, dtype=torch.int64)
    seen = ReleaseStatistics(checkerboard(fake.shape).double().numpy().ravel(), privacy.event)
    expected = expected_participants(privacy.event, CRITICS)
    with open_real_run(plan, data) as real:
        ensemble = real.critic.ensemble if plan.critic.has_embedding else real.critic
        plant_critics(ensemble)
        ensemble.prepare(data)
        for step in range(steps):
            ensemble.learn(step, _NO_GENERATOR)
            seen.add(ensemble.upstream_gradient(fake, labels).double().numpy() * expected)
        real.check_ledger([privacy.event] * steps)
    return seen


_NO_GENERATOR: Generator = None  # type: ignore[assignment]  # planted critics do not learn, so none is asked


def observe_ensemble(plan: Plan, *, steps: int, seed: int = 0) -> list[Observed]:
    """Real steps of the plan's ensemble in both worlds; where the kernel critic starts it, its release as well."""
    tiny = {world: small_ensemble_plan(plan, seed=seed_of(seed, "ensemble", world)) for world in (1, 2)}
    first, second = (observe_steps(tiny[world], world, steps) for world in (1, 2))
    found = observed("critics", first, second)
    if plan.critic.has_embedding:
        found.append(observe_start(tiny[1]))
    return found


def observe_start(plan: Plan) -> Observed:
    """The noise of the kernel's release before an ensemble: released minus exact sums, over the planned noise."""
    settings: Any = plan.critic
    data = made_data(plan.facts, 1)
    with open_real_run(plan, data) as real:
        with contextlib.suppress(RunError):
            real.critic.kernel.prepare(data)
        released = Embedding.load(real.folder.embedding)
        exact = exact_sums(data, real.critic.kernel.features)[:, :-1]
        real.check_ledger([settings.event(plan.facts.labelled)])
    noise = ((released.sums - exact) / settings.noise_std).numpy().ravel()
    return Observed(name="noise of the start", law=NOISE, first=noise, second=-noise)
