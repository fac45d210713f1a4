"""The comparison of a converted module with ONNX Runtime."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor, nn

from nnstretch.errors import ModelError, first_line
from nnstretch.frontends import onnx_file
from nnstretch.support.onnxruntime_errors import refusals

_TOLERANCE = 1e-3
"""Of the largest output. A layer that means something else misses by far more, float32 sums in another order by less."""
_MOST_EQUALS = 0.99
"""Share of integer outputs, such as the indices of maxima, that are equal; two nearly equal maxima may change places."""


def check_against_onnxruntime(module: nn.Module, examples: Sequence[Tensor], model: ir.Model, source: str) -> None:
    """Runs the module for two batches at once, and compares what it makes of each with what the graph does.

    Args:
        module: takes the graph's inputs; in evaluation mode.
        examples: a batch of the graph's shapes.
        model: the graph.
        source: what it is called in messages.

    Raises:
        ModelError: the answers differ, or ONNX Runtime refuses the graph.
    """
    session = _opened(model, source)
    names = [value.name for value in session.get_inputs()]
    images = examples[0].shape[0] if examples and examples[0].ndim else 0
    are_images = [example.ndim > 1 and example.shape[0] == images for example in examples]
    others = [
        _other(example) if has_images else example for example, has_images in zip(examples, are_images, strict=True)
    ]
    batches = [list(examples), others]
    expected = [session.run(None, {n: x.numpy() for n, x in zip(names, batch, strict=True)}) for batch in batches]
    pairs = zip(*batches, strict=True)
    joined = [torch.cat(pair) if has_images else pair[0] for pair, has_images in zip(pairs, are_images, strict=True)]
    with torch.no_grad():
        try:
            found = module(*(x.clone() for x in joined))
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            raise ModelError(
                f"{source} as a torch module does not run for {2 * images} images: {first_line(error)}; export it with "
                "a dynamic batch"
            ) from error
    outputs = [found] if isinstance(found, Tensor) else list(found)
    for number, (output, *wanted) in enumerate(zip(outputs, *expected, strict=True)):
        name = model.graph.outputs[number].name
        whole = np.concatenate(wanted) if np.ndim(wanted[0]) else wanted[0]
        if tuple(output.shape) != whole.shape:
            whole = wanted[0]  # an output without images
        _check(output.numpy(), whole, f"{source} as a torch module: output {name!r}")


def _opened(model: ir.Model, source: str) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        with tempfile.TemporaryDirectory(prefix="nnstretch-check-") as folder:
            file = Path(folder) / "model.onnx"
            is_large = onnx_file.weight_bytes(model) > onnx_file.LARGEST_WEIGHTS
            if is_large:
                onnx_file.save(model, file)
            content = str(file) if is_large else ir.to_proto(model).SerializeToString()
            return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except refusals() as error:
        raise ModelError(f"{source}: ONNX Runtime cannot run it: {first_line(error)}; export it again") from error


def _other(example: Tensor) -> Tensor:
    """Other images of the same shape."""
    return -example.flip(-1) if example.is_floating_point() else example.flip(-1)


def _check(found: np.ndarray, wanted: np.ndarray, what: str) -> None:
    if found.shape != wanted.shape:
        raise ModelError(f"{what} has the shape {list(found.shape)}, ONNX Runtime's {list(wanted.shape)}{_ADVICE}")
    if wanted.dtype.kind != "f":
        if wanted.size and float(np.mean(found == wanted)) < _MOST_EQUALS:
            raise ModelError(f"{what} differs from ONNX Runtime's{_ADVICE}")
        return
    finite = np.abs(wanted[np.isfinite(wanted)].astype(np.float64))
    scale = max(float(finite.max(initial=0.0)), 1e-12)
    if not np.allclose(found, wanted, rtol=0.0, atol=_TOLERANCE * scale, equal_nan=True):
        error = float(np.nanmax(np.abs(found.astype(np.float64) - wanted))) / scale
        raise ModelError(f"{what} differs from ONNX Runtime's by {error:.2g} of its range{_ADVICE}")


_ADVICE = "; give the module itself as FILE.py:FACTORY"
