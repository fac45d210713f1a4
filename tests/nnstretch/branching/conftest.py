"""Networks of the zoo whose weights are made once: that takes longer than most tests with them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import lru_cache
from inspect import signature
from typing import Any

import pytest
from torch import nn

from nnstretch import zoo

KEPT = 6
"""Networks in memory; tests of one network follow each other."""


@pytest.fixture(scope="session", autouse=True)
def _networks_made_once() -> Iterator[None]:
    """`zoo.build` copies networks that it has made before. Fresh weights are drawn every time."""
    build = zoo.build
    made = lru_cache(KEPT)(build)

    form = signature(build)

    def copied(*args: Any, **kwargs: Any) -> nn.Module:
        given = form.bind(*args, **kwargs)
        given.apply_defaults()
        fresh = given.arguments["pretrained_seed"] is None
        return build(*given.args) if fresh else copy.deepcopy(made(*given.args))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zoo, "build", copied)
        yield
