"""Fusion groups: which ones are found, and their layers."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx import numpy_helper, parser

from nnstretch.graph.layer import FUSION_GROUP
from nnstretch.graph.reference import relative_error, run_layer, run_proto
from nnstretch.passes import optimize
from nnstretch.scheduler.lowering.choices import FusionGroup, find_fusion_groups
from nnstretch.scheduler.lowering.units import UnitGraph, unit_graph

RESIDUAL = """
<ir_version: 10, opset_import: ["" : 20]>
net (float[1,8,12,12] x) => (float[1,8,6,6] y OUTPUTS)
<float[8,8,3,3] a, float[8,8,3,3] b, float[8,8,3,3] c, float[8,8,3,3] d> {
    t = Conv <pads = [1, 1, 1, 1]> (x, a)
    u = Relu (t)
    v = Conv <pads = [1, 1, 1, 1]> (u, b)
    w = Add (v, u)
    p = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (w, c)
    q = Relu (p)
    y = Conv <pads = [1, 1, 1, 1]> (q, d)
    OUTPUTS
}
"""


def network(more: str = "", outputs: str = "") -> ir.Model:
    text = RESIDUAL.replace("y OUTPUTS", f"y {outputs}").replace("OUTPUTS", more)
    model = parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name in "abcd":
        weight = rng.standard_normal((8, 8, 3, 3)).astype(np.float32) / 8
        model.graph.initializer.append(numpy_helper.from_array(weight, name))
    return ir.from_proto(model)


def units(model: ir.Model) -> UnitGraph:
    return unit_graph(optimize(model), lambda layer: not layer.op.startswith("onnx:"))


def found(model: ir.Model) -> list[tuple[int, ...]]:
    return [run.units for run in find_fusion_groups(units(model))]


def test_pairs_blocks_segments_and_everything() -> None:
    # The units are conv a, conv b with the residual, conv c, conv d. Conv b reads conv a twice, so that is no pair.
    # Units 0 and 1 are a block and a segment, units 2 and 3 each a block.
    assert sorted(found(network())) == [(0, 1), (0, 1, 2, 3), (1, 2), (2, 3)]


def test_a_sum_is_a_pair_with_either_of_its_addends() -> None:
    model = network()
    (add,) = [node for node in model.graph if node.op_type == "Add"]
    relu, conv = add.inputs[1], add.inputs[0]
    assert relu is not None and conv is not None
    made = [ir.node(op, [source], name=op) for op, source in (("Sigmoid", conv), ("Tanh", relu))]
    model.graph.insert_before(add, made)
    for index, node in enumerate(made):
        add.replace_input_with(index, node.outputs[0])
        node.outputs[0].shape, node.outputs[0].type = relu.shape, relu.type
    graph = units(model)
    number = next(number for number, unit in enumerate(graph.units) if unit.layer.op == "Add")
    pairs = {run.units for run in find_fusion_groups(graph) if len(run.units) == 2}
    assert {(number - 2, number), (number - 1, number)} <= pairs


GATE = """
<ir_version: 10, opset_import: ["" : 20]>
net (float[1,8,6,6] x) => (float[1,8,6,6] y)
<float step = {0.05}, float part = {0.004}, int8 zero = {3}, int8 none = {-128}, float one = {1}> {
    a = QuantizeLinear (x, step, zero)
    b = DequantizeLinear (a, step, zero)
    c = Elu (b)
    d = QuantizeLinear (c, step, zero)
    e = DequantizeLinear (d, step, zero)
    f = Sigmoid (e)
    g = QuantizeLinear (f, part, none)
    h = DequantizeLinear (g, part, none)
    i = Mul (e, h)
    j = QuantizeLinear (i, step, zero)
    y = DequantizeLinear (j, step, zero)
}
"""


def test_what_makes_a_rounded_tensor_of_another() -> None:
    """Between Quantize and Dequantize: all that depends on the first integer, and that with its producer."""
    graph = units(ir.from_proto(parser.parse_model(GATE)))
    assert [unit.layer.op for unit in graph.units[:4]] == ["Quantize", "Activation", "Activation", "Mul"]
    assert {(1, 2, 3), (0, 1, 2, 3)} <= {run.units for run in find_fusion_groups(graph)}


def test_what_the_caller_wants_is_not_inside_a_run() -> None:
    runs = found(network("z = Sigmoid (q)", ", float[1,8,6,6] z"))
    assert (0, 1) in runs
    assert (0, 1, 2) in runs
    assert all(2 not in run[:-1] for run in runs)


def test_what_only_the_fallback_computes_may_lie_in_a_run() -> None:
    model = network()
    (relu,) = [node for node in model.graph if node.op_type == "Relu" and node.outputs[0].name == "q"]
    relu.op_type = "Sinh"
    graph = units(model)
    assert any(unit.is_fallback for unit in graph.units)
    whole = max(find_fusion_groups(graph), key=lambda run: len(run.units))
    assert len(whole.units) == len(graph.units)
    x = np.random.default_rng(1).standard_normal((1, 8, 12, 12)).astype(np.float32)
    (result,) = run_layer(whole.layer, x)
    (expected,) = run_proto(ir.to_proto(model), {"x": x})
    assert relative_error(result, expected) < 1e-6


def test_a_run_computes_what_its_units_compute() -> None:
    model = network()
    (whole,) = [run for run in find_fusion_groups(units(model)) if len(run.units) == 4]
    x = np.random.default_rng(1).standard_normal((1, 8, 12, 12)).astype(np.float32)
    assert (whole.layer.op, whole.reads) == (FUSION_GROUP, ("x",))
    (result,) = run_layer(whole.layer, x)
    (expected,) = run_proto(ir.to_proto(model), {"x": x})
    assert relative_error(result, expected) < 1e-6


def test_wiring_is_part_of_the_workload() -> None:
    def run_of(model: ir.Model) -> FusionGroup:
        return next(run for run in find_fusion_groups(units(model)) if run.units == (0, 1))

    text = network()
    other = network()
    (add,) = [node for node in other.graph if node.op_type == "Add"]
    add.replace_input_with(1, other.graph.inputs[0])
    assert run_of(text).layer.workload != run_of(other).layer.workload
