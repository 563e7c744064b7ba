"""The noise of both critics over the number of records: the table and the picture of docs/choosing.md.

    python benchmarks/choosing.py            # prints the table
    python benchmarks/choosing.py --write    # and puts it, and the picture, into docs/

Nothing is trained: the figures follow from public facts and the guarantee, in a minute or two.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from gswgan.methods.advice import BEARABLE, Comparison, compare
from gswgan.plan.defaults import score_noise
from gswgan.plan.facts import Facts

DOCS = Path(__file__).parent.parent / "docs"
RECORDS = (1_000, 10_000, 60_000, 100_000, 1_000_000, 10_000_000)
EPSILONS = (10.0, 1.0)
FIXED = 1000
BEGIN, END = "<!-- table: benchmarks/choosing.py --write -->\n", "<!-- end of table -->\n"


def facts(records: int) -> Facts:
    """Images like MNIST's: ten classes, 28x28, grey."""
    return Facts(
        data="example", records=records, persons=None, classes=10, class_names=tuple("0123456789"), labelled=True,
        image_size=28, channels=1,
    )  # fmt: skip


def delta(records: int) -> float:
    """1e-5, and a tenth of one over the records where those are many."""
    return 1e-5 if records < 100_000 else 0.1 / records


def noise(records: int, epsilon: float, shards: int | None = None) -> Comparison:
    return compare(facts(records), epsilon=epsilon, delta=delta(records), shards=shards)


def figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def row(records: int, epsilon: float) -> str:
    """One line of the table."""
    own, fixed = noise(records, epsilon), noise(records, epsilon, FIXED)
    cells = [f"{records:,}", f"{epsilon:g}", figure(score_noise(own.facts, own.kernel.noise_std))]
    cells += [figure(own.kernel_noise), f"{own.ensemble.shards}", figure(own.step_noise), figure(own.run_noise)]
    cells += [figure(fixed.step_noise), figure(fixed.run_noise), figure(own.ratio)]
    return "| " + " | ".join(cells) + " |"


def table() -> str:
    head = ["n", "epsilon", "kernel: on a score", "**kernel**", "K by default", "ensemble: a step"]
    head += ["**ensemble**", f"K={FIXED}: a step", f"**K={FIXED}**", "ensemble / kernel"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    lines += [row(records, epsilon) for epsilon in EPSILONS for records in RECORDS]
    return "\n".join(lines) + "\n"


def draw(path: Path) -> None:
    """Noise over the number of records, a panel for each epsilon."""
    from matplotlib.figure import Figure

    sizes = [round(size) for size in np.geomspace(RECORDS[0], RECORDS[-1], 25)]
    page = Figure(figsize=(9.6, 4.4), layout="constrained")
    panels = page.subplots(1, len(EPSILONS), sharey=True)
    for panel, epsilon in zip(panels, EPSILONS, strict=True):
        own = [noise(size, epsilon) for size in sizes]
        fixed = [noise(size, epsilon, FIXED).run_noise for size in sizes]
        panel.axhspan(BEARABLE, 1e5, color="0.93", zorder=0)
        panel.plot(
            sizes,
            [it.step_noise for it in own],
            "--",
            color="tab:orange",
            lw=1.2,
            label="ensemble (K by default), one step",
        )
        panel.plot(
            sizes,
            [it.run_noise for it in own],
            color="tab:orange",
            lw=2.2,
            label="ensemble (K by default), averaged over the run",
        )
        panel.plot(sizes, fixed, ":", color="tab:red", lw=1.6, label=f"ensemble of K = {FIXED}, averaged over the run")
        panel.plot(sizes, [it.kernel_noise for it in own], color="tab:blue", lw=2.2, label="kernel, throughout the run")
        panel.set(xscale="log", yscale="log", title=f"epsilon = {epsilon:g}", xlabel="records", ylim=(1e-5, 1e3))
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("noise in a fake's gradient,\nover the longest gradient without noise")
    panels[0].text(1.2e3, 400, f"above {BEARABLE:g}: too much noise for either critic", fontsize=8, color="0.35")
    panels[1].legend(loc="lower left", fontsize=8)
    page.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="into docs/choosing.md and docs/choosing.png")
    options = parser.parse_args()
    text = table()
    print(text)
    if options.write:
        page = DOCS / "choosing.md"
        before, rest = page.read_text().split(BEGIN)
        page.write_text(before + BEGIN + "\n" + text + "\n" + END + rest.split(END)[1])
        draw(DOCS / "choosing.png")


if __name__ == "__main__":
    main()
