"""Networks on several processors in the best mixture of types: never slower than in one type, and each branch in its best."""

from __future__ import annotations

import itertools
import os
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import shape_inference

from nnstretch.api.options import CompileOptions
from nnstretch.compiler.processors import build_processors
from nnstretch.devices.base.float_form import FloatFormRoutine
from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.routine import PLAIN, REORDER, Parameters, Routine
from nnstretch.frontends.onnx_file import load
from nnstretch.graph.layer import Layer, TensorType
from nnstretch.graph.metadata import branch_of
from nnstretch.graph.reference import relative_error, run_proto
from nnstretch.passes import optimize
from nnstretch.quantization.pipeline import quantize
from nnstretch.scheduler.costmodel.costs import CostModel
from nnstretch.scheduler.placement.joint import simulated_seconds
from nnstretch.scheduler.placement.sharing import MIXED, shared_out
from nnstretch.scheduler.planner import ChoiceSpace, choice_space, plan_of
from nnstretch.scheduler.runtime.session import PlanSession
from nnstretch.scheduler.selection import default_selector
from nnstretch.scheduler.selection.hybrid import (
    FLOAT32,
    INT8,
    allowed_in,
    dtypes_of_units,
    is_mixed,
    only,
    selected,
)
from nnstretch.scheduler.simulation.timing import simulate
from tests.kits.graphs.mixed_networks import MixedNetwork
from tests.kits.hypothesis_examples import examples
from tests.scheduler.placement.test_placement import design

CORES = sorted(os.sched_getaffinity(0))
TWO_CPUS = f"cpu:{CORES[0]},cpu:{CORES[-1]}"
CPU_AND_OPENCL = f"cpu:{CORES[0]},opencl:0@{CORES[-1]}"
HALF = "float16"
needs_two_cores = pytest.mark.skipif(len(CORES) < 2, reason="two processors need two cores")


@dataclass
class Rates(CostModel):
    """Seconds by multiply-adds (or elements) for each processor and type; conversions and transfers by elements.

    Attributes:
        rates: (index of the processor, type) -> seconds of a multiply-add; types without one have no routine.
        per_element: seconds per element of layout changes and conversions.
        per_byte: seconds of transfers from and to devices, and between queues in simulated time.
        spread: random factor of up to 1 + spread on each layer and type.
        seed: of these.
    """

    rates: Mapping[tuple[int, str], float]
    per_element: float = 0.0
    per_byte: float = 0.0
    spread: float = 0.0
    seed: int = 0
    measured = True

    def seconds(self, processor: Processor, routine: Routine, layer: Layer, parameters: Parameters) -> float | None:
        if layer.op == REORDER:
            return self.per_element * layer.outputs[0].elements
        first = next(one for one in processor.routines if _is_alike(one, routine) and one.supports(layer))
        rate = self.rates.get((processor.spec.cores[0], routine.descriptor.dtype))
        if rate is None or routine is not first or parameters != routine.default_parameters(layer):
            return None
        draw = zlib.crc32(f"{self.seed} {processor.name} {routine.descriptor.dtype} {layer.workload}".encode()) / 2**32
        return rate * (layer.macs or layer.outputs[0].elements) * (1 + self.spread * draw)

    def transfer(self, one: Processor, other: Processor, tensor: TensorType) -> float:
        return self.per_byte * PLAIN.bytes(tensor)

    # Interference between queues.
    whole_tensors = False

    def transfer_seconds(self, queue: int, others: frozenset[int], size: int, /) -> float:
        return self.per_byte * size

    def contention_factor(self, queue: int, others: frozenset[int], /) -> float:
        return 1.0


def _is_alike(one: Routine, other: Routine) -> bool:
    """Whether two routines are of one type, and both for float forms or neither."""
    forms = {isinstance(routine, FloatFormRoutine) for routine in (one, other)}
    return one.descriptor.dtype == other.descriptor.dtype and len(forms) == 1


def space_of(model: ir.Model, processors: str, costs: CostModel, tolerance: float | None = None) -> ChoiceSpace:
    found = build_processors(CompileOptions(processors, dtype="hybrid", tolerance=tolerance))
    return choice_space(optimize(model), found.named, found.host, costs)


# -- no mixture is slower than one type ----------------------------------------------------------------------------

NETWORK = shape_inference.infer_shapes(MixedNetwork().model(), strict_mode=True)
rates = st.integers(1, 9).map(lambda n: n * 1e-10)


@needs_two_cores
@given(
    table=st.lists(rates, min_size=4, max_size=4),
    per_element=st.sampled_from([0.0, 1e-10, 2e-9]),
    per_byte=st.sampled_from([0.0, 1e-10, 1e-9]),
    seed=st.integers(0, 999),
)
@settings(max_examples=examples(6), deadline=None)
def test_a_mixture_is_never_slower_than_one_type(
    table: list[float], per_element: float, per_byte: float, seed: int
) -> None:
    keys = itertools.product((CORES[0], CORES[-1]), (FLOAT32, INT8))
    costs = Rates(dict(zip(keys, table, strict=True)), per_element, per_byte, 2.0, seed)
    space = shared_out(space_of(ir.from_proto(NETWORK), TWO_CPUS, costs), costs)
    assert set(space.type_seconds) == {FLOAT32, INT8, MIXED}
    assert space.type_seconds[MIXED] <= min(space.type_seconds.values())
    answer = selected(space, default_selector())
    assert space.placement is not None
    assert space.placement.seconds == pytest.approx(space.type_seconds[MIXED])
    if space.placement.pays:
        taken = simulate(plan_of(space, answer.best).plan, costs).total * 1e-9
        assert taken == pytest.approx(space.type_seconds[MIXED], rel=1e-6, abs=1e-8)


@needs_two_cores
@pytest.mark.parametrize(("spread", "near"), [(1.01, True), (2.0, False)])
@pytest.mark.parametrize("fastest", [FLOAT32, INT8, MIXED])
def test_runs_decide_between_types_of_nearly_the_same_prediction(spread: float, near: bool, fastest: str) -> None:
    """The other type is `spread` times as slow on both processors. The first of the runs is disturbed and does not count."""
    rates = {
        (core, dtype): 1e-9 * (spread if dtype == FLOAT32 else 1) for core in CORES[:2] for dtype in (FLOAT32, INT8)
    }
    costs, ran = Rates(rates), Counter[str]()

    def runs(space: ChoiceSpace) -> list[float]:
        name = MIXED if is_mixed(space) else FLOAT32 if space.graph.in_float32 else INT8
        ran[name] += 1
        return [9.0 if ran[name] == 1 else 1.0 if name == fastest else 2.0] * 5

    space = shared_out(space_of(ir.from_proto(NETWORK), TWO_CPUS, costs), costs, runs=runs)
    assert set(ran) == ({FLOAT32, INT8, MIXED} if near else {INT8, MIXED})
    predicted = space.type_seconds
    assert space.placement is not None
    assert predicted[MIXED] == pytest.approx(space.placement.seconds)
    if near:
        assert is_mixed(space) == (fastest == MIXED)
        assert predicted[MIXED] == pytest.approx(predicted[fastest]) or fastest == MIXED


# -- branches in the types of their processors ---------------------------------------------------------------------

UNLIKE = Rates(
    {(CORES[0], INT8): 1e-10, (CORES[0], FLOAT32): 4e-10, (CORES[-1], INT8): 3e-10, (CORES[-1], FLOAT32): 1e-10},
    per_element=1e-11,
    per_byte=1e-12,
)
"""One processor multiplies int8 four times as fast as floats, the other one floats three times as fast as int8."""


@pytest.fixture(scope="module")
def branched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The int8 file of a network with two branches for two processors."""
    path = tmp_path_factory.mktemp("branched") / "int8.onnx"
    rng = np.random.default_rng(0)
    quantize(design(), [{"x": rng.standard_normal((1, 32, 8, 8)).astype(np.float32)} for _ in range(3)], path)
    return path


def types_of_branches(space: ChoiceSpace, answer_types: dict[str, str]) -> dict[int, set[str]]:
    """The types of the layers with weights in each branch of the segment that has two."""
    found: dict[int, set[str]] = {}
    for unit in space.graph.units:
        place = branch_of(unit.name)
        if place is not None and place[0] == 1 and unit.layer.macs:
            found.setdefault(place[1], set()).add(answer_types[unit.name])
    return found


@needs_two_cores
@pytest.mark.parametrize(
    ("processors", "other"),
    [
        pytest.param(TWO_CPUS, FLOAT32, id="two cpus"),
        pytest.param(CPU_AND_OPENCL, FLOAT32, id="opencl", marks=pytest.mark.opencl),
        pytest.param(CPU_AND_OPENCL, HALF, id="opencl with float16", marks=pytest.mark.opencl),
    ],
)
def test_each_branch_has_the_best_type_of_its_processor(branched: Path, processors: str, other: str) -> None:
    """As `UNLIKE`, also where the floats of the second one are float16."""
    table = {key if key != (CORES[-1], FLOAT32) else (CORES[-1], other): rate for key, rate in UNLIKE.rates.items()}
    costs = replace(UNLIKE, rates=table)
    model, tolerance = load(branched), 1e-3 if other == HALF else None
    space = shared_out(space_of(model, processors, costs, tolerance), costs)
    assert space.type_seconds[MIXED] < 0.9 * min(space.type_seconds[FLOAT32], space.type_seconds[INT8])
    answer = selected(space, default_selector()).best
    types = {unit.name: dtype for unit, dtype in dtypes_of_units(space, answer)}
    assert types_of_branches(space, types) == {0: {INT8}, 1: {other}}
    compiled = plan_of(space, answer)
    rng = np.random.default_rng(1)
    feeds = {"x": rng.standard_normal((1, 32, 8, 8)).astype(np.float32)}
    with PlanSession(compiled) as session:
        assert not session.plan.fallback_layers
        (y,) = session.run(None, feeds)
    (wanted,), (exact,) = run_proto(ir.to_proto(load(branched)), feeds), run_proto(ir.to_proto(design()), feeds)
    assert relative_error(y, wanted) < 0.02
    assert relative_error(y, exact) < 0.05


@needs_two_cores
def test_no_types_of_branches_are_faster(branched: Path) -> None:
    """All types of the layers with weights, with the best choices of the others, in simulated time."""
    space = space_of(load(branched), TWO_CPUS, UNLIKE)
    weighted = [number for number, unit in enumerate(space.graph.units) if unit.layer.macs and unit.layer.is_int8]
    assert len(weighted) == 4
    by_type = {dtype: allowed_in(space, dtype) for dtype in (FLOAT32, INT8)}
    found = {}
    for types in itertools.product(by_type, repeat=len(weighted)):
        masks = [np.ones(len(options), bool) for options in space.choices]
        for number, dtype in zip(weighted, types, strict=True):
            masks[number] = by_type[dtype][number]
        answer = default_selector().select(only(space.problem, masks))
        found[types] = simulate(plan_of(space, answer).plan, UNLIKE).total * 1e-9
    assert len(set(found.values())) == len(found), "all types differ"
    best = simulated_seconds(space, UNLIKE)
    assert best == pytest.approx(min(found.values()))
    assert shared_out(space, UNLIKE).type_seconds[MIXED] <= best * (1 + 1e-6)
