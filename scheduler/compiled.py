"""What the planner makes and a session runs. Apart from both, so that running a package loads nothing that planning needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from nnstretch.scheduler.plan import Plan

if TYPE_CHECKING:
    from nnstretch.scheduler.problem import Assignment


@dataclass(frozen=True, eq=False)
class Compiled:
    """A plan with all that it needs to run, and how its routines were chosen.

    Attributes:
        plan: validated.
        constants: the bytes that the plan's constant ranges lie in.
        models: name -> model, ONNX or TFLite, of the steps that another engine runs.
        selection: the selector's answer.
    """

    plan: Plan
    constants: np.ndarray
    models: dict[str, bytes] = field(default_factory=dict)
    selection: Assignment | None = None
