"""What plans take when nothing disturbs them: measured where they are compiled, and kept in their package."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from nnstretch.devices.cpu.processor import cpu_model
from nnstretch.errors import PackageError
from nnstretch.scheduler.runtime.adaptive.policy import PlanFacts
from nnstretch.scheduler.runtime.session import UNUSABLE, PlanSession

_ROUNDS = 3
_WARMUP = 2
_RUNS = 25
_FEWEST = 5
_BUDGET = 0.15  # seconds of a round's runs
_KEY = "calibration"

log = logging.getLogger(__name__)


def calibrate(sessions: Mapping[str, PlanSession]) -> list[PlanFacts]:
    """Runs all plans in turn, as a caller would, and takes the median of each one's least disturbed round.

    Args:
        sessions: by the plan's name.

    Returns:
        Facts of the plans that ran; those that failed are told in a warning.
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
    """Median seconds of a run, and those for which every processor is busy in it."""
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
    """What a package's metadata say of its plans' times, and on which machine these were taken."""
    plans = {plan.name: {"ms": plan.seconds * 1e3, "busy_ms": _scaled(plan.busy, 1e3)} for plan in facts}
    return {_KEY: {"machine": _machine(), "plans": plans}}


def from_metadata(metadata: Mapping[str, Any], names: Sequence[str]) -> list[PlanFacts] | None:
    """What `to_metadata` wrote of some plans, or None if it was not written, or on a machine of another kind.

    Raises:
        PackageError: it is damaged.
    """
    if _KEY not in metadata:
        return None
    try:
        known = metadata[_KEY]
        if known["machine"] != _machine() or not set(names) <= set(known["plans"]):
            return None
        return [_facts(name, known["plans"][name]) for name in names]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PackageError(
            f"what the package says of its plans' times is damaged: {error!r}; compile it again"
        ) from error


def _facts(name: str, raw: Mapping[str, Any]) -> PlanFacts:
    facts = PlanFacts(name, float(raw["ms"]) * 1e-3, _scaled(raw["busy_ms"], 1e-3))
    if not all(0.0 < seconds < np.inf for seconds in (facts.seconds, *facts.busy.values())) or not facts.busy:
        raise ValueError(f"times of plan {name}")
    return facts


def _scaled(busy: Mapping[str, float], factor: float) -> dict[str, float]:
    return {str(name): float(seconds) * factor for name, seconds in busy.items()}


def _machine() -> str:
    return f"{cpu_model()}, {os.cpu_count()} cores"
