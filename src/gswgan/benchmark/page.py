"""The benchmark on one page: tables, the sample grid of Figure 3, the curves of Figures 4 and A.2."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from gswgan.benchmark.tables import NOTES, PUBLISHABLE, at_largest_epsilon, guarantee, run_of, tables, troubles
from gswgan.report.figures import BLUE, GREEN, INK, MUTED, ORANGE, Figure, draw
from gswgan.report.page import Page, render, strip_uri
from gswgan.report.private_charts import title
from gswgan.run.released import load

ROWS, MAX_SHOWN_CLASSES = 3, 10
"""Of a method's samples: one image of each class, so many times."""

COLOURS, MARKS, DASHES = (BLUE, ORANGE, GREEN, INK), ("o", "s", "D", "^", "v"), ("-", "--", ":")


def benchmark_page(found: Mapping[str, Any], root: Path) -> Page:
    """One self-contained page, and the figures beside it; the runs are below `root`."""
    sets = list(found["real"])
    curves = {name: figure for name in sets if (figure := curve_chart(found, name)) is not None}
    drawn: dict[str, dict[str, list[np.ndarray]]] = {}
    notes: dict[str, dict[str, str]] = {}
    for name in sets:
        for row in at_largest_epsilon(found, name):
            if (run := run_of(row)) is not None:
                drawn.setdefault(row["name"], {})[name] = _draw(root / run)
                notes.setdefault(row["name"], {})[name] = guarantee(row)
    cards = [
        {
            "name": name,
            "note": _note(notes[name]),
            "samples": [{"name": data, "strips": list(map(strip_uri, strips))} for data, strips in by_data.items()],
        }
        for name, by_data in drawn.items()
    ]
    charts = [*curves.values(), *([sample_grid(drawn)] if drawn else [])]
    html = render(
        "benchmark.html.j2", sets=sets, tables=tables(found), notes=NOTES, troubles=troubles(found), curves=curves,
        cards=cards, private=not found["public"], publishable=PUBLISHABLE,
    )  # fmt: skip
    return Page(html=html, figures=charts)


def _note(guarantees: Mapping[str, str]) -> str:
    """By data set, where they differ (at a noise of its own)."""
    if len(set(guarantees.values())) == 1:
        return next(iter(guarantees.values()))
    return "; ".join(f"{data}: {text}" for data, text in guarantees.items())


def _draw(run: Path) -> list[np.ndarray]:
    """Strips with an image of each class (the first of them), drawn at random and not chosen."""
    model = load(run, device="cpu")
    kept = np.tile(model.kept[:MAX_SHOWN_CLASSES], MAX_SHOWN_CLASSES if len(model.kept) == 1 else 1)
    images, _ = model.sample(ROWS * len(kept), np.tile(kept, ROWS), seed=0)
    return np.split(images, ROWS)


def sample_grid(drawn: Mapping[str, Mapping[str, list[np.ndarray]]]) -> Figure:
    """Figure 3 as a picture: a row for each method, a column for each data set."""
    sets = list(dict.fromkeys(data for by_data in drawn.values() for data in by_data))

    def paint(panels: list[Axes], narrow: bool) -> None:
        places = [(method, data) for method in drawn for data in sets]
        for axes, (method, data) in zip(panels, places):
            axes.set_axis_off()
            axes.set_title(method if len(sets) == 1 else f"{method}, {data}")
            if (strips := drawn[method].get(data)) is not None:
                grid = np.concatenate([np.concatenate(_apart(strip), axis=1) for strip in strips], axis=0)
                axes.imshow(grid, cmap="gray", vmin=0, vmax=255, interpolation="nearest", aspect="equal")

    alt = f"Synthetic images of {', '.join(drawn)} after {', '.join(sets)}."
    return draw("samples", alt, paint, height=1.3, panels=len(drawn) * len(sets), columns=max(2, len(sets)), narrow=1.3)


def _apart(images: np.ndarray) -> list[np.ndarray]:
    """Each with a white line to its right and below."""
    lines = [(0, 0), (0, 1), (0, 1), (0, 0)][: images.ndim]
    return list(np.pad(images, lines, constant_values=255))


def curve_chart(found: Mapping[str, Any], data: str) -> Figure | None:
    """Each measure against the true epsilon, a line for each method; what has no guarantee is a dotted level."""
    curves = found["curves"][data]
    if not curves:
        return None
    names = list(dict.fromkeys(name for lines in curves.values() for name in lines))
    levels = {row["name"]: row for row in found["rows"] if row["data"] == data and row["void"]}

    def paint(panels: list[Axes], narrow: bool) -> None:
        for axes, (measure, lines) in zip(panels, curves.items()):
            for index, name in enumerate(names):
                points = lines.get(name, [])
                axes.errorbar(
                    [point[0] for point in points], [point[1] for point in points],
                    yerr=[point[2] or 0.0 for point in points], color=COLOURS[index % 4],
                    marker=MARKS[index % 5], linestyle=DASHES[index // 4 % 3], label=name, capsize=2,
                )  # fmt: skip
            for name, row in levels.items():
                entry = row["classifiers"].get(measure, row.get(measure))
                if entry:
                    axes.axhline(entry["mean"], color=MUTED, linestyle=":", label=f"{name} (NO guarantee)")
            axes.set_xscale("log")
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 3), numticks=20))
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.xaxis.set_minor_formatter(NullFormatter())
            axes.margins(x=0.12)
            axes.set_title(title(measure) + (" (less is better)" if measure == "fid" else ""))
            axes.set_xlabel("true epsilon")
        panels[0].figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center",
                                ncols=2 if narrow else 4)  # fmt: skip

    parts = [
        f"{title(measure)}, {name}: " + ", ".join(f"{point[1]:.3g} at {point[0]:.3g}" for point in points)
        for measure, lines in curves.items()
        for name, points in lines.items()
    ]
    number = list(found["curves"]).index(data) + 1
    alt = f"Lines over epsilon on {data}. {'; '.join(parts)}."
    return draw(f"curves-{number}", alt, paint, height=2.9, panels=len(curves), narrow=2.7)
