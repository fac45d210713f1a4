"""Streams: the answers of inputs that run side by side, the queue that they come from, and who computes them."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import CancelledError
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import pytest

import nnstretch
from nnstretch.compiler.compile import plan_model
from nnstretch.compiler.processors import build_processors
from nnstretch.compiler.several_plans import arrangements
from nnstretch.errors import DeadlineError, DeviceError, FeedError, NNStretchError, UsageError
from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.scheduler.plan.schema import Plan
from nnstretch.scheduler.runtime.adaptive.session import AdaptiveSession
from nnstretch.scheduler.runtime.arrangement import Arrangement, ReplicaGroup, choose, relocated, state_bytes
from nnstretch.scheduler.runtime.dispatch import Dispatch
from nnstretch.scheduler.runtime.session import PlanSession
from nnstretch.scheduler.runtime.stream_session import StreamSession
from tests.kits.graphs.graphs import RandomNetwork
from tests.kits.opencl.opencl_sessions import opencl_queues

CORES = sorted(os.sched_getaffinity(0))
TWO_CPUS = f"cpu:{CORES[0]},cpu:{CORES[-1]}"
two_cores = pytest.mark.skipif(len(CORES) < 2, reason="two processors need two cores")
Feeds = dict[str, np.ndarray]


def compiled(network: RandomNetwork, processors: str) -> Compiled:
    return plan_model(network.graph(), build_processors(processors), tune=False)


def together(made: Compiled, streams: int) -> Arrangement:
    return Arrangement("together", (ReplicaGroup(made, streams),))


def feeds_of(network: RandomNetwork, count: int) -> list[Feeds]:
    return [{"x": network.input * np.float32(scale)} for scale in range(1, count + 1)]


def same(a: Sequence[np.ndarray], b: Sequence[np.ndarray]) -> bool:
    return all(x.tobytes() == y.tobytes() for x, y in zip(a, b, strict=True))


# ---- answers


@pytest.mark.parametrize(
    "processors",
    [
        pytest.param(TWO_CPUS, marks=two_cores),
        pytest.param(f"cpu:{CORES[0]},opencl:0@{CORES[-1]}", marks=[two_cores, pytest.mark.opencl]),
        pytest.param(f"opencl:0@{CORES[-1]}", marks=pytest.mark.opencl),
    ],
)
def test_inputs_that_run_through_the_processors_together_have_the_answers_of_single_runs(processors: str) -> None:
    network = RandomNetwork(103, processors=processors.count(",") and 2, nodes=14, size=6)
    made, inputs = compiled(network, processors), feeds_of(network, 12)
    with PlanSession(made) as single:
        wanted = [single.run(None, feeds) for feeds in inputs]
    with StreamSession(together(made, 3)) as streams:
        assert streams.streams == 3
        for _ in range(8):
            assert all(map(same, streams.run_many(inputs), wanted))
        assert all(map(same, streams.stream(iter(inputs)), wanted))
        assert same(streams.run(None, inputs[4]), wanted[4])


def test_replicas_share_weights_and_nothing_that_a_run_writes() -> None:
    network = RandomNetwork(7, processors=0, nodes=12, size=6)
    made = compiled(network, f"cpu:{CORES[0]}")
    with PlanSession(made) as first, first.replica() as second:
        wanted = first.run(None, {"x": network.input})
        second.run(None, {"x": -network.input})
        assert same(first.run(None, {"x": network.input}), wanted)
    group = ReplicaGroup(made, streams=3)
    arrangement = Arrangement("apart", (group, replace(group, compiled=relocated(made, "cpu:9", (9,)), streams=1)))
    assert arrangement.weight_bytes == sum(size for _, size in made.plan.constant_ranges.values())
    assert arrangement.stream_bytes == 4 * state_bytes(made.plan)
    assert state_bytes(made.plan) >= made.plan.host_bytes > 0


@pytest.mark.opencl
def test_replicas_share_a_devices_weights() -> None:
    network = RandomNetwork(7, processors=0, nodes=8, size=6)
    with PlanSession(compiled(network, f"opencl:0@{CORES[-1]}")) as first, first.replica() as second:
        one, other = (opencl_queues(session).memories for session in (first, second))
        shared = [key for key in one if one[key] is other[key]]
        assert shared == [key for key in one if key[0] == "constant"] != []


@two_cores
def test_the_cores_of_a_cpu_are_divided_and_equal_groups_have_one_plan() -> None:
    network = RandomNetwork(7, processors=0, nodes=12, size=6)
    usable = build_processors(f"cpu:{CORES[0]}+{CORES[-1]}")
    divided, whole = arrangements(network.graph(), usable, 2, tune=False)
    assert [group.processors for group in divided.groups] == [(f"cpu:{CORES[0]}",), (f"cpu:{CORES[-1]}",)]
    assert divided.groups[0].compiled.weights is divided.groups[1].compiled.weights
    assert [group.streams for group in whole.groups] == [2]
    assert choose([divided, whole]) is divided  # nothing was measured
    with PlanSession(compiled(network, f"cpu:{CORES[0]}")) as single, StreamSession(divided) as streams:
        inputs = feeds_of(network, 20)
        wanted = [single.run(None, feeds) for feeds in inputs]
        assert all(map(same, streams.run_many(inputs), wanted))
    (one,) = arrangements(network.graph(), usable, 1, tune=False)
    assert one.streams == 1


@two_cores
def test_a_branched_network_is_computed_whole_where_processors_work_apart() -> None:
    network = RandomNetwork(11, processors=2, nodes=12, size=6)
    found = arrangements(network.graph(), build_processors(TWO_CPUS), 4, tune=False)
    assert {way.name: [group.streams for group in way.groups] for way in found} == {"apart": [2, 2], "together": [4]}
    for way in found:
        with StreamSession(way) as streams:
            for answer in streams.run_many([{"x": network.input}] * 8):
                for one, wanted in zip(answer, network.expected(), strict=True):
                    np.testing.assert_allclose(one, wanted, rtol=1e-3, atol=1e-4)


# ---- errors, limits and ends


def small() -> tuple[Compiled, list[Feeds]]:
    network = RandomNetwork(3, processors=0, nodes=4, size=4)
    return compiled(network, f"cpu:{CORES[0]}"), feeds_of(network, 6)


def test_an_input_that_does_not_fit_is_the_only_one_that_fails() -> None:
    made, inputs = small()
    wrong: list[Feeds] = [*inputs[:2], {"x": np.zeros(3, np.float32)}, *inputs[2:]]
    with PlanSession(made) as single, StreamSession(together(made, 2)) as streams:
        found = streams.run_many(wrong, return_errors=True)
        assert isinstance(found[2], FeedError)
        for answer, feeds in zip([*found[:2], *found[3:]], inputs, strict=True):
            assert not isinstance(answer, NNStretchError)
            assert same(answer, single.run(None, feeds))
        assert sum(stream.inputs for stream in streams.computed) == len(inputs)
        assert all((stream.seconds > 0) == (stream.inputs > 0) for stream in streams.computed)
        with pytest.raises(FeedError, match="shape"):
            streams.run_many(wrong)
        with pytest.raises(FeedError, match="unknown output"):
            streams.submit(inputs[0], ["nothing"])
        coming = streams.stream(wrong)
        assert same(next(coming), single.run(None, inputs[0]))
        assert same(next(coming), single.run(None, inputs[1]))
        with pytest.raises(FeedError, match="shape"):
            next(coming)


def test_what_one_processor_fails_at_another_one_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    made, inputs = small()
    with PlanSession(made) as single:
        wanted = [single.run(None, feeds) for feeds in inputs]
    broken: set[int] = set()
    run, lock, tried = PlanSession.run, threading.Lock(), []

    def failing(self: PlanSession, names: Sequence[str] | None, feeds: Feeds) -> list[np.ndarray]:
        with lock:
            tried.append(id(self))
        if id(self) in broken:
            raise DeviceError("the device was lost")
        return run(self, names, feeds)

    with StreamSession(together(made, 2)) as streams:
        monkeypatch.setattr(PlanSession, "run", failing)
        broken.add(id(streams._sessions[0][1]))
        assert all(map(same, streams.run_many(inputs), wanted))
        broken.update(id(session) for _, session in streams._sessions)
        tried.clear()
        answer = streams.submit(inputs[0])
        with pytest.raises(DeviceError, match="lost"):
            answer.result(60)
        assert sorted(tried) == sorted(broken)  # each once
        broken.clear()
        assert same(streams.run(None, inputs[1]), wanted[1])


def test_no_more_inputs_wait_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    made, inputs = small()
    begin, going = threading.Event(), threading.Semaphore(0)
    run = PlanSession.run

    def held(self: PlanSession, names: Sequence[str] | None, feeds: Feeds) -> list[np.ndarray]:
        going.release()
        begin.wait(60)
        return run(self, names, feeds)

    monkeypatch.setattr(PlanSession, "run", held)
    streams = StreamSession(together(made, 1))
    first = streams.submit(inputs[0])
    assert going.acquire(timeout=60)
    waiting = [streams.submit(feeds) for feeds in inputs[1:3]]
    with pytest.raises(TimeoutError, match="no space"):
        streams.submit(inputs[3], timeout=0.01)
    closing = threading.Thread(target=streams.close, kwargs={"cancel": True})
    closing.start()
    for answer in waiting:
        with pytest.raises(CancelledError):
            answer.result(60)
    begin.set()
    closing.join(60)
    assert not closing.is_alive()
    assert first.result(0)
    with pytest.raises(UsageError, match="closed"):
        streams.submit(inputs[0])
    streams.close()


def test_a_run_that_misses_its_deadline_leaves_the_session_busy_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    made, inputs = small()
    begin = threading.Event()
    run = PlanSession.run

    def held(self: PlanSession, names: Sequence[str] | None, feeds: Feeds) -> list[np.ndarray]:
        begin.wait(60)
        return run(self, names, feeds)

    monkeypatch.setattr(PlanSession, "run", held)
    with StreamSession(together(made, 1)) as streams:
        with pytest.raises(UsageError, match=r"deadline is 0"):
            streams.run(None, inputs[0], deadline=0)
        for _ in range(2):
            with pytest.raises(DeadlineError, match=r"within 0\.05 s"):
                streams.run(None, inputs[0], deadline=0.05)
            assert streams.busy
        begin.set()
        assert streams.run(None, inputs[0], deadline=60)
        assert not streams.busy


def test_sessions_of_all_kinds_have_the_same_calls(tmp_path: Path) -> None:
    made, inputs = small()
    wrong = {"other": inputs[0]["x"]}
    with PlanSession(made) as single, AdaptiveSession({"only": made}, "fixed") as adaptive:
        wanted = [single.run(None, feeds) for feeds in inputs]
        for session in (single, adaptive, StreamSession(together(made, 2))):
            with session:
                assert all(map(same, session.run_many(inputs), wanted))
                assert all(map(same, session.stream(inputs), wanted))
                assert same(session.submit(inputs[0]).result(60), wanted[0])
                with pytest.raises(FeedError):
                    session.submit(wrong)
                found = session.run_many([inputs[0], wrong], return_errors=True)
                assert isinstance(found[1], FeedError)
                assert len(session.time(runs=3)) == 3
                assert session.profile(runs=1).total > 0
                assert session.switches == []
                assert not session.busy
                if not isinstance(session, StreamSession):
                    session.save(tmp_path / "one.nns")
    with StreamSession(together(made, 2)) as streams, pytest.raises(UsageError, match="open its package with streams"):
        streams.save(tmp_path / "two.nns")


def test_bound_arrays_are_read_and_written_by_every_run() -> None:
    made, inputs = small()
    x = inputs[0]["x"]
    for session in (PlanSession(made), AdaptiveSession({"only": made}, "fixed"), StreamSession(together(made, 2))):
        with session:
            binding = session.bind({"x": x.copy()})
            outputs = dict(binding.outputs)
            for feeds in inputs:
                wanted = session.run(None, feeds)
                binding.inputs["x"][...] = feeds["x"]
                assert binding.run() is binding.outputs
                assert same(list(outputs.values()), wanted)
            assert list(outputs) == [one.name for one in session.get_outputs()]
            for wrong in ({"other": x}, {"x": x[..., :-1]}, {"x": x.astype(np.float64)}, {}):
                with pytest.raises(FeedError):
                    session.bind(wrong)
            swapped = x.astype(x.dtype.newbyteorder())
            assert same(session.run(None, {"x": swapped}), session.run(None, {"x": x}))
            with pytest.raises(TypeError, match="assignment"):
                cast("dict[str, np.ndarray]", binding.inputs)["x"] = x
            views: list[Any] = [x.data, np.repeat(x, 2, axis=-1)[..., ::2], swapped]
            for copied in views:
                with pytest.raises(FeedError, match="'x' is no contiguous numpy array"):
                    session.bind({"x": copied})
        with pytest.raises(UsageError, match="closed"):
            binding.run()


def test_arrays_without_axes_and_without_elements_can_be_bound() -> None:
    text = """
        <ir_version: 10, opset_import: ["" : 20]>
        net (float[2, 3] x, float[] s, float[0, 3] e) => (float[2, 3] y) { a = Concat<axis = 0>(x, e) y = Mul(a, s) }
    """
    feeds = {"x": np.ones((2, 3), np.float32), "s": np.array(2, np.float32), "e": np.zeros((0, 3), np.float32)}
    model = onnx.parser.parse_model(text)
    model.graph.input[1].type.tensor_type.shape.SetInParent()  # text without a number is a shape that is unknown
    with nnstretch.compile(model, processors=f"cpu:{CORES[0]}", tune=False) as session:
        binding = session.bind(feeds)
        for scale in (2, 3):
            binding.inputs["s"][...] = scale
            assert (binding.run()["y"] == scale).all()


def test_closing_finishes_what_was_submitted() -> None:
    made, inputs = small()
    with StreamSession(together(made, 2)) as streams:
        coming = [streams.submit(feeds) for feeds in inputs[:4]]
        names = {thread.name for thread in streams._threads}
    assert all(answer.result(0) for answer in coming)
    assert not names & {thread.name for thread in threading.enumerate() if thread in streams._threads}


def test_closing_ends_what_a_failed_processor_has_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other processor will compute it."""
    made, (long, lost, *_) = small()
    run, started, failed, go_on = PlanSession.run, threading.Event(), threading.Event(), threading.Event()

    def some_fail(self: PlanSession, names: Sequence[str] | None, feeds: Feeds) -> list[np.ndarray]:
        if all(np.array_equal(feeds[name], lost[name]) for name in lost):
            failed.set()
            raise DeviceError("the device was lost")
        started.set()
        assert go_on.wait(60)
        return run(self, names, feeds)

    streams = StreamSession(together(made, 2))
    monkeypatch.setattr(PlanSession, "run", some_fail)
    whole = streams.submit(long)
    assert started.wait(60)
    given_back = streams.submit(lost)
    assert failed.wait(60)
    closing = threading.Thread(target=streams.close, kwargs={"cancel": True})
    closing.start()
    go_on.set()
    closing.join(60)
    assert not closing.is_alive()
    assert whole.result(0)
    with pytest.raises(DeviceError):
        given_back.result(10)


# ---- the queue


class Clock:
    """Seconds as a test has them."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def makespan(seconds: Sequence[float], count: int) -> tuple[float, list[int]]:
    """Simulated time at which the last of `count` pieces ends, and the number of pieces of each runner."""
    clock = Clock()
    queue: Dispatch[int] = Dispatch(seconds, count, clock)
    for number in range(count):
        queue.put(number)
    ends: dict[int, float] = {}
    had = [0] * len(seconds)
    order: list[int] = []
    while len(order) < count or ends:
        for runner in range(len(seconds)):
            piece = queue._next(runner) if runner not in ends else None
            if piece is not None:
                taken = queue.take(runner)
                assert taken is not None
                order.append(taken)
                ends[runner] = clock.now + seconds[runner]
                had[runner] += 1
        runner = min(ends, key=ends.__getitem__)
        clock.now = ends.pop(runner)
        queue.done(runner)
    assert order == list(range(count))
    return clock.now, had


def test_runners_get_work_by_their_speed_and_the_last_pieces_do_not_wait_for_the_slowest() -> None:
    assert makespan([1.0, 1.0], 8) == (4.0, [4, 4])
    ended, had = makespan([1.0, 3.0], 40)
    assert had == [30, 10]
    assert ended == pytest.approx(30.0)
    assert makespan([1.0, 3.0], 2) == (2.0, [2, 0])  # the slow one would need longer for the second
    assert makespan([1.0, 10.0], 9) == (9.0, [9, 0])
    ended, had = makespan([1.0, 10.0], 11)
    assert had == [10, 1]
    assert ended == 10.0


def test_a_runner_learns_its_speed_and_gives_back_what_it_cannot_do() -> None:
    clock = Clock()
    queue: Dispatch[str] = Dispatch([None, 1.0], 4, clock)
    assert queue.put("a")
    assert queue.take(0) == "a"  # nothing is known of it
    clock.now = 5.0
    queue.done(0)
    assert queue.put("b")
    assert queue._next(0) is None  # five times as slow as the other
    assert queue.take(1) == "b"
    assert queue.give_back(1)
    assert queue.take(0) == "b"  # nobody else is left
    assert not queue.give_back(0)
    for piece in "cdef":
        assert queue.put(piece)
    assert not queue.put("g", timeout=0.0)
    assert queue.discard() == ["c", "d", "e", "f"]
    queue.close()
    assert queue.take(1) is None
    with pytest.raises(ValueError, match="closed"):
        queue.put("h")


# ---- prediction


def priced(plan: Plan, milliseconds: Sequence[float]) -> Plan:
    """The plan with the given total time of steps on each queue."""
    steps = list(plan.steps)
    for queue, total in enumerate(milliseconds):
        mine = [i for s in plan.subgraphs if s.queue == queue for i in range(s.first, s.first + s.count)]
        for i in mine:
            steps[i] = replace(steps[i], cost_ms=total / len(mine))
    return replace(plan, steps=tuple(steps))


@two_cores
def test_who_waits_least_is_predicted_to_be_fastest() -> None:
    spread = compiled(RandomNetwork(11, processors=2, nodes=12, size=6), TWO_CPUS)
    alone = compiled(RandomNetwork(7, processors=0, nodes=12, size=6), f"cpu:{CORES[0]}")

    def group(made: Compiled, latency: float, *milliseconds: float, streams: int = 1) -> ReplicaGroup:
        return ReplicaGroup(replace(made, plan=priced(made.plan, milliseconds)), streams, latency * 1e-3)

    apart = Arrangement("apart", (group(alone, 10, 10), group(alone, 15, 15)))
    assert apart.rate == pytest.approx(100 + 1000 / 15)
    # One input at a time takes 9 ms; from two on, the queue that computes for 5 ms sets the rate.
    assert Arrangement("one", (group(spread, 9, 5, 4),)).rate == pytest.approx(1000 / 9)
    pipeline = Arrangement("together", (group(spread, 9, 5, 4, streams=3),))
    assert pipeline.rate == pytest.approx(200)
    assert pipeline.duration == pytest.approx(15e-3)
    assert apart.duration == pytest.approx(15e-3)
    assert Arrangement("unknown", (*apart.groups, replace(apart.groups[0], latency=None))).duration is None
    assert choose([apart, pipeline]) is pipeline
    uneven = Arrangement("together", (group(spread, 9, 6.2, 3, streams=3),))
    assert choose([apart, uneven]) is apart
    slowed = replace(pipeline, groups=(replace(pipeline.groups[0], contention_factor=1.3),))
    assert choose([apart, slowed]) is apart
    assert choose([apart, replace(apart, name="no faster")]) is apart
    # Fewer streams than groups: the fastest ones are kept.
    assert [one.latency for one in apart.with_streams(1).groups] == [10e-3]
    assert [one.streams for one in apart.with_streams(9).groups] == [2, 2]


def test_streams_that_cannot_be() -> None:
    network = RandomNetwork(3, processors=0, nodes=4, size=4)
    with pytest.raises(UsageError, match="at least 1"):
        arrangements(network.graph(), build_processors(f"cpu:{CORES[0]}"), 0, tune=False)
    with pytest.raises(UsageError, match="simulated"):
        arrangements(network.graph(), build_processors("sim:phone/cpu"), 2, tune=False)
