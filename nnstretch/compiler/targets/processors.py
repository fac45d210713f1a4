"""The processors of a target, with fingerprints for the profile store."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace

from nnstretch.api.options import CompileOptions
from nnstretch.compiler.processors import (
    ALL_CORES,
    Processors,
    limit_threads,
    rounded_products,
    wants_float_forms,
    warn_of_threads,
)
from nnstretch.compiler.targets.opencl import OPENCL, opencl_processor
from nnstretch.compiler.targets.opencl import fingerprint as opencl_fingerprint
from nnstretch.devices.base.description import Description
from nnstretch.devices.base.spec import ProcessorSpec, parse_processors
from nnstretch.devices.engine.build.engine_library import engine_identity
from nnstretch.devices.remote import ProfiledProcessor
from nnstretch.devices.targets.device import Device
from nnstretch.devices.targets.probe import Probe
from nnstretch.errors import UsageError, first_line
from nnstretch.scheduler.measurement.site import MeasurementSite

_TUNED = "cpu", OPENCL


def processors_of_target(probe: Probe, text: str, threads: int | None, target: str) -> str:
    """The processors that a user names, with the cores of a target.

    Args:
        probe: what the target is.
        text: as `--processors` takes them; "cpu" stands for the fast cores.
        threads: largest number of cores of the first CPU; None: no limit.
        target: its name, for messages.

    Raises:
        UsageError: they are not understood, or the target has no such core.
    """
    if text == "cpu":
        found = probe.processor(threads)
        if threads is not None:
            warn_of_threads(parse_processors(found, ALL_CORES)[0], threads)
        return found
    usable = tuple(cpu.number for cpu in probe.cpus if cpu.usable)
    try:
        specs = parse_processors(text, usable or None)
    except UsageError as error:
        raise UsageError(f"{target}: {first_line(error)}") from error
    return ",".join(map(str, limit_threads(specs, threads)))


def target_processors(device: Device, options: CompileOptions, site: MeasurementSite) -> Processors:
    """Groups of cores and OpenCL devices of a target, whose measurements have a place in the profile store.

    Args:
        device: the target; opened for models with OpenCL queues if processors are such.
        options: name the processors as the user writes them.
        site: measures on the target, or knows only what the store has.

    Raises:
        UsageError: a processor is neither, or the target has no such core or device.
        TargetError: the target cannot be described.
    """
    specs = _specs(device, options)
    if other := next((spec for spec in specs if spec.kind not in _TUNED), None):
        raise UsageError(
            f"{device.name}: {other} is neither a group of CPU cores nor an OpenCL device; routines are tuned there for "
            "these alone"
        )
    forms, products = wants_float_forms(options), rounded_products(options)

    def opened(spec: ProcessorSpec) -> ProfiledProcessor:
        if spec.kind == OPENCL:
            return opencl_processor(device, spec, options)
        return ProfiledProcessor(_description(device, spec), float_forms=forms, products=products)

    named = tuple(map(opened, specs))
    host = next((one for one in named if one.backend.serves_caller), None) or opened(_first_core(device))
    own = replace(options, processors=",".join(one.name for one in named), threads=None)
    return Processors(named, host, own, site=site)


def _first_core(device: Device) -> ProcessorSpec:
    """A core that serves OpenCL devices."""
    return ProcessorSpec("cpu", cores=(next(cpu.number for cpu in device.probe.cpus if cpu.usable),))


def fingerprints_of(device: Device, options: CompileOptions) -> tuple[str, ...]:
    """Fingerprints of the processors of a target that options name; none if one is neither a CPU nor an OpenCL device.

    Raises:
        UsageError: the target has no such core or device.
        TargetError: the target cannot be described.
    """
    specs = _specs(device, options)
    if any(spec.kind not in _TUNED for spec in specs):
        return ()
    return tuple((opencl_fingerprint if spec.kind == OPENCL else fingerprint)(device, spec) for spec in specs)


def _specs(device: Device, options: CompileOptions) -> tuple[ProcessorSpec, ...]:
    text = processors_of_target(device.probe, options.processors, options.threads, device.name)
    return parse_processors(text, tuple(cpu.number for cpu in device.probe.cpus) or None)


def _description(device: Device, spec: ProcessorSpec) -> Description:
    return Description(
        fingerprint(device, spec),
        str(spec),
        "cpu",
        device.processor_model,
        device.isa.block,
        cores=spec.cores,
        ratios=spec.ratios,
        isa=device.isa.name,
        caches=(),
        features=tuple(sorted(device.probe.features)),
    )


def kind_of(fingerprint: str) -> str:
    """What processors of devices of one kind have in common: the begin of a fingerprint, without the version of the engine."""
    return fingerprint.rpartition("|")[0]


def fingerprint(device: Device, spec: ProcessorSpec) -> str:
    """Key of a processor's measurements: CPU, its features, types and clocks of the cores, and the engine.

    Devices of one model have equal fingerprints, so that users can share measurements.

    Raises:
        TargetError: the target cannot be described.
        BuildError: there is no compiler.
    """
    cpus = {cpu.number: cpu for cpu in device.probe.cpus}
    kinds = Counter(cpus[core].kind for core in spec.cores if core in cpus)
    cores = " + ".join(f"{count} × {kind}" if kind else f"{count} cores" for kind, count in kinds.items())
    ratios = f" {':'.join(map(str, spec.ratios))}" if spec.ratios else ""
    features = hashlib.sha256(" ".join(sorted(device.probe.features)).encode()).hexdigest()[:6]
    return f"{device.processor_model} [{features}]|{cores}{ratios}|runner {engine_identity(device.isa)}"
