"""ONNX Runtime as the reference for outputs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from nnstretch.devices.external.onnxruntime.errors import first_line, refusals
from nnstretch.errors import ModelError


def open_reference(model: ir.Model | Path, threads: int = 1) -> Any:
    """A session of ONNX Runtime; with 0 threads it chooses their number.

    Raises:
        ModelError: it cannot run the model.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    source = str(model) if isinstance(model, Path) else ir.to_proto(model).SerializeToString()
    try:
        return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    except refusals() as error:
        raise ModelError(f"ONNX Runtime cannot run the model: {first_line(error)}") from error


def reference_outputs(model: ir.Model | Path, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Outputs of ONNX Runtime on one thread, by name. Feeds are taken in the model's order.

    Raises:
        ModelError: it cannot run the model.
    """
    session = open_reference(model)
    names = [i.name for i in session.get_inputs()]
    try:
        found = session.run(None, dict(zip(names, feeds.values(), strict=True)))
    except refusals() as error:
        raise ModelError(f"ONNX Runtime cannot run the model: {first_line(error)}") from error
    return {o.name: np.asarray(y) for o, y in zip(session.get_outputs(), found, strict=True)}
