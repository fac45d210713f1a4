"""Quantised networks on OpenCL queues: the integers of the CPU's plans, in sessions and from packages."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import nnstretch as nns
from nnstretch.compiler.compile import plan_model
from nnstretch.compiler.processors import build_processors
from nnstretch.graph.metadata import PLACEMENT_KEY
from nnstretch.scheduler.plan.schema import Plan
from nnstretch.scheduler.runtime.session import PlanSession
from tests.kits.graphs.quantized_networks import QuantizedNetwork

pytestmark = pytest.mark.opencl

CORES = sorted(os.sched_getaffinity(0))
CPU, DEVICE = f"cpu:{CORES[0]}", f"opencl:0@{CORES[-1]}"
NATIVE = 12
"""Seed of a network of convolutions, pools, a sum, a gate, a mean and a dense layer, all with routines on OpenCL."""


def outputs(network: QuantizedNetwork, processors: str, model: ir.Model | None = None) -> tuple[Plan, list[np.ndarray]]:
    """An untuned plan, and what it computes."""
    compiled = plan_model(model or network.graph(), build_processors(processors), tune=False)
    with PlanSession(compiled) as session:
        return compiled.plan, session.run(None, {"x": network.input})


def routines_of(plan: Plan) -> set[str]:
    return {step.routine for step in plan.steps}


@pytest.mark.parametrize("seed", [6, 7, NATIVE])
def test_a_device_computes_the_integers_of_the_cpu(seed: int) -> None:
    network = QuantizedNetwork(seed)
    plan, found = outputs(network, DEVICE)
    computing = {name for name in routines_of(plan) if not name.endswith("/reorder")}
    assert computing
    assert all(name.startswith("opencl:int8/") for name in computing)
    for one, other in zip(found, outputs(network, CPU)[1], strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.skipif(len(CORES) < 2, reason="two processors need two cores")
@pytest.mark.parametrize("first", [0, 1])
def test_integers_cross_between_processors(first: int) -> None:
    """The first half of the layers on one of two processors, the rest on the other."""
    network = QuantizedNetwork(NATIVE)
    model = network.graph()
    nodes = list(model.graph)
    for number, node in enumerate(nodes):
        node.metadata_props[PLACEMENT_KEY] = str(first if number < len(nodes) // 2 else 1 - first)
    plan, found = outputs(network, f"{CPU},{DEVICE}", model)
    kinds = {name.split("/", 1)[0] for name in routines_of(plan)}
    assert {"cpu:int8", "opencl:int8"} <= kinds
    for one, other in zip(found, outputs(network, CPU)[1], strict=True):
        np.testing.assert_array_equal(one, other)


def test_packages_keep_the_sizes_of_integers(tmp_path: Path) -> None:
    network = QuantizedNetwork(NATIVE)
    with nns.compile(network.graph(), processors=DEVICE, tune=False) as session:
        session.save(tmp_path / "m.nns")
        wanted = session.run(None, {"x": network.input})
    with nns.compile(tmp_path / "m.nns") as again:
        for one, other in zip(again.run(None, {"x": network.input}), wanted, strict=True):
            np.testing.assert_array_equal(one, other)
