"""Targets: workers that are started on them, and measurements there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import numpy as np
import pytest

from nnstretch.api.options import CompileOptions
from nnstretch.compiler.costs import open_profiler
from nnstretch.compiler.processors import build_processors
from nnstretch.devices.targets import workers
from nnstretch.devices.targets.workers import LocalTarget, open_target
from nnstretch.errors import UsageError
from nnstretch.support.worker_process import WorkerError, WorkerProcess
from tests.kits.kernels.convolution_parity import conv_layer


@pytest.fixture
def target() -> LocalTarget:
    return LocalTarget()


def test_targets_by_name() -> None:
    assert open_target("local").name == "local"
    for text in ("", "locale", "ssh:nobody@nowhere"):
        with pytest.raises(UsageError, match="known are local"):
            open_target(text)


ECHO = """
import sys
from nnstretch.support.frames import read_frame, write_frame
while True:
    message, arrays = read_frame(sys.stdin.buffer)
    if message.get("end"):
        sys.exit("it was asked to end")
    write_frame(sys.stdout.buffer, message, arrays)
"""


def test_workers_answer_over_the_target(target: LocalTarget) -> None:
    large = np.arange(1 << 20, dtype=np.float32)
    with WorkerProcess([sys.executable, "-c", ECHO], start=target.start) as worker:
        for number in range(3):
            worker.send({"number": number}, {"large": large})
            message, arrays = worker.receive(ticks=60)
            assert message == {"number": number}
            np.testing.assert_array_equal(arrays["large"], large)
        worker.stop()
        with worker.running():
            worker.send({"number": 3})
            assert worker.receive()[0] == {"number": 3}
        with worker.running():
            worker.send({"end": True})
            with pytest.raises(WorkerError, match="it was asked to end"):
                worker.receive()
        assert worker.ended


def test_workers_that_do_not_answer_are_killed(target: LocalTarget) -> None:
    with WorkerProcess([sys.executable, "-c", "import time; time.sleep(60)"], start=target.start) as worker:
        with pytest.raises(WorkerError, match="no answer within 1 s"):
            worker.receive(ticks=1)
        assert worker.ended
    with pytest.raises(OSError, match="no-such-command"):
        WorkerProcess(["no-such-command"], start=target.start)


class RecordingTarget(LocalTarget):
    """The local machine; remembers the workers that it started."""

    def __init__(self) -> None:
        super().__init__()
        self.commands: list[Sequence[str]] = []

    def start(
        self, command: Sequence[str], environment: Mapping[str, str] | None, pass_fds: Sequence[int], errors: IO[bytes]
    ) -> subprocess.Popen[bytes]:
        self.commands.append(command)
        return super().start(command, environment, pass_fds, errors)


def test_tuning_measures_on_the_target(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A new target is one class and one entry of the table; tuning starts its measurement worker there."""
    target = RecordingTarget()
    monkeypatch.setattr(workers, "TARGETS", {**workers.TARGETS, "recording": lambda: target})
    monkeypatch.setenv("NNSTRETCH_CACHE_DIR", str(tmp_path / "cache"))
    usable = build_processors(CompileOptions("cpu", threads=1, target="recording"))
    with open_profiler(usable) as costs:
        layer = conv_layer((1, 3, 8, 8), 4)
        routine = next(r for r in usable.named[0].routines if r.supports(layer))
        assert costs.seconds(usable.named[0], routine, layer, routine.parameter_space(layer)[0])
    assert len(target.commands) == 1
    assert "nnstretch.scheduler.measurement.runner.worker" in target.commands[0]
    with pytest.raises(UsageError, match="known are local"):
        build_processors(CompileOptions("cpu", target="elsewhere"))
