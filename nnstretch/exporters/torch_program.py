"""Programs of torch.export."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from nnstretch.errors import ModelError, first_line
from nnstretch.frontends.modes import evaluating
from nnstretch.frontends.silence import quiet
from nnstretch.support.settings import atomic_write

METADATA_FILE = "nnstretch.json"
"""Name of the program's extra file with its metadata, which `torch.export.load(…, extra_files={METADATA_FILE: ""})` reads."""
_LIMIT = 1e-4
"""Largest relative error of the program's outputs."""


def save_program(
    module: nn.Module, examples: tuple[torch.Tensor, ...], path: Path, metadata: Mapping[str, str], *, check: bool
) -> float | None:
    """Writes a module in evaluation mode as a program of torch.export, for inputs of the shapes of the examples.

    Args:
        module: what is exported; its training flags are as before afterwards.
        examples: its inputs.
        path: of the file.
        metadata: texts by key, which the file carries as JSON.
        check: whether outputs of the program for the examples are compared with the module's.

    Returns:
        The largest error relative to the range of an output, if compared.

    Raises:
        ModelError: torch cannot export the module, or the program computes other outputs.
        FileError: the place cannot be written.
    """
    with quiet(), evaluating(module), torch.no_grad():
        try:
            program = torch.export.export(module, examples)
        except Exception as error:  # torch raises whatever an operator or the module does
            raise ModelError(
                f"torch.export cannot trace {type(module).__name__}: {first_line(error)}; write an .onnx file instead"
            ) from error
        difference = _compared(module, program, examples) if check else None
        content = io.BytesIO()  # torch ends the process where it cannot write to a file
        torch.export.save(program, content, extra_files={METADATA_FILE: json.dumps(dict(metadata))})
        with atomic_write(path) as file:
            file.write(content.getbuffer())
    return difference


def _compared(module: nn.Module, program: torch.export.ExportedProgram, examples: tuple[torch.Tensor, ...]) -> float:
    from nnstretch.graph.reference import relative_error

    inputs = tuple(_noise(example) for example in examples)
    expected, found = (_tensors(run(*inputs)) for run in (module, program.module()))
    error = max(
        (relative_error(y.numpy(), wanted.numpy()) for y, wanted in zip(found, expected, strict=True)), default=0.0
    )
    if error > _LIMIT:
        raise ModelError(
            f"the program's outputs differ from the module's by {error:.1e} of their range; its forward does not depend on "
            "its inputs alone"
        )
    return error


def _noise(example: torch.Tensor) -> torch.Tensor:
    """Random numbers like a tensor; integers, which may be indices, stay."""
    if not example.is_floating_point():
        return example
    return torch.randn(example.shape, generator=torch.Generator().manual_seed(0)).to(example.dtype)


def _tensors(outputs: object) -> list[torch.Tensor]:
    from torch.utils import _pytree

    return [leaf for leaf in _pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor)]
