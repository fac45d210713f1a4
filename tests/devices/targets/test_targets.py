"""Targets: file transfers, commands on given cores, and final and transient errors."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import numpy as np
import pytest

from nnstretch.compiler.costs import open_profiler
from nnstretch.compiler.processors import build_processors
from nnstretch.devices import targets
from nnstretch.devices.base.spec import usable_cores
from nnstretch.devices.targets import LocalTarget, TransientError, open_target
from nnstretch.errors import DeviceError, FileError, UsageError
from nnstretch.support.worker_process import WorkerError, WorkerProcess
from tests.kits.convolution_parity import conv_layer

AFFINITY = "import os; print(sorted(os.sched_getaffinity(0)))"


@pytest.fixture
def target(tmp_path: Path) -> LocalTarget:
    folder = tmp_path / "target"
    folder.mkdir()
    return LocalTarget(folder)


def test_files_are_pushed_and_pulled(target: LocalTarget, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(bytes(range(256)) * 1000)
    target.push(source, "deep/copy")
    target.pull("deep/copy", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == source.read_bytes()


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", ".", "a/../../b"])
def test_names_stay_in_the_folder(target: LocalTarget, tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="folder"):
        target.pull(name, tmp_path / "back")


def test_a_missing_file_is_named(target: LocalTarget, tmp_path: Path) -> None:
    with pytest.raises(FileError, match="nothing"):
        target.pull("nothing", tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_commands_run_in_the_folder_on_their_cores(target: LocalTarget) -> None:
    core = usable_cores()[-1]
    done = target.run([sys.executable, "-c", AFFINITY], cores=[core])
    assert (done.status, done.output.strip()) == (0, str([core]))
    assert target.run([sys.executable, "-c", "raise SystemExit(3)"]).status == 3


def test_errors_are_final_or_transient(target: LocalTarget) -> None:
    with pytest.raises(TransientError, match="killed"):
        target.run([sys.executable, "-c", "import time; time.sleep(60)"], timeout=0.3)
    with pytest.raises(DeviceError, match="no-such-command"):
        target.run(["no-such-command"])
    with pytest.raises(DeviceError, match="9999"):
        target.run([sys.executable], cores=[9999])


def test_probe_describes_this_machine(target: LocalTarget) -> None:
    info = target.probe()
    assert info.cores == usable_cores()
    assert len(info.clocks_mhz) == len(info.cores)
    assert info.memory_bytes > 1 << 28
    assert info.cpu


def test_targets_by_name() -> None:
    assert open_target("local").name == "local"
    for text in ("", "locale", "ssh:nobody@nowhere"):
        with pytest.raises(UsageError, match="there are local"):
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
    monkeypatch.setattr(targets, "TARGETS", {**targets.TARGETS, "recording": lambda: target})
    monkeypatch.setenv("NNSTRETCH_CACHE_DIR", str(tmp_path / "cache"))
    usable = build_processors("cpu", threads=1, target="recording")
    with open_profiler(usable) as costs:
        layer = conv_layer((1, 3, 8, 8), 4)
        routine = next(r for r in usable.named[0].routines if r.supports(layer))
        assert costs.seconds(usable.named[0], routine, layer, routine.parameter_space(layer)[0])
    assert len(target.commands) == 1
    assert "nnstretch.scheduler.measurement.runner.worker" in target.commands[0]
    with pytest.raises(UsageError, match="there are local"):
        build_processors("cpu", target="elsewhere")
