"""Studies of made-up designs, for reports."""

from __future__ import annotations

import json
import random
from collections.abc import Generator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import Trial, create_trial

KINDS = optuna.study.StudyDirection
DIRECTIONS = [KINDS.MINIMIZE, KINDS.MAXIMIZE, KINDS.MINIMIZE, KINDS.MINIMIZE]


class LateJournal(JournalFileBackend):
    """A journal that is written by `write`, at once: not every record waits for the disk."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self._records: list[dict[str, Any]] = []

    def read_logs(self, log_number_from: int) -> Generator[dict[str, Any], None, None]:
        yield from self._records[log_number_from:]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        self._records += json.loads(json.dumps(logs))

    def write(self) -> None:
        super().append_logs(self._records)


def journal_study(path: Path, objectives: int, backend: JournalFileBackend | None = None) -> optuna.Study:
    """An empty study "designs" in a journal."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = JournalStorage(backend or JournalFileBackend(str(path)))
    sampler = optuna.samplers.RandomSampler(seed=0)
    directions = DIRECTIONS[:objectives]
    return optuna.create_study(study_name="designs", storage=storage, directions=directions, sampler=sampler)


def small_study(path: Path, objectives: int, trials: int = 12) -> optuna.Study:
    """A study with a pruned trial and infeasible ones; only some trials have the parameter `width`."""
    made = journal_study(path, objectives)

    def objective(trial: Trial) -> tuple[float, ...]:
        depth, merge = trial.suggest_int("depth", 1, 8), trial.suggest_categorical("merge", ["add", "concat"])
        if merge == "add":
            trial.suggest_float("width", 0.1, 1.0, log=True)
        trial.set_user_attr("fidelity", "measured")
        trial.set_constraint("depth", depth - 7)
        if trial.number == 3:
            raise optuna.TrialPruned
        return (depth + (merge == "add"), 70.0 + depth, 5.0 * depth, 1.0 * trial.number)[:objectives]

    made.optimize(objective, n_trials=trials)
    return made


def large_study(path: Path, trials: int, parameters: int) -> None:
    """A study of three objectives, as large as wanted; every fifth trial breaks a constraint."""
    journal = LateJournal(path)
    made = journal_study(path, 3, journal)
    draws = random.Random(0)
    space: dict[str, BaseDistribution] = {}
    for number in range(parameters):
        kinds = (IntDistribution(1, 8), FloatDistribution(0.1, 1.0), CategoricalDistribution(["cpu:0", "opencl:0"]))
        space[f"{('depth', 'width', 'processor')[number % 3]}.{number}"] = kinds[number % 3]
    start = datetime(2026, 1, 1)  # noqa: DTZ001 - as Optuna wants it

    def trial(number: int) -> optuna.trial.FrozenTrial:
        params: dict[str, Any] = {
            name: draws.choice(about.choices) if isinstance(about, CategoricalDistribution)
            else draws.randint(1, 8) if isinstance(about, IntDistribution) else draws.uniform(0.1, 1.0)
            for name, about in space.items()
        }  # fmt: skip
        work = sum(value for value in params.values() if not isinstance(value, str))
        lease = {"worker": f"host/boot/pid:{number % 2}:7", "beat": 0}
        return create_trial(
            params=params,
            distributions=space,
            values=[work + 50 * draws.random(), 60 + 0.1 * work + 3 * draws.random(), 5 * work + 90 * draws.random()],
            constraints={"alpha": draws.random() - 0.8},
            user_attrs={"design": f"d{draws.randrange(16**10):010x}", "rung": "measured", "lease": lease},
            state=optuna.trial.TrialState.COMPLETE,
        )

    found = [trial(number) for number in range(trials)]
    for number, one in enumerate(found):
        one.datetime_start = start + timedelta(seconds=number // 2)
        one.datetime_complete = one.datetime_start + timedelta(seconds=0.9)
    made.add_trials(found)
    journal.write()
