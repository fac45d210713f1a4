"""Number of examples of a property."""

from __future__ import annotations

import os


def examples(usual: int) -> int:
    """`usual`, or the share of it that the environment sets, since sanitizers slow tests down."""
    return max(5, usual // int(os.environ.get("NNSTRETCH_TEST_EXAMPLES_DIVISOR", "1")))
