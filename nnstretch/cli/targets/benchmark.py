"""`nnstretch bench --target` and `nnstretch run --target`: models compiled here and measured on other machines."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from nnstretch.api.options import CompileOptions
from nnstretch.bench.targets.gain import gain_over_alternatives
from nnstretch.bench.targets.measure import TargetRun, measure_models
from nnstretch.bench.targets.models import (
    TUNED,
    TargetModel,
    compile_for_target,
    model_file_for_target,
    package_for_target,
    with_drawn_inputs,
)
from nnstretch.bench.targets.tflite import TfliteModel, measure_tflite, tflite_model
from nnstretch.cli.benchmarking.engine_comparison import answer_endings, write_answer
from nnstretch.cli.console import Reporter
from nnstretch.cli.models.sources import Source, source_of_package
from nnstretch.cli.outputs import check_endings, note_written
from nnstretch.compiler.saved_plan import named_processors
from nnstretch.compiler.targets.opencl import names_opencl
from nnstretch.compiler.targets.processors import fingerprints_of, processors_of_target
from nnstretch.devices.engine.build.instruction_sets import Isa
from nnstretch.devices.external.litert import NAMES
from nnstretch.devices.targets.device import Device
from nnstretch.devices.targets.litert import LiteRtUse
from nnstretch.devices.targets.results import BenchOptions
from nnstretch.devices.targets.schemes import open_device
from nnstretch.devices.targets.side_by_side import on_all
from nnstretch.errors import NNStretchError, UsageError
from nnstretch.package import read_package
from nnstretch.package.standalone import SUFFIX
from nnstretch.package.standalone_calls import PlanCalls
from nnstretch.package.standalone_head import read_head
from nnstretch.report.tables.targets import few_runs_text, gain_text, sustained_tables, targets_table
from nnstretch.scheduler.plan.packaging import unpackaged
from nnstretch.support.progress import Progress

if TYPE_CHECKING:
    import numpy as np
    import onnx_ir as ir


@dataclass(frozen=True)
class TargetJob:
    """A measurement of models on targets.

    Attributes:
        sources: the models.
        timing: how the runner measures.
        seed: of the inputs.
        keep: leave the pushed files on the targets.
        feeds: an array for each input of the only model; None: random numbers.
        has_alternatives: whether the last model is a branched network and the others are its alternatives.
        every_plan: whether all plans of a package are measured, or only the first.
        benchmark_tool: TFLite's `benchmark_model` for the targets, which times the models as TFLite files, too.
        litert_library: LiteRT's library for the targets; None: the one that is there.
    """

    sources: Sequence[Source]
    timing: BenchOptions = field(default_factory=BenchOptions)
    seed: int = 0
    keep: bool = False
    feeds: Mapping[str, np.ndarray] | None = None
    has_alternatives: bool = False
    every_plan: bool = True
    benchmark_tool: Path | None = None
    litert_library: Path | None = None


_CSV = ".csv"
"""Ending of a table in the form of NN-Stretch's measurements; all others are of answers and reports."""

OnRuns = Callable[[Sequence[TargetRun]], object]
"""Called with the runs of all targets that have ended, in the order of the targets."""


def measure_on_targets(
    report: Reporter, targets: Sequence[str], job: TargetJob, on_runs: OnRuns | None = None
) -> list[TargetRun]:
    """Measures models on every target, all targets at the same time.

    Args:
        report: shows the progress.
        targets: as on the command line.
        job: the measurement.
        on_runs: called after each target, so that what was measured is not lost with a later one; calls do not overlap.

    Returns:
        A run per target, in their order; one that failed has its reason. An error of the only target is raised.

    Raises:
        NNStretchError: a model cannot be compiled, or the only target failed.
    """
    for source in job.sources:
        source.check_exists()
    with ExitStack() as stack, _open_all(targets, _opener(job)) as (devices, failures):
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="nnstretch-models-")))
        with report.progress("Preparing") as advance:

            def described(name: str, device: Device) -> str:
                # Devices keep both, so that all are asked at the same time.
                advance(0, 0, f"{name}: the runner")
                return f"{device.isa.name} {len(device.probe.cpus)}"

            def failed(name: str, why: str) -> str:
                failures[name] = why
                return ""

            ready = on_all(devices, described, failed)
            compiler = _Compiler(job, folder, advance)
            usable = {name: device for name, device in devices.items() if ready[name]}
            models = {name: compiler.models_for(device) for name, device in usable.items()}
            files = compiler.tflite_files() if job.benchmark_tool is not None else []
        for source in job.sources:
            report.note(source.assumptions)
        for note in dict.fromkeys(model.note for found in models.values() for model in found if model.note):
            report.note(note)
        if job.has_alternatives:
            for name, (*_, branched) in models.items():
                report.note(_routines_note(name, branched))
        with report.progress("Measuring") as advance:
            ended: dict[str, TargetRun] = {}
            turn = threading.Lock()

            def measured(name: str, device: Device) -> TargetRun:
                run = measure_models(device, models[name], job.timing, lambda line: advance(0, 0, f"{name}: {line}"))
                if job.benchmark_tool is not None:
                    threads = next((one.result.threads for one in run.measured if one.result.threads), 1)
                    timed = measure_tflite(device, job.benchmark_tool, files, job.timing, threads)
                    run = replace(run, measured=[*run.measured, *timed])
                if job.has_alternatives:
                    run = replace(run, gain=gain_over_alternatives(run.measured))
                with turn:
                    ended[name] = run
                    if on_runs is not None:
                        on_runs([ended[target] for target in dict.fromkeys(targets) if target in ended])
                return run

            runs = on_all(usable, measured, lambda name, why: TargetRun(name, failure=why))
        return [runs.get(name) or TargetRun(name, failure=failures[name]) for name in dict.fromkeys(targets)]


def _routines_note(target: str, branched: TargetModel) -> str:
    """How the routines of a branched network and its alternatives were chosen for a target."""
    if branched.routines == TUNED:
        return f"{target}: the routines of all networks are those that are fastest by measurements"
    return f"{target}: the routines of all networks are chosen by estimates"


@contextmanager
def _open_all(
    targets: Sequence[str], opener: Callable[[str], Device]
) -> Iterator[tuple[dict[str, Device], dict[str, str]]]:
    """Devices by their targets, and why others cannot be opened. An error of the only one is raised."""
    devices: dict[str, Device] = {}
    failures: dict[str, str] = {}
    unique = list(dict.fromkeys(targets))
    with ExitStack() as stack:
        for name in unique:
            try:
                devices[name] = stack.enter_context(opener(name))
            except UsageError:
                raise
            except NNStretchError as error:
                if len(unique) == 1:
                    raise
                failures[name] = str(error)
        yield devices, failures


def _opener(job: TargetJob) -> Callable[[str], Device]:
    """Opens targets for a job. Raises UsageError if a library is named that is not there."""
    if job.litert_library is not None and not job.litert_library.is_file():
        raise UsageError(f"--litert-library {job.litert_library} is not there; give LiteRT's library for the targets")
    uses_litert = job.litert_library is not None or any(map(_uses_litert, job.sources))
    litert = LiteRtUse(job.litert_library) if uses_litert else None
    return partial(open_device, keep=job.keep, opencl=any(map(_uses_opencl, job.sources)), litert=litert)


def _uses_litert(source: Source) -> bool:
    """Whether a model may have LiteRT queues."""
    if source.model.endswith(SUFFIX):
        return read_head(Path(source.model)).has_litert
    if source.is_package:
        plans = unpackaged(read_package(Path(source.model))).values()
        return any(PlanCalls(compiled.plan, compiled.models).queues for compiled in plans)
    return any(name in named_processors(source.options) for name in NAMES)


def _uses_opencl(source: Source) -> bool:
    """Whether a model may have OpenCL queues."""
    if source.model.endswith(SUFFIX):
        return read_head(Path(source.model)).has_devices
    if source.is_package:
        return bool(read_package(Path(source.model)).sources)
    return names_opencl(named_processors(source.options))


class _Compiler:
    """Compiles models once per instruction set and processors."""

    def __init__(self, job: TargetJob, folder: Path, progress: Progress) -> None:
        self._job = job
        self._folder = folder
        self._progress = progress
        self._compiled: dict[tuple[int, Isa, str, tuple[str, ...], bool], list[TargetModel]] = {}
        self._graphs: dict[int, ir.Model | None] = {}
        self._files = count()

    def models_for(self, device: Device) -> list[TargetModel]:
        """All models for a device, one for each plan of a package. Raises NNStretchError if one cannot be compiled for it.

        A branched network and its alternatives are all tuned, or none of them is.
        """
        models = self._all(device, tune=True)
        if self._job.has_alternatives and len({model.routines for model in models}) > 1:
            return self._all(device, tune=False)
        return models

    def tflite_files(self) -> list[TfliteModel]:
        """The models as TFLite files.

        Raises:
            UsageError: a model is a package or model file, which has no graph.
            NNStretchError: a model cannot be loaded, or a file not be written.
        """
        found = []
        for source in self._job.sources:
            if source.is_package or source.model.endswith(SUFFIX):
                raise UsageError(
                    f"{source.model} has no graph to write as a TFLite file; give the model that it was made from"
                )
            file = self._folder / f"{next(self._files)}.tflite"
            found.append(tflite_model(source.model, source.load(), file))
        return found

    def _all(self, device: Device, *, tune: bool) -> list[TargetModel]:
        numbers = range(len(self._job.sources))
        return [model for number in numbers for model in self._models(number, device, tune=tune)]

    def _models(self, number: int, device: Device, *, tune: bool) -> list[TargetModel]:
        source = self._job.sources[number]
        if source.model.endswith(SUFFIX):
            return [model_file_for_target(Path(source.model), device, self._job.feeds or {})]
        options = replace(source.options, tune=source.options.tune and tune)
        processors = ""
        fingerprints: tuple[str, ...] = ()
        if not source.is_package:
            if options.plan is None:
                processors = processors_of_target(device.probe, options.processors, options.threads, device.name)
                options = replace(options, processors=processors, threads=None)
            fingerprints = fingerprints_of(device, options)
        key = (number, device.isa, processors, fingerprints, options.tune)
        if key not in self._compiled:
            self._progress(number, len(self._job.sources), source.model)
            made = self._made(number, device, options)
            graph = self._graph(number)
            self._compiled[key] = [self._with_inputs(model, graph) for model in made]
        return self._compiled[key]

    def _made(self, number: int, device: Device, options: CompileOptions) -> list[TargetModel]:
        source = self._job.sources[number]
        if source.is_package:
            found = package_for_target(Path(source.model), device, self._file)
            return found if self._job.every_plan else found[:1]
        compiling = replace(options, progress=None)
        made = compile_for_target(source.load(), source.model, device, compiling, self._file(), self._progress)
        # Of a branched network and its alternatives, one line says it of all (`_routines_note`).
        return [replace(made, note="") if self._job.has_alternatives else made]

    def _with_inputs(self, model: TargetModel, graph: ir.Model | None) -> TargetModel:
        if self._job.feeds is not None:
            return model.with_inputs(self._job.feeds, graph)
        return model if graph is None else with_drawn_inputs(model, graph, self._job.seed)

    def _file(self) -> Path:
        """The next model file."""
        return self._folder / f"{next(self._files)}{SUFFIX}"

    def _graph(self, number: int) -> ir.Model | None:
        """The graph that outputs are compared with; None for a package whose model is not at hand."""
        if number not in self._graphs:
            source = self._job.sources[number]
            try:
                self._graphs[number] = (source_of_package(Path(source.model)) if source.is_package else source).load()
            except UsageError:
                if not source.is_package:
                    raise
                self._graphs[number] = None
        return self._graphs[number]


def bench_on_targets(report: Reporter, targets: Sequence[str], job: TargetJob, outputs: Sequence[Path]) -> int:
    """Measures models on targets, and shows and writes the results.

    Args:
        report: shows them.
        targets: as on the command line.
        job: the measurement.
        outputs: .json and .csv files and reports, written after each target; all but .csv have a traced run of every model.

    Returns:
        The exit status: 1 if a target gave no result.

    Raises:
        NNStretchError: a model cannot be compiled, or the only target failed.
    """
    check_endings(outputs, "measurements of targets are", answer_endings())
    if job.benchmark_tool is not None and not job.benchmark_tool.is_file():
        raise UsageError(
            f"--benchmark-model {job.benchmark_tool} is not there; give TFLite's benchmark_model for the targets"
        )
    if any(path.suffix != _CSV for path in outputs):
        job = replace(job, timing=replace(job.timing, timeline=True))
    runs = measure_on_targets(report, targets, job, lambda ended: _write(outputs, ended))
    written = _write(outputs, runs)
    answer = _answer(runs)
    gains = [f"{run.target}: {gain_text(run)}" for run in runs if run.gain is not None]
    report.show(*gains, targets_table(runs), *sustained_tables(runs))
    for run in runs:
        report.note(few_runs_text(run))
        report.note(f"{run.target} ended early: {run.stopped}" if run.stopped else "")
    note_written(report, written)
    report.finish(answer)
    return int(any(run.failed for run in runs))


def _answer(runs: Sequence[TargetRun]) -> dict[str, Any]:
    """What `bench --json` prints."""
    return {"targets": [run.to_json() for run in runs]}


def _write(outputs: Sequence[Path], runs: Sequence[TargetRun]) -> list[Path]:
    """Writes runs to files, and returns these. Raises FileError."""
    written: list[Path] = []
    for path in outputs:
        if path.suffix == _CSV:
            write_csv(path, runs)
            written.append(path)
        else:
            written += write_answer([path], _answer(runs))
    return written


def write_csv(path: Path, runs: Sequence[TargetRun]) -> None:
    """Writes the columns of NN-Stretch's measurements: `cfg,latency,energy`, in milliseconds and joules per run.

    `cfg` is the model, with the target before it if there are several.

    Raises:
        FileError: the place is not writable or the disk is full.
    """
    import csv
    import io

    from nnstretch.support.settings import write_text

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("cfg", "latency", "energy"))
    for run in runs:
        for one in run.measured:
            name = f"{run.target}/{one.model.name}" if len(runs) > 1 else one.model.name
            writer.writerow((name, _cell(one.result.p50_ms), _cell(one.result.energy_j)))
    write_text(path, text.getvalue())


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
