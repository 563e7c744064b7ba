"""`gswgan privacy`: what a run costs, what noise a target needs, and what that means."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gswgan.cli.console import console, print_json
from gswgan.errors import PrivacyError

app = typer.Typer(help="Account, calibrate, explain.", no_args_is_help=True)

_Json = Annotated[bool, typer.Option("--json", help="Machine-readable.")]
_Neighbours = Annotated[str, typer.Option(help="replace-one: a record is exchanged; zeroed: a contribution becomes 0.")]
_Sampling = Annotated[str, typer.Option(help="poisson, all, or one (the paper's draw of one in 1/rate).")]


@app.command()
def account(
    run: Annotated[Path | None, typer.Argument(help="A run or release folder: accounts what its ledger holds.")] = None,
    preset: Annotated[str | None, typer.Option(help="Account for a preset as it would run.")] = None,
    records: Annotated[int, typer.Option(help="With --preset: number of records.")] = 60_000,
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
    chosen = [run is not None, preset is not None, noise_multiplier is not None]
    if sum(chosen) != 1:
        raise PrivacyError("arguments", sum(chosen), "exactly one of RUN, --preset or --noise-multiplier")
    if run is not None:
        content = _account_run(run)
    elif preset is not None:
        content = _account_preset(preset, records, delta)
    else:
        assert noise_multiplier is not None
        content = _account_noise(noise_multiplier, rate, steps, 1e-5 if delta is None else delta, neighbours, sampling)
    if json:
        print_json(content)
        return
    from gswgan.training.publish import cost_from_statement

    if content.get("void"):
        console.print(f"NO GUARANTEE: {content['void']}. With a secret key it would read:")
    console.print(str(cost_from_statement(content)))
    console.print(f"sampling: {content['sampling']}; accountant: {content['accountant']}")
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
    from gswgan.privacy import Accountant
    from gswgan.privacy.calibration import calibrate as smallest_noise

    accountant = Accountant(neighbours)
    multiplier = smallest_noise(
        lambda m: _event(m, rate, steps, neighbours, sampling), epsilon=epsilon, delta=delta, accountant=accountant
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
    from gswgan.cli.explain import explanation
    from gswgan.training.run_folder import find_release, read_json

    folder = find_release(run)
    console.print(explanation(folder.plan(), read_json(folder.privacy, "the privacy.json of a finished run")))


def _event(multiplier: float, rate: float, steps: int, neighbours: str, sampling: str) -> Any:
    from gswgan.privacy import DrawnOne, Gaussian, Repeated, Sampled
    from gswgan.privacy.events import check_neighbours

    relation = check_neighbours(neighbours)
    gaussian = Gaussian(
        noise_std=multiplier, sensitivity=2.0 if relation == "replace-one" else 1.0, neighbours=relation
    )
    if sampling == "one":
        if not 0 < rate <= 1 or abs(1 / rate - round(1 / rate)) > 1e-6 / rate:
            raise PrivacyError("rate", rate, "1/K for a whole number K of contributors, with --sampling one")
        return Repeated(event=DrawnOne(count=round(1 / rate), event=gaussian), times=steps)
    if sampling == "all" and rate != 1:
        raise PrivacyError("rate", rate, "1 with --sampling all", "Use --sampling poisson for a rate below 1.")
    if sampling not in ("poisson", "all"):
        raise PrivacyError("sampling", sampling, "poisson, all or one")
    return Repeated(event=Sampled(rate=rate, event=gaussian), times=steps)


def _account_noise(
    multiplier: float, rate: float, steps: int, delta: float, neighbours: str, sampling: str
) -> dict[str, Any]:
    from gswgan.privacy import Accountant

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
    from gswgan.training.publish import cost_of_ledger, privacy_statement
    from gswgan.training.run_folder import find_release, read_json

    folder = find_release(run)
    if not folder.privacy.exists():
        raise PrivacyError("run", str(run), "a finished run", "Resume it first; its ledger is still growing.")
    plan = folder.plan()
    if plan.source is not None:
        return read_json(folder.privacy, "privacy.json")
    return privacy_statement(plan, cost_of_ledger(plan, folder))


def _account_preset(preset: str, records: int, delta: float | None) -> dict[str, Any]:
    from gswgan.training.plan import Facts
    from gswgan.training.planner import as_printed, claimed, guarantee, load_preset, lower_bound, privacy_settings
    from gswgan.training.settings import to_plain

    table = load_preset(preset)
    facts = Facts(data="any", records=records, persons=None, classes=10, class_names=tuple("0123456789"),
                  labelled=True, image_size=28, channels=1)  # fmt: skip
    privacy = privacy_settings(table, facts, delta=delta)
    claim, bound = claimed(table, privacy), lower_bound(privacy)
    content = {
        **guarantee(privacy).to_json(),
        "claimed": None if claim is None else claim.to_json(),
        "lower_bound": to_plain(bound),
        "noise_std": privacy.noise_std,
        "sensitivity": privacy.contribution.sensitivity(privacy.neighbours),
        "releases": privacy.releases,
        "rate": 1 / (privacy.shards or 1) if privacy.sampling == "one" else privacy.rate,
        "shards": privacy.shards,
    }
    if table.get("federated"):
        content["as_printed"] = as_printed(privacy, table["ensemble"]["updates"]).to_json()
    return content
