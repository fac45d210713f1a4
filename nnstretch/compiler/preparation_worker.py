"""Prepares processors with the lowest priority, in a process of its own (`nnstretch.compiler.preparation`)."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import onnx_ir as ir

from nnstretch.devices.base.spec import ProcessorSpec, all_cores, default_cores, parse_processors
from nnstretch.devices.cpu.processor import CpuProcessor
from nnstretch.devices.engine.binding.library import engine
from nnstretch.devices.opencl.processor import OpenCLProcessor
from nnstretch.errors import NNStretchError
from nnstretch.passes import optimize
from nnstretch.scheduler.lowering.candidates import is_native, queue_workloads
from nnstretch.scheduler.lowering.units import unit_graph
from nnstretch.scheduler.measurement.interference import typical_plan
from nnstretch.scheduler.measurement.programs.builds import known_programs, remember
from nnstretch.scheduler.measurement.programs.plans import program_plans, run_once
from nnstretch.scheduler.plan.schema import queue_pool

_LOW = 10  # os.nice; beside busy programs the lowest would get hardly any time, and other commands wait for the engine
_AUTOGROUP = Path("/proc/self/autogroup")


def working_devices(processors: str) -> list[OpenCLProcessor]:
    """The OpenCL devices among some processors, opened after a test; those that do not work are left out."""
    specs = [spec for spec in parse_processors(processors) if spec.kind == "opencl"]
    if not specs:
        return []
    from nnstretch.devices.opencl.drivers import load_drivers

    found: list[OpenCLProcessor] = []
    with suppress(NNStretchError):
        load_drivers(all_cores(specs))
    for spec in specs:
        with suppress(NNStretchError):
            found.append(OpenCLProcessor(spec))
    return found


def compile_programs(model: ir.Model, device: OpenCLProcessor) -> int:
    """Compiles the programs of a device for a network and for branches of it that were not compiled before.

    First come the programs by which contention is measured, and the settings that routines recommend most: a search of designs
    measures them first.

    Args:
        model: a graph that is not fused.
        device: the device, whose driver or runtime keeps the programs.

    Returns:
        Number of plans of layers that ran.
    """
    host = CpuProcessor(ProcessorSpec("cpu", cores=default_cores()))
    pool = queue_pool([device], host)
    graph = unit_graph(optimize(model, float_results=False), is_native(pool))
    layers = [layer for layer, _ in queue_workloads(graph, pool, pool.queue_of[0])]
    with suppress(NNStretchError):
        run_once(typical_plan([device], host, [0]))
    done = 0
    for plan in program_plans(layers, device, host, known_programs(), branched=True):
        with suppress(NNStretchError):
            run_once(plan.compiled)
            remember(plan)
            done += 1
    return done


def prepare(processors: str, network: Callable[[], ir.Model]) -> None:
    """Builds the engine, tests OpenCL devices, and compiles their programs for a network, with low priority.

    Args:
        processors: as in `cpu:0,opencl:0@1`.
        network: makes a graph that is not fused; networks with layers of other widths need much the same programs. Without
            devices it is not called, and where it raises an NNStretchError no programs are compiled.
    """
    os.nice(_LOW)
    with suppress(OSError):  # this session is a group for some schedulers, which compare priorities within groups
        _AUTOGROUP.write_text(str(_LOW))
    engine()
    devices = working_devices(processors)
    if not devices:
        return
    with suppress(NNStretchError):
        model = network()
        for device in devices:
            compile_programs(model.clone(), device)
