"""Every method by its name: GS-WGAN and those that its paper compares itself with, one file each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gswgan.errors import PlanError, StorageError, short
from gswgan.methods import dp_merf, dp_merf_ae, dp_sgd_gan, fed_avg_gan, g_pate, gan, gswgan, pate_gan
from gswgan.plan.facts import Facts
from gswgan.plan.make import draft_run, make_request, plan_run
from gswgan.plan.method import Method
from gswgan.plan.plan import FORMAT_VERSION, Draft, Plan
from gswgan.plan.settings import from_plain
from gswgan.privacy.storage import read_file

METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        gswgan.METHOD,
        dp_merf.METHOD,
        dp_merf_ae.METHOD,
        dp_sgd_gan.METHOD,
        g_pate.METHOD,
        pate_gan.METHOD,
        gan.METHOD,
    )
}

BY_PERSON: dict[str, Method] = {fed_avg_gan.METHOD.name: fed_avg_gan.METHOD}
"""Methods for clients alone: they take data by person and no other."""

_EARLIER = (
    "An earlier version of gswgan made this plan or run: use it with that version, or start anew. Nothing was changed."
)
_AGAIN = "Copy it again, or make a new one with `gswgan train --save-plan PLAN`."


def find_method(name: object) -> Method:
    """The method of this name."""
    known = METHODS | BY_PERSON
    if not isinstance(name, str) or name not in known:
        raise PlanError("method", short(name), "one of " + ", ".join(known), "Leave --method out for GS-WGAN.")
    return known[name]


def make_plan(facts: Facts, *, method: str = "gswgan", **options: Any) -> Plan:
    """A plan for data with these facts; `options` are the fields of `PlanRequest`."""
    chosen = find_method(method)
    return plan_run(chosen, make_request(chosen, facts, **options))


def make_draft(facts: Facts, *, method: str = "gswgan", **options: Any) -> Draft:
    """All settings of such a run, with its noise, before its guarantee is stated."""
    chosen = find_method(method)
    return draft_run(chosen, make_request(chosen, facts, **options))


def read_plan(source: Path | object) -> Plan:
    """A plan from its file or from its JSON; PlanError names what is wrong with it."""
    data = _load(source) if isinstance(source, Path) else source
    if not isinstance(data, dict) or data.get("format_version") != FORMAT_VERSION:
        found = data.get("format_version") if isinstance(data, dict) else data
        earlier = type(found) is int and 0 < found < FORMAT_VERSION
        raise PlanError("plan.format_version", short(found), str(FORMAT_VERSION), _EARLIER if earlier else _AGAIN)
    plan = plan_from_table({key: value for key, value in data.items() if key not in ("format_version", "digest")})
    if data.get("digest") != plan.digest():
        raise PlanError(
            "plan.digest", short(data.get("digest"), 12), f"{plan.digest()[:12]}..., as its content has",
            f"It was damaged or edited. {_AGAIN}",
        )  # fmt: skip
    return plan


def plan_from_table(table: Mapping[str, Any]) -> Plan:
    """From plain data; the method says of which type the critic's settings are."""
    method = find_method(table.get("method"))
    plan = from_plain(Plan, table, hints={"critic": method.settings})
    if plan.preset not in method.presets:
        raise PlanError("plan.preset", short(plan.preset), "one of " + ", ".join(method.presets), _AGAIN)
    return plan


def _load(path: Path) -> object:
    try:
        content: object = json.loads(read_file(path, follow_link=True))
    except StorageError:
        raise
    except (OSError, ValueError, RecursionError) as wrong:
        what = wrong.strerror if isinstance(wrong, OSError) else "no JSON"
        raise PlanError("plan", f"{path}: {what}", "a plan saved by `gswgan train --save-plan`", _AGAIN) from wrong
    return content
