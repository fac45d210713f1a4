"""Export of torch modules to ONNX."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import onnx_ir as ir
import torch
from onnx_ir.passes import common
from onnxscript.optimizer import fold_constants_ir
from torch import nn

from nnstretch.errors import ModelError, first_line
from nnstretch.frontends.exporter import fast_exports
from nnstretch.frontends.modes import evaluating
from nnstretch.frontends.silence import quiet
from nnstretch.graph.metadata import MODULE_PATH, module_path, unused_name

OPSET_VERSION = 20
# Prefixes of the exporter's metadata, which includes source lines and file paths of this machine. Only the module path is
# kept.
_EXPORTER_NOTES = ("pkg.", "namespace")
# Elements: constants up to this size are computed at export; larger ones would make the file larger.
_LARGEST_CONSTANT = 1024


def export(
    module: nn.Module,
    example_input: torch.Tensor | tuple[torch.Tensor, ...],
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
) -> ir.Model:
    """Exports `module` in evaluation mode to an ONNX graph without fused nodes.

    Nodes carry the path of the torch module they came from (`nnstretch.graph.metadata`). Weights are those
    of `module`: changing them in place afterwards changes the graph.

    Args:
        module: what to export; its training flags are as before afterwards.
        example_input: what it is called with. The shapes become those of the graph's inputs.
        input_names: by default the names of the arguments of `forward`.
        output_names: by default `y` for a single output, and names that the exporter makes for several.

    Raises:
        ModelError: torch cannot trace or export the module.
    """
    arguments = example_input if isinstance(example_input, tuple) else (example_input,)
    with evaluating(module):
        model = _to_onnx(module, arguments, type(module).__name__, input_names=input_names, output_names=output_names)
    if output_names is None:
        _name_single_output(model.graph)
    return model


def export_program(program: torch.export.ExportedProgram) -> ir.Model:
    """Converts a program of `torch.export` to an ONNX graph like those of `export`.

    Raises:
        ModelError: the program cannot be expressed in ONNX.
    """
    return _to_onnx(program, (), "the program")


def _to_onnx(
    subject: nn.Module | torch.export.ExportedProgram, arguments: tuple[torch.Tensor, ...], name: str, **names: Any
) -> ir.Model:
    with quiet(), _uncollected(), fast_exports():
        try:
            program = torch.onnx.export(
                subject,
                arguments,
                dynamo=True,
                opset_version=OPSET_VERSION,
                # It would fold batch normalisations too, and lose which module a convolution came from.
                optimize=False,
                verbose=False,
                **names,
            )
        except (torch.onnx.errors.OnnxExporterError, RuntimeError, TypeError, ValueError) as error:
            tried = " and ".join(map(_shape_text, arguments))
            raise ModelError(
                f"{name} cannot be exported to ONNX{tried and f' with an input of {tried}'}: {_cause(error)}; give the shape "
                "of its input if it is another one, or make its forward traceable by torch.export"
            ) from error
    assert program is not None
    model = program.model
    _name_apart(model.graph)
    fold_constants_ir(model, onnx_shape_inference=True, output_size_limit=_LARGEST_CONSTANT)
    common.RemoveUnusedNodesPass()(model)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    common.RemoveUnusedOpsetsPass()(model)
    _annotate(model)
    return model


def _name_single_output(graph: ir.Graph) -> None:
    """Calls the output of a graph with one `y`, unless it is an input or another value has the name."""
    values = ir.convenience.create_value_mapping(graph)
    if len(graph.outputs) == 1 and graph.outputs[0] not in graph.inputs and "y" not in values:
        graph.outputs[0].name = "y"


def _name_apart(graph: ir.Graph) -> None:
    """Gives computed values other names than those of weights: the exporter calls them by functions, people name weights so."""
    taken = {*graph.initializers, *(value.name for node in graph for value in node.outputs)}
    for node in graph:
        for value in node.outputs:
            if value.name in graph.initializers:
                value.name = unused_name(str(value.name), taken, "_")
                taken.add(value.name)


def _shape_text(argument: object) -> str:
    """The shape of a tensor, or the type of another argument."""
    shape = getattr(argument, "shape", None)
    return type(argument).__name__ if shape is None else "×".join(map(str, shape))


@contextmanager
def _uncollected() -> Iterator[None]:
    """Disables garbage collection: an export makes millions of objects, and a search holds a million that would be scanned."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _cause(error: BaseException) -> str:
    """First line of the innermost exception, which says what the module did."""
    while error.__cause__ is not None:
        error = error.__cause__
    return first_line(error)


def _annotate(model: ir.Model) -> None:
    """Reduces the exporter's metadata to the module path, and names nodes after it."""
    taken: set[str] = set()
    for node in model.graph:
        path = module_path(node)
        for key in [key for key in node.metadata_props if key.startswith(_EXPORTER_NOTES)]:
            del node.metadata_props[key]
        node.metadata_props[MODULE_PATH] = path
        node.name = unused_name(f"{path}/{node.op_type}" if path else node.op_type, taken, "_")
        taken.add(node.name)
    for value in ir.convenience.create_value_mapping(model.graph).values():
        for key in [key for key in value.metadata_props if key.startswith(_EXPORTER_NOTES)]:
            del value.metadata_props[key]
