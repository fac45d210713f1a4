"""Sessions for many inputs: a queue, and a thread for every input that is on its way."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal, Self, overload

from nnstretch.errors import DeviceError, FeedError, NNStretchError, UsageError
from nnstretch.scheduler.plan.schema import Plan
from nnstretch.scheduler.runtime.base_session import BaseSession, Feeds, Outputs
from nnstretch.scheduler.runtime.session import Session
from nnstretch.scheduler.runtime.streams.arrangement import Arrangement, choose
from nnstretch.scheduler.runtime.streams.dispatch import Dispatch

_WAITING = 2
"""Inputs that wait at most, for each one on its way."""


@dataclass(frozen=True, eq=False)
class _Job:
    feeds: Feeds
    output_names: Sequence[str] | None
    answer: Future[Outputs]


class StreamSession(BaseSession):
    """Runs plans for several inputs at a time. Thread-safe, and usable as a context manager.

    Inputs are begun in the order in which they come and answered in that order by `run_many` and `stream`. One that is
    submitted must not be changed before its answer is there. Where processors of different kinds compute whole inputs, the
    last bits of an answer depend on which one did: each is what a run on that processor alone gives.

    Attributes:
        arrangement: which processors compute which inputs.
    """

    def __init__(self, arrangement: Arrangement) -> None:
        """Binds every stream to memory of its own.

        Args:
            arrangement: groups of processors with their plans.

        Raises:
            PackageError: a plan is inconsistent, or made for another block size or engine.
            DeviceError: a processor does not exist here, or lacks the memory for so many streams.
        """
        self.arrangement = arrangement
        with ExitStack() as stack:
            self._sessions = tuple(_sessions(arrangement, stack))
            self._held = stack.pop_all()
        firsts = [session for number, session in self._sessions if not number]
        for _, session in self._sessions:
            session.run_beside(firsts)
        durations = [group.duration for group in arrangement.groups for _ in range(group.streams)]
        self._dispatch: Dispatch[_Job] = Dispatch(durations, _WAITING * len(self._sessions))
        self._threads = [
            threading.Thread(target=self._work, args=(number, session), name=f"nns-stream-{number}", daemon=True)
            for number, (_, session) in enumerate(self._sessions)
        ]
        for thread in self._threads:
            thread.start()

    @classmethod
    def fastest(cls, arrangements: Sequence[Arrangement]) -> Self:
        """A session for the arrangement that is predicted to be fastest (`nnstretch.compiler.streams.arrangements`)."""
        return cls(choose(arrangements))

    @property
    def plan(self) -> Plan:
        """What the first group runs."""
        return self._first.plan

    @property
    def streams(self) -> int:
        """How many inputs are on their way at a time, at most."""
        return len(self._sessions)

    def submit(
        self, feeds: Feeds, output_names: Sequence[str] | None = None, timeout: float | None = None
    ) -> Future[Outputs]:
        """Gives an input in and returns its answer to come: the named outputs (all if None) as new arrays.

        Waits while twice as many inputs as there are streams wait already.

        Args:
            feeds: arrays by the names of the model's inputs.
            output_names: wanted outputs.
            timeout: seconds to wait for room; None: for as long as it takes.

        Raises:
            FeedError: unknown or missing names, wrong shapes or types.
            TimeoutError: there was no room in time.
            UsageError: the session is closed.
        """
        self._first.check_feeds(output_names, feeds)
        answer: Future[Outputs] = Future()
        try:
            if not self._dispatch.put(_Job(dict(feeds), output_names, answer), timeout):
                raise TimeoutError(f"no room for another input within {timeout} s; take answers, or wait longer")
        except ValueError:
            raise UsageError("the session is closed; make a new one") from None
        return answer

    def run(self, output_names: Sequence[str] | None, feeds: Feeds) -> Outputs:
        """Runs one input, behind those that wait already, as `Session.run` does.

        Raises:
            FeedError: unknown or missing names, wrong shapes or types.
            DeviceError: every processor that could compute it failed.
            UsageError: the session is closed.
        """
        return self.submit(feeds, output_names).result()

    def stream(self, inputs: Iterable[Feeds], output_names: Sequence[str] | None = None) -> Iterator[Outputs]:
        """Answers of inputs, in their order, as they are taken from `inputs`: no more than can wait and be on their way.

        Raises:
            NNStretchError: an input's, in its place; those before it are answered.
        """
        most = (1 + _WAITING) * self.streams
        coming: deque[Future[Outputs]] = deque()
        try:
            for feeds in inputs:
                coming.append(self._begun(feeds, output_names))
                while coming and (len(coming) >= most or coming[0].done()):
                    yield coming.popleft().result()
            while coming:
                yield coming.popleft().result()
        finally:
            for answer in coming:
                answer.cancel()

    @overload
    def run_many(
        self, inputs: Iterable[Feeds], output_names: Sequence[str] | None = ..., *, return_errors: Literal[False] = ...
    ) -> list[Outputs]: ...

    @overload
    def run_many(
        self, inputs: Iterable[Feeds], output_names: Sequence[str] | None = ..., *, return_errors: Literal[True]
    ) -> list[Outputs | NNStretchError]: ...

    def run_many(
        self, inputs: Iterable[Feeds], output_names: Sequence[str] | None = None, *, return_errors: bool = False
    ) -> list[Outputs] | list[Outputs | NNStretchError]:
        """Runs all inputs and returns their answers in order.

        All are run, whatever becomes of some.

        Args:
            inputs: feeds of each.
            output_names: wanted outputs, all if None.
            return_errors: an input that failed has its error in the place of its answer; else the first error is raised when
                all are done.

        Raises:
            NNStretchError: the first error, without `return_errors`.
            UsageError: the session is closed.
        """
        coming = [self._begun(feeds, output_names) for feeds in inputs]
        found = [_outcome(answer) for answer in coming]
        if return_errors:
            return found
        answers: list[Outputs] = []
        for one in found:
            if isinstance(one, NNStretchError):
                raise one
            answers.append(one)
        return answers

    def close(self, *, cancel: bool = False) -> None:
        """Finishes all that was submitted, then frees memory, kernels and threads.

        Args:
            cancel: inputs that nobody has begun with are cancelled instead.
        """
        self._dispatch.close()
        if cancel:
            for job in self._dispatch.discard():
                job.answer.cancel()
        for thread in self._threads:
            thread.join()
        self._held.close()

    def _begun(self, feeds: Feeds, output_names: Sequence[str] | None) -> Future[Outputs]:
        """The answer of an input that was given in; of one that does not fit, the error."""
        try:
            return self.submit(feeds, output_names)
        except FeedError as error:
            answer: Future[Outputs] = Future()
            answer.set_exception(error)
            return answer

    @property
    def _first(self) -> Session:
        return self._sessions[0][1]

    def _work(self, runner: int, session: Session) -> None:
        """The body of a stream's thread."""
        while (job := self._dispatch.take(runner)) is not None:
            if not job.answer.running() and not job.answer.set_running_or_notify_cancel():
                self._dispatch.done(runner)
                continue
            try:
                outputs = session.run(job.output_names, job.feeds)
            except DeviceError as error:
                # Another processor may be able to; nobody waits for a device that has failed.
                if not self._dispatch.give_back(runner):
                    job.answer.set_exception(error)
            except BaseException as error:  # noqa: BLE001 - whoever waits for the answer gets it
                self._dispatch.done(runner)
                job.answer.set_exception(error)
            else:
                self._dispatch.done(runner)
                job.answer.set_result(outputs)


def _sessions(arrangement: Arrangement, stack: ExitStack) -> Iterator[tuple[int, Session]]:
    """A session for every stream with its number in its group."""
    for group in arrangement.groups:
        first = stack.enter_context(Session(group.compiled, group.sources))
        yield 0, first
        for number in range(1, group.streams):
            yield number, stack.enter_context(first.replica())


def _outcome(answer: Future[Outputs]) -> Outputs | NNStretchError:
    try:
        return answer.result()
    except NNStretchError as error:
        return error
