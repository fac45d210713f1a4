"""Memory of a network in a session: weights and the peak of the other tensors."""

from __future__ import annotations

from nnstretch.branching.latency.workloads import part_layers
from nnstretch.branching.search.network_latency import states_before
from nnstretch.graph.dtypes import element_type
from nnstretch.graph.layer import Layer
from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.sweeps.space import PredictedDesign

_MIB = 2**20


def plan_mib(compiled: Compiled) -> float:
    """MiB of a plan: constants as routines prepared them, and the arenas of all memories."""
    return compiled.memory_bytes / _MIB


def predicted_mib(predicted: PredictedDesign) -> float:
    """MiB that a design is estimated to take: its weights, and the largest layers of all branches of a segment together."""
    latencies, choices = predicted.latencies, predicted.choices
    blueprint, states = latencies.blueprint, states_before(latencies, choices)
    peak = 0
    for choice in choices:
        parts = [
            part_layers(blueprint.plan(choice.segment, branch), blueprint.counts(choice.segment, branch), states)
            for branch in choice.branches
        ]
        peak = max(peak, sum(max(map(_layer_elements, part.layers), default=0) for part in parts))
    return element_type(predicted.dtype).bytes * (predicted.design.params + peak) / _MIB


def _layer_elements(layer: Layer) -> int:
    """Numbers in a layer's tensors without its constants."""
    read = (kind for index, kind in enumerate(layer.inputs) if kind is not None and index not in layer.constants)
    return sum(kind.elements for kind in (*read, *layer.outputs))
