"""Runs of ONNX files by ONNX Runtime, exactly as their operators say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx_ir as ir

from nnstretch.errors import ModelError, first_line
from nnstretch.frontends.onnx_file import save
from nnstretch.quantization.feeds import Feeds
from nnstretch.support.onnxruntime_errors import refusals

Run = Callable[[Feeds], list[np.ndarray]]
"""Computes the outputs of a network in their order."""


@contextmanager
def refused_as_errors(work: str) -> Iterator[None]:
    """Turns what ONNX Runtime and its tools raise in the block into one error.

    Args:
        work: what cannot be done, such as "quantise".

    Raises:
        ModelError: ONNX Runtime cannot do the work.
    """
    failures: tuple[type[Exception], ...] = (ValueError, AssertionError, *refusals())
    try:
        yield
    except failures as error:
        raise ModelError(f"ONNX Runtime cannot {work} the model: {first_line(error)}") from error


def open_run(file: Path | bytes) -> Run:
    """A session of an ONNX file, or of its content, without graph optimisations.

    Optimised QDQ files would compute in integers, and integer instructions of some CPUs saturate.

    Raises:
        ModelError: ONNX Runtime refuses the file or, in a call, the values of its inputs.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    with refused_as_errors("run"):
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])

    def run(feed: Feeds) -> list[np.ndarray]:
        with refused_as_errors("run"):
            return list(session.run(None, dict(feed)))

    return run


def open_tensors(model: ir.Model, names: Sequence[str], folder: Path) -> Run:
    """A session whose outputs are tensors that nodes of a network compute.

    Args:
        model: standard ONNX operators; it stays as it is.
        names: of the tensors.
        folder: for the file that ONNX Runtime reads.
    """
    augmented = model.clone()
    values = {str(value.name): value for node in augmented.graph for value in node.outputs}
    augmented.graph.outputs.clear()
    augmented.graph.outputs.extend(values[name] for name in names)
    file = folder / "tensors.onnx"
    save(augmented, file)
    return open_run(file)
