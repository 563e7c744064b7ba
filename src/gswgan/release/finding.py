"""What is wrong with a release: where, what, and what that means."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong."""

    where: str
    what: str
    means: str

    def __str__(self) -> str:
        return f"{self.where!r} {self.what}. {self.means}"
