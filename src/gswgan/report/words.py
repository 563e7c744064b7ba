"""Numbers and settings in plain words."""

from __future__ import annotations

import math

from gswgan.methods import find_method
from gswgan.plan import wording
from gswgan.privacy import DrawnOne, Sampled
from gswgan.privacy.events import BaseEvent, describe_event
from gswgan.report.release import Release

_RAISED = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def figure(value: float) -> str:
    """Four digits, with commas for thousands, and no exponent where a reader can do without."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    size = math.floor(math.log10(abs(value)))
    if size >= 9 or size < -7:
        lead = f"{value / 10.0**size:.3g}"
        return ("" if lead == "1" else f"{lead} × ") + f"10{raised(size)}"
    text = f"{value:,.{max(0, 3 - size)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def raised(power: int) -> str:
    """A whole number as an exponent."""
    return str(power).translate(_RAISED)


def factor(epsilon: float) -> str:
    """e^epsilon, rounded up: it stands where a limit is stated."""
    power = epsilon / math.log(10)
    if power > 6:
        return f"10{raised(math.ceil(power))}"
    digits = max(0, 2 - math.floor(power))
    return f"{math.ceil(math.exp(epsilon) * 10**digits - 1e-6) / 10**digits:,.{digits}f}"


def share(probability: float) -> str:
    """A small probability as one in so many."""
    return f"1 in {1 / probability:,.0f}"


def percent(limit: float) -> str:
    """A share that is a limit, so rounded up."""
    return f"{math.ceil(100 * limit - 1e-6)} %"


def plural(count: int, word: str) -> str:
    """The number with its noun."""
    return f"{count:,} {word}" + ("" if count == 1 else "es" if word.endswith("s") else "s")


def spelled(count: int) -> str:
    """A small number as a word."""
    small = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten")
    return small[count] if count < len(small) else f"{count:,}"


def strength(release: Release) -> str:
    """A word for the guarantee."""
    if release.void or release.cost is None:
        return "no guarantee"
    return wording.strength(release.cost.epsilon)


def unit(release: Release) -> str:
    """What is protected, as a part of the whole."""
    facts = release.plan.facts
    return f"all images of any of {facts.persons:,}" if facts.persons else f"any of {facts.records:,}"


def summary(release: Release) -> str:
    """The page in one sentence."""
    facts, cost = release.plan.facts, release.cost
    start = f"Synthetic images that a generator drew after learning from real ones ({facts.data}: {release.plan.size})"
    limits = {
        "strong": "under a strong, proven limit on what anybody can learn from them about",
        "moderate": "under a proven limit on what anybody can learn from them about",
        "weak": "under a proven but weak limit on what anybody can learn from them about",
        "not meaningful": "under a limit so weak that in practice it does not protect",
        "no guarantee": "without any privacy guarantee: treat them as you would treat the real data",
    }
    kind = strength(release)
    if kind == "no guarantee" or cost is None:
        return f"{start}, {limits[kind]}."
    return f"{start}, {limits[kind]} any one {cost.unit}: epsilon {figure(cost.epsilon)} at delta {figure(cost.delta)}."


def promise(release: Release) -> list[str]:
    """What epsilon and delta say, a sentence each."""
    facts, cost = release.plan.facts, release.cost
    if cost is None:
        return []
    many = plural(facts.persons or facts.records, cost.unit)
    change = (
        f"Take any one of the {many} and exchange its content for any other."
        if cost.neighbours == "replace-one"
        else f"Take any one of the {many} and remove what it contributed."
    )
    lines = [
        f"{change} Whatever is in this release, the chance of it changes by a factor of at most {factor(cost.epsilon)} "
        f"(e to the power of epsilon), except with a probability of {figure(cost.delta)} ({share(cost.delta)})."
    ]
    if release.void:
        return lines
    if release.max_detection_rate is not None:
        lines.append(
            f"As an attack: somebody who knows all the rest of the data suspects what this {cost.unit} was. If they "
            f"may accuse falsely in 1 case of 100, then the best of all attacks finds a true suspicion in at most "
            f"{math.ceil(100 * release.max_detection_rate - 1e-6)} of 100; guessing finds 1."
        )
    elif cost.epsilon > 50:
        lines.append("That is no limit that an attacker would feel: do not rely on it.")
    lines.append(
        "It holds against everybody who sees the release, whatever else they know, today or later, and for any number "
        "of images drawn from the generator."
    )
    return lines


def numbers(release: Release) -> list[tuple[str, str, str]]:
    """The guarantee in numbers: name, value, what it means."""
    cost, planned = release.cost, list(release.plan.releases().items())
    if cost is None:
        return []
    by_record = cost.unit == "record"
    known = "How many there are is public." if by_record else "Who takes part is known to the aggregator."
    relation = {
        "replace-one": f"The content of one {cost.unit} is exchanged. How many there are is public.",
        "zeroed": f"The contribution of one {cost.unit} becomes nothing. {known}",
    }
    who = {
        "public": "Everybody who gets the release.",
        "server": "The server that the participants answer to.",
    }
    again = f" {release.repeated:,} had to be repeated and are counted." if release.repeated else ""
    whole = sum(times for _, times in planned)
    return [
        ("Epsilon", figure(cost.epsilon), "The limit, as an exponent. Less is more private."),
        ("Delta", figure(cost.delta), f"The probability that is left out of the limit: {share(cost.delta)}."),
        ("Unit", cost.unit, wording.several_records(cost.unit)),
        ("Neighbours", cost.neighbours, relation[cost.neighbours]),
        ("Observer", cost.observer, who.get(cost.observer, "")),
        ("Sampling", cost.sampling, _sampling(planned)),
        ("Accountant", cost.accountant, "How the releases of the ledger were added up."),
        ("Releases", f"{release.releases:,}", f"Lines of the ledger; {whole:,} planned.{again}"),
        *(("Noise", describe_event(event), f"{times:,} times, on every released number.") for event, times in planned),
    ]  # fmt: skip


def _sampling(planned: list[tuple[BaseEvent, int]]) -> str:
    event = next((event for event, _ in planned if isinstance(event, Sampled)), planned[0][0])
    whole = sum(times for event, times in planned if not isinstance(event, Sampled | DrawnOne))
    if isinstance(event, Sampled) and whole:
        return (
            f"Everybody's data is in {plural(whole, 'release')}; to each of the others one contributes by a secret "
            f"coin, with probability {figure(event.rate)}."
        )
    if isinstance(event, DrawnOne):
        return f"Exactly one of {event.count:,} is drawn in each step; the guarantee lets the observer see which."
    if isinstance(event, Sampled):
        return f"Each contributes to a release by a secret coin, with probability {figure(event.rate)}."
    return "Everybody's data is in every release; nothing is left to chance."


def making(release: Release) -> list[tuple[str, str]]:
    """How the release was made."""
    plan = release.plan
    facts, generator, training = plan.facts, plan.generator, plan.training
    rows = [
        ("Data", f"{facts.data}: {release.plan.size}, {plural(facts.classes, 'class')}, "
         f"{facts.image_size} × {facts.image_size}, {'grey' if facts.channels == 1 else 'colour'}"),
        ("Method", f"{plan.method}: {find_method(plan.method).about}"),
        ("Preset", plan.preset),
        ("Critic", plan.describe()),
        ("Generator", f"{generator.architecture} of width {generator.width}, latent of {generator.latent}"),
        ("Training", f"{plural(training.steps, 'step')} of {training.batch_size} fakes, learning rate "
         f"{figure(plan.optimizer.learning_rate)}"),
        ("Seed", f"{plan.seed} (of initial weights and latent codes; never of the noise)"),
    ]  # fmt: skip
    if text := wording.public_text(plan):
        rows.insert(1, ("Public images", text))
    if plan.insecure_reproducible:
        rows[-1] = ("Seed", f"{plan.seed}, and the noise follows from it")
    if plan.source is not None:
        rows.append(("Source", "an embedding that was released before; this generator adds nothing to its cost"))
    if release.left_out:
        rows.append(("Left out", f"too rare to be told from the noise: {', '.join(release.left_out)}"))
    return [*rows, ("Plan", plan.digest()), ("Ledger head", release.head)]


def not_covered(release: Release) -> list[str]:
    """What the guarantee does not speak about."""
    if release.cost is None:
        return ["Everything: nothing about this release is protected."]
    return wording.not_covered(release.plan, release.cost.unit)
