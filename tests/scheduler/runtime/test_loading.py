"""Binding a plan to the cores of this process."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from nnstretch.compiler.compile import plan_model
from nnstretch.compiler.processors import build_processors
from nnstretch.devices.base.spec import usable_cores
from nnstretch.errors import DeviceError, NNStretchError
from nnstretch.graph.reference import relative_error
from nnstretch.passes import optimize
from nnstretch.scheduler import planner
from nnstretch.scheduler.lowering import assembly
from nnstretch.scheduler.plan.schema import PlanQueue
from nnstretch.scheduler.runtime.loading import place_queues
from nnstretch.scheduler.runtime.session import PlanSession
from tests.kits.graphs.graphs import RandomNetwork


def _queues(*cores: tuple[int, ...]) -> list[PlanQueue]:
    return [PlanQueue("host", f"cpu:{number}", group, (1,) * len(group)) for number, group in enumerate(cores)]


@pytest.mark.parametrize(
    ("cores", "usable", "placed"),
    [
        ([(0, 1)], (0, 1, 2), [(0, 1)]),
        ([(0, 1)], (4, 5, 6), [(4, 5)]),
        ([(0, 1)], (1, 2), [(1, 2)]),
        ([(0, 1, 2)], (1,), [(1,)]),
        ([(0,), (1, 2)], (3, 4, 5), [(3,), (4, 5)]),
        ([(0,), (0, 1)], (2, 3), [(2,), (2, 3)]),
        ([(), (7,)], (0,), [(), (0,)]),
    ],
)
def test_queues_are_placed_on_cores_that_the_process_may_use(
    cores: list[tuple[int, ...]], usable: tuple[int, ...], placed: list[tuple[int, ...]]
) -> None:
    queues = place_queues(_queues(*cores), usable)
    assert [queue.cores for queue in queues] == placed
    assert all(len(queue.ratios) in (0, len(queue.cores)) for queue in queues)


def test_more_processors_than_cores_are_refused() -> None:
    with pytest.raises(DeviceError, match=r"3 cores \(0-2\), this process may use 2 \(0\+4\)"):
        place_queues(_queues((0,), (1, 2)), (0, 4))


@pytest.mark.opencl
def test_a_device_is_placed_on_cores_that_the_process_may_use() -> None:
    cores = usable_cores()
    network = RandomNetwork(3, processors=2, nodes=8)
    compiled = plan_model(network.graph(), build_processors(f"cpu:{cores[0]},opencl:0"), tune=False)
    host, device = compiled.plan.queues
    moved = (replace(host, cores=(500,)), replace(device, processor="opencl:0@501", cores=(501,)))
    assert [queue.cores for queue in place_queues(moved, (0, 1))] == [(0,), (1,)]
    if len(cores) < 2:
        pytest.skip("two processors need two cores")
    feeds = {"x": network.input}
    with PlanSession(replace(compiled, plan=replace(compiled.plan, queues=moved))) as session:
        for expected, found in zip(network.expected(), session.run(None, feeds), strict=True):
            assert relative_error(found, expected) < 1e-4


@pytest.mark.parametrize("name", ["cpu:0", "opencl:0,opencl:1", ""])
def test_an_opencl_queue_without_a_device_is_refused(name: str) -> None:
    network = RandomNetwork(3, processors=1, nodes=8)
    compiled = plan_model(network.graph(), build_processors(f"cpu:{usable_cores()[0]}"), tune=False)
    queues = (*compiled.plan.queues, PlanQueue("opencl", name, ()))
    with pytest.raises(NNStretchError, match=r"processor|OpenCL queue"):
        PlanSession(replace(compiled, plan=replace(compiled.plan, queues=queues)))


def test_a_plan_for_more_cores_than_allowed_runs_on_fewer() -> None:
    network = RandomNetwork(3, processors=1, nodes=8)
    compiled = plan_model(network.graph(), build_processors(f"cpu:{usable_cores()[0]}"), tune=False)
    many = replace(compiled.plan.queues[0], cores=(500, 501, 502), ratios=(1, 1, 3))
    feeds = {"x": network.input}
    with (
        PlanSession(compiled) as one,
        PlanSession(replace(compiled, plan=replace(compiled.plan, queues=(many,)))) as other,
    ):
        for expected, found in zip(one.run(None, feeds), other.run(None, feeds), strict=True):
            assert np.array_equal(expected, found)


def test_weights_are_packed_when_they_are_first_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    packings: list[int] = []
    monkeypatch.setattr(assembly, "write_constants", lambda jobs, *_: packings.append(len(jobs)))
    network = RandomNetwork(4, 1)
    processors = build_processors("cpu")
    compiled = planner.make_plan(optimize(network.graph()), processors.named, processors.host)
    assert not packings
    assert compiled.constants is compiled.constants
    assert len(packings) == 1
    assert packings[0] > 0
