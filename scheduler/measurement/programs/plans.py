"""Plans that need all programs of some layers: a driver compiles a program when a plan with it runs first."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np

from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.routine import Lowering
from nnstretch.devices.base.spec import ProcessorSpec
from nnstretch.devices.engine.binding.program import aligned_array
from nnstretch.devices.external.engine import ExternalRoutine
from nnstretch.devices.opencl.processor import OpenCLProcessor
from nnstretch.devices.opencl.sources import sources_hash
from nnstretch.errors import NNStretchError
from nnstretch.graph.layer import Attribute, Layer, TensorType
from nnstretch.scheduler.costmodel.costs import Candidate
from nnstretch.scheduler.measurement.runner.single_layer import (
    SingleLayer,
    SinglePlan,
    packed_inputs,
    single_layer_plan,
)
from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.scheduler.plan.schema import Plan
from nnstretch.scheduler.runtime.session import PlanSession


@dataclass(frozen=True, eq=False)
class ProgramPlan:
    """A plan of one layer, and what a driver compiles for it.

    Attributes:
        single: the plan; its inputs are zeros.
        programs: their names, which are equal for equal programs of equal devices.
        spec: of the device.
    """

    single: SinglePlan
    programs: frozenset[str]
    spec: ProcessorSpec

    @property
    def compiled(self) -> Compiled:
        """The plan with zeros as constants."""
        return Compiled(self.single.plan, aligned_array(self.single.base_bytes))

    def on_core(self, core: int) -> Plan:
        """The plan with another core for the threads of a device on the CPU, which compile, too."""
        if not self.spec.cores:
            return self.single.plan
        other = replace(self.spec, cores=(core,), shares=False)
        queues = tuple(
            replace(queue, processor=str(other), cores=other.cores) if queue.backend.own_memory else queue
            for queue in self.single.plan.queues
        )
        return replace(self.single.plan, queues=queues)


def program_plans(
    layers: Sequence[Layer],
    device: OpenCLProcessor,
    host: Processor,
    known: Iterable[str],
    *,
    branched: bool = False,
    most: int | None = None,
) -> Iterator[ProgramPlan]:
    """Plans of the layers that need programs which are neither known nor needed by an earlier plan.

    First come the settings that routines recommend most, which are measured first.

    Args:
        layers: of a network.
        device: the OpenCL device.
        host: the CPU that drives it.
        known: names of programs.
        branched: also programs of branches: the first settings of narrower convolutions.
        most: number of settings of each routine for the layers themselves; all if None.
    """
    seen = set(known)
    narrower = narrower_layers(layers, device.blocked.block) if branched else []
    for layer, candidate in _by_recommendation(((layers, most), (narrower, 1)), device):
        try:
            lowering = candidate.routine.lower(layer, candidate.parameters)
            programs = _programs(lowering, device)
            if programs <= seen:
                continue
            layouts, _ = candidate.routine.layouts(layer, candidate.parameters)
            single = SingleLayer(device, candidate.routine, layer, candidate.parameters, lowering, host=host)
            plan = single_layer_plan(single, packed_inputs(layer, _zeros(layer), layouts))
        except NNStretchError:  # fails again, with a message, where it is measured
            continue
        seen |= programs
        yield ProgramPlan(plan, programs, device.spec)


def run_once(compiled: Compiled) -> None:
    """Runs a plan once, by which drivers compile its programs and keep them on disk.

    Raises:
        NNStretchError: it cannot be loaded or run.
    """
    with PlanSession(compiled) as session:
        session.time(warmup=0, runs=1)


def _zeros(layer: Layer) -> list[np.ndarray]:
    """Row-major zeros for a layer's run-time inputs."""
    types = map(layer.type_of, layer.activations)
    return [np.zeros(t.shape, t.element.storage) for t in types]


def narrower_layers(layers: Iterable[Layer], block: int) -> list[Layer]:
    """Layers of branches that need programs of their own beside the convolutions of the whole network.

    Of every convolution with fewer output channels, and of 1 × 1 convolutions of its input.

    Args:
        layers: of the network.
        block: channels of a block of the device's layout.
    """
    return [narrower for layer in layers for narrower in _narrower(layer, block)]


def _narrower(layer: Layer, block: int) -> Iterator[Layer]:
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
    wanted: Sequence[tuple[Sequence[Layer], int | None]], device: OpenCLProcessor
) -> Iterator[tuple[Layer, Candidate]]:
    """The first candidate of every routine for all layers, then the second, and so on.

    Args:
        wanted: layers, and how many candidates of a routine they have; all if None.
        device: has the routines.
    """
    settings = [
        [(layer, Candidate(routine, parameters)) for parameters in routine.parameter_space(layer)[:most]]
        for some, most in wanted
        for layer in some
        for routine in device.routines
        if not isinstance(routine, ExternalRoutine) and routine.supports(layer)
    ]
    for together in zip_longest(*settings):
        yield from filter(None, together)


def _programs(lowering: Lowering, device: OpenCLProcessor) -> frozenset[str]:
    """Names of what the device's driver compiles: a kernel, for macros and a size of work groups."""
    launches = [(call.kernel, call.launch) for call in lowering.calls if call.launch is not None]
    info = device.runtime.info
    driver = (info.platform, info.driver, info.name, sources_hash())
    identities = [(*driver, kernel, launch.source, launch.defines, launch.local_size) for kernel, launch in launches]
    return frozenset(hashlib.sha256(json.dumps(one).encode()).hexdigest()[:32] for one in identities)
