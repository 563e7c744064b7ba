"""Silos: a few sites with many records each, and every record or person of a site is protected.

A site clips and sums its own records exactly as centralized training does; integer sums add up. What a plan of silos
needs beside that of clients is here: the public list of sites, what a site confirms of it before it answers, and
what the server checks of an answer.
"""

from __future__ import annotations

import csv
import dataclasses
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from gswgan.critics.kernel.embedding import person_blocks, record_blocks
from gswgan.critics.kernel.features import RandomFeatures, products
from gswgan.data import ImageData, clients, dirichlet_clients
from gswgan.data.partition import check_own_names
from gswgan.errors import FederationError, PlanError, short
from gswgan.methods.refined import PlannedRefined
from gswgan.plan.facts import Facts, Silos, Site
from gswgan.plan.plan import Plan, PrivacySettings
from gswgan.privacy.mechanism import GRID_BITS, ClippedSum, clipped_sum
from gswgan.privacy.storage import read_file

Protect = Literal["client", "record", "person"]
"""What one unit of a federated guarantee is: a whole client, or a record or a person of one of a few sites."""

FAR = 12.0
"""Standard deviations beyond which no honest noisy number lies: one in 10^32 draws."""

MOST_SITES = 1000
"""That are made up for an experiment."""

_ROUNDING = 1 + 1e-9
"""Of norms that are computed in double precision."""


def check_protect(protect: str) -> Protect:
    """Return what is protected if it is one of those that we know."""
    for known in get_args(Protect):
        if protect == known:
            return known
    raise PlanError("protect", short(protect), "one of " + ", ".join(get_args(Protect)))


def first_sums(plan: Plan) -> PrivacySettings:
    """The settings of the noisy sums of the first round: of the kernel critic, in preset refined too."""
    settings = plan.critic
    return settings.first_sums(plan) if isinstance(settings, PlannedRefined) else plan.sums


def protect_of(plan: Plan) -> Protect:
    """What one unit of a federated plan is."""
    if plan.facts.silos is None:
        return "client"
    return "record" if plan.facts.persons is None else "person"


def read_sites(path: Path, protect: Protect) -> tuple[Site, ...]:
    """The public list of sites: a line for each, `name,records`, by person `name,records,persons`."""
    columns = ("name", "records") if protect == "record" else ("name", "records", "persons")
    try:
        text = read_file(path, 2**20, follow_link=True).decode()
        rows = [[cell.strip() for cell in row] for row in csv.reader(text.splitlines()) if row]
        rows = rows[1:] if rows and tuple(rows[0]) == columns else rows
        if any(len(row) != len(columns) for row in rows):
            raise ValueError(f"a line with other columns than {','.join(columns)}")
        sites = [Site(name=row[0], records=int(row[1]), persons=int(row[2]) if row[2:] else None) for row in rows]
    except (OSError, ValueError) as wrong:
        expected = f"a text file with a line {','.join(columns)} for each site ({wrong})"
        raise PlanError("clients", str(path), expected, "With --protect client it is one id per line.") from wrong
    return tuple(sorted(sites, key=lambda site: site.name))


def silo_facts(sites: Sequence[Site], *, min_sites: int | None, **shape: Any) -> Facts:
    """The public facts of what these sites hold. `shape`: data, class_names, image_size and channels."""
    by_person = any(site.persons is not None for site in sites)
    return Facts(
        records=sum(site.records for site in sites),
        persons=sum(site.persons or 0 for site in sites) if by_person else None,
        classes=len(shape["class_names"]), labelled=True,
        silos=Silos(sites=tuple(sites), min_sites=len(sites) if min_sites is None else min_sites), **shape,
    )  # fmt: skip


def held(name: str, data: ImageData, protect: Protect) -> Site:
    """What a site's data is in the public list."""
    return Site(name=name, records=data.public_records, persons=data.number_of_persons if protect == "person" else None)


def of_unit(data: ImageData, protect: Protect) -> ImageData:
    """The site's data with persons exactly where persons are protected."""
    if protect == "record":
        return dataclasses.replace(data, persons=None, person_ids=())
    if data.persons is None:
        raise FederationError(
            "data", data.name, "records by person, to protect persons", "Set group-by in the site's configuration."
        )
    return data


def check_listed(plan: Plan, site: Site) -> None:
    """Refuse a plan that does not list the site, or lists it with other numbers than it has: they are public facts."""
    silos = plan.facts.silos
    listed = None if silos is None else silos.site(site.name)
    if listed != site:
        found = "not on the list" if listed is None else f"{listed.records} records, {listed.persons} persons"
        raise FederationError(
            "site", found, f"{site.name} with {site.records} records, {site.persons} persons, as it has",
            "The list of sites is public and must be right: ask the operator for a new plan.",
        )  # fmt: skip


def site_sum(plan: Plan, data: ImageData, weight: float) -> ClippedSum:
    """The exact sum of the site's clipped records or persons, as centralized training computes it.

    `weight`: of the counts in a person's sums.
    """
    facts, bound = plan.facts, first_sums(plan).contribution
    features = RandomFeatures(plan.critic.kernel_settings, facts.channels, facts.image_size, torch.device("cpu"))
    with products(tf32=False):
        if protect_of(plan) == "record":
            return clipped_sum(record_blocks(data, features), bound, slots=facts.classes, width=features.width)
        blocks = person_blocks(data, features, weight)
        return clipped_sum(blocks, bound, slots=1, width=facts.classes * (features.width + 1))


def grid_shape(plan: Plan) -> tuple[int, int]:
    """Rows and columns of a sum before it is sent as one row: by record a row for each class, by person one row."""
    columns = plan.critic.kernel_settings.features + 1
    return (plan.facts.classes, columns) if protect_of(plan) == "record" else (1, plan.facts.classes * columns)


def check_sum(grid: NDArray[np.int64], plan: Plan, name: str, *, noisy: bool) -> None:
    """Raise a FederationError where no records of this site's number can have had this sum [1, classes x columns].

    Without noise: counts are whole numbers of at most the site's records, and a class's features are no longer than
    its count. With noise: every number, and the length of the whole, is within what the records and the noise reach.
    """
    site, privacy = plan.facts.silos.site(name) if plan.facts.silos else None, first_sums(plan)
    if site is None:
        raise FederationError("client", short(name, 60), "a site of the plan")
    units = float(site.records if site.persons is None else site.persons)
    table = grid.astype(np.float64).reshape(plan.facts.classes, -1) * 2.0**-GRID_BITS
    longest = units * (math.sqrt(2) if privacy.counts else 1.0)
    if noisy:
        noise = privacy.noise_std / privacy.clip_norm
        largest, longest = units + FAR * noise, longest + noise * (math.sqrt(table.size) + FAR)
        if not bool((np.abs(table) <= largest).all()):
            raise FederationError("answer", "a number that is too large", f"at most {largest:.6g}: records and noise")
    if float(np.linalg.norm(table)) > longest * _ROUNDING:
        raise FederationError("answer", "a sum that is too long", f"norm at most {longest:.6g}: records and noise")
    if privacy.counts and not noisy:
        counts, lengths = table[:, -1], np.linalg.norm(table[:, :-1], axis=1)
        if not (counts == np.floor(counts)).all() or counts.min() < 0 or counts.sum() > units:
            raise FederationError("answer", "counts that cannot be", f"whole numbers, at most {units:.0f} in sum")
        if not (lengths <= counts * _ROUNDING).all():
            raise FederationError("answer", "features that are too long", "at most a length of 1 for each record")


def site_parts(
    data: ImageData, protect: Protect, *, number: int, concentration: float | None, seed: int
) -> Iterator[tuple[str, ImageData]]:
    """For experiments: the data at so many made-up sites.

    Persons, and records without a `concentration`, go to the sites in turn, by their index alone. With one, records are
    spread by class (`dirichlet_clients`): a record whose label changes then changes its site, and the sizes of two.
    """
    data = of_unit(data, protect)
    if not 2 <= number <= MOST_SITES:
        raise PlanError("sites", number, f"a number from 2 to {MOST_SITES}")
    if protect == "record" and concentration is not None:
        for name, part in clients(dirichlet_clients(data, number, concentration=concentration, seed=seed)):
            yield name.replace("client", "site"), of_unit(part, protect)
        return
    check_own_names(data.repeated_names)
    units = np.arange(data.n) if data.persons is None else data.persons
    ids = data.person_ids or tuple(map(str, range(data.number_of_persons)))
    for index in range(number):
        mine = units % number == index
        yield f"site-{index:05}", dataclasses.replace(
            data, images=data.images[mine], labels=None if data.labels is None else data.labels[mine],
            persons=None if data.persons is None else data.persons[mine] // number, person_ids=ids[index::number],
        )  # fmt: skip
