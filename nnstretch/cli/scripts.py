"""How scripts that measure something speak: a table or one JSON object, and one line for an error."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from collections.abc import Callable
from typing import Any

from nnstretch.errors import NNStretchError


def script_parser(text: str | None) -> ArgumentParser:
    """A command line with `--json` for a script, whose docstring says what it is for (first line) and how it is called."""
    lines = (text or "").splitlines()
    calls = [line.strip() for line in lines if "scripts/" in line and line.startswith(" ")]
    parser = ArgumentParser(
        description=lines[0] if lines else None,
        epilog=f"Called as: {calls[0]}" if calls else None,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def print_answer(answer: dict[str, Any], show: Callable[[dict[str, Any]], None], *, as_json: bool) -> None:
    """Prints what was measured: by `show`, or as one JSON object."""
    if as_json:
        print(json.dumps(answer))
    else:
        show(answer)


def exit_status(work: Callable[[], None]) -> int:
    """Does a script's work and returns its status: 0; 2 after an error, printed in one line; 130 if interrupted."""
    try:
        work()
    except NNStretchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0
