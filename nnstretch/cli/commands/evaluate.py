"""`nnstretch evaluate`: top-1 accuracy of a model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nnstretch.api.options import CompileOptions
from nnstretch.cli.console import Reporter, reporting
from nnstretch.cli.options import Data, DesignFile, Json, Model, Weights, with_options
from nnstretch.errors import ModelError, UsageError

if TYPE_CHECKING:
    import numpy as np
    import onnx_ir as ir

    from nnstretch.cli.sources import Source

ENGINES = ("nnstretch", "onnxruntime", "torch")


@with_options(CompileOptions, without=("batch", "plan", "streams", "plans", "policy"))
def evaluate_command(
    model: Model,
    data: Data,
    engine: Annotated[
        str, typer.Option("--engine", metavar="NAME", help="nnstretch, onnxruntime or torch.")
    ] = "nnstretch",
    weights: Weights = None,
    design: DesignFile = None,
    *,
    options: CompileOptions,
    json: Json = False,
) -> None:
    """Report the top-1 accuracy of a model on a data set's test images.

    Example: nnstretch evaluate resnet18 --weights resnet18.safetensors --data digits
    """
    with reporting(as_json=json) as report:
        from nnstretch.cli.sources import Source

        if engine not in ENGINES:
            raise UsageError(f"unknown engine {engine!r}; there are {', '.join(ENGINES)}")
        source = Source(model, options, weights, design)
        if source.is_package and engine != "nnstretch":
            raise UsageError(f"{model} is a package, which {engine} cannot run; use --engine nnstretch")
        if engine == "torch":
            top1, images = _evaluate_torch(model, data, weights, design)
        else:
            predict, input_shape = _predictor(report, source, engine)
            top1, images = _evaluate_function(predict, input_shape, data)
        report.show(f"top-1 {top1:.2f} % on {images} images of {data}, with {engine}")
        report.finish({"model": model, "data": data, "engine": engine, "top1": top1, "images": images})


def _evaluate_torch(model: str, data: str, weights: Path | None, design: Path | None) -> tuple[float, int]:
    from nnstretch.cli.networks import NetworkOptions, build_network
    from nnstretch.training.data import load_dataset
    from nnstretch.training.evaluation import top1

    network = build_network(model, NetworkOptions(), weights, design)
    dataset = load_dataset(data, network.example_input.shape[-1], network.example_input.shape[1])
    return top1(network.module, dataset), len(dataset.test)


def _evaluate_function(predict: Callable[[np.ndarray], Any], shape: tuple[int, ...], data: str) -> tuple[float, int]:
    from nnstretch.training.data import load_dataset
    from nnstretch.training.evaluation import top1

    if len(shape) != 4 or shape[2] != shape[3]:
        raise ModelError(f"the model's input has the shape {list(shape)}; square images N,C,S,S are wanted")
    dataset = load_dataset(data, shape[2], shape[1])
    return top1(predict, dataset, batch=shape[0]), len(dataset.test)


def _predictor(report: Reporter, source: Source, engine: str) -> tuple[Callable[[np.ndarray], Any], tuple[int, ...]]:
    """A function from images to logits, and the shape of its images."""
    if engine == "nnstretch":
        with report.progress("Compiling") as advance:
            session = source.open(advance)
        only = session.get_inputs()[0]
        return lambda images: session.run(None, {only.name: images})[0], only.shape
    graph = source.load()
    return _onnxruntime(graph, source.options.threads), _input_shape(graph)


def _input_shape(graph: ir.Model) -> tuple[int, ...]:
    shape = graph.graph.inputs[0].shape
    if shape is None or not shape.is_static():
        raise ModelError(f"the model's input has the shape {shape}; fix it with --shape")
    return tuple(shape.numpy())


def _onnxruntime(graph: ir.Model, threads: int | None) -> Callable[[np.ndarray], Any]:
    from nnstretch.bench.comparison.reference import open_reference

    session = open_reference(graph, threads or 0)
    name = session.get_inputs()[0].name
    return lambda images: session.run(None, {name: images})[0]
