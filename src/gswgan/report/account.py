"""`gswgan privacy`: epsilon of a run, of a preset or of a noise multiplier, as plain data; the noise for a target."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gswgan.errors import PrivacyError
from gswgan.methods import make_draft
from gswgan.methods.gswgan import load_preset
from gswgan.plan.facts import Facts
from gswgan.plan.make import guarantee
from gswgan.plan.plan import Plan
from gswgan.plan.settings import check_delta, check_epsilon, check_whole, default_delta, to_plain
from gswgan.privacy import Accountant, DrawnOne, Event, Gaussian, Repeated, Sampled
from gswgan.privacy.calibration import calibrate
from gswgan.privacy.events import check_neighbours, describe_event
from gswgan.ranges import MAX_STEPS
from gswgan.report.release import check_stated_cost
from gswgan.run.folder import find_release, read_json
from gswgan.run.publish import cost_of_ledger, privacy_statement

MIN_NOISE, MAX_NOISE, MIN_RATE = 0.01, 1e6, 1e-9
"""What the accountants are meant for: outside, they would take minutes and more memory than there is."""


@dataclass(frozen=True, kw_only=True)
class Releases:
    """Gaussian releases of one kind, as the options of `account` and `calibrate` name them."""

    rate: float
    steps: int
    neighbours: str
    sampling: str

    def __post_init__(self) -> None:
        rate, sampling = self.rate, self.sampling
        if not MIN_RATE <= rate <= 1:
            raise PrivacyError(
                "rate", rate, f"a number above 0 (at least {MIN_RATE:g}), at most 1",
                "It is the probability that a contributor takes part: pass --rate 0.1, for example.",
            )  # fmt: skip
        check_whole("steps", self.steps, 1, MAX_STEPS)
        if self.neighbours not in ("replace-one", "zeroed"):
            raise PrivacyError("neighbours", self.neighbours, "replace-one or zeroed", "Leave it out for replace-one.")
        if sampling not in ("poisson", "all", "one"):
            raise PrivacyError("sampling", sampling, "poisson, all or one", "Leave --sampling out for poisson.")
        if sampling == "all" and rate != 1:
            raise PrivacyError("rate", rate, "1 with --sampling all", "Use --sampling poisson for a rate below 1.")
        if sampling == "one" and abs(1 / rate - round(1 / rate)) > 1e-6 / rate:
            raise PrivacyError(
                "rate", rate, "1/K for a whole number K of contributors, with --sampling one",
                "Pass --rate 0.001 for one of a thousand, for example.",
            )  # fmt: skip

    def event(self, multiplier: float) -> Event:
        """All releases at this noise multiplier, whose unit is the L2 bound of one contribution."""
        relation = check_neighbours(self.neighbours)
        sensitivity = 2.0 if relation == "replace-one" else 1.0
        gaussian = Gaussian(noise_std=multiplier, sensitivity=sensitivity, neighbours=relation)
        if self.sampling == "one":
            return Repeated(event=DrawnOne(count=round(1 / self.rate), event=gaussian), times=self.steps)
        return Repeated(event=Sampled(rate=self.rate, event=gaussian), times=self.steps)

    def account(self, multiplier: float, delta: float) -> dict[str, Any]:
        """Epsilon at this noise multiplier."""
        check_delta(delta)
        if not MIN_NOISE <= multiplier <= MAX_NOISE:
            expected = f"a number from {MIN_NOISE:g} to {MAX_NOISE:g}"
            raise PrivacyError("noise multiplier", multiplier, expected, "Pass --noise-multiplier 1, for example.")
        event, accountant = self.event(multiplier), Accountant(self.neighbours)
        return {
            "epsilon": accountant.epsilon(event, delta), "delta": delta, "neighbours": self.neighbours,
            "unit": "record", "observer": "public", "sampling": self.sampling if self.rate < 1 else "all",
            "accountant": accountant.method(event), "noise_multiplier": multiplier, "rate": self.rate,
            "steps": self.steps,
        }  # fmt: skip

    def calibrate(self, epsilon: float, delta: float) -> dict[str, Any]:
        """The smallest noise multiplier for a target, accounted."""
        smallest = calibrate(
            self.event, epsilon=check_epsilon(epsilon), delta=check_delta(delta), accountant=Accountant(self.neighbours)
        )
        return self.account(smallest, delta)


def account_run(run: Path) -> tuple[Plan, dict[str, Any]]:
    """The plan of a run and what its ledger costs; a privacy.json that states less is refused."""
    folder = find_release(run)
    if not folder.privacy.exists():
        raise PrivacyError(
            "run", str(run), "a finished run", "Its ledger is still growing: gswgan train --resume first."
        )
    plan, stated = folder.plan(), read_json(folder.privacy, "the privacy.json of a finished run")
    if plan.source is not None:
        return plan, stated
    cost = cost_of_ledger(plan, folder)
    if cost is not None:  # otherwise it is void, whatever the file states
        check_stated_cost(folder, cost, stated)
    return plan, privacy_statement(plan, cost)


def account_preset(method: str, preset: str | None, records: int, delta: float | None) -> dict[str, Any]:
    """What a preset would cost for so many records."""
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
        "planned": [f"{times} x {describe_event(event)}" for event, times in draft.releases().items()],
    }
    if privacy is not None:
        content |= {
            "noise_std": privacy.noise_std, "sensitivity": privacy.contribution.sensitivity(privacy.neighbours),
            "releases": privacy.releases, "critics": privacy.critics,
            "rate": 1 / (privacy.critics or 1) if privacy.sampling == "one" else privacy.rate,
        }  # fmt: skip
        if table.get("federated"):  # Algorithm 2 as printed: a client answers in each of its inner iterations
            whole = dataclasses.replace(privacy, rows=privacy.rows * critic.ensemble_settings.updates).total()
            content["as_printed"] = guarantee(whole, delta=delta, **who).to_json()
    return content
