"""A worker of a study: asks for trials, evaluates them, and writes their values, until the study has as many as wanted."""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nnstretch.errors import NNStretchError, StoppedError, UsageError, first_line
from nnstretch.support.progress import Progress, silent
from nnstretch.support.settings import NO_ROOM
from nnstretch.sweeps.measures.place import LostMachineError
from nnstretch.sweeps.objectives import checked_values
from nnstretch.sweeps.samplers import MakeSampler, one_torch_thread
from nnstretch.sweeps.study import ERROR, without_experimental_warnings
from nnstretch.sweeps.workers.leases import (
    AGAIN,
    LOST,
    SURPLUS,
    LeaseObserver,
    LeaseTimes,
    give_up,
    is_given_up,
    leased,
    requeue,
)
from nnstretch.sweeps.workers.stamps import stamp_trial
from nnstretch.sweeps.workers.storage import OutageError, is_outage
from nnstretch.sweeps.workers.turns import Turns

if TYPE_CHECKING:
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial, Trial

_FAILURES = 5  # failed trials in a row after which a worker ends: something is wrong with all of them
_OUTAGES = 8  # attempts at a storage that does not answer; the pauses double from a quarter of a second on


@dataclass(frozen=True)
class Outcome:
    """The end of a trial.

    Attributes:
        values: one per objective; None: the trial is pruned.
    """

    values: Sequence[float] | None


PRUNED = Outcome(None)
"""A trial that is not worth a more thorough evaluation."""

Evaluate = Callable[["Trial"], Outcome]
"""Evaluates a trial, whose parameters are suggested; it may set attributes and constraints."""


@dataclass(frozen=True)
class SweepBudget:
    """When a sweep ends.

    Attributes:
        trials: that the study has then, those of earlier runs and of other workers included.
        seconds: after which this worker begins no further trial.
    """

    trials: int
    seconds: float = math.inf

    def __post_init__(self) -> None:
        if self.trials < 1 or not self.seconds > 0:
            raise UsageError(
                f"{self.trials} trials in {self.seconds:g} s were asked for; give 1 or more in more than 0 s"
            )


@dataclass(eq=False)
class StudyWorker:
    """Runs trials of a study. With one worker, the same seed makes the same study, interrupted or not.

    Attributes:
        study: open.
        space: parameters of every trial.
        evaluate: a trial with suggested parameters. NNStretchErrors fail it; other exceptions do, too, if `guarded`.
        budget: when to end.
        make_sampler: from a seed.
        seed: of the sweep, and of this worker among several.
        times: of leases.
        guarded: whether `evaluate` is a user's code, whose exceptions are failures of the trial.
        turns: samplers wait while another process of this machine measures.
        progress: called as progress(done, total, what).
    """

    study: Study
    space: Mapping[str, BaseDistribution]
    evaluate: Evaluate
    budget: SweepBudget
    make_sampler: MakeSampler
    seed: int = 0
    times: LeaseTimes = field(default_factory=LeaseTimes)
    guarded: bool = False
    turns: Turns = field(default_factory=Turns)
    progress: Progress = silent
    _stamps: set[str] = field(default_factory=set, init=False)
    _failures: int = field(default=0, init=False)
    _last_error: str = field(default="", init=False)

    def run(self) -> None:
        """Runs trials until the study is complete or the time is over.

        Raises:
            UsageError: several trials in a row failed.
            FileError: the storage does not answer any more, or a disk is full.
            LostMachineError: what it measures on cannot be used any more.
            StoppedError: a signal asked it to stop.
        """
        observer = LeaseObserver(self.study, self.times)
        end = time.monotonic() + self.budget.seconds
        while time.monotonic() < end:
            self._reached(observer.requeue_lost)
            counted = [trial for trial in self._trials() if not is_given_up(trial)]
            done = sum(trial.state.is_finished() for trial in counted)
            self.progress(min(done, self.budget.trials), self.budget.trials, self._best())
            if done >= self.budget.trials:
                return
            waiting = any(trial.state.name == "WAITING" for trial in counted)
            if len(counted) >= self.budget.trials and not waiting:
                time.sleep(
                    min(self.times.interval, 0.5)
                )  # others run the last trials; theirs are queued again if they die
                continue
            trial = self._reached(self._ask)
            if not self._is_surplus(trial):
                self._run(trial)

    def _reached(self, call: Callable[[], Any]) -> Any:
        """What a call of the storage returns, after attempts for as long as a short outage takes.

        Raises:
            OutageError: it does not answer.
        """
        for attempt in range(_OUTAGES):
            try:
                return call()
            except Exception as error:
                if not is_outage(error):
                    raise
                if attempt + 1 == _OUTAGES:
                    raise OutageError(
                        f"the storage does not answer: {first_line(error)}; resume when it does"
                    ) from error
                time.sleep(0.25 * 2**attempt)
        raise AssertionError("unreachable")

    def _trials(self) -> list[FrozenTrial]:
        found: list[FrozenTrial] = self._reached(lambda: self.study.get_trials(deepcopy=False))
        return found

    def _ask(self) -> Trial:
        """The next trial, with its parameters.

        The sampler is new for every trial, so that it depends on the study and the seed alone, not on what this process has
        asked before. Queued trials do not count: one that is taken would leave the next trial the same sampler.
        """
        number = sum(trial.state.name != "WAITING" for trial in self.study.get_trials(deepcopy=False))
        with self.turns.beside_others(), one_torch_thread(), without_experimental_warnings():
            self.study.sampler = self.make_sampler(zlib.crc32(f"{self.seed}/{number}".encode()))
            return self.study.ask(dict(self.space))

    def _is_surplus(self, trial: Trial) -> bool:
        """Whether a trial is one too many, because other workers asked at the same time; then it is given up."""
        trials = self._trials()
        repeats = trial.user_attrs.get(AGAIN)
        copies = [t.number for t in trials if repeats is not None and t.user_attrs.get(AGAIN) == repeats]
        before = [t for t in trials if t.number < trial.number and not is_given_up(t)]
        if (copies and min(copies) < trial.number) or len(before) >= self.budget.trials:
            return give_up(self.study, trial._trial_id, SURPLUS)
        return False

    def _run(self, trial: Trial) -> None:
        """Evaluates a trial and writes its values, unless it was given up meanwhile.

        A trial during which the storage fails for a moment is evaluated again; what it has measured and trained is kept.

        Raises:
            UsageError: several trials in a row failed.
            FileError: the storage does not answer any more, or a disk is full; the trial will be queued again.
            LostMachineError, StoppedError: the worker ends; the trial is queued again.
        """
        from optuna.trial import TrialState

        with leased(trial, self.times) as is_lost:
            try:
                outcome = self._reached(lambda: self._evaluated(trial))
            except OutageError:
                raise
            except (LostMachineError, StoppedError):
                self._reached(lambda: requeue(self.study, trial.storage.get_trial(trial._trial_id)))
                raise
            except NNStretchError as error:
                if _is_no_room(error):
                    self._reached(lambda: give_up(self.study, trial._trial_id, LOST))
                    raise
                self._fail(trial, error)
                return
            if is_lost():
                return
            if outcome.values is None:
                self._finish(trial, None, TrialState.PRUNED)
            else:
                self._finish(trial, outcome.values, TrialState.COMPLETE)
            self._failures = 0

    def _evaluated(self, trial: Trial) -> Outcome:
        """The outcome of a trial, with values that are checked.

        Raises:
            NNStretchError: there is none.
        """
        try:
            outcome = self.evaluate(trial)
        except NNStretchError:
            raise
        except Exception as error:
            if not self.guarded or is_outage(error):
                raise
            raise UsageError(f"the objective raised {type(error).__name__}: {first_line(error)}") from error
        if outcome.values is None:
            return outcome
        return Outcome(checked_values(outcome.values, len(self.study.directions)))

    def _finish(self, trial: Trial, values: Sequence[float] | None, state: Any) -> None:
        from optuna.exceptions import UpdateFinishedTrialError

        def tell() -> None:
            try:
                stamp_trial(self.study, trial, self._stamps)
                self.study.tell(trial, values, state)
            except (UpdateFinishedTrialError, ValueError):
                # Another worker has given it up, or an attempt before this one got through.
                if not trial.storage.get_trial(trial._trial_id).state.is_finished():
                    raise

        self._reached(tell)

    def _fail(self, trial: Trial, error: NNStretchError) -> None:
        """Notes why a trial failed, and ends the worker if all do.

        Raises:
            UsageError: as many trials in a row failed as one more would not change.
        """
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        self._last_error = first_line(error)
        try:
            self._reached(lambda: trial.set_user_attr(ERROR, self._last_error))
        except UpdateFinishedTrialError:
            return
        self._finish(trial, None, TrialState.FAIL)
        self._failures += 1
        if self._failures >= min(_FAILURES, self.budget.trials):
            raise UsageError(f"{self._failures} trials in a row failed: {self._last_error}") from error

    def _best(self) -> str:
        """The best value of the first objective, for the progress."""
        minimised = self.study.directions[0].name == "MINIMIZE"
        values = [
            trial.values[0]
            for trial in self._trials()
            if trial.state.name == "COMPLETE" and all(v <= 0 for v in trial.constraints.values())
        ]
        if not values:
            return ""
        return f"best {self.study.metric_names[0] if self.study.metric_names else 'value'} " + format(
            min(values) if minimised else max(values), ".4g"
        )


def _is_no_room(error: BaseException) -> bool:
    """Whether a disk is full: further trials would fail, too."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in NO_ROOM
