"""Reads Optuna's journals without Optuna's storage, which takes a second per thousand trials of fifty parameters."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import cache
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.errors import FileError
from nnstretch.report.documents.study.records import STATES, StudyRecord, TrialRecord

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

_CHUNK = 1 << 24  # bytes that are decoded at once
_FINISHED = ("complete", "pruned", "fail")
_Record = Mapping[str, Any]


def is_journal(path: Path) -> bool:
    """Whether a file is a journal of Optuna: a line per operation."""
    try:
        with path.open(encoding="utf-8") as file:
            first = json.loads(file.readline(1 << 20))
    except (OSError, ValueError):
        return False
    return isinstance(first, dict) and "op_code" in first


def read_journal(path: Path) -> list[StudyRecord]:
    """The studies of a journal. A last line without an end is a write under way, and left out.

    Raises:
        FileError: it cannot be read, a line is damaged, or another version of Optuna wrote it.
    """
    replay = _Replay()
    collected = gc.isenabled()
    gc.disable()  # there are no cycles among a million small objects, and looking for them takes a third of the time
    try:
        for record in _records(path):
            replay.apply(record)
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}") from error
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, FileError):
            raise
        raise FileError(
            f"{path} has an operation that is not understood ({error!r}); it may be of another version of Optuna"
        ) from error
    finally:
        if collected:
            gc.enable()
    return [study for study in replay.studies if study is not None]


def _records(path: Path) -> Iterator[_Record]:
    with path.open("rb") as file:
        first = 1
        while lines := file.readlines(_CHUNK):
            whole = lines if lines[-1].endswith(b"\n") else lines[:-1]
            try:
                yield from json.loads(b"[" + b",".join(whole) + b"]")
            except ValueError:
                number = _damaged(whole, first)
                raise FileError(f"{path} is damaged in line {number}; read a copy without that line") from None
            first += len(lines)


def _damaged(lines: list[bytes], first: int) -> int:
    for number, line in zip(count(first), lines, strict=False):
        try:
            json.loads(line)
        except ValueError:
            return number
    return first


class _Replay:
    """Studies and trials after the operations so far. Operations that Optuna refuses have no effect."""

    def __init__(self) -> None:
        self.studies: list[StudyRecord | None] = []
        self._trials: list[TrialRecord] = []
        self._operations = (
            self._create_study,
            self._delete_study,
            self._set_study_attr,
            self._set_study_system_attr,
            self._create_trial,
            self._set_param,
            self._set_state,
            self._ignore,  # an intermediate value
            self._set_attr,
            self._set_system_attr,
            self._ignore,
        )

    def apply(self, record: _Record) -> None:
        self._operations[record["op_code"]](record)

    def _ignore(self, record: _Record) -> None:
        pass

    def _create_study(self, record: _Record) -> None:
        if all(study is None or study.name != record["study_name"] for study in self.studies):
            self.studies.append(StudyRecord(record["study_name"], record["directions"]))

    def _delete_study(self, record: _Record) -> None:
        self.studies[record["study_id"]] = None

    def _set_study_attr(self, record: _Record) -> None:
        if study := self.studies[record["study_id"]]:
            study.attrs.update(record["user_attr"])

    def _set_study_system_attr(self, record: _Record) -> None:
        if study := self.studies[record["study_id"]]:
            study.system_attrs.update(record["system_attr"])

    def _create_trial(self, record: _Record) -> None:
        study = self.studies[record["study_id"]]
        if study is None:
            return
        values = record.get("values") or (() if record.get("value") is None else (record["value"],))
        trial = TrialRecord(len(study.trials), STATES[record.get("state", 0)], values)
        for name, text in record.get("distributions", {}).items():
            distribution = trial.distributions[name] = _distribution(text)
            trial.params[name] = distribution.to_external_repr(record["params"][name])
        trial.attrs = record.get("user_attrs", {})
        trial.system_attrs = record.get("system_attrs", {})
        trial.begin, trial.end = _time(record["datetime_start"]), _time(record.get("datetime_complete"))
        study.trials.append(trial)
        self._trials.append(trial)

    def _set_param(self, record: _Record) -> None:
        trial = self._trials[record["trial_id"]]
        if trial.state not in _FINISHED:
            name, distribution = record["param_name"], _distribution(record["distribution"])
            trial.distributions[name] = distribution
            trial.params[name] = distribution.to_external_repr(record["param_value_internal"])

    def _set_state(self, record: _Record) -> None:
        trial, state = self._trials[record["trial_id"]], STATES[record["state"]]
        if trial.state in _FINISHED or trial.state == state == "running":
            return
        trial.state = state
        if state == "running":
            trial.begin = _time(record["datetime_start"])
        if state in _FINISHED:
            trial.end = _time(record["datetime_complete"])
        if record["values"] is not None:
            trial.values = record["values"]

    def _set_attr(self, record: _Record) -> None:
        trial = self._trials[record["trial_id"]]
        if trial.state not in _FINISHED:
            trial.attrs.update(record["user_attr"])

    def _set_system_attr(self, record: _Record) -> None:
        trial = self._trials[record["trial_id"]]
        if trial.state not in _FINISHED:
            trial.system_attrs.update(record["system_attr"])


@cache
def _distribution(text: str) -> BaseDistribution:
    """A distribution; equal texts are one object."""
    from optuna.distributions import json_to_distribution

    return json_to_distribution(text)


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
