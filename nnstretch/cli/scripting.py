"""How scripts that measure something speak: a table or one JSON object, and one line for an error."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections.abc import Callable
from typing import Any

from nnstretch.errors import NNStretchError


def script_parser(text: str | None) -> ArgumentParser:
    """A command line with `--json` for a script, whose docstring says in its first line what it is for."""
    parser = ArgumentParser(description=(text or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def print_answer(answer: dict[str, Any], show: Callable[[dict[str, Any]], None], *, as_json: bool) -> None:
    """Prints what was measured: by `show`, or as one JSON object."""
    if as_json:
        print(json.dumps(answer))
    else:
        show(answer)


def exit_status(work: Callable[[], None]) -> int:
    """Does a script's work. 0, or 2 after an error that the caller can mend, told in one line on the standard error."""
    try:
        work()
    except NNStretchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0
