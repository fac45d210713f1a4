"""Model files of single layers, which the runner of a target races against each other.

All files of a race have the same inputs: the layer's, once in every layout that a candidate reads. A candidate reads its own.
Those for an OpenCL device have none: inputs lie where the weights are, in the device's memory, where a network has them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from nnstretch.devices.base.spec import ProcessorSpec
from nnstretch.devices.cpu.processor import CpuProcessor
from nnstretch.devices.engine.build.instruction_sets import Isa
from nnstretch.devices.targets.results import arrays_of
from nnstretch.graph.layer import TensorType
from nnstretch.package.standalone import SUFFIX, write_model_file
from nnstretch.package.standalone_devices import DeviceName
from nnstretch.scheduler.costmodel.costs import Candidate
from nnstretch.scheduler.measurement.caches import CacheSizes
from nnstretch.scheduler.measurement.compare import repeats_of
from nnstretch.scheduler.measurement.reference_cases import LayerUnderTest
from nnstretch.scheduler.measurement.runner.single_layer import (
    SingleLayer,
    SinglePlan,
    copied_weights,
    single_layer_plan,
)
from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.scheduler.plan.schema import Plan, PlanTensor
from nnstretch.support.settings import atomic_write

_COPIED = 2
"""Copies of a layer's weights have up to this many times the size of the core's own caches, so that they leave these."""
_DEVICE_COPIES = 4 << 20
"""Bytes of these copies for an OpenCL device: a run costs more to start there, and all of them are copied to the target."""


@dataclass(frozen=True, eq=False)
class CandidateModel:
    """A candidate as a model file.

    Attributes:
        file: the model file.
        repeats: how often a run computes the layer.
        outputs: types of the outputs as stored.
    """

    file: Path
    repeats: int
    outputs: tuple[TensorType, ...]

    def stored_outputs(self, raw: Iterable[bytes]) -> list[np.ndarray]:
        """The outputs of a run in the candidate's layouts, from the runner's numbers.

        Raises:
            TargetError: they have other sizes.
        """
        return arrays_of(raw, self.outputs, self.file.name)


@dataclass
class CandidateModels:
    """The candidates of a layer as model files.

    Attributes:
        test: what the candidates compute.
        isa: instruction set of the machine.
        caches: of the machine.
        folder: where files are written.
        devices: its OpenCL devices.
    """

    test: LayerUnderTest
    isa: Isa
    caches: CacheSizes
    folder: Path
    devices: Sequence[DeviceName] = ()
    _arrays: list[np.ndarray] = field(default_factory=list)  # inputs of all models
    _first: dict[Hashable, int] = field(default_factory=dict)  # layouts of inputs -> number of their first array

    def add_layouts(self, candidates: Iterable[Candidate]) -> None:
        """Adds the inputs of candidates to those of all models. Comes before their files are written."""
        if self._on_device:
            return
        for candidate in candidates:
            layouts, _ = candidate.routine.layouts(self.test.layer, candidate.parameters)
            if layouts not in self._first:
                self._first[layouts] = len(self._arrays)
                self._arrays += self.test.case.packed(candidate)

    def input_files(self) -> Mapping[str, Path]:
        """Files of raw numbers by the names of inputs."""
        files: dict[str, Path] = {}
        for number, array in enumerate(self._arrays):
            files[_input_name(number)] = self.folder / f"x{number}.bin"
            with atomic_write(files[_input_name(number)]) as file:
                file.write(array.tobytes())
        return files

    def write(self, number: int, candidate: Candidate) -> CandidateModel:
        """Writes a candidate.

        Args:
            number: the file's, unique in the folder.
            candidate: one whose layouts were added.

        Raises:
            NNStretchError: the routine cannot compute the layer.
            FileError: the file cannot be written.
        """
        test = self.test
        lowering = candidate.routine.lower(test.layer, candidate.parameters)
        single = SingleLayer(
            test.processor,
            candidate.routine,
            test.layer,
            candidate.parameters,
            lowering,
            host=self._host if self._on_device else None,
            shown=self._on_device,
        )
        weights = max(1, lowering.weight_bytes)
        most = _DEVICE_COPIES if self._on_device else _COPIED * self.caches.own
        repeats = min(repeats_of(single, test.state), max(1, most // weights))
        made = single_layer_plan(replace(single, repeats=repeats), test.case.packed(candidate))
        layouts, _ = candidate.routine.layouts(test.layer, candidate.parameters)
        plan = made.plan if self._on_device else self._with_all_inputs(made.plan, self._first[layouts])
        file = self.folder / f"{number}{SUFFIX}"
        name = str(candidate.routine.descriptor)
        write_model_file(Compiled(plan, _constants(made)), name, self.isa, file, self.devices)
        return CandidateModel(file, repeats, tuple(tensor.type for tensor in made.plan.outputs))

    @cached_property
    def _host(self) -> CpuProcessor:
        """The CPU that starts a device and copies its outputs out."""
        return CpuProcessor(ProcessorSpec("cpu", cores=(0,)), isa=self.isa)

    @property
    def _on_device(self) -> bool:
        return self.test.processor.backend.own_memory

    def _with_all_inputs(self, plan: Plan, first: int) -> Plan:
        """A plan with the inputs of all models; its own begin at number `first`."""
        types = (TensorType(array.shape, array.dtype.name) for array in self._arrays)
        inputs = tuple(PlanTensor(_input_name(number), kind) for number, kind in enumerate(types))
        buffers = tuple(replace(b, index=b.index + first) if b.memory == "input" else b for b in plan.buffers)
        return replace(plan, inputs=inputs, buffers=buffers)


def _input_name(number: int) -> str:
    return f"x{number}"


def _constants(single: SinglePlan) -> np.ndarray:
    """The constants with a copy of the weights per repeat."""
    base = np.zeros(single.base_bytes, np.uint8)
    single.write_base(base)
    return copied_weights(base, single.weights, single.repeats)
