"""Preparation of processors: what is needed later is in the cache, and nothing in the way of the caller's work."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from nnstretch.compiler.preparation import Preparation
from nnstretch.compiler.preparation_worker import compile_programs, prepare, working_devices
from nnstretch.devices.engine.build.engine_library import build_engine, engine_is_built
from nnstretch.errors import ModelError
from nnstretch.graph.layers import layers
from nnstretch.passes import optimize


def network(channels: int = 32) -> ir.Model:
    weight = np.random.default_rng(0).standard_normal((channels, channels, 3, 3)).astype(np.float32)
    shape = (1, channels, 12, 12)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], [numpy_helper.from_array(weight, "w")])
    return ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10))


def command(processors: str) -> tuple[str, ...]:
    """Of a process that prepares processors, which compute nothing by OpenCL."""
    program = f"from nnstretch.compiler.preparation_worker import prepare; prepare({processors!r}, None)"
    return sys.executable, "-c", program


def wait(prepared: Preparation) -> None:
    end = time.monotonic() + 120
    while not prepared.ended:
        assert time.monotonic() < end
        time.sleep(0.05)


def test_the_engine_is_built_in_the_background() -> None:
    with Preparation(command("cpu:0")) as prepared:
        process = prepared._process
        wait(prepared)
        assert process is not None
        assert process.status == 0
    prepared.close()
    assert build_engine().exists()
    assert engine_is_built()
    with Preparation(("true",)) as prepared:
        assert not prepared.builds


def test_failures_are_left_to_those_who_use_the_processors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NNSTRETCH_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("NNSTRETCH_CC", "/nowhere/cc")
    with Preparation(command("cpu:0")) as prepared:
        assert not prepared.builds
        wait(prepared)
    with Preparation(("/nowhere/python",)) as prepared:
        assert prepared.ended


def test_a_preparation_that_is_left_ends_at_once() -> None:
    begin = time.monotonic()
    with Preparation(("sh", "-c", "sleep 60")) as prepared:
        process = prepared._process
    assert process is not None
    assert process.ended
    assert time.monotonic() - begin < 30


@pytest.mark.opencl
def test_programs_of_a_network_serve_one_of_other_widths() -> None:
    from nnstretch.devices.opencl.queues import installed_runtime

    core = max(os.sched_getaffinity(0))
    (device,) = working_devices(f"opencl:0@{core}")
    assert compile_programs(network(64), device) > 2
    compiled = installed_runtime(device.spec).programs._programs.keys()
    layer = next(node.layer for node in layers(optimize(network(128))) if node.layer.op == "Conv")
    needed = {
        (call.launch.source, tuple(call.launch.defines))
        for routine in device.routines
        if routine.supports(layer)
        for call in routine.lower(layer, routine.parameter_space(layer)[0]).calls
        if call.launch is not None
    }
    assert len(needed) > 1
    assert needed <= compiled


def test_processors_without_opencl_have_no_devices_to_test() -> None:
    assert working_devices("cpu:0") == []


@pytest.mark.opencl
def test_a_network_that_cannot_be_made_is_left_to_those_who_use_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> ir.Model:
        raise ModelError("it cannot be exported")

    monkeypatch.setattr(os, "nice", lambda _: 0)
    monkeypatch.setattr("nnstretch.compiler.preparation_worker._AUTOGROUP", Path("/nowhere/autogroup"))
    prepare(f"opencl:0@{max(os.sched_getaffinity(0))}", fail)


def test_an_engine_that_is_not_in_the_cache_is_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NNSTRETCH_CACHE_DIR", str(tmp_path))
    with Preparation(("sh", "-c", "sleep 60")) as prepared:
        assert prepared.builds
        assert not prepared.ended
