"""Interference between processors: contention factors of those that work at the same time, and transfer times.

Processors share memory, caches and power. Each runs a chain of typical convolutions, once alone and once beside the others; the
ratio of the two times is its contention factor. A transfer is timed by a plan that sends a tensor there and back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.routine import PLAIN, REORDER, Layout, reorder_layer
from nnstretch.graph.layer import TensorType
from nnstretch.graph.metadata import PLACEMENT_KEY
from nnstretch.passes import optimize
from nnstretch.scheduler.lowering.assembly import Assembler
from nnstretch.scheduler.lowering.choices import Choice
from nnstretch.scheduler.lowering.lower import UnitLowering
from nnstretch.scheduler.lowering.units import Unit, UnitGraph
from nnstretch.scheduler.measurement.store.rows import Measurement, Row
from nnstretch.scheduler.measurement.store.store import ProfileStore
from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.scheduler.plan.schema import queue_pool
from nnstretch.scheduler.planner import make_plan
from nnstretch.scheduler.runtime.session import PlanSession
from nnstretch.scheduler.runtime.timeline import Timeline

# Output channels and strides of 1x1 convolutions as in residual networks: the first activations exceed a core's own caches, the
# last weights do. More of the largest layers would fit the shared cache for one processor but not for two, which exaggerates
# contention; routines may enlarge the weights of 3x3 convolutions.
_CHAIN: tuple[tuple[int, int], ...] = ((256, 1), (512, 2), (512, 1), (1024, 2), (1024, 1))
_JOIN_OPS = frozenset({REORDER, "Concat"})
_IMAGE = (1, 256, 56, 56)
_SMALL_IMAGE = (1, 256, 28, 28)
_ROUNDS = 9  # enough for clock steps to hit a minority of rounds
_RUNS = 5
_DOUBTFUL = 1.5
"""Stored factor above which a later process measures again: other programs may have taken the processors' time."""
_ROUND_TRIPS = 100
_ROUND_TRIP_BUDGET = 0.05  # seconds
_QUIET = 0.2
"""Quantile of the round trips that counts as undisturbed; a disturbance of one queue delays both."""


StepSeconds = Callable[[Compiled], np.ndarray]
"""Plan -> seconds of every step (rows) in several runs (columns)."""


def contention_factors(
    processors: Sequence[Processor],
    host: Processor,
    group: Sequence[int],
    store: ProfileStore,
    step_seconds: StepSeconds | None = None,
) -> tuple[float, ...]:
    """Contention factor of each processor of a group while the whole group works; 1 or more.

    Measures once per machine and group, and keeps the result in `store`. Stored factors on this machine that are so high that
    other programs may have caused them are measured again, and the lower ones are kept.

    Args:
        processors: all processors.
        host: CPU that serves queue 0 if no CPU is among `processors`.
        group: ascending indices of two processors or more.
        store: profile store.
        step_seconds: runs plans on the processors' machine; on this one if None.
    """
    known = stored_contention_factors(processors, group, store)
    if known is not None and (max(known) <= _DOUBTFUL or step_seconds is not None):
        return known
    if step_seconds is None:
        ratios = _measured_ratios(processors, host, group)
    else:
        ratios = _ratios_elsewhere(processors, host, group, step_seconds)
    found = [Measurement(float(np.median(some)), tuple(map(float, some))) for some in ratios]
    before = known or (math.inf,) * len(group)
    rows = [Row(*_row_key(processors, group, number), one) for number, one in zip(group, found, strict=True)]
    store.put_all([row for row, least in zip(rows, before, strict=True) if (row.measurement.seconds or 0.0) < least])
    return tuple(min(least, max(1.0, one.seconds or 0.0)) for least, one in zip(before, found, strict=True))


def stored_contention_factors(
    processors: Sequence[Processor], group: Sequence[int], store: ProfileStore
) -> tuple[float, ...] | None:
    """Contention factors as in `contention_factors`; None if the store does not have them."""
    found = [store.get(*_row_key(processors, group, number)) for number in group]
    seconds = [one.seconds for one in found if one is not None and one.seconds is not None]
    return tuple(max(1.0, ratio) for ratio in seconds) if len(seconds) == len(group) else None


def _row_key(
    processors: Sequence[Processor], group: Sequence[int], number: int
) -> tuple[str, str, str, dict[str, int]]:
    """Store key of a ratio; it does not depend on the order of the processors."""
    own = processors[number].fingerprint
    others = "+".join(sorted(processors[other].fingerprint for other in group if other != number))
    # Equal processors have equal fingerprints.
    place = sum(processors[other].fingerprint == own for other in group if other < number)
    return own, f"together with {others}", "typical convolutions", {"place": place}


def _measured_ratios(processors: Sequence[Processor], host: Processor, group: Sequence[int]) -> list[list[float]]:
    """For each processor the ratio of its chain's time beside the others to its time alone, one per round."""
    feeds = {"x": np.random.default_rng(0).standard_normal(_IMAGE).astype(np.float32)}
    ratios: list[list[float]] = [[] for _ in group]

    with ExitStack() as stack:
        plans = (typical_plan(processors, host, some) for some in (group, *([number] for number in group)))
        together, *alone = (stack.enter_context(PlanSession(plan)) for plan in plans)
        for _ in range(_ROUNDS):
            both, *single = (one.profile(feeds, runs=_RUNS) for one in (together, *alone))
            for found, number, one in zip(ratios, group, single, strict=True):
                name = processors[number].name
                found.append(_convolution_time(both, name) / max(_convolution_time(one, name), 1))
    return ratios


def _ratios_elsewhere(
    processors: Sequence[Processor], host: Processor, group: Sequence[int], step_seconds: StepSeconds
) -> list[list[float]]:
    """As `_measured_ratios`, on a machine that runs one plan after another; devices of this kind have small caches."""

    def times(numbers: Sequence[int]) -> dict[int, np.ndarray]:
        compiled = typical_plan(processors, host, numbers, _SMALL_IMAGE)
        plan, seconds = compiled.plan, step_seconds(compiled)
        queue_of = plan.step_queues
        names = [plan.queues[queue].processor for queue in queue_of]
        own = {
            number: [
                row
                for row, step in enumerate(plan.steps)
                if names[row] == processors[number].name and step.op not in _JOIN_OPS
            ]
            for number in numbers
        }
        return {number: seconds[rows].sum(axis=0) for number, rows in own.items()}

    together = times(group)
    alone = {number: float(np.median(times([number])[number])) for number in group}
    return [[float(seconds / max(alone[number], 1e-9)) for seconds in together[number]] for number in group]


def typical_plan(
    processors: Sequence[Processor], host: Processor, group: Sequence[int], image: tuple[int, int, int, int] = _IMAGE
) -> Compiled:
    """The plan of a chain of typical convolutions for each processor of a group; arguments as in `contention_factors`."""
    return make_plan(optimize(convolution_chains(group, _CHAIN, image, kernel=1)), processors, host)


def _convolution_time(timeline: Timeline, processor: str) -> int:
    """Nanoseconds of a processor's convolutions, without the steps that join the chains."""
    queue = timeline.queues.index(processor)
    mine = (e for e in timeline.events if e.queue == queue and e.kind == "step" and e.op not in _JOIN_OPS)
    return sum(e.end - e.begin for e in mine)


def convolution_chains(
    processors: Sequence[int], layers: Sequence[tuple[int, int]], image: tuple[int, int, int, int], kernel: int = 3
) -> ir.Model:
    """A chain of convolutions for each processor; all read the input `x`, and a concat of their ends is the output `y`.

    Args:
        processors: indices of the processors; every node is placed on its chain's processor.
        layers: output channels and stride of each convolution.
        image: shape of the input, N,C,H,W.
        kernel: odd side length of the kernels.
    """
    rng = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []
    ends = []
    for processor in processors:
        source, channels = "x", image[1]
        for place, (width, stride) in enumerate(layers):
            name = f"p{processor}_{place}"
            values = rng.standard_normal((width, channels, kernel, kernel)) / np.sqrt(kernel**2 * channels)
            weights.append(numpy_helper.from_array(values.astype(np.float32), f"{name}_w"))
            node = helper.make_node("Conv", [source, f"{name}_w"], [name], pads=[kernel // 2] * 4, strides=[stride] * 2)
            entry = node.metadata_props.add()
            entry.key, entry.value = PLACEMENT_KEY, str(processor)
            nodes.append(node)
            source, channels = name, width
        ends.append(source)
    nodes.append(helper.make_node("Concat", ends, ["y"], axis=1))
    graph = helper.make_graph(
        nodes,
        "chains",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, image)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return ir.from_proto(onnx.shape_inference.infer_shapes(model))


def round_trip(host: Processor, device: Processor, tensor: TensorType) -> tuple[float, tuple[float, ...]]:
    """Times a tensor's round trip host -> device -> host, which includes three copies.

    Returns:
        Seconds of an undisturbed round trip, and the seconds of every one.
    """
    with PlanSession(round_trip_plan(host, device, tensor)) as session:
        samples = session.time({}, warmup=2, runs=_ROUND_TRIPS, budget=_ROUND_TRIP_BUDGET)
    return undisturbed(samples), tuple(map(float, samples))


def undisturbed(samples: Sequence[float] | np.ndarray) -> float:
    """Seconds of an undisturbed round trip, from those of several."""
    return float(np.quantile(samples, _QUIET))


def round_trip_plan(host: Processor, device: Processor, tensor: TensorType) -> Compiled:
    """A plan that copies zeros on the host, then on the device, then into its output on the host."""
    pool = queue_pool([host, device], host)
    layer = reorder_layer(tensor, PLAIN, PLAIN)
    queues = (0, 1, 0)
    names = [f"t{i}" for i in range(len(queues) + 1)]
    units = tuple(Unit(f"copy{i}", layer, (), (names[i],), (names[i + 1],), None) for i in range(len(queues)))
    graph = UnitGraph(units, dict.fromkeys(names, tensor), (names[0],), (names[-1],))
    plain: tuple[Layout, ...] = (PLAIN,)
    routines = [pool.processors[queue].reorder for queue in queues]
    choices = [
        Choice(queue, r, r.default_parameters(layer), plain, plain) for queue, r in zip(queues, routines, strict=True)
    ]
    steps = UnitLowering(graph, choices, pool.queues, pool.reorders(), device.coherent, lambda *_: None).lower()
    plan, constants = Assembler(graph, steps, pool.queues, host.blocked.block).assemble()
    return Compiled(plan, constants, steps.models)
