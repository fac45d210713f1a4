"""Sessions for many inputs: a queue of work, and a thread per input in flight."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any, NamedTuple

import numpy as np

from nnstretch.errors import DeadlineError, DeviceError, UsageError
from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.scheduler.runtime.arguments import check_deadline
from nnstretch.scheduler.runtime.arrangement import Arrangement
from nnstretch.scheduler.runtime.base_session import Feeds, Outputs, Session
from nnstretch.scheduler.runtime.dispatch import Dispatch
from nnstretch.scheduler.runtime.session import PlanSession
from nnstretch.scheduler.runtime.timeline import Timeline
from nnstretch.support.forks import Origin

_WAITING = 2
"""Largest number of waiting inputs per input in flight."""


@dataclass(frozen=True, eq=False)
class _Job:
    feeds: Feeds
    output_names: Sequence[str] | None
    answer: Future[Outputs]


class Computed(NamedTuple):
    """Inputs that a stream has computed, and the seconds it spent on them."""

    inputs: int = 0
    seconds: float = 0.0


class StreamSession(Session):
    """A session that computes several inputs at the same time.

    Inputs are started in the order of submission; `run_many` and `stream` answer in that order. A submitted
    input must not be changed before its answer is there. Where processors of different kinds compute whole
    inputs, the last bits of an answer depend on the processor: each answer is what a run on that processor
    alone gives.

    Attributes:
        arrangement: which processors compute which inputs.
    """

    def __init__(self, arrangement: Arrangement) -> None:
        """Binds every stream to memory of its own.

        Args:
            arrangement: groups of processors with their plans.

        Raises:
            PackageError: a plan is inconsistent, or made for another block size or engine.
            DeviceError: a processor does not exist here, or lacks the memory for all streams.
        """
        self.arrangement = arrangement
        with ExitStack() as stack:
            self._sessions = tuple(_sessions(arrangement, stack))
            self._held = stack.pop_all()
        firsts = [session for number, session in self._sessions if not number]
        for _, session in self._sessions:
            session.run_beside(firsts)
        durations = [group.duration for group in arrangement.groups for _ in range(group.streams)]
        self._late: list[Future[Outputs]] = []
        self._computed = [Computed() for _ in self._sessions]  # each is written by the thread of its stream alone
        self._origin = Origin()
        self._dispatch: Dispatch[_Job] = Dispatch(durations, _WAITING * len(self._sessions))
        self._threads = [
            threading.Thread(target=self._work, args=(number, session), name=f"nns-stream-{number}", daemon=True)
            for number, (_, session) in enumerate(self._sessions)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def compiled(self) -> Compiled:
        return self._first.compiled

    @property
    def busy(self) -> bool:
        return any(not answer.done() for answer in self._late)

    @property
    def streams(self) -> int:
        """Inputs that are computed at the same time, at most."""
        return len(self._sessions)

    @property
    def computed(self) -> tuple[Computed, ...]:
        """What every stream has computed so far, without inputs that failed."""
        return tuple(self._computed)

    def submit(
        self, feeds: Feeds, output_names: Sequence[str] | None = None, timeout: float | None = None
    ) -> Future[Outputs]:
        """As `Session.submit`; the queue holds twice as many inputs as there are streams."""
        self._origin.check("session")
        self._first.check_feeds(output_names, feeds)
        answer: Future[Outputs] = Future()
        try:
            if not self._dispatch.put(_Job(dict(feeds), output_names, answer), timeout):
                raise TimeoutError(f"no space for another input within {timeout} s; take answers, or wait longer")
        except ValueError:
            raise UsageError("the session is closed; make a new one") from None
        return answer

    def run(self, output_names: Sequence[str] | None, feeds: Feeds, *, deadline: float | None = None) -> Outputs:
        """As `Session.run`; the input waits for those submitted before it, and the deadline includes that time."""
        if deadline is None:
            return self.submit(feeds, output_names).result()
        check_deadline(deadline)
        end = monotonic() + deadline
        late = DeadlineError(
            f"the run did not end within {deadline} s; wait until the session is not busy, or allow more"
        )
        try:
            answer = self.submit(feeds, output_names, timeout=deadline)
        except TimeoutError:
            raise late from None
        if not wait([answer], timeout=max(0.0, end - monotonic())).done and not answer.cancel():
            self._late = [*(one for one in self._late if not one.done()), answer]
            raise late
        if answer.cancelled():
            raise late
        return answer.result()

    def stream(self, inputs: Iterable[Feeds], output_names: Sequence[str] | None = None) -> Iterator[Outputs]:
        """As `Session.stream`; the inputs before one that fails are answered first."""
        most = (1 + _WAITING) * self.streams
        coming: deque[Future[Outputs]] = deque()
        try:
            for feeds in inputs:
                coming.append(self._submitted(feeds, output_names))
                while coming and (len(coming) >= most or coming[0].done()):
                    yield coming.popleft().result()
            while coming:
                yield coming.popleft().result()
        finally:
            for answer in coming:
                answer.cancel()

    def time(self, feeds: Feeds | None = None, *, warmup: int = 10, runs: int = 100, budget: float = 2.0) -> np.ndarray:
        """As `Session.time`, on the processors of the first replica group."""
        return self._first.time(feeds, warmup=warmup, runs=runs, budget=budget)

    def profile(self, feeds: Feeds | None = None, runs: int = 9) -> Timeline:
        """As `Session.profile`, on the processors of the first replica group."""
        return self._first.profile(feeds, runs)

    def save(self, path: str | Path, metadata: Mapping[str, Any] | None = None) -> None:
        raise UsageError("a session with streams cannot be saved; save one without, and open its package with streams")

    def close(self, *, cancel: bool = False) -> None:
        """Finishes all submitted inputs, then frees memory, kernels and threads.

        Args:
            cancel: whether inputs that have not started are cancelled.
        """
        if not self._origin.is_here:  # its threads do not exist in this process, and may have held its locks
            self._held.close()
            return
        self._dispatch.close()
        if cancel:
            for job in self._dispatch.discard():
                if not job.answer.cancel():  # it had begun on a processor that failed
                    job.answer.set_exception(DeviceError("the session was closed before the input was computed again"))
        for thread in self._threads:
            thread.join()
        self._held.close()

    @property
    def _first(self) -> PlanSession:
        return self._sessions[0][1]

    def _work(self, worker: int, session: PlanSession) -> None:
        """The body of a stream's thread."""
        while (job := self._dispatch.take(worker)) is not None:
            if not job.answer.running() and not job.answer.set_running_or_notify_cancel():
                self._dispatch.done(worker)
                continue
            begin = perf_counter()
            try:
                outputs = session.run(job.output_names, job.feeds)
            except DeviceError as error:
                # Another processor may compute it; a failed device holds up no other input.
                if not self._dispatch.give_back(worker):
                    job.answer.set_exception(error)
            except BaseException as error:  # noqa: BLE001 - raised again where the answer is read
                self._dispatch.done(worker)
                job.answer.set_exception(error)
            else:
                before = self._computed[worker]
                self._computed[worker] = Computed(before.inputs + 1, before.seconds + perf_counter() - begin)
                self._dispatch.done(worker)
                job.answer.set_result(outputs)


def _sessions(arrangement: Arrangement, stack: ExitStack) -> Iterator[tuple[int, PlanSession]]:
    """For every stream its number in its group, and a session."""
    for group in arrangement.groups:
        first = stack.enter_context(PlanSession(group.compiled, group.sources))
        yield 0, first
        for number in range(1, group.streams):
            yield number, stack.enter_context(first.replica())
