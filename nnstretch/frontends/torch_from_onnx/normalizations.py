"""Batch, layer, group and instance normalisation as modules of torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import fx, nn

from nnstretch.frontends.torch_from_onnx.builder import Builder, Built, Converters, UnsupportedError
from nnstretch.passes.rewriting import argument, constant

_BATCH_NORMS: dict[int, Any] = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
_LAST, _SECOND = {4: (0, 2, 3, 1), 3: (0, 2, 1)}, {4: (0, 3, 1, 2), 3: (0, 2, 1)}


def _batch_norm(build: Builder, node: ir.Node) -> Built:
    """BatchNormalization by running statistics, which training goes on to update."""
    kind = _BATCH_NORMS.get(build.axes(node.inputs[0]))
    if kind is None or node.attributes.get_int("training_mode", 0) != 0:
        raise UnsupportedError("it normalises by the statistics of the batch, or a tensor that is no map")
    names = ("weight", "bias", "running_mean", "running_var")
    tensors = {name: build.constant(argument(node, index), name) for index, name in enumerate(names, 1)}
    epsilon, momentum = node.attributes.get_float("epsilon", 1e-5), node.attributes.get_float("momentum", 0.9)
    module = kind(tensors["weight"].size, _short(epsilon), _short(1.0 - momentum), device="meta")
    counted: dict[str, np.ndarray | torch.Tensor | None] = {**tensors, "num_batches_tracked": torch.tensor(0)}
    return build.layer(node, module, build.tensor(node.inputs[0]), counted, node.inputs[1:2])


def _layer_norm(build: Builder, node: ir.Node) -> Built:
    """LayerNormalization over the last axes."""
    shape = build.shape(node.inputs[0])
    axis = node.attributes.get_int("axis", -1) % len(shape)
    factors = [constant(argument(node, index)) for index in (1, 2)]
    lengths = shape[axis:]
    if any(argument(node, i) is not None and f is None for i, f in enumerate(factors, 1)):
        raise UnsupportedError("its scale or shift is computed in the run")
    scale, shift = (None if f is None else np.broadcast_to(f, lengths) for f in factors)
    module = nn.LayerNorm(
        lengths, _short(node.attributes.get_float("epsilon", 1e-5)), scale is not None, shift is not None, device="meta"
    )
    x = build.tensor(node.inputs[0])
    return build.layer(node, module, x, {"weight": scale, "bias": shift}, node.inputs[1:2])


def _lowered_layer_norm(build: Builder, node: ir.Node) -> Built:
    """`LayerNorm` over one axis, also without subtracting the mean; over the second one, that is moved to the end."""
    shape = build.shape(node.inputs[0])
    axis, axes = node.attributes.get_int("axis", 1) % len(shape), len(shape)
    scale, shift = (constant(argument(node, index)) for index in (1, 2))
    if shift is not None and scale is None:
        scale = np.ones(shape[axis], np.float32)
    epsilon, is_rms = _short(node.attributes.get_float("epsilon", 1e-5)), node.attributes.get_int("rms", 0)
    if axis not in (1, axes - 1) or (is_rms and shift is not None):
        raise UnsupportedError(f"it normalises axis {axis} of {axes}")
    module: nn.Module
    if is_rms:
        module = nn.RMSNorm(shape[axis], epsilon, scale is not None, device="meta")
    else:
        module = nn.LayerNorm(shape[axis], epsilon, scale is not None, shift is not None, device="meta")
    tensors = {name: array for name, array in (("weight", scale), ("bias", shift)) if array is not None}
    x = build.tensor(node.inputs[0])
    if axis == axes - 1:
        return build.layer(node, module, x, tensors, node.inputs[1:2])
    y = build.layer(node, module, build.call(torch.permute, x, _LAST[axes]), tensors, node.inputs[1:2])
    return build.call(torch.permute, y, _SECOND[axes])


def _group_norm(build: Builder, node: ir.Node) -> Built:
    """`GroupNorm`; with a group for each channel of a map, instance normalisation."""
    shape, groups = build.shape(node.inputs[0]), node.attributes.get_int("groups", 1)
    epsilon = _short(node.attributes.get_float("epsilon", 1e-5))
    module: nn.Module
    if groups == shape[1] and len(shape) == 4:
        module = nn.InstanceNorm2d(shape[1], epsilon, affine=True, device="meta")
    else:
        module = nn.GroupNorm(groups, shape[1], epsilon, device="meta")
    scale, shift = (constant(argument(node, index)) for index in (1, 2))
    filled = {
        "weight": np.ones(shape[1], np.float32) if scale is None else scale,
        "bias": np.zeros(shape[1], np.float32) if shift is None else shift,
    }
    return build.layer(node, module, build.tensor(node.inputs[0]), filled, node.inputs[1:2])


def _local_response(build: Builder, node: ir.Node) -> Built:
    module = nn.LocalResponseNorm(
        node.attributes.get_int("size", 1),
        node.attributes.get_float("alpha", 1e-4),
        node.attributes.get_float("beta", 0.75),
        node.attributes.get_float("bias", 1.0),
    )
    return build.layer(node, module, build.tensor(node.inputs[0]))


def _lp(build: Builder, node: ir.Node) -> Built:
    """LpNormalization: x divided by its norm along an axis."""
    order, axis = node.attributes.get_int("p", 2), node.attributes.get_int("axis", -1)
    x: fx.Node = build.tensor(node.inputs[0])
    return build.call(nn.functional.normalize, x, p=float(order), dim=axis)


def _short(number: float) -> float:
    """A float32 number from a file as a person wrote it: 1e-05, not 9.99999974e-06."""
    return float(f"{number:.6g}")


OPERATORS: Converters = {
    "BatchNormalization": _batch_norm,
    "LayerNormalization": _layer_norm,
    "LRN": _local_response,
    "LpNormalization": _lp,
}
CANONICAL: Converters = {"LayerNorm": _lowered_layer_norm, "GroupNorm": _group_norm}
