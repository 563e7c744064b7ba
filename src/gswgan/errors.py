"""All errors of the package, in one place to import from."""

from __future__ import annotations

from collections.abc import Mapping

from gswgan.privacy.errors import GswganError, LedgerError, PrivacyError, StorageError, printable

__all__ = [
    "AuditError",
    "DataError",
    "FederationError",
    "GswganError",
    "GswganWarning",
    "LedgerError",
    "PlanError",
    "PrivacyError",
    "RunError",
    "StorageError",
    "printable",
    "short",
]


class DataError(GswganError):
    """Data that cannot be read, or that is not what it was said to be."""


class PlanError(GswganError):
    """A setting, preset or saved plan that cannot be used."""


class RunError(GswganError):
    """A run folder that cannot be used as asked."""


class AuditError(GswganError):
    """An audit that cannot be made as asked, or whose real path does not do what is audited."""


class FederationError(GswganError):
    """A question to a client, or its answer, that is refused."""


class GswganWarning(UserWarning):
    """Something allowed that is hardly meant. It is said before the run, and the run goes on."""


def short(value: object, most: int = 60) -> object:
    """What a message may show of a value that was read from a file: a few characters, never a whole table or list."""
    if isinstance(value, Mapping):
        return f"a table of {len(value)}"
    if isinstance(value, (list, tuple, set)):
        return f"a list of {len(value)}"
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return "a very large number"
    if isinstance(value, str) and len(value) > most:
        return value[:most] + "..."
    return value
