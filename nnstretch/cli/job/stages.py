"""Stages of a job in one folder.

Every stage has a folder of its own below the job's folder, with its products and the file `stage.json`: the settings that it
was run with, whether it is done, its seconds and its answer. A stage that is done is not run again. One that was stopped is
run again in the same folder, where it finds what it had written. One whose settings have changed, or that follows a stage
that was run again, is refused: its products may have taken days. `redo` says from which stage on products are given up.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nnstretch.errors import FileError, UsageError
from nnstretch.support.settings import write_text

_RECORD = "stage.json"
_NAMED = 3

Settings = Mapping[str, Any]
"""What a stage's products depend on, as JSON values."""
Answer = Mapping[str, Any]
"""What a stage found, as JSON values; file names are relative to its folder."""


@dataclass(frozen=True)
class StageRecord:
    """The content of `stage.json`.

    Attributes:
        settings: with which the stage was run.
        run: seconds since 1970 at which it was first started, which tells one run from another.
        after: `run` of the stages that it followed, by name.
        done: whether it was completed.
        seconds: duration of its last part.
        answer: what it found.
    """

    settings: dict[str, Any]
    run: float
    after: dict[str, float]
    done: bool
    seconds: float
    answer: dict[str, Any]


@dataclass(frozen=True)
class Stage:
    """A completed stage: its folder and what it found."""

    folder: Path
    answer: Answer
    run: float
    seconds: float
    was_done: bool

    def file(self, name: str) -> Path:
        """A product whose name stands in the answer."""
        return self.folder / str(self.answer[name])


class Job:
    """The stages of one job, run in order.

    Attributes:
        folder: of the job.
        stages: those completed so far, by name.
    """

    def __init__(self, folder: Path, redo: str | None = None) -> None:
        """Takes the job's folder; `redo` names the first stage, or kind of stages, whose products are given up."""
        self.folder = folder
        self.stages: dict[str, Stage] = {}
        self._redo = redo
        self._again = False
        self._renewed: set[str] = set()

    def run(self, name: str, settings: Settings, work: Callable[[Path], Answer], after: Sequence[str] = ()) -> Stage:
        """Runs a stage unless it is done.

        Args:
            name: of the stage and of its folder: KIND or KIND-NUMBER.
            settings: with other ones, products of an earlier run are refused.
            work: gets the folder; what it finds there is of an interrupted run with the same settings.
            after: stages whose products it reads; those that were not run are left out.

        Raises:
            UsageError: the folder holds products of other settings, or of an earlier run of a stage before.
            FileError: the folder or the record cannot be written, or the record is damaged.
        """
        folder = self.folder / name
        self.renew(name)
        wanted: dict[str, Any] = json.loads(json.dumps(settings))
        before = {other: self.stages[other].run for other in after if other in self.stages}
        found = _read(folder / _RECORD)
        if found is not None and not found.done and _has_only_the_record(folder):
            found = None
        if found is not None:
            self._check(name, found, wanted, before)
        if found is not None and found.done:
            return self._keep(name, Stage(folder, found.answer, found.run, found.seconds, was_done=True))
        started = time.time() if found is None else found.run
        begin = time.perf_counter()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(f"cannot make {folder}: {error.strerror}; choose another place with -o") from error
        _write(folder, StageRecord(wanted, started, before, done=False, seconds=0.0, answer={}))
        answer = dict(work(folder))
        seconds = time.perf_counter() - begin
        _write(folder, StageRecord(wanted, started, before, done=True, seconds=seconds, answer=answer))
        return self._keep(name, Stage(folder, answer, started, seconds, was_done=False))

    def renew(self, name: str) -> None:
        """Gives up a stage's products, once, if they are to be replaced. `run` does it where no one has done it before.

        Args:
            name: of the stage.
        """
        folder = self.folder / name
        self._again = self._again or _kind(name) == self._redo
        if self._again and name not in self._renewed and (folder / _RECORD).exists():
            shutil.rmtree(folder, ignore_errors=True)
        self._renewed.add(name)

    def is_done(self, name: str) -> bool:
        """Whether the folder has a stage's products, of whatever settings.

        Raises:
            FileError: the record is damaged.
        """
        return self.found(name) is not None

    def found(self, name: str) -> Answer | None:
        """What a stage found, with whatever settings; None if it is not done.

        Raises:
            FileError: the record is damaged.
        """
        record = _read(self.folder / name / _RECORD)
        return record.answer if record is not None and record.done else None

    def seconds(self) -> dict[str, float]:
        """Seconds of the stages of each kind; time in which several ran counts once."""
        spans: dict[str, list[tuple[float, float]]] = {}
        for name, stage in self.stages.items():
            spans.setdefault(_kind(name), []).append((stage.run, stage.run + stage.seconds))
        return {kind: _covered(some) for kind, some in spans.items()}

    def _keep(self, name: str, stage: Stage) -> Stage:
        self.stages[name] = stage
        return stage

    def _check(self, name: str, found: StageRecord, settings: Settings, before: Mapping[str, float]) -> None:
        """Refuses products that another call would make differently."""
        differences = list(_differences(found.settings, settings))
        differences += [f"{other} was run again" for other, run in before.items() if found.after.get(other) != run]
        if differences:
            more = f"; and {len(differences) - _NAMED} more" if len(differences) > _NAMED else ""
            raise UsageError(
                f"{self.folder / name} holds products of other settings: {'; '.join(differences[:_NAMED])}{more}; "
                f"give --redo {_kind(name)} to replace them and what follows, or another folder with -o"
            )


def _differences(before: Settings, now: Settings, of: str = "") -> Iterator[str]:
    """What two settings differ in, one by one also where they are nested."""
    for key in dict.fromkeys([*before, *now]):
        old, new = before.get(key), now.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _differences(old, new, f"{of}{key}.")
        elif old != new:
            yield f"{of}{key} was {json.dumps(old)} and is {json.dumps(new)}"


def _has_only_the_record(folder: Path) -> bool:
    return all(path.name == _RECORD for path in folder.iterdir())


def _kind(name: str) -> str:
    return name.partition("-")[0]


def _covered(spans: Sequence[tuple[float, float]]) -> float:
    """The length of the union of some spans."""
    covered, reached = 0.0, -math.inf
    for begin, end in sorted(spans):
        covered += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return covered


def _read(path: Path) -> StageRecord | None:
    try:
        return StageRecord(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, TypeError) as error:
        raise FileError(f"{path} is damaged: {error}; remove its folder, which is then made again") from error


def _write(folder: Path, record: StageRecord) -> None:
    write_text(folder / _RECORD, json.dumps(asdict(record), indent=1) + "\n")
