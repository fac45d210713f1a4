"""Quantised networks as layers on int8: that they compute what ONNX Runtime does, and what is not one stays runnable."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper, parser

from nnstretch.compiler.compile import compile_model
from nnstretch.compiler.processors import build_processors
from nnstretch.devices.base.spec import usable_cores
from nnstretch.graph.dtypes import QuantizationParameters
from nnstretch.graph.expand import expand
from nnstretch.graph.layer import Layer
from nnstretch.graph.layers import layers
from nnstretch.graph.reference import relative_error, run_proto
from nnstretch.passes import optimize
from nnstretch.quantization import quantize
from nnstretch.scheduler.lowering.units import fallback_model, unit_graph
from tests.kits.graphs.fused_graphs import run_layers
from tests.kits.graphs.quantized_networks import QuantizedNetwork

STEPS = 255


def same_layer(one: Layer, other: Layer) -> bool:
    quantizations = [
        [t.quantization for t in (*layer.inputs, *layer.outputs) if t is not None] for layer in (one, other)
    ]
    values = all(np.array_equal(value, other.constants[index]) for index, value in one.constants.items())
    return one.workload == other.workload and quantizations[0] == quantizations[1] and values


@given(st.integers(0, 10**6))
def test_random_networks(seed: int) -> None:
    """Every layer becomes int8; the whole computes the same, and each, written in ONNX and read again, is the same."""
    network = QuantizedNetwork(seed)
    fused, feeds = optimize(network.graph()), {"x": network.input}
    found = run_layers(fused, feeds)
    # A bias in float32 is rounded to multiples of its scale, which changes a result now and then, and what is made of that.
    for y, wanted in zip(found, run_proto(network.model, feeds), strict=True):
        assert relative_error(y, wanted) < 1e-5 or not network.exact
    for node in layers(fused):
        assert node.layer.is_int8, node.layer.name
        (again,) = layers(optimize(ir.from_proto(expand(node.layer))))
        assert same_layer(node.layer, again.layer)


def parsed(text: str, weights: Mapping[str, np.ndarray], opset: int = 21) -> ir.Model:
    proto = parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]>\n{text}')
    for name, array in weights.items():
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    return ir.from_proto(proto)


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


NETWORK = """quantized (float[1,4,6,6] x) => (float[1,4,6,6] y) {
    a = QuantizeLinear(x, sx, zx)  b = DequantizeLinear(a, sx, zx)
    w = DequantizeLinear<axis=0>(qw, sw, zw)  c = DequantizeLinear<axis=0>(qc, sc)
    d = Conv<pads=[1,1,1,1]>(b, w, c)  e = QuantizeLinear(d, se, ze)  f = DequantizeLinear(e, se, ze)
    g = Add(f, b)  h = Relu(g)  i = QuantizeLinear(h, si, zi)  y = DequantizeLinear(i, si, zi)
}"""
VALUES: dict[str, Any] = {
    "sx": np.float32(0.02),
    "zx": np.int8(3),
    "qw": np.random.default_rng(2).integers(-127, 128, (4, 4, 3, 3), np.int8),
    "sw": np.array([0.001, 0.002, 0.003, 0.004], np.float32),
    "zw": np.zeros(4, np.int8),
    "qc": np.array([100, -2000, 30, 4], np.int32),
    "sc": np.float32(0.02) * np.array([0.001, 0.002, 0.003, 0.004], np.float32),
    "se": np.float32(0.03),
    "ze": np.int8(-10),
    "si": np.float32(0.03),
    "zi": np.int8(-100),
}


def variant(text: str = NETWORK, **values: Any) -> ir.Model:
    return parsed(text, {name: np.asarray(value) for name, value in (VALUES | values).items()})


def test_what_a_layer_knows() -> None:
    quantize, conv, add, _ = (node.layer for node in layers(optimize(variant())))
    assert [t.quantization for t in (*quantize.inputs, *quantize.outputs) if t] == [
        None,
        QuantizationParameters(float(np.float32(0.02)), 3),
    ]
    assert conv.op == "Conv"
    assert conv.outputs[0].quantization == QuantizationParameters(float(np.float32(0.03)), -10)
    assert [str(conv.type_of(i)) for i in (0, 1, 2, 4)] == ["int8[1,4,6,6]", "int8[4,4,3,3]", "int32[4]", "float32[4]"]
    assert np.array_equal(conv.constants[2], VALUES["qc"])
    assert np.array_equal(conv.constants[4], VALUES["sw"])
    assert str(add.activation) == "relu", "there are integers for numbers below 0"
    grown = [node.layer for node in layers(optimize(variant(zi=np.int8(-128))))]
    assert str(grown[2].activation) == "none", "no integer stands for a number below 0"
    scaled = [node.layer for node in layers(optimize(variant(sx=np.float32(0.04), zx=np.int8(-5))))]
    assert scaled[1].workload == conv.workload, "layers that differ in quantization alone cost the same"


# A text, values and what the convolution is: 0 for one in float32, 1 for int8, 2 for int8 with a result in float32.
FOREIGN: dict[str, tuple[str, dict[str, Any], int]] = {
    "one scale per channel of an image": (
        NETWORK,
        {"sx": np.full(4, 0.02, np.float32), "zx": np.arange(4, dtype=np.int8)},
        0,
    ),
    "weights with a zero point": (NETWORK, {"zw": np.array([0, 1, 0, 0], np.int8)}, 0),
    "weights with scales per column": (
        NETWORK.replace("axis=0>(qw", "axis=3>(qw"),
        {"sw": VALUES["sw"][:3], "zw": np.zeros(3, np.int8)},
        0,
    ),
    "a scale of 0": (NETWORK, {"se": np.float32(0)}, 2),
    "a scale that is none": (NETWORK, {"se": np.float32("nan")}, 2),
    "a result that is not quantised": (NETWORK.partition("e = Quant")[0].replace("d = Conv", "y = Conv") + "}", {}, 2),
    "a clipped result that is not quantised": (
        NETWORK.partition("e = Quant")[0] + "y = Relu(d) }",
        {},
        2,
    ),
    "a result that is read unrounded, too": (NETWORK.replace("g = Add(f, b)", "g = Add(f, d)"), {}, 2),
    "a residual that is not quantised": (NETWORK.partition("e = Quant")[0] + "y = Add(d, x) }", {}, 0),
    "images of int16": (NETWORK, {"zx": np.int16(3), "ze": np.int16(-10), "zi": np.int16(0)}, 0),
    "weights of int4": (NETWORK, {"qw": VALUES["qw"].clip(-8, 7), "zw": np.zeros(4, np.int8)}, 0),
    "a bias that int32 does not hold": (
        NETWORK.replace("c = DequantizeLinear<axis=0>(qc, sc)", ""),
        {"c": np.array([1e6, 0, 0, 0], np.float32)},
        0,
    ),
    "a bias of float32": (NETWORK.replace("c = DequantizeLinear<axis=0>(qc, sc)", ""), {"c": normal(4)}, 1),
    "a bias in other steps": (NETWORK, {"sc": np.float32(0.5) * VALUES["sc"]}, 1),
    "no bias": (NETWORK.replace("c = DequantizeLinear<axis=0>(qc, sc)", "").replace("w, c)", "w)"), {}, 1),
    "weights of uint8": (
        NETWORK,
        {"qw": (VALUES["qw"].astype(np.int16) + 128).astype(np.uint8), "zw": np.full(4, 128, np.uint8)},
        1,
    ),
    "weights that are rounded in the file": (
        NETWORK.replace("w = ", "qw = QuantizeLinear<axis=0>(fw, sw, zw) w = "),
        {"fw": normal(4, 4, 3, 3) / 9, "qw": None},
        1,
    ),
    "no zero points": (NETWORK.replace(", zx)", ")").replace(", ze)", ")").replace(", zi)", ")"), {}, 1),
    "images of uint8": (NETWORK, {"zx": np.uint8(131), "ze": np.uint8(100), "zi": np.uint8(0)}, 1),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_what_fits_and_what_does_not(name: str) -> None:
    """Either way the network is computed as it says."""
    text, values, fits = FOREIGN[name]
    merged = {k: np.asarray(v) for k, v in (VALUES | values).items() if v is not None}
    if name == "weights of int4":
        import ml_dtypes

        merged |= {k: merged[k].astype(ml_dtypes.int4) for k in ("qw", "zw")}
    model = parsed(text, merged)
    fused = optimize(model)
    convolutions = [node.layer for node in layers(fused) if node.layer.op.endswith("Conv")]
    assert [layer.is_int8 for layer in convolutions] == [bool(fits)]
    feeds = {"x": normal(1, 4, 6, 6)}
    (wanted,) = run_proto(ir.to_proto(model), feeds)
    with compile_model(model, build_processors(f"cpu:{usable_cores()[0]}"), tune=False) as session:
        assert all(":int8/" in step.routine or step.op == "Reorder" for step in session.plan.steps) or fits != 1
        for (y,) in (run_layers(fused, feeds), session.run(None, feeds)):
            assert relative_error(y, wanted) < 1e-5 + 2 / STEPS * (fits == 1 or "too" in name)


INTEGERS = """integers (uint8[1,4,6,6] x, int8[1,4,6,6] z) => (uint8[1,4,6,6] y, int8[1,8,6,6] v) {
    b = DequantizeLinear(x, sx, zx)  w = DequantizeLinear<axis=0>(qw, sw, zw)  d = Conv<pads=[1,1,1,1]>(b, w)
    y = QuantizeLinear(d, se, ze)  u = DequantizeLinear(z, si, zi)  f = DequantizeLinear(y, se, ze)
    g = Concat<axis=1>(u, f)  v = QuantizeLinear(g, si, zi)
}"""


def test_callers_integers() -> None:
    """The layers between inputs and outputs of uint8 and int8 are int8; nothing changes for the caller."""
    model = variant(INTEGERS, zx=np.uint8(128), ze=np.uint8(100))
    del model.graph.initializers["qc"], model.graph.initializers["sc"]
    fused = optimize(model)
    counts = Counter(node.layer.op for node in layers(fused) if node.layer.is_int8)
    assert counts["Conv"] == counts["Concat"] == 1
    rng = np.random.default_rng(3)
    feeds = {"x": rng.integers(0, 256, (1, 4, 6, 6), np.uint8), "z": rng.integers(-128, 128, (1, 4, 6, 6), np.int8)}
    expected = run_proto(ir.to_proto(model), feeds)
    for y, wanted in zip(run_layers(fused, feeds), expected, strict=True):
        assert np.array_equal(y, wanted)
    with compile_model(model, build_processors(f"cpu:{usable_cores()[0]}"), tune=False) as session:
        assert not session.plan.fallback_layers
        for y, wanted in zip(session.run(None, feeds), expected, strict=True):
            assert y.dtype == wanted.dtype
            assert np.abs(y.astype(int) - wanted.astype(int)).max() <= 1  # a sum may be rounded the other way


@pytest.mark.parametrize("zero", [0, 100, 128, 255])
@pytest.mark.parametrize("scale", [1 / 255, 0.02, 0.1, 1.0, 3.7e4, 1e-6])
def test_every_byte_comes_and_goes_exactly(zero: int, scale: float) -> None:
    """Numbers in bytes that are dequantised, moved, and quantised again by the same parameters."""
    model = parsed(
        """bytes (uint8[1,256] x) => (uint8[256,1] y, float[1,256] f) {
            f = DequantizeLinear(x, s, z)  t = Transpose(f)  y = QuantizeLinear(t, s, z)
        }""",
        {"s": np.array(scale, np.float32), "z": np.array(zero, np.uint8)},
    )
    feeds = {"x": np.arange(256, dtype=np.uint8)[None]}
    with compile_model(model, build_processors(f"cpu:{usable_cores()[0]}"), tune=False) as session:
        assert not session.plan.fallback_layers
        found, floats = session.run(None, feeds)
    assert np.array_equal(found, feeds["x"].T)
    np.testing.assert_allclose(floats, run_proto(ir.to_proto(model), feeds)[1], rtol=0, atol=1e-4 * scale)


def test_a_matrix_that_exporters_turn() -> None:
    """Dense layers whose matrix lies the other way, or is turned after its DequantizeLinear."""
    text = """dense (float[2,4] x) => (float[2,3] y) {
        a = QuantizeLinear(x, sx, zx)  b = DequantizeLinear(a, sx, zx)  w = DequantizeLinear<axis=AXIS>(qm, sm)
        d = PRODUCT  e = QuantizeLinear(d, se, ze)  y = DequantizeLinear(e, se, ze)
    }"""
    matrix = np.random.default_rng(4).integers(-127, 128, (3, 4), np.int8)
    for product, turned in (
        ("Gemm<transB=1>(b, w)", 0),
        ("Gemm(b, w)", 1),
        ("MatMul(b, w)", 1),
        ("t = Transpose(w) d = MatMul(b, t)", 0),
    ):
        written = text.replace("d = PRODUCT" if "d =" in product else "PRODUCT", product).replace("AXIS", str(turned))
        values = {"qm": matrix.T.copy() if turned else matrix, "sm": np.array([1e-3, 2e-3, 3e-3], np.float32)}
        model = parsed(written, {k: np.asarray(v) for k, v in VALUES.items() if k in ("sx", "zx", "se", "ze")} | values)
        dense = next(node.layer for node in layers(optimize(model)) if node.layer.op == "Dense")
        assert np.array_equal(dense.constants[1], matrix)
        assert np.array_equal(dense.constants[4], values["sm"])


def test_integers_of_other_parameters_are_requantised() -> None:
    text = """requantised (float[1,4,6,6] x) => (float[1,4,6,6] y) {
        a = QuantizeLinear(x, s, z)  b = DequantizeLinear(a, s, z)
        c = QuantizeLinear(b, t, u)  y = DequantizeLinear(c, t, u)
    }"""
    scales = {"s": np.float32(0.05), "z": np.int8(3), "t": np.float32(0.11), "u": np.int8(-7)}
    model = parsed(text, {name: np.asarray(value) for name, value in scales.items()})
    feeds = {"x": normal(1, 4, 6, 6)}
    (found,), (wanted,) = run_layers(optimize(model), feeds), run_proto(ir.to_proto(model), feeds)
    np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_native_routines_take_int8_by_name() -> None:
    """No routine for float32 takes a layer of int8 for one of its own."""
    native = build_processors("cpu").host.routines
    for node in layers(optimize(QuantizedNetwork(0).graph())):
        assert {r.descriptor.dtype for r in native if r.supports(node.layer)} == {"int8"}, node.layer.name


def test_quantised_behind_what_only_moves() -> None:
    """The convolution computes in int8 all the same."""
    text = """moved (float[1,4,6,6] x) => (float[1,36] y) {
        a = QuantizeLinear(x, sx, zx)  b = DequantizeLinear(a, sx, zx)  w = DequantizeLinear<axis=0>(qw, sw, zw)
        d = Conv<pads=[1,1,1,1]>(b, w)  m = MaxPool<kernel_shape=[2,2],strides=[2,2]>(d)  f = Flatten(m)
        e = QuantizeLinear(f, se, ze)  y = DequantizeLinear(e, se, ze)
    }"""
    model = parsed(text, {name: np.asarray(VALUES[name]) for name in ("sx", "zx", "qw", "sw", "zw", "se", "ze")})
    fused = optimize(model)
    assert [n.layer.op for n in layers(fused)] == ["Quantize", "Conv", "MaxPool", "Reshape", "Dequantize"]
    feeds = {"x": normal(1, 4, 6, 6)}
    assert np.array_equal(run_layers(fused, feeds)[0], run_proto(ir.to_proto(model), feeds)[0])


def test_weights_of_the_fallback_stay_with_their_readers() -> None:
    """Else the first run of its layers would make them all, more than a step can write."""
    weights, layers_of_it, values, source = "", "", dict[str, Any](), "x"
    for i in range(6):
        values |= {f"q{i}": VALUES["qw"], f"s{i}": np.float32(0.001 * (i + 1))}
        weights += f"w{i} = DequantizeLinear(q{i}, s{i}) "
        layers_of_it += f"t{i} = ConvTranspose<pads=[1,1,1,1]>({source}, w{i})  y{i} = Relu(t{i}) "
        source = f"y{i}"
    text = f"deep (float[1,4,6,6] x) => (float[1,4,6,6] y5) {{ {weights} {layers_of_it} }}"
    model = parsed(text, {name: np.asarray(value) for name, value in values.items()})
    x = normal(1, 4, 6, 6)
    with compile_model(model, build_processors(f"cpu:{usable_cores()[0]}"), tune=False) as session:
        (y,) = session.run(None, {"x": x})
    assert relative_error(y, run_proto(ir.to_proto(model), {"x": x})[0]) < 1e-5


def test_the_fallback_reads_integers() -> None:
    """What an ONNX operator reads is int8, whatever layers on int8 are written in around it."""
    text = NETWORK.replace("y) {", "y, int32[1,4,6,6] k, int32[1,4,6,6] l) {").replace(
        "g = Add", "k = Cast<to=6>(e) l = Cast<to=6>(a) g = Add"
    )
    model, feeds = variant(text), {"x": normal(1, 4, 6, 6)}
    graph = unit_graph(optimize(model), lambda _: False)
    (unit,) = graph.units
    made = dict(zip(unit.outputs, run_proto(fallback_model(unit), feeds), strict=True))
    found = [made[name] for name in graph.outputs]
    for y, wanted in zip(found, run_proto(ir.to_proto(model), feeds), strict=True):
        assert relative_error(y, wanted) < 2 / STEPS


def test_vectors_of_weights_are_quantised_without_a_warning_each(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = """
        model (float[1, 8, 4, 4] x) => (float[1, 4, 4, 4] y)
        {
            scaled = BatchNormalization(x, scale, shift, mean, variance)
            active = Relu(scaled)
            y = Conv(active, weight)
        }
    """
    random = np.random.default_rng(0)
    shapes = {"scale": (8,), "shift": (8,), "mean": (8,), "variance": (8,), "weight": (4, 8, 1, 1)}
    weights = {name: random.uniform(0.5, 1, shape).astype(np.float32) for name, shape in shapes.items()}
    feeds = [{"x": random.standard_normal((1, 8, 4, 4)).astype(np.float32)} for _ in range(4)]
    root = logging.getLogger()
    filters = list(root.filters)
    counts = quantize(parsed(text, weights), feeds, tmp_path / "int8.onnx")
    assert counts.int8 >= 1
    assert [record.getMessage() for record in caplog.records] == []
    assert root.filters == filters
    root.warning("weights are out of range")
    assert len(caplog.records) == 1, "other warnings stay"
