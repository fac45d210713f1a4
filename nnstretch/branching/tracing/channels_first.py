"""Rewrites the parts of a graph whose channels come last to channels-first.

ConvNeXt's blocks, for example, permute a map to `N,H,W,C`, normalise channels, apply dense layers and permute back;
transformers compute on tokens `N,L,C`. With channels second this is a normalisation and 1x1 convolutions of maps `N,C,H,W`,
which can be scaled in width and for which every processor has routines.

Every tensor may be a view of a map (`views.py`). Operators that know their input's channel axis compute on the base; where
pixels are in another order than the base's (windows, patches), a map in that order is made first (`Rearranged`). All other
operators read the tensor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from nnstretch.branching.tracing.attention import TRANSPOSITIONS, AttentionCall, attention_call, is_constant
from nnstretch.branching.tracing.modules import PER_CHANNEL, ChannelNorm, PerChannel
from nnstretch.branching.tracing.operators import argument, is_elementwise, nodes_behind, title_of
from nnstretch.branching.tracing.tokens import Attention, PerElement, WithTokens
from nnstretch.branching.tracing.views import Shapes, View, Views
from nnstretch.passes.tokens.movement import Factor, Movement, identity, merged

_RESHAPES = frozenset(
    {"view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "contiguous", "clone", "Flatten"}
)


def channels_first(graph: fx.Graph, shapes: Shapes) -> None:
    """Rewrites every part whose operators have a channels-first equivalent.

    Args:
        graph: its nodes carry `meta["value"]`, and `meta["module"]` where they call one.
        shapes: of all tensors of the graph.
    """
    _Converter(graph, shapes).run()


class _Converter(Views):
    """One pass that adds a channels-first equivalent of every node it knows."""

    def __init__(self, graph: fx.Graph, shapes: Shapes) -> None:
        super().__init__(graph, shapes)
        self._layers: dict[nn.Module, nn.Module] = {}

    def run(self) -> None:
        for node in list(self._graph.nodes):
            if node.op not in ("placeholder", "output", "get_attr") and node in self._shapes:
                self._here = node
                self._visit(node)
        self._join()

    def _visit(self, node: fx.Node) -> None:
        title = title_of(node)
        if title in _RESHAPES or title in TRANSPOSITIONS or _pads_nothing(node, title):
            self._move(node, title)
        elif title in ("getitem", "select", "slice"):
            self._part(node, title)
        else:
            self._convert(node, title)

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
        # Some operand's channels must be known to come last.
        if len(shape) < 3 or all(self._map(one) is None for one in operands if self._shapes[one] == shape):
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
        views = [
            _with_last_axes_exchanged(view) if view is not None and exchanged else view
            for view, exchanged in zip(views, (False, call.transposed_key, call.transposed), strict=True)
        ]
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
        axes = identity((batch, count, value_width, math.prod(sizes)))
        moved = (axes if call.transposed else axes.transposed((0, 1, 3, 2))).reshaped(self._shapes[node])
        if moved is not None:
            self.made.add(node)
            self._set(node, made, moved)

    def _example_batch(self) -> int:
        """Images at once in the values of nodes."""
        source = next(node for node in self._graph.nodes if node.op == "placeholder" and node.users)
        return int(source.meta["value"].shape[0])


def _pads_nothing(node: fx.Node, title: str) -> bool:
    """Whether a node pads by no pixels."""
    return title in ("pad", "constant_pad_nd") and not any(argument(node, "pad"))


def _mapped(args: Any, bases: Mapping[fx.Node, fx.Node | None]) -> Any:
    """Arguments with other nodes in the places of some."""
    return fx.map_arg(args, lambda node: bases.get(node, node))


def _with_last_axes_exchanged(view: View) -> View:
    """A view with its last two axes in the other order."""
    rank = len(view.movement.axes)
    return View(view.base, view.movement.transposed((*range(rank - 2), rank - 1, rank - 2)))


def _head_axes(view: View, channels: Factor) -> tuple[int, int, Movement] | None:
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
