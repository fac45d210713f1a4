"""What a check of the machine found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias


class State(StrEnum):
    """How a finding stands."""

    OK = "ok"
    NOTE = "note"
    """Something optional is missing, or measurements may suffer."""
    PROBLEM = "problem"
    """Commands fail."""


@dataclass(frozen=True)
class Finding:
    """One row of the diagnosis.

    Attributes:
        subject: what was looked at.
        state: how it stands.
        found: what was found, in one line.
        remedy: what mends or improves it: a command where there is one; empty if nothing is to be done.
    """

    subject: str
    state: State
    found: str
    remedy: str = ""


Check: TypeAlias = Callable[[], Iterator[Finding]]
"""Looks at one area; raises nothing."""
