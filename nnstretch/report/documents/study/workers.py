"""When each worker of a study did what. Workers are known by their leases (`nnstretch.sweeps.workers.leases`)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import datetime

from nnstretch.report.charts.study.workers import Span, workers_panel
from nnstretch.report.documents.document import Cell, Section, Table
from nnstretch.report.documents.study.records import TrialRecord
from nnstretch.report.documents.study.view import StudyView
from nnstretch.sweeps.workers.leases import LEASE

_MOST_ROWS = 24
"""Of workers in the chart, those with the most trials."""


def workers(view: StudyView) -> list[Section]:
    """A chart with a row per worker, and a table; nothing for studies without leases."""
    by_worker: dict[str, list[TrialRecord]] = defaultdict(list)
    for trial in view.study.trials:  # trials that were given up show where workers died
        lease = trial.attrs.get(LEASE)
        if isinstance(lease, dict) and trial.begin is not None:
            by_worker[str(lease.get("worker", ""))].append(trial)
    if not by_worker:
        return []
    names = _names(list(by_worker))
    begins = {worker: [trial.begin for trial in trials if trial.begin] for worker, trials in by_worker.items()}
    start = min(map(min, begins.values()))
    now = max(max(_end(trial, start), trial.begin or start) for trials in by_worker.values() for trial in trials)
    order = sorted(by_worker, key=lambda worker: min(begins[worker]))
    shown = set(sorted(order, key=lambda worker: -len(by_worker[worker]))[:_MOST_ROWS])
    spans = {names[worker]: _spans(by_worker[worker], start, now) for worker in order if worker in shown}
    text = "A bar is a trial, from its begin to its end. Trials that were given up are those of dead workers."
    if len(order) > len(shown):
        text += f" The {len(shown)} of {len(order)} workers with the most trials."
    titles = ["worker", "trials", "complete", "pruned", "failed", "given up", "% busy"]
    rows = [_row(names[worker], by_worker[worker], start, now) for worker in order]
    return [Section("Workers", text, workers_panel(spans), Table(titles, rows))]


def _end(trial: TrialRecord, otherwise: datetime) -> datetime:
    return trial.end or otherwise


def _spans(trials: Sequence[TrialRecord], start: datetime, now: datetime) -> list[Span]:
    found = []
    for trial in sorted(trials, key=lambda trial: trial.begin or start):
        begin = ((trial.begin or start) - start).total_seconds()
        end = (_end(trial, now) - start).total_seconds()
        state = "given up" if trial.is_given_up else trial.state
        found.append(Span(begin, end, state, f"trial {trial.number}, {state}, {end - begin:.3g} s"))
    return found


def _row(name: str, trials: Sequence[TrialRecord], start: datetime, now: datetime) -> Sequence[Cell]:
    counts = Counter("given up" if trial.is_given_up else trial.state for trial in trials)
    spans = _spans(trials, start, now)
    busy = sum(span.end - span.begin for span in spans)
    alive = max(span.end for span in spans) - min(span.begin for span in spans)
    share = 100 * busy / alive if alive > 0 else None
    return (name, len(trials), *(counts[state] for state in ("complete", "pruned", "fail", "given up")), share)


def _names(workers: Sequence[str]) -> dict[str, str]:
    """Short names of workers: the machine and the process, with the start of the process where that is not enough."""
    short = {worker: _short(worker) for worker in workers}
    counts = Counter(short.values())
    numbers: Counter[str] = Counter()
    for worker, name in short.items():
        if counts[name] > 1:
            numbers[name] += 1
            short[worker] = f"{name} ({numbers[name]})"
    return short


def _short(worker: str) -> str:
    machine, _, process = worker.rpartition(":")[0].rpartition(":")
    host = machine.partition("/")[0][:14]
    return f"{host} {process}".strip() or worker or "?"
