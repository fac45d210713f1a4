"""Call queues, and steps of a loaded plan that run models of external engines."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from nnstretch.devices.base.backend import Backend, LoadableStep, LoadedQueues, LoadRequest, OperandPlace, StepTarget
from nnstretch.devices.engine.binding.execution import CallFunction
from nnstretch.devices.engine.binding.image import Queue, QueueKind
from nnstretch.devices.external.engine import ExternalModel
from nnstretch.devices.registry import open_external_model
from nnstretch.errors import PackageError
from nnstretch.graph.layer import TensorType


class CallQueues(LoadedQueues):
    """Threads that run models."""

    def __init__(self, request: LoadRequest) -> None:
        self._queues = request.queues

    def engine_queue(self, queue: int) -> Queue:
        mine = self._queues[queue]
        return Queue(QueueKind.CALL, mine.cores, None, mine.ratios, mine.processor)

    def step(self, queue: int, step: LoadableStep) -> StepTarget:
        return open_call(step, self._queues[queue].cores)


def open_call(step: LoadableStep, cores: Sequence[int]) -> CallFunction:
    """Opens the model of a step; its engine gets one thread per core, on these cores.

    Raises:
        PackageError: the package lacks the model, or the tensors of step and model differ.
        MissingExtraError: the external engine is not installed.
        ModelError: the external engine rejects the model.
        DeviceError: a delegate cannot be used.
    """
    if step.model is None:
        raise PackageError(f"the package lacks the model of {step.layer}; compile it again")
    operands: Sequence[tuple[Sequence[OperandPlace | None], Sequence[TensorType]]] = (
        (step.reads, step.read_types),
        (step.writes, step.write_types),
    )
    for places, types in operands:
        if [-1 if place is None else place.bytes for place in places] != [t.bytes for t in types]:
            raise PackageError(
                f"plan is inconsistent: tensors of {step.layer} do not fit its buffers; compile it again"
            )
    model = open_external_model(step.routine, step.model, cores, step.read_types, step.write_types)
    return partial(_run, model, step.read_types, step.write_types)


def _run(
    model: ExternalModel,
    read_types: Sequence[TensorType],
    write_types: Sequence[TensorType],
    reads: Sequence[np.ndarray],
    writes: Sequence[np.ndarray],
) -> None:
    """Runs a model on the raw bytes of a step's operands."""
    model.run(
        [_typed(r, t) for r, t in zip(reads, read_types, strict=True)],
        [_typed(w, t) for w, t in zip(writes, write_types, strict=True)],
    )


def _typed(raw: np.ndarray, tensor: TensorType) -> np.ndarray:
    return raw[: tensor.bytes].view(tensor.element.storage).reshape(tensor.shape)


CALLS = Backend(
    name="call",
    description="call queue",
    step_kinds=("call",),
    load=CallQueues,
    changes_layouts=False,
    runs_models=True,
)
