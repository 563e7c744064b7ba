"""What is public about the data before anything is released."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated

from gswgan.data import ImageData, ImageStream, Reading
from gswgan.data.public import FEWEST, PublicImages
from gswgan.data.read_options import AS_IT_IS
from gswgan.errors import PlanError, short
from gswgan.plan.settings import check_ranges
from gswgan.ranges import OMIT_DEFAULT, Range

MAX_NAMED = 20
"""Classes that a text names."""

MAX_SITE_CHARACTERS = 256
"""Characters of a site's name."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """One site of a federation of silos, and how much it holds. Public, all of it."""

    name: str
    records: Annotated[int, Range(1, 2**40)]
    persons: Annotated[int | None, Range(1, 2**40)] = None

    def __post_init__(self) -> None:
        check_ranges(self)
        if not self.name.isprintable() or not 1 <= len(self.name) <= MAX_SITE_CHARACTERS:
            raise PlanError("site", short(self.name), f"a name of 1 to {MAX_SITE_CHARACTERS} printable characters")
        if self.persons is not None and self.persons > self.records:
            raise PlanError("persons", self.persons, f"at most the number of records, {self.records}")


@dataclass(frozen=True, kw_only=True)
class Silos:
    """The sites that hold the data between them. What is protected is a record or a person of one of them."""

    sites: tuple[Site, ...]
    min_sites: Annotated[int, Range(1, 10_000)]
    """How many must have answered before anything is released."""

    def __post_init__(self) -> None:
        check_ranges(self)
        names = [site.name for site in self.sites]
        if len(names) < 2 or names != sorted(set(names)):
            raise PlanError("sites", short(names), "at least 2 different sites, sorted", "`gswgan train` is for one.")
        if self.min_sites > len(names):
            raise PlanError("min_sites", self.min_sites, f"at most {len(names)}, the number of sites")

    def site(self, name: str) -> Site | None:
        """The site of this name."""
        return next((site for site in self.sites if site.name == name), None)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is public about the data before anything is released."""

    data: str
    records: Annotated[int, Range(1, 2**40)]
    persons: Annotated[int | None, Range(1, 2**40)]
    classes: Annotated[int, Range(1, 10_000)]
    class_names: tuple[str, ...]
    labelled: bool
    image_size: Annotated[int, Range(8, 128)]
    channels: Annotated[int, Range(1, 3)]
    reading: Reading = field(default=AS_IT_IS, metadata=OMIT_DEFAULT)
    silos: Silos | None = field(default=None, metadata=OMIT_DEFAULT)

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.channels == 2 or len(self.class_names) != self.classes or (self.classes > 1 and not self.labelled):
            found = (self.channels, self.classes, len(self.class_names), self.labelled)
            raise PlanError("facts", found, "1 or 3 channels, a name for each class, one class without labels")
        if not all(name.isprintable() for name in (self.data, *self.class_names)):
            raise PlanError("facts", "a name that cannot be printed", "names of printable characters")
        if self.persons is not None and self.persons > self.records:
            raise PlanError("persons", self.persons, f"at most the number of records, {self.records}")
        if self.silos is not None:
            sites, by_person = self.silos.sites, self.persons is not None
            persons = sum(site.persons or 0 for site in sites) if by_person else None
            if (sum(site.records for site in sites), persons) != (self.records, self.persons) or not self.labelled:
                raise PlanError("silos", (self.records, self.persons), "labels, and what the sites hold in sum")
            if any((site.persons is not None) != by_person for site in sites):
                raise PlanError("silos", self.persons, "a number of persons at every site, or at none")

    @classmethod
    def of(cls, data: ImageData | ImageStream) -> Facts:
        """The facts of a data set: sizes and names, never content."""
        return cls(
            data=data.name,
            records=data.public_records,
            persons=None if data.persons is None else data.number_of_persons,
            classes=data.classes,
            class_names=data.class_names,
            labelled=data.labelled,
            image_size=data.image_size,
            channels=data.channels,
            reading=data.reading,
        )

    @property
    def many_classes(self) -> str:
        """How many classes, in words."""
        return "1 class" if self.classes == 1 else f"{self.classes} classes"

    @property
    def size(self) -> str:
        """How much data, in words: of persons alone where each counts as one record (all that a federation knows)."""
        where = "" if self.silos is None else f" at {len(self.silos.sites)} sites"
        records = f"{self.records:,} record" + "s" * (self.records != 1)
        if self.persons is None:
            return records + where
        persons = f"{self.persons:,} person" + "s" * (self.persons != 1)
        return (persons if self.persons == self.records else f"{records} of {persons}") + where

    @property
    def names(self) -> str:
        """The first class names, in words; all of them are in the plan."""
        more = f" and {self.classes - MAX_NAMED:,} more" if self.classes > MAX_NAMED else ""
        return ", ".join(self.class_names[:MAX_NAMED]) + more

    @property
    def pixels(self) -> int:
        """Numbers in one image."""
        return self.channels * self.image_size**2

    @property
    def shape(self) -> dict[str, int]:
        """Of the images, as networks take it."""
        return {"image_size": self.image_size, "channels": self.channels, "classes": self.classes}


@dataclass(frozen=True, kw_only=True)
class PublicFacts:
    """Images that whoever planned the run has stated to be public: used as they are, and not protected."""

    name: str
    images: Annotated[int, Range(FEWEST, 2**40)]
    digest: str  # of `data.public.images_digest`: who has the images can compute it

    def __post_init__(self) -> None:
        check_ranges(self)
        if not self.name.isprintable() or re.fullmatch(r"[0-9a-f]{64}", self.digest) is None:
            found = short((self.name, self.digest))
            raise PlanError("public", found, "a printable name and a SHA-256 digest of the public images")

    @classmethod
    def of(cls, public: PublicImages) -> PublicFacts:
        """The facts of public images."""
        return cls(name=public.name, images=len(public.images), digest=public.digest)

    @property
    def text(self) -> str:
        """The statement in words."""
        return f"trained with {self.images:,} public images that are not protected ({self.name}, SHA-256 {self.digest})"
