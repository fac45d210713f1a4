"""Compiled plans, the report of their placement, and serial plans; without imports that only planning needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from nnstretch.scheduler.plan.schema import Plan
from nnstretch.support.forks import ForkLock

if TYPE_CHECKING:
    from nnstretch.scheduler.plan.rebalanced import RebalanceReport
    from nnstretch.scheduler.selection.problem import Assignment


@dataclass(frozen=True)
class PlacementReport:
    """Predicted seconds of a network on several processors together, and on each alone.

    Attributes:
        together: of the best placement found.
        bound: lower bound of any placement of whole layers.
        alone: of everything on one processor, by the processor's name.
        pays: whether the placement is used; otherwise everything runs on the fastest processor.
        splits: name of a split layer -> processor -> number of channels.
        bands: first and last layer of a section in bands -> processor -> number of rows.
    """

    together: float
    bound: float
    alone: Mapping[str, float]
    pays: bool
    splits: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    bands: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def fastest(self) -> str:
        """The fastest single processor."""
        return min(self.alone, key=lambda name: self.alone[name])

    @property
    def seconds(self) -> float:
        """Predicted seconds of the plan in use."""
        return self.together if self.pays else self.alone[self.fastest]


class LazyConstants:
    """Constants that are packed on first use. A plan that is not run needs none."""

    def __init__(self, pack: Callable[[], np.ndarray]) -> None:
        """`pack` makes the bytes. It is called once and released then."""
        self._pack: Callable[[], np.ndarray] | None = pack
        self._packed = np.empty(0, np.uint8)
        self._lock = ForkLock()

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
        metadata: of the package that the plan was read from; a package that is written of the plan keeps it.
        rebalancing: report of a rebalancing by runs of the plan, if there was one.
        kept_model: the ONNX file that the plan was made from, which its package keeps; empty if it does not.
    """

    plan: Plan
    weights: np.ndarray | LazyConstants
    models: dict[str, bytes] = field(default_factory=dict)
    selection: Assignment | None = None
    placement: PlacementReport | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    rebalancing: RebalanceReport | None = None
    kept_model: bytes | memoryview = b""

    @property
    def constants(self) -> np.ndarray:
        """The bytes that contain the plan's constant ranges."""
        return self.weights.get() if isinstance(self.weights, LazyConstants) else self.weights

    @property
    def memory_bytes(self) -> int:
        """Bytes of the constants as routines prepared them, and of the tensors of a run."""
        return self.constants.nbytes + self.plan.arena_bytes


def serial(compiled: Compiled) -> Compiled:
    """The same steps on the same queues without overlap, as a baseline for concurrency.

    Every sub-graph also waits for the one before it in the list, if that is on another queue.
    """
    subgraphs = list(compiled.plan.subgraphs)
    for i in range(1, len(subgraphs)):
        if subgraphs[i - 1].queue != subgraphs[i].queue:
            waits = tuple(sorted({*subgraphs[i].waits, i - 1}))
            subgraphs[i] = replace(subgraphs[i], waits=waits)
    return replace(compiled, plan=replace(compiled.plan, subgraphs=tuple(subgraphs)))
