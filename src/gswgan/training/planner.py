"""From a preset, public facts and a target epsilon to a plan. This is the only place that calibrates noise."""

from __future__ import annotations

import dataclasses
import math
import tomllib
from collections.abc import Mapping
from importlib import resources
from typing import Any

from gswgan.baselines.dp_merf import dp_merf_defaults
from gswgan.critics.ensemble import EnsembleSettings
from gswgan.critics.kernel import RARE, KernelSettings
from gswgan.data import ImageData
from gswgan.errors import PlanError
from gswgan.privacy import Accountant, Contribution, DrawnOne, Gaussian, PrivacyCost, calibrate
from gswgan.privacy.accountant import drawn_one_lower_bound
from gswgan.privacy.claims import Claim, claimed_centralized, claimed_federated
from gswgan.training.defaults import Defaults, ensemble_defaults, ensemble_release, kernel_defaults
from gswgan.training.plan import Facts, LowerBound, Plan, PrivacySettings
from gswgan.training.settings import MOST_STEPS, check_delta, check_epsilon, check_whole, from_plain, to_plain

PRESETS = ("default", "ensemble", "paper", "paper-federated")
"""Those of GS-WGAN."""

METHODS = {"gswgan": "default", "dp-merf": "dp-merf"}
"""Every method with its first preset."""

CURVE_POINTS = 8


def load_preset(name: str) -> dict[str, Any]:
    """A preset as plain data; it is part of the installed package."""
    if name not in (*PRESETS, *METHODS.values()):
        raise PlanError("preset", name, "one of " + ", ".join(PRESETS), "Leave --preset out for the best critic.")
    return tomllib.loads((resources.files("gswgan.presets") / f"{name}.toml").read_text())


def make_plan(
    facts: Facts,
    *,
    preset: str = "default",
    epsilon: float | None = None,
    delta: float | None = None,
    shards: int | None = None,
    steps: int | None = None,
    seed: int = 0,
    device: str = "cpu",
    insecure_reproducible: bool = False,
) -> Plan:
    """Resolve everything, calibrate the noise, state the guarantee. Looks at facts only, never at data."""
    table = load_preset(preset)
    if table.get("federated"):
        raise PlanError(
            "preset", preset, "a centralized preset",
            f"This one can be accounted for, not trained: `gswgan privacy account --preset {preset}`.",
        )  # fmt: skip
    is_kernel = table["critic"] == "kernel"
    if is_kernel and shards is not None:
        raise PlanError("shards", shards, "no shards with the kernel critic", "Use --preset ensemble.")
    seed = check_whole("seed", seed, 0, 2**63 - 1)
    steps = None if steps is None else check_whole("steps", steps, 1, MOST_STEPS)
    units = facts.records if facts.persons is None else facts.persons
    what = "records" if facts.persons is None else "persons"
    if units < 2:
        raise PlanError(what, units, "at least 2", f"A guarantee hides one among others: add {what}.")
    privacy = privacy_settings(table, facts, epsilon=epsilon, delta=delta, shards=shards, steps=steps)
    if is_kernel and units < (needed := _enough(facts, privacy)):
        raise PlanError(
            what, units, f"at least {needed} at this epsilon, or no class could be told from the noise",
            f"Use more {what} or a larger --epsilon.",
        )  # fmt: skip
    if table.get("method") == "dp-merf":
        defaults = dp_merf_defaults(facts)
    elif is_kernel:
        defaults = kernel_defaults(facts, privacy.noise_std, device)
    else:
        defaults = ensemble_defaults(facts, device)
    defaults = _with_preset(defaults, table)
    if is_kernel:
        training = defaults.training
        if steps is not None:
            training = dataclasses.replace(training, steps=steps)
    else:
        training = dataclasses.replace(defaults.training, steps=privacy.releases, batch_size=privacy.rows)
    critic = defaults.critic
    if isinstance(critic, KernelSettings):
        critic = dataclasses.replace(critic, seed=seed)
    return Plan(
        preset=preset,
        facts=facts,
        privacy=privacy,
        critic=critic,
        generator=defaults.generator,
        optimizer=defaults.optimizer,
        training=training,
        guarantee=guarantee(privacy),
        claimed=claimed(table, privacy),
        lower_bound=lower_bound(privacy),
        curve=epsilon_curve(privacy),
        seed=seed,
        insecure_reproducible=insecure_reproducible,
    )


def privacy_settings(
    table: Mapping[str, Any],
    facts: Facts,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    shards: int | None = None,
    steps: int | None = None,
) -> PrivacySettings:
    """The preset's privacy settings for these facts, with the noise calibrated where the preset leaves it open."""
    given = dict(table["privacy"])
    target = given.pop("epsilon", None)
    if target is None and epsilon is not None:
        raise PlanError(
            "epsilon", epsilon, "no epsilon with a preset whose noise is fixed",
            "To see the noise that a target needs: `gswgan privacy calibrate --sampling one ...`.",
        )  # fmt: skip
    target = target if epsilon is None else check_epsilon(epsilon)
    given["delta"] = check_delta(delta if delta is not None else given["delta"])
    by_person = facts.persons is not None
    if by_person:
        given["unit"] = "person"
    if table["critic"] == "kernel":
        clip = facts.classes**-0.5 if by_person else 1.0
        given["clip_norm"] = clip
        given["counts"] = facts.labelled and not by_person
    else:
        release = ensemble_release(facts)
        given["shards"] = shards if shards is not None else given.get("shards", release.shards)
        units, what = (facts.persons, "person") if by_person else (facts.records, "record")
        whole = isinstance(given["shards"], int) and not isinstance(given["shards"], bool)
        if not whole or not 1 <= given["shards"] <= (units or 1):
            raise PlanError(
                "shards", given["shards"], f"a whole number from 1 to {units}, the number of {what}s",
                f"Each shard needs a {what} of its own: pass fewer --shards.",
            )  # fmt: skip
        given["releases"] = steps if steps is not None else given.get("releases", release.releases)
        given.setdefault("rows", release.rows)
        if given["sampling"] == "poisson":
            given.setdefault("rate", release.rate)
            if given["rate"] >= 1:
                given["sampling"] = "all"
    if "noise_std" not in given:
        unit = Contribution(clip_norm=given["clip_norm"], rows=given.get("rows", 1)).sensitivity("zeroed")

        def with_multiplier(multiplier: float) -> PrivacySettings:
            return from_plain(PrivacySettings, {**given, "noise_std": multiplier * unit}, "privacy")

        multiplier = calibrate(
            lambda m: with_multiplier(m).total(),
            epsilon=target,
            delta=given["delta"],
            accountant=Accountant("replace-one"),
        )
        return with_multiplier(multiplier)
    return from_plain(PrivacySettings, given, "privacy")


def _enough(facts: Facts, privacy: PrivacySettings) -> int:
    """How many records (persons) in one class its noisy count needs to be told from the noise, most probably."""
    if not privacy.counts and facts.persons is None:
        return 2  # without labels the only count is n, which is public
    share = 1.0 if facts.persons is None else 2**-0.5  # of clip_norm: a person's count is clipped with the features
    return max(2, math.ceil(RARE * privacy.noise_std / (share * privacy.clip_norm)))


def doubts(plan: Plan, data: ImageData) -> list[str]:
    """What is allowed but hardly meant, in sentences for the holder of the data, before the run. Not for release."""
    facts, found = plan.facts, []
    units = facts.records if facts.persons is None else facts.persons
    if plan.privacy.delta >= 1 / units:
        found.append(
            f"delta = {plan.privacy.delta:g}: expected less than 1/{units}: it allows one {plan.privacy.unit} to be "
            "published in the clear. Pass a smaller --delta."
        )
    if data.labels is not None and (data.classes == 1 or bool((data.labels == data.labels[0]).all())):
        found.append(
            "labels = 'a single class': expected records of several classes. Check the labels, or train without "
            "them: --no-labels."
        )
    return found


def guarantee(privacy: PrivacySettings) -> PrivacyCost:
    """What may be stated for the whole run."""
    accountant, total = Accountant(privacy.neighbours), privacy.total()
    epsilon = accountant.epsilon(total, privacy.delta)
    if not math.isfinite(epsilon):
        raise PlanError("delta", privacy.delta, "a delta at which some epsilon can be stated", "Pass a larger --delta.")
    return PrivacyCost(
        epsilon=epsilon,
        delta=privacy.delta,
        neighbours=privacy.neighbours,
        unit=privacy.unit,
        observer=privacy.observer,
        sampling=privacy.sampling,
        accountant=accountant.method(total),
    )


def epsilon_curve(privacy: PrivacySettings) -> tuple[tuple[int, float], ...]:
    """Epsilon spent after a growing number of releases, to the end."""
    if privacy.releases == 1:
        return ()
    accountant = Accountant(privacy.neighbours)
    points = sorted({math.ceil(privacy.releases * i / CURVE_POINTS) for i in range(1, CURVE_POINTS + 1)})
    return tuple((n, accountant.epsilon(privacy.total(n), privacy.delta)) for n in points)


def _sample(privacy: PrivacySettings) -> Gaussian:
    """One sample's gradient, as the paper counts them."""
    return Gaussian(noise_std=privacy.noise_std, sensitivity=2 * privacy.clip_norm)


def claimed(table: Mapping[str, Any], privacy: PrivacySettings) -> Claim | None:
    """The figure that the paper's rules give for the run, where the run follows the paper."""
    if privacy.sampling != "one":
        return None
    steps, count, delta = privacy.releases, privacy.shards or 1, privacy.delta
    if table.get("federated"):
        return claimed_federated(_sample(privacy), clients=count, rounds=steps, batch_size=privacy.rows, delta=delta)
    return claimed_centralized(_sample(privacy), shards=count, steps=steps, batch_size=privacy.rows, delta=delta)


def lower_bound(privacy: PrivacySettings) -> LowerBound | None:
    """What no analysis of the paper's draw can go below, even if the draw stays hidden from the public."""
    event = privacy.event
    if not isinstance(event, DrawnOne) or privacy.observer != "public":
        return None
    epsilon = drawn_one_lower_bound(event, privacy.releases, privacy.delta)
    return LowerBound(epsilon=epsilon, delta=privacy.delta, neighbours=privacy.neighbours, observer=privacy.observer)


def as_printed(privacy: PrivacySettings, answers: int) -> PrivacyCost:
    """The guarantee of Algorithm 2 as printed, where a client answers in each of its inner iterations."""
    return guarantee(dataclasses.replace(privacy, rows=privacy.rows * answers))


def _with_preset(defaults: Defaults, table: Mapping[str, Any]) -> Defaults:
    """Lay the preset's own values over the defaults."""
    parts: dict[str, Any] = {}
    sections = {"critic": "ensemble" if isinstance(defaults.critic, EnsembleSettings) else "kernel"}
    sections |= {name: name for name in ("generator", "optimizer", "training")}
    for field, section in sections.items():
        current = getattr(defaults, field)
        parts[field] = from_plain(type(current), {**to_plain(current), **table.get(section, {})}, section)
    return dataclasses.replace(defaults, **parts)
