"""The choices of a layer: the cheapest for its layouts, and those that are near it."""

from __future__ import annotations

import math
from collections import defaultdict

import pytest

from nnstretch.compiler.processors import build_processors
from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.routine import Parameters, Routine
from nnstretch.graph.layer import Layer
from nnstretch.scheduler.lowering.candidates import single_choices
from nnstretch.scheduler.plan.schema import queue_pool
from tests.kits.kernels.convolution_parity import conv_layer
from tests.kits.made_up_costs import Work


class Graded(Work):
    """Every setting takes a little longer than the one that was asked for before."""

    asked = 0

    def seconds(self, processor: Processor, routine: Routine, layer: Layer, parameters: Parameters) -> float | None:
        self.asked += 1
        return 1.0 + 0.04 * self.asked


@pytest.mark.parametrize("near", [0.0, 0.05, 0.3, 100.0])
def test_choices_are_near_the_cheapest_of_their_layouts(near: float) -> None:
    processors = build_processors("cpu:0")
    pool, layer = queue_pool(processors.named, processors.host), conv_layer((1, 64, 14, 14), 64)
    everything, found = (single_choices(layer, (0,), pool, Graded(), share, externals=False) for share in (1e9, near))
    least: dict[object, float] = defaultdict(lambda: math.inf)
    for one in everything:
        least[one.inputs, one.outputs] = min(least[one.inputs, one.outputs], one.seconds or 0.0)
    wanted = [one.seconds for one in everything if (one.seconds or 0.0) <= (1 + near) * least[one.inputs, one.outputs]]
    assert sorted(one.seconds or 0.0 for one in found) == sorted(seconds or 0.0 for seconds in wanted)
    assert len(everything) > len(least) == (len(found) if not near else len(least))
