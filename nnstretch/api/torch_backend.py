"""`torch.compile(model, backend="nnstretch")`: the graphs that dynamo finds in a program, run by sessions."""

from __future__ import annotations

import functools
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from nnstretch.api.options import CompileOptions, declared_options
from nnstretch.compiler.compile import compile_model
from nnstretch.compiler.processors import Processors, build_processors
from nnstretch.errors import ModelError, NNStretchError, UsageError
from nnstretch.frontends.onnx_file import ModelWarning
from nnstretch.frontends.torch_module import export_program
from nnstretch.scheduler.runtime.session import PlanSession
from nnstretch.support.forks import ForkLock

Compute = Callable[..., Sequence[Any]]
"""What dynamo calls with tensors and sizes, and what answers with the graph's outputs."""

_KEPT = 8
_MOST_COMPILATIONS = 32
_COMPILING = ForkLock()
"""Whoever compiles holds it: torch's exporter is kept quiet by the process's own output and filters of warnings."""


_OPTIONS = ("processors", "threads", "dtype", "tune", "tolerance")
"""Fields of `CompileOptions` that `torch.compile(…, options={…})` takes."""


def options_of(given: Mapping[str, Any]) -> CompileOptions:
    """Compile options by name.

    Raises:
        UsageError: there is no option of that name, or one has a value of another type.
    """
    if unknown := sorted(set(given) - set(_OPTIONS)):
        raise UsageError(f"option {unknown[0]!r} of backend nnstretch is not known; there are {', '.join(_OPTIONS)}")
    for name, value in given.items():
        kind = declared_options(CompileOptions)[name][1]
        if not isinstance(value, kind | int if kind is float else kind):
            wanted = getattr(kind, "__name__", str(kind))
            raise UsageError(f"option {name!r} of backend nnstretch is {value!r}; give a value of type {wanted}")
    return CompileOptions(**given)


def backend(graph: fx.GraphModule, examples: Sequence[Any], *, options: Mapping[str, Any] | None = None) -> Compute:
    """The dynamo backend: float32 inference on the CPU's tensors by nnstretch, all else by torch.

    Parameters and buffers are constants of what is compiled; once they, or their `.data`, have been exchanged, or written to in
    place, the graph is compiled again. Writes through `.data` are not counted by torch and not seen: write under
    `torch.no_grad()` instead. A graph that nnstretch cannot compute is left to torch with one `ModelWarning`.

    Args:
        graph: traced by dynamo; parameters and buffers are among its inputs.
        examples: inputs that it was traced with.
        options: `processors`, `threads`, `dtype`, `tune` and `tolerance`, as `nnstretch.compile` takes them.

    Returns:
        What computes the graph.

    Raises:
        NNStretchError: an option is wrong, or a processor is not there.
    """
    chosen = options_of(options or {})
    processors = _opened(chosen)
    try:
        _check(graph)
    except ModelError as error:
        _warn(error)
        return graph.forward
    compiled: Compute = torch.compiler.disable(CompiledGraph(graph, processors, tune=chosen.tune))  # type: ignore[no-untyped-call]
    return compiled


@functools.cache
def _opened(options: CompileOptions) -> Processors:
    """All graphs of a program run on the same processors."""
    return build_processors(options)


@dataclass(frozen=True)
class _Variant:
    """A graph compiled for shapes and constants. Without a session torch computes it.

    `held` are the constants and aliases of what they were at that time, for as long as their ids and addresses stand for them.
    """

    session: PlanSession | None
    held: tuple[torch.Tensor, ...]


class CompiledGraph:
    """A graph of dynamo's, compiled when it is called with shapes and constants that it was not called with before.

    The last few sessions are kept. Thread-safe.
    """

    def __init__(self, graph: fx.GraphModule, processors: Processors, *, tune: bool) -> None:
        """`graph` is one that `backend` has found nothing against."""
        placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
        self._graph, self._processors, self._tune = graph, processors, tune
        self._is_constant = [_is_constant(node) for node in placeholders]
        self._held = (*graph.parameters(), *graph.buffers())
        self._variants: OrderedDict[tuple[object, ...], _Variant] = OrderedDict()
        self._compilations = 0
        self._warned = False
        self._lock = ForkLock()

    def __call__(self, *arguments: Any) -> Sequence[Any]:
        """The graph's outputs for tensors, and sizes where a shape is dynamic."""
        with self._lock:
            session = self._variant(arguments).session
        if session is None:
            return self._graph.forward(*arguments)  # type: ignore[no-any-return]
        inputs = [a.numpy(force=True) for a in self._inputs(arguments)]
        feeds = dict(zip([i.name for i in session.get_inputs()], inputs, strict=True))
        return tuple(torch.from_numpy(y) for y in session.run(None, feeds))

    def _inputs(self, arguments: Sequence[Any]) -> list[torch.Tensor]:
        return [
            a
            for a, constant in zip(arguments, self._is_constant, strict=True)
            if isinstance(a, torch.Tensor) and not constant
        ]

    def _variant(self, arguments: Sequence[Any]) -> _Variant:
        constants = (*(a for a, c in zip(arguments, self._is_constant, strict=True) if c), *self._held)
        key = (*map(_identity, constants), *self._shapes(arguments))
        found = self._variants.get(key)
        if found is None:
            held = (*constants, *(tensor.detach() for tensor in constants))
            found = self._variants[key] = _Variant(self._compiled(arguments, constants), held)
            if len(self._variants) > _KEPT:
                self._variants.popitem(last=False)
        self._variants.move_to_end(key)
        return found

    def _shapes(self, arguments: Sequence[Any]) -> list[object]:
        """Shapes of inputs, and sizes."""
        return [
            a.shape if isinstance(a, torch.Tensor) else a
            for a, constant in zip(arguments, self._is_constant, strict=True)
            if not constant
        ]

    def _compiled(self, arguments: Sequence[Any], constants: Sequence[torch.Tensor]) -> PlanSession | None:
        """A session for these shapes and constants, or None, after a warning for the first, if there can be none."""
        try:
            if any(tensor.is_inference() for tensor in constants):
                raise ModelError(
                    "it has parameters made under torch.inference_mode(), where torch does not count writes; "
                    "make the module outside it"
                )
            if self._compilations == _MOST_COMPILATIONS:
                raise ModelError(f"its shapes or parameters have changed {_MOST_COMPILATIONS} times")
            self._compilations += 1
            with _COMPILING:
                program = _captured(_Bound(self._graph, arguments, self._is_constant), self._inputs(arguments))
                return compile_model(export_program(program), self._processors, tune=self._tune)
        except NNStretchError as error:
            if not self._warned:
                _warn(error)
            self._warned = True
            return None


class _Bound(nn.Module):
    """A graph with its constants and sizes filled in: what remains are its inputs, all of them tensors."""

    def __init__(self, graph: fx.GraphModule, arguments: Sequence[Any], is_constant: Sequence[bool]) -> None:
        super().__init__()
        self.graph = graph
        self._filled: list[str | int | None] = []
        for number, (argument, constant) in enumerate(zip(arguments, is_constant, strict=True)):
            if not isinstance(argument, torch.Tensor):
                self._filled.append(argument)
            elif constant:
                self.register_buffer(f"constant_{number}", argument.detach())
                self._filled.append(f"constant_{number}")
            else:
                self._filled.append(None)

    def forward(self, *inputs: torch.Tensor) -> Any:
        """What the graph computes of its inputs."""
        left = iter(inputs)
        return self.graph(
            *(next(left) if f is None else getattr(self, f) if isinstance(f, str) else f for f in self._filled)
        )


def _is_constant(placeholder: fx.Node) -> bool:
    """Whether dynamo made an input of a parameter or buffer; it leaves a mark at these."""
    return "_dynamo_static_input_type" in placeholder.meta.get("tensor_dict", {})


def _identity(tensor: torch.Tensor) -> tuple[int, int, int]:
    """Which tensor it is, where its numbers lie, and how often it was written to, which inference mode does not count."""
    return id(tensor), tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version


def _check(graph: fx.GraphModule) -> None:
    """Looks for what nnstretch cannot do, as far as dynamo knows it.

    Raises:
        ModelError: there is something.
    """
    nodes = list(graph.graph.nodes)
    inputs = [node.meta.get("example_value") for node in nodes if node.op == "placeholder"]
    results = [node.meta.get("example_value") if isinstance(node, fx.Node) else node for node in nodes[-1].args[0]]
    tensors: list[torch.Tensor] = [value for value in inputs if isinstance(value, torch.Tensor)]
    outputs: list[torch.Tensor] = [value for value in results if isinstance(value, torch.Tensor)]
    if not outputs or len(outputs) < len(results):
        raise ModelError("it has outputs that are no tensors")
    if not all(isinstance(value, torch.Tensor | int | torch.SymInt) for value in inputs):
        raise ModelError("it has inputs that are neither tensors nor sizes")
    for tensor in (*tensors, *outputs, *graph.parameters(), *graph.buffers()):
        if tensor.device.type != "cpu" or tensor.layout != torch.strided:
            raise ModelError(
                f"it has a tensor on {tensor.device} ({tensor.layout}), and only dense ones on the CPU will do"
            )
        if (tensor.is_floating_point() or tensor.is_complex()) and tensor.dtype != torch.float32:
            raise ModelError(f"it has a tensor of {tensor.dtype}, and only float32 will do")
    if any(output.requires_grad for output in outputs):
        raise ModelError("gradients may be asked for; call it under torch.no_grad() or torch.inference_mode()")
    read = {tensor.untyped_storage()._cdata for tensor in tensors}
    if len(read | {output.untyped_storage()._cdata for output in outputs}) < len(read) + len(outputs):
        raise ModelError("an output is a view of an input or of another output")


def _captured(bound: _Bound, inputs: Sequence[torch.Tensor]) -> torch.export.ExportedProgram:
    """The graph as a program that writes to nothing.

    Raises:
        ModelError: torch cannot say it so, it draws random numbers, or it writes to its inputs.
    """
    with torch.inference_mode(mode=False), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        examples = tuple(torch.zeros_like(tensor, memory_format=torch.contiguous_format) for tensor in inputs)
        try:
            program: torch.export.ExportedProgram = torch.export.export(bound, examples).run_decompositions({})
        except Exception as error:  # torch raises whatever an operator does, and eager will do the same or better
            said = str(error).strip() or type(error).__name__
            raise ModelError(f"torch.export cannot trace it: {said.splitlines()[0]}") from error
    for node in program.graph.nodes:
        if _draws_random_numbers(node):
            raise ModelError(f"{node.target} draws random numbers; call eval() of the module, if it is in training")
    signature = program.graph_signature
    if written := [*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]:
        raise ModelError(
            f"it writes to {len(written)} of its inputs or buffers; call eval() of the module, if it is in training"
        )
    return program


def _draws_random_numbers(node: torch.fx.Node) -> bool:
    """Whether an operator draws random numbers. Attention is tagged so, but draws none without dropout."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    names = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
    if "dropout_p" not in names:
        return True
    given = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
    return bool(given.get("dropout_p", 0.0))


def _warn(reason: Exception) -> None:
    warnings.warn(f"torch computes a part of the program that nnstretch cannot: {reason}", ModelWarning, stacklevel=3)
