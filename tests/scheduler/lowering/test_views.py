"""Which layers are bytes of their inputs."""

from __future__ import annotations

import pytest

from nnstretch.devices.base.routine import PLAIN, Layout
from nnstretch.graph.layer import Layer, TensorType
from nnstretch.scheduler.lowering.views import view_offset

BLOCKED = Layout(16)
Shape = tuple[int, ...]


@pytest.mark.parametrize(
    ("shape", "result", "layouts", "offset"),
    [
        ((2, 20, 4, 6), (2, 20, 24, 1), (BLOCKED, BLOCKED), 0),
        ((2, 20, 4, 6), (2, 20, 24), (PLAIN, PLAIN), 0),
        ((2, 20, 4, 6), (4, 10, 4, 6), (BLOCKED, BLOCKED), None),
        ((2, 20, 4, 6), (2, 20, 24, 1), (BLOCKED, Layout(8)), None),
        ((2, 20, 4, 6), (2, 20, 24, 1), (PLAIN, BLOCKED), None),
        ((1, 20, 1, 1), (1, 20), (BLOCKED, PLAIN), 0),
        ((2, 20, 1, 1), (2, 20), (BLOCKED, PLAIN), None),
    ],
)
def test_reshape(shape: Shape, result: Shape, layouts: tuple[Layout, Layout], offset: int | None) -> None:
    layer = Layer("tested", "Reshape", (TensorType(shape),), (TensorType(result),))
    assert view_offset(layer, *layouts) == offset
