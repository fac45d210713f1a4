"""How many examples a property is tried on."""

from __future__ import annotations

import os


def examples(usual: int) -> int:
    """`usual`, or a share of it where the environment asks for that: under sanitizers everything takes many times as long."""
    return max(5, usual // int(os.environ.get("NNSTRETCH_TEST_EXAMPLES_DIVISOR", "1")))
