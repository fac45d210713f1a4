"""Simulated processors: one routine for every layer, which never runs, with latencies according to a profile."""

from __future__ import annotations

import itertools
import math
from types import MappingProxyType

from nnstretch.devices.base.processor import Processor, ProcessorKind
from nnstretch.devices.base.routine import (
    REORDER,
    Descriptor,
    KernelCall,
    Layout,
    Lowering,
    Operand,
    Parameters,
    Routine,
)
from nnstretch.devices.base.spec import ProcessorSpec
from nnstretch.devices.cpu.queues import HOST
from nnstretch.devices.registry import KINDS
from nnstretch.devices.simulated.profile import ProcessorProfile, SocProfile, Throughput, load_profile
from nnstretch.errors import DeviceError, UsageError
from nnstretch.graph.layer import OPERATORS, Layer


def layer_kind(layer: Layer) -> str:
    """Kind of a single layer (not a fusion group): one of `profile.MEMORY_KINDS` except "any"."""
    if layer.op != "Conv":
        return "move" if layer.op == REORDER else OPERATORS.get(layer.op, "other")
    groups = layer.integer("groups", 1)
    if groups == 1:
        return "conv"
    return "depthwise" if layer.type_of(1).shape[1] == 1 else "grouped"


def layer_seconds(processor: ProcessorProfile, layer: Layer, element_bytes: int) -> float:
    """Latency of a layer in seconds: the sum of launch, arithmetic and memory traffic; `inf` if unsupported.

    Args:
        processor: the profile.
        layer: a layer; the latency of a fusion group is the sum over its layers.
        element_bytes: bytes per element of every tensor, whatever its type in the graph.
    """
    if layer.parts:
        return sum(layer_seconds(processor, link, element_bytes) for link in layer.parts)
    kind = layer_kind(layer)
    moved = element_bytes * sum(t.elements for t in (*layer.inputs, *layer.outputs) if t is not None)
    rates = processor.memory_gb_per_s
    return (
        processor.launch_us * 1e-6
        + arithmetic_seconds(processor, layer)
        + moved / (rates.get(kind, rates["any"]) * 1e9)
    )


def arithmetic_seconds(processor: ProcessorProfile, layer: Layer) -> float:
    """Arithmetic time of a convolution or product of matrices in seconds; 0 for other layers, `inf` without a rate."""
    if not layer.macs:
        return 0.0
    kind = layer_kind(layer)
    if layer.op not in ("Conv", "Dense"):
        found = processor.compute.get(kind)
        return math.inf if found is None else layer.macs / rate(found, layer.macs)
    sized = f"{kind}:{'x'.join(map(str, layer.type_of(1).shape[2:]))}"
    throughput = processor.compute.get(sized) or processor.compute.get(kind)
    if throughput is None:
        return math.inf
    padded = loss(layer, throughput.step, throughput.half)
    return layer.macs * padded / rate(throughput, layer.macs) + throughput.group_us * 1e-6 * layer.integer("groups", 1)


def rate(throughput: Throughput, macs: float) -> float:
    """MACs per second of a layer with `macs` MACs."""
    points = throughput.gmacs_per_s
    if macs <= points[0][0]:
        return points[0][1] * 1e9
    for (low, slow), (high, fast) in itertools.pairwise(points):
        if macs <= high:
            share = math.log(macs / low) / math.log(high / low)
            return (slow + share * (fast - slow)) * 1e9
    return points[-1][1] * 1e9


def loss(layer: Layer, step: tuple[int, int], half: tuple[float, float]) -> float:
    """Time of a MAC relative to that with very many channels, for a convolution or dense layer (see `Throughput`).

    Channels are counted per group; a depthwise layer counts its output channels only.
    """
    weight = layer.type_of(1).shape
    if layer_kind(layer) == "depthwise":
        return _loss(weight[0], step[1], half[1])
    return _loss(weight[1], step[0], half[0]) * _loss(weight[0] // layer.integer("groups", 1), step[1], half[1])


def _loss(channels: int, step: int, half: float) -> float:
    return -(-channels // step) * step / channels * (1 + half / channels)


class SimulatedRoutine(Routine):
    """Represents the best routine of a simulated processor for a layer. Its kernel does not exist.

    Its layouts are plain; the profile's figures include layout effects.
    """

    def __init__(self, processor: ProcessorProfile) -> None:
        self._processor = processor
        self.descriptor = Descriptor("sim", "any", "profile")

    def supports(self, layer: Layer) -> bool:
        """Whether the profile has a throughput for the single layer `layer`."""
        return not layer.parts and math.isfinite(layer_seconds(self._processor, layer, 1))

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        """One call without constants, which is never run."""
        reads = tuple(Operand("input", i) for i in layer.activations)
        writes = tuple(Operand("output", i) for i in range(len(layer.outputs)))
        return Lowering((KernelCall("simulated", reads, writes),))


class SimulatedProcessor(Processor):
    """A processor of a profile.

    Attributes:
        soc: the whole profile.
        profile: the profile of this processor.
    """

    backend = HOST

    def __init__(self, spec: ProcessorSpec, soc: SocProfile | None = None) -> None:
        """Creates a processor of `soc`, or of the profile that `spec` names.

        Raises:
            DeviceError: the profile does not exist, is invalid, or has no such processor.
            FileError: the profile's file cannot be read.
        """
        self.spec = spec
        self.soc = load_profile(spec.profile) if soc is None else soc
        if spec.part not in self.soc.processors:
            raise DeviceError(
                f"profile {spec.profile} has no processor {spec.part!r}; it has {', '.join(self.soc.processors)}"
            )
        self.profile = self.soc.processors[spec.part]
        self.blocked = Layout(self.soc.channel_multiple)
        self.reorder = SimulatedRoutine(self.profile)
        self.routines = (self.reorder,)

    @property
    def fingerprint(self) -> str:
        return f"{self.spec} {self.soc.identity}"


class Simulated(ProcessorKind):
    """Processors of profiles; the argument of a specification is `PROFILE/NAME`."""

    examples = MappingProxyType(
        {"sim:phone/gpu": "a simulated processor: `gpu` of the profile `phone`, or of a .json file"}
    )
    has_cores = False

    def canonical_argument(self, argument: str) -> str:
        profile, _, part = argument.rpartition("/")
        if not (profile and part):
            raise UsageError(
                f"processor 'sim:{argument}' does not name a processor of a profile; write {KINDS['sim'].form}, "
                "as in sim:phone/cpu"
            )
        return argument

    def processor(self, spec: ProcessorSpec) -> SimulatedProcessor:
        return SimulatedProcessor(spec)


KIND = Simulated()
