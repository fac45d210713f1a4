"""A device over any transport: what is pushed, what is left there, attempts after a lost connection, hung runners."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from nnstretch.devices.engine.build.instruction_sets import ISAS, BuildTarget
from nnstretch.devices.external.litert.library import LITERT_VARIABLE, packaged_library
from nnstretch.devices.targets import device as device_module
from nnstretch.devices.targets import local
from nnstretch.devices.targets.base import (
    Finished,
    OnLine,
    TargetError,
    TargetTimeoutError,
    TransientTargetError,
)
from nnstretch.devices.targets.device import Device
from nnstretch.devices.targets.litert import LiteRtUse
from nnstretch.devices.targets.local import LocalTransport, QemuTransport
from nnstretch.devices.targets.results import BenchOptions, parse_result
from nnstretch.devices.targets.schemes import open_device
from nnstretch.errors import UsageError
from tests.kits.boards.fake_runner import write_fake_runner
from tests.kits.processes.ended import has_ended

QUICK = BenchOptions(seconds=0, warmup=0, patience=20)


class Recorded(LocalTransport):
    """This machine as an ARM one; remembers what was written, and loses the connection when a test wants that."""

    system = None

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folders: Sequence[str] = (str(folder / "target"),)
        self.written: list[str] = []
        self.losses: list[Callable[[Sequence[str]], bool]] = []
        self.reconnected = 0
        self.is_closed = False

    def machine(self) -> str:
        return "aarch64"

    def run(self, command: Sequence[str], *, timeout: float, on_stderr: OnLine | None = None) -> Finished:
        for loses in self.losses:
            if loses(command):
                self.losses.remove(loses)
                raise TransientTargetError("the connection was lost")
        return super().run(command, timeout=timeout, on_stderr=on_stderr)

    def write(self, path: str, content: bytes | Path, executable: bool = False) -> None:
        if any(loses(["write", path]) for loses in self.losses):
            self.losses.clear()
            raise TransientTargetError("the connection was lost")
        super().write(path, content, executable)
        self.written.append(Path(path).suffix)

    def reconnect(self) -> None:
        self.reconnected += 1

    def close(self) -> None:
        self.is_closed = True

    @property
    def left(self) -> list[Path]:
        """Files and folders that are on the target."""
        return sorted(Path(self.folders[0]).rglob("*")) if Path(self.folders[0]).exists() else []


@pytest.fixture
def target(tmp_path: Path) -> Recorded:
    return Recorded(tmp_path)


def runs_a_model(command: Sequence[str]) -> bool:
    """Whether a command runs the runner on a model."""
    return command[0] == "sh" and command[-1].endswith(".nnm")


Write = Callable[[str], Path]


def test_files_are_pushed_once_and_removed(fake_runner: Path, target: Recorded, model: Write) -> None:
    with Device(target) as device:
        assert device.probe.memory_bytes == 1 << 30
        lines: list[str] = []
        models = [model("one"), model("two")]
        result = device.bench(models, QUICK, on_progress=lines.append)
        assert [one.p50_ms for one in result.models] == [1.0, 1.0]
        assert result.probe.machine == "aarch64"
        assert len(lines) == 2
        assert lines[0].startswith("running ")
        device.bench(models, QUICK)
        assert target.written == [".run", ".nnm", ".nnm"]
        (folder,) = Path(target.folders[0]).iterdir()
        assert folder.stat().st_mode & 0o777 == 0o700
    assert target.left == []
    assert target.is_closed


def test_outputs_of_one_run(fake_runner: Path, target: Recorded, model: Write, tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(bytes(4))
    with Device(target) as device:
        result, outputs = device.outputs(model("fine"), {"a b": tmp_path / "x.bin"}, patience=10)
        assert outputs == [b"\0\0\x80\x3f"]
        assert [output["name"] for output in result.models[0].outputs] == ["y"]
        (asked,) = [file for file in target.left if file.name == "arguments"]
        assert "--input a b=" in asked.read_text()
        assert not [file for file in target.left if file.name == "outputs"]
        assert device.outputs(model("fail"), {}, patience=10)[1] == []


def test_kept_files_are_used_again(fake_runner: Path, target: Recorded, model: Write, tmp_path: Path) -> None:
    for written in ([".run", ".nnm"], []):
        again = Recorded(tmp_path)
        with Device(again, keep=True) as device:
            device.bench([model("one")], QUICK)
        assert again.written == written
        assert len(again.left) >= 3
    with Device(target) as device:
        device.bench([model("one")], QUICK)
        assert target.written == [".run", ".nnm"]
    assert {file.parent.name for file in target.left} == {"target", "nnstretch-kept"}


@pytest.mark.parametrize("keep", [False, True])
def test_built_opencl_programs_stay_with_the_files(
    fake_runner: Path, target: Recorded, model: Write, tmp_path: Path, *, keep: bool
) -> None:
    """Those of the runner and those of drivers: a session with `keep` finds them, another leaves nothing."""
    found: list[list[str]] = []
    for session in (target, Recorded(tmp_path)):
        with Device(session, keep=keep, opencl=True) as device:
            device.bench([model("one")], QUICK)
            built = [file for file in session.left if file.name in ("kernel.bin", "kernel")]
            found.append([f"{file.parent.name} {len(file.read_text().split())}" for file in built])
    assert [len(one) for one in found] == [2, 2]
    if keep:
        assert sorted(found[0]) == ["driver 1", "nnstretch-kept 1"]
        assert sorted(found[1]) == ["driver 2", "nnstretch-kept 2"]
    assert bool(target.left) == keep


def test_litert_is_pushed_with_its_accelerators(
    fake_runner: Path, target: Recorded, model: Write, tmp_path: Path
) -> None:
    """Once, under its own names in a folder of its own, from which it opens them."""
    for name in ("libLiteRt.so", "libLiteRtGpuAccelerator.so", "libother.so"):
        (tmp_path / name).write_text(name)
    use = LiteRtUse(tmp_path / "libLiteRt.so")
    with Device(target, litert=use) as device:
        for _ in range(2):
            device.bench([model("one")], QUICK)
        (folder,) = [file for file in target.left if file.suffix == ".litert"]
        assert sorted(file.name for file in folder.iterdir()) == ["libLiteRt.so", "libLiteRtGpuAccelerator.so"]
        assert (folder / "libLiteRt.so").read_text() == "libLiteRt.so"
        said = (folder.parent / "arguments").read_text().splitlines()
        assert [f"--litert {folder / 'libLiteRt.so'}" in line for line in said if "--seconds" in line] == [True, True]
    assert target.written == [".run", ".nnm", ".so", ".so"]
    assert target.left == []


@pytest.mark.parametrize(("variable", "named"), [("", True), ("x.so", False)])
def test_litert_of_this_machine_is_that_of_its_package(
    monkeypatch: pytest.MonkeyPatch, variable: str, *, named: bool
) -> None:
    monkeypatch.setenv(LITERT_VARIABLE, variable)
    assert LiteRtUse().here() == (packaged_library() if named else None)
    assert LiteRtUse().files == ()
    assert LiteRtUse(Path("a.so")).here() == Path("a.so").absolute()


def test_folders_of_ended_processes_are_removed(fake_runner: Path, target: Recorded, model: Write) -> None:
    place = Path(target.folders[0])
    ended = subprocess.Popen(["true"])
    ended.wait()
    with Device(target) as device, Device(Recorded(place.parent)) as beside:
        assert device.probe == beside.probe
        mine = sorted(place.iterdir())
        assert len(mine) == 2
        start = mine[0].name.rsplit("-", 2)[0]
        (place / f"{start}-{ended.pid}-0").mkdir()
        (place / f"nnstretch-0123abcd-{ended.pid}-0").mkdir()
        with Device(Recorded(place.parent)) as third:
            assert third.probe.cpus
            assert not (place / f"{start}-{ended.pid}-0").exists()
        assert sorted(place.iterdir()) == sorted([*mine, place / f"nnstretch-0123abcd-{ended.pid}-0"])


def test_a_lost_connection_is_tried_again(fake_runner: Path, target: Recorded, model: Write) -> None:
    target.losses = [runs_a_model]  # in the middle of a run
    with Device(target) as device:
        assert device.bench([model("one")], QUICK).models[0].p50_ms == 1.0
    assert target.reconnected == 1
    assert target.left == []


def test_a_file_that_was_not_pushed_to_its_end_is_pushed_again(
    fake_runner: Path, target: Recorded, model: Write
) -> None:
    target.losses = [lambda command: command[0] == "write" and command[1].endswith(".nnm")]
    with Device(target) as device:
        assert device.bench([model("one")], QUICK).models[0].p50_ms == 1.0
    assert target.left == []


def test_a_device_that_restarts_gets_its_files_again(fake_runner: Path, target: Recorded, model: Write) -> None:
    def restarts(command: Sequence[str]) -> bool:
        if not runs_a_model(command):
            return False
        subprocess.run(["rm", "-rf", target.folders[0]], check=True)
        return True

    with Device(target) as device:
        assert device.probe.cpus
        target.losses = [restarts]
        assert device.bench([model("one")], QUICK).models[0].p50_ms == 1.0
        assert target.written == [".run", ".nnm", ".run", ".nnm"]
    assert target.left == []


def test_a_device_that_stays_away_is_one_line(fake_runner: Path, target: Recorded, model: Write) -> None:
    target.losses = [runs_a_model] * 4
    with Device(target) as device, pytest.raises(TransientTargetError, match="lost"):
        device.bench([model("one")], QUICK)
    assert target.reconnected == 3
    with Device(target) as device:
        assert device.bench([model("one")], QUICK).models[0].p50_ms == 1.0


def test_a_hung_runner_is_ended(fake_runner: Path, target: Recorded, model: Write) -> None:
    alive = fake_runner.parent / "alive"
    with Device(target) as device:
        quick = BenchOptions(seconds=0, warmup=0, patience=-9)  # 10 s are for loading
        with pytest.raises(TargetTimeoutError, match="the runner hung for 1 s and was ended"):
            device.bench([model("hang")], quick)
        assert has_ended(alive)
        assert device.bench([model("one")], QUICK).models[0].p50_ms == 1.0
    assert target.left == []


def test_an_interrupted_runner_is_ended(fake_runner: Path, target: Recorded, model: Write) -> None:
    alive = fake_runner.parent / "alive"
    found: list[BaseException] = []
    with Device(target) as device:

        def work() -> None:
            try:
                device.bench([model("hang")], QUICK)
            except TargetError as error:
                found.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        while not (alive.exists() and alive.read_text().strip()):
            time.sleep(0.02)
        device.interrupt()
        thread.join()
        assert has_ended(alive)
    assert len(found) == 1
    assert target.left == []


@pytest.mark.parametrize(
    ("content", "message"),
    [("dead", "the runner ended with status -9"), ("none", "local: nothing can be done")],
)
def test_a_runner_that_fails_is_one_line(
    fake_runner: Path, target: Recorded, model: Write, content: str, message: str
) -> None:
    with Device(target) as device, pytest.raises(TargetError, match=message):
        device.bench([model(content)], QUICK)
    assert target.left == []


def test_a_model_that_fails_is_data(fake_runner: Path, target: Recorded, model: Write) -> None:
    with Device(target) as device:
        failed, fine = device.bench([model("fail"), model("fine")], QUICK).models
    assert (failed.error, failed.p50_ms, fine.error, fine.p50_ms) == ("it failed", None, None, 1.0)


def test_places_that_do_not_run_programs_are_passed_over(
    fake_runner: Path, target: Recorded, model: Write, tmp_path: Path
) -> None:
    class NoExec(Recorded):
        def run(self, command: Sequence[str], *, timeout: float, on_stderr: OnLine | None = None) -> Finished:
            if command[-1] == "--probe" and command[0].startswith(str(tmp_path / "noexec")):
                return Finished(126, b"", b"sh: Permission denied")
            return super().run(command, timeout=timeout, on_stderr=on_stderr)

    both = NoExec(tmp_path)
    both.folders = (str(tmp_path / "noexec"), str(tmp_path / "target"))
    with Device(both) as device:
        assert device.bench([model("one")], QUICK).models[0].p50_ms == 1.0
        assert not list((tmp_path / "noexec").iterdir())
    only = NoExec(tmp_path)
    only.folders = (str(tmp_path / "noexec"),)
    with (
        Device(only) as device,
        pytest.raises(TargetError, match=r"does not run programs in .*noexec \(.*; mount it without"),
    ):
        assert device.probe.cpus
    assert not list((tmp_path / "noexec").iterdir())


def test_a_folder_of_another_user_is_not_taken(fake_runner: Path, target: Recorded, tmp_path: Path) -> None:
    place = Path(target.folders[0])
    place.mkdir()
    (tmp_path / "elsewhere").mkdir()
    (place / "nnstretch-kept").symlink_to(tmp_path / "elsewhere")
    with Device(target, keep=True) as device, pytest.raises(TargetError, match="cannot make a folder"):
        assert device.probe.cpus
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written(fake_runner: Path, target: Recorded) -> None:
    Path(target.folders[0]).mkdir(mode=0o500)
    with Device(target) as device, pytest.raises(TargetError, match=r"cannot make a folder in .*Permission denied"):
        assert device.probe.cpus


def test_a_program_for_another_architecture(monkeypatch: pytest.MonkeyPatch, target: Recorded, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_bytes(b"\x7fELF\x02\x01\x01" + bytes(100))
    monkeypatch.setattr(device_module, "build_runner", lambda _: wrong)
    with Device(target) as device, pytest.raises(TargetError, match="Exec format error"):
        assert device.probe.cpus
    assert target.left == []


def test_cpus_without_kernels(target: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Recorded, "machine", lambda _: "ppc64le")
    with Device(target) as device, pytest.raises(TargetError, match="local is ppc64le; the engine has no kernels"):
        assert device.isa.name


def test_static_runners_unless_libraries_are_opened(
    monkeypatch: pytest.MonkeyPatch, target: Recorded, tmp_path: Path
) -> None:
    built: list[str] = []

    def build(target: BuildTarget) -> Path:
        built.append(str(target))
        return write_fake_runner(tmp_path)

    monkeypatch.setattr(device_module, "build_runner", build)
    for opencl, litert in ((False, None), (True, None), (False, LiteRtUse())):
        with Device(target, opencl=opencl, litert=litert) as device:
            assert device.probe.cpus
    assert built == ["aarch64-linux-musl", "aarch64-linux-gnu", "aarch64-linux-gnu"]


def test_targets_are_read_as_they_are_written() -> None:
    for text in ("", "locale", "telnet:host"):
        with pytest.raises(UsageError, match="there is no target"):
            open_device(text)
    for text in ("local:1", "ssh:", "ssh:-oProxyCommand=x", "ssh:a b", "ssh:host:port", "qemu:", "qemu:arm"):
        with pytest.raises(UsageError, match="is not understood"):
            open_device(text)
    with open_device("local") as device:
        assert device.name == "local"


def test_every_emulated_architecture_can_be_built_for() -> None:
    assert set(local._EMULATED) <= {isa.architecture for isa in ISAS}


def test_an_emulator_that_is_missing_or_does_not_know_the_cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "qemu-aarch64-static").write_text("#!/bin/sh\necho 'Available CPUs:'\necho '  cortex-a53'\n")
    (tmp_path / "qemu-aarch64-static").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert QemuTransport("aarch64:cortex-a53,aarch64=off").launcher[1:] == ("-cpu", "cortex-a53,aarch64=off")
    with pytest.raises(UsageError, match="does not know the CPU cortex-a99; it knows cortex-a53"):
        QemuTransport("aarch64:cortex-a99")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(TargetError, match="apt-get install qemu-user-static"):
        QemuTransport("aarch64")


@pytest.mark.parametrize(
    "output", [b"", b"{}", b"[]", b'{"models": [3], "device": {}}', b'{"models": [{}], "device": {}}']
)
def test_output_that_is_no_result(output: bytes) -> None:
    with pytest.raises(TargetError, match="is not understood"):
        parse_result(output, "local")
