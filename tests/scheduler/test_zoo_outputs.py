"""Whole networks of the zoo on every processor equal ONNX Runtime, with nothing left to the fallback."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from nnstretch.compiler import build_processors, load_any, plan_model
from nnstretch.graph.reference import relative_error, run_proto
from nnstretch.scheduler.session import Session
from nnstretch.zoo import entry, names

TOLERANCE = 1e-4


def run_on(model: ir.Model, processors: str, feeds: dict[str, np.ndarray]) -> np.ndarray:
    with Session(plan_model(model, build_processors(processors), tune=False)) as session:
        assert not session.plan.fallback_layers
        (output,) = session.run(None, feeds)
        return output


@pytest.mark.slow
@pytest.mark.opencl
@pytest.mark.parametrize("name", names())
def test_outputs_on_cpu_and_opencl(name: str) -> None:
    model = load_any(name)
    (image,) = model.graph.inputs
    assert image.name is not None and image.shape is not None
    shape = image.shape.numpy()
    feeds = {image.name: np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
    (expected,) = run_proto(ir.to_proto(model), feeds)
    assert float(np.ptp(expected)) > 1e-2, "a network whose outputs vanish compares equal to anything"
    on_cpu = run_on(model, "cpu", feeds)
    assert relative_error(on_cpu, expected) < TOLERANCE
    assert relative_error(run_on(model, "opencl", feeds), expected) < TOLERANCE
    macs = plan_model(model, build_processors("cpu"), tune=False).plan.macs
    assert macs == entry(name).macs
