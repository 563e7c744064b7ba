"""All errors of the package, in one place to import from."""

from __future__ import annotations

from gswgan.privacy.errors import GswganError, LedgerError, PrivacyError

__all__ = ["DataError", "GswganError", "LedgerError", "PlanError", "PrivacyError", "RunError"]


class DataError(GswganError):
    """Data that cannot be read, or that is not what it was said to be."""


class PlanError(GswganError):
    """A setting, preset or saved plan that cannot be used."""


class RunError(GswganError):
    """A run folder that cannot be used as asked."""
