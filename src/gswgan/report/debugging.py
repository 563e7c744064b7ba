"""The page of the debugging task: two grids and a number, from the two releases alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gswgan.evaluation.debugging import GROUPS, bright_share
from gswgan.generators.sampling import grid_png
from gswgan.plan.plan import Plan
from gswgan.privacy.storage import write_durably
from gswgan.report.page import render, strip_uri
from gswgan.run.folder import write_json
from gswgan.run.released import load

IMAGES, ROWS, COLUMNS = 2000, 10, 10


def write_page(out: Path, plan: Plan, *, threshold: float, public: str) -> dict[str, Any]:
    """debug.html, debug.json and a picture of each group; returns what debug.json has."""
    shares: dict[str, float] = {}
    grids: dict[str, list[dict[str, Any]]] = {}
    for group in GROUPS:
        images, labels = load(out / group).sample(IMAGES, seed=0)
        shares[group] = bright_share(images)
        kept = [int(label) for label in np.unique(labels)[:ROWS]]  # a class that cannot be told from noise is left out
        rows = [np.flatnonzero(labels == label)[:COLUMNS] for label in kept]
        names = plan.facts.class_names if plan.facts.classes > 1 else ("",)
        grids[group] = [{"name": names[label], "strips": [strip_uri(images[row])]} for label, row in zip(kept, rows)]
        some = np.concatenate([row for row in rows if len(row) == COLUMNS])
        stacked = images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
        write_durably(out / f"{group}.png", grid_png(stacked[some], COLUMNS, side=28))
    assert plan.guarantee is not None
    found = {
        "method": plan.method, "preset": plan.preset, "data": plan.facts.data, "clients": plan.facts.persons,
        "public": public, "threshold": threshold, "images": IMAGES, "bright_share": shares,
        "difference": abs(shares[GROUPS[0]] - shares[GROUPS[1]]),
        "guarantee": None if plan.void else plan.guarantee.to_json(),
        "claimed": None if plan.claimed is None else plan.claimed.to_json(),
        "steps": plan.training.steps,
    }  # fmt: skip
    html = render(
        "debugging.html.j2", plan=plan, cost=plan.guarantee, shares=shares, grids=grids, groups=GROUPS,
        threshold=threshold, public=public, images=IMAGES, private=None,
    )  # fmt: skip
    write_durably(out / "debug.html", html.encode())
    write_json(out / "debug.json", found)
    return found
