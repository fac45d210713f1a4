"""What the planner makes and a session runs. Apart from both, so that running a package loads nothing that planning needs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from nnstretch.scheduler.plan.schema import Plan

if TYPE_CHECKING:
    from nnstretch.scheduler.placement.report import PlacementReport
    from nnstretch.scheduler.selection.problem import Assignment


class LazyConstants:
    """Constants that are packed when they are first needed: a plan that is only looked at needs none."""

    def __init__(self, pack: Callable[[], np.ndarray]) -> None:
        """`pack` makes the bytes; it is called once, and what it holds is let go then."""
        self._pack: Callable[[], np.ndarray] | None = pack
        self._packed = np.empty(0, np.uint8)
        self._lock = threading.Lock()

    def get(self) -> np.ndarray:
        """The bytes."""
        with self._lock:
            if self._pack is not None:
                self._packed = self._pack()
                self._pack = None
            return self._packed


@dataclass(frozen=True, eq=False)
class Compiled:
    """A plan with all that it needs to run, and how its routines were chosen.

    Attributes:
        plan: validated.
        weights: `constants`, or who packs them.
        models: name -> model, ONNX or TFLite, of the steps that another engine runs.
        selection: the selector's answer.
        placement: how an automatic placement came out, if there was one.
    """

    plan: Plan
    weights: np.ndarray | LazyConstants
    models: dict[str, bytes] = field(default_factory=dict)
    selection: Assignment | None = None
    placement: PlacementReport | None = None

    @property
    def constants(self) -> np.ndarray:
        """The bytes that the plan's constant ranges lie in."""
        return self.weights.get() if isinstance(self.weights, LazyConstants) else self.weights
