"""Sections in bands of rows: they compute what the whole image gives, and are chosen where they pay."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import nnstretch as nns
from nnstretch.compiler.processors import build_processors
from nnstretch.compiler.saved_plan import plan_file
from nnstretch.errors import UsageError
from nnstretch.frontends.onnx_file import load
from nnstretch.graph.bands import Band, band_after, rows_of, shares_of_rows
from nnstretch.graph.layer import Attribute, Layer, TensorType
from nnstretch.graph.metadata import PLACEMENT_KEY
from nnstretch.graph.reference import relative_error, run_layer, run_proto
from nnstretch.passes import optimize
from nnstretch.quantization.pipeline import quantize
from nnstretch.report.tables.runs import placement_text
from nnstretch.scheduler.lowering.candidates import is_native
from nnstretch.scheduler.lowering.units import UnitGraph, unit_graph
from nnstretch.scheduler.placement.band_choice import LayerSeconds, promising
from nnstretch.scheduler.placement.bands import BandedSection, Section, banded_graph, bands_of, sections
from nnstretch.scheduler.placement.joint import completed, placed
from nnstretch.scheduler.plan.schema import queue_pool
from nnstretch.scheduler.planner import ChoiceSpace, choice_space, plan_of
from nnstretch.scheduler.runtime.session import PlanSession
from nnstretch.scheduler.selection import default_selector
from nnstretch.scheduler.simulation.timing import NoInterference
from tests.kits.hypothesis_examples import examples
from tests.kits.made_up_costs import Work

CORES = sorted(os.sched_getaffinity(0))
TWO_CPUS = f"cpu:{CORES[0]},cpu:{CORES[-1]}"
CPU_AND_OPENCL = f"cpu:{CORES[0]},opencl:0@{CORES[-1]}"
BOTH = pytest.mark.parametrize(
    "processors", [TWO_CPUS, pytest.param(CPU_AND_OPENCL, marks=pytest.mark.opencl)], ids=["two cpus", "opencl"]
)
needs_two_cores = pytest.mark.skipif(len(CORES) < 2, reason="two processors need two cores")

KINDS = ("conv", "conv", "depthwise", "pool", "average", "relu", "scale", "resize", "depth", "slice", "concat", "add")


class Builder:
    """An ONNX model of layers that look at few neighbours, in a chain with branches and shortcuts."""

    def __init__(self, seed: int, channels: int, size: tuple[int, int]) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.input = (1, channels, *size)
        self.last, self.channels, self.earlier = "x", channels, list[str]()

    def node(self, operator: str, inputs: Sequence[str], **attributes: Any) -> str:
        name = f"{operator.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], name=name, **attributes))
        return name

    def constant(self, array: np.ndarray) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def filters(self, *shape: int) -> str:
        return self.constant((self.rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32))

    def convolution(self, source: str, outputs: int, groups: int = 1, *, same: bool = False) -> str:
        size, dilation = int(self.rng.choice([1, 3, 5])), 1 if same else int(self.rng.choice([1, 1, 2]))
        stride = 1 if same else int(self.rng.choice([1, 1, 2]))
        pad = size // 2 * dilation
        pads = [pad] * 4 if same or self.rng.random() < 0.6 else [int(p) for p in self.rng.integers(0, pad + 1, 4)]
        weight = self.filters(outputs, self.channels // groups, size, size)
        settings = {"strides": [stride] * 2, "dilations": [dilation] * 2, "pads": pads, "group": groups}
        return self.node("Conv", [source, weight, self.constant(np.ones(outputs, np.float32))], **settings)

    def pool(self, operator: str) -> str:
        size, stride = int(self.rng.choice([2, 3])), int(self.rng.choice([1, 2]))
        pads = [int(p) for p in self.rng.integers(0, 2, 4)]
        more = {"count_include_pad": int(self.rng.integers(2))} if operator == "AveragePool" else {}
        if operator == "MaxPool" and not any(pads):  # with pads, ONNX Runtime and ONNX count windows differently
            more = {"ceil_mode": 1}
        return self.node(operator, [self.last], kernel_shape=[size] * 2, strides=[stride] * 2, pads=pads, **more)

    def add(self, kind: str) -> None:
        """Appends a layer, or a few."""
        last, channels = self.last, self.channels
        if kind == "conv":
            self.channels = int(self.rng.choice([4, 16, 20]))
            weighted, self.channels = self.channels, channels
            self.last, self.channels = self.convolution(last, weighted), weighted
        elif kind == "depthwise":
            self.last = self.convolution(last, channels, channels)
        elif kind in ("pool", "average"):
            self.last = self.pool("MaxPool" if kind == "pool" else "AveragePool")
        elif kind == "relu":
            self.last = self.node("Relu", [last])
        elif kind == "scale":
            self.last = self.node("Mul", [last, self.filters(1, channels, 1, 1)])
        elif kind == "resize":
            mode = str(self.rng.choice(["nearest", "linear", "cubic"]))
            scales = self.constant(np.array([1, 1, *[int(self.rng.integers(1, 4))] * 2], np.float32))
            place = str(self.rng.choice(["half_pixel", "asymmetric"]))
            self.last = self.node("Resize", [last, "", scales], mode=mode, coordinate_transformation_mode=place)
        elif kind == "depth" and channels % 4 == 0:
            self.last, self.channels = self.node("DepthToSpace", [last], blocksize=2), channels // 4
        elif kind == "slice" and channels > 4:
            bounds = [self.constant(np.array([value], np.int64)) for value in (channels // 4, channels, 1)]
            self.last, self.channels = self.node("Slice", [last, *bounds]), channels - channels // 4
        elif kind == "concat":
            other = self.convolution(last, 8, same=True)
            self.last, self.channels = self.node("Concat", [last, other], axis=1), channels + 8
        elif kind == "add":
            self.last = self.node("Add", [self.convolution(last, channels, same=True), last])

    def model(self) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "local",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.input)],
            [helper.make_tensor_value_info(self.last, TensorProto.FLOAT, None)],
            self.weights,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
        return onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)


@st.composite
def local_networks(draw: st.DrawFn, least: int = 1, most: int = 6) -> onnx.ModelProto:
    """Networks of layers that look at few neighbours, for images with an odd or even number of rows."""
    size = draw(st.integers(20, 50)), draw(st.integers(16, 24))
    made = Builder(draw(st.integers(0, 2**16)), draw(st.sampled_from([3, 16])), size)
    for kind in draw(st.lists(st.sampled_from(KINDS), min_size=least, max_size=most)):
        made.add(kind)
    assume(made.nodes)
    try:
        model = made.model()
    except onnx.shape_inference.InferenceError:  # a window is larger than what is left of the image
        model = None
    assume(model is not None and min(_sides(model)) >= 4)  # below, ONNX infers sizes of windows that do not fit
    assert model is not None
    return model


def _sides(model: onnx.ModelProto) -> list[int]:
    tensors = (*model.graph.value_info, *model.graph.output)
    return [d.dim_value for tensor in tensors for d in tensor.type.tensor_type.shape.dim[2:]]


def graph_of(model: onnx.ModelProto, processors: str = TWO_CPUS) -> UnitGraph:
    opened = build_processors(processors)
    pool = queue_pool(opened.named, opened.host)
    return unit_graph(optimize(ir.from_proto(model)), is_native(pool))


def run_graph(graph: UnitGraph, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs, layer by layer with the reference."""
    values = dict(feeds)
    for unit in graph.units:
        values.update(zip(unit.outputs, run_layer(unit.layer, *(values[name] for name in unit.inputs)), strict=True))
    return [values[name] for name in graph.outputs]


def all_sections(graph: UnitGraph) -> list[Section]:
    return list(sections(graph, [True] * len(graph.units)))


def image_of(model: onnx.ModelProto) -> np.ndarray:
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


@settings(max_examples=examples(120), deadline=None)
@given(local_networks(), st.data())
def test_bands_are_rows_of_the_whole(model: onnx.ModelProto, data: st.DataObject) -> None:
    """Of any section, with any number of bands of any size."""
    graph = graph_of(model)
    found = all_sections(graph)
    assume(found)
    section = data.draw(st.sampled_from(found))
    rows = rows_of(graph.types[section.sink])
    cuts = sorted(data.draw(st.sets(st.integers(1, rows - 1), min_size=1, max_size=2)))
    shares = tuple(b - a for a, b in zip([0, *cuts], [*cuts, rows], strict=True))
    first, last = graph.units[section.first].name, graph.units[section.last].name
    made = banded_graph(graph, [BandedSection(first, last, tuple(range(len(shares))), shares)])
    assume(made is not None)
    assert made is not None
    assert len({unit.name for unit in made.units}) == len(made.units)
    assert len({name for unit in made.units for name in unit.outputs}) == len(made.units)
    feeds = {"x": image_of(model)}
    for a, b in zip(run_graph(made, feeds), run_graph(graph, feeds), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * max(1e-3, float(np.abs(b).max())))


def chain(size: int = 64, *, channels: int = 16, count: int = 4) -> onnx.ModelProto:
    """Convolutions with one vector of channels, a large image, and a global pool behind."""
    made = Builder(0, 3, (size, size))
    for _ in range(count):
        weight, made.channels = made.filters(channels, made.channels, 3, 3), channels
        made.last = made.node("Relu", [made.node("Conv", [made.last, weight], pads=[1] * 4)])
    made.last = made.node("GlobalAveragePool", [made.last])
    return made.model()


def test_all_layers_of_a_kind_can_be_in_bands() -> None:
    """So that the test above refuses little."""
    made = Builder(3, 16, (40, 8))
    for kind in KINDS:
        made.add(kind)
    graph = graph_of(made.model())
    whole = max(all_sections(graph), key=lambda section: len(section.units))
    rows = rows_of(graph.types[whole.sink])
    assert len(whole.units) == len(graph.units)
    assert bands_of(graph, whole, [rows - rows // 2, rows // 2]) is not None


def test_halos_are_as_small_as_can_be() -> None:
    graph = graph_of(chain())
    section = max(all_sections(graph), key=lambda r: len(r.units))
    upper, lower = bands_of(graph, section, [40, 24]) or ({}, {})
    assert (upper["x"].begin, upper["x"].end) == (0, 44)
    assert (lower["x"].begin, lower["x"].end) == (36, 64)
    assert upper[section.sink] == Band(0, 44, 0, 40)


@pytest.mark.parametrize(
    ("seconds", "wanted"),
    [
        ({0: 1.0, 1: 1.0}, {0: 20, 1: 20}),
        ({1: 1.0, 0: 3.0}, {0: 10, 1: 30}),
        ({0: 1.0, 1: 30.0}, None),
        ({0: 1.0}, None),
    ],
)
def test_shares_of_rows(seconds: dict[int, float], wanted: dict[int, int] | None) -> None:
    assert shares_of_rows(40, seconds) == wanted


def test_what_looks_at_all_rows_is_in_no_band() -> None:
    graph = graph_of(chain())
    names = [unit.name for unit in graph.units]
    assert banded_graph(graph, [BandedSection(names[0], names[-1], (0, 1), (1, 0))]) is None
    assert banded_graph(graph, [BandedSection(names[0], "unknown", (0, 1), (32, 32))]) is None
    assert banded_graph(graph, [BandedSection(names[0], names[1], (0, 1), (32, 31))]) is None


@pytest.mark.parametrize(("scale", "is_local"), [(2.0, True), (2.005, False)])
def test_enlargements_whose_scale_is_not_that_of_their_sizes(scale: float, is_local: bool) -> None:
    """Rows of a band would lie elsewhere than those of the image."""
    sizes = TensorType((1, 8, 100, 100)), TensorType((1, 8, 200, 200))
    attributes: dict[str, Attribute] = {
        "mode": "linear",
        "coordinates": "half_pixel",
        "nearest": "floor",
        "scales": (scale, scale),
    }
    layer = Layer("r", "Resize", sizes[:1], sizes[1:], attributes)
    assert (band_after(layer, [Band(50, 100, 50, 100)]) is not None) == is_local


def test_what_a_convolution_adds_has_the_rows_that_it_makes() -> None:
    """A convolution without pads makes fewer rows than it reads."""
    image, made = TensorType((1, 16, 12, 12)), TensorType((1, 16, 10, 10))
    weight = TensorType((16, 16, 3, 3))
    attributes: dict[str, Attribute] = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "group": 1}
    constants = {1: np.zeros(weight.shape, np.float32)}
    layer = Layer("c", "Conv", (image, weight, None, made), (made,), attributes, constants=constants)
    read = Band(2, 8, 2, 8)
    assert band_after(layer, [read, read]) is None
    assert band_after(layer, [read, Band(2, 6, 2, 6)]) == Band(2, 6, 2, 6)
    assert band_after(layer, [read, Band(2, 6, 3, 6)]) == Band(2, 6, 3, 6)


# -- plans ---------------------------------------------------------------------------------------------------------


def space_of(model: onnx.ModelProto, processors: str) -> ChoiceSpace:
    found = build_processors(processors)
    return choice_space(optimize(ir.from_proto(model)), found.named, found.host, Work())


def check(space: ChoiceSpace, model: onnx.ModelProto) -> None:
    """Runs give ONNX Runtime's answer, each time the same; the plan counts the network's MACs, and apart those of halos."""
    feeds = {"x": image_of(model)}
    (expected,) = run_proto(model, feeds)
    with PlanSession(plan_of(space, default_selector().select(space.problem))) as session:
        assert session.plan.macs == sum(unit.layer.macs for unit in graph_of(model).units)
        assert 0 < session.plan.repeated_macs < session.plan.macs / 2
        assert space.placement is None or "computed twice" in placement_text(space.placement, session.plan)
        (first,) = session.run(None, feeds)
        assert relative_error(first, expected) < 1e-4
        for _ in range(20):
            assert session.run(None, feeds)[0].tobytes() == first.tobytes()


@needs_two_cores
@BOTH
def test_layers_of_one_vector_are_shared_out_in_bands(processors: str) -> None:
    """Channels cannot be split, and each layer waits for the one before."""
    model = chain()
    space = placed(space_of(model, processors), NoInterference())
    report = space.placement
    assert report is not None and report.pays and not report.splits
    ((section, rows),) = report.bands.items()
    assert section.startswith("conv0") and sum(rows.values()) == 64 and set(rows) == {*processors.split(",")}
    assert report.together < 0.6 * report.alone[report.fastest]
    check(space, model)


@needs_two_cores
def test_an_int8_network_in_bands_is_computed_right(tmp_path: Path) -> None:
    """Rounding apart, the result is that of the network before it was quantised."""
    model = chain()
    feeds = {"x": image_of(model)}
    quantize(ir.from_proto(model), [feeds], tmp_path / "int8.onnx")
    found = build_processors(TWO_CPUS)
    whole = choice_space(optimize(load(tmp_path / "int8.onnx")), found.named, found.host, Work())
    space = placed(whole, NoInterference())
    assert space.bands
    outputs = []
    for one in (whole, space):
        with PlanSession(plan_of(one, default_selector().select(one.problem))) as session:
            outputs += session.run(None, feeds)
    (expected,) = run_proto(model, feeds)
    assert relative_error(outputs[1], expected) < 0.05
    assert relative_error(outputs[1], outputs[0]) < 0.02


class Contended(NoInterference):
    """Two processors take half as long again as each alone."""

    def contention_factor(self, queue: int, others: frozenset[int], /) -> float:
        return 1.5 if others else 1.0


@needs_two_cores
def test_bands_promise_less_where_processors_slow_each_other_down() -> None:
    graph = space_of(chain(), TWO_CPUS).graph
    alone = np.ones((len(graph.units), 2))
    taken = []
    for interference in (NoInterference(), Contended()):
        (one,) = promising(graph, LayerSeconds(alone, alone[:, 0], interference))
        taken.append((one.section, len(one.section.units) - one.gain))
    assert taken[0][0] == taken[1][0]
    assert taken[1][1] == pytest.approx(1.5 * taken[0][1])


@needs_two_cores
def test_layers_of_many_channels_are_split_instead() -> None:
    """Nothing is computed twice then, as meetings are free."""
    report = placed(space_of(chain(16, channels=64), TWO_CPUS), NoInterference()).placement
    assert report is not None and report.splits and not report.bands


class DearMeetings(NoInterference):
    """A meeting takes half as long as a share of a layer."""

    def transfer_seconds(self, queue: int, others: frozenset[int], size: int, /) -> float:
        return 1e-2


@needs_two_cores
def test_dear_meetings_are_saved_by_bands() -> None:
    model = chain(32, channels=64)
    report = placed(space_of(model, TWO_CPUS), DearMeetings()).placement
    assert report is not None and report.bands and not report.splits


@needs_two_cores
@BOTH
def test_segments_of_a_design_without_branches_are_computed_in_bands(processors: str) -> None:
    """Layers of its branches stay where they are."""
    made = Builder(0, 3, (64, 64))
    for _ in range(3):
        weight, made.channels = made.filters(16, made.channels, 3, 3), 16
        made.last = made.node("Conv", [made.last, weight], pads=[1] * 4)
    ends = [made.node("Conv", [made.last, made.filters(16, 16, 3, 3)], pads=[1] * 4) for _ in range(2)]
    made.last = made.node("Concat", ends, axis=1)
    model = made.model()
    names = [f"segments.0.branches.0.{n}" for n in range(3)] + [f"segments.1.branches.{b}.0" for b in range(2)]
    for node, name, processor in zip(model.graph.node, names, (0, 0, 0, 0, 1), strict=False):
        node.name = name
        entry = node.metadata_props.add()
        entry.key, entry.value = PLACEMENT_KEY, str(processor)
    space = completed(space_of(model, processors), NoInterference())
    (one,) = space.bands
    assert (one.first, one.last, sum(one.rows)) == (names[0], names[2], 64)
    placements = {unit.name: unit.placement for unit in space.graph.units}
    assert [placements[name] for name in names[3:]] == [0, 1]
    check(space, model)


@needs_two_cores
def test_saved_plans_with_bands_are_made_again(tmp_path: Path) -> None:
    model, processors = chain(), build_processors(TWO_CPUS)
    space = placed(space_of(model, TWO_CPUS), NoInterference())
    selection = default_selector().select(space.problem)
    made = plan_of(space, selection)
    text = plan_file(made.plan, space, selection, processors)
    (tmp_path / "plan.json").write_text(text)
    feeds = {"x": image_of(model)}
    with PlanSession(made) as session:
        (wanted,) = session.run(None, feeds)
    with nns.compile(ir.from_proto(model), plan=tmp_path / "plan.json") as session:
        assert (session.plan.macs, session.plan.repeated_macs) == (made.plan.macs, made.plan.repeated_macs)
        assert session.run(None, feeds)[0].tobytes() == wanted.tobytes()
    for damage in ({"rows": [40, 40]}, {"processors": [0, 5]}, {"last": "unknown"}):
        answer = json.loads(text)
        answer["selection"]["bands"][0].update(damage)
        (tmp_path / "plan.json").write_text(json.dumps(answer))
        with pytest.raises(UsageError, match="bands of rows"):
            nns.compile(ir.from_proto(model), plan=tmp_path / "plan.json")
