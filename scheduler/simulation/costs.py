"""Costs of simulated processors from their profile, for selection and for the search of branchings."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import onnx_ir as ir

from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.routine import PLAIN, Parameters, Routine
from nnstretch.devices.base.spec import ProcessorSpec, is_simulated
from nnstretch.devices.simulated.processor import SimulatedProcessor, layer_kind, layer_seconds
from nnstretch.devices.simulated.profile import SocProfile
from nnstretch.errors import DeviceError, UsageError
from nnstretch.graph.layer import Layer, TensorType
from nnstretch.graph.layers import layers
from nnstretch.scheduler.costmodel.costs import CostModel
from nnstretch.scheduler.costmodel.trees import Errors
from nnstretch.scheduler.lowering.views import becomes_view


def one_soc(processors: Sequence[Processor]) -> SocProfile | None:
    """The profile of simulated processors; None if all processors are real.

    Raises:
        UsageError: some are simulated and some real, or they are of different profiles.
    """
    simulated = [p for p in processors if isinstance(p, SimulatedProcessor)]
    check_one_profile([p.spec for p in processors])
    return simulated[0].soc if simulated else None


def check_one_profile(specs: Sequence[ProcessorSpec]) -> None:
    """Refuses simulated processors beside others.

    Raises:
        UsageError: some are simulated and some real, or they are of different profiles.
    """
    simulated = [spec for spec in specs if is_simulated(str(spec))]
    if simulated and (len(simulated) != len(specs) or len({spec.profile for spec in simulated}) > 1):
        raise UsageError(
            f"processors {', '.join(map(str, specs))} are not all of one profile; "
            "simulated processors work with others of their own profile only"
        )


def check_computable(model: ir.Model, processors: Sequence[Processor]) -> None:
    """Refuses a graph with a layer that none of some simulated processors can compute.

    Raises:
        DeviceError: there is one; the profile has no rate for its kind.
    """
    simulated = [p for p in processors if isinstance(p, SimulatedProcessor)]
    for node in layers(model):
        layer = node.layer
        if simulated and not any(math.isfinite(layer_seconds(p.profile, layer, 1)) for p in simulated):
            kind = layer_kind(next(part for part in (*layer.parts, layer) if part.macs))
            names = " and ".join(p.name for p in simulated)
            raise DeviceError(
                f"{names} cannot compute {node.path or 'a layer'} ({layer.op}): the profile has no rate for {kind!r}; add it "
                "to `compute` there, or name other processors"
            )


class SimulatedCosts(CostModel):
    """Costs of layers by a profile."""

    measured = True
    all_cross = True

    def __init__(self, soc: SocProfile) -> None:
        self._soc = soc

    def seconds(self, processor: Processor, routine: Routine, layer: Layer, parameters: Parameters) -> float | None:
        assert isinstance(processor, SimulatedProcessor)
        return layer_seconds(processor.profile, layer, self._soc.element_bytes)

    def transfer(self, one: Processor, other: Processor, tensor: TensorType) -> float:
        return self._soc.transfer_seconds(one.spec.part, frozenset({other.spec.part}), tensor.elements)


class SimulatedPredictor:
    """Predicts latencies of designs on processors of a profile; a `LatencyPredictor`."""

    def __init__(self, soc: SocProfile, names: Sequence[str]) -> None:
        """Processors are numbered in the order of `names`."""
        self._soc = soc
        self._names = tuple(names)

    def seconds(self, layers: Sequence[Layer], processor: int) -> float:
        """Seconds of `layers`, one after another, on the processor of that number; `inf` if it cannot."""
        profile = self._soc.processors[self._names[processor]]
        return sum(
            layer_seconds(profile, layer, self._soc.element_bytes) for layer in layers if not costs_nothing(layer)
        )

    def fused_seconds(self, pair: Layer, processor: int) -> float:
        """Infinite: profiles have no fused routines."""
        return math.inf

    def meeting_seconds(self, tensor: TensorType, writers: Collection[int], readers: Collection[int]) -> float:
        """Seconds of the slowest transfer between a writer of a part and a reader."""
        made = [self._names[writer] for writer in writers]
        return max(
            (
                self._soc.transfer_seconds(reader, frozenset(made) - {reader}, tensor.elements)
                for reader in (self._names[number] for number in readers)
            ),
            default=0.0,
        )

    def confirm(self, layers: Sequence[Layer], processor: int) -> bool:
        """Nothing is measured."""
        return False

    def fetch_seconds(self, tensor: TensorType, writers: Collection[int], readers: Collection[int]) -> float:
        """Zero: a profile has no cost of reading other processors' memory beyond transfers."""
        return 0.0

    def contention_factor(self, processor: int, others: frozenset[int]) -> float:
        """Time of a processor while others compute over its time alone."""
        return self._soc.slowdown(self._names[processor], frozenset(self._names[other] for other in others))

    def error(self, processor: int) -> Errors | None:
        """None: the error of a profile is unknown."""
        return None


def costs_nothing(layer: Layer) -> bool:
    """Whether a plan has no step for a layer."""
    return becomes_view(layer, (PLAIN,), (PLAIN,))
