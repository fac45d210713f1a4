"""ONNX graphs of any kind: compiled by the public API, and compared with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

import nnstretch as nns
from nnstretch.graph.reference import relative_error, run_proto
from nnstretch.support.onnxruntime_errors import refusals

TOLERANCE = 1e-4
"""Largest error of a floating-point output, relative to its range; float16 has a coarser one."""
_OF_HALVES = 5e-3


def random_feeds(proto: onnx.ModelProto, seed: int = 0) -> dict[str, np.ndarray]:
    """Random arrays for the inputs of a model with static shapes; integers lie between -3 and 3."""
    rng = np.random.default_rng(seed)
    constants = {tensor.name for tensor in proto.graph.initializer}
    feeds = {}
    for value in proto.graph.input:
        if value.name not in constants:
            kind = value.type.tensor_type
            dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
            shape = [dimension.dim_value for dimension in kind.shape.dim]
            drawn = rng.standard_normal(shape) if dtype.kind == "f" else rng.integers(-3, 4, shape)
            feeds[value.name] = np.asarray(np.abs(drawn) if dtype.kind == "u" else drawn).astype(dtype)
    return feeds


def expected(proto: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray] | None:
    """ONNX Runtime's outputs; None if it refuses the model or the inputs."""
    try:
        return run_proto(proto, feeds)
    except refusals():
        return None


def run_compiled(path: Path, proto: onnx.ModelProto, feeds: Mapping[str, np.ndarray], **options: Any) -> Answer:
    """Compiles a model from a file, and runs it.

    Args:
        path: where the file is written.
        proto: the model.
        feeds: its inputs.
        options: of `nnstretch.compile`; nothing is measured unless they say so.

    Raises:
        NNStretchError: nnstretch refuses the model or the inputs.
    """
    path.write_bytes(proto.SerializeToString())
    with nns.compile(path, **{"processors": "cpu:0", "tune": False, **options}) as session:
        outputs = session.run(None, feeds)
        return outputs, [step.routine or step.op for step in session.plan.steps]


Answer = tuple[list[np.ndarray], list[str]]
"""Outputs, and the routines that computed them."""


def assert_equal(outputs: list[np.ndarray], references: list[np.ndarray], tolerance: float = TOLERANCE) -> None:
    """Outputs have the references' shapes and types; floats differ by rounding, other elements do not."""
    assert [(y.shape, y.dtype) for y in outputs] == [(y.shape, y.dtype) for y in references]
    for output, reference in zip(outputs, references, strict=True):
        if reference.dtype.kind == "f":
            allowed = max(tolerance, _OF_HALVES) if reference.dtype.itemsize < 4 else tolerance
            assert relative_error(output, reference) <= allowed
        else:
            np.testing.assert_array_equal(output, reference)
