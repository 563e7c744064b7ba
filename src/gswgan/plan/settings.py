"""Frozen dataclasses to plain data and back, strictly, and the ranges that numbers may have.

An unknown or missing key is an error, not a default; so is a number that no run could be meant to have. Both are
found before anything is released.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import numbers
import re
import types
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import torch

from gswgan.errors import GswganError, PlanError, PrivacyError, short
from gswgan.ranges import OMIT_DEFAULT, Range

T = TypeVar("T")

MAX_EPSILON = 10_000.0
"""Far beyond any meaning; above it the accountant would take minutes and more memory than there is."""

MIN_DELTA = 1e-12
"""Below it the rounding of the accountants would be larger than delta itself."""

_MAKE = "Make the plan with `gswgan train --save-plan PLAN`; do not write it by hand."


def check_ranges(settings: Any) -> None:
    """Every number of a settings dataclass, and of those inside it, is in the range at its field (`gswgan.ranges`)."""
    kind: Any = type(settings)
    ranges = _ranges(kind)
    for field in dataclasses.fields(settings):
        value, limits = getattr(settings, field.name), ranges.get(field.name)
        if dataclasses.is_dataclass(value):
            check_ranges(value)
            continue
        for number in value if isinstance(value, tuple) else (value,):
            if limits is not None and number is not None and not limits.least <= number <= limits.most:
                raise PlanError(field.name, short(number), f"a number from {limits.least:g} to {limits.most:g}", _MAKE)


@functools.cache
def _ranges(cls: type) -> dict[str, Range]:
    """The ranges at the fields of a dataclass."""
    hints = get_type_hints(cls, include_extras=True)
    marks = {name: [mark for mark in get_args(hint)[1:] if isinstance(mark, Range)] for name, hint in hints.items()}
    return {name: found[0] for name, found in marks.items() if found}


def check_epsilon(epsilon: Any) -> float:
    """A target epsilon."""
    if not _is_real(epsilon) or not 0 < epsilon <= MAX_EPSILON:
        raise PrivacyError(
            "epsilon", epsilon, f"a number above 0, at most {MAX_EPSILON:g}",
            "Pass --epsilon 10, for example; less is more private.",
        )  # fmt: skip
    return float(epsilon)


def check_delta(delta: Any) -> float:
    """A target delta."""
    if not _is_real(delta) or not MIN_DELTA <= delta < 1:
        raise PrivacyError(
            "delta", delta, f"a number from {MIN_DELTA:g} to below 1",
            "Pass --delta 1e-5, for example: well below 1 / records.",
        )  # fmt: skip
    return float(delta)


def default_delta(units: int) -> float:
    """Where none is asked for, by the number of records, persons or clients."""
    return 1e-5 if units < 100_000 else 0.1 / units


def check_whole(name: str, value: Any, least: int, most: int) -> int:
    """A whole number that a user gave as the option of this name."""
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not whole or not least <= value <= most:
        raise PlanError(
            name, short(value), f"a whole number from {least} to {most}", f"Pass another --{name}, or leave it out."
        )
    return int(value)


def pick_device(name: str | None) -> torch.device:
    """The named device, or CUDA where there is one, or the CPU."""
    if name is None or name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if re.fullmatch(r"cpu|cuda(:\d{1,3})?", name) is None:
        raise PlanError("device", short(name), "cpu, cuda, cuda:N or auto", "Leave --device out to let it be chosen.")
    here = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name != "cpu" and int(name.partition(":")[2] or 0) >= here:
        raise PlanError("device", name, f"a CUDA device of this machine, which has {here}", "Use --device cpu or auto.")
    return torch.device(name)


def _is_real(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def to_plain(value: Any, hint: Any = None) -> Any:
    """Dataclasses to dicts, tuples to lists, all the way down; a whole number in a field of floats becomes a float."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        hints = get_type_hints(type(value))
        return {
            field.name: to_plain(getattr(value, field.name), hints[field.name])
            for field in dataclasses.fields(value)
            if not (field.metadata == OMIT_DEFAULT and getattr(value, field.name) == field.default)
        }
    if isinstance(value, (tuple, list)):
        inside = [kind for kind in get_args(hint) if kind is not Ellipsis] or [None]
        return [to_plain(item, inside[min(place, len(inside) - 1)]) for place, item in enumerate(value)]
    wants_float = hint is float or float in get_args(hint)
    return float(value) if wants_float and isinstance(value, int) and not isinstance(value, bool) else value


def from_plain(cls: type[T], data: object, name: str = "plan", *, hints: Mapping[str, Any] | None = None) -> T:
    """The inverse of `to_plain` for dataclass `cls`; PlanError names what does not fit. `hints` go before its own."""
    if not isinstance(data, Mapping):
        raise PlanError(name, short(data), "a table of settings", _MAKE)
    hints = {**get_type_hints(cls), **(hints or {})}
    fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    if unknown := sorted(set(data) - set(fields)):
        value = short(data[unknown[0]])
        raise PlanError(f"{name}.{short(unknown[0])}", value, "one of " + ", ".join(sorted(fields)), _MAKE)
    required = {
        key
        for key, field in fields.items()
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }
    if missing := sorted(required - set(data)):
        raise PlanError(f"{name}.{missing[0]}", None, "a value", f"It is missing. {_MAKE}")
    values = {key: _convert(hints[key], value, f"{name}.{key}") for key, value in data.items()}
    try:
        return cls(**values)
    except GswganError as wrong:
        raise PlanError(f"{name}.{wrong.name}", wrong.value, wrong.expected, wrong.todo or _MAKE) from wrong


def _convert(hint: Any, value: Any, name: str) -> Any:
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in args:
            return None
        options = [kind for kind in args if kind is not type(None)]
        return _convert(min(options, key=lambda kind: _differing_keys(kind, value)), value, name)
    if origin is Literal:
        if value not in args:
            raise PlanError(name, short(value), "one of " + ", ".join(map(str, args)), _MAKE)
        return value
    if origin is tuple:
        if not isinstance(value, (list, tuple)) or (args[-1] is not Ellipsis and len(value) != len(args)):
            expected = f"a list of {len(args)} values" if args[-1] is not Ellipsis else "a list"
            raise PlanError(name, short(value), expected, _MAKE)
        kinds = [args[0]] * len(value) if args[-1] is Ellipsis else args
        return tuple(_convert(kind, item, f"{name}[{i}]") for i, (kind, item) in enumerate(zip(kinds, value)))
    if dataclasses.is_dataclass(hint):
        return from_plain(hint, value, name)  # type: ignore[arg-type]
    if hint is float and isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63:
        return float(value)
    if not isinstance(hint, type):
        return value
    if not isinstance(value, hint) or (hint is not bool and isinstance(value, bool)):
        raise PlanError(name, short(value), f"a value of type {hint.__name__}", _MAKE)
    if isinstance(value, float) and not math.isfinite(value):
        raise PlanError(name, value, "a finite number", _MAKE)
    return value


def _differing_keys(kind: Any, value: Any) -> int:
    """How many names are fields of the dataclass `kind` or keys of `value`, but not both."""
    if not dataclasses.is_dataclass(kind) or not isinstance(value, Mapping):
        return 0
    return len({field.name for field in dataclasses.fields(kind)} ^ set(value))
