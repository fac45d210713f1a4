"""Sums, differences and products of two int8 tensors."""

from __future__ import annotations

from nnstretch.devices.algorithms.quantized import is_quantized, only_clips, parameters_of, result_of, scale_bits
from nnstretch.devices.base.routine import INPUT, Descriptor, Lowering, Operand, Parameters
from nnstretch.devices.cpu.manifest import kernel_call
from nnstretch.devices.cpu.routines.eltwise import EltwiseRoutine, Relation, second_operand
from nnstretch.devices.cpu.routines.memory_bound import BLOCK, planes_of, stored_floats
from nnstretch.graph.layer import Layer

_SUM, _PRODUCT = 0, 1


class Int8ArithmeticRoutine(EltwiseRoutine):
    """Add, Sub and Mul of tensors of one shape, or with one value per channel or in all."""

    descriptor = Descriptor("cpu", "int8", "eltwise")
    operators = frozenset({"Add", "Sub", "Mul"})

    def covers(self, layer: Layer) -> bool:
        """As in float32; both operands are computed at run time, and an activation only clips."""
        tensors = (layer.type_of(0), layer.type_of(1), layer.outputs[0])
        quantized = not layer.constants and all(map(is_quantized, tensors))
        return quantized and only_clips(layer.activation) and super().covers(layer)

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        block, shape, relation = parameters[BLOCK], layer.type_of(0).shape, second_operand(layer)
        rows = {"rows": 1, "row": stored_floats(shape, block), "lanes": int(relation is Relation.SCALAR), "period": 1}
        if relation is Relation.CHANNEL:
            planes = planes_of(shape, block)
            period = planes.planes // shape[0] * (layer.type_of(1).elements // shape[1])
            rows = {"rows": planes.planes, "row": planes.row, "lanes": planes.lanes, "period": period}
        x, y, result = (parameters_of(t) for t in (layer.type_of(0), layer.type_of(1), layer.outputs[0]))
        product = layer.op == "Mul"
        y_scale = -y.scale if layer.op == "Sub" else y.scale
        call = kernel_call(
            "int8/binary",
            (INPUT, Operand("input", 1)),
            in_place=0,
            op=_PRODUCT if product else _SUM,
            **rows,
            x_zero=x.zero_point,
            y_zero=y.zero_point,
            x_scale=scale_bits(x.scale * (y.scale if product else 1) / result.scale),
            y_scale=scale_bits(y_scale / result.scale),
            **result_of(layer),
        )
        return Lowering((call,))


ROUTINES = (Int8ArithmeticRoutine,)
