"""Which preset of GS-WGAN a training takes when none is asked for: by public facts, and by what was measured."""

from __future__ import annotations

from gswgan.plan.facts import Facts

FROM_RECORDS, SIDES = 50_000, range(24, 33)
"""Around what was measured: 60,000 grey images of 28x28 (MNIST and Fashion-MNIST, one H200, test set), where `refined`
had CNN accuracy and FID of 0.980 / 3.0 and 0.880 / 13.6 at epsilon 10 (`kernel`: 0.981 / 6.7 and 0.865 / 26.3), 0.965 /
9.9 and 0.831 / 28.9 at epsilon 1 (0.963 / 16.2 and 0.813 / 50.7), in 400 s instead of 30 (benchmarks/results). With a
quarter of the records, in colour, a prototype had a lower accuracy than `kernel`. On a CPU `refined` is for small
images alone, and was not seen to be better there."""


def usual_preset(facts: Facts, device: str, *, in_files: bool = False) -> tuple[str, str]:
    """The preset, and why, on one line. `in_files`: the data is not in memory."""
    reasons = {
        "without a GPU": not device.startswith("cuda"),
        "by person": facts.persons is not None,
        "for data that stays in its files": in_files,
        "for colour": facts.channels > 1,
        f"for {facts.image_size}x{facts.image_size} pixels": facts.image_size not in SIDES,
        f"below {FROM_RECORDS:,} records": facts.records < FROM_RECORDS,
    }
    why = next((reason for reason, holds in reasons.items() if holds), None)
    if why is not None:
        return "kernel", f"kernel, the usual one {why}; others: --preset"
    return "refined", (
        "refined, the usual one on a GPU for this many grey images of this size: better images than kernel, in minutes "
        "instead of seconds; for kernel: --preset kernel"
    )
