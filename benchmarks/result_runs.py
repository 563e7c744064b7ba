"""The recorded trainings of benchmarks/results as tables of docs/results.md (see results_page.py)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from gswgan.privacy import Accountant, Gaussian
from gswgan.privacy.events import Composed, Repeated, Sampled

Record = dict[str, Any]

RESULTS = Path(__file__).parent / "results"
SETS = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST"}
GUARANTEE = (1e-5, "replace-one", "record", "public")
"""Of all trainings by record: delta, neighbours, unit, observer. The page says it once."""
SCORES = (("cnn_accuracy", 3), ("fid", 1), ("inception_score", 2))
"""What is measured of a training, and its digits."""
BRIEF = (
    ("mnist", "`kernel`", "H200", 10.0),
    ("mnist", "`kernel`", "H200", 1.0),
    ("mnist", "`refined`", "H200", 10.0),
    ("mnist", "`ensemble`", "H200", 10.0),
    ("mnist", "`paper`", "H200", 610.3),
    ("mnist-writers", "`kernel`", "H200", 10.0),
    ("fashion-mnist", "`kernel`", "H200", 10.0),
    ("fashion-mnist", "`refined`", "H200", 10.0),
)
"""The lines of README.md: data, preset, machine, true epsilon."""
RELATIONS = {"replace-one": "replaced", "zeroed": "zeroed"}


def table(head: list[str], rows: Iterable[list[str]]) -> str:
    """A table in Markdown."""
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def read(name: str) -> Record:
    """One record of benchmarks/results."""
    content: Record = json.loads((RESULTS / f"{name}.json").read_text())
    return content


def trainings(*, persons: bool = False) -> list[Record]:
    """The records of `train_plan.py` at one site or by client: protected by record (replaced), or by person."""
    return [one for one in _trainings(persons) if persons or not _is_zeroed(one)]


def _is_zeroed(one: Record) -> bool:
    return one["privacy"] is not None and one["privacy"]["neighbours"] == "zeroed"


def _trainings(persons: bool) -> list[Record]:
    found = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]
    found = [one for one in found if "cnn_accuracy" in one and one.get("tested_on") == "test set"]
    found = [one for one in found if not one["plan"]["facts"].get("silos")]  # they have a table of their own
    found = [one for one in found if (one["plan"]["facts"]["persons"] is not None) == persons]
    return [one for one in found if persons or one["plan"]["facts"]["data"] in SETS]  # pictures are in another table


def grouped(records: list[Record]) -> list[list[Record]]:
    """Runs that differ in their seed alone are one group; by data set, method, machine and falling epsilon."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for one in records:
        groups.setdefault(_place(one), []).append(one)
    return [groups[place] for place in sorted(groups)]


def _place(one: Record) -> tuple[Any, ...]:
    plan, privacy = one["plan"], one["privacy"]
    own = plan.get("method", "gswgan") == "gswgan"
    epsilon = round(privacy["epsilon"], 2) if privacy else np.inf
    names, data = list(SETS), plan["facts"]["data"]
    order = names.index(data) if data in names else len(names)
    return order, data, not own, one["machine"] != "NVIDIA H200", name(one), -epsilon


def name(one: Record) -> str:
    """The preset of GS-WGAN or the name of the baseline, as the command line has it."""
    method = one["plan"].get("method", "gswgan")
    return f"`{preset(one['plan'])}`" if method == "gswgan" else f"`{method}`"


def preset(plan: Record) -> str:
    """The preset as it is called today: records of GS-WGAN from before the name `kernel` have `default`."""
    own = plan.get("method", "gswgan") == "gswgan"
    return "kernel" if own and plan["preset"] == "default" else plan["preset"]


def by_record() -> str:
    """Every training that protects records: a line for each method, epsilon and machine."""
    for one in trainings():
        if one["privacy"] and _guarantee(one["privacy"]) != GUARANTEE:
            raise ValueError(f"{one['name']}: {_guarantee(one['privacy'])}; the table is for {GUARANTEE}")
    lines: dict[tuple[Any, ...], dict[str, list[Record]]] = {}
    for some in grouped(trainings()):
        lines.setdefault(_place(some[0])[2:], {})[some[0]["plan"]["facts"]["data"]] = some
    head = ["preset or method", "epsilon", "MNIST: CNN", "FID", "Fashion-MNIST: CNN", "FID", "training"]
    return table(head, (_row(lines[place]) for place in sorted(lines)))


def _row(found: dict[str, list[Record]]) -> list[str]:
    runs = [found.get(data, []) for data in SETS]
    first = next(some[0] for some in runs if some)
    where = "" if machine(first) == "H200" else f", {machine(first)}"
    figures = [spread(some, key, digits) for some in runs for key, digits in SCORES[:2]]
    return [name(first) + where, true_epsilon(first), *figures, seconds(runs[0] + runs[1])]


def ranges() -> str:
    """Which lines are means over three seeds, and how far these differ at most."""
    groups = [some for some in grouped(trainings()) if len(some) > 1]
    if any(len(some) != 3 for some in groups):
        raise ValueError("the page says three seeds, or one")
    names = [
        f"{name(some[0])} at {true_epsilon(some[0])} on {SETS[some[0]['plan']['facts']['data']]}" for some in groups
    ]
    widest = [max(np.ptp([one[key] for one in some]) for some in groups) for key, _ in SCORES[:2]]
    return f"({', '.join(names)}) differ by at most {widest[0]:.3f} (CNN) and {widest[1]:.1f} (FID)"


def _guarantee(privacy: Record) -> tuple[Any, ...]:
    return tuple(privacy[key] for key in ("delta", "neighbours", "unit", "observer"))


def by_person() -> str:
    """Every training that protects persons, with both relations where both are stated."""
    head = ["data", "method", "true epsilon, one person", "delta", "CNN", "FID", "IS"]
    rows = []
    for one in sorted(
        trainings(persons=True), key=lambda one: (one["plan"]["facts"]["data"] != "mnist-writers", name(one))
    ):
        plan, told = one["plan"], one.get("observers", {"guarantees": [one["privacy"]]})
        stated = {cost["neighbours"]: cost for cost in told["guarantees"] if cost["observer"] == "public"}
        true = "; ".join(f"{figure(cost['epsilon'])} {RELATIONS[how]}" for how, cost in stated.items())
        if claimed := plan["claimed"]:
            true += f" (claimed {figure(claimed['epsilon'])})"
        figures = [spread([one], key, digits) for key, digits in SCORES]
        method = name(one) if plan["method"] == "gswgan" else f"{name(one)}, `{plan['preset']}`"
        data = f"`{plan['facts']['data']}`"
        rows.append([data, method, true, f"{one['privacy']['delta']:g}", *figures])
    return table(head, rows)


def zeroed() -> str:
    """Trainings of preset `refined` that protect a record against being zeroed, and what they are worth if replaced."""
    head = ["data", "preset", "epsilon, zeroed", "the same noise, replaced", "CNN", "FID"]
    rows = []
    for one in (one for one in _trainings(False) if _is_zeroed(one)):
        plan, sums = one["plan"], one["plan"]["privacy"]
        step = Gaussian(noise_std=sums["noise_std"], sensitivity=2 * sums["clip_norm"])
        steps = Repeated(times=sums["releases"], event=Sampled(rate=sums["rate"], event=step))
        start = Gaussian(noise_std=plan["critic"]["noise_std"], sensitivity=2.0)
        replaced = Accountant("replace-one").epsilon(Composed(events=(start, steps)), sums["delta"])
        figures = [spread([one], key, digits) for key, digits in SCORES[:2]]
        rows.append([SETS[plan["facts"]["data"]], name(one), true_epsilon(one), f"{replaced:.1f}", *figures])
    return table(head, rows)


def in_brief() -> str:
    """The table of README.md: seven lines, each with its guarantee in full."""
    head = ["data", "preset", "true epsilon", "at delta; one", "CNN", "FID"]
    found = {_line(some[0]): some for some in grouped([*trainings(), *trainings(persons=True)])}
    rows = []
    for data, preset, where, epsilon in BRIEF:
        some = found[data, preset, where, epsilon]
        privacy = some[0]["privacy"]
        delta = f"{privacy['delta']:.0e}".replace("e-0", "e-")
        relation = f"{delta}; {privacy['unit']} {RELATIONS[privacy['neighbours']]}"
        scores = [f"{np.mean([one[key] for one in some]):.{n}f}" if key in some[0] else "" for key, n in SCORES[:2]]
        how = preset if where == "H200" else f"{preset}, {where}"
        rows.append([SETS.get(data, data), how, true_epsilon(some[0]), relation, *scores])
    return table(head, rows)


def _line(one: Record) -> tuple[str, str, str, float | None]:
    epsilon = round(one["privacy"]["epsilon"], 1) if one["privacy"] else None
    return one["plan"]["facts"]["data"], name(one), machine(one), epsilon


def true_epsilon(one: Record) -> str:
    """The guarantee, and beside it what was claimed for the same run elsewhere."""
    if one["privacy"] is None:
        return "none"
    epsilon = f"{one['privacy']['epsilon']:.4g}"
    if claimed := one["plan"]["claimed"]:
        return f"**{epsilon}** (claimed {claimed['epsilon']:.3g})"
    return epsilon


def spread(some: list[Record], key: str, digits: int) -> str:
    """Mean over the seeds."""
    values = [one[key] for one in some if one.get(key) is not None]
    return f"{np.mean(values):.{digits}f}" if values else "-"


def seconds(some: list[Record]) -> str:
    """Of training, on a machine that had nothing else to do where there is such a figure; else with a star."""
    alone = []
    some = [one for one in some if one["seconds"] is not None]  # it was interrupted, or others ran beside it
    for one in some:
        if "timed" not in one:
            alone.append(one["seconds"])
        elif found := re.search(r"alone ([\d.]+) s\b", one["timed"]):
            alone.append(float(found[1]))
    if not alone:
        return f"{np.mean([one['seconds'] for one in some]):.0f} s*"
    low, high = f"{min(alone):.0f}", f"{max(alone):.0f}"
    return f"{low} s" if low == high else f"{low} to {high} s"


def machine(one: Record) -> str:
    return one["machine"].replace("NVIDIA ", "").replace("x86_64, ", "")


def figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
