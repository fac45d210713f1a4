"""Compiled plans: what the planner makes and a session runs, without imports that only planning needs."""

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
    """Constants that are packed on first use. A plan that is not run needs none."""

    def __init__(self, pack: Callable[[], np.ndarray]) -> None:
        """`pack` makes the bytes. It is called once and released then."""
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
    """A plan with its constants and models, and how its routines were selected.

    Attributes:
        plan: validated.
        weights: the constants, packed or lazy.
        models: name -> model (ONNX or TFLite) of the steps that external engines run.
        selection: result of the selector.
        placement: report of an automatic placement, if there was one.
    """

    plan: Plan
    weights: np.ndarray | LazyConstants
    models: dict[str, bytes] = field(default_factory=dict)
    selection: Assignment | None = None
    placement: PlacementReport | None = None

    @property
    def constants(self) -> np.ndarray:
        """The bytes that contain the plan's constant ranges."""
        return self.weights.get() if isinstance(self.weights, LazyConstants) else self.weights
