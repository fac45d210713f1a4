"""Tokens are pixels: channels-last stretches of a graph in the channels-first form.

Transformers and ConvNeXt compute on tensors N,L,C or N,H,W,C, whose channels are last. Convolutions, layer normalisations
and element-wise layers have fast kernels for N,C,H,W, in the blocked layout. This pass therefore computes such stretches on
N,C,H,W tensors, and the transpositions between the two forms disappear.

Every value of the graph may have a *view*: a movement (`movement.py`) of a tensor N,C,H,W, its *base*. The pass
walks through the graph once:

- Reshape and Transpose compose movements. Nothing is computed.
- An operator of `operators.py` that knows its input's channel axis computes on the base. Its output is a view of the result.
- Every other operator reads the value itself. Where that is a view, one Reshape or Transpose makes it of the base.

A view whose pixels are in another order than the base's (windows of Swin or MaxViT, patches of MobileViT) becomes a base of its
own by one Rearrange, at the first operator that mixes it with another order or has weights.

ConvNeXt's block: the depthwise Conv makes base X. Transpose to N,H,W,C is a view of X. LayerNorm over the last axis is one
over axis 1 of X; MatMul, bias, GELU and MatMul are a 1×1 Conv with GELU and another one. Transpose back is a view that equals
its base, so layer scale and residual sum fold into that Conv. No transposition is left.

ViT's block: the stem makes X (N,C,14,14). Reshape and Transpose to N,196,C are a view. Concat with the class token is one along
the pixels of N,C,196,1, and the sum with position embeddings adds their transpose. Attention (`passes.fuse.attention`) reads
channel slices of the 1×1 Conv that makes queries, keys and values. The class token is a slice of pixels.

The rewritten graph replaces the original only if its transpositions and rearrangements move no more elements. Graphs with
quantised tensors stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from nnstretch.graph.layer import DOMAIN, Attribute
from nnstretch.passes.rewriting import (
    become,
    constant,
    float_shape,
    insert,
    integers,
    is_canonical,
    is_onnx,
)
from nnstretch.passes.tokens.movement import Factor, Movement, identity, merged, split

_LAST = (0, 2, 3, 1)
"""Permutation from N,C,H,W to N,H,W,C."""
_FIRST = (0, 3, 1, 2)
"""Permutation from N,H,W,C to N,C,H,W."""


@dataclass(frozen=True)
class View:
    """A value as a movement of a tensor N,C,H,W.

    Attributes:
        base: the tensor.
        movement: from the base to the value.
        transpositions: how many of the graph's own Transpose lie between, if all between are movements of the graph; None
            if the pass made the base.
    """

    base: ir.Value
    movement: Movement
    transpositions: int | None = None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape of the base."""
        return base_shape(self.base)

    @property
    def channel(self) -> int | None:
        """The axis of the value that is the base's channels, all in their order; None if there is none."""
        _, channels, height, width = self.shape
        factors = merged((Factor(channels, height * width),))
        return self.movement.axes.index(factors) if channels > 1 and factors in self.movement.axes else None

    def pixels(self, channel: int) -> tuple[Factor, ...]:
        """Factors of all other axes than the channels', in the value's order."""
        others = (axis for index, axis in enumerate(self.movement.axes) if index != channel)
        return merged(factor for axis in others for factor in axis)


@dataclass(frozen=True)
class Tokens:
    """A value whose pixels are those of a tensor N,C,H,W in the same order.

    Attributes:
        base: the tensor.
        channel: axis of the value that is the base's channels.
    """

    base: ir.Value
    channel: int

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape of the base."""
        return base_shape(self.base)


def base_shape(value: ir.Value) -> tuple[int, int, int, int]:
    """The shape of a tensor N,C,H,W."""
    shape = float_shape(value)
    assert shape is not None
    batch, channels, height, width = shape
    return batch, channels, height, width


def sequence_axes(
    shape: tuple[int, int, int, int], steps: int, axis: int
) -> tuple[tuple[Factor, ...], tuple[Factor, ...]]:
    """Factors of the steps and of the sequences of N,C,H,W, if the steps are its axis `axis` (2 or 3), which has `steps`.

    The sequences are the images, outermost, and the pixels along the other axis.
    """
    batch, channels, height, width = shape
    other = height * width // steps
    step, sequence = (other, 1) if axis == 2 else (1, steps)
    images = Factor(batch, channels * height * width)
    return merged((Factor(steps, step),)), merged((images, Factor(other, sequence)))


def _pixel_factors(shape: tuple[int, int, int, int]) -> tuple[Factor, ...]:
    """Factors of the pixels of N,C,H,W in their order."""
    batch, channels, height, width = shape
    return merged((Factor(batch, channels * height * width), Factor(height * width, 1)))


def token_movement(shape: tuple[int, int, int, int], result: Sequence[int], channel: int) -> Movement | None:
    """The movement from N,C,H,W to `result`, which has the channels at axis `channel` and the pixels in their order."""
    pixels = split(_pixel_factors(shape), [size for axis, size in enumerate(result) if axis != channel])
    if pixels is None or result[channel] != shape[1]:
        return None
    axes = list(pixels.axes)
    axes.insert(channel, merged((Factor(shape[1], shape[2] * shape[3]),)))
    return Movement(tuple(axes))


class Rewriting:
    """A rewriting in progress. Nodes are added in front of those of the graph, which stay as they are until `commit`."""

    def __init__(self, graph: ir.Graph) -> None:
        self.graph = graph
        self._views: dict[ir.Value, View] = {}
        self._tokens: dict[tuple[ir.Value, int], Tokens | None] = {}
        self._shaped: dict[tuple[ir.Value, tuple[int, ...]], ir.Value] = {}
        self._made: list[ir.Node] = []
        self._superseded: dict[ir.Node, None] = {}

    def is_view(self, value: ir.Value | None) -> bool:
        """Whether the walk found `value` to be a view of another tensor."""
        return value in self._views

    def view(self, value: ir.Value) -> View | None:
        """The view that `value` is; a tensor of rank 4 is one of itself."""
        if value in self._views:
            return self._views[value]
        shape = float_shape(value)
        if shape is None or len(shape) != 4 or constant(value) is not None:
            return None
        return View(value, identity(shape), 0)

    def set_view(self, node: ir.Node, view: View) -> bool:
        """Says that the output of `node` is this view; True."""
        self._views[node.outputs[0]] = view
        self._superseded[node] = None
        return True

    def set_tokens(self, node: ir.Node, base: ir.Value, channel: int) -> bool:
        """Says that the output of `node` has the pixels of `base` in their order and its channels at axis `channel`."""
        shape = float_shape(node.outputs[0])
        movement = None if shape is None else token_movement(base_shape(base), shape, channel)
        return movement is not None and self.set_view(node, View(base, movement))

    def make(
        self,
        before: ir.Node,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        shape: Sequence[int],
        attributes: Mapping[str, Attribute | ir.Attr] | None = None,
        domain: str = DOMAIN,
    ) -> ir.Value:
        """A new float32 node in front of `before`; returns what it computes."""
        value = insert(before, op_type, inputs, shape, attributes, domain)
        node = value.producer()
        assert node is not None
        self._made.append(node)
        return value

    def shaped(self, base: ir.Value, height: int, width: int, before: ir.Node) -> ir.Value:
        """`base` with its pixels in rows of `width`."""
        shape = (*base_shape(base)[:2], height, width)
        if shape == base_shape(base):
            return base
        if (base, shape) not in self._shaped:
            self._shaped[base, shape] = self.make(before, "Reshape", (base,), shape)
        return self._shaped[base, shape]

    def tokens(self, value: ir.Value, before: ir.Node) -> Tokens | None:
        """`value` as pixels in order, by a Rearrange if they are in another order; None if it is no view with channels."""
        view = self.view(value)
        channel = None if view is None else view.channel
        if view is None or channel is None:
            return None
        pixels = view.pixels(channel)
        if pixels == _pixel_factors(view.shape):
            return Tokens(view.base, channel)
        if (value, channel) not in self._tokens:
            self._tokens[value, channel] = Tokens(self._rearranged(view, pixels, before), channel)
        return self._tokens[value, channel]

    def imported(self, value: ir.Value, channel: int, before: ir.Node) -> Tokens | None:
        """`value`, with channels at axis `channel`, as pixels in order: as `tokens`, or else by a Transpose."""
        found = self.tokens(value, before)
        if found is not None and found.channel == channel:
            return found
        shape = float_shape(value)
        if shape is None or constant(value) is not None or len(shape) < 2:
            return None
        if (value, channel) not in self._tokens:
            self._tokens[value, channel] = Tokens(self._transposed(value, shape, channel, before), channel)
        return self._tokens[value, channel]

    def _rearranged(self, view: View, pixels: tuple[Factor, ...], before: ir.Node) -> ir.Value:
        batch, channels, height, width = view.shape
        source = sorted(pixels, key=lambda factor: -factor.stride)
        kept = batch if batch > 1 and pixels[0] == Factor(batch, channels * height * width) else 1
        attributes: dict[str, Attribute] = {
            "sizes": tuple(factor.size for factor in source),
            "perm": tuple(source.index(factor) for factor in pixels),
        }
        shape = (kept, channels, batch * height * width // kept, 1)
        return self.make(before, "Rearrange", (view.base,), shape, attributes)

    def _transposed(self, value: ir.Value, shape: tuple[int, ...], channel: int, before: ir.Node) -> ir.Value:
        batch = shape[0] if channel > 0 and len(shape) > 2 else 1
        if self.is_view(value):
            axes = [axis for axis in range(len(shape)) if axis != channel]
            axes.insert(int(batch > 1), channel)
            result = (batch, shape[channel], math.prod(shape) // (batch * shape[channel]), 1)
            view = self._views[value]
            return self._moved(before, View(view.base, view.movement.transposed(axes)), result)
        channels, after = shape[channel], math.prod(shape[channel + 1 :])
        rows = math.prod(shape) // (batch * channels * after)
        if rows == 1:
            return self.make(before, "Reshape", (value,), (batch, channels, after, 1))
        if after == 1:
            flat = self.make(before, "Reshape", (value,), (batch, rows, 1, channels))
            return self.make(before, "Transpose", (flat,), (batch, channels, rows, 1), {"perm": _FIRST})
        flat = self.make(before, "Reshape", (value,), (batch, rows, channels, after))
        return self.make(before, "Transpose", (flat,), (batch, channels, rows, after), {"perm": (0, 2, 1, 3)})

    def moved_before(self) -> int:
        """Elements that the original graph's transpositions move."""
        made = set(self._made)
        return sum(_moved_elements(node) for node in self.graph if node not in made)

    def moved_after(self) -> int:
        """Elements that the rewritten graph's transpositions and rearrangements move."""
        kept = sum(_moved_elements(node) for node in self.graph if node not in self._superseded)
        needed = [node.outputs[0] for node in self._superseded if self._is_needed(node)]
        return kept + sum(
            math.prod(v.shape.numpy()) for v in needed if v.shape and not self._views[v].movement.keeps_order
        )

    def _is_needed(self, node: ir.Node) -> bool:
        value = node.outputs[0]
        return value.is_graph_output() or any(reader not in self._superseded for reader in value.consumers())

    def commit(self) -> bool:
        """Lets all other nodes read what was made. Returns whether there is something to do."""
        for node in reversed(tuple(self._superseded)):
            value = node.outputs[0]
            if not value.uses() and not value.is_graph_output():
                self.graph.remove(node, safe=True)
            elif not self._is_simple(node):
                self._compute_from_base(node)
        return bool(self._superseded)

    def abandon(self) -> None:
        """Removes everything that was made."""
        for node in reversed(self._made):
            self.graph.remove(node, safe=True)

    def _is_simple(self, node: ir.Node) -> bool:
        """Whether the graph's own chain up to the base is as short as it can be."""
        view = self._views[node.outputs[0]]
        return view.transpositions is not None and view.transpositions <= (0 if view.movement.keeps_order else 1)

    def _compute_from_base(self, node: ir.Node) -> None:
        """Makes `node` the last of the layers that make its output of the base."""
        value = node.outputs[0]
        view, shape = self._views[value], float_shape(value)
        assert shape is not None
        moved = self._moved(node, view, shape)
        last = moved.producer()
        assert last is not None
        if moved is view.base or last not in self._made:
            become(node, "Reshape", (moved,))
            return
        become(node, last.op_type, last.inputs, {name: integers(last, name, ()) for name in last.attributes})
        self.graph.remove(last, safe=True)

    def _moved(self, before: ir.Node, view: View, shape: tuple[int, ...]) -> ir.Value:
        """The value of `shape` that a view is, by as few layers as possible."""
        source, movement, channel = view.base, view.movement, view.channel
        if movement.keeps_order:
            return source if shape == view.shape else self.make(before, "Reshape", (source,), shape)
        if channel == 1 and len(shape) == 4 and view.pixels(1) != _pixel_factors(view.shape):
            rearranged = self._rearranged(view, view.pixels(1), before)
            if base_shape(rearranged)[0] == shape[0]:
                return self.make(before, "Reshape", (rearranged,), shape)
        target: tuple[int, ...] = tuple(view.shape[axis] for axis in _LAST)
        order: tuple[int, ...] = _LAST
        ordered = channel is not None and view.pixels(channel) == _pixel_factors(view.shape)
        after = () if channel is None else movement.axes[channel + 1 :]
        if not ordered or any(factor.size > 1 for axis in after for factor in axis):
            factors = movement.factors
            dense = sorted(factors, key=lambda factor: -factor.stride)
            order = tuple(dense.index(factor) for factor in factors)
            target, fine = tuple(factor.size for factor in factors), tuple(factor.size for factor in dense)
            source = source if fine == view.shape else self.make(before, "Reshape", (source,), fine)
        result = self.make(before, "Transpose", (source,), target, {"perm": order})
        return result if target == shape else self.make(before, "Reshape", (result,), shape)


def _moved_elements(node: ir.Node) -> int:
    """Elements that a node moves if it is a transposition or rearrangement, and is read."""
    shape = float_shape(node.outputs[0]) if node.outputs else None
    if shape is None or not (is_onnx(node, "Transpose") or is_canonical(node, "Transpose", "Rearrange")):
        return 0
    return math.prod(shape)


def compose_movement(rewriting: Rewriting, node: ir.Node) -> bool:
    """Reshape or Transpose of a view is a view."""
    source, shape = node.inputs[0], float_shape(node.outputs[0])
    view = None if source is None else rewriting.view(source)
    if view is None or shape is None:
        return False
    transposes = node.op_type == "Transpose"
    movement = view.movement.transposed(integers(node, "perm", ())) if transposes else view.movement.reshaped(shape)
    if movement is None:
        return False
    known = view.transpositions
    return rewriting.set_view(node, View(view.base, movement, None if known is None else known + transposes))
