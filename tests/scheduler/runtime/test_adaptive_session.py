"""Sessions of several plans: equal answers, packages, plans that cannot run here, faults and slowed processors."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import numpy as np
import pytest

import nnstretch as nns
from nnstretch.api.options import CompileOptions
from nnstretch.compiler.compile import plan_model
from nnstretch.compiler.processors import build_processors
from nnstretch.compiler.several_plans import compile_plans
from nnstretch.errors import DeviceError, FeedError, PackageError, UsageError
from nnstretch.graph.reference import relative_error
from nnstretch.package import read_package, write_package
from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.scheduler.plan.packaging import packaged, unpackaged, with_shared_constants
from nnstretch.scheduler.plan.validate import validate
from nnstretch.scheduler.runtime.adaptive.estimator import PlanFacts
from nnstretch.scheduler.runtime.adaptive.session import AdaptiveSession
from nnstretch.scheduler.runtime.session import PlanSession
from tests.kits.graphs.graphs import RandomNetwork

CORES = sorted(os.sched_getaffinity(0))
C, D = f"cpu:{CORES[0]}", f"cpu:{CORES[-1]}"
G = f"opencl:0@{CORES[-1]}"
NETWORK = RandomNetwork(4, processors=2, nodes=14, size=8)
SMALL = RandomNetwork(6, processors=2, nodes=5, size=8)  # few kernels for a driver to build
pytestmark = pytest.mark.skipif(len(CORES) < 2, reason="two processors need two cores")


@pytest.fixture(scope="module")
def cpus() -> Mapping[str, Compiled]:
    """Plans of one branched network for two cores and for each of them, with constants of their own."""
    with compile_plans(NETWORK.graph(), [f"{C},{D}", C, D], "fixed", CompileOptions(tune=False)) as session:
        shared = {name: session._compiled[name] for name in session.plans}
    with PlanSession(shared[C]) as one:
        assert one.plan.inputs
    return shared


def run(session: AdaptiveSession | PlanSession) -> list[np.ndarray]:
    return session.run(None, {"x": NETWORK.input})


class Faulty:
    """A session whose runs fail or take longer on request, like a lost or disturbed processor."""

    def __init__(self, session: PlanSession) -> None:
        self._session = session
        self.failure: Exception | None = None
        self.seconds = 0.0
        self.runs = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    def run(
        self, names: Sequence[str] | None, feeds: Mapping[str, np.ndarray], deadline: float | None = None
    ) -> list[np.ndarray]:
        self._disturb()
        return self._session.run(names, feeds, deadline=deadline)

    def run_traced(self, names: Sequence[str] | None, feeds: Mapping[str, np.ndarray]) -> Any:
        self._disturb()
        return self._session.run_traced(names, feeds)

    def _disturb(self) -> None:
        self.runs += 1
        if self.failure:
            raise self.failure
        sleep(self.seconds)


def with_faults(session: AdaptiveSession) -> dict[str, Faulty]:
    """Puts a `Faulty` around every plan's session."""
    faults = {name: Faulty(session._session(name)) for name in session.plans}
    session._sessions.clear()
    session._session = faults.__getitem__  # type: ignore[method-assign,assignment]
    return faults


def check_answers(session: AdaptiveSession, runs: int = 1, network: RandomNetwork = NETWORK) -> None:
    for _ in range(runs):
        for found, expected in zip(session.run(None, {"x": network.input}), network.expected(), strict=True):
            assert relative_error(found, expected) < 1e-4


def test_a_design_is_placed_on_the_processors_of_each_plan(cpus: Mapping[str, Compiled]) -> None:
    queues = {name: {s.queue for s in compiled.plan.subgraphs} for name, compiled in cpus.items()}
    assert queues == {f"{C},{D}": {0, 1}, C: {0}, D: {0}}
    for compiled in cpus.values():
        with PlanSession(compiled) as session:
            for found, expected in zip(run(session), NETWORK.expected(), strict=True):
                assert relative_error(found, expected) < 1e-4


def test_equal_constants_are_stored_once() -> None:
    plans = [plan_model(NETWORK.graph(), build_processors(p), tune=False) for p in (f"{C},{D}", f"{D},{C}")]
    shared = with_shared_constants(plans)
    assert shared[0].constants is shared[1].constants
    assert shared[0].constants.nbytes <= max(plan.constants.nbytes for plan in plans)
    for before, after in zip(plans, shared, strict=True):
        validate(after.plan)
        with PlanSession(before) as one, PlanSession(after) as other:
            for a, b in zip(run(one), run(other), strict=True):
                assert a.tobytes() == b.tobytes()


@pytest.mark.opencl
def test_a_package_of_plans_on_a_cpu_and_a_device(tmp_path: Path) -> None:
    path = tmp_path / "several.nns"
    with nns.compile(SMALL.graph(), plans=[f"{C},{G}", C, G], policy="fixed", tune=False) as session:
        session.save(path, {"about": "a test"})
        wanted = session.run(None, {"x": SMALL.input})
    package = read_package(path)
    assert list(package.plans) == [f"{C},{G}", C, G]
    assert package.metadata["about"] == "a test"
    plans = unpackaged(package)
    on_device = [compiled.plan.constant_ranges.get(1) for compiled in plans.values()]
    assert on_device[1] is None
    assert None not in (on_device[0], on_device[2])
    for policy in ("adaptive", "fixed", "deadline=1s"):
        with nns.compile(path, policy=policy) as loaded:
            assert isinstance(loaded, AdaptiveSession)
            check_answers(loaded, network=SMALL)
            assert loaded.plans == list(package.plans)
    with nns.compile(path) as single:
        assert isinstance(single, PlanSession)
        for a, b in zip(single.run(None, {"x": SMALL.input}), wanted, strict=True):
            assert a.tobytes() == b.tobytes()
    for name, compiled in plans.items():
        with AdaptiveSession({name: compiled}, "fixed", sources=package.sources) as alone:
            check_answers(alone, network=SMALL)
            assert alone.current == name


@pytest.mark.parametrize("kind", [PlanSession, AdaptiveSession])
def test_metadata_survives_opening_a_package_and_saving_it_again(
    cpus: Mapping[str, Compiled], tmp_path: Path, kind: type[PlanSession | AdaptiveSession]
) -> None:
    once, again = tmp_path / "once.nns", tmp_path / "again.nns"
    about = {"source": {"model": "m.onnx"}, "mean": [0.5, 0.25], "note": "first"}
    with AdaptiveSession(cpus, "fixed") as session:
        session.save(once, about)
    with kind.load(once) as opened:
        opened.save(again)
        assert read_package(again).metadata.items() >= about.items()
        opened.save(again, {"note": "second"})
    assert read_package(again).metadata.items() >= {**about, "note": "second"}.items()


def test_times_of_plans_are_kept_in_the_package(cpus: Mapping[str, Compiled], tmp_path: Path) -> None:
    path = tmp_path / "several.nns"
    with AdaptiveSession(cpus) as session:
        facts = {plan.name: plan for plan in session.facts}
        assert set(facts) == set(cpus)
        assert set(facts[f"{C},{D}"].busy) == {C, D}
        assert all(0 < sum(plan.busy.values()) < 4 * plan.seconds for plan in facts.values())
        session.save(path)
    with AdaptiveSession.load(path) as loaded:
        assert [plan.seconds for plan in loaded.facts] == pytest.approx([plan.seconds for plan in facts.values()])
    package = read_package(path)
    here = package.metadata["calibration"]["machine"]
    damaged: list[dict[str, Any]] = [{"plans": {}}, {"machine": here, "plans": dict.fromkeys(cpus)}]
    damaged.append({"machine": here, "plans": {name: {"ms": 10**400, "busy_ms": {C: 1.0}} for name in cpus}})
    for broken in damaged:
        write_package(replace(package, metadata={"calibration": broken}), path)
        with pytest.raises(PackageError, match="calibration is damaged"):
            AdaptiveSession.load(path)
    elsewhere = {**package.metadata["calibration"], "machine": "another"}
    write_package(replace(package, metadata={"calibration": elsewhere}), path)
    with AdaptiveSession.load(path) as loaded:  # measured again
        assert len(loaded.facts) == len(cpus)


def test_a_processor_without_work_has_no_times(cpus: Mapping[str, Compiled], tmp_path: Path) -> None:
    """As where all layers run fastest on one of two processors."""
    path, one = tmp_path / "idle.nns", cpus[C]
    (idle,) = (queue for queue in cpus[f"{C},{D}"].plan.queues if queue.processor == D)
    both = replace(one, plan=replace(one.plan, queues=(*one.plan.queues, idle)))
    with AdaptiveSession({f"{C},{D}": both, C: one}) as session:
        assert [set(plan.busy) for plan in session.facts] == [{C}, {C}]
        session.save(path)
    with AdaptiveSession.load(path) as loaded:
        assert len(loaded.facts) == 2


def missing(compiled: Compiled) -> Compiled:
    """The plan for a simulated processor, which is not on this machine."""
    queues = tuple(replace(queue, processor="sim:phone/cpu") for queue in compiled.plan.queues)
    return replace(compiled, plan=replace(compiled.plan, queues=queues))


def test_plans_whose_processors_are_not_here_are_left_out(
    cpus: Mapping[str, Compiled], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "several.nns"
    write_package(packaged({"first": missing(cpus[C]), C: cpus[C], D: cpus[D]}, {}, {}), path)
    for policy in ("adaptive", "fixed"):
        caplog.clear()
        with caplog.at_level(logging.WARNING), AdaptiveSession.load(path, policy) as session:
            assert session.plans == [C, D]
            check_answers(session)
        (line,) = caplog.messages
        assert "plan first is left out" in line
        assert "sim:phone/cpu" in line
    caplog.clear()
    with PlanSession.load(path) as single:
        run(single)
    assert "runs plan" in caplog.text
    write_package(packaged({"first": missing(cpus[C]), "second": missing(cpus[D])}, {}, {}), path)
    with pytest.raises(DeviceError, match="sim:phone"):
        AdaptiveSession.load(path)
    with pytest.raises(DeviceError, match="sim:phone"):
        PlanSession.load(path)


@pytest.fixture
def session(cpus: Mapping[str, Compiled]) -> Iterator[AdaptiveSession]:
    with AdaptiveSession(cpus) as made:
        yield made


@pytest.mark.parametrize("policy", ["adaptive", "fixed", "deadline=1s"])
@pytest.mark.parametrize("error", [DeviceError("the device was lost"), MemoryError()])
def test_a_run_that_fails_is_answered_by_another_plan(
    cpus: Mapping[str, Compiled], policy: str, error: Exception
) -> None:
    with AdaptiveSession(cpus, policy) as session:
        faults = with_faults(session)
        first = session.current
        faults[first].failure = error
        check_answers(session, runs=20)
        assert session.current != first
        assert session.switches[0].before == first
        assert "failed" in session.switches[0].reason
        assert 1 <= faults[first].runs <= 3, "a plan that fails is not tried in every run"
        assert [ran.plan for ran in session.history if ran.failure] == [first] * faults[first].runs
        for fault in faults.values():
            fault.failure = error
        with pytest.raises(DeviceError, match="all 3 plans failed, "):
            run(session)
        for fault in faults.values():
            fault.failure = None
        check_answers(session, runs=3)
        assert not session.history[-1].failure


def test_wrong_feeds_are_no_fault(session: AdaptiveSession) -> None:
    with pytest.raises(FeedError, match="shape"):
        session.run(None, {"x": NETWORK.input[:, :, 1:]})
    with pytest.raises(FeedError, match="output"):
        session.run(["nothing"], {"x": NETWORK.input})
    assert not session.history
    check_answers(session)


def test_a_slowed_plan_is_left_and_taken_again(session: AdaptiveSession) -> None:
    faults = with_faults(session)
    check_answers(session, runs=3)
    first = session.current
    faults[first].seconds = 0.005  # many times what the network takes
    before = len(session.history)
    check_answers(session, runs=30)
    assert session.current != first
    assert sum(ran.plan == first for ran in session.history[before:]) <= 12
    faults[first].seconds = 0.0
    for name in set(faults) - {first}:
        faults[name].seconds = 0.003
    until = perf_counter() + 60
    while session.current != first and perf_counter() < until:
        run(session)
    assert session.current == first
    assert len(session.switches) >= 2


def test_the_first_run_of_a_plan_says_nothing_of_the_next(cpus: Mapping[str, Compiled]) -> None:
    """With the times of a package, no plan has run before: caches are cold, and threads sleep."""
    facts = [
        PlanFacts(name, 0.01 * (number + 1), dict.fromkeys(name.split(","), 0.01 * (number + 1)))
        for number, name in enumerate(cpus)
    ]
    with AdaptiveSession(cpus, facts=facts) as session:
        faults = with_faults(session)
        first = next(iter(cpus))
        faults[first].seconds = 0.3
        run(session)
        faults[first].seconds = 0.01
        run(session)
        assert [ran.plan for ran in session.history] == [first, first]
        faults[first].seconds = 0.3
        for _ in range(6):
            run(session)
        assert session.current != first


def test_called_as_a_session_is(session: AdaptiveSession, cpus: Mapping[str, Compiled]) -> None:
    with PlanSession(cpus[C]) as single:
        assert session.get_inputs() == single.get_inputs()
        assert session.get_outputs() == single.get_outputs()
    names = [output.name for output in session.get_outputs()]
    (last,) = session.run(names[-1:], {"x": NETWORK.input})
    assert relative_error(last, NETWORK.expected()[-1]) < 1e-4
    assert session.profile({"x": NETWORK.input}, runs=1).total > 0
    assert 1 <= len(session.time(runs=5, warmup=1)) <= 5
    assert session.plan is session.compiled.plan
    session.close()
    session.close()
    with pytest.raises(UsageError, match="closed"):
        run(session)


def test_plans_that_do_not_go_together(cpus: Mapping[str, Compiled]) -> None:
    other = plan_model(RandomNetwork(5, processors=0, size=8).graph(), build_processors(C), tune=False)
    with pytest.raises(PackageError, match="other inputs or outputs"):
        AdaptiveSession({**cpus, "other": other})
    with pytest.raises(UsageError, match="no plan"):
        AdaptiveSession({})
    with pytest.raises(UsageError, match="policy"):
        AdaptiveSession(cpus, "fast")
    with pytest.raises(UsageError, match="twice"):
        compile_plans(NETWORK.graph(), [C, C], options=CompileOptions(tune=False))
    with pytest.raises(UsageError, match="none"):
        compile_plans(NETWORK.graph(), [], options=CompileOptions(tune=False))
