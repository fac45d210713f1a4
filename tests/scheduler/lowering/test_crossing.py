"""Crossings: tensors cross between queues in the cheapest type, and whoever converts them faster does."""

from __future__ import annotations

import itertools
import math
import os
import random
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from onnx import shape_inference

from nnstretch.api.options import CompileOptions
from nnstretch.compiler.processors import build_processors
from nnstretch.devices.base.float_form import float_form_routines
from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.routine import PLAIN, REORDER, Layout, Parameters, Routine, reorder_layouts
from nnstretch.devices.base.spec import ProcessorSpec
from nnstretch.devices.cpu.processor import CpuProcessor
from nnstretch.graph.dtypes import QuantizationParameters
from nnstretch.graph.layer import Layer, TensorType
from nnstretch.passes import optimize
from nnstretch.scheduler.costmodel.costs import CostModel, Estimates
from nnstretch.scheduler.lowering.choices import Choice
from nnstretch.scheduler.lowering.crossing import Crossing, CrossingCosts, LayoutChange, Passage
from nnstretch.scheduler.plan.schema import QueuePool, queue_pool
from nnstretch.scheduler.planner import ChoiceSpace, choice_space, plan_of_choices
from nnstretch.scheduler.runtime.session import PlanSession
from tests.kits.graphs.mixed_networks import MixedNetwork
from tests.kits.hypothesis_examples import examples
from tests.nnstretch.compiler.test_hybrid import reference
from tests.scheduler.runtime.test_half_plans import FakeDevice

CORES = sorted(os.sched_getaffinity(0))
CPU, OTHER_CPU, DEVICE = f"cpu:{CORES[0]}", f"cpu:{CORES[-1]}", f"opencl:0@{CORES[-1]}"
HALF = "float16"
INT8 = TensorType((1, 32, 6, 6), "int8", QuantizationParameters(0.125, 3))
"""An int8 tensor of 1152 bytes."""
FLOATS = TensorType(INT8.shape)


@dataclass
class Prices(CostModel):
    """Seconds of conversions by processor and types; transfers cost by bytes.

    Attributes:
        conversions: (processor, type before, type after) -> seconds; 1 if missing.
        per_byte: seconds of a transfer.
        moving: seconds of other layout changes.
    """

    conversions: Mapping[tuple[str, str, str], float] = field(default_factory=dict)
    per_byte: float = 0.0
    moving: float = 0.01
    measured = True

    def seconds(self, processor: Processor, routine: Routine, layer: Layer, parameters: Parameters) -> float | None:
        if layer.op != REORDER:
            return 1.0
        before, after = (layout.element(layer.type_of(0)).name for layout in reorder_layouts(layer))
        return self.moving if before == after else self.conversions.get((processor.name, before, after), 1.0)

    def transfer(self, one: Processor, other: Processor, tensor: TensorType) -> float:
        return self.per_byte * PLAIN.bytes(tensor)


class DeviceWithFloatForms(FakeDevice):
    """A device for planning alone, whose routines for float32 layers compute int8 layers too."""

    def __init__(self, index: int, block: int, dtypes: Sequence[str]) -> None:
        super().__init__(index, block, dtypes)
        self.routines = (*self.routines, *float_form_routines(self.routines))


@pytest.fixture(scope="module")
def pool() -> QueuePool:
    """Queue 0 of a CPU, 1 of another one, and 2 and 3 of devices."""
    cpus = [CpuProcessor(ProcessorSpec("cpu", cores=(core,)), float_forms=True) for core in (0, 1)]
    devices = [DeviceWithFloatForms(index, cpus[0].blocked.block, ("float32", HALF)) for index in (0, 1)]
    return queue_pool([*cpus, *devices], cpus[0])


def stored(pool: QueuePool, dtype: str | None) -> Layout:
    return Layout(pool.processors[0].blocked.block, dtype)


def way(pool: QueuePool, prices: Prices, passage: Passage, *, rounds: bool = True) -> tuple[str, list[tuple[int, str]]]:
    """The type that crosses, and who makes which type."""
    found = CrossingCosts(pool, prices, rounds).crossing(passage)
    made = [(one.queue, one.after.element(passage.tensor).name) for one in found.changes]
    return found.carried.element(passage.tensor).name, made


def test_int8_crosses_to_a_device_that_wants_floats(pool: QueuePool) -> None:
    passage = Passage(INT8, stored(pool, None), 0, stored(pool, "float32"), 2)
    assert way(pool, Prices(), passage) == ("int8", [(2, "float32")])
    assert way(pool, Prices(per_byte=1.0), passage) == ("int8", [(2, "float32")])
    slow = {("opencl:0", "int8", "float32"): 3.0}
    assert way(pool, Prices(slow), passage) == ("float32", [(0, "float32")])
    # Floats have 3456 bytes more.
    assert way(pool, Prices(slow, per_byte=1.9 / 3456), passage) == ("float32", [(0, "float32")])
    assert way(pool, Prices(slow, per_byte=2.1 / 3456), passage) == ("int8", [(2, "float32")])


def test_floats_cross_to_integers_where_that_is_cheaper(pool: QueuePool) -> None:
    passage = Passage(INT8, stored(pool, "float32"), 2, stored(pool, None), 0)
    assert way(pool, Prices(), passage) == ("int8", [(2, "int8")])
    slow = {("opencl:0", "float32", "int8"): 3.0}
    assert way(pool, Prices(slow), passage) == ("float32", [(0, "int8")])
    assert way(pool, Prices(slow, per_byte=1.0), passage) == ("int8", [(2, "int8")])


def test_floats_on_both_sides_are_rounded_only_where_bytes_are_expensive_and_rounding_is_allowed(
    pool: QueuePool,
) -> None:
    passage = Passage(INT8, stored(pool, "float32"), 0, stored(pool, "float32"), 2)
    assert way(pool, Prices(), passage) == ("float32", [])
    expensive = Prices(per_byte=2.1 / 3456)
    assert way(pool, expensive, passage) == ("int8", [(0, "int8"), (2, "float32")])
    assert way(pool, expensive, passage, rounds=False) == ("float32", [])


def test_the_host_never_sees_halves(pool: QueuePool) -> None:
    to_halves = Passage(INT8, stored(pool, "float32"), 0, stored(pool, HALF), 2)
    assert way(pool, Prices(), to_halves) == ("float32", [(2, HALF)])
    from_halves = Passage(INT8, stored(pool, HALF), 2, stored(pool, "float32"), 0)
    assert way(pool, Prices(), from_halves) == ("float32", [(2, "float32")])
    assert way(pool, Prices(per_byte=1.0), from_halves) == ("int8", [(2, "int8"), (0, "float32")])
    unrounded = Passage(FLOATS, stored(pool, None), 0, stored(pool, HALF), 2)
    assert way(pool, Prices(), unrounded) == ("float32", [(2, HALF)])
    assert way(pool, Prices(), replace(unrounded, before=stored(pool, HALF), source=2, after=PLAIN, target=0)) == (
        "float32",
        [(2, "float32")],
    )


def test_cores_convert_where_they_are_faster(pool: QueuePool) -> None:
    passage = Passage(INT8, stored(pool, None), 0, stored(pool, "float32"), 1)
    assert way(pool, Prices({("cpu:0", "int8", "float32"): 2.0}), passage) == ("int8", [(1, "float32")])
    assert way(pool, Prices({("cpu:1", "int8", "float32"): 2.0}), passage) == ("float32", [(0, "float32")])


def test_the_host_copies_integers_between_two_devices(pool: QueuePool) -> None:
    passage = Passage(INT8, stored(pool, HALF), 2, stored(pool, "float32"), 3)
    assert way(pool, Prices(), passage) == ("float32", [(2, "float32"), (0, "float32")])
    assert way(pool, Prices(per_byte=1.0), passage) == ("int8", [(2, "int8"), (0, "int8"), (3, "float32")])
    halves = Passage(FLOATS, stored(pool, HALF), 2, stored(pool, HALF), 3)
    assert CrossingCosts(pool, Prices(), rounds=True).seconds(halves) == math.inf


def test_the_callers_arrays_are_copied_unless_the_host_converts(pool: QueuePool) -> None:
    given = Passage(INT8, PLAIN, 0, stored(pool, "float32"), 2, of_caller=True)
    slow_host, slow_device = ({(name, "int8", "float32"): 9.0} for name in ("cpu:0", "opencl:0"))
    found = CrossingCosts(pool, Prices(slow_host), rounds=True).crossing(given)
    assert found == Crossing(PLAIN, (LayoutChange(0, PLAIN, PLAIN), LayoutChange(2, PLAIN, stored(pool, "float32"))))
    assert way(pool, Prices(slow_device), given) == ("float32", [(0, "float32")])
    taken = Passage(INT8, stored(pool, "float32"), 2, PLAIN, 0, of_caller=True)
    slow = Prices({("opencl:0", "float32", "int8"): 9.0})
    assert way(pool, slow, taken) == ("float32", [(0, "int8")])


layouts = st.sampled_from([(block, dtype) for block in (0, 1) for dtype in (None, "float32")])
seconds = st.integers(1, 9).map(float)


@given(
    ends=st.tuples(layouts, layouts),
    queues=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    conversions=st.lists(seconds, min_size=8, max_size=8),
    per_byte=st.sampled_from([0.0, 1e-3, 5e-3]),
    rounds=st.booleans(),
)
@settings(max_examples=examples(120), deadline=None)
def test_no_way_is_cheaper(
    pool: QueuePool,
    ends: tuple[tuple[int, str | None], tuple[int, str | None]],
    queues: tuple[int, int],
    conversions: list[float],
    per_byte: float,
    *,
    rounds: bool,
) -> None:
    """Of all that may cross, and with every change on the maker's side before and on the reader's side after it."""
    block = pool.processors[0].blocked.block
    before, after = (Layout(block * blocked, dtype) for blocked, dtype in ends)
    if before.dtype is None and after.dtype is None:
        return
    names = [processor.name for processor in pool.processors]
    kinds = [("int8", "float32"), ("float32", "int8")]
    table = {(name, *kind): s for (name, kind), s in zip(itertools.product(names, kinds), conversions, strict=True)}
    model, (source, target) = Prices(table, per_byte), queues
    found = CrossingCosts(pool, model, rounds).seconds(Passage(INT8, before, source, after, target))
    best = math.inf
    for blocked, dtype in itertools.product((0, block), (None, "float32")):
        between = Layout(blocked, dtype)
        if dtype is None and None not in (before.dtype, after.dtype) and not rounds:
            continue
        if source == target and between != before:
            continue
        taken = cost(pool, model, source, before, between) + cost(pool, model, target, between, after)
        if source != target and max(queues) > 1:
            taken += per_byte * between.bytes(INT8)
        if source != target and min(queues) > 1:
            taken += 0.01  # the host's copy
        best = min(best, taken)
    assert found == pytest.approx(best)


def cost(pool: QueuePool, prices: Prices, queue: int, before: Layout, after: Layout) -> float:
    if before == after:
        return 0.0
    return prices.reorder_seconds(pool.processors[queue], INT8, before, after) or math.inf


# -- plans ---------------------------------------------------------------------------------------------------------

NETWORK = MixedNetwork()
FEEDS = {"x": NETWORK.input}


class RandomPrices(Prices):
    """Random costs of conversions and transfers, so that tensors cross in all ways."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def seconds(self, processor: Processor, routine: Routine, layer: Layer, parameters: Parameters) -> float | None:
        text = f"{self._seed} {processor.name} {sorted(layer.attributes.items())} {layer.outputs[0].shape}"
        return 1.0 + zlib.crc32(text.encode()) / 2**32

    def transfer(self, one: Processor, other: Processor, tensor: TensorType) -> float:
        return (self._seed % 3) * 1e-3 * PLAIN.bytes(tensor)


def space_on(processors: str) -> ChoiceSpace:
    """With float16 on devices, and one routine for each layer, queue and layouts, as kernels take long to compile."""
    found = build_processors(CompileOptions(processors, dtype="hybrid", tolerance=1e-3))
    space = choice_space(optimize(graph_of(NETWORK)), found.named, found.host, Estimates())
    few = [list({(c.queue, c.inputs, c.outputs): c for c in reversed(options)}.values()) for options in space.choices]
    return replace(space, choices=few)


def graph_of(network: MixedNetwork) -> ir.Model:
    return ir.from_proto(shape_inference.infer_shapes(network.model(), strict_mode=True))


TWO = {"two cpus": f"{CPU},{OTHER_CPU}", "device": DEVICE, "cpu and device": f"{CPU},{DEVICE}"}


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=pytest.mark.opencl if "device" in name else ()) for name in TWO]
)
def space(request: pytest.FixtureRequest) -> ChoiceSpace:
    if request.param != "device" and len(CORES) < 2:
        pytest.skip("two processors need two cores")
    return space_on(TWO[request.param])


def error_of(space: ChoiceSpace, chosen: list[Choice], prices: CostModel) -> tuple[float, float]:
    """The largest error of a plan against ONNX Runtime, and what halves may add to it."""
    made = plan_of_choices(space.graph, chosen, space.pool, prices, space.host.blocked.block)
    with PlanSession(made) as session:
        assert not session.plan.fallback_layers
        (y,) = session.run(None, FEEDS)
    wanted = reference(space, chosen)
    halves = any(choice.outputs[0].dtype == HALF for choice in chosen)
    return float(np.abs(y - wanted).max()), 0.01 * float(np.ptp(wanted)) * halves


@given(draws=st.randoms(use_true_random=False), seed=st.integers(0, 99))
@settings(max_examples=examples(4), deadline=None)
def test_any_mixture_on_several_processors(space: ChoiceSpace, draws: random.Random, seed: int) -> None:
    """Every layer on any queue, in any type and layout; nothing is rounded on its way but what an end rounds anyway."""
    unrounded = replace(space, graph=replace(space.graph, in_float32=True))
    chosen = [draws.choice(list(choices)) for choices in space.choices]
    error, halves = error_of(unrounded, chosen, RandomPrices(seed))
    assert error <= 1.01 * NETWORK.step() + halves


@given(draws=st.randoms(use_true_random=False), seed=st.integers(0, 99))
@settings(max_examples=examples(3), deadline=None)
def test_floats_that_are_rounded_on_their_way(space: ChoiceSpace, draws: random.Random, seed: int) -> None:
    """Rounding costs what it costs the int8 network: a step here and there."""
    chosen = [draws.choice(list(choices)) for choices in space.choices]
    error, halves = error_of(space, chosen, RandomPrices(seed))
    assert error <= 5 * NETWORK.step() + halves


CHAIN = MixedNetwork(layers=3)
NO_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)


@given(draws=st.randoms(use_true_random=False), conversions=st.lists(seconds, min_size=18, max_size=18))
@settings(max_examples=examples(15), deadline=None, phases=NO_SHRINKING)
def test_problems_cost_what_plans_take(pool: QueuePool, draws: random.Random, conversions: list[float]) -> None:
    """One layer after another, on the host's cores and a device, so that a plan takes the sum of all conversions."""
    names, kinds = ("cpu:0", "cpu:1", "opencl:0"), itertools.permutations(("int8", "float32", HALF), 2)
    keys = [(name, *kind) for name, kind in itertools.product(names, kinds)]
    prices = Prices(dict(zip(keys, conversions, strict=True)), moving=0.0)
    host = pool.processors[0]
    space = choice_space(optimize(graph_of(CHAIN)), pool.processors[:3], host, prices)
    free = [[n for n, c in enumerate(options) if c.group is None and not c.is_head] for options in space.choices]
    numbers = [draws.choice(some) for some in free]
    chosen = [options[n] for options, n in zip(space.choices, numbers, strict=True)]
    plan = plan_of_choices(space.graph, chosen, space.pool, prices, host.blocked.block).plan
    assert plan.predicted_ms == pytest.approx(1e3 * space.problem.cost(numbers))
