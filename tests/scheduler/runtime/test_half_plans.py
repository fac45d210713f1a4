"""Data stored as float16 on a device: selection, casts on the device's queue, and the answers of whole plans."""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
import pytest
from onnx import parser

from nnstretch.api.options import CompileOptions
from nnstretch.compiler.processors import HALF_TOLERANCE, build_processors
from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.routine import (
    PLAIN,
    REORDER,
    Launch,
    Layout,
    Parameters,
    Routine,
    reorder_layer,
    reorder_layouts,
)
from nnstretch.devices.base.spec import ProcessorSpec
from nnstretch.devices.cpu.processor import CpuProcessor
from nnstretch.devices.opencl.backend import OPENCL
from nnstretch.devices.opencl.routines import Reorder, Traits, routines
from nnstretch.errors import UsageError
from nnstretch.graph.layer import Layer, TensorType
from nnstretch.graph.reference import relative_error
from nnstretch.passes import optimize
from nnstretch.scheduler.costmodel.costs import CostModel
from nnstretch.scheduler.placement.contraction import contract
from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.scheduler.plan.schema import Plan
from nnstretch.scheduler.planner import choice_space, make_plan
from nnstretch.scheduler.runtime.session import PlanSession
from tests.kits.graphs.graphs import RandomNetwork

CORES = sorted(os.sched_getaffinity(0))
HALF = "float16"
TOLERANCE = 2e-2  # errors of halves add up along a network's layers


class FakeDevice(Processor):
    """An OpenCL device for planning alone: its routines, and nothing that could run them."""

    backend = OPENCL

    def __init__(self, index: int, block: int, dtypes: Sequence[str]) -> None:
        traits = Traits(block, on_cpu=True, compute_units=1, registers=32)
        self.spec = ProcessorSpec("opencl", index)
        self.blocked = Layout(block)
        self.routines, self.reorder = routines(traits, dtypes), Reorder(traits)

    @property
    def fingerprint(self) -> str:
        return f"fake{self.spec.index}"


class Prices(CostModel):
    """Random costs, scaled for float16 routines, and low for layout changes."""

    measured = True

    def __init__(self, seed: int, halves: float) -> None:
        self._seed, self._halves = seed, halves

    def seconds(self, processor: Processor, routine: Routine, layer: Layer, parameters: Parameters) -> float | None:
        text = f"{self._seed} {routine.descriptor} {layer.workload} {sorted(parameters.items())}"
        price = (0.05 if layer.op == REORDER else 1.0) * (1.0 + zlib.crc32(text.encode()) / 2**32)
        return price * (self._halves if routine.descriptor.dtype == HALF else 1.0)

    def transfer(self, one: Processor, other: Processor, tensor: TensorType) -> float:
        return 0.05


@pytest.fixture(scope="module")
def host() -> CpuProcessor:
    return CpuProcessor(ProcessorSpec("cpu", cores=(CORES[0],)))


def planned(network: RandomNetwork, processors: Sequence[Processor], host: Processor, prices: CostModel) -> Compiled:
    return make_plan(optimize(network.graph()), processors, host, prices)


def halves(plan: Plan) -> int:
    """Steps that read or write halves."""
    return sum(step.launch is not None and 2 in step.launch.item_bytes for step in plan.steps)


def half_buffers(plan: Plan) -> set[int]:
    found: set[int] = set()
    for step in plan.steps:
        if step.launch is not None and step.launch.item_bytes:
            operands = (*step.reads, *step.writes)
            pairs = zip(operands, step.launch.item_bytes, strict=True)
            found |= {index for index, size in pairs if size == 2 and index is not None}
    return found


@pytest.mark.parametrize("seed", range(12))
def test_halves_never_reach_the_host(host: CpuProcessor, seed: int) -> None:
    network = RandomNetwork(seed, processors=2, nodes=14, channels=(5, 16, 32))
    device = FakeDevice(0, host.blocked.block, ("float32", HALF))
    plan = planned(network, [host, device], host, Prices(seed, 0.5)).plan
    assert halves(plan)
    stored = half_buffers(plan)
    assert all(plan.buffers[index].memory in ("device", "constant") for index in stored)
    for step in plan.steps:
        if step.launch is None:
            assert not stored & {index for index in (*step.reads, *step.writes) if index is not None}


def test_halves_are_chosen_only_where_they_are_cheaper(host: CpuProcessor) -> None:
    network = RandomNetwork(3, processors=0, nodes=14)
    device = FakeDevice(0, host.blocked.block, ("float32", HALF))
    assert halves(planned(network, [device], host, Prices(0, 0.2)).plan)
    assert not halves(planned(network, [device], host, Prices(0, 5.0)).plan)
    assert not halves(planned(network, [FakeDevice(0, host.blocked.block, ("float32",))], host, Prices(0, 0.2)).plan)


def test_halves_do_not_pass_between_two_devices(host: CpuProcessor) -> None:
    network = RandomNetwork(3, processors=3, nodes=14)
    devices = [FakeDevice(i, host.blocked.block, ("float32", HALF)) for i in range(2)]
    space = choice_space(optimize(network.graph()), [host, *devices], host, Prices(0, 0.2))
    producer = {name: u for u, unit in enumerate(space.graph.units) for name in unit.outputs}
    seen = 0
    for v, unit in enumerate(space.graph.units):
        for position, name in enumerate(unit.inputs):
            u = producer.get(name)
            for i, before in enumerate(space.choices[u] if u is not None else ()):
                for j, after in enumerate(space.choices[v]):
                    devices_differ = 0 not in (before.queue, after.queue) and before.queue != after.queue
                    if devices_differ and (before.outputs[0].dtype or after.inputs[position].dtype):
                        assert u is not None
                        assert space.problem.edges[u, v][i, j] == math.inf
                        seen += 1
    assert seen


def test_a_device_pays_for_halves_that_it_makes_of_what_the_host_made(host: CpuProcessor) -> None:
    device, prices = FakeDevice(0, host.blocked.block, ("float32", HALF)), Prices(0, 0.2)
    model = parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 20]>
        net (float[1,32,6,6] x) => (float[1,32,6,6] y) { a = Relu (x) y = Sigmoid (a) }"""
    )
    space = choice_space(optimize(ir.from_proto(model)), [host, device], host, prices)
    first = next(c for c in space.choices[0] if c.queue == 0 and c.outputs == (PLAIN,))
    second = next(c for c in space.choices[1] if c.queue == 1 and c.inputs[0].dtype == HALF)
    contraction = contract(space, [[first, second]])
    tensor = space.graph.types["a"]
    casts = [
        prices.reorder_seconds(device, tensor, PLAIN, second.inputs[0]),
        prices.reorder_seconds(device, tensor, second.outputs[0], PLAIN),
    ]
    expected = [0.0, first.seconds, (second.seconds or 0.0) + sum(cast or 0.0 for cast in casts), 0.0]
    assert all(casts)
    assert contraction.seconds(space, [first, second]) == pytest.approx(expected)


def test_plans_keep_the_size_of_elements(host: CpuProcessor) -> None:
    device = FakeDevice(0, host.blocked.block, ("float32", HALF))
    plan = planned(RandomNetwork(3, processors=0), [device], host, Prices(0, 0.2)).plan
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.opencl
@pytest.mark.parametrize("seed", range(6))
def test_answers_of_plans_that_mix_types(host: CpuProcessor, seed: int) -> None:
    placed = seed % 2 and len(CORES) > 1
    text = f"cpu:{CORES[0]},opencl:0@{CORES[-1]}" if placed else f"opencl:0@{CORES[-1]}"
    network = RandomNetwork(300 + seed, processors=2 if placed else 0, nodes=10, channels=(5, 16, 19))
    found = build_processors(CompileOptions(text, tolerance=TOLERANCE))
    compiled = planned(network, found.named, found.host, Prices(seed, (1.0, 0.3)[seed % 3 == 0]))
    with PlanSession(compiled) as session:
        results = session.run(None, {"x": network.input})
    for expected, result in zip(network.expected(), results, strict=True):
        assert relative_error(result, expected) < TOLERANCE


def test_layouts_of_another_type() -> None:
    tensor = TensorType((1, 20, 3, 5))
    half = Layout(16, HALF)
    assert str(half) == "NCHW16c:float16"
    assert half != Layout(16)
    assert half.bytes(tensor) * 2 == Layout(16).bytes(tensor) == 32 * 15 * 4
    assert reorder_layouts(reorder_layer(tensor, PLAIN, half)) == (PLAIN, half)
    assert reorder_layer(tensor, PLAIN, half).workload != reorder_layer(tensor, PLAIN, Layout(16)).workload


def test_the_cpu_does_not_change_types(host: CpuProcessor) -> None:
    tensor = TensorType((1, 20, 3, 5))
    block = host.blocked.block
    assert host.reorder.supports(reorder_layer(tensor, PLAIN, Layout(block)))
    assert not host.reorder.supports(reorder_layer(tensor, PLAIN, Layout(block, HALF)))
    assert not host.reorder.supports(reorder_layer(tensor, Layout(0, HALF), PLAIN))


def test_offsets_count_elements() -> None:
    launch = Launch("conv.cl", (), (1,), item_bytes=(2, 4))
    assert launch.offsets((64, 64)) == (32, 16)
    assert Launch("conv.cl", (), (1,)).offsets((64, 128, 0)) == (16, 32, 0)
    with pytest.raises(ValueError, match="not multiples"):
        launch.offsets((2, 2))


@pytest.mark.parametrize("tolerance", [0.0, -1.0, 1.0, math.nan, math.inf])
def test_a_tolerance_that_is_no_positive_number_is_refused(tolerance: float) -> None:
    with pytest.raises(UsageError, match=r"^tolerance is .*; it must be a positive number"):
        build_processors(CompileOptions(f"cpu:{CORES[0]}", tolerance=tolerance))


@pytest.mark.opencl
def test_halves_are_offered_from_a_tolerance_on() -> None:
    for tolerance, dtypes in ((HALF_TOLERANCE, {"float32", HALF, "int8"}), (1e-4, {"float32", "int8"})):
        (device,) = build_processors(CompileOptions(f"opencl:0@{CORES[0]}", tolerance=tolerance)).named
        assert {routine.descriptor.dtype for routine in device.routines} == dtypes
        assert np.dtype(device.blocked.dtype or "float32") == np.float32
