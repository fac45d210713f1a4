"""Numbers and nouns in messages."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """A number and a noun whose plural ends with "s", as in `1 core` and `2 cores`."""
    return f"{count} {noun}{'s' * (count != 1)}"
