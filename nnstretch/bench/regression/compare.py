"""Compares two commits, case by case, with pairs of processes that are timed in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from nnstretch.bench.regression.cases import Case, RegressionOptions
from nnstretch.bench.regression.commits import LETTERS, Checkout, Commit, Repository
from nnstretch.bench.regression.model_files import ModelFiles, exported
from nnstretch.bench.regression.processes import CommitProcess
from nnstretch.bench.regression.results import CaseResult, CommitFigures, PairResult, RegressionResult
from nnstretch.bench.timing import TimingOptions, interleave, latency, recording_failure, resampled
from nnstretch.errors import NNStretchError
from nnstretch.support.worker_process import WorkerError


def compare_commits(
    repository: Repository,
    commits: Sequence[Commit],
    cases: Sequence[Case],
    options: RegressionOptions,
    report: Callable[[str], None],
) -> RegressionResult:
    """Compares two commits on all cases. A case that fails becomes a result.

    Args:
        repository: has the commits.
        commits: A and B.
        cases: those of a model follow one another.
        options: how to measure.
        report: called with lines on the progress.

    Raises:
        UsageError: git cannot check a commit out, or it holds no package.
        FileError, UsageError: a cache folder cannot be made.
    """
    with repository.checked_out(commits, options.keep_cache) as checkouts:
        return RegressionResult(commits, options, _compare_cases(cases, checkouts, options, report))


def _compare_cases(
    cases: Sequence[Case], checkouts: Sequence[Checkout], options: RegressionOptions, report: Callable[[str], None]
) -> list[CaseResult]:
    results: list[CaseResult] = []
    begin = time.monotonic()

    def say(text: str) -> None:
        place = f"[{len(results) + 1}/{len(cases)}, {time.monotonic() - begin:.0f} s]"
        report(f"{place} {cases[len(results)]}: {text}")

    for model in dict.fromkeys(case.model for case in cases):
        own = [case for case in cases if case.model == model]
        with ExitStack() as stack:
            say("the model is exported")
            try:
                files = stack.enter_context(exported(model))
            except NNStretchError as error:
                say(f"failed: {error}")
                results += [CaseResult(case, errors=dict.fromkeys(LETTERS, str(error))) for case in own]
                continue
            for case in own:
                result = _CaseComparison(case, files, checkouts, options, say).run()
                say(str(result))
                results.append(result)
    return results


class _FailedCommitError(Exception):
    """A commit, or both, failed on a case.

    Attributes:
        reasons: letter -> reason.
    """

    def __init__(self, reasons: Mapping[str, str]) -> None:
        super().__init__(reasons)
        self.reasons = reasons


@dataclass(frozen=True)
class _CaseComparison:
    """The comparison of the commits on one case.

    Attributes:
        case: what is compared.
        files: of its model.
        checkouts: of A and B.
        options: how to measure.
        say: reports progress.
    """

    case: Case
    files: ModelFiles
    checkouts: Sequence[Checkout]
    options: RegressionOptions
    say: Callable[[str], None]

    def run(self) -> CaseResult:
        """Compares with several pairs of processes."""
        try:
            return CaseResult.of_pairs(self.case, [self._compare_pair(number) for number in range(self.options.pairs)])
        except _FailedCommitError as failure:
            return CaseResult(self.case, errors=failure.reasons)

    def _compare_pair(self, number: int) -> PairResult:
        """Lets both commits compile the model in a process of their own, and times the processes in turns.

        The `number` of the pair decides which commit is tuned first, and is the bootstrap's seed.

        Raises:
            _FailedCommitError: a commit fails.
        """
        place = f"pair {number + 1} of {self.options.pairs}, " if self.options.pairs > 1 else ""
        with ExitStack() as stack:
            processes = self._start(stack, number, place)
            self.say(f"{place}{self.options.timing.rounds} rounds are timed")
            slices = _timed_in_turns(processes, self.options.timing)
        first, second = (
            CommitFigures(latency(times).p50_ms, process.tuning, process.start)
            for process, times in zip(processes, slices, strict=True)
        )
        samples = resampled(slices, seed=number)
        return PairResult((first, second), samples[1] / samples[0], self.files.largest_difference())

    def _start(self, stack: ExitStack, number: int, place: str) -> list[CommitProcess]:
        """A process of each commit, which `stack` ends.

        Raises:
            _FailedCommitError: a commit cannot compile or run the model.
        """
        checkouts = [checkout.for_pair(number) for checkout in self.checkouts]
        processes: dict[str, CommitProcess] = {}
        errors: dict[str, str] = {}
        order = list(zip(LETTERS, checkouts, strict=True))
        for letter, checkout in reversed(order) if number % 2 else order:
            self.say(f"{place}{letter.upper()} compiles and tunes")
            try:
                processes[letter] = stack.enter_context(
                    CommitProcess(checkout, self.case, self.files, self.files.outputs(letter))
                )
            except WorkerError as failure:
                errors[letter] = str(failure)
        if errors:
            raise _FailedCommitError(errors)
        return [processes[letter] for letter in LETTERS]


def _timed_in_turns(processes: Sequence[CommitProcess], timing: TimingOptions) -> list[list[np.ndarray]]:
    """Per commit and round, the seconds of the runs.

    Raises:
        _FailedCommitError: a process fails. The round is finished: the other one may fail, too.
    """
    errors: dict[str, str] = {}

    def end_after_failure(done: int, total: int, what: str) -> None:
        if errors:
            raise _FailedCommitError(errors)

    candidates = [
        recording_failure(process.time, letter, errors) for letter, process in zip(LETTERS, processes, strict=True)
    ]
    return interleave(candidates, timing, end_after_failure)
