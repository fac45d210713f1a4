"""Loading of models in any form that the public API and the commands accept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx_ir as ir

from nnstretch.errors import UsageError
from nnstretch.frontends.resolve import load_model


def load_any(
    model: Any,
    example_input: Any = None,
    shapes: dict[str, tuple[int, ...]] | None = None,
    batch: int | None = None,
) -> ir.Model:
    """The unoptimised graph of a model.

    Args:
        model: a path, a zoo name, `module.py:factory`, a torch module or an onnx_ir model.
        example_input: a tensor of the shape to compile for, or a tuple of them (torch modules).
        shapes: input name -> shape, for models with dynamic shapes.
        batch: images per run, for models by name and ONNX files.

    Raises:
        UsageError: a torch module has no example input, or a batch is given for a model with fixed shapes.
        NNStretchError: the model cannot be read or exported.
    """
    if isinstance(model, str | Path):
        return load_model(str(model), shapes, batch=batch)
    if batch is not None:
        raise UsageError(
            "batch is for models by name and ONNX files; give a module an example_input of that many images"
        )
    if isinstance(model, ir.Model):
        return model
    from nnstretch.frontends.torch_module import export

    if example_input is None:
        raise UsageError("a torch module needs example_input, a tensor of the shape to compile for")
    return export(model, example_input)
