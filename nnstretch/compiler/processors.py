"""Opens the processors that a caller names: those of this machine, simulated ones, and the CPU of another machine."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from nnstretch.api.options import BFLOAT16_TOLERANCE, FLOAT16_TOLERANCE, HYBRID, CompileOptions
from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.routine import Routine
from nnstretch.devices.base.spec import ProcessorSpec, all_cores, default_cores, parse_processors
from nnstretch.devices.cpu.processor import CpuProcessor
from nnstretch.devices.engine.binding.library import MAX_CORES
from nnstretch.devices.engine.build.instruction_sets import Isa
from nnstretch.devices.registry import ENGINES, external_engine, processor_kind, routines_of_engines
from nnstretch.devices.targets.workers import LocalTarget, Target, open_target
from nnstretch.errors import UsageError
from nnstretch.graph.dtypes import BFLOAT16, DEFAULT_DTYPE, FLOAT16
from nnstretch.scheduler.measurement.runner.core_speeds import measured_ratios
from nnstretch.scheduler.measurement.site import MeasurementSite
from nnstretch.scheduler.simulation.costs import check_one_profile
from nnstretch.support.words import counted

log = logging.getLogger(__name__)
ALL_CORES = tuple(range(MAX_CORES))
"""Cores that the CPU of another machine may have."""
HALF_TOLERANCE = 1e-3
"""Smallest tolerance at which OpenCL routines may store float16; with a smaller one, hardly any passes the check."""


@dataclass(frozen=True)
class Processors:
    """Opened processors.

    Attributes:
        named: those that the caller named, in their order.
        host: the CPU that serves queue 0: the first of `named`, or another one if no CPU is among them.
        options: those that they were opened with.
        target: the machine that measures and runs.
        site: where layers and plans are measured; None: on this machine.
    """

    named: tuple[Processor, ...]
    host: Processor
    options: CompileOptions
    target: Target = field(default_factory=LocalTarget)
    site: MeasurementSite | None = None

    @property
    def parts(self) -> list[str]:
        """Names of simulated processors in their profile."""
        return [processor.spec.part for processor in self.named]


def build_processors(options: CompileOptions | str) -> Processors:
    """Opens the processors that options name, such as `cpu:0,opencl:0@1`.

    Cores of a CPU that differ in speed get their measured ratios unless the specification has some. From a tolerance of
    `HALF_TOLERANCE` on, OpenCL devices have routines that store float16; from `FLOAT16_TOLERANCE` on, CPUs with instructions
    for it have routines that multiply float16, and from `BFLOAT16_TOLERANCE` on bfloat16.

    Args:
        options: a specification alone stands for the defaults of all other options.

    Raises:
        UsageError: the specification is wrong, there is no such target or engine, or simulated processors are mixed with
            others.
        DeviceError: a processor does not exist or does not work.
        MissingExtraError: an engine is not installed.
    """
    options = CompileOptions(options) if isinstance(options, str) else options
    machine = open_target(options.target)
    specs = limit_threads(parse_processors(options.processors), options.threads)
    check_one_profile(specs)
    external_engines = routines_of_engines(options.engines)
    if external_engines and all(spec.kind != "cpu" for spec in specs):
        raise UsageError(
            f"engines {','.join(options.engines)} compute on a CPU, but no CPU is among the processors; name one"
        )
    if "*" not in options.processors:
        specs = tuple(_with_ratios(spec) for spec in specs)
    first = next((spec for spec in specs if spec.kind == "cpu"), None)
    dtypes = stored_types(options)
    devices = [spec for spec in specs if spec.kind == "opencl"]
    if len(devices) > 1:
        _load_drivers(devices)
    forms = wants_float_forms(options)
    named = tuple(
        _open(spec, external_engines if spec is first else (), dtypes, rounded_products(options), float_forms=forms)
        for spec in specs
    )
    hosts = [p for p in named if p.backend.serves_caller]
    host = hosts[0] if hosts else _open(ProcessorSpec("cpu", cores=default_cores()))
    return Processors(named, host, options, machine)


def wants_float_forms(options: CompileOptions) -> bool:
    """Whether CPUs and OpenCL devices opened with options have routines that compute int8 layers in floats."""
    return options.dtype in (DEFAULT_DTYPE, HYBRID)


def rounded_products(options: CompileOptions) -> tuple[str, ...]:
    """The types to which routines of CPUs opened with options may round float32 before they multiply."""
    least = {BFLOAT16: BFLOAT16_TOLERANCE, FLOAT16: FLOAT16_TOLERANCE}
    return tuple(name for name, tolerance in least.items() if options.largest_error >= tolerance)


def stored_types(options: CompileOptions) -> tuple[str, ...]:
    """The types in which routines of OpenCL devices opened with options may store tensors."""
    return ("float32", "float16") if options.largest_error >= HALF_TOLERANCE else ("float32",)


def limit_threads(specs: tuple[ProcessorSpec, ...], threads: int | None) -> tuple[ProcessorSpec, ...]:
    """Processors whose first CPU has at most a number of cores; a warning if it has fewer.

    Raises:
        UsageError: the number is not positive, or there is no CPU.
    """
    if threads is None:
        return specs
    first = next((i for i, s in enumerate(specs) if s.kind == "cpu"), None)
    if threads < 1:
        raise UsageError(f"threads is {threads}; it must be at least 1")
    if first is None:
        raise UsageError("threads limits a CPU's cores, but no CPU is among the processors")
    warn_of_threads(specs[first], threads)
    return tuple(s.limited(threads) if i == first else s for i, s in enumerate(specs))


def warn_of_threads(spec: ProcessorSpec, threads: int) -> None:
    """Warns if a CPU has fewer cores than the threads that are wanted."""
    if threads > (cores := len(spec.cores)):
        log.warning("threads is %d; %s has %s, and no more are used", threads, spec, counted(cores, "core"))


def check_listed(processors: str) -> None:
    """Checks that drivers list the OpenCL devices among some processors, without a test of them.

    Raises:
        DeviceError: a device is missing, with what to do about that.
    """
    devices = [spec for spec in parse_processors(processors) if spec.kind == "opencl"]
    if devices:
        from nnstretch.devices.opencl.drivers import find_device

        _load_drivers(devices)
        for spec in devices:
            find_device(spec.index, spec.cores)


def _load_drivers(devices: Sequence[ProcessorSpec]) -> None:
    """Loads OpenCL drivers for the cores of all devices, since the first load decides for all."""
    from nnstretch.devices.opencl.drivers import load_drivers

    load_drivers(all_cores(devices))


def _with_ratios(spec: ProcessorSpec) -> ProcessorSpec:
    """A specification with the measured ratios of its cores, if these differ."""
    return replace(spec, ratios=measured_ratios(spec.cores)) if spec.kind == "cpu" and len(spec.cores) > 1 else spec


def _open(
    spec: ProcessorSpec,
    external_engines: Sequence[Routine] = (),
    dtypes: Sequence[str] = ("float32",),
    products: Sequence[str] = (),
    *,
    float_forms: bool = False,
) -> Processor:
    if spec.kind == "cpu":
        return CpuProcessor(spec, external_engines=external_engines, float_forms=float_forms, products=products)
    if spec.kind == "opencl":
        from nnstretch.devices.opencl.processor import OpenCLProcessor

        return OpenCLProcessor(spec, dtypes, float_forms=float_forms)
    return processor_kind(spec.kind).processor(spec)


def foreign_processors(
    isa: Isa,
    options: CompileOptions,
    features: Collection[str] | None = None,
    device: Callable[[ProcessorSpec], Processor] | None = None,
) -> Processors:
    """Processors of another machine, for plans without measurements: groups of cores such as `cpu:0-3,cpu:4-7`, and LiteRT.

    A CPU without cores gets `options.threads` of them (1 by default).

    Args:
        isa: its instruction set.
        options: name the cores.
        features: of that CPU; None for any with the instruction set, as for `CpuProcessor`.
        device: gives its OpenCL devices, if they are known.

    Raises:
        UsageError: the specification is wrong, or names a processor of another kind.
        MissingExtraError: the package that writes models of LiteRT is not installed here.
    """
    text = options.processors
    cores = ALL_CORES if re.search(r"\d", text) else ALL_CORES[: options.threads or 1]
    specs = parse_processors(text, cores)
    if any(spec.kind not in ("cpu", *ENGINES, *(["opencl"] if device else [])) for spec in specs):
        raise UsageError(
            f"processors {text!r} of another machine: only groups of CPU cores and LiteRT can be planned for without it; "
            "its OpenCL devices are known where --target names the machine itself, as in adb or ssh:HOST"
        )
    forms, products = wants_float_forms(options), rounded_products(options)
    cpu = partial(CpuProcessor, isa=isa, float_forms=forms, features=features, products=products)

    def opened(spec: ProcessorSpec) -> Processor:
        if spec.kind == "opencl" and device is not None:
            return device(spec)
        return cpu(spec) if spec.kind == "cpu" else external_engine(spec.kind).foreign_processor(spec, isa)

    named = tuple(map(opened, limit_threads(specs, options.threads)))
    host = next((processor for processor in named if processor.backend.serves_caller), None)
    return Processors(named, host or cpu(ProcessorSpec("cpu", cores=cores[:1])), options)
