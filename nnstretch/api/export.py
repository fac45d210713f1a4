"""`nnstretch.export`: a model in any form as an ONNX file, a TFLite file or a program of torch.export."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from nnstretch.errors import UsageError
from nnstretch.exporters.loaded_module import LoadedModule, module_of_file
from nnstretch.exporters.model_file import Exported, export_model
from nnstretch.exporters.options import ExportOptions
from nnstretch.frontends.resolve import batched, is_model_file, load_any, load_module
from nnstretch.support.extras import extras_named

if TYPE_CHECKING:
    from nnstretch.frontends.resolve import Model


@extras_named()
def export(
    model: Model,
    path: str | Path,
    example_input: Any = None,
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    batch: int | None = None,
    float16_weights: bool = False,
    channels_last: bool = True,
    check: bool = True,
    branches: str | Path | None = None,
    processors: Sequence[str] = (),
) -> Exported:
    """Writes a model as a file that other engines run.

    The ending of `path` states the format. An ONNX file keeps the names of inputs and outputs and the metadata; nodes of a
    branched network state their processors. A TFLite file keeps names and metadata too; a model with QuantizeLinear and
    DequantizeLinear nodes becomes int8. A `.pt2` file is a program of torch.export.

    Args:
        model: an ONNX or TFLite file, a zoo name, `module.py:factory`, an onnx_ir model, an `onnx.ModelProto` or its
            bytes, or a torch module (which needs `example_input`), such as `designs[0].module` of `nnstretch.stretch`.
        path: the file, which ends in .onnx, .tflite or .pt2.
        example_input: a tensor, or a tuple of tensors, of the shapes to export for (torch modules).
        shapes: input name (or "" for the only input) -> shape, for models with dynamic shapes.
        batch: images per run, for models by name and ONNX files with a dynamic batch.
        float16_weights: store the weights of a TFLite file as float16; it computes in float32.
        channels_last: images of a TFLite file are N,H,W,C; else they are N,C,H,W.
        check: compare the outputs of a TFLite file or program, for random inputs, with those of the model.
        branches: existing folder for a file per branch of a branched network, and `branches.json`, which says how they meet.
        processors: names of the processors of a branched network, in the design's order, for `branches.json`.

    Returns:
        The file, its format, the largest relative error of its outputs if compared, and the files of the branches.

    Raises:
        UsageError: the ending is that of no format, or an option does not apply to it.
        ModelError: the model cannot be read; a layer, which the message names, has no counterpart in the format; the weights
            are too large for it; or the outputs differ.
        DesignError: `branches` is given, and the model has none.
        FileError: the place cannot be written.
        MissingExtraError: TFLite files need the extra `litert`, programs need torch.
    """
    options = ExportOptions(
        float16_weights, channels_last, check, None if branches is None else Path(branches), tuple(processors)
    )

    def load_graph() -> ir.Model:
        return load_any(model, example_input, None if shapes is None else dict(shapes), batch)

    def load_module() -> LoadedModule:
        return _module(model, example_input, shapes, batch)

    return export_model(load_graph, load_module, Path(path), options)


def _module(
    model: Model, example_input: Any, shapes: Mapping[str, tuple[int, ...]] | None, batch: int | None
) -> LoadedModule:
    """The model as a module with its inputs.

    Raises:
        UsageError: it is a graph, or has no example input.
    """
    if shapes:
        raise UsageError("shapes are for graphs; give the module and an example_input of that shape for a .pt2 file")
    if isinstance(model, str | Path) and is_model_file(str(model)):
        return module_of_file(str(model), batch)
    if isinstance(model, str | Path):
        module, example = load_module(str(model))
        example = batched(example, batch, str(model))
    elif _is_module(model):
        if batch is not None:
            raise UsageError("batch is for models by name; give a module an example_input of that many images")
        if example_input is None:
            raise UsageError("a torch module needs example_input, a tensor of the shape to export for")
        module, example = model, example_input  # type: ignore[assignment]
    else:
        raise UsageError(
            f"a .pt2 file is made of a torch module, and the model is {type(model).__name__}; give the module"
        )
    return LoadedModule(module, example if isinstance(example, tuple) else (example,))


def _is_module(model: object) -> bool:
    torch = sys.modules.get("torch")  # whoever has a module has loaded it
    return torch is not None and isinstance(model, torch.nn.Module)
