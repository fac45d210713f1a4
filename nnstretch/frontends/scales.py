"""The scales of QuantizeLinear and DequantizeLinear, checked: engines compute nonsense from impossible ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir

from nnstretch.errors import ModelError

_ADVICE = "quantise or export it again"


def check_scales(model: ir.Model, path: Path) -> None:
    """Scales must be finite and not negative, and one, or one for each place along the axis of the operator.

    Some quantisers write scales of 0 for what is always 0: channels of weights, and activations.

    Args:
        model: with inferred shapes.
        path: its file, for messages.

    Raises:
        ModelError: a scale is not; the message names operator and tensor.
    """
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if node.op_type in ("QuantizeLinear", "DequantizeLinear") and node.domain in ("", "ai.onnx"):
            _check(node, path)


def _check(node: ir.Node, path: Path) -> None:
    source, value = node.inputs[:2]
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    if value is None or tensor is None or not tensor.dtype.is_floating_point():
        return
    scales = np.asarray(tensor.numpy(), np.float32)
    about = f"{path}: scale {value.name!r} of {node.op_type} {node.name or node.outputs[0].name!r}"
    bad = ~np.isfinite(scales) | (scales < 0)
    if bad.any():
        raise ModelError(f"{about} is {scales[bad].flat[0]:g}, and scales are finite numbers of at least 0; {_ADVICE}")
    shape = None if source is None or source.shape is None else source.shape
    if shape is None or not shape.is_static() or scales.ndim > 1 or node.attributes.get_int("block_size", 0) != 0:
        return
    extents, axis = shape.numpy(), node.attributes.get_int("axis", 1)
    if scales.size == 1 or not -len(extents) <= axis < len(extents) or scales.size == extents[axis]:
        return
    raise ModelError(
        f"{about} has {scales.size} numbers, and axis {axis} of {source.name!r} has {extents[axis]} places; {_ADVICE}"  # type: ignore[union-attr]
    )
