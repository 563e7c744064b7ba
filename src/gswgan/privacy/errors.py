"""What goes wrong, said so that the reader can act: name, value, what was expected, what to do."""

from __future__ import annotations


def printable(text: str, keep: str = "\n\t") -> str:
    """The text with control characters, which a terminal would act on, written as escapes. Names may be anybody's."""
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
        """So that it can be raised in one process and read in another."""
        return type(self), (self.name, self.value, self.expected, self.todo)


class PrivacyError(GswganError):
    """A request that would make the stated guarantee untrue or meaningless."""


class LedgerError(GswganError):
    """A ledger that is broken, incomplete, or would be by what was asked."""


class StorageError(GswganError):
    """A file or folder that is not what it should be, or not this user's: it is neither read nor written."""
