"""`gswgan privacy`: what a run costs, what noise a target needs, and what that means."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from gswgan.cli.console import console, print_json
from gswgan.errors import PrivacyError, short

app = typer.Typer(help="Account, calibrate, explain.", no_args_is_help=True)

MIN_NOISE, MAX_NOISE, MIN_RATE = 0.01, 1e6, 1e-9
"""What the accountants are meant for: outside, they would take minutes and more memory than there is."""

_Json = Annotated[bool, typer.Option("--json", help="Machine-readable.")]
_Neighbours = Annotated[str, typer.Option(help="replace-one: a record is exchanged; zeroed: a contribution becomes 0.")]
_Sampling = Annotated[str, typer.Option(help="poisson, all, or one (the paper's draw of one in 1/rate).")]


@app.command()
def account(
    run: Annotated[Path | None, typer.Argument(help="A run or release folder: accounts what its ledger holds.")] = None,
    preset: Annotated[str | None, typer.Option(help="Account for a preset as it would run.")] = None,
    method: Annotated[str | None, typer.Option(
        help="Account for a method as it would run (with --preset: its preset). Default: gswgan.")] = None,
    records: Annotated[int, typer.Option(help="With --preset or --method: number of records.")] = 60_000,
    noise_multiplier: Annotated[float | None, typer.Option(
        help="Noise std over the L2 bound of one contribution (half of the replace-one sensitivity).")] = None,
    rate: Annotated[float, typer.Option(help="Probability that a contributor takes part in a release.")] = 1.0,
    steps: Annotated[int, typer.Option(help="Number of releases.")] = 1,
    delta: Annotated[float | None, typer.Option(help="Delta. Default: the preset's, or 1e-5.")] = None,
    neighbours: _Neighbours = "replace-one",
    sampling: _Sampling = "poisson",
    json: _Json = False,
) -> None:  # fmt: skip
    """Epsilon of a RUN, of a preset, or of a noise multiplier, with all that it means nothing without."""
    chosen = [run is not None, preset is not None or method is not None, noise_multiplier is not None]
    if sum(chosen) != 1:
        raise PrivacyError(
            "arguments", sum(chosen), "exactly one of RUN, --preset (or --method) or --noise-multiplier",
            "For example: gswgan privacy account --preset paper.",
        )  # fmt: skip
    if run is not None:
        content = _account_run(run)
    elif noise_multiplier is None:
        content = _account_preset(method or "gswgan", preset, records, delta)
    else:
        content = _account_noise(noise_multiplier, rate, steps, 1e-5 if delta is None else delta, neighbours, sampling)
    if json:
        print_json(content)
        return
    from gswgan.run.publish import cost_from_statement

    cost = cost_from_statement(content)
    if content.get("void"):
        console.print(f"NO GUARANTEE: {content['void']}.")
    if cost is None:
        return
    console.print(("With a secret key it would read: " if content.get("void") else "") + str(cost))
    console.print(f"sampling: {content['sampling']}; accountant: {content['accountant']}")
    for words in content.get("planned", []):
        console.print(words)
    for key, words in (("claimed", "claimed by the paper's accounting, NOT a guarantee"),
                       ("lower_bound", "no analysis of this run can prove less than"),
                       ("as_printed", "with all inner answers visible, as Algorithm 2 is printed")):  # fmt: skip
        if content.get(key):
            console.print(f"{words}: {content[key]['epsilon']:.5g}")


@app.command()
def calibrate(
    epsilon: Annotated[float, typer.Option(help="Target epsilon.")] = 10.0,
    delta: Annotated[float, typer.Option(help="Target delta.")] = 1e-5,
    rate: Annotated[float, typer.Option(help="Probability that a contributor takes part in a release.")] = 1.0,
    steps: Annotated[int, typer.Option(help="Number of releases.")] = 1,
    neighbours: _Neighbours = "replace-one",
    sampling: _Sampling = "poisson",
    json: _Json = False,
) -> None:
    """The smallest noise multiplier for a target; accounting it back never gives more than the target."""
    from gswgan.plan.settings import check_delta, check_epsilon
    from gswgan.privacy import Accountant
    from gswgan.privacy.calibration import calibrate as smallest_noise

    _check(rate, steps, neighbours, sampling)
    multiplier = smallest_noise(
        lambda m: _event(m, rate, steps, neighbours, sampling),
        epsilon=check_epsilon(epsilon),
        delta=check_delta(delta),
        accountant=Accountant(neighbours),
    )
    content = _account_noise(multiplier, rate, steps, delta, neighbours, sampling)
    if json:
        print_json(content)
        return
    console.print(f"noise multiplier {multiplier:g} (noise std over the L2 bound of one contribution)")
    console.print(f"gives epsilon {content['epsilon']:.6g} at delta {delta:g} ({neighbours}; sampling {sampling})")


@app.command()
def explain(run: Annotated[Path, typer.Argument(help="A run or release folder.")]) -> None:
    """What the guarantee of a run means in plain words, what it covers and what not."""
    from gswgan.report.explain import explanation
    from gswgan.run.folder import find_release

    console.print(explanation(find_release(run).plan(), _account_run(run)))


def _check(rate: float, steps: int, neighbours: str, sampling: str) -> None:
    """The options of account and calibrate, by the names that the user gave them."""
    from gswgan.plan.settings import MAX_STEPS, check_whole

    if not MIN_RATE <= rate <= 1:
        raise PrivacyError(
            "rate", rate, f"a number above 0 (at least {MIN_RATE:g}), at most 1",
            "It is the probability that a contributor takes part: pass --rate 0.1, for example.",
        )  # fmt: skip
    check_whole("steps", steps, 1, MAX_STEPS)
    if neighbours not in ("replace-one", "zeroed"):
        raise PrivacyError("neighbours", neighbours, "replace-one or zeroed", "Leave --neighbours out for replace-one.")
    if sampling not in ("poisson", "all", "one"):
        raise PrivacyError("sampling", sampling, "poisson, all or one", "Leave --sampling out for poisson.")
    if sampling == "all" and rate != 1:
        raise PrivacyError("rate", rate, "1 with --sampling all", "Use --sampling poisson for a rate below 1.")
    if sampling == "one" and abs(1 / rate - round(1 / rate)) > 1e-6 / rate:
        raise PrivacyError(
            "rate", rate, "1/K for a whole number K of contributors, with --sampling one",
            "Pass --rate 0.001 for one of a thousand, for example.",
        )  # fmt: skip


def _event(multiplier: float, rate: float, steps: int, neighbours: str, sampling: str) -> Any:
    from gswgan.privacy import DrawnOne, Gaussian, Repeated, Sampled
    from gswgan.privacy.events import check_neighbours

    relation = check_neighbours(neighbours)
    gaussian = Gaussian(
        noise_std=multiplier, sensitivity=2.0 if relation == "replace-one" else 1.0, neighbours=relation
    )
    if sampling == "one":
        return Repeated(event=DrawnOne(count=round(1 / rate), event=gaussian), times=steps)
    return Repeated(event=Sampled(rate=rate, event=gaussian), times=steps)


def _account_noise(
    multiplier: float, rate: float, steps: int, delta: float, neighbours: str, sampling: str
) -> dict[str, Any]:
    from gswgan.plan.settings import check_delta
    from gswgan.privacy import Accountant

    _check(rate, steps, neighbours, sampling)
    check_delta(delta)
    if not MIN_NOISE <= multiplier <= MAX_NOISE:
        raise PrivacyError(
            "noise multiplier", multiplier, f"a number from {MIN_NOISE:g} to {MAX_NOISE:g}",
            "Pass --noise-multiplier 1, for example.",
        )  # fmt: skip
    event, accountant = _event(multiplier, rate, steps, neighbours, sampling), Accountant(neighbours)
    return {
        "epsilon": accountant.epsilon(event, delta),
        "delta": delta,
        "neighbours": neighbours,
        "unit": "record",
        "observer": "public",
        "sampling": sampling if rate < 1 else "all",
        "accountant": accountant.method(event),
        "noise_multiplier": multiplier,
        "rate": rate,
        "steps": steps,
    }


def _account_run(run: Path) -> dict[str, Any]:
    """What the ledger costs; a privacy.json that states less is refused."""
    from gswgan.run.folder import find_release, read_json
    from gswgan.run.publish import cost_of_ledger, privacy_statement

    folder = find_release(run)
    if not folder.privacy.exists():
        raise PrivacyError(
            "run", str(run), "a finished run", "Its ledger is still growing: gswgan train --resume first."
        )
    plan, stated = folder.plan(), read_json(folder.privacy, "the privacy.json of a finished run")
    if plan.source is not None:
        return stated
    content = privacy_statement(plan, cost_of_ledger(plan, folder))
    if plan.guarantee is None:
        return content  # void, whatever the file states
    found = tuple(short(stated.get(key)) for key in ("epsilon", "delta"))
    less = type(found[0]) is not float or not found[0] >= content["epsilon"] * (1 - 1e-3)
    if less or found[1] != plan.guarantee.delta:
        raise PrivacyError(
            f"{folder.privacy}: epsilon and delta",
            found,
            f"({content['epsilon']:.5g}, {plan.guarantee.delta:g}), which its ledger costs",
            "The file was damaged or edited: copy the release again.",
        )
    return content


def _account_preset(method: str, preset: str | None, records: int, delta: float | None) -> dict[str, Any]:
    from gswgan.methods import make_draft
    from gswgan.methods.ensemble import load_preset
    from gswgan.plan.facts import Facts
    from gswgan.plan.make import guarantee
    from gswgan.plan.settings import check_whole, default_delta, to_plain
    from gswgan.privacy.events import in_words

    records = check_whole("records", records, 2, 2**40)
    facts = Facts(data="any", records=records, persons=None, classes=10, class_names=tuple("0123456789"),
                  labelled=True, image_size=28, channels=1)  # fmt: skip
    table = load_preset(preset) if method == "gswgan" and preset is not None else {}
    delta = table.get("privacy", {}).get("delta", default_delta(records)) if delta is None else delta
    draft = make_draft(facts, method=method, preset=preset, delta=delta)
    total, critic = draft.total(), draft.critic
    if total is None:
        return {"epsilon": None, "void": critic.void}
    claim, bound, privacy = critic.claimed(draft, delta), critic.lower_bound(draft), draft.privacy
    who: dict[str, str] = {} if privacy is None else {"unit": privacy.unit, "observer": privacy.observer}
    content = {
        **guarantee(total, delta=delta, **who).to_json(),
        "claimed": None if claim is None else claim.to_json(),
        "lower_bound": to_plain(bound),
        "planned": [f"{times} x {in_words(event)}" for event, times in draft.releases().items()],
    }
    if privacy is not None:
        content |= {
            "noise_std": privacy.noise_std,
            "sensitivity": privacy.contribution.sensitivity(privacy.neighbours),
            "releases": privacy.releases,
            "rate": 1 / (privacy.shards or 1) if privacy.sampling == "one" else privacy.rate,
            "shards": privacy.shards,
        }
        if table.get("federated"):  # Algorithm 2 as printed: a client answers in each of its inner iterations
            whole = dataclasses.replace(privacy, rows=privacy.rows * critic.ensemble_settings.updates).total()
            content["as_printed"] = guarantee(whole, delta=delta, **who).to_json()
    return content
