"""The plan: everything that the runtime needs, as data.

A plan has queues (one per processor), buffers with their places in memory, steps with their kernels, and
sub-graphs with their waits. It is versioned JSON on disk, and `nnstretch.scheduler.plan.validate.validate`
checks it before it runs.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from nnstretch.devices.backends import BACKENDS
from nnstretch.devices.base.backend import Backend
from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.routine import Launch, Routine, StepKind
from nnstretch.devices.cpu.queues import HOST
from nnstretch.errors import PackageError
from nnstretch.graph.dtypes import ELEMENT_TYPES
from nnstretch.graph.layer import RUN_TIME_PRODUCTS, TensorType
from nnstretch.support.json_text import DAMAGED, json_fault
from nnstretch.support.words import counted

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
    """A complete, executable description of a network on its processors.

    `repeated_macs` are multiply-accumulates of rows that several bands compute, beyond those of the network: steps count them.
    """

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
    repeated_macs: int = 0

    def __str__(self) -> str:
        """One line, such as "plan: 40 steps in 3 sub-graphs on cpu:0,opencl:0, 1814 M MACs, predicted 5.31 ms"."""
        parts = len(self.subgraphs)
        said = (
            f"plan: {counted(len(self.steps), 'step')} in {counted(parts, 'sub-graph')} on {','.join(self.processors)}"
        )
        predicted = "" if self.predicted_ms is None else f", predicted {self.predicted_ms:.2f} ms"
        return f"{said}, {self.macs / 1e6:.4g} M MACs{predicted}"

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the network's convolutions and dense layers, as those of designs; without `repeated_macs`."""
        return sum(step.macs for step in self.steps if step.op not in RUN_TIME_PRODUCTS) - self.repeated_macs

    @property
    def product_macs(self) -> int:
        """Multiply-accumulates of products of matrices that are computed at run time, as in attention."""
        return sum(step.macs for step in self.steps if step.op in RUN_TIME_PRODUCTS)

    @property
    def cores(self) -> tuple[int, ...]:
        """All cores of its queues, each once."""
        return tuple(dict.fromkeys(core for queue in self.queues for core in queue.cores))

    @property
    def step_queues(self) -> tuple[int, ...]:
        """The queue of every step."""
        return tuple(subgraph.queue for subgraph in self.subgraphs for _ in range(subgraph.count))

    @property
    def predicted_ms(self) -> float | None:
        """Sum of the steps' measured costs, one after another; None if the plan was not tuned."""
        return known_sum(step.cost_ms for step in self.steps)

    @property
    def arena_bytes(self) -> int:
        """Bytes of the tensors of a run, in the memories of the host and of all devices together."""
        return self.host_bytes + sum(self.shared_bytes) + sum(self.device_bytes.values())

    @property
    def fallback_layers(self) -> tuple[str, ...]:
        """Names of the layers that run on the fallback engine."""
        return tuple(step.layer for step in self.steps if step.is_fallback)

    @property
    def processors(self) -> tuple[str, ...]:
        """Names of the processors that the user named, in their order."""
        return tuple(queue.processor for queue in self.queues if queue.processor)

    @property
    def idle_processors(self) -> tuple[str, ...]:
        """Names of the processors that compute no step."""
        busy = {subgraph.queue for subgraph in self.subgraphs}
        return tuple(queue.processor for i, queue in enumerate(self.queues) if queue.processor and i not in busy)

    def to_json(self, indent: int | None = 1) -> str:
        """The plan as JSON text; without an indent in one line that lacks fields with their defaults, in half the time."""
        if indent is None:
            return json.dumps(self, default=_changed_fields, separators=(",", ":"))
        return json.dumps(self, default=_fields, indent=indent)

    @staticmethod
    def from_json(text: str, source: str = "plan", remedy: str = "compile it again") -> Plan:
        """Reads what `to_json` wrote.

        Args:
            text: the JSON.
            source: name of the plan in errors, such as its file.
            remedy: the command that makes it again, for errors.

        Raises:
            PackageError: not JSON, of another shape, or of another version.
        """
        try:
            raw = json.loads(text)
        except (ValueError, TypeError, RecursionError) as error:
            raise PackageError(f"{source} is damaged: {json_fault(error)}; {remedy}") from error
        try:
            if not isinstance(raw, dict) or "version" not in raw:
                raise PackageError(f"{source} is no plan; {remedy}")
            version = raw["version"]
            if version != PLAN_VERSION:
                raise PackageError(
                    f"{source} has plan version {version}, this nnstretch reads {PLAN_VERSION}; {remedy}"
                )
            plan: Plan = json_reader(Plan)(raw)
            return plan
        except DAMAGED as error:
            raise PackageError(f"{source} is damaged: {error!r}; {remedy}") from error


_JSON_NAMES: Mapping[str, str] = {"device_bytes": "opencl_bytes"}
_DEVICE_MEMORY = "opencl"
"""How files write the memory "device"."""


def _fields(part: Any) -> dict[str, Any]:
    """The fields of a plan's part as JSON has them; without quantization parameters, because a plan moves bytes."""
    record: Any = type(part)
    kept = {written: getattr(part, name) for name, written in _written_names(record)}
    if kept.get("memory") == "device":
        kept["memory"] = _DEVICE_MEMORY
    return kept


def _changed_fields(part: Any) -> dict[str, Any]:
    """The fields as `_fields` has them, without those that have their default."""
    record: Any = type(part)
    defaults = _defaults(record)
    return {name: value for name, value in _fields(part).items() if name not in defaults or value != defaults[name]}


@cache
def _defaults(record: Any) -> dict[str, Any]:
    """The defaults of a dataclass's fields, by their names in JSON; the version of a plan is always written."""
    names = dict(_written_names(record))
    fields = [field for field in dataclasses.fields(record) if field.name in names and field.name != "version"]
    plain = {names[f.name]: f.default for f in fields if f.default is not dataclasses.MISSING}
    return plain | {names[f.name]: f.default_factory() for f in fields if f.default_factory is not dataclasses.MISSING}


@cache
def _written_names(record: Any) -> list[tuple[str, str]]:
    """The fields of a dataclass that are written, with their names in JSON."""
    names = [field.name for field in dataclasses.fields(record) if field.name != "quantization"]
    return [(name, _JSON_NAMES.get(name, name)) for name in names]


def _integer(raw: Any) -> int:
    """An integer of 64 bits."""
    if isinstance(raw, bool) or not isinstance(raw, int) or not -(2**63) <= raw < 2**63:
        raise ValueError(f"{str(raw)[:40]!r} is no integer of 64 bits")
    return raw


def _text(raw: Any) -> str:
    if not isinstance(raw, str):
        raise TypeError(f"{str(raw)[:40]!r} is no text")
    return raw


def _memory(raw: Any) -> str:
    return "device" if raw == _DEVICE_MEMORY else _text(raw)


def _check_type(tensor: TensorType) -> None:
    if tensor.dtype not in ELEMENT_TYPES:
        raise ValueError(f"{tensor.dtype[:40]!r} is no element type")


def _check_launch(launch: Launch) -> None:
    size, local = launch.global_size, launch.local_size
    if not 1 <= len(size) <= 3 or (local is not None and len(local) != len(size)):
        raise ValueError(f"a kernel is launched with sizes {size} and {local}")


_SCALARS: Mapping[Any, Callable[[Any], Any]] = {int: _integer, float: float, bool: bool, Memory: _memory}
_CHECKS: Mapping[Any, Callable[[Any], None]] = {TensorType: _check_type, Launch: _check_launch}


@cache
def json_reader(hint: Any) -> Callable[[Any], Any]:
    """Reads a value of a type from JSON; raises KeyError, TypeError, ValueError or AttributeError for another value."""
    kinds = get_args(hint)
    if dataclasses.is_dataclass(hint):
        return _record_reader(hint)
    if get_origin(hint) is UnionType:  # TYPE | None
        known = json_reader(kinds[0])
        return lambda raw: None if raw is None else known(raw)
    if get_origin(hint) is tuple and kinds[-1] is Ellipsis:
        item = json_reader(kinds[0])
        return lambda raw: tuple(map(item, raw))
    if get_origin(hint) is tuple:
        items = tuple(map(json_reader, kinds))
        return lambda raw: tuple(read(value) for read, value in zip(items, raw, strict=True))
    if get_origin(hint) is Mapping:
        key, value = int if kinds[0] is int else _text, json_reader(kinds[1])
        return lambda raw: {key(name): value(part) for name, part in raw.items()}
    return _SCALARS.get(hint, _text)


def _record_reader(record: Any) -> Callable[[Any], Any]:
    """Reads a dataclass from a JSON object; fields with a default are optional, and only a plan may have others beside it."""
    hints, check = get_type_hints(record), _CHECKS.get(record)
    names = dict(_written_names(record))
    fields = [field for field in dataclasses.fields(record) if field.name in names]
    readers = {field.name: json_reader(hints[field.name]) for field in fields}
    needed = {f.name for f in fields if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING}

    def read(raw: Any) -> Any:
        unknown = raw.keys() - names.values()
        if unknown and record is not Plan:
            raise ValueError(f"{record.__name__} has no {min(unknown)!r}")
        given = [name for name, key in names.items() if name in needed or key in raw]
        made = record(**{name: readers[name](raw[names[name]]) for name in given})
        if check is not None:
            check(made)
        return made

    return read


def aligned(offset: int) -> int:
    """`offset` rounded up to ALIGNMENT."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def known_sum(parts: Iterable[float | None]) -> float | None:
    """The sum; None if a part is unknown."""
    all_parts = list(parts)
    known = [part for part in all_parts if part is not None]
    return sum(known, 0.0) if len(known) == len(all_parts) else None


@dataclass(frozen=True)
class QueuePool:
    """The queues of a plan.

    Attributes:
        queues: as plans store them.
        processors: by queue; that of queue 0 changes layouts in host memory.
        queue_of: for every processor that the caller named the number of its queue.
    """

    queues: tuple[PlanQueue, ...]
    processors: tuple[Processor, ...]
    queue_of: tuple[int, ...]

    def reorders(self) -> dict[int, Routine]:
        """The routines that change layouts, by queue."""
        return {queue: p.reorder for queue, p in enumerate(self.processors) if p.backend.changes_layouts}

    def reordering(self, queue: int) -> int:
        """The queue that changes layouts for a queue: itself if it can, else queue 0."""
        return queue if self.backend(queue).changes_layouts else 0

    def backend(self, queue: int) -> Backend:
        """The kind of a queue."""
        return self.processors[queue].backend


def queue_pool(processors: Sequence[Processor], host: Processor) -> QueuePool:
    """Queues for `processors`: the first that can serve the caller becomes queue 0; without one `host` does."""
    first = next((i for i, p in enumerate(processors) if p.backend.serves_caller), None)
    others = [processor for i, processor in enumerate(processors) if i != first]
    served = CALLER_QUEUE if first is None else plan_queue(processors[first])
    numbers = iter(range(1, 1 + len(others)))
    queue_of = tuple(0 if i == first else next(numbers) for i in range(len(processors)))
    behind = host if first is None else processors[first]
    return QueuePool((served, *map(plan_queue, others)), (behind, *others), queue_of)
