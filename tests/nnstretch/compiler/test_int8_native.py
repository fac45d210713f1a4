"""Quantised networks run on the CPU engine alone, also from packages and as standalone models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from nnstretch.compiler.compile import compile_model
from nnstretch.compiler.processors import build_processors
from nnstretch.graph.layer import Layer
from nnstretch.graph.reference import relative_error, run_proto
from nnstretch.package.standalone import check_standalone
from nnstretch.passes import optimize
from nnstretch.scheduler.lowering.units import unit_graph
from nnstretch.scheduler.runtime.session import PlanSession
from tests.kits.graphs.quantized_networks import QuantizedNetwork
from tests.kits.hypothesis_examples import examples

LAYERS = 8
TOLERANCE = 3 * np.sqrt(LAYERS) / 255
"""A step per layer, as a random walk."""


@given(st.integers(0, 10**6))
@settings(max_examples=examples(6), deadline=None)
def test_random_networks_have_no_fallback_layers(seed: int) -> None:
    network = QuantizedNetwork(seed, LAYERS)
    wanted = run_proto(network.model, {"x": network.input})
    with compile_model(ir.from_proto(network.model), build_processors("cpu:0"), tune=False) as session:
        found = session.run(None, {"x": network.input})
        assert not session.plan.fallback_layers
        check_standalone(session.plan)
    for y, reference in zip(found, wanted, strict=True):
        assert relative_error(y, reference) < TOLERANCE


def test_a_tuned_network_runs_from_a_package(tmp_path: Path) -> None:
    network = QuantizedNetwork(7, 5)
    feeds, path = {"x": network.input}, tmp_path / "int8.nns"
    with compile_model(ir.from_proto(network.model), build_processors("cpu:0")) as session:
        assert not session.plan.fallback_layers
        found = session.run(None, feeds)
        session.save(path)
    for y, wanted in zip(found, run_proto(network.model, feeds), strict=True):
        assert relative_error(y, wanted) < TOLERANCE
    with PlanSession.load(path) as again:
        for y, before in zip(again.run(None, feeds), found, strict=True):
            np.testing.assert_array_equal(y, before)


def is_native(layer: Layer) -> bool:
    return layer.op not in ("Conv", "Dense")


def test_int8_layers_stay_with_the_fallback_layers_around_them() -> None:
    """What is computed natively between two convolutions of ONNX Runtime would cut its call in two."""
    found = unit_graph(optimize(QuantizedNetwork(7, 5).graph()), is_native)
    assert [unit.is_fallback for unit in found.units].count(True) == 1
    alone = unit_graph(optimize(QuantizedNetwork(7, 5).graph()), lambda _: True)
    assert not any(unit.is_fallback for unit in alone.units)


def _rounded(name: str, scale: Any, zero: Any) -> tuple[list[str], dict[str, Any]]:
    return [f"{name}_scale", f"{name}_zero"], {f"{name}_scale": scale, f"{name}_zero": zero}


@pytest.mark.parametrize("tune", [False, True])
def test_a_scale_per_channel_of_activations(tune: bool) -> None:
    """ONNX Runtime rounds what has one; the rest is native, and no number is lost."""
    generator = np.random.default_rng(0)
    values: dict[str, Any] = {"w": generator.standard_normal((8, 4, 3, 3)).astype(np.float32)}
    several, more = _rounded("several", np.linspace(0.01, 0.05, 4).astype(np.float32), np.zeros(4, np.int8))
    values |= more
    one, more = _rounded("one", np.float32(0.2), np.int8(-128))
    values |= more
    nodes = [
        helper.make_node("QuantizeLinear", ["x", *several], ["a"], axis=1),
        helper.make_node("DequantizeLinear", ["a", *several], ["b"], axis=1),
        helper.make_node("Conv", ["b", "w"], ["c"], pads=[1] * 4),
        helper.make_node("QuantizeLinear", ["c", *one], ["d"]),
        helper.make_node("DequantizeLinear", ["d", *one], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, 1, (1, size, 9, 7)) for name, size in (("x", 4), ("y", 8))]
    constants = [numpy_helper.from_array(np.asarray(value), name) for name, value in values.items()]
    graph = helper.make_graph(nodes, "per_channel", ends[:1], ends[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    feeds = {"x": generator.standard_normal((1, 4, 9, 7)).astype(np.float32)}
    with compile_model(ir.from_proto(model), build_processors("cpu:0"), tune=tune) as session:
        (y,) = session.run(None, feeds)
    (wanted,) = run_proto(model, feeds)
    assert np.abs(y - wanted).max() < 0.201
