"""What a site's configuration says: who it is, where its records are, whom it trusts, its cap and its limits."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gswgan.data import ImageData, load_data
from gswgan.errors import FederationError, short
from gswgan.evaluation.real_data import choose_clients
from gswgan.federated.client import Client
from gswgan.federated.limits import Limits
from gswgan.federated.memory import Cap
from gswgan.federated.silos import Protect, check_protect, of_unit
from gswgan.federated.stated import Stated
from gswgan.federated.trust import check_trust, promise
from gswgan.plan.facts import Facts
from gswgan.privacy import storage

NEEDED = ("client", "data", "state", "trust", "epsilon", "delta")
OTHERS = (
    "protect", "neighbours", "classes", "image-size", "channels", "pixel-range", "background", "layout",
    "group-by", "missing",
    "min-records", "accuracy", "reference-classifier",
    "budget", "memory", "work", "superlink", "root-certificates", "node-key", "insecure",
)  # fmt: skip


def read_file(path: Path) -> dict[str, Any]:
    """A site's configuration file (TOML), not checked yet."""
    try:
        return tomllib.loads(storage.read_file(path, follow_link=True).decode())
    except (OSError, ValueError) as wrong:
        raise FederationError(
            "site", str(path), f"a TOML file that can be read ({wrong})", "Check the path."
        ) from wrong


def check_site(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration if it has all that is needed and nothing that is unknown."""
    if missing := [name for name in NEEDED if name not in config]:
        raise FederationError("site", f"no {missing[0]}", f"{', '.join(NEEDED)} in the site's configuration")
    if unknown := sorted(set(config) - {*NEEDED, *OTHERS}):
        raise FederationError("site", str(unknown[0])[:60], f"one of {', '.join((*NEEDED, *OTHERS))}")
    if not Path(state := str(config["state"])).is_absolute():
        todo = "Started from another folder the client would remember nothing, and its cap would begin anew."
        raise FederationError("state", short(state), "an absolute path", todo)
    return dict(config)


def client_of(config: Mapping[str, Any], *, look: bool = False, found: ImageData | None = None) -> Client:
    """The client that a site's configuration describes. Its records are read when a plan has been accepted.

    If the records do not belong (min-records, accuracy) the client answers all the same: zeros. `look`: read them now
    as well, so that whoever starts the client hears what is wrong with them; their shape is what is stated of them. A
    silo always looks, since its size is stated. `found`: the records, where they have been read (`records_of`). Class
    names are stated by `classes` alone, a number or their list.
    """
    name, budget, trust = str(config["client"]), config.get("budget"), check_trust(str(config["trust"]))
    limits = Limits(**{key: float(config[key]) for key in ("memory", "work") if key in config})
    protect = check_protect(str(config.get("protect", "client")))
    cap = Cap(
        epsilon=float(config["epsilon"]),
        delta=float(config["delta"]),
        neighbours=config.get("neighbours", promise(trust, protect)[1]),
    )
    keys = {"image-size": "image_size", "channels": "channels"}
    shape = {field: config[key] for key, field in keys.items() if key in config}
    stated = Stated(shape=shape)
    if found is None and (look or protect != "client"):
        found = records_of(config)
    if found is not None:
        stated = Stated.of(name, found, protect, _stated_classes(config, found))

    def read(facts: Facts) -> ImageData:
        known = facts.classes if facts.labelled and protect == "client" and "classes" not in config else None
        return _load(config, name, protect, classes=known, labels=facts.labelled)

    return Client(
        name, read, Path(str(config["state"])), trust=trust, cap=cap, limits=limits, stated=stated,
        budget=None if budget is None else Path(str(budget)), protect=protect,
    )  # fmt: skip


def records_of(config: Mapping[str, Any]) -> ImageData:
    """The records that a site's configuration names, with their labels."""
    protect = check_protect(str(config.get("protect", "client")))
    return _load(config, str(config["client"]), protect, labels=True)


def _stated_classes(config: Mapping[str, Any], found: ImageData) -> tuple[str, ...]:
    """The class names that the owner gives, as a list or as numbers; the data has no others."""
    given = config.get("classes")
    if not isinstance(given, list):
        numbers = tuple(map(str, range(given or 0)))
        return numbers if found.class_names == numbers else ()
    names = tuple(map(str, given))
    if others := [name for name in found.class_names if name not in names]:
        raise FederationError(
            "classes", short(", ".join(names), 200), f"{short(others[0])} among them, which the data has"
        )
    return names


def _load(
    config: Mapping[str, Any], name: str, protect: Protect, *, labels: bool, classes: int | None = None
) -> ImageData:
    """The site's records as one person's, without those that do not belong; a silo's as they are.

    `classes`: how many, where the configuration does not say it.
    """
    given = config.get("classes", classes)
    known = None if isinstance(given, list) else given  # names are the data's own, and are compared with the list
    if protect == "client" and "group-by" in config:
        raise FederationError("site", "group-by", "nothing of the kind with protect client: the whole site is one")
    data = load_data(
        str(config["data"]), classes=known, image_size=config.get("image-size"), channels=config.get("channels"),
        labels=labels, pixel_range=config.get("pixel-range"), background=config.get("background"),
        layout=config.get("layout"), group_by=config.get("group-by"), missing=config.get("missing"),
    )  # fmt: skip
    if protect != "client":
        if chosen := [key for key in ("min-records", "accuracy") if key in config]:
            raise FederationError("site", chosen[0], f"nothing of the kind with protect {protect}", "Leave it out.")
        return of_unit(data, protect)
    data = dataclasses.replace(data, persons=np.zeros(data.n, np.int64), person_ids=(name,))
    return choose_clients(
        data,
        min_records=config.get("min-records"),
        accuracy=config.get("accuracy"),
        reference_classifier=config.get("reference-classifier"),
    )
