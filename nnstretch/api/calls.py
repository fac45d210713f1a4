"""Python calls whose arguments are the fields of an options class."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from nnstretch.api.options import declared_options, described
from nnstretch.errors import UsageError


def with_options(kind: type) -> Callable[[Callable[..., Any]], Any]:
    """Lets a function whose last parameter is `options` take the fields of the options class as arguments too.

    The fields follow the function's other parameters; the first ones may be given by position. A line `options:` in the
    function's docstring is followed by the description of every field.

    Args:
        kind: the options class.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        own = list(inspect.signature(function).parameters.values())
        taken = [p.replace(annotation=declared_options(kind)[p.name][1]) for p in _fields(kind)]
        options = own[-1].replace(kind=inspect.Parameter.KEYWORD_ONLY, default=None)
        signature = inspect.Signature([*own[:-1], *taken, options])

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs).arguments
            chosen = given.pop("options", None)
            changed = {p.name: given.pop(p.name) for p in taken if p.name in given}
            if chosen is None:
                chosen = kind(**changed)
            elif changed:
                raise UsageError(f"options and {', '.join(changed)} are given; give one, or use dataclasses.replace")
            return function(**given, options=chosen)

        call.__signature__ = signature  # type: ignore[attr-defined]
        head, line, tail = (function.__doc__ or "").partition("        options: all of these together.\n")
        call.__doc__ = f"{head}{described(kind, ' ' * 8)}\n{line}{tail}"
        return call

    return decorate


def _fields(kind: type) -> list[inspect.Parameter]:
    return list(inspect.signature(kind).parameters.values())
