"""Whole networks of the zoo on every processor equal ONNX Runtime, with nothing left to the fallback."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import onnx_ir as ir
import pytest

from nnstretch.compiler import build_processors, load_any, plan_model
from nnstretch.graph.reference import relative_error, run_proto
from nnstretch.scheduler.session import Session
from nnstretch.zoo import entry, names

TOLERANCE = 1e-4
# MACs up to which a network runs on OpenCL, which is a CPU's in tests; the others are planned there.
OPENCL_MACS = 2e9
CASES = [
    pytest.param(name, processor, marks=pytest.mark.opencl if processor == "opencl" else (), id=f"{name}-{processor}")
    for name in names()
    for processor in ("cpu", "opencl")
]


@lru_cache(maxsize=1)
def _exported(name: str) -> tuple[ir.Model, dict[str, np.ndarray], list[np.ndarray]]:
    """A network, an input, and what ONNX Runtime makes of it; kept for the next processor."""
    model = load_any(name)
    (image,) = model.graph.inputs
    assert image.name is not None
    assert image.shape is not None
    shape = image.shape.numpy()
    feeds = {image.name: np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
    return model, feeds, run_proto(ir.to_proto(model), feeds)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "processor"), CASES)
def test_outputs(name: str, processor: str) -> None:
    model, feeds, wanted = _exported(name)
    compiled = plan_model(model, build_processors(processor), tune=False)
    assert not compiled.plan.fallback_layers
    assert compiled.plan.macs == entry(name).macs
    if processor == "opencl" and entry(name).macs > OPENCL_MACS:
        return
    with Session(compiled) as session:
        found = session.run(None, feeds)
    for result, reference in zip(found, wanted, strict=True):
        assert float(np.ptp(reference)) > 1e-2, "a network whose outputs vanish compares equal to anything"
        assert relative_error(result, reference) < TOLERANCE
