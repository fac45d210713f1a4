"""Processes of one machine: turns, and a command with several workers while one is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import optuna
import pytest

from nnstretch.errors import FileError
from nnstretch.sweeps.study import states
from nnstretch.sweeps.workers.leases import LEASE, is_given_up
from nnstretch.sweeps.workers.storage import open_storage
from nnstretch.sweeps.workers.turns import Turns
from tests.kits.networks.small_network import SMALL_NETWORK


def test_who_measures_is_alone_and_waits_for_no_later_work(tmp_path: Path) -> None:
    events: list[str] = []
    begun, paused = threading.Event(), threading.Event()

    def train() -> None:
        with Turns(tmp_path).beside_others() as pause:
            begun.set()
            while not paused.wait(0.01):
                events.append("step")
                pause(1, 2, 0.5)  # as a callback of progress

    def measure() -> None:
        with Turns(tmp_path).alone():
            events.append("alone")
            time.sleep(0.1)
            events.append("not alone")

    training = threading.Thread(target=train)
    training.start()
    begun.wait()
    with Turns(tmp_path).beside_others():  # does not wait for the training
        events.append("beside")
    for _ in range(3):
        measure()  # gets its turn although the training never ends
    paused.set()
    training.join()
    starts = [place for place, event in enumerate(events) if event == "alone"]
    assert [events[place + 1] for place in starts] == ["not alone"] * 3
    assert "beside" in events


def test_turns_in_a_folder_that_cannot_be_made_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match=r"cannot write to .*file.*--work"), Turns(tmp_path / "file" / "in").alone():
        pass


def test_a_command_with_two_workers_goes_on_when_one_is_killed(folder: Path) -> None:
    Path("net.py").write_text(SMALL_NETWORK)
    limits = ["--alpha", "100", "--beta", "100", "--min-macs", "0.01", "--max-segment", "1"]
    wanted = ["-p", "sim:phone/cpu,sim:phone/gpu", *limits, "--warm-start", "0", "--sampler", "random", "--json"]
    wanted += ["-n", "40", "--workers", "2"]
    command = [sys.executable, "-m", "nnstretch", "sweep", "designs", "net.py:small", *wanted]
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as main:
        killed = _kill_a_worker(main)
        out, error = main.communicate(timeout=100)
    assert main.returncode == 0, error
    assert "was ended by signal 9; the others took over its trial" in error
    answer = json.loads(out)
    assert answer["trials"]["complete"] + answer["trials"]["pruned"] == 40
    study = optuna.load_study(storage=open_storage("sweep.journal"), study_name="net.py-small")
    assert states(study)["running"] == states(study)["fail"] == 0
    leased = [trial for trial in study.trials if LEASE in trial.user_attrs]
    # The worker may have been killed between taking its next trial and writing its lease: that one was queued again.
    assert all(is_given_up(trial) or trial.state.name == "WAITING" for trial in study.trials if trial not in leased)
    workers = {int(trial.user_attrs[LEASE]["worker"].split(":")[1]) for trial in leased}
    assert killed in workers
    assert len(workers) == 2


def _kill_a_worker(main: subprocess.Popen[str]) -> int:
    """Kills the first worker that has begun a trial; returns its number.

    It does not wait for the other one, which on a busy machine may begin after the first has run all trials.
    """
    children = Path(f"/proc/{main.pid}/task/{main.pid}/children")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        journal = Path("sweep.journal")
        text = journal.read_text() if journal.exists() else ""
        found = [int(child) for child in children.read_text().split() if f":{child}:" in text]
        if found:
            environment = Path(f"/proc/{found[0]}/environ").read_bytes().split(b"\0")
            assert b"OMP_NUM_THREADS=1" in environment
            os.kill(found[0], signal.SIGKILL)
            return found[0]
        time.sleep(0.05)
    raise AssertionError("no worker began a trial")
