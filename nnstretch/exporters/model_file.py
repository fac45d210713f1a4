"""Writes a model in the format that the ending of its file says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from nnstretch.exporters.branch_files import check_has_branches, save_branches
from nnstretch.exporters.graph_file import save_graph
from nnstretch.exporters.loaded_module import LoadedModule
from nnstretch.exporters.options import FORMATS, PROGRAM, ExportOptions


@dataclass(frozen=True)
class Exported:
    """What was written.

    Attributes:
        path: the file.
        format: name of its format.
        max_rel_error: largest difference of its outputs from the model's, relative to their range; None if not compared.
        branches: files of the branches, in an order in which they can run; empty if not asked for.
    """

    path: Path
    format: str
    max_rel_error: float | None = None
    branches: tuple[Path, ...] = ()


def export_model(
    load_graph: Callable[[], ir.Model],
    load_module: Callable[[], LoadedModule],
    path: Path,
    options: ExportOptions,
) -> Exported:
    """Writes a model.

    Args:
        load_graph: returns the model as a graph, not fused, with static shapes; called for ONNX and TFLite.
        load_module: returns the model as a module; called for torch.export.
        path: of the file, which is there complete or not at all.
        options: how it is written.

    Raises:
        UsageError: the ending is that of no format, or an option does not apply.
        ModelError: the format has no counterpart of a layer, cannot hold the model, or its outputs are not the model's.
        DesignError: a file per branch is asked for, and the model has none.
        FileError: the place cannot be written.
        MissingExtraError: a package that the format needs is not installed.
    """
    suffix = options.check_format(path)
    if suffix == PROGRAM:
        from nnstretch.exporters.torch_program import save_program

        loaded = load_module()
        error = save_program(loaded.module, loaded.inputs, path, loaded.metadata, check=options.check)
        return Exported(path, FORMATS[suffix], error)
    graph = load_graph()
    if options.branches is not None:
        check_has_branches(graph, options.processors)
    error = save_graph(graph, path, options)
    if options.branches is None:
        return Exported(path, FORMATS[suffix], error)
    return Exported(path, FORMATS[suffix], error, save_branches(graph, path, options))
