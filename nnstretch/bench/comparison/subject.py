"""Benchmark subjects: a model in the forms that engines read, its inputs, and ONNX Runtime's outputs as the reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from nnstretch.errors import FileError, ModelError, UsageError, first_line
from nnstretch.package import read_package
from nnstretch.package.format import is_package
from nnstretch.scheduler.plan.schema import Plan, PlanStep
from nnstretch.support.foreign_files import in_place_of_folder
from nnstretch.support.near_files import advice_for_missing
from nnstretch.support.onnxruntime_errors import refusals
from nnstretch.support.onnxruntime_levels import limit_optimisations

Shapes = Mapping[str, tuple[int, ...]]

_STATISTICS = (3, 4)  # inputs of BatchNormalization that are measured, not learnt
_WIDEST = 4  # bytes of integers that are drawn from all their values: floats that are computed from them stay finite


@dataclass(frozen=True)
class Subject:
    """A model to benchmark.

    Attributes:
        model: as the user wrote it.
        onnx: an ONNX file of it, or "" for a package.
        feeds: an array for each input, in the model's order.
    """

    model: str
    onnx: str
    feeds: Mapping[str, np.ndarray]


def check_exists(model: str) -> None:
    """Checks that a model exists, without reading it.

    Raises:
        ModelError, FileError: there is no such file or zoo network; near names are listed.
    """
    path = Path(model.rpartition(":")[0] if ".py:" in model else model)
    if path.is_file():
        return
    if path.is_dir():
        raise FileError(in_place_of_folder(path))
    if path.suffix or len(path.parts) > 1:
        advice = advice_for_missing(path, "give an ONNX file, a package, a zoo name or FILE.py:FACTORY")
        raise FileError(f"cannot read {path}: No such file; {advice}")
    from nnstretch.zoo import entry

    entry(model)


@contextmanager
def subject(
    model: str, shapes: Shapes, seed: int, batch: int | None = None, load: Callable[[], ir.Model] | None = None
) -> Iterator[Subject]:
    """A model with random feeds, `batch` images if given. Exported files exist until the block ends.

    Args:
        model: as users write it.
        shapes: of inputs with dynamic dimensions, by name.
        seed: of the inputs.
        batch: images per run; None for the batch of the model.
        load: makes the graph, with this batch; None: it is read as `model` says.

    Raises:
        UsageError: a batch is given for a package.
        NNStretchError: the model cannot be found, read or exported, or has dynamic shapes that `shapes` does not fix.
    """
    path = Path(model)
    if load is None and (path.suffix == ".nns" or (path.is_file() and is_package(path))):
        if batch is not None:
            raise UsageError(f"{model} is a package, whose batch was fixed when it was made; compile the model again")
        found = read_package(path).first
        yield Subject(model, "", plan_feeds(Plan.from_json(found.plan), seed, found.models))
        return
    from nnstretch.frontends.onnx_file import save
    from nnstretch.frontends.resolve import load_model

    graph = load_model(model, dict(shapes), batch=batch) if load is None else load()
    feeds = random_feeds(graph, seed)
    if load is None and path.is_file() and path.suffix.lower() != ".tflite" and not shapes and batch is None:
        yield Subject(model, str(path.resolve()), feeds)
        return
    with TemporaryDirectory(prefix="nnstretch-bench-") as folder:
        file = Path(folder) / "model.onnx"
        save(graph, file)
        yield Subject(model, str(file), feeds)


_Use = tuple[str, Sequence[str | None], Sequence[str | None]]
"""An operator, "" if its operands are no indices, with the names of what it reads and makes."""

_ELEMENTWISE = frozenset(
    (
        *("Abs", "Add", "And", "Cast", "Concat", "Equal", "Flatten", "Greater", "Identity", "Less", "Max", "Mean"),
        *("Min", "Mul", "Neg", "Not", "Or", "Sign", "Sub", "Sum", "Transpose", "Where", "Xor"),
    )
)
"""Operators of ONNX that read no indices, shapes, counts or divisors."""


def random_feeds(graph: ir.Model, seed: int) -> dict[str, np.ndarray]:
    """Reproducible inputs for a graph with static shapes, as `random_array` draws them."""
    rng = np.random.default_rng(seed)
    feeds: dict[str, np.ndarray] = {}
    uses = [_use_of_node(node, graph) for node in graph.graph]
    for value in graph.graph.inputs:
        shape = value.shape
        if shape is None or value.dtype is None or not shape.is_static():
            raise ModelError(f"input {value.name!r} has the shape {shape}; fix it with --shape {value.name}=…")
        name = str(value.name)
        feeds[name] = random_array(rng, shape.numpy(), value.dtype.numpy(), indices=_may_be_indices(name, uses))
    return feeds


def plan_feeds(plan: Plan, seed: int, models: Mapping[str, bytes] | None = None) -> dict[str, np.ndarray]:
    """Reproducible inputs for a plan.

    Args:
        plan: the plan.
        seed: of the random numbers.
        models: ONNX models of its fallback steps, by name (`Compiled.models`), which say what is an index. An input of a
            fallback step without a model counts as one if any operator of the step reads indices.
    """
    rng = np.random.default_rng(seed)
    asked = any(_is_wide_integer(t.type.element.storage) for t in plan.inputs)
    uses = [use for step in plan.steps for use in _uses_of_step(step, plan, models or {})] if asked else []
    return {
        t.name: random_array(rng, t.type.shape, t.type.element.storage, indices=_may_be_indices(t.name, uses))
        for t in plan.inputs
    }


def _uses_of_step(step: PlanStep, plan: Plan, models: Mapping[str, bytes]) -> list[_Use]:
    """The uses in a step of a plan: of its operators for a fallback, none for other steps."""
    names = [buffer.value.rpartition("#")[0] for buffer in plan.buffers]  # NAME#NUMBER
    reads = [None if r is None else names[r] for r in step.reads]
    writes = [names[w] for w in step.writes]
    if not step.is_fallback:
        return [("", reads, writes)]
    if step.kernel not in models:
        return [(operator, reads, writes) for operator in step.op.split("+")]
    graph = onnx.load_model_from_string(models[step.kernel]).graph
    ends = {value.name: name for value, name in zip((*graph.input, *graph.output), (*reads, *writes), strict=True)}

    def called(name: str) -> str | None:
        return ends.get(name, f"{step.kernel}/{name}") if name else None

    uses: list[_Use] = []
    for node in graph.node:
        has_body = any(a.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for a in node.attribute)
        read = [called(name) for name in node.input]
        uses.append((node.op_type, [*read, *(reads if has_body else ())], [called(name) for name in node.output]))
    return uses


def _use_of_node(node: ir.Node, graph: ir.Model) -> _Use:
    """A node's use; bodies of control flow may read any input."""
    has_body = any(a.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS) for a in node.attributes.values())
    reads = (*node.inputs, *(graph.graph.inputs if has_body else ()))
    return node.op_type, [None if value is None else value.name for value in reads], [v.name for v in node.outputs]


def _may_be_indices(name: str, uses: Sequence[_Use]) -> bool:
    """Whether an input, or what is computed from it element by element, may be an index; `uses` in topological order."""
    reached = {name}
    for operator, reads, writes in uses:
        if reached.intersection(filter(None, reads)):
            if operator and operator not in _ELEMENTWISE:
                return True
            reached.update(filter(None, writes))
    return False


def _is_wide_integer(dtype: np.dtype[Any]) -> bool:
    """Whether integers of a type are drawn differently if they may be indices."""
    return bool(np.issubdtype(dtype, np.integer)) and dtype.itemsize > 1


def random_array(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any], *, indices: bool = False
) -> np.ndarray:
    """Normal noise for floating types, all values of integers of up to 32 bits.

    Wider integers stay in that range. Those of more than 8 bits that may be indices are 0 or 1.
    """
    if np.issubdtype(dtype, np.floating):
        return np.asarray(rng.standard_normal(shape)).astype(dtype)
    if np.issubdtype(dtype, np.integer) and not (indices and _is_wide_integer(dtype)):
        limits = np.iinfo(dtype if dtype.itemsize <= _WIDEST else f"{dtype.kind}{_WIDEST}")
        return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    if np.issubdtype(dtype, np.integer) or dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(dtype)
    return np.zeros(shape, dtype)


def open_reference(model: ir.Model | Path, threads: int = 1, *, optimised: bool = True) -> Any:
    """A session of ONNX Runtime; with 0 threads it chooses their number.

    Its optimisations move the rounding of quantised layers that lie beside float32 ones. Without them, every node is computed
    as the graph says; it does without those that the model cannot have (`limit_optimisations`).

    Raises:
        ModelError: it cannot run the model.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    # Without it, sums of int8 products saturate on CPUs without VNNI.
    options.add_session_config_entry("session.x64quantprecision", "1")
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    source = str(model) if isinstance(model, Path) else ir.to_proto(model).SerializeToString()
    if optimised:
        limit_optimisations(options, source)
    try:
        return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    except refusals() as error:
        raise ModelError(f"ONNX Runtime cannot run the model: {first_line(error)}") from error


def reference_outputs(
    model: ir.Model | Path, feeds: Mapping[str, np.ndarray], *, optimised: bool = True
) -> dict[str, np.ndarray]:
    """Outputs of ONNX Runtime on one thread, by name. Feeds are taken in the model's order.

    Raises:
        ModelError: it cannot run the model.
    """
    session = open_reference(model, optimised=optimised)
    names = [i.name for i in session.get_inputs()]
    try:
        found = session.run(None, dict(zip(names, feeds.values(), strict=True)))
    except refusals() as error:
        raise ModelError(f"ONNX Runtime cannot run the model: {first_line(error)}") from error
    return {o.name: np.asarray(y) for o, y in zip(session.get_outputs(), found, strict=True)}


def count_parameters(model: ir.Model) -> int:
    """Learnable scalars of an unfused graph: floating-point initializers without batch-norm statistics.

    Zeros that torch's exporter writes for the bias of a convolution without one do not count either.
    """
    from nnstretch.frontends.torch_from_onnx.names import is_named

    others = {
        node.inputs[i]
        for node in model.graph
        if node.op_type == "BatchNormalization"
        for i in _STATISTICS
        if i < len(node.inputs)
    }
    biases = [node.inputs[2] for node in model.graph if node.op_type == "Conv" and len(node.inputs) > 2]
    others |= {
        bias
        for bias in biases
        if bias is not None and bias.const_value is not None and not (is_named(bias) or bias.const_value.numpy().any())
    }
    learnt = [v for v in model.graph.initializers.values() if v not in others and v.const_value is not None]
    return sum(
        v.const_value.size for v in learnt if v.const_value is not None and v.const_value.dtype.is_floating_point()
    )
