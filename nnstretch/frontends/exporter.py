"""Faster exports: what torch's ONNX exporter repeats or computes needlessly for networks in evaluation mode.

The blocks replace functions of the exporter while they run, and change nothing where a version of torch lacks them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cache, partial
from importlib import import_module
from typing import Any

import torch

_BATCH_NORM = torch.ops.aten.batch_norm.default
_LOWERED_BATCH_NORM = torch.ops.aten._native_batch_norm_legit_no_training.default
_POOL = torch.ops.aten.adaptive_avg_pool2d.default
_MEAN = torch.ops.aten.mean.dim
_FLATTENED = (torch.ops.aten.flatten.using_ints, torch.ops.aten.reshape.default)
_VIEW = torch.ops.aten.view.default
_SIGNATURES: dict[tuple[str, str, int], object] = {}
"""Signatures of ONNX operators by domain, name and version."""


@contextmanager
def fast_exports() -> Iterator[None]:
    """All of the blocks below together."""
    with ExitStack() as blocks:
        for block in (
            shared_operators,
            shared_signatures,
            short_decompositions,
            listed_operators,
            present_backends,
            inferred_normalisations,
            unrecorded_stacks,
        ):
            blocks.enter_context(block())
        yield


def shared_operators() -> AbstractContextManager[None]:
    """Exports share the exporter's table of operators, which takes longer to build than a small module to export.

    The exporter builds one per call and only reads it. Other exports in this process keep their own tables.
    """

    def shared(build: Any, table: type) -> Any:
        return partial(_operators, build.__get__(None, table))

    return _replaced("torch.onnx._internal.exporter._registration", "ONNXRegistry", "from_torchlib", shared)


def shared_signatures() -> AbstractContextManager[None]:
    """Exports share the signatures of ONNX operators; the exporter makes another one for every node."""

    def shared(make: Any, holder: type) -> Any:
        def signature(schema: Any) -> object:
            key = schema.domain, schema.name, schema.since_version
            if key not in _SIGNATURES:
                _SIGNATURES[key] = make.__get__(None, holder)(schema)
            return _SIGNATURES[key]

        return staticmethod(signature)

    return _replaced("onnx_ir.schemas", "OpSignature", "from_op_schema", shared)


def short_decompositions() -> AbstractContextManager[None]:
    """Networks whose operators have ONNX forms are not traced again, which takes more than half of an export.

    The exporter traces every program again to decompose operators that ONNX lacks. In evaluation mode, a usual CNN
    has three of these, batch normalisation, global average pooling and flattening, which are replaced in place.
    """

    def short(decompose: Any, _: object) -> Any:
        implemented = import_module("torch.onnx._internal.exporter._decomp").get_onnx_implemented_overloads

        def decomposed(program: torch.export.ExportedProgram, registry: Any) -> Any:
            if not _is_decomposed_in_place(program, set(implemented(registry))):
                return decompose(program, registry)
            _replace_operators(program.graph_module.graph)
            return program

        return decomposed

    return _replaced("torch.onnx._internal.exporter._fx_passes", "", "decompose_with_registry", short)


def listed_operators() -> AbstractContextManager[None]:
    """An export lists the operators that torch composes of others once, not once for every name space of operators.

    No operator is registered while the block runs.
    """
    return _replaced("torch._export.utils", "", "_materialize_cpp_cia_ops", lambda make, _: cache(make))


@contextmanager
def present_backends() -> Iterator[None]:
    """A program that is traced again changes the operators that torch composes of others for the processors of this machine.

    torch changes them for every kind of processor that it knows, which takes a quarter of a small module's export.
    """
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    kinds = ("CPU", "META", *((accelerator.type.upper(),) if accelerator else ()))

    def present(keys: Any, _: object) -> list[Any]:
        return [key for key in keys if key.name.removeprefix("Autograd").upper() in kinds]

    module = "torch.export.exported_program"
    with (
        _replaced(module, "", "_AUTOGRAD_ALIAS_BACKEND_KEYS_TO_OVERRIDE", present),
        _replaced(module, "", "_BACKEND_KEYS_TO_OVERRIDE", present),
    ):
        yield


def inferred_normalisations() -> AbstractContextManager[None]:
    """Tracing takes the shape of a batch normalisation in evaluation mode from its input.

    torch computes it by fifteen operators on tensors without elements, which takes up to a quarter of an export.
    """

    def inferred(compute: Any, _: object) -> Any:
        is_recording = import_module("torch.fx.experimental.proxy_tensor").get_proxy_mode
        without_elements = import_module("torch._subclasses.fake_tensor").FakeTensor

        def infer(x: Any, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, *rest: Any) -> Any:
            of_channels = [one for one in (weight, bias, mean, variance) if one is not None]
            if (
                training
                or not isinstance(x, without_elements)
                or x.device.type != "cpu"  # other devices return statistics
                or is_recording()  # the operators become the program's
                or any(one.shape != x.shape[1:2] for one in of_channels)
            ):
                return compute(x, weight, bias, mean, variance, training, *rest)
            statistics = x.new_empty(0)  # of the batch: none in evaluation mode
            return torch.empty_like(x), statistics, statistics, mean, variance

        return infer

    return _replaced("torch._decomp.decompositions", "", "native_batch_norm_helper", inferred)


def unrecorded_stacks() -> AbstractContextManager[None]:
    """Traced operators do not keep the lines of Python that called them: no exported graph names them."""
    return _replaced("torch.fx.config", "", "do_not_emit_stack_traces", lambda *_: True)


@contextmanager
def _replaced(module: str, holder: str, name: str, changed: Callable[[Any, Any], Any]) -> Iterator[None]:
    """Replaces a function of torch while the block runs; another version of torch may lack it, and its exports are slower.

    Args:
        module: that has it.
        holder: the class in the module that has it; "" if it is the module's own.
        name: of the function.
        changed: makes the replacement of the function and of what has it; may raise ImportError or AttributeError where
            torch lacks more.
    """
    try:
        found = import_module(module)
        owner: Any = getattr(found, holder) if holder else found
        original = _original(owner, name)
        replacement = changed(original, owner)
    except (ImportError, AttributeError, KeyError):
        yield
        return
    setattr(owner, name, replacement)
    try:
        yield
    finally:
        setattr(owner, name, original)


@cache
def _original(owner: Any, name: str) -> Any:
    """The exporter's own function; blocks of several threads may overlap, and each restores it.

    Raises:
        KeyError: there is none of this name.
    """
    return vars(owner)[name]


@cache
def _operators(build: Callable[..., object], **options: int) -> object:
    """The table that `build` returns for these options."""
    return build(**options)


def _is_decomposed_in_place(program: torch.export.ExportedProgram, implemented: set[Any]) -> bool:
    """Whether `_replace_operators` leaves operators with ONNX forms alone, none of which writes to an input."""
    signature = program.graph_signature
    if signature.buffers_to_mutate or signature.user_inputs_to_mutate:
        return False
    calls = [node for node in program.graph.nodes if node.op not in ("placeholder", "output")]
    return all(
        node.op == "call_function"
        and (
            _is_batch_norm(node)
            or _is_global_pool(node)
            or _is_flattened(node)
            or (node.target in implemented and _is_kept(node.target))
        )
        for node in calls
    )


def _is_kept(target: Any) -> bool:
    """Whether tracing again leaves an operator as it is: it neither overwrites an input nor stands for a view."""
    if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable:
        return False
    return not (target._can_decompose() and any(returned.alias_info for returned in target._schema.returns))


def _is_batch_norm(node: torch.fx.Node) -> bool:
    """Whether the node normalises by running statistics."""
    if node.target is not _BATCH_NORM or node.kwargs or len(node.args) != len(_BATCH_NORM._schema.arguments):
        return False
    _x, _weight, _bias, mean, variance, training, *_ = node.args
    return training is False and mean is not None and variance is not None


def _is_global_pool(node: torch.fx.Node) -> bool:
    return node.target is _POOL and not node.kwargs and node.args[1] in ([1, 1], (1, 1))


def _is_flattened(node: torch.fx.Node) -> bool:
    """Whether the node reshapes a tensor to a constant shape in which there is a view of it."""
    if node.target not in _FLATTENED or not all(isinstance(size, int) for size in node.meta["val"].shape):
        return False
    read = node.args[0]
    try:
        assert isinstance(read, torch.fx.Node)
        read.meta["val"].view(node.meta["val"].shape)
    except (RuntimeError, ValueError):  # the elements of a permuted tensor are not in that order
        return False
    return True


def _replace_operators(graph: torch.fx.Graph) -> None:
    """Replaces operators by what torch decomposes them to. Nodes keep their names, by which the program knows its outputs."""
    for node in list(graph.nodes):
        if _is_batch_norm(node):
            x, weight, bias, mean, variance, _training, momentum, epsilon, _cudnn = node.args
            arguments = (x, weight, bias, mean, variance, momentum, epsilon)
            with graph.inserting_before(node):
                normalised = graph.call_function(_LOWERED_BATCH_NORM, arguments)
            tensor = node.meta["val"]
            statistics = tensor.new_empty(0)  # of the batch: none in evaluation mode
            normalised.meta = {**node.meta, "val": (tensor, statistics, statistics)}
            node.target, node.args = operator.getitem, (normalised, 0)
        elif _is_global_pool(node):
            node.target, node.args = _MEAN, (node.args[0], [-1, -2], True)
        elif _is_flattened(node):
            node.target, node.args, node.kwargs = _VIEW, (node.args[0], list(node.meta["val"].shape)), {}
