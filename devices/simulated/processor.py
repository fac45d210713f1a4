"""Simulated processors: one routine for every layer, which never runs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.routine import PLAIN, Descriptor, KernelCall, Layout, Lowering, Operand, Parameters, Routine
from nnstretch.devices.base.spec import ProcessorSpec
from nnstretch.devices.cpu.backend import HOST
from nnstretch.devices.simulated.latency import layer_seconds
from nnstretch.devices.simulated.profile import ProcessorProfile, SocProfile, load_profile
from nnstretch.errors import DeviceError
from nnstretch.graph.layer import Layer


class SimulatedRoutine(Routine):
    """Represents the best routine of a simulated processor for a layer. Its kernel does not exist."""

    def __init__(self, processor: ProcessorProfile) -> None:
        self._processor = processor
        self.descriptor = Descriptor("sim", "any", "profile")

    def supports(self, layer: Layer) -> bool:
        """Whether the profile has a throughput for the single layer `layer`."""
        return not layer.parts and math.isfinite(layer_seconds(self._processor, layer, 1))

    def layouts(self, layer: Layer, parameters: Parameters) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        """Plain layouts; the profile's figures include layout effects."""
        return (PLAIN,) * len(layer.activations), (PLAIN,) * len(layer.outputs)

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

    dtypes = ("float32",)
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
        self._routine = SimulatedRoutine(self.profile)

    @property
    def fingerprint(self) -> str:
        return f"{self.spec} {self.soc.identity}"

    @property
    def routines(self) -> Sequence[Routine]:
        return (self._routine,)

    def reorder(self) -> Routine:
        return self._routine
