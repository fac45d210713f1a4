"""Tuning, training and search killed at random moments: finished work is kept, files stay whole, and the answer is the same.

`NNSTRETCH_KILLS=100 pytest --log-cli-level=INFO` kills each a hundred times and says what happened.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import random
import shutil
import sqlite3
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import onnx
import pytest

from nnstretch.devices.base.spec import usable_cores
from nnstretch.devices.engine.binding.library import engine
from nnstretch.scheduler.measurement.store.store import ProfileStore
from nnstretch.training.loop.checkpoint import load_checkpoint
from nnstretch.training.loop.run_folder import RunOptions
from nnstretch.training.weights import read_tensors
from tests.kits.graphs.graphs import RandomNetwork
from tests.kits.networks.small_network import SMALL_NETWORK
from tests.kits.processes.forks import FORKS
from tests.kits.processes.killable_commands import run_command

KILLS = int(os.environ.get("NNSTRETCH_KILLS", "0"))
"""Kills of each command; 0 for a few of tuning and training."""

LATE = 0.8
"""Share of the runs killed after they have finished a piece of work."""

EPOCHS = 2
FEW_IMAGES = """
from tests.kits.networks.unreadable_images import made


def few():
    return made(96, 1)
"""

_LOG = logging.getLogger(__name__)


class Killable:
    """Runs of one command, each resuming the last, with a cache folder of its own."""

    made_up = True

    def __init__(self, folder: Path) -> None:
        (folder / "output").mkdir(parents=True)
        self.folder, self.output, self.log = folder, folder / "output", folder / "log"

    def start(self) -> ForkServerProcess:
        """A run that resumes the last one."""
        environment = {"NNSTRETCH_CACHE_DIR": str(self.folder)}
        # Forks begin with everything imported, so that kills hit the work, not the start.
        run = FORKS.Process(target=run_command, args=(self.arguments(), environment, self.log, self.made_up))
        run.start()
        return run

    def await_progress(self, run: ForkServerProcess) -> None:
        """Waits until a run has finished a piece of work, or ended."""
        before = self._reported()
        while self._reported() == before and run.is_alive():
            time.sleep(0.01)

    def finish(self) -> tuple[object, float]:
        """The answer of a run that nobody kills, and its seconds after the first piece of work."""
        run = self.start()
        self.await_progress(run)
        begun = time.monotonic()
        run.join()
        seconds = time.monotonic() - begun
        assert run.exitcode == 0
        self.check()
        return self.answer(), seconds

    def lines(self) -> list[list[object]]:
        """Everything reported so far."""
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []

    def _reported(self) -> int:
        return self.log.stat().st_size if self.log.exists() else 0

    @abstractmethod
    def arguments(self) -> list[str]:
        """Of `nnstretch`."""

    @abstractmethod
    def check(self) -> int:
        """Checks that all finished work is kept and was done once; returns its amount."""

    @abstractmethod
    def answer(self) -> object:
        """What a finished run has written."""


class Measuring(Killable):
    """A command whose pieces of work are measurements in the profile store. The engine is built already."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (folder / "engine").symlink_to(engine().path.parent)

    def check(self) -> int:
        path = self.folder / "profiles.sqlite"
        if not path.exists():
            assert not self.lines()
            return 0
        with sqlite3.connect(path) as database:
            assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        store = ProfileStore(path)
        known = {_key((r.processor, r.workload, r.routine, dict(r.parameters))) for r in store.rows()}
        store.close()
        counts: Counter[str] = Counter()
        for sign, *key in self.lines():
            if sign == "+":
                counts[_key(key)] += 1
            else:
                counts[_key(key)] = 0
        assert known >= {key for key, count in counts.items() if count}
        # Layers inside networks are measured until they are confirmed.
        assert not [key for key, count in counts.items() if count > 1 and " in " not in key], "measured twice"
        return len(known)


class Tuning(Measuring):
    def arguments(self) -> list[str]:
        model = self.folder / "m.onnx"
        if not model.exists():
            onnx.save(RandomNetwork(5, 0, nodes=12, channels=(16, 32, 48)).model, model)
        output = str(self.output / "plan.json")
        return ["tune", "--resume", str(model), "-o", output, "-p", f"cpu:{min(usable_cores())}", "--json"]

    def answer(self) -> object:
        return (self.output / "plan.json").read_text()


class Search(Measuring):
    """A search of designs that measures every layer and runs designs."""

    def arguments(self) -> list[str]:
        (self.folder / "net.py").write_text(SMALL_NETWORK)
        processors = ",".join(f"cpu:{core}" for core in usable_cores()[:2])
        network = ["stretch", f"{self.folder}/net.py:small", "-p", processors, "--measure-all", "--top", "2"]
        return [*network, "--alpha", "100", "--beta", "100", "--even-if-slower", "-o", str(self.output)]

    def answer(self) -> object:
        files = sorted(path for path in self.output.iterdir() if not path.name.startswith("."))
        weights = {path.name: _weights(path) for path in files if path.suffix == ".safetensors"}
        return {path.name: path.read_bytes() for path in files if path.suffix == ".json"} | weights


class Training(Killable):
    workers = 0

    def arguments(self) -> list[str]:
        (self.folder / "net.py").write_text(SMALL_NETWORK.replace("nn.Linear(32, 10)", "nn.Linear(32, 4)"))
        (self.folder / "few.py").write_text(FEW_IMAGES)
        network = ["train", f"{self.folder}/net.py:small", "--data", f"{self.folder}/few.py:few", "--batch-size", "8"]
        options = ["-t", "1", "--workers", str(self.workers), "--epochs", str(EPOCHS), "--resume"]
        options += ["--checkpoint-minutes", "0"]  # one after every step
        return [*network, *options, "-o", str(self.weights)]

    @property
    def weights(self) -> Path:
        return self.output / "w.safetensors"

    def check(self) -> int:
        places = [(int(str(epochs)), int(str(step))) for _, epochs, step in self.lines()]
        places = [place for place in places if place > (0, 0)]  # a training that has not taken a step begins again
        assert all(one < other for one, other in itertools.pairwise(places)), "a step was repeated"
        last = RunOptions(self.output / "w.run").last
        if not last.exists():
            assert not places
            return 0
        kept = load_checkpoint(last)
        assert (len(kept.history), kept.counters.step) >= (places[-1] if places else (0, 0))
        return len(places)

    def answer(self) -> object:
        return _weights(self.weights)


class LoadingTraining(Training):
    """A training whose images are loaded by processes, which may outlive it for a moment."""

    workers = 2


def _weights(path: Path) -> object:
    """Content of a weights file; the order of its fields is random."""
    tensors, metadata = read_tensors(path)
    return {name: (tensor.dtype, tensor.shape, tensor.numpy().tobytes()) for name, tensor in tensors.items()}, metadata


def _key(key: object) -> str:
    return json.dumps(key, sort_keys=True)


def kill_runs(made: Callable[[Path], Killable], folder: Path, kills: int, seed: int = 0) -> list[int]:
    """Kills runs at random moments; whenever one ends, its answer is compared, and the next begins with an empty folder.

    Kills most after they have finished a piece of work, some while they start: none later than an undisturbed run goes on
    after its first piece of work, as later most have ended.

    Returns:
        Amount of finished work after each kill.
    """
    rng = random.Random(seed)
    command = made(folder / "run")
    expected, longest = command.finish()
    finished: list[int] = []
    begun = time.monotonic()
    ended = left = 0

    def restarted() -> Killable:
        shutil.rmtree(folder / "run")
        return made(folder / "run")

    command = restarted()
    while len(finished) < kills:
        run = command.start()
        if not finished or rng.random() < LATE:
            command.await_progress(run)
        run.join(rng.uniform(0.0, longest))
        if run.is_alive():
            run.kill()
            run.join()
            finished.append(command.check())
            left += len([*command.output.glob(".*")])
        else:
            assert run.exitcode == 0
            command.check()
            assert command.answer() == expected
            ended += 1
            command = restarted()
    assert command.finish()[0] == expected
    seconds = time.monotonic() - begun
    _LOG.info("%s: %d kills, %d ends, %.0f s; %d partial files", made.__name__, kills, ended, seconds, left)
    return finished


@pytest.mark.slow
@pytest.mark.timeout(300 + 30 * KILLS)
@pytest.mark.parametrize(("made", "few"), [(Tuning, 2), (Training, 1), (LoadingTraining, 0), (Search, 0)])
def test_killed_commands_lead_to_the_same_answer(made: Callable[[Path], Killable], few: int, tmp_path: Path) -> None:
    if not (kills := KILLS or few):
        pytest.skip("takes long; set NNSTRETCH_KILLS")
    finished = kill_runs(made, tmp_path, kills)
    assert max(finished) > 0
