"""Calls commands in this process and checks their output."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from nnstretch.cli.console import PROGRESS_MARK

Answer = tuple[int, str, str]
"""Exit status, standard output and standard error of a command."""
Cli = Callable[..., Answer]
"""The fixture `cli`: calls a command with arguments."""


def answer_of(result: Answer) -> dict[str, Any]:
    """The JSON object that is all of the standard output."""
    status, out, err = result
    assert status == 0, err
    answer = json.loads(out)
    assert isinstance(answer, dict)
    return answer


def said(err: str) -> list[str]:
    """The lines of a standard error without those on progress.

    Whichever test is the first of its machine also sees that something is built, here or by another worker of the
    tests, and a slow machine shows progress.
    """
    progress = ("building the native engine", "another nnstretch builds the native engine", PROGRESS_MARK)
    return [line for line in err.splitlines() if not line.startswith(progress)]


def refuses(result: Answer, *words: str) -> None:
    """Status 2, nothing on the standard output, and one line on the standard error that says `words`."""
    status, out, err = result
    assert status == 2, (out, err)
    assert out == ""
    (line,) = said(err)
    assert line.startswith("error: ")
    for word in words:
        assert word in line
