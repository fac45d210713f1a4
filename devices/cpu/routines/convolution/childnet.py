"""Childnets: routines composed of routines for other layers (SoftNeuro, section II-B)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nnstretch.devices.base.constants import Constant
from nnstretch.devices.base.routine import KernelCall, Lowering, Operand


def pipeline(stages: Sequence[Lowering], between: Sequence[int]) -> Lowering:
    """The calls of all stages in order; input 0 of each stage is output 0 of the stage before it.

    Args:
        stages: lowerings of layers with one run-time input and one output.
        between: bytes of the workspace between each stage and the next.
    """
    calls: list[KernelCall] = []
    constants: list[Constant] = []
    workspaces = list(between)
    for number, stage in enumerate(stages):
        first_constant, first_workspace = len(constants), len(workspaces)
        constants += stage.constants
        workspaces += stage.workspaces

        def place(
            operand: Operand, number: int = number, constant: int = first_constant, workspace: int = first_workspace
        ) -> Operand:
            if operand.kind == "input":
                return operand if number == 0 else Operand("workspace", number - 1)
            if operand.kind == "output":
                return operand if number + 1 == len(stages) else Operand("workspace", number)
            return Operand(operand.kind, operand.index + (constant if operand.kind == "constant" else workspace))

        for call in stage.calls:
            reads = tuple(None if o is None else place(o) for o in call.reads)
            calls.append(replace(call, reads=reads, writes=tuple(map(place, call.writes)), in_place=None))
    return Lowering(tuple(calls), tuple(constants), tuple(workspaces))
