"""Choices of units."""

from __future__ import annotations

from dataclasses import dataclass

from nnstretch.devices.base.routine import Layout, Parameters, Routine
from nnstretch.scheduler.lowering.fusion_groups import FusionGroup


@dataclass(frozen=True)
class Fused(Layout):
    """Layout of a tensor inside a fusion group, which is never stored.

    Equal only for the same units and the same choice, so that all units of a group take the fused routine or none does.
    """

    units: tuple[int, ...] = ()
    choice: int = 0


@dataclass(frozen=True)
class Choice:
    """A unit's routine, parameters and queue.

    Every unit of a fusion group has a choice of its own, and tensors between them are `Fused`. The last unit's choice has
    the `group` and its whole cost; the other units, the heads, cost nothing and become no step.

    Attributes:
        queue: index of the queue.
        routine: the routine; None for the fallback.
        parameters: of the routine.
        inputs: layouts of the unit's inputs.
        outputs: layouts of its outputs.
        seconds: cost; None if unknown.
        group: the fusion group that the unit ends.
    """

    queue: int
    routine: Routine | None
    parameters: Parameters
    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]
    seconds: float | None = None
    group: FusionGroup | None = None

    @property
    def is_head(self) -> bool:
        """Whether the unit is computed with its consumers."""
        return isinstance(self.outputs[0], Fused)
