"""Numbers and nouns in messages."""

from __future__ import annotations

from nnstretch.support.words import counted


def test_only_one_is_singular() -> None:
    assert [counted(number, "core") for number in (0, 1, 2)] == ["0 cores", "1 core", "2 cores"]
