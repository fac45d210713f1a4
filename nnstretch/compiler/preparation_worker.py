"""Prepares processors with the lowest priority, in a process of its own (`nnstretch.compiler.preparation`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path

import numpy as np
import onnx_ir as ir

from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.routine import Lowering
from nnstretch.devices.base.spec import ProcessorSpec, all_cores, default_cores, parse_processors
from nnstretch.devices.cpu.processor import CpuProcessor
from nnstretch.devices.engine.binding.library import engine
from nnstretch.devices.engine.binding.program import aligned_array
from nnstretch.devices.external.engine import ExternalRoutine
from nnstretch.errors import NNStretchError
from nnstretch.graph.layer import Attribute, Layer, TensorType
from nnstretch.passes import optimize
from nnstretch.scheduler.costmodel.costs import Candidate
from nnstretch.scheduler.lowering.candidates import is_native, queue_workloads
from nnstretch.scheduler.lowering.units import unit_graph
from nnstretch.scheduler.measurement.interference import typical_plan
from nnstretch.scheduler.measurement.runner.single_layer import (
    SingleLayer,
    packed_inputs,
    random_inputs,
    single_layer_plan,
)
from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.scheduler.plan.schema import queue_pool
from nnstretch.scheduler.runtime.session import PlanSession

_LOW = 10  # os.nice; beside busy programs the lowest would get hardly any time, and other commands wait for the engine
_AUTOGROUP = Path("/proc/self/autogroup")


def working_devices(processors: str) -> list[Processor]:
    """The OpenCL devices among some processors, opened after a test; those that do not work are left out."""
    specs = [spec for spec in parse_processors(processors) if spec.kind == "opencl"]
    if not specs:
        return []
    from nnstretch.devices.opencl.drivers import load_drivers
    from nnstretch.devices.opencl.processor import OpenCLProcessor

    found: list[Processor] = []
    with suppress(NNStretchError):
        load_drivers(all_cores(specs))
    for spec in specs:
        with suppress(NNStretchError):
            found.append(OpenCLProcessor(spec))
    return found


def compile_programs(model: ir.Model, device: Processor) -> int:
    """Runs layers of a network and of branches of it once by every routine of a device that has a program of its own.

    First come the programs by which contention is measured, and the settings that routines recommend most: a search of designs
    measures them first.

    Args:
        model: a graph that is not fused.
        device: the device, whose driver or runtime keeps the programs.

    Returns:
        Number of programs of layers that ran.
    """
    host = CpuProcessor(ProcessorSpec("cpu", cores=default_cores()))
    pool = queue_pool([device], host)
    graph = unit_graph(optimize(model), is_native(pool))
    layers = [layer for layer, _ in queue_workloads(graph, pool, pool.queue_of[0])]
    branched = [other for layer in layers for other in _of_branches(layer, device.blocked.block)]
    with suppress(NNStretchError), PlanSession(typical_plan([device], host, [0])) as session:
        session.time(warmup=0, runs=1)
    seen: set[Hashable] = set()
    for layer, candidate in _by_recommendation(layers, branched, device):
        with suppress(NNStretchError):
            lowering = candidate.routine.lower(layer, candidate.parameters)
            programs = _programs(lowering)
            if not seen.issuperset(programs):
                _run(SingleLayer(device, candidate.routine, layer, candidate.parameters, lowering, host=host))
                seen |= programs
    return len(seen)


def _of_branches(layer: Layer, block: int) -> Iterator[Layer]:
    """Layers of branched networks that need programs of their own beside a convolution.

    Of the convolution with fewer output channels, and of 1 × 1 convolutions of its input. `block` is that of the layout.
    """
    if layer.op != "Conv" or layer.is_int8 or layer.integer("groups") != 1 or 1 not in layer.constants:
        return
    image, weight = layer.type_of(0), layer.constants[1]
    size = layer.outputs[0].shape[2:]
    for outputs in (block, 3 * block):
        if outputs < len(weight):
            yield _plain_convolution(layer, weight[:outputs], layer.attributes, size)
    channels = image.shape[1]
    if channels % block == 0:
        unit: dict[str, Attribute] = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "groups": 1}
        for outputs in (channels, 3 * block):
            yield _plain_convolution(layer, np.zeros((outputs, channels, 1, 1), np.float32), unit, image.shape[2:])


def _plain_convolution(
    like: Layer, weight: np.ndarray, attributes: Mapping[str, Attribute], size: tuple[int, ...]
) -> Layer:
    """A convolution of the input of `like`, without bias and residual; `size` are the pixels of its output."""
    image = like.type_of(0)
    output = TensorType((image.shape[0], len(weight), *size))
    inputs = (image, TensorType(weight.shape), None, None)
    return Layer(like.name, "Conv", inputs, (output,), attributes, like.activation, {1: weight})


def _by_recommendation(
    layers: Sequence[Layer], others: Sequence[Layer], device: Processor
) -> Iterator[tuple[Layer, Candidate]]:
    """The first candidate of every routine for all layers and others, then the second for the layers, and so on."""
    settings = [
        [
            (layer, Candidate(routine, parameters))
            for parameters in routine.parameter_space(layer)[: 1 if number else None]
        ]
        for number, some in enumerate((layers, others))
        for layer in some
        for routine in device.routines
        if not isinstance(routine, ExternalRoutine) and routine.supports(layer)
    ]
    for together in zip_longest(*settings):
        yield from filter(None, together)


def _programs(lowering: Lowering) -> set[Hashable]:
    """What a driver compiles: a kernel, for macros and a size of work groups."""
    launches = [(call.kernel, call.launch) for call in lowering.calls if call.launch is not None]
    return {(kernel, launch.source, tuple(launch.defines), launch.local_size) for kernel, launch in launches}


def _run(single: SingleLayer) -> None:
    layouts, _ = single.routine.layouts(single.layer, single.parameters)
    plan = single_layer_plan(single, packed_inputs(single.layer, random_inputs(single.layer), layouts))
    constants = aligned_array(plan.base_bytes)
    plan.write_base(constants)
    with PlanSession(Compiled(plan.plan, constants)) as session:
        session.time({}, warmup=0, runs=1)


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
