"""What selection chooses for every unit."""

from __future__ import annotations

from dataclasses import dataclass

from nnstretch.devices.base.routine import Layout, Parameters, Routine
from nnstretch.scheduler.lowering.fusion_groups import Run


@dataclass(frozen=True)
class Fused(Layout):
    """Where a tensor would be that a routine for a run of units never stores.

    Equal only to that of the same units and the same of their choices, so that all of them take it or none does.
    """

    units: tuple[int, ...] = ()
    choice: int = 0


@dataclass(frozen=True)
class Choice:
    """A unit's routine, parameters and queue. `routine` is None for the fallback; `seconds` is its cost if known.

    Units that one routine computes as one have a choice each. What passes between them is `Fused`; the last unit's choice has
    the whole cost and the `run`, those of all others, the heads, cost nothing and become no step.
    """

    queue: int
    routine: Routine | None
    parameters: Parameters
    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]
    seconds: float | None = None
    run: Run | None = None

    @property
    def is_head(self) -> bool:
        """Whether the unit is computed with its readers."""
        return isinstance(self.outputs[0], Fused)
