"""Element-wise layers (activations, sums, differences, products, affine functions per channel) and softmax."""

from __future__ import annotations

import math
from enum import Enum

import numpy as np

from nnstretch.devices.base.routine import INPUT, PLAIN, Descriptor, Layout, Lowering, Operand, Parameters
from nnstretch.devices.cpu.routines.memory_bound import (
    BLOCK,
    MemoryBoundRoutine,
    Planes,
    one_call,
    per_channel,
    planes_of,
    stored_floats,
    to_blocked,
    unary_call,
)
from nnstretch.graph.layer import Layer

_PER_CHANNEL = {"Affine": "eltwise/affine", "PRelu": "eltwise/prelu"}
"""Kernels of the operators whose constants have one value per channel."""
OPERATORS = {"Add": 0, "Sub": 1, "Mul": 2, "Div": 3, "Max": 4, "Min": 5}
"""Operator codes of the kernel."""


class Relation(Enum):
    """How the second operand of arithmetic relates to the first."""

    SAME = "same shape"
    CHANNEL = "one value per channel, of each image or of all"
    SCALAR = "one value"
    SPREAD = "a constant that broadcasts in another way"


def second_operand(layer: Layer) -> Relation | None:
    """The relation of input 1 to input 0; None if there is no kernel for it."""
    shape, other = layer.type_of(0).shape, layer.type_of(1).shape
    if other == shape:
        return Relation.SAME
    if layer.type_of(1).elements == 1:
        return Relation.SCALAR
    if len(other) > len(shape):
        return None
    padded = (1,) * (len(shape) - len(other)) + other
    if len(shape) == 4 and padded in ((*shape[:2], 1, 1), (1, shape[1], 1, 1)):
        return Relation.CHANNEL
    fits = all(b in (1, a) for a, b in zip(shape, padded, strict=True))
    return Relation.SPREAD if fits and 1 in layer.constants else None


class EltwiseRoutine(MemoryBoundRoutine):
    """Activation, arithmetic of two tensors, Affine and PRelu; plain tensors may have any rank."""

    descriptor = Descriptor("cpu", "float32", "eltwise")
    operators = frozenset({"Activation", *_PER_CHANNEL, *OPERATORS})

    def covers(self, layer: Layer) -> bool:
        """The first operand is computed at run time and has the shape of the output."""
        shape = layer.type_of(0).shape
        if 0 in layer.constants or layer.outputs[0].shape != shape:
            return False
        if layer.op == "Activation":
            return True
        if layer.op in _PER_CHANNEL:
            channels = shape[1] if len(shape) >= 2 else 0
            constants = range(1, len(layer.inputs))
            return all(i in layer.constants and layer.type_of(i).elements == channels for i in constants)
        return second_operand(layer) is not None

    def blockable(self, layer: Layer) -> bool:
        """If the first operand has rank 4, and a second run-time operand has rank 4 or one value.

        Padding lanes must stay finite, so the channels that a quotient divides fill their blocks.
        """
        shape = layer.type_of(0).shape
        if len(shape) != 4 or (layer.op == "Div" and shape[1] % self.block):
            return False
        return 1 not in layer.activations or layer.type_of(1).elements == 1 or len(layer.type_of(1).shape) == 4

    def layouts(self, layer: Layer, parameters: Parameters) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        """The same layout for all tensors, but a run-time scalar is plain."""
        layout = Layout(parameters[BLOCK])
        inputs = [layout for _ in layer.activations]
        if 1 in layer.activations and second_operand(layer) is Relation.SCALAR:
            inputs[1] = PLAIN
        return tuple(inputs), (layout,)

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        block = parameters[BLOCK]
        if layer.op == "Activation":
            floats = stored_floats(layer.type_of(0).shape, block)
            return Lowering((unary_call(layer, INPUT, floats, in_place=0),))
        if layer.op in _PER_CHANNEL:
            return self._lower_per_channel(layer, block)
        return self._lower_binary(layer, block)

    def _lower_per_channel(self, layer: Layer, block: int) -> Lowering:
        shape = layer.type_of(0).shape
        planes = planes_of(shape, block)
        constants = tuple(per_channel(layer.constants[i], block) for i in range(1, len(layer.inputs)))
        reads = (INPUT, *(Operand("constant", i) for i in range(len(constants))))
        rows = _rows(planes, planes.planes // shape[0])
        return one_call(_PER_CHANNEL[layer.op], layer, rows, reads, constants, in_place=0)

    def _lower_binary(self, layer: Layer, block: int) -> Lowering:
        shape, relation = layer.type_of(0).shape, second_operand(layer)
        count = stored_floats(shape, block)
        rows = {"rows": 1, "row": count, "lanes": int(relation is Relation.SCALAR), "period": 1}
        if relation is Relation.CHANNEL:
            planes = planes_of(shape, block)
            # (N,C,1,1) has one row per plane, (1,C,1,1) one per plane of an image
            period = planes.planes // shape[0] * (layer.type_of(1).elements // shape[1])
            rows = _rows(planes, period)
        constants: tuple[np.ndarray, ...] = ()
        second = Operand("input", 1)
        if 1 in layer.constants:
            constants, second = (_stored(layer, relation, block),), Operand("constant", 0)
        rows = {"op": OPERATORS[layer.op], **rows}
        return one_call("eltwise/binary", layer, rows, (INPUT, second), constants, in_place=0)


def _rows(planes: Planes, period: int) -> dict[str, int]:
    """Parameters of kernels with one operand value per lane of a plane; values repeat after `period` planes."""
    return {"rows": planes.planes, "row": planes.row, "lanes": planes.lanes, "period": period}


def _stored(layer: Layer, relation: Relation | None, block: int) -> np.ndarray:
    """The constant second operand as the kernel reads it."""
    value = layer.constants[1].astype(np.float32)
    if relation is Relation.SCALAR:
        return value.reshape(1)
    shape = layer.type_of(0).shape
    if relation is Relation.CHANNEL:
        return np.concatenate([per_channel(image, block) for image in value.reshape(-1, shape[1])])
    return to_blocked(np.broadcast_to(value, shape), block)


class SoftmaxRoutine(MemoryBoundRoutine):
    """Softmax over one axis of a plain tensor."""

    descriptor = Descriptor("cpu", "float32", "softmax")
    operators = frozenset({"Softmax"})

    def covers(self, layer: Layer) -> bool:
        return len(layer.type_of(0).shape) > 0

    def blockable(self, layer: Layer) -> bool:
        """Never: padding lanes would take part in the sum."""
        return False

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        shape, axis = layer.type_of(0).shape, layer.integer("axis")
        outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
        return one_call("softmax", layer, {"outer": outer, "length": shape[axis], "inner": inner})


ROUTINES = (EltwiseRoutine, SoftmaxRoutine)
