"""Undisturbed latencies of plans: measured on the machine that compiles them, and stored in their package."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from nnstretch.devices.cpu.processor import cpu_model
from nnstretch.errors import PackageError
from nnstretch.scheduler.runtime.adaptive.estimator import PlanFacts
from nnstretch.scheduler.runtime.session import UNUSABLE, PlanSession
from nnstretch.support.json_text import DAMAGED

_ROUNDS = 3
_WARMUP = 2
_RUNS = 25
_FEWEST = 5
_BUDGET = 0.15  # seconds of runs per round
_KEY = "calibration"

log = logging.getLogger(__name__)


def calibrate(sessions: Mapping[str, PlanSession]) -> list[PlanFacts]:
    """Runs all plans in turn and takes the fastest round of each one, as a median over its runs.

    Args:
        sessions: by the plan's name.

    Returns:
        Facts of the plans that ran. Plans that fail are left out with a warning.
    """
    found: dict[str, list[tuple[float, dict[str, float]]]] = {name: [] for name in sessions}
    for _ in range(_ROUNDS):
        for name in list(found):
            try:
                found[name].append(_round(sessions[name]))
            except UNUSABLE as error:
                log.warning("plan %s is left out: %s", name, error)
                del found[name]
    return [PlanFacts(name, *min(rounds, key=lambda one: one[0])) for name, rounds in found.items()]


def _round(session: PlanSession) -> tuple[float, dict[str, float]]:
    """Median seconds of a run, and of every processor's steps in a run."""
    feeds = session.zeros()
    times: list[float] = []
    for number in range(_WARMUP + _RUNS):
        begin = perf_counter()
        session.run(None, feeds)
        if number >= _WARMUP:
            times.append(perf_counter() - begin)
        if sum(times) > _BUDGET and len(times) >= _FEWEST:
            break
    busy = [session.busy_seconds(trace) for trace in session.traces(feeds, _FEWEST)]
    return float(np.median(times)), {name: float(np.median([one[name] for one in busy])) for name in busy[0]}


def to_metadata(facts: Sequence[PlanFacts]) -> dict[str, Any]:
    """The facts, and the machine they were measured on, as metadata of a package."""
    plans = {plan.name: {"ms": plan.seconds * 1e3, "busy_ms": _scaled(plan.busy, 1e3)} for plan in facts}
    return {_KEY: {"machine": _machine(), "plans": plans}}


def from_metadata(metadata: Mapping[str, Any], names: Sequence[str]) -> list[PlanFacts] | None:
    """The facts of plans from a package's metadata; None if there are none, or they are from another kind of machine.

    Raises:
        PackageError: the metadata are damaged.
    """
    if _KEY not in metadata:
        return None
    try:
        known = metadata[_KEY]
        if known["machine"] != _machine() or not set(names) <= set(known["plans"]):
            return None
        facts = [
            PlanFacts(name, float(raw["ms"]) * 1e-3, _scaled(raw["busy_ms"], 1e-3))
            for name, raw in ((name, known["plans"][name]) for name in names)
        ]
        for plan in facts:
            if not all(0.0 < seconds < np.inf for seconds in (plan.seconds, *plan.busy.values())) or not plan.busy:
                raise ValueError(f"times of plan {plan.name}")
        return facts
    except DAMAGED as error:
        raise _damaged(error) from error


def known_milliseconds(metadata: Mapping[str, Any]) -> dict[str, float]:
    """Latency of every plan as a package's metadata have it, from whatever machine; empty if they do not.

    Raises:
        PackageError: the metadata are damaged.
    """
    try:
        plans = metadata.get(_KEY, {}).get("plans", {})
        return {str(name): float(raw["ms"]) for name, raw in plans.items()}
    except DAMAGED as error:
        raise _damaged(error) from error


def _damaged(error: Exception) -> PackageError:
    return PackageError(f"the package's calibration is damaged: {error!r}; compile it again")


def _scaled(busy: Mapping[str, float], factor: float) -> dict[str, float]:
    return {str(name): float(seconds) * factor for name, seconds in busy.items()}


def _machine() -> str:
    return f"{cpu_model()}, {os.cpu_count()} cores"
