"""Storages of studies: what cannot be used, other versions, and outages in the middle of a study."""

from __future__ import annotations

import errno
import sqlite3
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import FloatDistribution

from nnstretch.errors import FileError, UsageError
from nnstretch.sweeps.samplers import find_sampler
from nnstretch.sweeps.study import ABOUT, StudySpec, states
from nnstretch.sweeps.workers.leases import LeaseTimes
from nnstretch.sweeps.workers.storage import is_outage
from nnstretch.sweeps.workers.worker import Evaluate, Outcome, StudyWorker, SweepBudget
from tests.kits.processes.databases import free_port, postgresql, storage_proxy

TRIALS = 8


def spec(storage: str, *, resume: bool = False) -> StudySpec:
    return StudySpec(storage, "study", ("first", "second"), ("minimize", "maximize"), {}, resume)


def run(study: optuna.Study, evaluate: Evaluate) -> None:
    space = {"x": FloatDistribution(0, 1)}
    times = LeaseTimes(0.1, 0.6)
    StudyWorker(study, space, evaluate, SweepBudget(TRIALS), find_sampler("random"), times=times).run()


def test_a_database_of_another_version_is_named(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/study.db"
    spec(url).open()
    with sqlite3.connect(tmp_path / "study.db") as database:
        database.execute("UPDATE alembic_version SET version_num = 'v2.0.0'")
        database.execute("UPDATE version_info SET schema_version = 11")
    with pytest.raises(FileError, match="is of another version of Optuna; run `optuna storage upgrade"):
        spec(url, resume=True).open()


def test_a_study_of_another_format_is_named(tmp_path: Path) -> None:
    storage = str(tmp_path / "study.journal")
    study = spec(storage).open()
    study.set_user_attr(ABOUT, {**study.user_attrs[ABOUT], "format": 0})
    with pytest.raises(UsageError, match="was made by another version of nnstretch; give another name"):
        spec(storage, resume=True).open()


def test_a_study_goes_on_when_a_database_that_was_stopped_answers_again(tmp_path: Path) -> None:
    evaluated: list[int] = []
    with postgresql(tmp_path) as server, ExitStack() as stack:

        def evaluate(trial: optuna.Trial) -> Outcome:
            evaluated.append(trial.number)
            if len(evaluated) == 3:
                server.stop()
                restart = threading.Timer(0.5, server.start)
                restart.start()
                stack.callback(restart.join)
            trial.set_user_attr("seen", True)  # an access in the middle of a trial
            return Outcome((trial.params["x"], 1.0))

        study = spec(server.url).open()
        run(study, evaluate)
        assert states(study) == {"complete": TRIALS, "pruned": 0, "fail": 0, "running": 0, "waiting": 0}
    assert sorted(set(evaluated)) == list(range(TRIALS))
    assert len(evaluated) > TRIALS  # the third trial was evaluated again


def test_a_study_behind_a_proxy_goes_on_when_the_proxy_is_back(tmp_path: Path) -> None:
    pytest.importorskip("grpc")
    port, database = free_port(), f"sqlite:///{tmp_path}/study.db"
    done: list[int] = []
    with ExitStack() as stack:
        server = stack.enter_context(storage_proxy(database, port))

        def evaluate(trial: optuna.Trial) -> Outcome:
            if len(done) == 3:
                server.kill()
                server.wait()
                stack.enter_context(storage_proxy(database, port))
            done.append(trial.number)
            trial.set_user_attr("seen", True)
            return Outcome((trial.params["x"], 1.0))

        study = reached(f"grpc://127.0.0.1:{port}")
        run(study, evaluate)
        assert states(study)["complete"] == TRIALS
    assert states(spec(database, resume=True).open())["complete"] == TRIALS
    with pytest.raises(FileError, match="cannot reach the storage grpc://127"):
        spec(f"grpc://127.0.0.1:{port}").open()


def reached(storage: str) -> optuna.Study:
    """The study of a storage that is about to answer."""
    for _ in range(100):
        try:
            return spec(storage).open()
        except FileError:
            time.sleep(0.1)
    raise AssertionError(f"{storage} does not answer")


def test_a_storage_that_stays_away_ends_the_worker_and_keeps_the_trial_for_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("nnstretch.sweeps.workers.worker.time.sleep", pauses.append)
    storage = str(tmp_path / "study.journal")

    def evaluate(trial: optuna.Trial) -> Outcome:
        raise OSError(errno.ESTALE, "Stale file handle")

    with pytest.raises(FileError, match=r"the storage does not answer: .*Stale file handle; resume when it does"):
        run(spec(storage).open(), evaluate)
    assert sum(pauses) == pytest.approx(0.25 * (2**7 - 1))  # half a minute, for the trial alone
    monkeypatch.undo()
    resumed = spec(storage, resume=True).open()
    (trial,) = resumed.trials
    assert trial.state.name == "RUNNING"
    run(resumed, lambda trial: Outcome((trial.params["x"], 1.0)))
    assert states(resumed)["complete"] == TRIALS
    assert trial.params in [one.params for one in resumed.trials if one.state.name == "COMPLETE"]


def test_errors_of_a_request_are_no_outage() -> None:
    grpc = pytest.importorskip("grpc")

    def error(code: Any) -> Any:
        return type("Status", (grpc.RpcError,), {"__module__": "grpc._channel", "code": lambda _: code})()

    assert is_outage(error(grpc.StatusCode.UNAVAILABLE))
    assert not is_outage(error(grpc.StatusCode.NOT_FOUND))
    assert not is_outage(ValueError("code"))
