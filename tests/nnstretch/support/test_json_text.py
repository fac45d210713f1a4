"""Answers as JSON."""

import json
import math

import pytest

from nnstretch.support.json_text import json_text


def test_numbers_that_are_not_finite_are_null() -> None:
    answer = {"a": [1.5, math.inf, {"b": (-math.inf, math.nan)}], "c": None, "d": "inf", "e": True}
    expected = {"a": [1.5, None, {"b": [None, None]}], "c": None, "d": "inf", "e": True}
    assert json.loads(json_text(answer), parse_constant=pytest.fail) == expected


def test_what_json_does_not_have_is_an_error() -> None:
    with pytest.raises(TypeError):
        json_text({"a": {1, 2}})
