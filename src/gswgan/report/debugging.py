"""The pages of the debugging task: grids and a number for each group or site, from their releases alone."""

from __future__ import annotations

from collections.abc import Mapping
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


def _draw(out: Path, group: str, plan: Plan) -> tuple[float, list[dict[str, Any]]]:
    """The share of bright images of one generator, and rows of its images by class; its picture is written."""
    images, labels = load(out / group).sample(IMAGES, seed=0)
    kept = [int(label) for label in np.unique(labels)[:ROWS]]  # a class that cannot be told from noise is left out
    rows = [np.flatnonzero(labels == label)[:COLUMNS] for label in kept]
    names = plan.facts.class_names if plan.facts.classes > 1 else ("",)
    some = np.concatenate([row for row in rows if len(row) == COLUMNS])
    stacked = images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
    write_durably(out / f"{group}.png", grid_png(stacked[some], COLUMNS, side=28))
    grid = [{"name": names[label], "strips": [strip_uri(images[row])]} for label, row in zip(kept, rows)]
    return bright_share(images), grid


def write_site_page(out: Path, plans: Mapping[str, Plan]) -> dict[str, Any]:
    """debug.html, debug.json and a picture for each of a few sites; returns what debug.json has."""
    drawn = {name: _draw(out, name, plan) for name, plan in plans.items()}
    shares = {name: share for name, (share, _) in drawn.items()}
    middle = float(np.median(list(shares.values())))
    unlike = max(shares, key=lambda name: abs(shares[name] - middle))
    cost = max((plan.cost for plan in plans.values()), key=lambda cost: cost.epsilon)
    found = {
        "data": next(iter(plans.values())).facts.data, "sites": {name: plan.size for name, plan in plans.items()},
        "images": IMAGES, "bright_share": shares, "unlike": unlike, "difference": abs(shares[unlike] - middle),
        "guarantee": cost.to_json(),
    }  # fmt: skip
    html = render(
        "debugging_sites.html.j2", cost=cost, shares=shares, found=found, images=IMAGES, private=None,
        grids={name: grid for name, (_, grid) in drawn.items()},
    )  # fmt: skip
    write_durably(out / "debug.html", html.encode())
    write_json(out / "debug.json", found)
    return found


def write_page(out: Path, plan: Plan, *, threshold: float, public: str) -> dict[str, Any]:
    """debug.html, debug.json and a picture of each group; returns what debug.json has."""
    drawn = {group: _draw(out, group, plan) for group in GROUPS}
    shares, grids = (
        {group: share for group, (share, _) in drawn.items()},
        {group: grid for group, (_, grid) in drawn.items()},
    )
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
