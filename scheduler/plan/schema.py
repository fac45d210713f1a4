"""The plan: everything that the runtime needs, as data.

A plan has queues (one per processor), buffers with their places in memory, steps with their kernels, and
sub-graphs with their waits. It is versioned JSON on disk, and `nnstretch.scheduler.plan.validate.validate`
checks it before it runs.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from nnstretch.devices.backends import BACKENDS
from nnstretch.devices.base.backend import Backend
from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.routine import Launch, StepKind
from nnstretch.devices.cpu.backend import HOST
from nnstretch.errors import PackageError
from nnstretch.graph.dtypes import ELEMENT_TYPES
from nnstretch.graph.layer import TensorType
from nnstretch.scheduler.costmodel.totals import known_sum

PLAN_VERSION = 2
ALIGNMENT = 64
"""Bytes to which buffers are aligned: a cache line, and a vector of the widest instruction set."""

Memory = Literal["input", "output", "constant", "host", "shared", "device"]
"""Where a buffer lives.

input, output   the caller's array number `index`
constant        prepared weights of memory domain `index`; `offset` counts from the begin of that domain's range
host            the arena of all queues that work in host memory
shared          shared slot `index`: host memory that a queue with memory of its own reads or writes too
device          the arena of queue `index`, which has memory of its own; "opencl" in JSON

A memory domain is 0 for host memory, or the number of a queue with memory of its own.
"""


@dataclass(frozen=True)
class PlanTensor:
    """An input or output of the model: row-major, as the caller gives or gets it."""

    name: str
    type: TensorType


@dataclass(frozen=True)
class PlanBuffer:
    """A tensor's (or workspace's) place in memory.

    `value` names the contents; slices of one tensor (the inputs of a concat written in place) carry the name
    of that tensor.
    """

    value: str
    memory: Memory
    index: int
    offset: int
    bytes: int


@dataclass(frozen=True)
class PlanStep:
    """One kernel call, or one call of an external engine (`kind == "call"`, `kernel` names its model in the package).

    `is_fallback` marks layers that no native routine covers, in contrast to those for which the engine was selected.
    """

    layer: str
    op: str
    routine: str
    kind: StepKind
    kernel: str
    reads: tuple[int | None, ...]
    writes: tuple[int, ...]
    arguments: tuple[int, ...] = ()
    parameters: Mapping[str, int] = field(default_factory=dict)
    launch: Launch | None = None
    cost_ms: float | None = None
    macs: int = 0
    read_types: tuple[TensorType, ...] = ()
    write_types: tuple[TensorType, ...] = ()
    is_fallback: bool = False


@dataclass(frozen=True)
class PlanSubgraph:
    """Steps [first, first + count) on `queue`; starts when the sub-graphs in `waits` are done.

    `acquires` and `releases` are shared slots that pass between the host and a queue with memory of its own.
    """

    queue: int
    first: int
    count: int
    waits: tuple[int, ...] = ()
    acquires: tuple[int, ...] = ()
    releases: tuple[int, ...] = ()


@dataclass(frozen=True)
class PlanQueue:
    """A processor of the plan. The calling thread serves queue 0.

    Attributes:
        kind: name of the queue's backend.
        processor: as written; "" for queue 0 where it only serves other queues.
        cores: of the processor, ascending.
        ratios: relative speeds of the cores, by which the work of a step is split at first; empty: all are equal.
    """

    kind: str
    processor: str
    cores: tuple[int, ...]
    ratios: tuple[int, ...] = ()

    @property
    def backend(self) -> Backend:
        """What `kind` names; `validate` checks that it exists."""
        return BACKENDS[self.kind]


CALLER_QUEUE = PlanQueue(HOST.name, "", ())
"""Queue 0 of a plan in which no processor can be served by the calling thread."""


def plan_queue(processor: Processor) -> PlanQueue:
    """The queue of a processor."""
    return PlanQueue(processor.backend.name, processor.name, processor.spec.cores, processor.spec.ratios)


@dataclass(frozen=True)
class Plan:
    """A complete, executable description of a network on its processors."""

    block: int
    queues: tuple[PlanQueue, ...]
    inputs: tuple[PlanTensor, ...]
    outputs: tuple[PlanTensor, ...]
    buffers: tuple[PlanBuffer, ...]
    steps: tuple[PlanStep, ...]
    subgraphs: tuple[PlanSubgraph, ...]
    host_bytes: int
    shared_bytes: tuple[int, ...]
    shared_queues: tuple[int, ...]
    device_bytes: Mapping[int, int]
    constant_ranges: Mapping[int, tuple[int, int]]
    version: int = PLAN_VERSION

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one run."""
        return sum(step.macs for step in self.steps)

    @property
    def predicted_ms(self) -> float | None:
        """Sum of the steps' measured costs, or None if the plan was not tuned. Serial: concurrency is not counted."""
        return known_sum(step.cost_ms for step in self.steps)

    @property
    def fallback_layers(self) -> tuple[str, ...]:
        """Names of the layers that run on the fallback engine."""
        return tuple(step.layer for step in self.steps if step.is_fallback)

    def to_json(self) -> str:
        """The plan as JSON text."""
        return json.dumps(dataclasses.asdict(self, dict_factory=_kept), indent=1)

    @staticmethod
    def from_json(text: str) -> Plan:
        """Reads what `to_json` wrote.

        Raises:
            PackageError: not JSON, of another shape, or of a newer version.
        """
        try:
            raw = json.loads(text)
            version = raw["version"]
            if version != PLAN_VERSION:
                raise PackageError(
                    f"plan has version {version}, this nnstretch reads {PLAN_VERSION}; compile it again or upgrade"
                )
            return _plan(raw)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise PackageError(f"plan is damaged: {error!r}; compile it again") from error


_JSON_NAMES: Mapping[str, str] = {"device_bytes": "opencl_bytes"}
_DEVICE_MEMORY = "opencl"
"""How files write the memory "device"."""


def _kept(fields: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """The fields of a plan's part as JSON has them; without quantization parameters, because a plan moves bytes."""
    kept = {_JSON_NAMES.get(name, name): value for name, value in fields if name != "quantization"}
    if kept.get("memory") == "device":
        kept["memory"] = _DEVICE_MEMORY
    return kept


def _integer(raw: Any) -> int:
    """An integer of 64 bits."""
    if isinstance(raw, bool) or not isinstance(raw, int) or not -(2**63) <= raw < 2**63:
        raise ValueError(f"{str(raw)[:40]!r} is no integer of 64 bits")
    return raw


def _integers(raw: Iterable[Any]) -> tuple[int, ...]:
    return tuple(map(_integer, raw))


def _text(raw: Any) -> str:
    if not isinstance(raw, str):
        raise TypeError(f"{str(raw)[:40]!r} is no text")
    return raw


def _type(raw: Mapping[str, Any]) -> TensorType:
    dtype = _text(raw["dtype"])
    if dtype not in ELEMENT_TYPES:
        raise ValueError(f"{dtype[:40]!r} is no element type")
    return TensorType(_integers(raw["shape"]), dtype)


def _types(raw: Sequence[Mapping[str, Any]]) -> tuple[TensorType, ...]:
    return tuple(map(_type, raw))


def _tensor(raw: Mapping[str, Any]) -> PlanTensor:
    return PlanTensor(_text(raw["name"]), _type(raw["type"]))


def _launch(raw: Mapping[str, Any] | None) -> Launch | None:
    if raw is None:
        return None
    size, local = _integers(raw["global_size"]), raw["local_size"]
    if not 1 <= len(size) <= 3 or (local is not None and len(local) != len(size)):
        raise ValueError(f"a kernel is launched with sizes {size} and {local}")
    return Launch(
        source=_text(raw["source"]),
        defines=tuple((_text(k), _integer(v)) for k, v in raw["defines"]),
        global_size=size,
        local_size=None if local is None else _integers(local),
        item_bytes=_integers(raw.get("item_bytes", ())),  # optional in files
    )


def _buffer(raw: Mapping[str, Any]) -> PlanBuffer:
    texts = {name: _text(raw[name]) for name in ("value", "memory")}
    if texts["memory"] == _DEVICE_MEMORY:
        texts["memory"] = "device"
    return PlanBuffer(**{**raw, **texts, **{name: _integer(raw[name]) for name in ("index", "offset", "bytes")}})


def _step(raw: Mapping[str, Any]) -> PlanStep:
    cost = raw.get("cost_ms")
    return PlanStep(
        **{
            **raw,
            **{name: _text(raw[name]) for name in ("layer", "op", "routine", "kind", "kernel")},
            "reads": tuple(None if r is None else _integer(r) for r in raw["reads"]),
            "writes": _integers(raw["writes"]),
            "arguments": _integers(raw["arguments"]),
            "parameters": {_text(name): _integer(value) for name, value in raw.get("parameters", {}).items()},
            "launch": _launch(raw["launch"]),
            "cost_ms": None if cost is None else float(cost),
            "macs": _integer(raw.get("macs", 0)),
            "read_types": _types(raw["read_types"]),
            "write_types": _types(raw["write_types"]),
            "is_fallback": bool(raw.get("is_fallback", False)),
        }
    )


def _subgraph(raw: Mapping[str, Any]) -> PlanSubgraph:
    queue, first, count = (_integer(raw[name]) for name in ("queue", "first", "count"))
    return PlanSubgraph(queue, first, count, *(_integers(raw[name]) for name in ("waits", "acquires", "releases")))


def _queue(raw: Mapping[str, Any]) -> PlanQueue:
    ratios = raw.get("ratios", ())  # optional in files
    return PlanQueue(_text(raw["kind"]), _text(raw["processor"]), _integers(raw["cores"]), _integers(ratios))


def _plan(raw: Mapping[str, Any]) -> Plan:
    return Plan(
        block=_integer(raw["block"]),
        queues=tuple(map(_queue, raw["queues"])),
        inputs=tuple(map(_tensor, raw["inputs"])),
        outputs=tuple(map(_tensor, raw["outputs"])),
        buffers=tuple(map(_buffer, raw["buffers"])),
        steps=tuple(map(_step, raw["steps"])),
        subgraphs=tuple(map(_subgraph, raw["subgraphs"])),
        host_bytes=_integer(raw["host_bytes"]),
        shared_bytes=_integers(raw["shared_bytes"]),
        shared_queues=_integers(raw["shared_queues"]),
        device_bytes={int(k): _integer(v) for k, v in raw["opencl_bytes"].items()},
        constant_ranges={int(k): (_integer(v[0]), _integer(v[1])) for k, v in raw["constant_ranges"].items()},
    )


def aligned(offset: int) -> int:
    """`offset` rounded up to ALIGNMENT."""
    return -(-offset // ALIGNMENT) * ALIGNMENT
