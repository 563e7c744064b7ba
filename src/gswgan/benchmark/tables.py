"""From measured cells to the paper's tables: Table 1 with our columns, Tables 3 and 4, the curves over epsilon."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gswgan.benchmark.cells import Cell
from gswgan.evaluation.evaluate import duration
from gswgan.evaluation.result import PRIVATE, Results
from gswgan.report.private_charts import title
from gswgan.report.words import figure
from gswgan.run.folder import RunFolder, read_json

Measured = tuple[Cell, RunFolder, Mapping[str, Any], str | None]
"""A cell, its run, what the benchmark knows of it, and what failed."""

CURVES = ("inception_score", "fid", "average_accuracy", "cnn")
"""What is drawn over epsilon, where it was measured (Figures 4 and A.2 have the first two)."""

PUBLISHABLE = "computed on real data, which is public"

NOTES = (
    "True epsilon: of one run alone, towards everybody who sees its release, as its ledger has it. The costs of "
    "several runs about the same data add up, and choosing one of them by these figures is outside every guarantee.",
    "Replace-one: the content of one record (or person) is exchanged. Claimed: stated elsewhere for the same run, and "
    "not a guarantee.",
    "Mean over the seeds ± standard deviation. Calibrated: the share of what the same classifiers reach when they are "
    "trained on real images. Train time: repeated steps included where a run was stopped and resumed. Peak MiB: memory "
    "of the GPU, or of the whole process where there is none.",
)


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table of words, ready for Markdown and for the page."""

    title: str
    head: list[str]
    rows: list[list[str]]
    words: tuple[int, ...] = (0,)
    """Columns of words and not of numbers."""


def gather(measured: Sequence[Measured]) -> dict[str, Any]:
    """Everything that the tables and the page show, as plain data: a row for each method and epsilon."""
    lines: dict[tuple[str, str, float | None], list[Measured]] = {}
    for one in measured:
        lines.setdefault((one[0].data, one[0].entry.name, one[0].epsilon), []).append(one)
    rows = [_row(cells) for cells in lines.values()]
    return {
        "format_version": 1,
        "rows": rows,
        "real": {name: _real([row for row in rows if row["data"] == name]) for name in _names(rows, "data")},
        "curves": {name: _curves([row for row in rows if row["data"] == name]) for name in _names(rows, "data")},
        "skipped": {key: why for _, _, state, _ in measured for key, why in state.get("skipped", {}).items()},
        "failed": {cell.name: failed for cell, _, _, failed in measured if failed is not None},
    }


def _names(rows: Sequence[Mapping[str, Any]], key: str) -> list[str]:
    return list(dict.fromkeys(row[key] for row in rows))


def _row(cells: Sequence[Measured]) -> dict[str, Any]:
    """One line: the cells of all seeds together."""
    first = cells[0][0]
    pooled = Results(None, {})
    for cell, _, state, _ in cells:
        if values := state.get("values"):
            pooled.real |= state["real"]
            pooled.put(values, cell.seed)
            seeds = [*pooled.seeds.get(next(iter(values)), []), cell.seed]
            pooled.ask(list(values), seeds)
    found = pooled.summary()
    finished = [(cell, folder, state) for cell, folder, state, _ in cells if state.get("trained")]
    seconds = [state["seconds"] for _, _, state in finished]
    memory = [state["peak_memory"] for _, _, state in finished if state["peak_memory"] is not None]
    return {
        "data": first.data, "name": first.entry.name, "method": first.entry.method, "preset": first.entry.preset,
        "asked_epsilon": first.epsilon, **_stated([folder for _, folder, _ in finished]),
        **{name: found[name] for name in ("inception_score", "fid", "classifiers", "average_accuracy")},
        "train_seconds": float(np.mean(seconds)) if seconds else None, "peak_memory": max(memory, default=None),
        "runs": {str(cell.seed): str(cell.folder(Path())) for cell, _, _ in finished},
        "failed": {str(cell.seed): failed for cell, _, _, failed in cells if failed is not None},
    }  # fmt: skip


def _stated(runs: Sequence[RunFolder]) -> dict[str, Any]:
    """The guarantee of the line: of its runs the one that promises least (a repeated release costs more)."""
    statements = [read_json(folder.privacy, "the privacy.json of a run") for folder in runs]
    void = next((folder.plan().void for folder in runs if folder.plan().void), None)
    if void or not statements:
        return {"privacy": None, "claimed": None, "void": void}
    worst = max(statements, key=lambda stated: stated["epsilon"])
    kept = ("epsilon", "delta", "neighbours", "unit", "observer", "sampling", "accountant")
    claimed = worst["claimed"]
    return {
        "privacy": {name: worst[name] for name in kept},
        "claimed": None if claimed is None else claimed["epsilon"],
        "void": None,
    }


def _real(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The same figures on real data."""
    entries = [(name, entry) for row in rows for name, entry in _entries(row).items()]
    return {name: entry["real"] for name, entry in entries if entry["real"] is not None}


def _entries(row: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Every figure of a line that was measured, by name."""
    found = {name: row[name] for name in ("inception_score", "fid", "average_accuracy")} | row["classifiers"]
    return {name: entry for name, entry in found.items() if entry is not None}


def _curves(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[list[float | None]]]]:
    """For each measure, each method's points: true epsilon, mean, standard deviation; none without a guarantee."""
    curves: dict[str, dict[str, list[list[float | None]]]] = {}
    for row in rows:
        for name, entry in _entries(row).items():
            if name in CURVES and row["privacy"] is not None:
                points = curves.setdefault(name, {}).setdefault(row["name"], [])
                points.append([row["privacy"]["epsilon"], entry["mean"], entry["std"]])
                points.sort(key=lambda point: point[0] or 0.0)
    return {name: curves[name] for name in CURVES if name in curves}


# -- in words -----------------------------------------------------------------------------------------------------


def main_table(found: Mapping[str, Any], data: str) -> Table:
    """Table 1 with our columns; columns without any value are left out."""
    head = ["Method", "Preset", "True epsilon", "Claimed", "Relation", "IS ↑", "FID ↓", "MLP ↑", "CNN ↑",
            "Avg ↑", "Calibrated ↑", "Train time", "Peak MiB"]  # fmt: skip
    real = found["real"][data]
    measured = ("inception_score", "fid", "mlp", "cnn", "average_accuracy")
    top = [f"{real[name]:.{_digits(name)}f}" if name in real else "-" for name in measured]
    rows = [["Real data", "", "", "", "", *top, "100 %" if "average_accuracy" in real else "-", "", ""]]
    for row in _of(found, data):
        cost, entries = row["privacy"], _entries(row)
        average = entries.get("average_accuracy")
        rows.append([
            row["method"], row["preset"],
            figure(cost["epsilon"]) if cost else "NONE" if row["void"] else "-",
            figure(row["claimed"]) if row["claimed"] is not None else "",
            f"{cost['neighbours']} ({cost['unit']})" if cost else "",
            *(_value(entries.get(name), _digits(name)) for name in measured),
            _percent(average["calibrated"]) if average else _failed(row),
            "-" if row["train_seconds"] is None else duration(row["train_seconds"]),
            "-" if row["peak_memory"] is None else f"{row['peak_memory'] / 2**20:,.0f}",
        ])  # fmt: skip
    used = [at for at in range(len(head)) if any(row[at] not in ("", "-") for row in rows)]
    deltas = sorted({row["privacy"]["delta"] for row in _of(found, data) if row["privacy"]})
    at = f", at delta {' or '.join(map(figure, deltas))}" if deltas else ""
    return Table(
        title=f"{data}: methods compared{at} (Table 1)", head=[head[at] for at in used],
        rows=[[row[at] for at in used] for row in rows], words=(0, 1),
    )  # fmt: skip


def classifier_table(found: Mapping[str, Any], data: str) -> Table:
    """Tables 3 and 4: classifiers by method, at the largest epsilon that was asked for."""
    rows = at_largest_epsilon(found, data)
    names = list(dict.fromkeys(name for row in rows for name in row["classifiers"]))
    real = found["real"][data]
    body = [
        [title(name), f"{real[name]:.2f}" if name in real else "-", *(_share(_entries(row).get(name)) for row in rows)]
        for name in (*names, "average_accuracy")
    ]
    asked = [row["asked_epsilon"] for row in rows if row["asked_epsilon"] is not None]
    at = f" at epsilon {figure(asked[0])}" if asked else ""
    head = ["Classifier", "Real", *(row["name"] for row in rows)]
    return Table(
        title=f"{data}: classifiers by method{at}, in brackets calibrated (Tables 3 and 4)", head=head, rows=body
    )


def at_largest_epsilon(found: Mapping[str, Any], data: str) -> list[dict[str, Any]]:
    """One line for each method: that of the largest epsilon asked for, or its only one."""
    rows = _of(found, data)
    most = max((row["asked_epsilon"] for row in rows if row["asked_epsilon"] is not None), default=None)
    return [row for row in rows if row["asked_epsilon"] in (None, most)]


def _of(found: Mapping[str, Any], data: str) -> list[dict[str, Any]]:
    return [row for row in found["rows"] if row["data"] == data]


def _digits(name: str) -> int:
    return {"fid": 1, "inception_score": 2}.get(name, 3)


def _value(entry: Mapping[str, Any] | None, digits: int) -> str:
    if entry is None:
        return "-"
    spread = "" if entry["std"] is None else f" ± {entry['std']:.{digits}f}"
    return f"{entry['mean']:.{digits}f}{spread}"


def _share(entry: Mapping[str, Any] | None) -> str:
    if entry is None:
        return "-"
    return f"{entry['mean']:.2f}" + (f" ({100 * entry['calibrated']:.0f} %)" if entry["calibrated"] is not None else "")


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}".replace("%", " %")


def _failed(row: Mapping[str, Any]) -> str:
    return "FAILED" if row["failed"] else "-"


def tables(found: Mapping[str, Any]) -> list[Table]:
    """All tables, data set by data set."""
    return [table(found, data) for data in found["real"] for table in (main_table, classifier_table)]


def troubles(found: Mapping[str, Any]) -> list[str]:
    """What is missing, and why: a sentence each."""
    lines = [why for why in found["skipped"].values()]
    lines += [f"Failed: {name}: {why}." for name, why in found["failed"].items()]
    voids = {row["name"]: row["void"] for row in found["rows"] if row["void"]}
    return [*lines, *(f"{name}: {why}." for name, why in voids.items())]


def markdown(found: Mapping[str, Any]) -> str:
    """The tables for a README or a paper."""
    mark = PUBLISHABLE if found["public"] else f"PRIVATE: {PRIVATE}"
    lines = ["# Benchmark", "", f"**{mark[:1].upper()}{mark[1:]}.**", ""]
    for table in tables(found):
        lines += [f"## {_plain(table.title)}", "", _line(table.head), _line(["---"] * len(table.head))]
        lines += [*map(_line, table.rows), ""]
    lines += [f"- {_plain(text)}" for text in (*NOTES, *troubles(found))]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_plain, cells))} |"


def _plain(text: str) -> str:
    """Text that cannot become markup: names of data sets and messages are not ours."""
    return " ".join(text.translate({ord(sign): f"\\{sign}" for sign in "\\|<>*`[]"}).split())


def run_of(row: Mapping[str, Any]) -> Path | None:
    """The run of a line's first seed below the benchmark's folder, where it has one."""
    return next((Path(path) for path in row["runs"].values()), None)


def guarantee(row: Mapping[str, Any]) -> str:
    """The guarantee of a line in a few words."""
    cost = row["privacy"]
    return f"epsilon {figure(cost['epsilon'])}, delta {figure(cost['delta'])}" if cost else "NO GUARANTEE"
