"""Plans from measurements that the profile store has, for a machine that is not measured now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from nnstretch.api.options import CompileOptions
from nnstretch.compiler.compile import plan_model
from nnstretch.compiler.processors import ALL_CORES, Processors
from nnstretch.compiler.saved_plan import PlanMachine, compile_with_plan, read_plan
from nnstretch.compiler.targets.processors import fingerprints_of, target_processors
from nnstretch.compiler.targets.site import TYPICAL_CACHES
from nnstretch.devices.base.processor import Processor
from nnstretch.devices.targets.device import Device
from nnstretch.graph.layer import TensorType
from nnstretch.scheduler.measurement.caches import CacheSizes
from nnstretch.scheduler.measurement.candidate_set import CandidateSet
from nnstretch.scheduler.measurement.reference_cases import LayerUnderTest
from nnstretch.scheduler.measurement.site import MeasurementSite, ReferenceFrequency, UnmeasuredError
from nnstretch.scheduler.measurement.store.rows import Measurement
from nnstretch.scheduler.plan.compiled import Compiled


class StoredSite(MeasurementSite):
    """A target whose measurements are in the profile store, and that makes no more."""

    measures = False

    @property
    def caches(self) -> CacheSizes:
        return TYPICAL_CACHES

    def compare(
        self, candidates: CandidateSet, test: LayerUnderTest, reference: ReferenceFrequency
    ) -> dict[int, Measurement]:
        return {}

    def seconds(self, compiled: Compiled) -> Sequence[float]:
        raise UnmeasuredError("the plan")

    def step_seconds(self, compiled: Compiled) -> np.ndarray:
        raise UnmeasuredError("the plan's steps")

    def round_trip(self, host: Processor, device: Processor, tensor: TensorType) -> tuple[float, tuple[float, ...]]:
        raise UnmeasuredError("a transfer")

    def close(self) -> None:
        """Nothing is open."""


def stored_plan(graph: ir.Model, device: Device, options: CompileOptions) -> Compiled | None:
    """The best plan for a device by what the profile store has; None if a layer was not measured on its processors.

    Args:
        graph: unoptimised.
        device: where the plan runs.
        options: with processors of the device.

    Raises:
        NNStretchError: the model cannot be planned.
    """
    if not fingerprints_of(device, options):
        return None
    processors = target_processors(device, options, StoredSite())
    try:
        return plan_model(graph, processors, coordinate_descent=False)
    except UnmeasuredError:
        return None


@dataclass(frozen=True)
class FilePlan:
    """A plan from a file.

    Attributes:
        compiled: the plan with the model's constants.
        is_of_this_kind: whether it was tuned on a device of this kind.
    """

    compiled: Compiled
    is_of_this_kind: bool


def plan_from_file(graph: ir.Model, device: Device, options: CompileOptions) -> FilePlan:
    """The saved plan `options.plan` for a device.

    Raises:
        FileError, PackageError: the file cannot be read, or is damaged.
        UsageError: it is for another instruction set, for cores that the device does not have, or for another model.
    """

    def opened(own: CompileOptions) -> Processors:
        return target_processors(device, own, StoredSite())

    cores = tuple(cpu.number for cpu in device.probe.cpus if cpu.usable)
    compiled = compile_with_plan(graph, options, PlanMachine(device.name, device.isa.name, opened, cores or ALL_CORES))
    _, selection = read_plan(Path(options.plan or ""))
    own = replace(options, plan=None, processors=",".join(selection.processors))
    return FilePlan(compiled, selection.fingerprints in ((), fingerprints_of(device, own)))
