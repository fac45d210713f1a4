"""A file per branch of a branched network, and a JSON file that says how they meet."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx_ir as ir

from nnstretch.errors import DesignError, UsageError
from nnstretch.exporters.graph_file import save_graph
from nnstretch.exporters.options import TFLITE, ExportOptions
from nnstretch.exporters.splitting import Part, SplitGraph, part_model, split
from nnstretch.support.settings import write_text

INDEX = "branches.json"
"""Name of the JSON file in the folder."""
FORMAT_VERSION = 1


def check_has_branches(graph: ir.Model, processors: tuple[str, ...]) -> None:
    """Looks for branches, and for a name of every processor if there are names.

    Raises:
        DesignError: the graph has no segment with two branches.
        UsageError: there are more processors than names.
    """
    parts = split(graph).parts
    segments = [part.segment for part in parts if part.segment is not None]
    if len(set(segments)) == len(segments):
        raise DesignError(
            "the model has no branches; give the --design or the ONNX file of a branched network, one with meeting "
            "points, that `nnstretch stretch` wrote"
        )
    needed = max((part.processor for part in parts if part.processor is not None), default=0) + 1
    if processors and len(processors) < needed:
        raise UsageError(
            f"the design is for {needed} processors, and {len(processors)} are named; name all, in its order"
        )


def save_branches(graph: ir.Model, whole: Path, options: ExportOptions) -> tuple[Path, ...]:
    """Writes the branches of a graph in the format of `whole`, the file of the whole model, and then the JSON file.

    Returns:
        The files, in an order in which they can run.

    Raises:
        ModelError, FileError, MissingExtraError: as `save_graph` says.
    """
    folder = options.branches
    assert folder is not None
    parts = split(graph)
    suffix = whole.suffix.lower()
    paths = {part.name: folder / f"{part.name}{suffix}" for part in parts.parts}
    for part in parts.parts:
        save_graph(part_model(graph, part), paths[part.name], options)
    last = suffix == TFLITE and options.channels_last
    index = _index(graph, parts, whole.name, options.processors, suffix, channels_last=last)
    write_text(folder / INDEX, json.dumps(index, indent=1) + "\n")
    return tuple(paths.values())


def _index(
    graph: ir.Model, parts: SplitGraph, model: str, processors: tuple[str, ...], suffix: str, *, channels_last: bool
) -> dict[str, Any]:
    values = ir.convenience.create_value_mapping(graph.graph)

    def tensor(name: str) -> dict[str, Any]:
        value = values[name]
        assert value.shape is not None
        shape = [int(n) for n in value.shape.numpy()]
        if channels_last and len(shape) == 4:
            shape = [shape[axis] for axis in (0, 2, 3, 1)]
        return {"name": name, "shape": shape}

    def file(part: Part) -> dict[str, Any]:
        return {
            "file": f"{part.name}{suffix}",
            "segment": part.segment,
            "branch": part.branch,
            "processor": part.processor,
            "inputs": [tensor(name) for name in part.inputs],
            "outputs": [tensor(name) for name in part.outputs],
            "joins": list(part.joins),
        }

    joins = [
        {
            "segment": join.segment,
            "operator": join.operator,
            "axis": _channel_axis(tensor(join.result)["shape"], channels_last=channels_last)
            if join.operator == "concat"
            else None,
            "tensors": list(join.tensors),
            "result": tensor(join.result),
        }
        for join in parts.joins
    ]
    return {
        "version": FORMAT_VERSION,
        "model": model,
        "layout": "NHWC" if channels_last else "NCHW",
        "processors": list(processors),
        "inputs": [str(value.name) for value in graph.graph.inputs],
        "outputs": [str(value.name) for value in graph.graph.outputs],
        "files": [file(part) for part in parts.parts],
        "joins": joins,
    }


def _channel_axis(shape: list[int], *, channels_last: bool) -> int:
    return len(shape) - 1 if channels_last and len(shape) == 4 else 1
