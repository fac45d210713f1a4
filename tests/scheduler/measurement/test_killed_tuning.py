"""`nnstretch tune` killed repeatedly: the store stays valid, keeps finished measurements and leads to the same plan."""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import onnx
import pytest

from nnstretch.devices.base.spec import usable_cores
from nnstretch.devices.engine.binding.library import engine
from nnstretch.scheduler.measurement.store.store import ProfileStore
from nnstretch.scheduler.plan.schema import Plan
from tests.kits.graphs import RandomNetwork

TUNER = (sys.executable, str(Path(__file__).with_name("reporting_tuner.py")))

LATE = 0.8
"""Share of the tunings killed after they have finished a measurement."""

LONGEST = 2.0
"""Seconds after which a tuning is killed at the latest."""


class Tuning:
    """Tunings of one network with a cache folder of their own, in which the engine is built already."""

    def __init__(self, folder: Path, model: Path, times: str) -> None:
        folder.mkdir()
        (folder / "engine").symlink_to(engine().path.parent)
        self._folder, self._log = folder, folder / "log"
        self._arguments = [str(model), "-o", str(folder / "plan.json"), "-p", f"cpu:{min(usable_cores())}", "--json"]
        self._command = [*TUNER, str(self._log), times, *self._arguments]

    def start(self) -> subprocess.Popen[bytes]:
        """A tuning that resumes the last one."""
        environment = {**os.environ, "NNSTRETCH_CACHE_DIR": str(self._folder)}
        return subprocess.Popen(self._command, env=environment, stdout=subprocess.DEVNULL)

    def await_progress(self, process: subprocess.Popen[bytes]) -> None:
        """Waits until a tuning has finished a measurement, or ended."""
        before = self._reported()
        while self._reported() == before and process.poll() is None:
            time.sleep(0.01)

    def _reported(self) -> int:
        return self._log.stat().st_size if self._log.exists() else 0

    def finish(self) -> Plan:
        """The plan of a tuning that nobody kills."""
        assert self.start().wait() == 0
        return Plan.from_json((self._folder / "plan.json").read_text())

    def check(self) -> int:
        """Checks that the store has all reported measurements; returns their number."""
        path = self._folder / "profiles.sqlite"
        if not path.exists():
            assert not self._log.exists() or not self._log.read_text()
            return 0
        with sqlite3.connect(path) as database:
            assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        store = ProfileStore(path)
        known = {(r.processor, r.workload, r.routine, tuple(sorted(r.parameters.items()))) for r in store.rows()}
        store.close()
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        finished = {
            (*key, tuple(sorted(parameters.items()))): sign == "+" for sign, *key, parameters in map(json.loads, lines)
        }
        assert known >= {key for key, is_kept in finished.items() if is_kept}
        return len(known)


def kill_tunings(folder: Path, model: Path, kills: int, times: str = "made-up", seed: int = 0) -> list[int]:
    """Kills `kills` tunings at random moments; a complete store is compared and replaced by an empty one.

    Kills most after they have measured something, some while they start.

    Returns:
        Number of rows in the store after each kill.
    """
    rng = random.Random(seed)
    expected = Tuning(folder / "undisturbed", model, times).finish()
    finished: list[int] = []
    tuning = Tuning(folder / "killed", model, times)
    while len(finished) < kills:
        process = tuning.start()
        if rng.random() < LATE:
            tuning.await_progress(process)
        try:
            process.wait(rng.uniform(0.0, LONGEST))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            finished.append(tuning.check())
        else:
            assert process.returncode == 0
            check_plan(tuning, expected, times)
            shutil.rmtree(folder / "killed")
            tuning = Tuning(folder / "killed", model, times)
    check_plan(tuning, expected, times)
    return finished


def check_plan(tuning: Tuning, expected: Plan, times: str) -> None:
    """Whether a resumed tuning finds the plan of an undisturbed one."""
    plan = tuning.finish()
    tuning.check()
    if times == "made-up":
        assert plan.to_json() == expected.to_json()


@pytest.mark.slow
def test_tunings_that_are_killed_lead_to_the_same_plan(tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    onnx.save(RandomNetwork(5, 0, nodes=30, channels=(16, 32, 48)).model, model)
    finished = kill_tunings(tmp_path, model, 4)
    assert max(finished) > 0
