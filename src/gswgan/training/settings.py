"""Frozen dataclasses to plain data and back, strictly: an unknown or missing key is an error, not a default."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from gswgan.errors import GswganError, PlanError

T = TypeVar("T")


def to_plain(value: Any) -> Any:
    """Dataclasses to dicts, tuples to lists, all the way down."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, (tuple, list)):
        return [to_plain(item) for item in value]
    return value


def from_plain(cls: type[T], data: object, name: str = "plan") -> T:
    """The inverse of `to_plain` for dataclass `cls`; PlanError names what does not fit."""
    if not isinstance(data, Mapping):
        raise PlanError(name, data, "a table of settings")
    hints, fields = get_type_hints(cls), {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    if unknown := sorted(set(data) - set(fields)):
        raise PlanError(f"{name}.{unknown[0]}", data[unknown[0]], "one of " + ", ".join(sorted(fields)))
    required = {
        key
        for key, field in fields.items()
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }
    if missing := sorted(required - set(data)):
        raise PlanError(f"{name}.{missing[0]}", None, "a value", "It is missing.")
    values = {key: _convert(hints[key], value, f"{name}.{key}") for key, value in data.items()}
    try:
        return cls(**values)
    except GswganError as wrong:
        raise PlanError(f"{name}.{wrong.name}", wrong.value, wrong.expected, wrong.todo) from wrong


def _convert(hint: Any, value: Any, name: str) -> Any:
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        wrong: PlanError | None = None
        for option in sorted(args, key=lambda kind: -_shared(kind, value)):  # the likeliest first, for its message
            if option is type(None) and value is None:
                return None
            try:
                return _convert(option, value, name)
            except PlanError as error:
                wrong = wrong or error
        raise wrong or PlanError(name, value, str(hint))
    if origin is Literal:
        if value not in args:
            raise PlanError(name, value, "one of " + ", ".join(map(str, args)))
        return value
    if origin is tuple:
        if not isinstance(value, (list, tuple)) or (args[-1] is not Ellipsis and len(value) != len(args)):
            raise PlanError(name, value, f"a list of {len(args)} values" if args[-1] is not Ellipsis else "a list")
        kinds = [args[0]] * len(value) if args[-1] is Ellipsis else args
        return tuple(_convert(kind, item, f"{name}[{i}]") for i, (kind, item) in enumerate(zip(kinds, value)))
    if dataclasses.is_dataclass(hint):
        return from_plain(hint, value, name)  # type: ignore[arg-type]
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(hint, type):
        return value
    if not isinstance(value, hint) or (hint is not bool and isinstance(value, bool)):
        raise PlanError(name, value, f"a value of type {hint.__name__}")
    return value


def _shared(kind: Any, value: Any) -> int:
    """How many keys of `value` are fields of the dataclass `kind`."""
    if not dataclasses.is_dataclass(kind) or not isinstance(value, Mapping):
        return 0
    return len({field.name for field in dataclasses.fields(kind)} & set(value))
