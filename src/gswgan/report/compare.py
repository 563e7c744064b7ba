"""Several runs beside each other: their guarantees, what they cost together, and on a private page their utility."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gswgan.evaluation.result import TOP
from gswgan.report.figures import Figure
from gswgan.report.private import Private
from gswgan.report.private_charts import Point, title, tradeoff_chart
from gswgan.report.release import Release

Runs = Sequence[tuple[str, Release]]


def comparison(runs: Runs, private: Sequence[Private] | None) -> tuple[dict[str, Any], dict[str, Figure]]:
    """What the comparison page shows, and its figures by name."""
    content: dict[str, Any] = {"runs": runs, "together": together(runs), "utility": None, "curve": None}
    figures: dict[str, Figure] = {}
    if private is not None:
        evaluations = [part.evaluation or {} for part in private]
        content["utility"] = _utility(runs, evaluations)
        common, points = curve(runs, evaluations)
        if points:
            measure = f"Accuracy ({title(common[0])})" if len(common) == 1 else "Mean accuracy"
            figures["tradeoff"] = tradeoff_chart(points, measure)
            content["curve"] = {"figure": figures["tradeoff"], "of": [title(name) for name in common]}
    return content, figures


def together(runs: Runs) -> dict[str, Any] | None:
    """What all runs cost together if they are about the same data: epsilons and deltas add (basic composition).

    A ledger that several runs share (a generator on an embedding that was released before) counts once. None where the
    guarantees are not of one kind, or one is missing.
    """
    costs = {release.head: release.cost for _, release in runs if release.cost is not None}
    kinds = {(cost.unit, cost.neighbours, cost.observer) for cost in costs.values()}
    if len(kinds) > 1 or any(release.void for _, release in runs):
        return None
    return {
        "epsilon": sum(cost.epsilon for cost in costs.values()),
        "delta": sum(cost.delta for cost in costs.values()),
        "ledgers": len(costs),
    }


def curve(runs: Runs, evaluations: Sequence[dict[str, Any]]) -> tuple[list[str], list[Point]]:
    """The privacy-utility curve: mean accuracy over the classifiers that all evaluated runs have.

    Runs without a guarantee have no place on it.
    """
    scored = [{key: entry for key, entry in (each.get("classifiers") or {}).items() if entry} for each in evaluations]
    found = [
        (name, release, release.cost, entries)
        for (name, release), entries in zip(runs, scored)
        if entries and release.cost is not None and not release.void
    ]
    common = [key for key in (found[0][3] if found else ()) if all(key in row[3] for row in found)]
    if not common:
        return [], []
    points = []
    for name, release, cost, entries in found:
        mine = [entries[key] for key in common]
        real = [entry["real"] for entry in mine]
        points.append(
            Point(
                run=name, data=release.plan.facts.data, epsilon=cost.epsilon,
                claimed=None if release.claimed is None else release.claimed["epsilon"],
                accuracy=float(np.mean([entry["mean"] for entry in mine])),
                spread=mine[0]["std"] if len(mine) == 1 else None, real=None if None in real else float(np.mean(real)),
            )
        )  # fmt: skip
    return common, points


def _utility(runs: Runs, evaluations: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each figure that any run has: its value for each run."""
    rows: dict[str, list[dict[str, Any] | None]] = {}
    for index, evaluation in enumerate(evaluations):
        entries = {name: evaluation.get(name) for name in TOP} | (evaluation.get("classifiers") or {})
        entries["average_accuracy"] = evaluation.get("average_accuracy")
        for key, entry in entries.items():
            if entry:
                rows.setdefault(key, [None] * len(runs))[index] = entry
    last = {"average_accuracy": 1}
    return [{"name": key, "entries": rows[key]} for key in sorted(rows, key=lambda key: last.get(key, 0))]
