"""Workers of a study: budgets, failures, seeds, several workers, and kills."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import optuna
import pytest
import torch
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState

import nnstretch as nns
from nnstretch.errors import FileError, MissingExtraError, StoppedError, UsageError
from nnstretch.sweeps.measures.place import LostMachineError
from nnstretch.sweeps.samplers import OPENMP_THREADS, SAMPLERS, _auto_sampler, find_sampler
from nnstretch.sweeps.study import ERROR, StudySpec, states
from nnstretch.sweeps.workers.leases import (
    AGAIN,
    GIVEN_UP,
    LEASE,
    LOST,
    SURPLUS,
    LeaseObserver,
    LeaseTimes,
    is_given_up,
    leased,
)
from nnstretch.sweeps.workers.worker import PRUNED, Outcome, StudyWorker, SweepBudget
from tests.kits.command_line import Cli
from tests.kits.processes.databases import postgresql

SPACE: Mapping[str, BaseDistribution] = {"x": FloatDistribution(0, 1), "way": CategoricalDistribution(["a", "b"])}
SHORT = LeaseTimes(interval=0.1, patience=0.6)


def spec(storage: str, *, resume: bool = False, about: Mapping[str, Any] | None = None, workers: int = 1) -> StudySpec:
    return StudySpec(storage, "study", ("first", "second"), ("minimize", "maximize"), about or {}, resume, workers)


def value(trial: optuna.Trial) -> Outcome:
    x = trial.params["x"] + (trial.params["way"] == "b")
    return Outcome((x, math.sin(3 * x)))


def worker(
    study: optuna.Study,
    trials: int,
    evaluate: Callable[[optuna.Trial], Outcome] = value,
    sampler: str = "tpe",
    **more: Any,
) -> StudyWorker:
    return StudyWorker(study, SPACE, evaluate, SweepBudget(trials), find_sampler(sampler), times=SHORT, **more)


def journal(tmp_path: Path) -> str:
    return str(tmp_path / "study.journal")


def params(study: optuna.Study) -> list[dict[str, Any]]:
    return [trial.params for trial in study.trials if not is_given_up(trial)]


@pytest.mark.parametrize("sampler", [name for name in SAMPLERS if name != "auto"])
def test_the_same_seed_makes_the_same_study_whether_interrupted_or_not(tmp_path: Path, sampler: str) -> None:
    count = 13 if sampler == "gp" else 24  # Gaussian processes are fitted from the tenth trial on
    whole = spec(journal(tmp_path)).open()
    worker(whole, count, sampler=sampler).run()
    parts = str(tmp_path / "parts.journal")
    worker(spec(parts).open(), 11, sampler=sampler).run()
    resumed = spec(parts, resume=True).open()
    worker(resumed, count, sampler=sampler).run()
    assert params(resumed) == params(whole)
    other = spec(str(tmp_path / "other.journal")).open()
    worker(other, count, sampler=sampler, seed=1).run()
    assert params(other) != params(whole)


@pytest.fixture
def two_torch_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_torch_threads")
def test_gaussian_processes_use_one_thread_and_give_the_others_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []

    class Recorded(optuna.samplers.GPSampler):
        def _sample_relative_impl(self, *arguments: Any, **more: Any) -> dict[str, Any]:
            threads.append(torch.get_num_threads())
            return super()._sample_relative_impl(*arguments, **more)

    monkeypatch.setattr("optuna.samplers.GPSampler", Recorded)
    study = spec(journal(tmp_path)).open()
    worker(study, 12, sampler="gp").run()
    assert states(study)["complete"] == 12
    assert threads == [1, 1]  # the first ten trials are random
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(("command", "more"), [("designs", ("-p", "cpu:0")), ("tune", ())])
def test_commands_limit_openmp_before_they_load_torch_unless_the_user_has(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch, command: str, more: tuple[str, ...]
) -> None:
    monkeypatch.delenv(OPENMP_THREADS, raising=False)
    for sampler, given, wanted in (("tpe", None, None), ("gp", None, "1"), ("gp", "4", "4")):
        if given:
            monkeypatch.setenv(OPENMP_THREADS, given)
        assert cli("sweep", command, "nosuch", *more, "--sampler", sampler)[0] == 2  # after the limit is set
        assert os.environ.get(OPENMP_THREADS) == wanted
    monkeypatch.delenv(OPENMP_THREADS)


def test_the_sampler_auto_is_downloaded_once_and_its_failures_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []

    def load_module(name: str) -> Any:
        loaded.append(name)
        if len(loaded) == 1:
            raise ConnectionError("Cmd('git') failed\nexit code 128")
        return SimpleNamespace(AutoSampler=optuna.samplers.TPESampler)

    monkeypatch.setitem(sys.modules, "optunahub", SimpleNamespace(load_module=load_module))
    _auto_sampler.cache_clear()
    try:
        with pytest.raises(FileError, match=r"from OptunaHub: Cmd\('git'\) failed; check the network, or give another"):
            find_sampler("auto")(0)
        for seed in range(3):
            assert isinstance(find_sampler("auto")(seed), optuna.samplers.TPESampler)
    finally:
        _auto_sampler.cache_clear()
    assert loaded == ["samplers/auto_sampler"] * 2


def test_a_study_and_each_trial_say_what_they_were_made_with(tmp_path: Path) -> None:
    study = spec(journal(tmp_path)).open()
    worker(study, 2, lambda trial: Outcome((math.nan, 0.0)) if trial.number else value(trial)).run()
    names = {trial.user_attrs["environment"] for trial in study.trials}
    assert len(names) == 1
    made = study.user_attrs[f"environment.{names.pop()}"]
    assert made["nnstretch"] == nns.__version__
    assert made["libraries"]["optuna"] == optuna.__version__
    assert study.user_attrs["environment"].keys() >= {"nnstretch", "python", "system"}
    worker(spec(journal(tmp_path), resume=True).open(), 3).run()
    resumed = spec(journal(tmp_path), resume=True).open()
    assert len([key for key in resumed.user_attrs if key.startswith("environment.")]) == 1


def test_a_queued_trial_comes_first_and_keeps_its_parameters(tmp_path: Path) -> None:
    study = spec(journal(tmp_path)).open()
    study.enqueue_trial({"x": 0.125, "way": "b"})
    worker(study, 2).run()
    assert study.trials[0].params == {"x": 0.125, "way": "b"}


def test_a_queued_trial_without_parameters_is_not_repeated_by_the_next_one(tmp_path: Path) -> None:
    """As of a worker that died before its trial had any."""
    study = spec(journal(tmp_path)).open()
    study.enqueue_trial({})
    worker(study, 3, sampler="random").run()
    assert len({trial.params["x"] for trial in study.trials}) == 3


def test_constraints_decide_what_is_on_the_front(tmp_path: Path) -> None:
    def limited(trial: optuna.Trial) -> Outcome:
        trial.set_constraint("way", float(trial.params["way"] == "a"))
        return value(trial) if trial.params["x"] < 0.7 else PRUNED

    study = spec(journal(tmp_path)).open()
    worker(study, 30, limited).run()
    assert {trial.params["way"] for trial in study.best_trials} == {"b"}
    assert states(study)["pruned"] + states(study)["complete"] == 30


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ((1.0,), "returned 1 value; the study has 2"),
        ((math.nan, 1.0), "return finite numbers"),
        (("fast", 1.0), "return a number for each direction"),
    ],
)
def test_wrong_values_fail_their_trial_alone(tmp_path: Path, found: Any, message: str) -> None:
    study = spec(journal(tmp_path)).open()
    worker(study, 6, lambda trial: Outcome(found) if trial.number == 2 else value(trial)).run()
    assert states(study) == {"complete": 5, "pruned": 0, "fail": 1, "running": 0, "waiting": 0}
    assert message in study.trials[2].user_attrs[ERROR]


def test_an_objective_that_always_raises_ends_the_worker_with_its_reason(tmp_path: Path) -> None:
    def broken(trial: optuna.Trial) -> Outcome:
        raise ZeroDivisionError("by nothing")

    study = spec(journal(tmp_path)).open()
    with pytest.raises(
        UsageError, match="5 trials in a row failed: the objective raised ZeroDivisionError: by nothing"
    ):
        worker(study, 20, broken, guarded=True).run()
    with pytest.raises(ZeroDivisionError):  # an error of our own is a bug
        worker(study, 20, broken).run()


@pytest.mark.parametrize(
    "error", [LostMachineError("the phone is gone"), StoppedError("stopped by SIGTERM", 143)], ids=["lost", "stopped"]
)
def test_a_worker_that_cannot_go_on_leaves_its_trial_to_others(tmp_path: Path, error: Exception) -> None:
    def ends(trial: optuna.Trial) -> Outcome:
        if trial.number == 1:
            raise error
        return value(trial)

    study = spec(journal(tmp_path)).open()
    with pytest.raises(type(error), match=str(error)):
        worker(study, 3, ends).run()
    other = spec(journal(tmp_path), resume=True).open()
    assert LeaseObserver(other, SHORT).requeue_lost() == 0  # it is queued already
    worker(other, 3).run()
    assert states(other) == {"complete": 3, "pruned": 0, "fail": 0, "running": 0, "waiting": 0}
    assert [trial.user_attrs.get(AGAIN) for trial in other.trials] == [None, None, 1, None]
    assert other.trials[2].params == other.trials[1].params


def test_a_study_about_something_else_is_refused(tmp_path: Path) -> None:
    spec(journal(tmp_path), about={"model": "resnet18"}).open()
    with pytest.raises(
        UsageError, match=r"has a study 'study' already; go on with it \(`resume=True`\), .* \(`study`\)"
    ):
        spec(journal(tmp_path), about={"model": "resnet18"}).open()
    spec(journal(tmp_path), about={"model": "resnet18"}, resume=True).open()
    with pytest.raises(UsageError, match="is for model resnet18, not for vgg16"):
        spec(journal(tmp_path), about={"model": "vgg16"}, resume=True).open()
    foreign = str(tmp_path / "foreign.journal")
    backend = optuna.storages.journal.JournalFileBackend(foreign)
    optuna.create_study(storage=optuna.storages.JournalStorage(backend), study_name="study")
    with pytest.raises(UsageError, match="was not made by nnstretch"):
        spec(foreign, resume=True).open()


@pytest.mark.parametrize(
    ("storage", "error", "message"),
    [
        ("{folder}", FileError, "cannot open the journal"),
        ("{folder}/absent/a.journal", FileError, "cannot open the journal"),
        ("{folder}/text", FileError, "is no journal of a study"),
        ("/dev/zero", FileError, "is no journal of a study"),
        ("postgresql://me:secret@127.0.0.1:1/none", FileError, r"cannot reach the storage postgresql://me:\*\*\*@127"),
        (
            "mysql+mysqldb://here/none",
            MissingExtraError,
            "needs MySQLdb, which is not installed; pip install mysqlclient",
        ),
        ("nosuchdatabase://here", UsageError, "is not understood"),
        ("sqlite:///{folder}/a.db", UsageError, "SQLite is not for several writers"),
        ("grpc://nowhere", UsageError, "write grpc://HOST:PORT"),
    ],
)
def test_a_storage_that_cannot_be_used_is_one_line(
    tmp_path: Path, storage: str, error: type[Exception], message: str
) -> None:
    (tmp_path / "text").write_text("no journal\n")
    with pytest.raises(error, match=message) as caught:
        spec(storage.format(folder=tmp_path), workers=2).open()
    assert "secret" not in str(caught.value)


def test_a_full_disk_is_one_line_and_the_study_goes_on_when_there_is_space(tmp_path: Path) -> None:
    import resource

    study = spec(journal(tmp_path)).open()
    worker(study, 3).run()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (Path(journal(tmp_path)).stat().st_size + 40, limits[1]))
    try:
        with pytest.raises(FileError, match=r"cannot write the journal .*resume"):
            worker(study, 6).run()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    resumed = spec(journal(tmp_path), resume=True).open()  # the torn record is not read
    worker(resumed, 6).run()
    assert states(resumed)["complete"] == 6
    assert states(spec(journal(tmp_path), resume=True).open())["complete"] == 6


def test_a_trial_whose_heartbeat_stops_is_queued_again_once(tmp_path: Path) -> None:
    study = spec(journal(tmp_path)).open()
    trial = study.ask(dict(SPACE))
    trial.set_user_attr(LEASE, {"worker": "another machine:1:1", "beat": 7})
    observers = [LeaseObserver(spec(journal(tmp_path), resume=True).open(), SHORT) for _ in range(2)]
    assert [observer.requeue_lost() for observer in observers] == [0, 0]
    time.sleep(SHORT.patience)
    assert sum(observer.requeue_lost() for observer in observers) == 1
    lost, queued = study.trials
    assert (lost.state, lost.user_attrs[GIVEN_UP]) == (TrialState.FAIL, LOST)
    assert (queued.state, queued.user_attrs[AGAIN]) == (TrialState.WAITING, 0)
    worker(study, 1).run()
    assert study.trials[1].params == trial.params
    study.tell(trial, (0.0, 0.0), skip_if_finished=True)  # its worker was merely slow
    assert study.trials[0].values is None


def test_a_trial_that_nobody_queued_is_queued_by_another_observer_and_counted_once(tmp_path: Path) -> None:
    study = spec(journal(tmp_path)).open()
    trial = study.ask(dict(SPACE))
    trial.set_user_attr(GIVEN_UP, LOST)
    study.tell(trial, state=TrialState.FAIL)
    observer = LeaseObserver(study, SHORT)
    assert observer.requeue_lost() == 0
    time.sleep(SHORT.patience)
    assert observer.requeue_lost() == 1
    study.enqueue_trial(trial.params, user_attrs={AGAIN: 0})  # by a second observer at the same moment
    worker(study, 4).run()
    assert states(study)["complete"] == 4
    assert [t.user_attrs.get(GIVEN_UP) for t in study.trials[:3]] == [LOST, None, SURPLUS]


def test_a_worker_that_lives_keeps_its_trial(tmp_path: Path) -> None:
    study = spec(journal(tmp_path)).open()
    observer = LeaseObserver(study, SHORT)
    with leased(study.ask(dict(SPACE)), SHORT) as is_lost:
        for _ in range(10):
            assert observer.requeue_lost() == 0
            time.sleep(SHORT.patience / 6)
        assert not is_lost()


WORKER = """
import sys, time
from pathlib import Path
from nnstretch.sweeps.workers.leases import LeaseTimes
from nnstretch.sweeps.samplers import find_sampler
from nnstretch.sweeps.study import StudySpec
from nnstretch.sweeps.workers.worker import Outcome, StudyWorker, SweepBudget
from optuna.distributions import FloatDistribution

storage, log, trials, seed = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])

def evaluate(trial):
    time.sleep(0.03)
    return Outcome((trial.params["x"], 1.0))

class Logged(StudyWorker):
    def _finish(self, trial, values, state):
        super()._finish(trial, values, state)
        with log.open("a") as file:
            file.write(f"{trial.number} {trial.params['x']!r}\\n")

study = StudySpec(storage, "study", ("first", "second"), ("minimize", "maximize"), {}, True, 3).open()
print("ready", flush=True)
space = {"x": FloatDistribution(0, 1)}
times = LeaseTimes(0.2, 4.0)  # longer than a living worker waits for a core of a busy machine
Logged(study, space, evaluate, SweepBudget(trials), find_sampler("random"), seed, times).run()
"""


@contextmanager
def opened_storage(kind: str, folder: Path) -> Iterator[str]:
    if kind == "journal":
        yield str(folder / "study.journal")
        return
    with postgresql(folder) as server:
        yield server.url


@pytest.mark.parametrize("kind", ["journal", "postgresql"])
def test_workers_killed_at_random_moments_lose_nothing_and_repeat_nothing(tmp_path: Path, kind: str) -> None:
    kills = int(os.environ.get("NNSTRETCH_KILLS", "2"))
    trials = 10 * kills
    random = np.random.default_rng(5)
    log = tmp_path / "log"

    def start(seed: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", WORKER, storage, str(log), str(trials), str(seed)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    with opened_storage(kind, tmp_path) as storage:
        spec(storage).open()
        running = [start(seed) for seed in range(3)]
        for kill in range(kills):
            time.sleep(float(random.uniform(0.0, 0.3)))
            victim = running.pop(0)
            assert victim.stdout is not None
            victim.stdout.readline()  # from here on it asks, evaluates and writes
            time.sleep(float(random.uniform(0.0, 0.2)))
            victim.send_signal(signal.SIGKILL)
            victim.communicate()
            running.append(start(10 + kill))
        for process in running:
            process.communicate(timeout=60)
            assert process.returncode == 0
        found = spec(storage, resume=True).open().trials
    complete = {trial.number: trial.params["x"] for trial in found if trial.state is TrialState.COMPLETE}
    assert len(complete) == trials
    assert len(set(complete.values())) == trials, "a trial ran twice to the end"
    assert all(trial.state.is_finished() for trial in found)
    lost = [t for t in found if t.state is TrialState.FAIL and t.user_attrs.get(GIVEN_UP) == LOST]
    again = [trial.user_attrs[AGAIN] for trial in found if AGAIN in trial.user_attrs and not is_given_up(trial)]
    assert {t.number for t in lost} >= set(again)
    logged = dict(line.split() for line in log.read_text().splitlines())
    assert all(complete[int(number)] == float(x) for number, x in logged.items()), "a finished trial was lost"
