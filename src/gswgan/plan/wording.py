"""What a guarantee means in words: how strong an epsilon is, what one unit covers, and what no guarantee covers.

The card of a release, the report page and the commands take these sentences from here.
"""

from __future__ import annotations

from gswgan.plan.plan import INVENTED, Plan

NOT_COVERED_ON_CARD = (
    "Not covered: choices made by looking at the protected data (settings, seeds, which of several runs to",
    "publish), other releases about the same data, and files outside this folder.",
)
"""The short form, in two lines of Markdown."""


def strength(epsilon: float) -> str:
    """How strong the protection of this epsilon is, in a word or two."""
    return "strong" if epsilon <= 1 else "moderate" if epsilon <= 10 else "weak" if epsilon <= 50 else "not meaningful"


def several_records(unit: str) -> str:
    """What the guarantee for one unit means for the other records of a person."""
    if unit == "person":
        return (
            "All records of a person together are protected. A person is whatever the records were grouped by: if that "
            "is, say, a lesion, a patient may be several of them."
        )
    if unit == "invented client":
        return f"{INVENTED} All records of one group together are protected. A person may be in several groups."
    return "Several records of one person are protected only as a group, at a multiple of the cost."


def public_text(plan: Plan) -> str:
    """The statement about public images, the user's and those that a network has seen; empty where there are none."""
    images = "" if plan.public is None else f"{plan.public.text}{plan.critic.public_use()}"
    return "; ".join(part for part in (images, plan.critic.network_statement()) if part)


def not_covered(plan: Plan, unit: str) -> list[str]:
    """What the guarantee for one unit does not cover, a sentence each."""
    several = "A person with several records: m of them are protected as if the noise were m times smaller."
    return [
        "Choices made by looking at the protected data: settings, seeds, which of several runs to publish.",
        "Other releases about the same data, by anybody: their costs add up.",
        *([several] if unit == "record" else []),
        *([f"Public images: {text}."] if (text := public_text(plan)) else []),
        *([INVENTED] if unit == "invented client" else []),
        f"What is public: that the data exists, its name, {plan.size}, the names of its classes, the image size, "
        "and how the images were read.",
        "What is true in general. A synthetic set tells the truth about a group even if none of its members took part.",
        "Files outside the release (private/ and what --show-private prints), how long the run took, and what its "
        "operator saw on the screen.",
    ]
