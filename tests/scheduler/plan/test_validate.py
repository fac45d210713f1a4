"""The plan validator: passes what the planner makes, and refuses plans that are broken in any way."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import pytest

from nnstretch.compiler.compile import plan_model
from nnstretch.compiler.processors import build_processors
from nnstretch.devices.base.routine import Launch
from nnstretch.errors import PackageError
from nnstretch.scheduler.plan.schema import Plan, PlanBuffer, PlanStep
from nnstretch.scheduler.plan.validate import HappensBefore, validate
from tests.kits.graphs.graphs import RandomNetwork

CORES = sorted(os.sched_getaffinity(0))
pytestmark = pytest.mark.skipif(len(CORES) < 2, reason="two processors need two cores")


def plan_of(seed: int) -> Plan:
    network = RandomNetwork(seed, processors=2, nodes=14)
    processors = build_processors(f"cpu:{CORES[0]},cpu:{CORES[-1]}")
    return plan_model(network.graph(), processors, tune=False).plan


PLANS = range(12)
T = TypeVar("T")
Break = Callable[[Plan, np.random.Generator], Plan | None]


def _replace_at(items: tuple[T, ...], index: int, item: T) -> tuple[T, ...]:
    return (*items[:index], item, *items[index + 1 :])


def drop_a_wait(plan: Plan, rng: np.random.Generator) -> Plan | None:
    """Breaks unless the order is kept by something else."""
    waiting = [i for i, s in enumerate(plan.subgraphs) if s.waits]
    if not waiting:
        return None
    i = int(rng.choice(waiting))
    broken = replace(plan.subgraphs[i], waits=plan.subgraphs[i].waits[1:])
    changed = replace(plan, subgraphs=_replace_at(plan.subgraphs, i, broken))
    dropped = plan.subgraphs[i].waits[0]
    return None if HappensBefore(changed.subgraphs).subgraphs(dropped, i) else changed


def wait_for_the_future(plan: Plan, rng: np.random.Generator) -> Plan:
    i = int(rng.integers(len(plan.subgraphs)))
    broken = replace(plan.subgraphs[i], waits=(int(rng.integers(i, len(plan.subgraphs) + 2)),))
    return replace(plan, subgraphs=_replace_at(plan.subgraphs, i, broken))


def move_a_buffer_out(plan: Plan, rng: np.random.Generator) -> Plan:
    i = int(rng.integers(len(plan.buffers)))
    return _with_buffer(plan, i, replace(plan.buffers[i], offset=1 << 30))


def negative_offset(plan: Plan, rng: np.random.Generator) -> Plan:
    i = int(rng.integers(len(plan.buffers)))
    return _with_buffer(plan, i, replace(plan.buffers[i], offset=-64))


def _with_buffer(plan: Plan, index: int, buffer: PlanBuffer) -> Plan:
    return replace(plan, buffers=_replace_at(plan.buffers, index, buffer))


def _live_pair(plan: Plan) -> tuple[int, int] | None:
    """A host buffer that a later step reads, and one that a step in between writes."""
    host = [i for i, b in enumerate(plan.buffers) if b.memory == "host"]
    for a in host:
        writes = [n for n, s in enumerate(plan.steps) if a in s.writes]
        reads = [n for n, s in enumerate(plan.steps) if a in s.reads]
        if len(writes) != 1 or not reads:
            continue
        for b in host:
            written = [n for n, s in enumerate(plan.steps) if b in s.writes]
            apart = plan.buffers[a].value != plan.buffers[b].value
            if apart and any(writes[0] < n < max(reads) for n in written):
                return a, b
    return None


def overlap_live_buffers(plan: Plan, rng: np.random.Generator) -> Plan | None:
    pair = _live_pair(plan)
    if pair is None:
        return None
    a, b = (plan.buffers[i] for i in pair)
    if a.offset + b.bytes > plan.host_bytes:
        return None
    return _with_buffer(plan, pair[1], replace(b, offset=a.offset))


def drop_a_step(plan: Plan, rng: np.random.Generator) -> Plan:
    i = int(rng.integers(len(plan.steps)))
    return replace(plan, steps=plan.steps[:i] + plan.steps[i + 1 :])


def unknown_queue(plan: Plan, rng: np.random.Generator) -> Plan:
    i = int(rng.integers(len(plan.subgraphs)))
    return replace(plan, subgraphs=_replace_at(plan.subgraphs, i, replace(plan.subgraphs[i], queue=7)))


def unknown_buffer(plan: Plan, rng: np.random.Generator) -> Plan:
    i = int(rng.integers(len(plan.steps)))
    return replace(plan, steps=_replace_at(plan.steps, i, replace(plan.steps[i], writes=(10_000,))))


def swap_two_dependent_steps(plan: Plan, rng: np.random.Generator) -> Plan | None:
    for subgraph in plan.subgraphs:
        for i in range(subgraph.first, subgraph.first + subgraph.count - 1):
            one, other = plan.steps[i], plan.steps[i + 1]
            values = {plan.buffers[w].value for w in one.writes}
            if any(r is not None and plan.buffers[r].value in values for r in other.reads):
                return replace(plan, steps=_replace_at(_replace_at(plan.steps, i, other), i + 1, one))
    return None


def write_to_constants(plan: Plan, rng: np.random.Generator) -> Plan | None:
    constants = [i for i, b in enumerate(plan.buffers) if b.memory == "constant"]
    if not constants:
        return None
    i = int(rng.integers(len(plan.steps)))
    return replace(plan, steps=_replace_at(plan.steps, i, replace(plan.steps[i], writes=(constants[0],))))


def huge_arena(plan: Plan, rng: np.random.Generator) -> Plan:
    return replace(plan, host_bytes=1 << 50)


def kernel_on_a_device(plan: Plan, rng: np.random.Generator) -> Plan | None:
    if len(plan.queues) < 2 or not any(s.queue == 1 for s in plan.subgraphs):
        return None
    return replace(plan, queues=_replace_at(plan.queues, 1, replace(plan.queues[1], kind="opencl")))


def launch_on_the_host(plan: Plan, rng: np.random.Generator) -> Plan:
    i = int(rng.integers(len(plan.steps)))
    return replace(plan, steps=_replace_at(plan.steps, i, replace(plan.steps[i], launch=Launch("conv.cl", (), (1,)))))


def unknown_kind(plan: Plan, rng: np.random.Generator) -> Plan:
    i = int(rng.integers(len(plan.steps)))
    odd: Any = "other"
    return replace(plan, steps=_replace_at(plan.steps, i, replace(plan.steps[i], kind=odd)))


def macs_that_no_step_has(plan: Plan, rng: np.random.Generator) -> Plan:
    total = sum(step.macs for step in plan.steps)
    return replace(plan, repeated_macs=int(rng.choice([-1, total + 1])))


BREAKS: list[Break] = [
    macs_that_no_step_has,
    drop_a_wait,
    wait_for_the_future,
    move_a_buffer_out,
    negative_offset,
    overlap_live_buffers,
    drop_a_step,
    unknown_queue,
    unknown_buffer,
    swap_two_dependent_steps,
    write_to_constants,
    huge_arena,
    kernel_on_a_device,
    launch_on_the_host,
    unknown_kind,
]


@pytest.mark.parametrize("broken", BREAKS, ids=lambda b: b.__name__)
def test_broken_plans_are_refused(broken: Break) -> None:
    tried = 0
    for seed in PLANS:
        plan = plan_of(seed)
        for attempt in range(5):
            changed = broken(plan, np.random.default_rng([seed, attempt]))
            if changed is None:
                continue
            tried += 1
            with pytest.raises(PackageError, match="inconsistent"):
                validate(changed)
    assert tried >= 5


@pytest.mark.parametrize("ratios", [(1, 2), (0,), (-1,), (1 << 40,)])
def test_ratios_that_do_not_fit_a_queue_are_refused(ratios: tuple[int, ...]) -> None:
    plan = plan_of(0)
    queues = _replace_at(plan.queues, 0, replace(plan.queues[0], ratios=ratios))
    with pytest.raises(PackageError, match="ratios"):
        validate(replace(plan, queues=queues))


def _with_step(plan: Plan, index: int, step: PlanStep) -> Plan:
    return replace(plan, steps=_replace_at(plan.steps, index, step))


@pytest.mark.opencl
def test_what_an_opencl_kernel_cannot_count_is_refused_when_the_plan_is_made() -> None:
    """Its integers have 32 bits, signed or unsigned; places of elements are signed."""
    processors = build_processors(f"opencl:0@{CORES[-1]}")
    plan = plan_model(RandomNetwork(0, processors=1, nodes=6).graph(), processors, tune=False).plan
    validate(plan)
    at, step = next((i, s) for i, s in enumerate(plan.steps) if s.launch is not None)
    launch = step.launch
    assert launch is not None
    for number in (-(1 << 31), (1 << 32) - 1):
        validate(_with_step(plan, at, replace(step, arguments=(*step.arguments, number))))
    wide = [replace(step, arguments=(*step.arguments, n)) for n in (-(1 << 31) - 1, 1 << 32, 1 << 62)]
    wide += [replace(step, launch=replace(launch, defines=(*launch.defines, ("NNS_ODD", 1 << 32))))]
    for changed in wide:
        with pytest.raises(PackageError, match=rf"^layer {step.layer} needs the number -?\d+ in .* counts in 32 bits"):
            validate(_with_step(plan, at, changed))
    for sizes in ((), (0,), (-1,), (1 << 31,), (1, 1, 1, 1)):
        with pytest.raises(PackageError, match="launches"):
            validate(_with_step(plan, at, replace(step, launch=replace(launch, global_size=sizes, local_size=None))))


@pytest.mark.opencl
def test_an_arena_beyond_the_elements_that_a_kernel_can_count_is_refused() -> None:
    processors = build_processors(f"opencl:0@{CORES[-1]}")
    plan = plan_model(RandomNetwork(0, processors=1, nodes=6).graph(), processors, tune=False).plan
    written = next(b for s in plan.steps if s.launch for b in s.writes if plan.buffers[b].memory == "device")
    far = replace(plan.buffers[written], offset=1 << 33)
    (queue,) = plan.device_bytes
    larger = replace(_with_buffer(plan, written, far), device_bytes={queue: 1 << 34})
    with pytest.raises(PackageError, match="counts in 32 bits; compute the layer on the CPU"):
        validate(larger)


def test_ratios_survive_json_and_are_optional_in_it() -> None:
    plan = plan_of(0)
    with_ratios = replace(plan, queues=_replace_at(plan.queues, 0, replace(plan.queues[0], ratios=(3,))))
    validate(with_ratios)
    assert Plan.from_json(with_ratios.to_json()) == with_ratios
    raw = json.loads(plan.to_json())
    for queue in raw["queues"]:
        del queue["ratios"]
    assert Plan.from_json(json.dumps(raw)) == plan


@pytest.mark.parametrize("seed", range(30))
def test_planned_plans_pass_and_survive_json(seed: int) -> None:
    plan = plan_of(seed)
    again = Plan.from_json(plan.to_json())
    assert again == plan
    validate(again)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"version": 1}', '{"version": 99}', "null", '{"version": 1, "block": "x"}']
)
def test_damaged_json(text: str) -> None:
    with pytest.raises(PackageError):
        Plan.from_json(text)


@pytest.mark.opencl
def test_a_device_names_the_shared_memory_that_it_reads_and_writes() -> None:
    processors = build_processors(f"cpu:{CORES[0]},opencl:0@{CORES[-1]}")
    plan = plan_model(RandomNetwork(1, processors=2, nodes=14, size=4).graph(), processors, tune=False).plan
    assert any(s.acquires for s in plan.subgraphs)
    assert any(s.releases for s in plan.subgraphs)
    for number, broken, words in (
        *(
            (i, replace(s, acquires=()), "acquiring")
            for i, s in enumerate(plan.subgraphs)
            if {*s.acquires} - {*s.releases}
        ),
        *(  # what is acquired may only be read
            (i, replace(s, acquires=tuple({*s.acquires, *s.releases}), releases=()), "releasing")
            for i, s in enumerate(plan.subgraphs)
            if s.releases
        ),
    ):
        with pytest.raises(PackageError, match=f"without {words}"):
            validate(replace(plan, subgraphs=_replace_at(plan.subgraphs, number, broken)))
