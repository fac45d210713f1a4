"""Checks of values that callers give against type hints."""

from __future__ import annotations

import collections.abc
from collections.abc import Mapping
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from nnstretch.errors import UsageError

_WORDS = {int: "whole number", float: "number", str: "text", Path: "path"}


def fits(value: object, hint: Any) -> bool:
    """Whether a value is of a hinted type: a class, or a union, sequence, tuple, mapping or callable of such.

    Numbers of numpy count as numbers, lists as tuples, and everything as a bool or an object.
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(fits(value, argument) for argument in arguments)
    if origin is collections.abc.Callable:
        return callable(value)
    if origin is collections.abc.Mapping:
        keys, values = arguments
        return isinstance(value, origin) and all(fits(k, keys) and fits(v, values) for k, v in value.items())
    if origin in (tuple, collections.abc.Sequence):
        is_list = isinstance(value, collections.abc.Sequence) and not isinstance(value, str | bytes)
        return is_list and all(fits(element, arguments[0]) for element in value)  # type: ignore[attr-defined]
    return isinstance(value, {int: Integral, float: Real, bool: object}.get(hint, hint))


def check_fields(instance: object, hints: Mapping[str, Any]) -> None:
    """Checks that fields have values of their types.

    Args:
        instance: has the fields.
        hints: type of each field by name.

    Raises:
        UsageError: one has not.
    """
    for name, hint in hints.items():
        value = getattr(instance, name)
        if not fits(value, hint):
            raise UsageError(f"{name} is {value!r}, of type {type(value).__name__}; give {described(hint)}")


def described(hint: Any) -> str:
    """The values of a hinted type in words, without None: "a whole number", "a list of texts"."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(described(argument) for argument in arguments if argument is not NoneType)
    if origin is collections.abc.Callable:
        return "a function"
    if origin is collections.abc.Mapping:
        return f"a dictionary from {_plural(arguments[0])} to {_plural(arguments[1])}"
    if origin in (tuple, collections.abc.Sequence):
        return f"a list of {_plural(arguments[0])}"
    return f"a {_WORDS.get(hint) or hint.__name__}"


def _plural(hint: Any) -> str:
    first, space, rest = described(hint).removeprefix("a ").partition(" of ")
    return f"{first}s{space}{rest}"
