"""A target that models run on: a folder of its own there, files that are pushed once, the runner, and clean-up."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from nnstretch.devices.cpu.processor import cpu_model
from nnstretch.devices.engine.build.instruction_sets import ISAS, BuildTarget, Isa, architecture_of, best_isa
from nnstretch.devices.engine.build.standalone import build_runner
from nnstretch.devices.targets.base import (
    SHORT,
    Finished,
    OnLine,
    RunnerEndedError,
    TargetError,
    TargetTimeoutError,
    TransientTargetError,
    Transport,
)
from nnstretch.devices.targets.benchmark_model import NAME, benchmark_arguments, parse_benchmark
from nnstretch.devices.targets.folder import NOT_EXECUTABLE, RunnerProgram, TargetFolder, remote_name, succeed
from nnstretch.devices.targets.litert import LiteRtUse
from nnstretch.devices.targets.probe import Probe, parse_probe
from nnstretch.devices.targets.results import BenchOptions, BenchResult, ModelResult, parse_result
from nnstretch.support.closing import Closing

BACK_OFF = (1.0, 5.0, 20.0)
"""Seconds before each further attempt after a lost connection. A phone restarts in less than their sum."""
_START = 'echo $$ >"$0"; exec "$@"'
"""Runs a command whose process number is in a file, so that it can be ended later."""
_END = 'n=$(cat "$0" 2>/dev/null) && grep -qF "$1" "/proc/$n/cmdline" 2>/dev/null && kill -9 "$n"; true'
"""Ends the command whose process number is in a file, if a process of that number still belongs to a folder."""
_DRIVER_CACHES = ("POCL_CACHE_DIR", "MESA_SHADER_CACHE_DIR")
"""Environment variables that name the folder where OpenCL drivers keep built programs."""
_Answer = TypeVar("_Answer")


class Device(Closing):
    """A target with the runner on it. Not thread-safe.

    Lost connections are tried again; a device that restarts gets its files again.
    """

    def __init__(
        self, transport: Transport, *, keep: bool = False, opencl: bool = False, litert: LiteRtUse | None = None
    ) -> None:
        """Takes a transport, which it closes.

        Args:
            transport: reaches the target.
            keep: leave the folder with its files on the target, for the next session with `keep`.
            opencl: whether models may use OpenCL, which needs a runner for the target's C library.
            litert: if models may use LiteRT, which needs one, too.
        """
        self._transport = transport
        self._opencl = opencl
        self._litert = litert
        self._folder = TargetFolder(transport, keep=keep)
        self._interrupted = threading.Event()

    @property
    def name(self) -> str:
        """The target as on the command line."""
        return self._transport.name

    @property
    def is_here(self) -> bool:
        """Whether its programs run on the cores of this machine, beside whatever else works here."""
        return self._transport.is_here

    @cached_property
    def isa(self) -> Isa:
        """The best instruction set of the engine for the target's CPU.

        Raises:
            TargetError: the engine has none for it.
        """
        machine = self._retried(self._transport.machine)
        levels = [isa for isa in ISAS if isa.architecture == architecture_of(machine)]
        if len(levels) == 1:
            return levels[0]
        features = _entry(self._cpuinfo, "flags", "Features")
        found = best_isa(machine, frozenset(features.split()))
        if found is None:
            raise TargetError(f"{self.name} is {machine}; the engine has no kernels for its CPU")
        return found

    @cached_property
    def _cpuinfo(self) -> str:
        return self._retried(lambda: self._transport.read("/proc/cpuinfo")).decode(errors="replace")

    @cached_property
    def probe(self) -> Probe:
        """What the target is.

        Raises:
            TargetError: the runner does not run there.
        """
        return self.check()

    def check(self) -> Probe:
        """Asks the runner what the target is.

        Raises:
            TargetError: the runner does not run there.
        """
        found = self._retried(lambda: self._transport.run([*self._runner(), "--probe"], timeout=SHORT))
        if found.status:
            raise TargetError(f"{self.name}: the runner cannot describe the device: {found.reason}")
        return parse_probe(found.stdout, self.name)

    @cached_property
    def processor_model(self) -> str:
        """The CPU in a few words; that of this machine with the emulator's name for an emulated one.

        Raises:
            TargetError: the target does not say.
        """
        if self._transport.launcher:
            return f"{self.name} on {cpu_model()}"
        return _entry(self._cpuinfo, "model name") or self.isa.architecture

    def push(self, file: Path, executable: bool = False) -> str:
        """Copies a file to the target unless it is there already.

        Returns:
            Its path there, whose name begins with a hash of the content.

        Raises:
            TargetError: it cannot be written there.
        """
        return self._retried(lambda: self._pushed(file, executable))

    def bench(
        self,
        models: Sequence[Path],
        options: BenchOptions,
        *,
        inputs: Mapping[str, Path] | None = None,
        on_progress: OnLine | None = None,
    ) -> BenchResult:
        """Times models against each other.

        Args:
            models: model files for the target's instruction set.
            options: how they are timed.
            inputs: files of raw numbers by the names of inputs; the others are drawn from the seed.
            on_progress: called with the runner's lines of progress.

        Raises:
            TargetError: the runner could not run, hung, or was not understood.
        """
        return self._retried(lambda: self._bench(models, options, inputs or {}, on_progress))

    def outputs(self, model: Path, inputs: Mapping[str, Path], patience: float) -> tuple[BenchResult, list[bytes]]:
        """Runs a model once.

        Args:
            model: a model file for the target's instruction set.
            inputs: files of raw numbers by the names of inputs.
            patience: seconds that it may take.

        Returns:
            The runner's answer, and the outputs as raw numbers in the model's order; none if the model failed.

        Raises:
            TargetError: the runner could not run, hung, or was not understood.
        """
        result, (outputs,) = self.bench_with_outputs(
            [model], BenchOptions(runs=1, warmup=0.0, patience=patience), inputs
        )
        return result, outputs

    def bench_with_outputs(
        self, models: Sequence[Path], options: BenchOptions, inputs: Mapping[str, Path]
    ) -> tuple[BenchResult, list[list[bytes]]]:
        """Times models against each other, and fetches what each gave in its first run.

        Args:
            models: model files for the target's instruction set; all have the inputs.
            options: how they are timed.
            inputs: files of raw numbers by the names of inputs.

        Returns:
            The runner's answer, and the outputs of every model as raw numbers in the model's order; none for a model that
            failed.

        Raises:
            TargetError: the runner could not run, hung, or was not understood.
        """
        return self._retried(lambda: self._bench_with_outputs(models, options, inputs))

    def bench_tflite(self, tool: Path, model: Path, name: str, options: BenchOptions, threads: int) -> ModelResult:
        """Times a TFLite file by TFLite's own benchmark tool.

        Args:
            tool: `benchmark_model` for the target.
            model: the file.
            name: of the model in the answer.
            options: how long it is timed.
            threads: of the interpreter.

        Returns:
            Latencies; an error if the tool failed.

        Raises:
            TargetError: the tool cannot be run, hung, or was not understood.
        """

        def work() -> ModelResult:
            program, file = self._pushed(tool, executable=True), self._pushed(model)
            command = (*self._transport.launcher, program, *benchmark_arguments(file, options, threads))
            found = self._run_program(command, NAME, options.timeout(1))
            if found.status in NOT_EXECUTABLE:
                raise TargetError(
                    f"{self.name} does not run {tool}: {found.reason}; give the tool that is built for it"
                )
            if found.status:
                reason = f"{NAME} ended with status {found.status}: {found.reason}"
                return ModelResult(file, name, reason, raw={"name": name, "error": reason})
            said = (found.stdout + b"\n" + found.stderr).decode(errors="replace")
            return parse_benchmark(said, file, name, self.name)

        return self._retried(work)

    def discard(self, files: Sequence[Path]) -> None:
        """Removes the copies of files from the target, so that they do not fill it. After a lost connection they stay.

        Raises:
            TargetError: they cannot be removed there.
        """
        names = [remote_name(file) for file in files]
        with suppress(TransientTargetError):
            self._unless_interrupted(lambda: self._folder.remove(names))

    def interrupt(self) -> None:
        """Ends the work of another thread on the device, which then raises TargetError."""
        self._interrupted.set()
        with suppress(TargetError):
            self._end_process()

    def close(self) -> None:
        """Ends what still runs on the target, removes the folder unless it is kept, and ends the connection."""
        try:
            with suppress(TargetError):
                self._end_process()
                self._folder.clean()
        finally:
            self._transport.close()

    def _retried(self, work: Callable[[], _Answer]) -> _Answer:
        """Does some work; after a lost connection again, up to three times."""
        for seconds in BACK_OFF:
            try:
                return self._unless_interrupted(work)
            except TransientTargetError:
                self._interrupted.wait(seconds)
                self._folder.forget()
                with suppress(TransientTargetError):
                    self._transport.reconnect()
                    self._end_process()  # the target may not know yet that the connection was lost
        return self._unless_interrupted(work)

    def _unless_interrupted(self, work: Callable[[], _Answer]) -> _Answer:
        if self._interrupted.is_set():
            raise TargetError(f"{self.name}: interrupted")
        return work()

    def _bench(
        self, models: Sequence[Path], options: BenchOptions, inputs: Mapping[str, Path], on_progress: OnLine | None
    ) -> BenchResult:
        given = [word for name, file in inputs.items() for word in ("--input", f"{name}={self._pushed(file)}")]
        command = [*options.arguments(), *given, *map(self._pushed, models)]
        found = self._run_runner(command, options.timeout(len(models)), on_progress)
        return parse_result(found.stdout, self.name)

    def _bench_with_outputs(
        self, models: Sequence[Path], options: BenchOptions, inputs: Mapping[str, Path]
    ) -> tuple[BenchResult, list[list[bytes]]]:
        given = [word for name, file in inputs.items() for word in ("--input", f"{name}={self._pushed(file)}")]
        pushed = [self._pushed(model) for model in models]
        folder = f"{self._folder_path()}/outputs-{self._folder.owner}"
        succeed(self._transport, "mkdir", "-p", folder)
        command = [*options.arguments(), *given, "--outputs", folder, *pushed]
        try:
            found = self._run_runner(command, options.timeout(len(models)), None)
            result = parse_result(found.stdout, self.name)
            known: dict[object, bytes] = {}
            return result, [self._fetched(folder, number, one, known) for number, one in enumerate(result.models)]
        finally:
            succeed(self._transport, "rm", "-rf", folder)

    def _fetched(self, folder: str, model: int, result: ModelResult, known: dict[object, bytes]) -> list[bytes]:
        """The outputs of a model; those with a size and checksum in `known` are not read again."""
        outputs: list[bytes] = []
        for number, output in enumerate(result.outputs):
            key = (output.get("crc32", f"{model}-{number}"), tuple(output.get("shape", ())))
            if key not in known:
                known[key] = self._transport.read(f"{folder}/{model}-{number}.bin")
            outputs.append(known[key])
        return outputs

    def _run_runner(self, arguments: Sequence[str], timeout: float, on_progress: OnLine | None) -> Finished:
        """Runs the runner; one that hangs, or whose caller is interrupted, is ended there, too."""
        runner = self._runner()
        command = (*self._caches(), *runner, *self._programs(), *arguments)
        found = self._run_program(command, "the runner", timeout, on_progress)
        if found.status < 0 or found.status > _FAILED:
            raise RunnerEndedError(f"{self.name}: the runner ended with status {found.status}: {found.reason}")
        if found.status == _FAILED:
            raise RunnerEndedError(f"{self.name}: {found.reason.removeprefix('error: ')}")
        return found

    def _run_program(
        self, command: Sequence[str], what: str, timeout: float, on_stderr: OnLine | None = None
    ) -> Finished:
        """Runs a program of the folder; one that hangs, or whose caller is interrupted, is ended there, too."""
        number = f"{self._folder_path()}/pid-{self._folder.owner}"
        if self._interrupted.is_set():
            raise TargetError(f"{self.name}: interrupted")
        try:
            return self._transport.run(["sh", "-c", _START, number, *command], timeout=timeout, on_stderr=on_stderr)
        except TargetTimeoutError as error:
            self._end_process()
            raise TargetTimeoutError(f"{self.name}: {what} hung for {timeout:.0f} s and was ended") from error
        except KeyboardInterrupt:
            with suppress(TargetError):
                self._end_process()
            raise

    def _programs(self) -> Sequence[str]:
        """The runner's options for LiteRT, and for the folder of built OpenCL programs.

        The folder is that of the session, which stays with `keep`.
        """
        return (*(("--cache", self._folder.path) if self._opencl else ()), *self._litert_words())

    def _litert_words(self) -> Sequence[str]:
        """The runner's option for LiteRT's library, which is on the target afterwards; none if the runner finds its own."""
        use = self._litert
        if use is None:
            return ()
        if self._transport.system is not None:
            library = use.here()
            return () if library is None else ("--litert", str(library))
        if not use.files:
            return ()
        succeed(self._transport, "mkdir", "-p", f"{self._folder_path()}/{use.folder}")
        first, *_ = [self._folder.store(f"{use.folder}/{file.name}", file) for file in use.files]
        return "--litert", first

    def _caches(self) -> Sequence[str]:
        """What has drivers with a cache of their own keep it in the session's folder, too; on this machine they have theirs."""
        if not self._opencl or self._transport.system is not None:
            return ()
        return ("env", *(f"{name}={self._folder.path}/driver" for name in _DRIVER_CACHES))

    def _runner(self) -> Sequence[str]:
        """The command of the runner, which is on the target afterwards."""
        return (*self._transport.launcher, f"{self._folder_path()}/{self._runner_program.name}")

    @cached_property
    def _runner_program(self) -> RunnerProgram:
        target = self.build_target
        file = build_runner(target)
        name = f"{hashlib.sha256(file.read_bytes()).hexdigest()[:20]}.run"
        return RunnerProgram(file, name, str(target))

    @property
    def build_target(self) -> BuildTarget:
        """What programs for it are built for.

        They are static, so that they run on every Linux and Android, but where they are to open libraries and can.
        """
        system = self._transport.system
        if system is None:
            opens = self._opencl or self._litert is not None
            system = (self._transport.library_system() if opens else None) or "linux-musl"
        return BuildTarget(self.isa, system)

    def _folder_path(self) -> str:
        """The folder on the target, with the runner in it."""
        return self._folder.ready(self._runner_program)

    def _pushed(self, file: Path, executable: bool = False) -> str:
        self._folder_path()
        return self._folder.store(remote_name(file), file, executable=executable)

    def _end_process(self) -> None:
        if self._folder.path:
            number = f"{self._folder.path}/pid-{self._folder.owner}"
            self._transport.run(["sh", "-c", _END, number, self._folder.path], timeout=SHORT)


_FAILED = 2
"""The runner's status for a wrong command line, or when nothing can be done."""


def _entry(cpuinfo: str, *names: str) -> str:
    """The first value of one of some names in a /proc/cpuinfo; empty if there is none."""
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in names:
            return value.strip()
    return ""
