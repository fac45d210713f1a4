"""Turns function calls into modules: layers called with their parameters, channel slices and channel shuffles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn

from nnstretch.branching.tracing.modules import PER_CHANNEL, ChannelNorm, ChannelShuffle, ChannelSlice, PerChannel
from nnstretch.branching.tracing.operators import argument, title_of

_ARGUMENTS = {
    "conv2d": ("input", "weight", "bias", "stride", "padding", "dilation", "groups"),
    "conv_transpose2d": ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation"),
    "linear": ("input", "weight", "bias"),
    "batch_norm": ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps"),
    "layer_norm": ("input", "normalized_shape", "weight", "bias", "eps"),
    "group_norm": ("input", "num_groups", "weight", "bias", "eps"),
    "prelu": ("input", "weight"),
}
_ATEN_BATCH_NORM = ("input", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps")
_DROPOUTS: dict[str, type[nn.Dropout | nn.Dropout2d]] = {
    "dropout": nn.Dropout,
    "dropout2d": nn.Dropout2d,
    "feature_dropout": nn.Dropout2d,
}
_PARTING = frozenset({"chunk", "split", "split_with_sizes", "tensor_split", "unsafe_chunk", "unsafe_split"})


def functional_to_module(graph: fx.Graph) -> None:
    """Replaces such calls by modules, in place."""
    _ModuleMaker(graph).run()


class _ModuleMaker:
    def __init__(self, graph: fx.Graph) -> None:
        self._graph = graph
        self._taken = {str(node.target) for node in graph.nodes if node.op in ("call_module", "get_attr")}
        self._made: dict[tuple[Any, ...], tuple[str, nn.Module]] = {}

    def run(self) -> None:
        for node in list(self._graph.nodes):
            if node.op == "call_module":
                self._module(node)
            elif node.op in ("call_function", "call_method"):
                self._call(node)

    def _module(self, node: fx.Node) -> None:
        """Replaces torch modules that have a width-agnostic equivalent."""
        module = node.meta["module"]
        if isinstance(module, nn.ChannelShuffle):
            node.meta["module"] = ChannelShuffle(module.groups)
        elif (
            isinstance(module, nn.LayerNorm)
            and len(module.normalized_shape) == 1
            and node.all_input_nodes[0].meta["value"].dim() == 2
        ):
            node.meta["module"] = ChannelNorm(module.weight, module.bias, module.eps)

    def _call(self, node: fx.Node) -> None:
        title = title_of(node)
        if title in _ARGUMENTS:
            self._layer(node, title)
        elif title in PER_CHANNEL:
            self._per_channel(node, PER_CHANNEL[title])
        elif title == "addcmul":
            self._shifted_product(node)
        elif title in ("getitem", "slice", "narrow"):
            self._slice(node, title)
        elif title in ("channel_shuffle", "native_channel_shuffle"):
            source, groups = node.args
            self._replace(node, source, ChannelShuffle(int(groups)))  # type: ignore[arg-type]
        elif title == "pixel_shuffle":
            source, factor = node.args
            self._replace(node, source, nn.PixelShuffle(int(factor)))  # type: ignore[arg-type]
        elif title in ("view", "reshape"):
            self._view(node)
        elif title == "flatten" and argument(node, "start_dim", 0) == 1 and node.meta["value"].dim() == 2:
            self._flatten(node)
        elif title in _DROPOUTS:
            self._dropout(node, _DROPOUTS[title])

    # -- layers with parameters -----------------------------------------------------------------------------------

    def _layer(self, node: fx.Node, title: str) -> None:
        given = _given(node, title)
        tensors = {name: value for name, value in given.items() if isinstance(value, fx.Node) and name != "input"}
        source = given["input"]
        if not isinstance(source, fx.Node) or any(t.op != "get_attr" for t in tensors.values()):
            return
        owner = str(tensors["weight"].target).rpartition(".")[0] if "weight" in tensors else ""
        settings = {name: value for name, value in given.items() if name not in tensors and name != "input"}
        shared = tuple((name, str(t.target)) for name, t in tensors.items())
        key = (title, shared, repr(settings))
        if key not in self._made:
            module = _module_of_call(node, title, settings, {name: t.meta["tensor"] for name, t in tensors.items()})
            if module is None:
                return
            self._made[key] = self._path(owner, node.name, {target for _, target in shared}), module.eval()
        path, module = self._made[key]
        self._call_module(node, source, module, path)

    def _path(self, owner: str, name: str, own: set[str]) -> str:
        """The owner's path if it holds the layer's parameters alone, as in torch's layers; else a free path."""
        others = {path for path in self._taken if path.startswith(f"{owner}.")} - own
        if owner and not others and owner not in self._taken:
            self._taken.add(owner)
            return owner
        return unused_name(self._taken, owner, name)

    def _replace(self, node: fx.Node, source: Any, module: nn.Module) -> None:
        self._call_module(node, source, module, unused_name(self._taken, node.meta["owner"], node.name))

    def _call_module(self, node: fx.Node, source: fx.Node, module: nn.Module, path: str) -> None:
        with self._graph.inserting_before(node):
            new = self._graph.create_node("call_module", path, (source,))
        new.meta = {"value": node.meta["value"], "module": module}
        node.replace_all_uses_with(new)

    def _per_channel(self, node: fx.Node, operation: Callable[[Tensor, Tensor], Tensor]) -> None:
        nodes = [value for value in node.args if isinstance(value, fx.Node)]
        # Keyword arguments change the operation: `alpha` of a sum, `rounding_mode` of a quotient.
        if len(node.args) != 2 or len(nodes) != 2 or node.kwargs:
            return
        tensor, constant = nodes
        if operation in (torch.add, torch.mul) and tensor.op == "get_attr":
            tensor, constant = constant, tensor
        if constant.op != "get_attr" or tensor.op == "get_attr":
            return
        read, value = tensor.meta["value"], constant.meta["tensor"]
        if not isinstance(read, Tensor) or read.shape != node.meta["value"].shape or not _is_per_channel(read, value):
            return
        self._replace(node, tensor, PerChannel(operation, value))

    def _shifted_product(self, node: fx.Node) -> None:
        """Divides `addcmul` of two constants per channel and a map."""
        shift, *factors = node.args
        tensors = [one for one in factors if isinstance(one, fx.Node) and one.op != "get_attr"]
        constants = [one for one in (shift, *factors) if isinstance(one, fx.Node) and one.op == "get_attr"]
        if len(tensors) != 1 or len(constants) != 2 or constants[0] is not shift or node.kwargs:
            return
        read = tensors[0].meta["value"]
        values = [one.meta["tensor"] for one in constants]
        if read.shape != node.meta["value"].shape or not all(_is_per_channel(read, value) for value in values):
            return
        path = unused_name(self._taken, node.meta["owner"], f"{node.name}_product")
        with self._graph.inserting_before(node):
            product = self._graph.create_node("call_module", path, (tensors[0],))
        product.meta = {"value": node.meta["value"], "module": PerChannel(torch.mul, values[1])}
        self._replace(node, product, PerChannel(torch.add, values[0]))

    def _dropout(self, node: fx.Node, kind: type[nn.Dropout | nn.Dropout2d]) -> None:
        """Dropout modules follow the training flag; a traced call would stay disabled in training."""
        given: dict[str, Any] = dict(zip(("input", "p", "training"), node.args, strict=False)) | dict(node.kwargs)
        if not given.get("training", True):
            self._replace(node, given["input"], kind(given.get("p", 0.5)).eval())

    # -- shapes ---------------------------------------------------------------------------------------------------

    def _slice(self, node: fx.Node, title: str) -> None:
        found = _parted(node) if title == "getitem" else None
        found = found or _bounds(node, title)
        if found is None:
            return
        source, first, stop = found
        total = source.meta["value"].shape[1]
        if (first, stop) == (0, total):
            node.replace_all_uses_with(source)
        elif first < stop:
            self._replace(node, source, ChannelSlice(first, stop, total))

    def _view(self, node: fx.Node) -> None:
        read, written = node.all_input_nodes[0].meta["value"], node.meta["value"]
        if read.dim() == 4 and tuple(written.shape) == (read.shape[0], read[0].numel()):
            self._flatten(node)
        elif written.dim() == 4:
            self._shuffled(node)

    def _flatten(self, node: fx.Node) -> None:
        with self._graph.inserting_before(node):
            new = self._graph.call_function(torch.flatten, (node.all_input_nodes[0], 1))
        new.meta = {"value": node.meta["value"]}
        node.replace_all_uses_with(new)

    def _shuffled(self, node: fx.Node) -> None:
        """Recognises a channel shuffle: a view as groups, a transpose of the two channel axes, and the view back."""
        exchanged = node.all_input_nodes[0]
        while title_of(exchanged) in ("contiguous", "clone"):
            exchanged = exchanged.all_input_nodes[0]
        if not _exchanges_groups(exchanged):
            return
        grouped = exchanged.all_input_nodes[0]
        if title_of(grouped) not in ("view", "reshape", "unflatten"):
            return
        source, parts = grouped.all_input_nodes[0], grouped.meta["value"].shape
        if source.meta["value"].shape == node.meta["value"].shape:
            n, c, h, w = source.meta["value"].shape
            if tuple(parts) == (n, parts[1], c // parts[1], h, w):
                self._replace(node, source, ChannelShuffle(parts[1]))


def _given(node: fx.Node, title: str) -> dict[str, Any]:
    """Arguments of a layer function by name."""
    aten = title == "batch_norm" and isinstance(node.target, torch._ops.OpOverload)
    names = _ATEN_BATCH_NORM if aten else _ARGUMENTS[title]
    return dict(zip(names, node.args, strict=False)) | dict(node.kwargs)


def _module_of_call(
    node: fx.Node, title: str, settings: dict[str, Any], tensors: dict[str, Tensor]
) -> nn.Module | None:
    """The module equivalent to a function call with these tensors; None if none is known."""
    weight, bias = tensors.get("weight"), tensors.get("bias")
    read = node.all_input_nodes[0].meta["value"]
    module: nn.Module
    if title == "conv2d" and weight is not None and read.dim() == 4:
        out, per_group, height, width = weight.shape
        groups = settings.get("groups", 1)
        module = nn.Conv2d(
            per_group * groups,
            out,
            (height, width),
            _pair(settings.get("stride", 1)),
            settings["padding"] if isinstance(settings.get("padding"), str) else _pair(settings.get("padding", 0)),
            _pair(settings.get("dilation", 1)),
            groups,
            bias is not None,
            device="meta",
        )
    elif title == "conv_transpose2d" and weight is not None and read.dim() == 4:
        groups = settings.get("groups", 1)
        module = nn.ConvTranspose2d(
            weight.shape[0],
            weight.shape[1] * groups,
            (weight.shape[2], weight.shape[3]),
            _pair(settings.get("stride", 1)),
            _pair(settings.get("padding", 0)),
            _pair(settings.get("output_padding", 0)),
            groups,
            bias is not None,
            _pair(settings.get("dilation", 1)),
            device="meta",
        )
    elif title == "linear" and weight is not None:
        module = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    elif title == "batch_norm" and "running_mean" in tensors and not settings.get("training"):
        kind = nn.BatchNorm2d if read.dim() == 4 else nn.BatchNorm1d
        momentum, eps = settings.get("momentum", 0.1), settings.get("eps", 1e-5)
        module = kind(read.shape[1], eps, momentum, affine=weight is not None, device="meta")
        module.running_mean, module.running_var = tensors["running_mean"], tensors["running_var"]
        module.num_batches_tracked = torch.tensor(0)
    elif title == "layer_norm" and len(tuple(settings["normalized_shape"])) == 1 and read.dim() >= 2:
        module = nn.LayerNorm(
            tuple(settings["normalized_shape"]), settings.get("eps", 1e-5), weight is not None, bias is not None, "meta"
        )
    elif title == "group_norm":
        module = nn.GroupNorm(
            settings["num_groups"], read.shape[1], settings.get("eps", 1e-5), weight is not None, "meta"
        )
    elif title == "prelu" and weight is not None:
        module = nn.PReLU(weight.numel(), device="meta")
    else:
        return None
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor is not None and not isinstance(tensor, nn.Parameter):
            tensor = nn.Parameter(tensor, requires_grad=False)
        module.register_parameter(name, tensor)
    over_channels = isinstance(module, nn.LayerNorm) and read.dim() == 2
    return ChannelNorm(module.weight, module.bias, module.eps) if over_channels else module  # type: ignore[arg-type]


def _pair(value: Any) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    values = [int(v) for v in value]
    return values[0], values[-1]


def _is_per_channel(read: Tensor, value: Tensor) -> bool:
    """Whether the constant has one number per channel of a map or vector."""
    if read.dim() not in (2, 4) or value.numel() != read.shape[1] or value.numel() == 1:
        return False
    shape = (1,) * (read.dim() - value.dim()) + tuple(value.shape)
    return shape == (1, read.shape[1], *[1] * (read.dim() - 2))


def _parted(node: fx.Node) -> tuple[fx.Node, int, int] | None:
    """One part of a tensor that was split along the channels: the tensor, first channel and end of the part."""
    divided, number = node.args
    if not isinstance(divided, fx.Node) or not isinstance(number, int) or title_of(divided) not in _PARTING:
        return None
    source, parts = divided.all_input_nodes[0], divided.meta["value"]
    number %= len(parts)
    read = source.meta["value"]
    rest = [(*p.shape[:1], *p.shape[2:]) for p in parts]
    if read.dim() not in (2, 4) or any(shape != (*read.shape[:1], *read.shape[2:]) for shape in rest):
        return None
    first = sum(part.shape[1] for part in parts[:number])
    return source, first, first + parts[number].shape[1]


def _bounds(node: fx.Node, title: str) -> tuple[fx.Node, int, int] | None:
    """A slice along the channels: the tensor, first channel and end."""
    source = node.args[0]
    read = source.meta["value"] if isinstance(source, fx.Node) else None
    if not isinstance(source, fx.Node) or not isinstance(read, Tensor) or read.dim() not in (2, 4):
        return None
    if title == "getitem":
        index: Any = node.args[1]
        wanted = index if isinstance(index, tuple) else (index,)
    else:
        wanted = _axis_slice(node, title, read.dim())
    slices = [slice(None)] * read.dim()
    if not all(map(_is_constant_slice, wanted)) or len(wanted) > len(slices):
        return None
    slices[: len(wanted)] = wanted
    ranges = [one.indices(size) for one, size in zip(slices, read.shape, strict=True)]
    if any(found != (0, size, 1) for i, (found, size) in enumerate(zip(ranges, read.shape, strict=True)) if i != 1):
        return None
    first, stop, step = ranges[1]
    return (source, first, stop) if step == 1 else None


def _is_constant_slice(wanted: Any) -> bool:
    return isinstance(wanted, slice) and not any(
        isinstance(bound, fx.Node) for bound in (wanted.start, wanted.stop, wanted.step)
    )


def _axis_slice(node: fx.Node, title: str, axes: int) -> tuple[Any, ...]:
    """Slices along every axis that a `slice` or `narrow` along one axis takes."""
    given: list[Any] = [*node.args[1:], *[None] * 4][:4]
    axis, first, stop, step = given
    if not isinstance(axis, int) or node.kwargs:
        return (None,)
    if title == "narrow":
        stop = first + stop
    taken = [slice(None)] * axes
    taken[axis] = slice(first, stop, step)
    return tuple(taken)


def _exchanges_groups(node: fx.Node) -> bool:
    """Whether a node exchanges axes 1 and 2 of five."""
    value = node.meta["value"]
    if not isinstance(value, Tensor) or value.dim() != 5:
        return False
    if title_of(node) in ("transpose", "swapaxes"):
        axes: Any = node.args[1:3]
        return sorted(int(axis) % 5 for axis in axes) == [1, 2]
    return title_of(node) == "permute" and [int(a) % 5 for a in argument(node, "dims")] == [0, 2, 1, 3, 4]


def unused_name(taken: set[str], owner: str, name: str) -> str:
    """Reserves and returns a free path below `owner`: `owner.name`, or the same with a number appended."""
    path = base = f"{owner}.{name}" if owner else name
    count = 1
    while path in taken or any(other.startswith(f"{path}.") for other in taken):
        count += 1
        path = f"{base}_{count}"
    taken.add(path)
    return path
