"""Recognises attention in a traced graph: one call, or products of matrices around a softmax."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx, nn

from nnstretch.branching.tracing.operators import argument, is_elementwise, nodes_behind, title_of
from nnstretch.branching.tracing.tokens import Rearranged

_PRODUCTS = frozenset({"matmul", "bmm"})
TRANSPOSITIONS = frozenset({"permute", "transpose", "swapaxes"})
"""Operations that put axes into another order."""
_COPIES = frozenset({"contiguous", "clone", "Dropout", "Identity", "dropout"})


@dataclass(frozen=True)
class AttentionCall:
    """The operands of attention, `…,heads,L,C` each.

    Attributes:
        query, key, value: nodes that compute them.
        transposed_key: `key` is `…,heads,C,L`.
        transposed: `value` and the result are `…,heads,C,L`.
        bias: constant that is added to the scores; None if there is none.
        scale: factor of the scores; None for the reciprocal root of a head's channels.
    """

    query: fx.Node
    key: fx.Node
    value: fx.Node
    transposed_key: bool
    transposed: bool
    bias: fx.Node | None
    scale: float | None


def axis_order(node: fx.Node, rank: int) -> list[int]:
    """The order of axes that a node of `TRANSPOSITIONS` makes of a tensor of some rank."""
    if title_of(node) == "permute":
        return [int(axis) % rank for axis in argument(node, "dims")]
    given: list[Any] = [*node.args[1:], *node.kwargs.values()]
    first, second = (int(axis) % rank for axis in given)
    order = list(range(rank))
    order[first], order[second] = second, first
    return order


def is_constant(node: fx.Node) -> bool:
    """Whether a tensor depends on the input by its batch size at most."""
    known = node.meta.get("constant")
    if known is None:
        tensors = (read for read in nodes_behind(node) if read.op == "placeholder")
        known = node.meta["constant"] = not any(_reads_values(node, source) for source in tensors)
    return bool(known)


def _reads_values(node: fx.Node, source: fx.Node) -> bool:
    """Whether `node` depends on `source` by more than its sizes."""
    seen, waiting = {node}, [node]
    while waiting:
        current = waiting.pop()
        if current is source:
            return True
        if not _holds_tensors(current.meta["value"]):
            continue
        new = set(current.all_input_nodes) - seen
        seen |= new
        waiting += new
    return False


def _holds_tensors(value: Any) -> bool:
    return isinstance(value, Tensor) or (isinstance(value, (tuple, list)) and any(map(_holds_tensors, value)))


def attention_call(node: fx.Node) -> AttentionCall | None:
    """The attention whose result `node` computes; None if it computes something else."""
    title = title_of(node)
    if title == "scaled_dot_product_attention":
        return _fused(node)
    return _around_softmax(node) if title in _PRODUCTS and len(node.args) == 2 else None


def _fused(node: fx.Node) -> AttentionCall | None:
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given: dict[str, Any] = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
    bias, tensors = given.get("attn_mask"), [given.get(name) for name in names[:3]]
    constant = bias is None or (isinstance(bias, fx.Node) and is_constant(bias))
    if given.get("is_causal") or not constant or not all(isinstance(tensor, fx.Node) for tensor in tensors):
        return None
    query, key, value = tensors
    return AttentionCall(query, key, value, False, False, bias, given.get("scale"))  # type: ignore[arg-type]


def _around_softmax(node: fx.Node) -> AttentionCall | None:
    weights, value = node.args
    softmax, transposed = _without_copies(weights), False
    if softmax is None or not _is_softmax(softmax):
        weights, value = value, weights
        softmax, transposed = _without_transposition(_without_copies(weights)), True
    if softmax is None or not isinstance(value, fx.Node) or not _is_softmax(softmax):
        return None
    bias, scale = None, 1.0
    scores = _without_copies(softmax.all_input_nodes[0])
    while scores is not None and title_of(scores) not in _PRODUCTS:
        if scores.op == "call_module" or len(scores.args) != 2:
            return None
        operands: tuple[Any, ...] = scores.args
        left, right = operands
        title = title_of(scores)
        if (
            title == "add"
            and isinstance(left, fx.Node)
            and isinstance(right, fx.Node)
            and bias is None
            and scale == 1.0
        ):
            left, bias = (right, left) if is_constant(left) else (left, right)
            if not is_constant(bias):
                return None
        elif title in ("mul", "div", "truediv") and isinstance(right, (int, float)):
            scale *= right if title == "mul" else 1 / right
        elif title == "mul" and isinstance(left, (int, float)):
            left, scale = right, scale * left
        else:
            return None
        scores = _without_copies(left)
    if scores is None or len(scores.args) != 2 or not all(isinstance(operand, fx.Node) for operand in scores.args):
        return None
    query, key = scores.args
    return AttentionCall(query, key, value, True, transposed, bias, scale)  # type: ignore[arg-type]


def _without_copies(node: Any) -> fx.Node | None:
    """What a node copies."""
    while isinstance(node, fx.Node) and title_of(node) in _COPIES and is_elementwise(node):
        node = node.all_input_nodes[0]
    return node if isinstance(node, fx.Node) else None


def _without_transposition(node: fx.Node | None) -> fx.Node | None:
    """What a node transposes in its last two axes; None if it does something else."""
    if node is None or len(node.all_input_nodes) != 1 or not isinstance(node.meta["value"], Tensor):
        return None
    rank = node.meta["value"].dim()
    if node.op == "call_module":
        module = node.meta["module"]
        swaps = isinstance(module, Rearranged) and module.transposes
    else:
        swaps = title_of(node) in TRANSPOSITIONS and axis_order(node, rank) == [*range(rank - 2), rank - 1, rank - 2]
    return _without_copies(node.all_input_nodes[0]) if swaps else None


def _is_softmax(node: fx.Node) -> bool:
    """Whether a node is a softmax over the last axis."""
    value = node.meta["value"]
    if not isinstance(value, Tensor):
        return False
    if node.op == "call_module":
        module = node.meta["module"]
        return isinstance(module, nn.Softmax) and module.dim in (-1, value.dim() - 1)
    axis = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else None)
    return title_of(node) in ("softmax", "_softmax") and axis in (-1, value.dim() - 1)
