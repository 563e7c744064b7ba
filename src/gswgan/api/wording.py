"""Messages in the words of Python: what they say of options of the command line, said of arguments."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from gswgan.errors import GswganError

_P = ParamSpec("_P")
_R = TypeVar("_R")

_PHRASES = {
    "Choose another --out, or --resume it.": "Choose another out, or continue the run with gswgan.resume(folder).",
    "--no-labels": "labels=None",
    "--save-plan": "path",
    "--workers": "workers",
    "--data . ": "'.' ",
    "--data": "images",
    "--resume": "folder",
    "--from": "folder",
    "--plan": "saved",
}
"""Where the name of an option is not that of the argument."""

_RESUME = re.compile(r"`?gswgan train --resume ([^\s`]+)`?")
_COMMAND = re.compile(r"`gswgan [^`]*`|gswgan [a-z]+(?: (?:[A-Z]+|--[a-z-]+(?: [\w.,:-]+)?))+")
_ASIDE = re.compile(r" \(--[a-z-]+[^()]*\)")
_OPTION = re.compile(
    r"--([a-z][a-z-]*)(?: ([A-Z0-9][\w.:]*|cpu|cuda|white|own|kernel|refined|ensemble|[\w-]+\.csv)\b)?"
)


def python_words(text: str) -> str:
    """The message with arguments instead of options. Commands that have no like in Python stay as they are."""
    text = _RESUME.sub(lambda found: f"gswgan.resume({found[1].rstrip('.')!r})", text)
    text = text.replace("(gswgan train --resume)", "(gswgan.resume)")
    kept: list[str] = []

    def keep(found: re.Match[str]) -> str:
        kept.append(found[0])
        return f"\0{len(kept) - 1}\0"

    text = _ASIDE.sub("", _COMMAND.sub(keep, text))
    for option, words in _PHRASES.items():
        text = text.replace(option, words)
    text = _OPTION.sub(_argument, text)
    return re.sub(r"\0(\d+)\0", lambda found: kept[int(found[1])], text)


def in_python_words(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Raise the function's errors in the words of Python."""

    @functools.wraps(function)
    def said(*arguments: _P.args, **named: _P.kwargs) -> _R:
        try:
            return function(*arguments, **named)
        except GswganError as wrong:
            expected, todo = python_words(wrong.expected), python_words(wrong.todo)
            if (expected, todo) == (wrong.expected, wrong.todo):
                raise
            raise type(wrong)(wrong.name, wrong.value, expected, todo) from wrong

    return said


def _argument(found: re.Match[str]) -> str:
    name, value = found[1].replace("-", "_"), found[2]
    if value is None:
        return name
    plain = value[0].isdigit() or value.isupper()
    return f"{name}={value if plain and ':' not in value else repr(value)}"
