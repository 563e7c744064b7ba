"""The charts of a private page: the utility of the release, and how training went."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from gswgan.report.figures import BLUE, GREEN, INK, LINE, MUTED, ORANGE, Figure, draw
from gswgan.report.private import Private
from gswgan.report.words import figure, plural

TITLES = {
    **{name: name.upper() for name in ("cnn", "mlp", "lda", "gbm", "fid", "kid")}, "linear_svc": "linear SVC",
    "resnet": "ResNet-18", "inception_precision": "precision by Inception", "inception_recall": "recall by Inception",
    "gaussian_nb": "Gaussian NB", "bernoulli_nb": "Bernoulli NB", "adaboost": "AdaBoost", "xgboost": "XGBoost",
    "distance": "Squared distance to the release, its noise included", "critic_loss": "Mean loss of the critics",
    "participants": "Critics that took part", "norm_before": "Before clipping", "norm_after": "After clipping",
}  # fmt: skip


def title(key: str) -> str:
    """A key of the log or of the evaluation, for readers."""
    text = TITLES.get(key, key.replace("_", " "))
    return text[:1].upper() + text[1:]


def utility_chart(classifiers: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Accuracy on real data by classifier: trained on synthetic against trained on real images."""
    names = list(classifiers)

    def paint(panels: list[Axes], narrow: bool) -> None:
        axes, at = panels[0], np.arange(len(names))
        spread = [entry["std"] or 0.0 for entry in classifiers.values()]
        axes.barh(at - 0.19, [entry["mean"] for entry in classifiers.values()], 0.36, color=BLUE, label="synthetic",
                  xerr=spread if any(spread) else None, ecolor=INK)  # fmt: skip
        real = [entry["real"] or 0.0 for entry in classifiers.values()]
        axes.barh(at + 0.19, real, 0.36, color=LINE, edgecolor=MUTED, label="real")
        axes.set_yticks(at, [title(name) for name in names])
        axes.invert_yaxis()
        axes.set_xlim(0, 1)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("accuracy on held-out real data")
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2)

    alt = f"Bars: accuracy of {plural(len(names), 'classifier')} trained on synthetic and on real images."
    return draw("utility", alt, paint, height=1.0 + 0.36 * len(names))


def training_chart(private: Private) -> Figure | None:
    """Every logged number over the steps, a panel each."""
    series = private.series()
    if not series:
        return None

    def paint(panels: list[Axes], narrow: bool) -> None:
        for axes, (key, (steps, values)) in zip(panels, series.items()):
            axes.plot(steps, values, color=BLUE, linewidth=1.3)
            axes.set_title(title(key))
            axes.set_xlabel("step")

    alt = "Lines over the steps: " + "; ".join(
        f"{title(key)} from {figure(values[0])} to {figure(values[-1])}" for key, (_, values) in series.items()
    )
    return draw("training", alt + ".", paint, height=2.3, panels=len(series), narrow=2.1)


def norm_chart(private: Private, clip_norm: float) -> Figure | None:
    """The participants' gradient norms before and after clipping (the paper's figures 2 and A.1), on a log scale."""
    norms = private.norms()
    every = np.array([row for _, rows in norms.values() for row in rows])
    if not norms or not (every > 0).any():
        return None
    floor = max(every[every > 0].min(), 1e-6 * every.max())

    def paint(panels: list[Axes], narrow: bool) -> None:
        for axes, (key, (steps, rows)) in zip(panels, norms.items()):
            table = np.maximum(np.array(rows), floor).T
            for low, high, alpha, label in ((0, 6, 0.14, "all"), (1, 5, 0.22, "5–95 %"), (2, 4, 0.38, "25–75 %")):
                axes.fill_between(steps, table[low], table[high], color=BLUE, alpha=alpha, linewidth=0, label=label)
            axes.plot(steps, table[3], color=BLUE, label="median", marker="o" if len(steps) == 1 else None)
            axes.axhline(clip_norm, color=ORANGE, linestyle="--", linewidth=1.4, label=f"clip at {figure(clip_norm)}")
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.yaxis.set_minor_formatter(NullFormatter())
            axes.set_ylim(floor / 1.5, max(every.max(), clip_norm) * 5)
            axes.set_title(title(key))
            axes.set_xlabel("step")
        panels[0].set_ylabel("norm of a gradient")
        panels[-1].legend(loc="upper right", fontsize=7.5, ncols=2)

    last = {key: rows[-1] for key, (_, rows) in norms.items()}
    alt = (
        f"Bands over the steps, log scale. Last step: median norm {figure(last['norm_before'][3])} before clipping, "
        f"{figure(last['norm_after'][3])} after; the clip is at {figure(clip_norm)}."
    )
    return draw("norms", alt, paint, height=2.7, panels=2, narrow=2.3)


@dataclass(frozen=True, kw_only=True)
class Point:
    """A run on the privacy-utility curve."""

    run: str
    data: str
    epsilon: float
    claimed: float | None
    accuracy: float
    spread: float | None
    real: float | None


def tradeoff_chart(points: list[Point], measure: str) -> Figure:
    """Accuracy against epsilon on a log axis, a line for each data set; a claim is joined to its guarantee."""
    kinds = list(dict.fromkeys(point.data for point in points))
    colours, marks = (BLUE, GREEN, ORANGE, INK), ("o", "s", "D", "^")

    def paint(panels: list[Axes], narrow: bool) -> None:
        axes = panels[0]
        for index, data in enumerate(kinds):
            mine = sorted((p for p in points if p.data == data), key=lambda p: p.epsilon)
            colour, mark = colours[index % 4], marks[index % 4]
            axes.errorbar(
                [p.epsilon for p in mine], [p.accuracy for p in mine], yerr=[p.spread or 0.0 for p in mine],
                color=colour, marker=mark, label=data, capsize=2,
            )  # fmt: skip
            if (real := next((p.real for p in mine if p.real is not None), None)) is not None:
                axes.axhline(real, color=colour, linestyle=":", linewidth=1.2)
                axes.annotate(
                    f"real data: {real:.3f}", (0, real), xycoords=("axes fraction", "data"), xytext=(2, 3),
                    textcoords="offset points", color=colour, fontsize=8,
                )  # fmt: skip
            for p in mine:
                axes.annotate(p.run[:24], (p.epsilon, p.accuracy), xytext=(0, -13), textcoords="offset points",
                              ha="center", fontsize=8, color=MUTED)  # fmt: skip
                if p.claimed is not None:
                    axes.plot([p.claimed, p.epsilon], [p.accuracy] * 2, color=colour, linestyle="--", linewidth=1)
                    axes.plot(p.claimed, p.accuracy, marker=mark, markerfacecolor="none", markeredgecolor=colour)
                    axes.annotate("claimed", (p.claimed, p.accuracy), xytext=(0, 6), textcoords="offset points",
                                  ha="center", fontsize=8, color=MUTED)  # fmt: skip
        every = [x for p in points for x in (p.epsilon, p.claimed) if x]
        axes.set_xscale("log")
        axes.set_xlim(min(every) / 2, max(every) * 2)
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 3), numticks=20))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        low = min(p.accuracy - (p.spread or 0) for p in points)
        axes.set_ylim(max(0.0, low - 0.12), 1.02)
        axes.set_xlabel("epsilon (log scale; less is more private)")
        axes.set_ylabel("accuracy")
        if len(kinds) > 1:
            axes.legend(loc="lower right")

    alt = f"{measure} against epsilon: " + "; ".join(
        f"{p.run}, epsilon {figure(p.epsilon)}, {p.accuracy:.3f}" for p in sorted(points, key=lambda p: p.epsilon)
    )
    return draw("tradeoff", alt + ".", paint, height=3.2, narrow=3.0)
