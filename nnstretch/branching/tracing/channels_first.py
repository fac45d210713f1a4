"""Rewrites the parts of a graph whose channels come last to channels-first.

ConvNeXt's blocks, for example, permute a map to `N,H,W,C`, normalise channels, apply dense layers and permute back;
transformers compute on tokens `N,L,C`. With channels second this is a normalisation and 1x1 convolutions of maps `N,C,H,W`,
which can be scaled in width and for which every processor has routines.

Every tensor may have a *view*: reshapes and transpositions (`Movement`) of a map, its *base*. Operators that move elements
only make another view. Operators that know their input's channel axis compute on the base; where pixels are in another order
than the base's (windows, patches), a map in that order is made first (`Rearranged`). All other operators read the tensor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from nnstretch.branching.tracing.attention import AttentionCall, attention_call, is_constant
from nnstretch.branching.tracing.modules import PER_CHANNEL, ChannelNorm, ChannelSlice, PerChannel
from nnstretch.branching.tracing.operators import argument, is_elementwise, nodes_behind, title_of
from nnstretch.branching.tracing.tokens import Attention, PerElement, Rearranged, Tokens, ToMap, WithTokens
from nnstretch.passes.movement import Factor, Movement, dense_factors, identity, merged

_RESHAPES = frozenset(
    {"view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "contiguous", "clone", "Flatten"}
)
_PARTING = frozenset({"chunk", "split", "split_with_sizes", "tensor_split", "unsafe_chunk", "unsafe_split"})

Shapes = dict[fx.Node, tuple[int, ...]]
"""Shapes of tensors for a batch that is no 1, if the network takes one."""


@dataclass(frozen=True)
class _View:
    """A tensor as reshapes and transpositions of a map."""

    base: fx.Node
    movement: Movement


def channels_first(graph: fx.Graph, shapes: Shapes) -> None:
    """Rewrites every part whose operators have a channels-first equivalent.

    Args:
        graph: its nodes carry `meta["value"]`, and `meta["module"]` where they call one.
        shapes: of all tensors of the graph.
    """
    _Converter(graph, shapes).run()


class _Converter:
    """One pass that adds a channels-first equivalent of every node it knows.

    Attributes:
        views: node -> the map that it is a view of.
        made: nodes whose own computation has an equivalent.
    """

    def __init__(self, graph: fx.Graph, shapes: Shapes) -> None:
        self._graph = graph
        self._shapes = dict(shapes)
        self.views: dict[fx.Node, _View] = {}
        self.made: set[fx.Node] = set()
        self._maps: dict[tuple[fx.Node, Movement], fx.Node] = {}
        self._imports: dict[fx.Node, fx.Node] = {}
        self._layers: dict[nn.Module, nn.Module] = {}
        self._slices: dict[tuple[fx.Node, int, int], fx.Node] = {}
        self._called = {str(node.target) for node in graph.nodes if node.op == "call_module"}
        self._here: fx.Node | None = None

    def run(self) -> None:
        for node in list(self._graph.nodes):
            if node.op not in ("placeholder", "output", "get_attr") and node in self._shapes:
                self._here = node
                self._visit(node)
        self._join()

    def _visit(self, node: fx.Node) -> None:
        title = title_of(node)
        if title in _RESHAPES or title in ("permute", "transpose", "swapaxes") or _pads_nothing(node, title):
            self._move(node, title)
        elif title in ("getitem", "select", "slice"):
            self._part(node, title)
        else:
            self._convert(node, title)

    # -- views --------------------------------------------------------------------------------------------------------

    def _view(self, node: fx.Node) -> _View | None:
        """How a tensor is a view; a map is a view of itself."""
        if node not in self.views and len(self._shapes.get(node, ())) == 4:
            return _View(node, identity(self._shapes[node]))
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
            self.views[node] = _View(base, movement)

    def _move(self, node: fx.Node, title: str) -> None:
        view = self._view(node.all_input_nodes[0])
        if view is None:
            return
        moved: Movement | None
        if title in ("permute", "transpose", "swapaxes"):
            moved = view.movement.transposed(_order(node, len(view.movement.axes)))
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

    def _slice_channels(self, node: fx.Node, view: _View, axis: int, bounds: tuple[int, int], *, gone: bool) -> bool:
        """Makes `node` a view of a slice of the base's channels, if `axis` is the outermost factor of these."""
        channels, first, stop = self._channels(view.base), *bounds
        axis_factors, movement = view.movement.axes[axis], view.movement
        if len(axis_factors) != 1 or axis_factors[0].stride * axis_factors[0].size != channels.size * channels.stride:
            return False
        size, inner = axis_factors[0].size, axis_factors[0].stride // channels.stride
        if size > channels.size:
            return False
        key = (view.base, first * inner, stop * inner)
        if key not in self._slices:
            batch, _, *sizes = self._shapes[view.base]
            module = ChannelSlice(first * inner, stop * inner, channels.size)
            self._slices[key] = self._make("slice", view.base, module, (batch, (stop - first) * inner, *sizes))
        whole = channels.size * channels.stride
        axes = [
            tuple(Factor(f.size, f.stride // size * (stop - first)) if f.stride >= whole else f for f in factors)
            for factors in movement.axes
        ]
        axes[axis] = merged([Factor(stop - first, axis_factors[0].stride)])
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

    # -- operators ----------------------------------------------------------------------------------------------------

    def _convert(self, node: fx.Node, title: str) -> None:
        operands = [n for n in node.all_input_nodes if n in self._shapes and not is_constant(n)]
        attention = attention_call(node)
        if attention is not None:
            self._attend(node, attention)
        elif node.op == "call_module" and len(operands) == 1:
            self._module(node, operands[0])
        elif title in ("cat", "concat"):
            self._with_tokens(node)
        elif not any(operand in self.views for operand in operands):
            return
        elif is_elementwise(node) and len(operands) == 1:
            self._elementwise(node, operands)
        elif title in PER_CHANNEL and not node.kwargs:
            self._binary(node, operands)
        elif title == "roll":
            self._roll(node, operands[0])
        elif title == "addcmul" and len(node.args) == 3 and not node.kwargs:
            self._shifted_product(node)
        elif title in ("mean", "norm", "linalg_vector_norm"):
            self._reduce(node, title, operands[0])

    def _module(self, node: fx.Node, source: fx.Node) -> None:
        layer = self._layer(node)
        if layer is None:
            return
        if is_elementwise(node):
            if source in self.views:
                self._elementwise(node, [source])
            return
        base = self._map(source, take=True) if len(self._shapes[source]) > 2 else None
        if base is not None:
            batch, channels, *sizes = self._shapes[base]
            channels = layer.out_channels if isinstance(layer, nn.Conv2d) else channels
            self._computed(node, self._new(node, "call_module", node.target, (base,), (batch, channels, *sizes), layer))

    def _layer(self, node: fx.Node) -> nn.Module | None:
        """The channels-first layer equivalent to the channels-last one that `node` calls; None if there is none."""
        module = node.meta["module"]
        if module not in self._layers:
            made: nn.Module | None = None
            if isinstance(module, nn.Linear):
                made = _pointwise(module)
            elif isinstance(module, nn.LayerNorm) and len(module.normalized_shape) == 1:
                made = ChannelNorm(module.weight, module.bias, module.eps)
            elif is_elementwise(node):
                made = module
            if made is None:
                return None
            self._layers[module] = made
        return self._layers[module]

    def _elementwise(self, node: fx.Node, operands: Sequence[fx.Node]) -> None:
        """An operation on the bases of views that are moved alike. Vectors `N,C` stay as they are."""
        if len(self._shapes[node]) < 3:
            return
        views = [self.views[operand] for operand in operands if operand in self.views]
        shapes = {self._shapes[view.base] for view in views}
        if len(views) < len(operands) or len({view.movement for view in views}) > 1 or len(shapes) > 1:
            return
        bases = dict(zip(operands, (view.base for view in views), strict=True))
        module = node.meta["module"] if node.op == "call_module" else None
        args, kwargs = _mapped(node.args, bases), dict(node.kwargs)
        made = self._new(node, node.op, node.target, args, shapes.pop(), module, kwargs)
        self.made.add(node)
        self._set(node, made, views[0].movement)

    def _binary(self, node: fx.Node, operands: list[fx.Node]) -> None:
        constants = [value for value in node.args if isinstance(value, fx.Node) and value not in operands]
        if not constants and len(operands) == 1:
            self._elementwise(node, operands)
        elif not constants:
            self._sum(node, operands)
        elif len(operands) == 1 and constants[0].op == "get_attr":
            self._with_constant(node, operands[0], constants[0])

    def _sum(self, node: fx.Node, operands: list[fx.Node]) -> None:
        """An operation between tensors of one shape, or with one number per image or per channel of it."""
        before = len(self.made)
        if len({self._shapes[operand] for operand in operands}) == 1:
            self._elementwise(node, operands)
        if len(self.made) > before:
            return
        shape = self._shapes[node]
        if len(shape) < 3:
            return
        maps = []
        for operand in operands:
            own = self._shapes[operand]
            single = len(own) == 4 and own == (shape[0], 1, 1, 1)
            fits = (
                len(own) == len(shape) and own[-1] == shape[-1] and own[1:-1] in (shape[1:-1], (1,) * (len(shape) - 2))
            )
            maps.append(operand if single else self._map(operand, take=True) if fits else None)
        whole = [one for one, operand in zip(maps, operands, strict=True) if self._shapes[operand] == shape]
        if None in maps or not whole or whole[0] is None:
            return
        sizes = self._shapes[whole[0]]
        found = [
            one if one is None or math.prod(self._shapes[one][2:]) == 1 else self._of_sizes(one, sizes) for one in maps
        ]
        op = "call_function" if callable(node.target) else node.op
        args = _mapped(node.args, dict(zip(operands, found, strict=True)))
        self._computed(node, self._new(node, op, node.target, args, sizes, None))

    def _shifted_product(self, node: fx.Node) -> None:
        """`addcmul` of two constants per channel and a tensor."""
        shift, *factors = node.args
        tensors = [one for one in factors if isinstance(one, fx.Node) and one.op != "get_attr"]
        constants = [one for one in (shift, *factors) if isinstance(one, fx.Node) and one.op == "get_attr"]
        base = self._map(tensors[0]) if len(tensors) == 1 and len(constants) == 2 and constants[0] is shift else None
        if base is None or any(one.meta["tensor"].numel() != self._shapes[node][-1] for one in constants):
            return
        shape = self._shapes[base]
        for constant, operation in ((constants[1], torch.mul), (constants[0], torch.add)):
            made = PerChannel(operation, constant.meta["tensor"])
            base = self._new(node, "call_module", f"{constant.target}_{node.name}", (base,), shape, made)
        self._computed(node, base)

    def _of_sizes(self, base: fx.Node, shape: tuple[int, ...]) -> fx.Node:
        """A map with its pixels in rows of another length."""
        if self._shapes[base] == shape:
            return base
        factors = dense_factors(self._shapes[base])
        pixels = Movement((merged(factors[2:]),)).reshaped(shape[2:])
        assert pixels is not None
        movement = Movement((merged(factors[:1]), merged(factors[1:2]), *pixels.axes))
        return self._make("rows", base, Rearranged(movement, self._channels(base)), shape)

    def _with_constant(self, node: fx.Node, operand: fx.Node, constant: fx.Node) -> None:
        """A number per channel, or per channel and token."""
        base = self._map(operand) if len(self._shapes[node]) > 2 else None
        value = constant.meta["tensor"]
        title, channels = title_of(node), self._shapes[node][-1]
        reverse = node.args[0] is constant and title not in ("add", "mul")
        if base is None or reverse or not value.dim() or value.shape[-1] != channels:
            return
        shape = self._shapes[base]
        if value.numel() == channels:
            made: nn.Module = PerChannel(PER_CHANNEL[title], value)
        elif title == "add" and value.numel() == math.prod(shape[1:]) and value.shape[0] in (1, self._shapes[node][1]):
            rows = value.detach().reshape(*shape[2:], channels).permute(2, 0, 1).contiguous()
            made = PerElement(rows, learned=isinstance(value, nn.Parameter) and value.requires_grad)
        else:
            return
        target = f"{constant.target}_{node.name}"
        self._computed(node, self._new(node, "call_module", target, (base,), shape, made))

    def _with_tokens(self, node: fx.Node) -> None:
        """A row of tokens beside constant ones."""
        parts = argument(node, "tensors")
        tokens = [n for n in parts if isinstance(n, fx.Node) and n in self._shapes and not is_constant(n)]
        shape = self._shapes[node]
        if len(tokens) != 1 or len(shape) != 3 or int(argument(node, "dim", 0)) % 3 != 1:
            return
        base = self._map(tokens[0])
        if base is None or len(parts) < 2:
            return
        place = parts.index(tokens[0])
        ends = []
        for constants in (parts[:place], parts[place + 1 :]):
            values = [part.meta["value"].detach()[0] for part in constants]
            ends.append(torch.cat(values).T.contiguous() if values else torch.empty(shape[-1], 0))
        learned = any(_learned(part) for part in parts if part is not tokens[0])
        module = WithTokens(ends[0], ends[1].to(ends[0]), learned=learned)
        made = self._make("tokens", base, module, (shape[0], shape[2], shape[1], 1))
        self._computed(node, made)

    def _reduce(self, node: fx.Node, title: str, operand: fx.Node) -> None:
        """A mean or norm over all pixels, or a mean over the channels."""
        axes, keep = argument(node, "dim"), bool(argument(node, "keepdim", False))
        rank, base = len(self._shapes[operand]), self._map(operand)
        listed = [axes] if isinstance(axes, int) else axes
        if base is None or not isinstance(listed, (list, tuple)):
            return
        reduced = sorted(int(axis) % rank for axis in listed)
        batch, channels = self._shapes[base][:2]
        shape: tuple[int, ...]
        if reduced == list(range(1, rank - 1)):
            places, shape = [2, 3], (batch, channels, 1, 1) if keep else (batch, channels)
        elif reduced == [rank - 1] and keep and title == "mean":
            places, shape = [1], (batch, 1, *self._shapes[base][2:])
        else:
            return
        if title == "mean":
            function, args = torch.mean, (base, places, keep)
        elif argument(node, "p", 2) == 2:
            function, args = torch.linalg.vector_norm, (base, 2, places, keep)  # type: ignore[assignment]
        else:
            return
        made = self._new(node, "call_function", function, args, shape, None)
        if keep:
            self._computed(node, made)
        else:
            node.replace_all_uses_with(made)

    def _roll(self, node: fx.Node, operand: fx.Node) -> None:
        """A cyclic shift of height and width."""
        base, arguments = self._map(operand), [*node.args[1:], *node.kwargs.values()]
        if base is None or len(self._shapes[node]) != 4 or len(arguments) != 2:
            return
        shifts, axes = arguments
        if isinstance(axes, (list, tuple)) and [int(axis) % 4 for axis in axes] == [1, 2]:
            if self._shapes[base][2:] != self._shapes[node][1:3]:
                base = self._of_sizes(base, (*self._shapes[base][:2], *self._shapes[node][1:3]))
            rolled = self._new(node, "call_function", torch.roll, (base, shifts, (2, 3)), self._shapes[base], None)
            self._computed(node, rolled)

    def _attend(self, node: fx.Node, call: AttentionCall) -> None:
        """Attention of whole heads; the channels of a map must be those of its heads."""
        views = [self._view(tensor) for tensor in (call.query, call.key, call.value)]
        if any(view is None or len(view.movement.axes) < 3 for view in views):
            return
        if call.transposed_key and views[1] is not None:
            rank = len(views[1].movement.axes)
            views[1] = _View(views[1].base, views[1].movement.transposed((*range(rank - 2), rank - 1, rank - 2)))
        heads = [_head_axes(view, self._channels(view.base)) for view in views if view is not None]
        widths = [found for found in heads if found is not None]
        if len(widths) != 3:
            return
        (count, query_width, query), (keys, key_width, key), (values, value_width, value) = widths
        shared = count > 1 and (keys, values) == (1, 1)
        if query_width != key_width or not (shared or keys == values == count):
            return
        maps = [
            self._arranged(view.base, movement)
            for view, movement in zip(filter(None, views), (query, key, value), strict=True)
        ]
        bias = None if call.bias is None else _bias(call.bias, node.meta["value"], self._example_batch(), count)
        if call.bias is not None and bias is None:
            return
        learned = call.bias is not None and _learned(call.bias)
        scale = query_width**-0.5 if call.scale is None else call.scale
        module = Attention(query_width, value_width, scale, bias, shared=shared, learned=learned)
        batch, _, *sizes = self._shapes[maps[0]]
        made = self._make("attention", maps[0], module, (batch, count * value_width, *sizes), maps[1:])
        axes = identity((batch, count, value_width, math.prod(sizes))).transposed((0, 1, 3, 2))
        moved = axes.reshaped(self._shapes[node])
        if moved is not None:
            self.made.add(node)
            self._set(node, made, moved)

    def _example_batch(self) -> int:
        """Images at once in the values of nodes."""
        source = next(node for node in self._graph.nodes if node.op == "placeholder" and node.users)
        return int(source.meta["value"].shape[0])

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


def _pads_nothing(node: fx.Node, title: str) -> bool:
    """Whether a node pads by no pixels."""
    return title in ("pad", "constant_pad_nd") and not any(argument(node, "pad"))


def _mapped(args: Any, bases: Mapping[fx.Node, fx.Node | None]) -> Any:
    """Arguments with other nodes in the places of some."""
    return fx.map_arg(args, lambda node: bases.get(node, node))


def _order(node: fx.Node, rank: int) -> list[int]:
    """The permutation of axes that a `permute` or `transpose` makes."""
    if title_of(node) == "permute":
        return [int(axis) % rank for axis in argument(node, "dims")]
    given = [*node.args[1:], *node.kwargs.values()]
    first, second = (int(axis) % rank for axis in given)  # type: ignore[arg-type]
    order = list(range(rank))
    order[first], order[second] = second, first
    return order


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


def _head_axes(view: _View, channels: Factor) -> tuple[int, int, Movement] | None:
    """Heads, channels of a head, and the movement to a map, of a view `N,heads,L,C` or `N*heads,L,C`; None if it is none."""
    *batch, pixels, inner = view.movement.axes
    if len(inner) != 1 or inner[0].stride != channels.stride or channels.size % inner[0].size:
        return None
    width = inner[0].size
    count = channels.size // width
    heads = Factor(count, width * channels.stride)
    if len(batch) == 2 and batch[1] == merged([heads]):
        rows = batch[0]
    elif len(batch) == 1 and batch[0] and batch[0][-1].stride == heads.stride and batch[0][-1].size % count == 0:
        last = batch[0][-1]
        rows = (*batch[0][:-1], *merged([Factor(last.size // count, last.stride * count)]))
    elif len(batch) == 1 and count == 1:
        rows = batch[0]
    else:
        return None
    return count, width, Movement((rows, (channels,), pixels, ()))


def _bias(node: fx.Node, scores: Tensor, batch: int, heads: int) -> Tensor | None:
    """What is added to the scores as `W,heads,L,L`; None if its axes are not known."""
    value: Tensor = node.meta["value"].detach()
    if value.dim() > 4:
        return None
    value = value.reshape(*[1] * (4 - value.dim()), *value.shape)
    if value.shape[1] not in (1, heads) or scores.dim() != 4:
        return None
    if value.shape[0] == 1:
        return value.clone()
    images, rest = divmod(value.shape[0], batch)
    same = not rest and all(torch.equal(value[:images], part) for part in torch.split(value, max(images, 1)))
    return value[:images].clone() if same else None


def _learned(node: fx.Node) -> bool:
    """Whether a constant depends on parameters that are trained."""
    tensors = (other.meta.get("tensor") for other in nodes_behind(node))
    return any(isinstance(tensor, nn.Parameter) and tensor.requires_grad for tensor in tensors)


def _pointwise(module: nn.Linear) -> nn.Conv2d:
    """The 1x1 convolution equivalent to a dense layer applied to every pixel."""
    conv = nn.Conv2d(module.in_features, module.out_features, 1, bias=module.bias is not None, device="meta")
    conv.weight = nn.Parameter(module.weight.detach()[:, :, None, None], module.weight.requires_grad)
    if module.bias is not None:
        conv.bias = module.bias
    return conv.eval()
