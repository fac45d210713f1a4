"""Measurements and their keys, as rows of the profile store and of JSON files. Every field from a file is checked."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from nnstretch import __version__
from nnstretch.devices.base.routine import NO_PARAMETERS, Parameters

CacheState = Literal["warm", "l3", "memory"]
"""Where the weights are when a layer begins: in the core's own caches, in the shared cache, or in memory only."""

CACHE_STATES: tuple[CacheState, ...] = get_args(CacheState)

# Columns of the store's table in order: the key, and the measurement.
_KEYS = ("processor", "workload", "routine", "parameters", "state")
_VALUES = ("seconds", "low", "high", "error", "failure", "samples", "clock", "version", "measured")

_MOST_SAMPLES = 100_000
_LONGEST_TEXT = 1 << 20


@dataclass(frozen=True)
class Measurement:
    """The time of a routine on a workload, or the reason why it failed.

    Attributes:
        seconds: the samples' median; None if the routine failed.
        samples: seconds of every run that counts.
        failure: the reason why there is no time.
        interval: confidence interval of `seconds`; None if there are too few samples.
        error: error of the answer against the reference, relative to the output's range; None if it was not checked.
        state: where the weights were when a run began.
        clock: GFLOP/s of the core at the reference frequency that times are normalised to; None if unknown.
        version: version of nnstretch that measured.
        when: seconds since 1970; 0 stands for the time of writing.
    """

    seconds: float | None
    samples: tuple[float, ...] = ()
    failure: str | None = None
    interval: tuple[float, float] | None = None
    error: float | None = None
    state: CacheState = "warm"
    clock: float | None = None
    version: str = field(default=__version__, compare=False)
    when: float = field(default=0.0, compare=False)


@dataclass(frozen=True)
class Row:
    """A measurement and its key: `processor` is a fingerprint, `routine` a descriptor."""

    processor: str
    workload: str
    routine: str
    parameters: Parameters
    measurement: Measurement


def identity(row: Row) -> tuple[str, str, str, str]:
    """A row's key without the cache state."""
    return row.processor, row.workload, row.routine, parameters_key(row.parameters)


def parameters_key(parameters: Parameters) -> str:
    """Parameters as text, independent of their order."""
    return json.dumps(dict(sorted(parameters.items())), separators=(",", ":"))


def record_of(row: Row) -> tuple[object, ...]:
    """A row as a record of the store's table; `row_of` is the inverse."""
    m = row.measurement
    low, high = m.interval or (None, None)
    values = (m.seconds, low, high, m.error, m.failure, json.dumps(m.samples), m.clock, m.version)
    return (*identity(row), m.state, *values, m.when or time.time())


def row_of(record: Sequence[object]) -> Row:
    """The row of a record.

    Raises:
        ValueError: a field is invalid; the message says which.
    """
    fields = dict(zip((*_KEYS, *_VALUES), record, strict=True))
    for name in ("parameters", "samples"):
        fields[name] = json.loads(str(fields[name]))
    return checked_row(fields)


def row_fields(row: Row) -> dict[str, object]:
    """A row as a JSON object; `checked_row` is the inverse."""
    values = dict(zip((*_KEYS, *_VALUES), record_of(row), strict=True))
    return {**values, "parameters": dict(row.parameters), "samples": list(row.measurement.samples)}


def checked_row(fields: object) -> Row:
    """The row of a JSON object.

    Raises:
        ValueError: it is no object, or a field is missing or invalid; the message says which.
    """
    if not isinstance(fields, Mapping):
        raise ValueError("it is no object")
    seconds, failure = _seconds(fields, "seconds"), _text(fields, "failure")
    if (seconds is None) == (failure is None):
        raise ValueError("a measurement has either seconds or a failure")
    low, high = _seconds(fields, "low"), _seconds(fields, "high")
    state = next((s for s in CACHE_STATES if s == fields.get("state")), None)
    if state is None:
        raise ValueError(f"state is {fields.get('state')!r}; it is one of {', '.join(CACHE_STATES)}")
    measurement = Measurement(
        seconds,
        _samples(fields.get("samples")),
        failure,
        (low, high) if low is not None and high is not None else None,
        _seconds(fields, "error"),
        state,
        _seconds(fields, "clock"),
        _text(fields, "version") or "",
        _seconds(fields, "measured") or 0.0,
    )
    processor, workload, routine = (_text(fields, name) for name in _KEYS[:3])
    if not processor or not workload or not routine:
        raise ValueError("a measurement has a processor, a workload and a routine")
    return Row(processor, workload, routine, checked_parameters(fields.get("parameters")), measurement)


def _text(fields: Mapping[str, object], name: str) -> str | None:
    value = fields.get(name)
    if value is not None and (not isinstance(value, str) or len(value) > _LONGEST_TEXT):
        raise ValueError(f"{name} is no text of fewer than {_LONGEST_TEXT} characters")
    return value


def _seconds(fields: Mapping[str, object], name: str) -> float | None:
    value = fields.get(name)
    return None if value is None else _number(value, name)


def _number(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= sys.float_info.max:
        raise ValueError(f"{name} is {str(value)[:40]!r}; it must be a number and not negative")
    return float(value)


def _samples(value: object) -> tuple[float, ...]:
    if not isinstance(value, list | tuple) or len(value) > _MOST_SAMPLES:
        raise ValueError("samples are no list of numbers")
    return tuple(_number(sample, "a sample") for sample in value)


def checked_parameters(value: object) -> Parameters:
    """Parameters from a JSON object.

    Raises:
        ValueError: the value is not an object of integers.
    """
    if not isinstance(value, Mapping):
        raise ValueError("parameters are no object of integers")
    for name, number in value.items():
        if not isinstance(name, str) or isinstance(number, bool) or not isinstance(number, int):
            raise ValueError(f"parameter {name!r} is no integer")
    return dict(value) or NO_PARAMETERS
