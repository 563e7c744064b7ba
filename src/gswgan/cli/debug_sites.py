"""`gswgan federate debug --protect record`: find a site whose scanner is broken by looking at fakes of every site."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gswgan.cli.console import console
from gswgan.errors import PlanError

if TYPE_CHECKING:
    import torch

    from gswgan.data import ImageData
    from gswgan.plan.plan import Plan

SITE_OPTIONS = ("epsilon", "delta", "steps", "seed")
"""Of the command, for every site alike."""

Train = Callable[[Path, "Plan", "ImageData", "torch.device"], None]


def look_at_sites(
    data: str,
    reading: dict[str, Any],
    protect: str,
    sites: int,
    options: dict[str, Any],
    *,
    device: str,
    out: Path | None,
    train: Train,
) -> dict[str, Any]:
    """Spread the data over sites, break one scanner, train a generator at each, write the page; returns its figures."""
    from gswgan.data import load_data
    from gswgan.evaluation.debugging import with_broken_scanner
    from gswgan.federated.silos import check_protect, site_parts
    from gswgan.methods import make_plan
    from gswgan.plan.enough import check_enough
    from gswgan.plan.facts import Facts
    from gswgan.plan.settings import check_whole, pick_device
    from gswgan.privacy.storage import make_folder
    from gswgan.report.debugging import write_site_page

    unit, place, seed = check_protect(protect), pick_device(device), int(options.get("seed") or 0)
    if out is None:
        raise PlanError("out", None, f"a folder for the runs, with --protect {unit}", "Pass --out DEBUG.")
    number = check_whole("sites", sites, 2, 100)
    whole = load_data(data, **reading)
    parts = dict(site_parts(whole, unit, number=number, concentration=None, seed=seed))
    plans = {
        name: make_plan(Facts.of(part), preset="kernel", device=place.type, **options) for name, part in parts.items()
    }
    for plan in plans.values():
        check_enough(plan, forced=None)
    worst = max(plans.values(), key=lambda plan: plan.cost.epsilon)
    console.print(f"every site: {worst.cost}; the same for all sites together, since they hold different records")
    make_folder(out)
    for name, part in with_broken_scanner(parts, seed=seed).items():
        train(out / name, plans[name], part, place)
    found = write_site_page(out, plans)
    for name, share in found["bright_share"].items():
        console.print(f"{name + ':':12} {share:.3f} of the images have a bright background")
    console.print(f"unlike:      {found['unlike']}, by {found['difference']:.3f} from the median of all sites")
    console.print(f"page:        {out / 'debug.html'}")
    return {**found, "page": str(out / "debug.html")}
