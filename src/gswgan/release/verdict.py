"""What verification found: what is wrong with a bundle, or what it guarantees and what was compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gswgan.plan.plan import Plan
from gswgan.privacy import PrivacyCost
from gswgan.privacy.accountant import NOT_RECOMPUTED
from gswgan.report.explain import explanation

UNSEEN = (
    "whether noise was added at all: an embedding or weights made of exact sums look like any other;",
    "that the noise was drawn from a key that nobody else had;",
    "what the low bits of weights and embedding hold: whoever made the bundle could hide data there;",
    "which data it was, and that nothing else about it was published;",
    "what names and settings of the plan mean: whoever planned the run chose them.",
)
"""What no verifier can see."""

NETWORK_UNSEEN = (
    "on which photographs VGG19 was trained, and that no protected record is among them. Its weights are compared "
    "with the published ones."
)

PUBLIC_UNSEEN = (
    "whether the public images are public, and not a part of the protected data: whoever planned it says so."
)

ENCODER_UNSEEN = "that the encoder was trained on the public images alone, and what the low bits of its weights hold."


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong: where, what, and what that means."""

    where: str
    what: str
    means: str

    def __str__(self) -> str:
        return f"{self.where!r} {self.what}. {self.means}"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What verification found: nothing (`findings` is empty, the rest is set), or what is wrong."""

    findings: tuple[Finding, ...]
    digest: str = ""
    head: str = ""
    plan: Plan | None = None
    cost: PrivacyCost | None = None
    statement: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    releases: int = 0
    repeated: int = 0
    page: str = ""  # what is known of the page in the bundle, where there is one
    samples: str = ""  # and of its set of images

    def describe(self, expected: str | None) -> str:
        """What a verified bundle guarantees, and what was compared with the `expected` digest."""
        assert self.plan is not None
        assert self.cost is not None
        lines = [explanation(self.plan, {**self.statement, "accountant": self.cost.accountant})]
        if self.statement["accountant"] != self.cost.accountant:
            lines += ["", f"Its files say {NOT_RECOMPUTED!r}: epsilon was computed now, and is what they state."]
        repeated = f", {self.repeated} of them repeated after a stop and counted" if self.repeated else ""
        compared = {
            None: "NOT compared with one published elsewhere: pass --digest to find a bundle that was rebuilt",
            self.digest: "as published: every byte of the bundle",
            self.head: "NOT compared; the ledger is the published one: its plan and releases, not the weights",
        }
        return "\n".join([
            *lines,
            "",
            "VERIFIED: every file is as the manifest says and as gswgan writes it; weights, embedding, picture and",
            "card fit the plan. The ledger is unbroken and has every planned release; epsilon above was computed from",
            "it.",
            "",
            "What no verifier can see",
            *(f"  - {line}" for line in UNSEEN),
            *([] if self.plan.public is None else [f"  - {PUBLIC_UNSEEN}"]),
            *([f"  - {unseen}"] if (unseen := _encoder_unseen(self.plan, self.statement)) else []),
            "",
            *([f"page:      report.html, {self.page}"] if self.page else []),
            *([f"samples:   {self.samples}"] if self.samples else []),
            f"releases:  {self.releases}{repeated}",
            f"ledger:    {self.head} (head)",
            f"digest:    {self.digest} ({compared[expected]})",
        ])  # fmt: skip


def _encoder_unseen(plan: Plan, statement: Mapping[str, Any]) -> str:
    """What cannot be seen of the network of the features; empty where there is none, or an untrained one."""
    if plan.critic.network_statement():
        return NETWORK_UNSEEN
    return ENCODER_UNSEEN if "encoder" in statement.get("public_images", {}) else ""
