"""The charts of a public page: what was released, and how it adds up."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.axes import Axes

from gswgan.critics.kernel.embedding import RARE, Embedding
from gswgan.report.figures import BLUE, INK, LINE, MUTED, ORANGE, Figure, draw
from gswgan.report.release import STRIP, Release
from gswgan.report.words import figure, plural

MAX_BARS = 30
"""Classes in a chart; a table has them all."""


def shorten(name: str, most: int = 16) -> str:
    """A class name that fits beside a bar."""
    return name if len(name) <= most else name[: most - 1] + "…"


def signal_rows(release: Release) -> list[dict[str, float | str | bool]]:
    """The kernel's release by class: its size against the size of its noise, its count against the count's noise."""
    embedding = release.embedding
    assert embedding is not None
    noise = noise_norm(embedding)
    kept = set(embedding.kept.tolist())
    return [
        {
            "name": release.plan.facts.class_names[label], "released": size, "noise": noise,
            "signal": math.sqrt(max(0.0, size**2 - noise**2)), "count": count, "kept": label in kept,
        }
        for label, (size, count) in enumerate(zip(embedding.sums.norm(dim=1).tolist(), embedding.counts.tolist()))
    ]  # fmt: skip


def noise_norm(embedding: Embedding) -> float:
    """Expected size of the noise on one class's sum of D features: noise_std sqrt(D)."""
    return embedding.noise_std * math.sqrt(embedding.sums.shape[1])


def signal_chart(release: Release) -> Figure:
    """Bars by class: what was released against a line for its noise; the same for the counts."""
    embedding, rows = release.embedding, signal_rows(release)[:MAX_BARS]
    assert embedding is not None
    noise, count_noise = noise_norm(embedding), embedding.count_noise_std
    names = [shorten(str(row["name"])) for row in rows]
    counted = count_noise > 0

    def bars(axes: Axes, key: str, title: str) -> None:
        values = [float(row[key]) for row in rows]
        found = axes.barh(np.arange(len(rows)), values, height=0.62, color=BLUE)
        for bar, row in zip(found, rows):
            if not row["kept"]:
                bar.set(facecolor="none", edgecolor=BLUE, hatch="////")
        axes.set_yticks(np.arange(len(rows)), names)
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        axes.set_title(title, pad=18)

    def level(axes: Axes, value: float, text: str) -> None:
        axes.axvline(value, color=ORANGE, linestyle=(0, (4, 2)), linewidth=1.5)
        axes.annotate(
            text, (value, 1.0), xycoords=("data", "axes fraction"), xytext=(4, -1), textcoords="offset points",
            color=ORANGE, va="bottom", ha="left", fontsize=8,
        )  # fmt: skip

    def paint(panels: list[Axes], narrow: bool) -> None:
        bars(panels[0], "released", "Sum of features: size as released")
        level(panels[0], noise, "noise alone")
        if counted:
            bars(panels[1], "count", "Number of records: as released")
            level(panels[1], RARE * count_noise, "least that is used")

    sizes = [float(row["released"]) / noise for row in rows]
    alt = (
        f"Bars for {plural(len(rows), 'class')}: the released sums are {min(sizes):.2g} to {max(sizes):.2g} times as "
        f"large as their noise alone would be ({figure(noise)})."
    )
    height = 0.75 + 0.24 * len(rows)
    return draw("signal", alt, paint, height=max(1.5, height), panels=2 if counted else 1)


def epsilon_chart(release: Release) -> Figure | None:
    """Epsilon over the steps, with what is claimed elsewhere and what no analysis can prove less than."""
    plan, cost = release.plan, release.cost
    if cost is None or not plan.curve:  # it does not grow with the steps, or there is none
        return None
    early = plan.critic.has_embedding  # one release comes before the first step, and lasts for some of them
    points = (
        (0, plan.curve[0][1] if early else 0.0),
        *plan.curve[:-1],
        (plan.training.steps, cost.epsilon),
    )  # the ledger may have cost more than planned
    steps, values = [done for done, _ in points], [epsilon for _, epsilon in points]
    stated = "with a secret key" if release.void else "guarantee"

    def paint(panels: list[Axes], narrow: bool) -> None:
        axes = panels[0]
        axes.plot(steps, values, color=BLUE, marker="o", markersize=3.5, clip_on=False)
        axes.fill_between(steps, values, color=BLUE, alpha=0.12, linewidth=0)
        axes.annotate(
            f"{stated}: {figure(values[-1])}", (steps[-1], values[-1]), xytext=(-8, 4), textcoords="offset points",
            ha="right", color=BLUE, weight="bold",
        )  # fmt: skip
        levels = [("lower_bound", "at least", MUTED, ":"), ("claimed", "claimed", ORANGE, "--")]
        for key, words, colour, dashes in levels:
            if (line := getattr(release, key)) is not None:
                axes.axhline(line["epsilon"], color=colour, linestyle=dashes, linewidth=1.4)
                axes.annotate(
                    f"{words}: {figure(line['epsilon'])}", (0, line["epsilon"]), xytext=(4, 3),
                    textcoords="offset points", color=colour,
                )  # fmt: skip
        axes.set_xlim(0, steps[-1])
        axes.set_ylim(0, 1.15 * max([*values, *([] if release.claimed is None else [release.claimed["epsilon"]])]))
        axes.set_xlabel("steps done" if early else "steps done, one release each")
        axes.set_ylabel(f"epsilon at delta {figure(cost.delta)}")

    ends = f"from {figure(values[0])} to {figure(values[-1])}"
    alt = f"Line: epsilon grows with the steps, {ends} after {plural(steps[-1], 'step')}."
    if release.claimed is not None:
        place = "below" if release.claimed["epsilon"] < cost.epsilon else "above"
        alt += f" The claim of {figure(release.claimed['epsilon'])} lies {place} it."
    return draw("epsilon", alt, paint, height=2.7, narrow=2.6)


def sample_chart(release: Release, name: str = "samples") -> Figure:
    """The sample grid as a picture for use elsewhere; the page has images of its own."""
    rows = list(release.samples.items())
    names = release.plan.facts.class_names
    across = 2 * STRIP

    def paint(panels: list[Axes], narrow: bool) -> None:
        axes = panels[0]
        strips = [image for _, images in rows for image in np.split(images, max(1, len(images) // across))]
        side = strips[0].shape[1]
        grid = np.concatenate([np.concatenate(list(strip), axis=1) for strip in strips], axis=0)
        axes.imshow(grid, cmap="gray", vmin=0, vmax=255, interpolation="nearest", aspect="equal")
        lines = np.arange(0, max(grid.shape[:2]) + 1, side) - 0.5
        for at in lines[lines <= grid.shape[1]]:
            axes.axvline(at, color=LINE, linewidth=0.8)
        for at in lines[lines <= grid.shape[0]]:
            axes.axhline(at, color=LINE, linewidth=0.8)
        each = len(strips) // len(rows)
        at = (np.arange(len(rows)) * each + each / 2) * side - 0.5
        axes.set_yticks(at, [shorten(names[label]) for label, _ in rows] if len(names) > 1 else [""])
        axes.set_xticks([])
        axes.grid(visible=False)
        axes.tick_params(length=0, colors=INK)
        axes.spines[:].set_visible(False)

    strips = sum(max(1, len(images) // across) for _, images in rows)
    wide = across if any(len(images) >= across for _, images in rows) else STRIP
    height = 6.2 * strips / wide + 0.2
    return draw(name, f"Synthetic images of {plural(len(rows), 'class')}.", paint, height=height, narrow=height / 2)
