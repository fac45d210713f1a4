"""Sizes of images: as people write them, as files have them, and as libraries store them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnstretch.errors import UsageError
from nnstretch.support.image_size import (
    as_image_size,
    json_size,
    of_size_key,
    parse_image_size,
    parse_image_sizes,
    scaled,
    sides,
    size_key,
    size_of,
    size_text,
)

SIDES = st.integers(8, 4096)


@given(SIDES, SIDES)
def test_every_form_is_read_back(height: int, width: int) -> None:
    size = size_of(height, width)
    assert sides(size) == (height, width)
    assert size_text(size) == f"{height}×{width}"
    assert parse_image_size(f"{height}x{width}") == parse_image_size(f" {height}×{width} ") == size
    key = size_key(size)
    assert isinstance(key, int | str)
    assert of_size_key(key) == size
    assert as_image_size(json.loads(json.dumps(json_size(size)))) == size
    assert as_image_size([height, width]) == size
    assert scaled(size, 1.0) == size
    assert sides(scaled(size, 1e-6)) == (1, 1)


def test_what_is_not_said_stays_open() -> None:
    assert (parse_image_size(None), parse_image_sizes(None), size_key(None), json_size(None)) == (None, [], None, None)


def test_squares_are_one_number() -> None:
    assert parse_image_sizes("160,48x160,32X32") == [160, (48, 160), 32]
    assert as_image_size((24, 24)) == as_image_size(np.int64(24)) == 24


@pytest.mark.parametrize("text", ["", "x", "48x", "x48", "48*80", "48x80x3", "-8", "7", "8x7", "1e3", "48 80"])
def test_texts_that_are_no_size(text: str) -> None:
    with pytest.raises(UsageError, match=r"--image-size .*(HEIGHTxWIDTH|too small)"):
        parse_image_size(text)
    with pytest.raises(UsageError, match="--image-sizes "):
        parse_image_sizes(f"16,{text}")


@pytest.mark.parametrize("value", [0, -4, 2.5, True, "24", (24,), (24, 24, 3), (24, 0), (24, None), None, {}])
def test_values_that_are_no_size(value: Any) -> None:
    with pytest.raises(UsageError, match="height and width"):
        as_image_size(value)
