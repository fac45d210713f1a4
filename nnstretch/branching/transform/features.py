"""Feature maps of networks at meeting points: the original's, and those that a network in training computes.

The original's come from its traced graph (`MeetingPointFeatures`). Those of a network in training come from forward hooks
(`FeatureTaps`), so one forward pass gives the outputs and the feature maps, and the module itself stays as it is.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils.hooks import RemovableHandle

from nnstretch.branching.design.design import Design
from nnstretch.branching.tracing.trace import TracedNetwork, trace
from nnstretch.branching.transform.network import BranchedNetwork
from nnstretch.errors import DesignError, ModelError
from nnstretch.frontends.modes import evaluating

# Relative to the largest element: a traced graph and its module may sum in another order.
_TOLERANCE = 1e-3
_NOISE = 0.1  # standard deviation of what is added to weights, so that no two feature maps are equal


class MeetingPointFeatures(nn.Module):
    """From images to the original's feature maps at the meeting points, in evaluation mode and without gradients.

    Attributes:
        layers: the original up to the last meeting point, or all of it.
    """

    def __init__(self, traced: TracedNetwork, stops: Sequence[int], *, whole: bool = False) -> None:
        """Cuts the original at the ends of segments.

        Args:
            traced: the original network.
            stops: the block after each segment, ascending; the last one is the number of blocks.
            whole: keep the head, too, for `outputs`.

        Raises:
            DesignError: the segments have more blocks than the network, or fewer.
        """
        super().__init__()
        if stops[-1] != len(traced.blocks):
            raise DesignError(
                f"the design is for a network of {stops[-1]} blocks, this one has {len(traced.blocks)}; "
                "give the network that the design was made for"
            )
        ends = [traced.blocks[stop - 1].output for stop in stops]
        self.layers = _computing(traced.graph, ends, whole=whole).eval()

    def train(self, mode: bool = True) -> MeetingPointFeatures:
        """Stays in evaluation mode: the original's statistics are fixed."""
        del mode
        return super().train(False)

    def forward(self, images: Tensor) -> list[Tensor]:
        """Feature maps at all meeting points.

        Args:
            images: `N,C,H,W`.

        Returns:
            The images, then the original's output of every segment, `N,C,H,W`.
        """
        with torch.no_grad():
            return [images, *self.layers(images)[0]]

    def outputs(self, images: Tensor) -> tuple[list[Tensor], Any]:
        """The original's output of every segment, and what it returns for `images`; only if it was kept whole."""
        with torch.no_grad():
            maps, returned = self.layers(images)
        return list(maps), returned


def meeting_point_features(original: nn.Module, example_input: Tensor, design: Design) -> MeetingPointFeatures:
    """The feature maps of `original` at the meeting points of a design that was made from it.

    Raises:
        DesignError: the network cannot be traced, or the design is for another one.
    """
    return MeetingPointFeatures(trace(original, example_input), stops_of(design))


def stops_of(design: Design) -> list[int]:
    """The block after each segment of a design."""
    return [segment.stop for segment in design.segments]


def stage_ends(traced: TracedNetwork) -> list[int]:
    """The block after each stage of a network: where feature maps of other networks can be compared to its own."""
    return [stage.stop for stage in traced.stages]


@dataclass(frozen=True, eq=False)
class TapPlace:
    """A tensor that a network computes, as a module that writes or reads it.

    Attributes:
        module: is called once in a forward pass.
        reads: whether the tensor is the module's first input; else it is its output.
    """

    module: nn.Module
    reads: bool = False


class FeatureTaps:
    """Keeps the tensors at some places of a network in every forward pass with gradients.

    Passes without gradients, such as evaluations of copies of the network, are not recorded. Hooks are registered at once:
    compile the network afterwards.
    """

    def __init__(self, places: Sequence[TapPlace]) -> None:
        self._maps: list[Tensor | None] = [None] * len(places)
        self._handles: list[RemovableHandle] = []
        for number, place in enumerate(places):
            if place.reads:
                self._handles.append(place.module.register_forward_pre_hook(_keep_input(self._maps, number)))
            else:
                self._handles.append(place.module.register_forward_hook(_keep_output(self._maps, number)))

    def take(self) -> list[Tensor]:
        """The tensors of the last pass, once: they are not kept any longer.

        Raises:
            ModelError: there was no pass with gradients since the last call.
        """
        found = [tensor for tensor in self._maps if tensor is not None]
        if len(found) != len(self._maps):
            raise ModelError("the network has not computed its feature maps; run it with gradients before each loss")
        self._maps[:] = [None] * len(self._maps)
        return found

    def close(self) -> None:
        """Removes the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._maps[:] = [None] * len(self._maps)


# Hooks are plain functions: copies of a module then share them instead of copying the tensors that they keep.


def _keep_output(maps: list[Tensor | None], number: int) -> Callable[[nn.Module, Any, Any], None]:
    def keep(module: nn.Module, inputs: Any, output: Any) -> None:
        del module, inputs
        if torch.is_grad_enabled():
            maps[number] = output

    return keep


def _keep_input(maps: list[Tensor | None], number: int) -> Callable[[nn.Module, Any], None]:
    def keep(module: nn.Module, inputs: Any) -> None:
        del module
        if torch.is_grad_enabled():
            maps[number] = inputs[0]

    return keep


def tap_places(module: nn.Module, example_input: Tensor, stops: Sequence[int] | None = None) -> list[TapPlace | None]:
    """Where a network computes its feature maps at meeting points.

    Args:
        module: a branched network, whose segments end there, or any network that can be traced.
        example_input: a batch `N,C,H,W` that it accepts.
        stops: for a network without branches, the block after each segment; the ends of its stages if None.

    Returns:
        A place per meeting point; None for a stage whose feature map no module writes or reads alone, as where a function
        enlarges it.

    Raises:
        DesignError: the network cannot be traced, or no module of it writes or reads one of the feature maps alone (of stages:
            any of them).
    """
    if isinstance(module, BranchedNetwork):
        return [TapPlace(segment) for segment in module.body]
    # A copy with other weights is looked at. In the module itself two feature maps may be equal, for example where
    # residual blocks begin as identities.
    shaken = _shaken(module)
    traced = trace(shaken, example_input)
    ends = stage_ends(traced) if stops is None else stops
    wanted = MeetingPointFeatures(traced, ends)(example_input)[1:]
    by_name = _matching(shaken, example_input, wanted)
    missing = [traced.blocks[stop - 1].name for stop, found in zip(ends, by_name, strict=True) if found is None]
    if missing and (stops is not None or len(missing) == len(ends)):
        raise DesignError(
            f"no module of {type(module).__name__} writes or reads the feature map after {missing[0]} alone; "
            "give the network a module there, or train it without feature maps (kd_feature_weight 0)"
        )
    return [None if found is None else TapPlace(module.get_submodule(found[0]), found[1]) for found in by_name]


def _shaken(module: nn.Module) -> nn.Module:
    """A copy of a module with noise on its weights."""
    shaken = copy.deepcopy(module)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in shaken.parameters():
            if parameter.is_floating_point():
                scale = _NOISE * float(parameter.std()) if parameter.ndim > 1 and parameter.numel() > 1 else _NOISE
                parameter.add_((torch.randn(parameter.shape, generator=generator) * scale).to(parameter))
    return shaken


def _matching(module: nn.Module, example_input: Tensor, wanted: Sequence[Tensor]) -> list[tuple[str, bool] | None]:
    """For each tensor in `wanted` the first module, by name, that writes it (False) or reads it first (True).

    Only modules that are called once count, and only tensors that are not changed in place later.
    """
    calls: Counter[str] = Counter()
    seen: list[tuple[int, str, bool, Tensor, int]] = []

    def look(name: str, value: Any, *, reads: bool) -> None:
        if not isinstance(value, Tensor):
            return
        for number, tensor in enumerate(wanted):
            if value.shape == tensor.shape and _close(value, tensor):
                seen.append((number, name, reads, value, value._version))

    def before(name: str, inputs: Any) -> None:
        calls[name] += 1
        look(name, inputs[0] if inputs else None, reads=True)

    handles: list[RemovableHandle] = []
    for name, part in module.named_modules():
        if name:
            handles.append(part.register_forward_pre_hook(lambda _, inputs, name=name: before(name, inputs)))
            handles.append(part.register_forward_hook(lambda _, __, out, name=name: look(name, out, reads=False)))
    try:
        with evaluating(module), torch.no_grad():
            module(example_input.clone())
    finally:
        for handle in handles:
            handle.remove()
    found: list[tuple[str, bool] | None] = [None] * len(wanted)
    for number, name, reads, value, version in seen:
        if found[number] is None and calls[name] == 1 and value._version == version:
            found[number] = (name, reads)
    return found


def _close(value: Tensor, wanted: Tensor) -> bool:
    return float((value - wanted).abs().max()) <= _TOLERANCE * float(wanted.abs().max())


def _computing(graph: fx.GraphModule, ends: Sequence[fx.Node], *, whole: bool) -> fx.GraphModule:
    """A module that returns the values of `ends` and, if `whole`, what `graph` returns; it has the weights of `graph`."""
    copied = fx.Graph()
    made: dict[fx.Node, fx.Node] = {}
    returned: Any = None
    for node in graph.graph.nodes:
        if node.op != "output":
            made[node] = copied.node_copy(node, made.__getitem__)
        elif whole:
            returned = fx.map_arg(node.args[0], made.__getitem__)
    copied.output((tuple(made[end] for end in ends), returned))
    module = fx.GraphModule(graph, copied)
    copied.eliminate_dead_code()
    module.delete_all_unused_submodules()
    module.recompile()
    return module
