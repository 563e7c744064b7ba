"""All errors of the package, in one place to import from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

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
    "path_problem",
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


def path_problem(path: str | Path) -> str:
    """Why nothing can be read at a path, to be put behind what was expected there; empty where something can."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))  # which does not wait for a pipe's other end
        return ""
    except PermissionError:
        return "; permission denied"
    except (FileNotFoundError, NotADirectoryError):
        return "; no such file or folder"
    except OSError as wrong:
        return f"; {wrong.strerror}"
