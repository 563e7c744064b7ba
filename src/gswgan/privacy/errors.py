"""The errors of the privacy core. Each gives a name, a value, what was expected and what to do."""

from __future__ import annotations


def printable(text: str, keep: str = "\n\t") -> str:
    """Return the text with control characters, which a terminal would act on, written as escapes."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter in keep else letter.encode("unicode_escape").decode("ascii")
        for letter in text
    )


class GswganError(ValueError):
    """Base of every error this package raises on purpose.

    The command line prints it without a traceback and exits with code 2.
    """

    def __init__(self, name: str, value: object, expected: str, todo: str = "") -> None:
        self.name, self.value, self.expected, self.todo = name, value, expected, todo
        message = f"{printable(name, keep='')} = {value!r}: expected {expected}."
        super().__init__(printable(f"{message} {todo}".rstrip()))

    def __reduce__(self) -> tuple[type[GswganError], tuple[str, object, str, str]]:
        """Make the error picklable, so that it can be raised in another process."""
        return type(self), (self.name, self.value, self.expected, self.todo)


class PrivacyError(GswganError):
    """A request that would make the stated guarantee untrue or meaningless."""


class LedgerError(GswganError):
    """A ledger that is broken or incomplete, or a request that would make it so."""


class StorageError(GswganError):
    """A file or folder that is not what it should be, or not this user's: it is neither read nor written."""
