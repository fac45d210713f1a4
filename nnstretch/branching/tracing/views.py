"""Tensors of a graph as views of channels-first maps.

A *view* of a map, its *base*, is reshapes and transpositions (`Movement`) of it. Operators that only move elements make
another view of the same base; a map is made again only where its elements have to lie in another order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from nnstretch.branching.tracing.attention import TRANSPOSITIONS, axis_order
from nnstretch.branching.tracing.modules import ChannelSlice, HeadSlice
from nnstretch.branching.tracing.operators import nodes_behind, title_of
from nnstretch.branching.tracing.tokens import Rearranged, Tokens, ToMap
from nnstretch.passes.tokens.movement import Factor, Movement, dense_factors, identity, merged

_PARTING = frozenset({"chunk", "split", "split_with_sizes", "tensor_split", "unsafe_chunk", "unsafe_split"})

Shapes = dict[fx.Node, tuple[int, ...]]
"""Shapes of tensors for a batch that is no 1, if the network takes one."""


@dataclass(frozen=True)
class View:
    """A tensor as reshapes and transpositions of a map."""

    base: fx.Node
    movement: Movement


class Views:
    """The tensors of a graph as views of maps, and the nodes that are added to it.

    Attributes:
        views: node -> the map that it is a view of.
        made: nodes whose own computation has an equivalent.
    """

    def __init__(self, graph: fx.Graph, shapes: Shapes) -> None:
        self.views: dict[fx.Node, View] = {}
        self.made: set[fx.Node] = set()
        self._graph = graph
        self._shapes = dict(shapes)
        self._maps: dict[tuple[fx.Node, Movement], fx.Node] = {}
        self._imports: dict[fx.Node, fx.Node] = {}
        self._slices: dict[tuple[fx.Node, int, int, int], fx.Node] = {}
        self._called = {str(node.target) for node in graph.nodes if node.op == "call_module"}
        self._here: fx.Node | None = None

    def _view(self, node: fx.Node) -> View | None:
        """How a tensor is a view; a map is a view of itself."""
        if node not in self.views and len(self._shapes.get(node, ())) == 4:
            return View(node, identity(self._shapes[node]))
        return self.views.get(node)

    def _set(self, node: fx.Node, base: fx.Node, movement: Movement) -> None:
        if movement == identity(self._shapes[base]) and self._shapes[node] == self._shapes[base]:
            node.replace_all_uses_with(base)
        elif len(movement.axes) == 4 and movement.axes[1] == (self._channels(base),):
            arranged = self._arranged(base, movement)
            if self._shapes[arranged] != self._shapes[node]:
                arranged = self._of_sizes(arranged, self._shapes[node])
            node.replace_all_uses_with(arranged)
        else:
            self.views[node] = View(base, movement)

    def _move(self, node: fx.Node, title: str) -> None:
        view = self._view(node.all_input_nodes[0])
        if view is None:
            return
        moved: Movement | None
        if title in TRANSPOSITIONS:
            moved = view.movement.transposed(axis_order(node, len(view.movement.axes)))
        else:
            moved = view.movement.reshaped(self._shapes[node])
        if moved is not None:
            self._set(node, view.base, moved)

    def _part(self, node: fx.Node, title: str) -> None:
        """A range of channels of a tensor that was divided, or of an axis of a view; or some tokens."""
        source = node.args[0]
        if not isinstance(source, fx.Node):
            return
        if source not in self._shapes:
            self._part_of_tuple(node, source)
            return
        picked = _picked(node, title, self._shapes[source])
        view = self.views.get(source)
        if picked is None or view is None:
            return
        axis, first, stop = picked
        if not self._slice_channels(node, view, axis, (first, first + 1 if stop is None else stop), gone=stop is None):
            self._pick_tokens(node, source, axis, first, stop)

    def _part_of_tuple(self, node: fx.Node, divided: fx.Node) -> None:
        number, title = node.args[1], title_of(divided)
        source = divided.all_input_nodes[0] if divided.all_input_nodes else None
        view = None if source is None else self.views.get(source)
        if source is None or view is None or not isinstance(number, int):
            return
        if title == "unbind":
            given: Any = divided.args[1] if len(divided.args) > 1 else divided.kwargs.get("dim", 0)
            axis = int(given) % len(self._shapes[source])
            self._slice_channels(node, view, axis, (number, number + 1), gone=True)
        elif title in _PARTING:
            parts = [tuple(part.shape) for part in divided.meta["value"]]
            whole = source.meta["value"].shape
            axes = [axis for axis, size in enumerate(whole) if any(part[axis] != size for part in parts)]
            if len(axes) == 1:
                number %= len(parts)
                first = sum(part[axes[0]] for part in parts[:number])
                self._slice_channels(node, view, axes[0], (first, first + parts[number][axes[0]]), gone=False)

    def _slice_channels(self, node: fx.Node, view: View, axis: int, bounds: tuple[int, int], *, gone: bool) -> bool:
        """Makes `node` a view of a slice of the base's channels.

        `axis` must be the outermost factor of these, or, where it divides them into heads, the channels of a head.
        """
        channels, first, stop = self._channels(view.base), *bounds
        factors, movement = view.movement.axes[axis], view.movement
        if len(factors) != 1 or channels.size % factors[0].size or factors[0].stride < channels.stride:
            return False
        size, inner = factors[0].size, factors[0].stride // channels.stride
        whole = size * factors[0].stride
        if whole != channels.size * channels.stride and inner > 1:
            return False
        key = (view.base, first * inner, stop * inner, size * inner)
        if key not in self._slices:
            batch, total, *sizes = self._shapes[view.base]
            kind = ChannelSlice if size * inner == channels.size else HeadSlice
            shape = (batch, total // size * (stop - first), *sizes)
            self._slices[key] = self._make("slice", view.base, kind(*key[1:]), shape)
        axes = [
            tuple(Factor(f.size, f.stride // size * (stop - first)) if f.stride >= whole else f for f in others)
            for others in movement.axes
        ]
        axes[axis] = merged([Factor(stop - first, factors[0].stride)])
        if gone:
            del axes[axis]
        self.made.add(node)
        self._set(node, self._slices[key], Movement(tuple(axes)))
        return True

    def _pick_tokens(self, node: fx.Node, source: fx.Node, axis: int, first: int, stop: int | None) -> None:
        base = self._map(source) if axis == 1 and len(self._shapes[source]) == 3 else None
        if base is None:
            return
        batch, channels = self._shapes[base][:2]
        if stop is None:
            vector = self._make("token", base, Tokens(first, None), (batch, channels))
            node.replace_all_uses_with(vector)
        else:
            self._computed(node, self._make("tokens", base, Tokens(first, stop), (batch, channels, stop - first, 1)))

    def _channels(self, base: fx.Node) -> Factor:
        _, channels, *sizes = self._shapes[base]
        return Factor(channels, math.prod(sizes))

    def _map(self, node: fx.Node, *, take: bool = False) -> fx.Node | None:
        """The map `N,C,…` of a tensor whose channels come last.

        Args:
            node: computes the tensor.
            take: make a map of it even if it is no view.
        """
        shape = self._shapes.get(node, ())
        view = self.views.get(node)
        if view is None:
            return self._taken(node) if take and len(shape) >= 3 else None
        if len(shape) < 2 or view.movement.axes[-1] != merged([self._channels(view.base)]):
            return self._taken(node) if take and len(shape) >= 3 else None
        batch, *pixels, channels = view.movement.axes
        height, *width = pixels or [()]
        rows = (batch, channels, height, merged(factor for axis in width for factor in axis))
        return self._arranged(view.base, Movement(rows))

    def _taken(self, node: fx.Node) -> fx.Node:
        """A tensor whose channels come last, and that is computed in some unknown way, as a map."""
        if node not in self._imports:
            batch, *pixels, channels = self._shapes[node]
            self._imports[node] = self._make("map", node, ToMap(), (batch, channels, math.prod(pixels), 1))
        return self._imports[node]

    def _arranged(self, base: fx.Node, movement: Movement) -> fx.Node:
        """A map whose pixels lie as a movement `N,C,H,W` says; `base` itself if they do already."""
        if movement.axes[0] == identity(self._shapes[base]).axes[0] and movement.keeps_order:
            return base
        key = (base, movement)
        if key not in self._maps:
            self._maps[key] = self._make("rearranged", base, Rearranged(movement, self._channels(base)), movement.shape)
        return self._maps[key]

    def _computed(self, node: fx.Node, equivalent: fx.Node) -> None:
        """Notes the map that has the values of `node`, whose channels come last."""
        shape = self._shapes[node]
        moved = identity(self._shapes[equivalent]).transposed((0, 2, 3, 1)).reshaped(shape)
        if moved is not None:
            self.made.add(node)
            self._set(node, equivalent, moved)

    def _of_sizes(self, base: fx.Node, shape: tuple[int, ...]) -> fx.Node:
        """A map with its pixels in rows of another length."""
        if self._shapes[base] == shape:
            return base
        factors = dense_factors(self._shapes[base])
        pixels = Movement((merged(factors[2:]),)).reshaped(shape[2:])
        assert pixels is not None
        movement = Movement((merged(factors[:1]), merged(factors[1:2]), *pixels.axes))
        return self._make("rows", base, Rearranged(movement, self._channels(base)), shape)

    # -- nodes --------------------------------------------------------------------------------------------------------

    def _make(
        self, name: str, source: fx.Node, module: nn.Module, shape: tuple[int, ...], others: Sequence[fx.Node] = ()
    ) -> fx.Node:
        """A node that calls a new module."""
        assert self._here is not None
        target = self._path(self._here, name)
        return self._new(self._here, "call_module", target, (source, *others), shape, module)

    def _path(self, node: fx.Node, name: str) -> str:
        """Path of a new module that stands for `node`."""
        owner = str(node.target).rpartition(".")[0] if node.op == "call_module" else str(node.meta.get("owner") or "")
        return f"{owner}.{node.name}_{name}" if owner and owner not in self._called else f"{node.name}_{name}"

    def _new(
        self,
        place: fx.Node,
        op: str,
        target: Any,
        args: Any,
        shape: tuple[int, ...],
        module: nn.Module | None,
        kwargs: dict[str, Any] | None = None,
    ) -> fx.Node:
        with self._graph.inserting_before(place):
            node = self._graph.create_node(op, target, args, kwargs or {})
        node.meta = {"value": torch.empty(shape, device="meta")}
        if module is not None:
            node.meta["module"] = module.eval()
        self._shapes[node] = shape
        return node

    def _join(self) -> None:
        """Lets users of a converted node read a view of its equivalent."""
        (output,) = self._graph.find_nodes(op="output")
        wanted = nodes_behind(output)
        for node in [node for node in self._graph.nodes if node in self.made and node in self.views]:
            view = self.views[node]
            if node not in wanted:
                continue
            with self._graph.inserting_after(node):
                joined = self._graph.create_node("call_module", self._path(node, "view"), (view.base,))
            joined.meta = {"module": Rearranged(view.movement, self._channels(view.base)), "value": node.meta["value"]}
            node.replace_all_uses_with(joined)


def _picked(node: fx.Node, title: str, shape: tuple[int, ...]) -> tuple[int, int, int | None] | None:
    """Axis, first index and end (None: one index, whose axis goes) that a node picks, if it does so along one axis."""
    if node.kwargs:
        return None
    index: Any
    if title == "select":
        index = (*[slice(None)] * (int(node.args[1]) % len(shape)), int(node.args[2]))  # type: ignore[arg-type]
    elif title == "slice":
        given: list[Any] = [*node.args[1:], *[None] * 4][:4]
        index = (*[slice(None)] * (int(given[0] or 0) % len(shape)), slice(*given[1:]))
    else:
        index = node.args[1]
    wanted = index if isinstance(index, tuple) else (index,)
    if not all(isinstance(one, (int, slice)) for one in wanted):
        return None
    taken = [(axis, one) for axis, one in enumerate(wanted) if one != slice(None)]
    if len(taken) != 1:
        return None
    axis, one = taken[0]
    if isinstance(one, int):
        return axis, one % shape[axis], None
    if any(isinstance(bound, fx.Node) for bound in (one.start, one.stop, one.step)):
        return None
    first, stop, step = one.indices(shape[axis])
    return (axis, first, stop) if step == 1 and first < stop else None
