"""The front door: what type checkers are told of it, and what it refuses before any work."""

import inspect
import re
from typing import Any

import pytest

import nnstretch as nns
from nnstretch.api.compile import CompileOptions


def test_options_that_all_sessions_have_are_those_of_the_function() -> None:
    parameters = inspect.signature(nns.compile).parameters
    kinds = {"model", "example_input", "processors", "streams", "plans", "policy"}
    declared = {name: hint.__forward_arg__ for name, hint in CompileOptions.__annotations__.items()}
    assert declared == {name: found.annotation for name, found in parameters.items() if name not in kinds}
    for name in parameters:
        assert re.search(rf"^ +{name}: ", nns.compile.__doc__ or "", re.MULTILINE), name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "float64"}, "dtype 'float64' is not supported; use float32"),
        ({"streams": 2, "plans": ["cpu:0"]}, "streams are for throughput, plans and policy for one run at a time"),
        ({"streams": 2, "policy": "fixed"}, "streams are for throughput, plans and policy for one run at a time"),
        ({"processors": "cpu:0", "plans": ["cpu:0"]}, "processors and plans both say what to run on; give one of them"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(nns.NNStretchError, match=message):
        nns.compile("resnet18", **options)
