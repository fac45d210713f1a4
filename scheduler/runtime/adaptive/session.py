"""Sessions with several plans of one network; a policy chooses the plan of each run."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Self

import numpy as np

from nnstretch.devices.engine.binding.turn import TurnLock
from nnstretch.errors import DeadlineError, DeviceError, UsageError
from nnstretch.package import read_package, write_package
from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.scheduler.plan.packaging import check_alike, check_metadata, check_trusted, packaged, unpackaged
from nnstretch.scheduler.plan.schema import PlanQueue
from nnstretch.scheduler.plan.tuned_on import warn_of_package
from nnstretch.scheduler.runtime.adaptive.calibration import calibrate, from_metadata, to_metadata
from nnstretch.scheduler.runtime.adaptive.estimator import Observation, PlanFacts
from nnstretch.scheduler.runtime.adaptive.policies import PlanChoice, make_policy, parse_policy
from nnstretch.scheduler.runtime.arguments import checked_budget
from nnstretch.scheduler.runtime.base_session import Feeds, Outputs, Session, Switch
from nnstretch.scheduler.runtime.session import UNUSABLE, PlanSession
from nnstretch.scheduler.runtime.timeline import Timeline
from nnstretch.support.closing import closed_on_failure
from nnstretch.support.forks import Origin

HISTORY = 10_000
"""Number of runs, and of plan switches, that are kept."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Attempt:
    """An attempt of a run.

    Attributes:
        plan: its plan.
        seconds: its duration.
        probing: whether it only measured how fast the plan is.
        failure: why it failed; empty if it did not.
    """

    plan: str
    seconds: float
    probing: bool = False
    failure: str = ""


class AdaptiveSession(Session):
    """Runs one of several plans of a network, and switches when that one fails or another one is better.

    All plans compute the same outputs, within the error that routines may have. Thread-safe: concurrent runs
    take turns.
    """

    def __init__(
        self,
        plans: Mapping[str, Compiled],
        policy: str = "adaptive",
        *,
        sources: Mapping[str, str] | None = None,
        facts: Sequence[PlanFacts] | None = None,
    ) -> None:
        """Binds plans to this machine. Plans whose processors are missing are left out with a warning.

        Args:
            plans: name -> plan, in the order of the policy `fixed`.
            policy: `adaptive` (the currently fastest plan), `fixed` (the first plan that works), or
                `deadline=12ms` (the plan with the fewest processors that meets the deadline).
            sources: OpenCL sources from a package, built instead of the installed ones.
            facts: undisturbed times of the plans; measured if None, except for the policy `fixed`.

        Raises:
            UsageError: the policy is unknown, or there is no plan.
            PackageError: a plan is inconsistent, or the plans differ in inputs or outputs.
            DeviceError, BuildError, MissingExtraError: no plan can run here; the message says why the first one cannot.
        """
        self._kind = parse_policy(policy)
        if not plans:
            raise UsageError("there is no plan to choose from; give one at least")
        check_alike(plans)
        self._compiled = dict(plans)
        self._sources = sources
        self._sessions: dict[str, PlanSession] = {}
        self._cold: set[str] = set()  # plans that have not run since they were opened
        self._names: list[str] = []
        self._facts: list[PlanFacts] = []
        self._lock = TurnLock()
        self._origin = Origin()
        self._history: deque[Attempt] = deque(maxlen=HISTORY)
        self._switches: deque[Switch] = deque(maxlen=HISTORY)
        self._attempts = 0
        self._is_closed = False
        with closed_on_failure(self.close):
            self._open_plans()
            self._learn_facts(facts)
            self._policy = make_policy(self._kind, self._names, self._facts, self._uses())
        self._current = self._policy.choose().plan

    @classmethod
    def load(
        cls,
        path: str | Path,
        policy: str = "adaptive",
        *,
        trusted_sources: bool = False,
        measure_again: bool = False,
    ) -> Self:
        """A session for all plans of a package file; weights are mapped, not copied.

        Args:
            path: the package.
            policy: which plan a run takes.
            trusted_sources: refuse OpenCL sources that differ from the installed ones, and libraries of delegates.
            measure_again: measure the plans here, even if the package has their times on such a machine.

        Raises:
            FileError, PackageError: it cannot be read, is damaged or too new, or has sources that are not trusted.
            UsageError: plans are to be measured for the policy `fixed`, which needs no times.
        """
        if measure_again and policy == "fixed":
            raise UsageError("policy fixed takes plans in their order, and needs no times; leave it or rebalance out")
        package = read_package(Path(path))
        if trusted_sources:
            check_trusted(package, path)
        warn_of_package(path, package.metadata)
        plans = unpackaged(package)
        known = None if measure_again else from_metadata(package.metadata, list(plans))
        return cls(plans, policy, sources=package.sources, facts=known)

    def save(self, path: str | Path, metadata: Mapping[str, Any] | None = None) -> None:
        """Writes a package (.nns) with all plans that can run here and their facts.

        Raises:
            FileError: the place is not writable or the disk is full.
        """
        check_metadata(metadata or {})
        with self._turn:
            sessions = {name: self._session(name) for name in self._names}
        sources = {name: text for session in sessions.values() for name, text in session.used_sources.items()}
        plans = {name: self._compiled[name] for name in self._names}
        about = {**(metadata or {}), **(to_metadata(self._facts) if self._facts else {})}
        write_package(packaged(plans, sources, about), Path(path))

    @property
    def plans(self) -> list[str]:
        """Names of the plans that can run here, in the order of the policy `fixed`."""
        return list(self._names)

    @property
    def facts(self) -> list[PlanFacts]:
        """Undisturbed times of the plans; may be empty with the policy `fixed`."""
        return list(self._facts)

    @property
    def current(self) -> str:
        """The plan in use: that of the last run that was no probe."""
        return self._current

    @property
    def compiled(self) -> Compiled:
        return self._compiled[self._current]

    @property
    def history(self) -> list[Attempt]:
        """The last attempts, failed ones included, oldest first."""
        return list(self._history)

    @property
    def switches(self) -> list[Switch]:
        """The last changes of plan, oldest first, without probes."""
        return list(self._switches)

    @property
    def busy(self) -> bool:
        """Whether an attempt that missed its deadline still runs; its plan fails until it ends."""
        return any(session.busy for session in self._sessions.values())

    def run(self, output_names: Sequence[str] | None, feeds: Feeds, *, deadline: float | None = None) -> Outputs:
        """As `Session.run`; if a plan fails, the same inputs are run with another one.

        Plans that do not use the failed part come first. A plan that misses the deadline counts as failed: it
        is not run again before that run has ended, and plans on the same CPU cores may have to wait too. Runs
        with a deadline are not traced.

        Raises:
            DeadlineError: all plans missed the deadline, which each of them has for itself.
            DeviceError: all plans failed; the session stays usable.
        """
        failures: dict[str, Exception] = {}
        with self._turn:
            while len(failures) < len(self._names):
                choice = self._policy.choose(frozenset(failures))
                self._record_switch(choice)
                begin = perf_counter()
                try:
                    outputs, busy = self._attempt(choice, output_names, feeds, deadline)
                except UNUSABLE as error:
                    failures[choice.plan] = error
                    self._record_failure(choice, perf_counter() - begin, error)
                    continue
                seconds = perf_counter() - begin
                if choice.plan in self._cold:  # a first run says nothing of the next
                    self._cold.discard(choice.plan)
                else:
                    self._policy.observe(Observation(choice.plan, seconds, busy))
                self._history.append(Attempt(choice.plan, seconds, choice.probing))
                self._attempts += 1
                return outputs
        first, failure = next(iter(failures.items()))
        if len(failures) == 1:
            raise failure
        why = str(failure) or type(failure).__name__
        kind = DeadlineError if all(isinstance(one, DeadlineError) for one in failures.values()) else DeviceError
        raise kind(f"all {len(failures)} plans failed, {first} because {why}") from failure

    def profile(self, feeds: Feeds | None = None, runs: int = 9) -> Timeline:
        """As `PlanSession.profile`, of the plan in use; the policy does not observe these runs."""
        with self._turn:
            return self._session(self._current).profile(feeds, runs)

    def time(self, feeds: Feeds | None = None, *, warmup: int = 10, runs: int = 100, budget: float = 2.0) -> np.ndarray:
        """Seconds of each of up to `runs` runs after `warmup`, whichever plans they take; stops after `budget` seconds."""
        budget = checked_budget(warmup, runs, budget)
        feeds = self.zeros() if feeds is None else feeds
        times: list[float] = []
        for number in range(warmup + max(1, runs)):
            begin = perf_counter()
            self.run(None, feeds)
            if number >= warmup:
                times.append(perf_counter() - begin)
            if sum(times) > budget:
                break
        return np.array(times)

    def close(self) -> None:
        """Frees memory, kernels and threads of all plans; the session cannot be run afterwards."""
        if not self._origin.is_here:  # a thread of the parent may have held the lock
            self._lock = TurnLock()
        with self._lock:
            self._is_closed = True
            for session in self._sessions.values():
                session.close()

    @property
    def _turn(self) -> TurnLock:
        self._origin.check("session")
        return self._lock

    def _open_plans(self) -> None:
        """Opens all plans, or for `fixed` the first that opens, and leaves out those that fail."""
        failures: dict[str, Exception] = {}
        for name in self._compiled:
            try:
                self._session(name)
            except UNUSABLE as error:
                log.warning("plan %s is left out: %s", name, error)
                failures[name] = error
            if self._kind == "fixed" and self._sessions:
                break
        if not self._sessions:
            raise next(iter(failures.values()))
        self._names = [name for name in self._compiled if name not in failures]

    def _learn_facts(self, known: Sequence[PlanFacts] | None) -> None:
        """Takes over known facts, or measures them and leaves out plans that fail."""
        self._facts = [plan for plan in known or () if plan.name in self._names]
        if len(self._facts) == len(self._names) or self._kind == "fixed":
            return
        self._facts = calibrate(self._sessions)
        self._cold.clear()
        self._names = [plan.name for plan in self._facts]
        if not self._names:
            raise DeviceError("no plan could be run; see the warnings above")

    def _session(self, name: str) -> PlanSession:
        if self._is_closed:
            raise UsageError("the session is closed; make a new one")
        if name not in self._sessions:
            self._sessions[name] = PlanSession(self._compiled[name], self._sources)
            self._cold.add(name)
        return self._sessions[name]

    def _uses(self) -> dict[str, frozenset[str]]:
        return {name: _parts(self._compiled[name].plan.queues) for name in self._names}

    def _attempt(
        self, choice: PlanChoice, output_names: Sequence[str] | None, feeds: Feeds, deadline: float | None
    ) -> tuple[Outputs, dict[str, float] | None]:
        session = self._session(choice.plan)
        if not choice.traced or deadline is not None:
            return session.run(output_names, feeds, deadline=deadline), None
        outputs, trace = session.run_traced(output_names, feeds)
        return outputs, session.busy_seconds(trace)

    def _drop(self, name: str) -> None:
        """Closes a plan's session after a failure, as its device may be lost. It is opened again when needed."""
        session = self._sessions.get(name)
        if session is not None and not session.busy:
            del self._sessions[name]
            session.close()

    def _record_switch(self, choice: PlanChoice) -> None:
        if choice.plan != self._current and not choice.probing:
            self._switches.append(Switch(self._attempts, self._current, choice.plan, choice.reason))
            self._current = choice.plan

    def _record_failure(self, choice: PlanChoice, seconds: float, error: Exception) -> None:
        log.warning("plan %s failed: %s", choice.plan, error)
        culprit = (error.processor or None) if isinstance(error, DeviceError) else None
        lost = _parts(queue for queue in self._compiled[choice.plan].plan.queues if queue.processor == culprit)
        self._policy.observe(Observation(choice.plan, seconds, failed=True, lost=lost))
        self._drop(choice.plan)
        self._history.append(Attempt(choice.plan, seconds, choice.probing, str(error) or type(error).__name__))
        self._attempts += 1


def _parts(queues: Iterable[PlanQueue]) -> frozenset[str]:
    """Parts that plans may share: CPU cores, and devices regardless of the cores that serve them."""
    parts: set[str] = set()
    for queue in queues:
        name = queue.processor.partition("@")[0]
        if name.partition(":")[0] == "cpu":
            parts.update(f"cpu:{core}" for core in queue.cores)
        elif name:
            parts.add(name)
    return frozenset(parts)
