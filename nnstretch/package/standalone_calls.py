"""The part of a model file that describes its LiteRT queues: devices/engine/standalone/model_file.h defines its numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from nnstretch.devices.external.litert import NAMES
from nnstretch.devices.external.litert.delegate import BUILTIN, GPU, NPU, XNNPACK
from nnstretch.errors import PackageError
from nnstretch.graph.layer import TensorType
from nnstretch.scheduler.plan.schema import Plan, PlanStep, aligned

ACCELERATORS: Mapping[str, int] = {XNNPACK: 0, BUILTIN: 1, GPU: 2, NPU: 3}
"""NNS_LITERT_… by the names of delegates."""


@dataclass(frozen=True)
class PlanCalls:
    """The queues of a plan whose steps LiteRT computes, and their TFLite files.

    Attributes:
        plan: the plan.
        models: TFLite file -> content, by the names in the plan's steps.
    """

    plan: Plan
    models: Mapping[str, bytes]

    @cached_property
    def queues(self) -> tuple[int, ...]:
        """Numbers of the queues that have calls of LiteRT."""
        return tuple(dict.fromkeys(queue for queue, _ in self._queued_steps))

    @cached_property
    def steps(self) -> tuple[PlanStep, ...]:
        """The calls of all sub-graphs, in their order."""
        return tuple(step for _, step in self._queued_steps)

    @cached_property
    def _queued_steps(self) -> tuple[tuple[int, PlanStep], ...]:
        """Queue and step of each call."""
        return tuple(
            (part.queue, step)
            for part in self.plan.subgraphs
            for step in self.plan.steps[part.first : part.first + part.count]
            if step.kind == "call"
        )

    def refused(self) -> list[PlanStep]:
        """The calls that a model file cannot hold: of other engines, of CPU queues, and of libraries of delegates."""
        return [
            step
            for queue, step in self._queued_steps
            if not self.plan.queues[queue].backend.runs_models or _accelerator(step) is None
        ]

    def places(self, begin: int) -> list[int]:
        """Offset of each call's TFLite file in the file's constants, and the end of all; they begin at `begin` or later."""
        places = [aligned(begin) if self.steps else begin]
        for content in self.contents:
            places.append(aligned(places[-1] + len(content)))
        return places

    @property
    def contents(self) -> list[bytes]:
        """The TFLite file of each call.

        Raises:
            PackageError: a file is missing.
        """
        if missing := [step.layer for step in self.steps if step.kernel not in self.models]:
            raise PackageError(f"the package lacks the model of {missing[0]}; compile it again")
        return [self.models[step.kernel] for step in self.steps]

    def words(self, begin: int) -> Iterable[int]:
        """The words of the calls; `begin` is as for `places`. The plan has no call in `refused`."""
        yield len(self.queues)
        for number in self.queues:
            accelerator = next(_accelerator(step) for queue, step in self._queued_steps if queue == number)
            assert accelerator is not None, "refused plans are not written"
            yield from (number, accelerator)
        yield len(self.steps)
        for (queue, step), place, content in zip(self._queued_steps, self.places(begin), self.contents, strict=False):
            yield from (self.queues.index(queue), place, len(content), len(step.reads), len(step.writes))
            yield from _types((*step.read_types, *step.write_types))

    def texts(self) -> Iterable[str]:
        """The names of the calls' layers."""
        return (step.layer for step in self.steps)


def _accelerator(step: PlanStep) -> int | None:
    """The accelerator of a call; None if LiteRT has none for it."""
    processor, _, rest = step.routine.partition(":")
    _, _, delegate = rest.partition("/")
    return ACCELERATORS.get(delegate) if processor in NAMES else None


def _types(tensors: Sequence[TensorType]) -> Iterable[int]:
    for tensor in tensors:
        yield from (tensor.element.code, len(tensor.shape), *tensor.shape)
