"""Files that may be meant where one is missing."""

from __future__ import annotations

import difflib
from contextlib import suppress
from pathlib import Path

_ALIKE = 0.8
"""Least likeness of the names of a missing file and of one that is suggested."""


def advice_for_missing(path: Path, otherwise: str) -> str:
    """What to do about a missing file: a question that names up to two files of its folder with names like its own.

    Args:
        path: of the missing file.
        otherwise: the advice if there are none.
    """
    with suppress(OSError, ValueError):
        there = [file.name for file in path.parent.iterdir() if file.is_file()]
        if near := difflib.get_close_matches(path.name, there, 2, _ALIKE):
            return f"did you mean {' or '.join(str(path.parent / name) for name in near)}?"
    return otherwise
