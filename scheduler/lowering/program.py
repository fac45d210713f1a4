"""Lowered programs: steps over values, before they have their final order and places in memory."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from nnstretch.devices.base.constants import Constant
from nnstretch.devices.base.routine import KernelCall, Layout, Parameters
from nnstretch.graph.layer import TensorType


@dataclass(eq=False)
class Value:
    """A tensor in one layout, or a workspace. A view has a `root` whose bytes it shares from `offset` on.

    Without a root, `device` is the only queue with memory of its own that may touch the bytes, or 0.
    """

    name: str
    bytes: int
    layout: Layout
    type: TensorType | None
    external: tuple[str, int] | None = None  # ("input", i) or ("output", i)
    root: Value | None = None
    offset: int = 0
    device: int = 0

    def base(self) -> Value:
        """The value that owns the bytes."""
        return self.root.base() if self.root else self

    def base_offset(self) -> int:
        """Offset of this value in its base, bytes."""
        return self.offset + (self.root.base_offset() if self.root else 0)

    def admits(self, domain: int) -> bool:
        """Whether queues of a memory domain may touch the bytes."""
        base = self.base()
        return not domain or (base.external is None and base.device in (0, domain))

    def claim(self, domain: int) -> None:
        """Reserves the bytes for a device domain, which must be admitted; the host needs no reservation."""
        if domain:
            self.base().device = domain


@dataclass(eq=False)
class Step:
    """One kernel call, or one call of an external engine's model, on a queue."""

    unit: str
    op: str
    routine: str
    queue: int
    call: KernelCall
    reads: tuple[Value | int | None, ...]  # int: a constant of the queue's constants
    writes: tuple[Value, ...]
    parameters: Parameters
    seconds: float | None
    macs: int
    is_fallback: bool = False


@dataclass
class LoweredProgram:
    """Steps in a topological order, and prepared constants by memory domain."""

    steps: list[Step] = field(default_factory=list)
    constants: dict[int, list[Constant]] = field(default_factory=lambda: defaultdict(list))

    @property
    def models(self) -> dict[str, bytes]:
        """Models of external engines by the names in their steps."""
        return {step.call.kernel: step.call.model for step in self.steps if step.call.model is not None}
