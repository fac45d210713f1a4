"""Benchmark subjects: a model in the forms that engines read, with inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx_ir as ir

from nnstretch.errors import FileError, ModelError, UsageError

Shapes = Mapping[str, tuple[int, ...]]


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
    if path.suffix or len(path.parts) > 1:
        raise FileError(
            f"cannot read {path}: No such file; give an ONNX file, a package, a zoo name or FILE.py:FACTORY"
        )
    from nnstretch.zoo import entry

    entry(model)


@contextmanager
def subject(model: str, shapes: Shapes, seed: int, batch: int | None = None) -> Iterator[Subject]:
    """A model with random feeds, `batch` images if given. Exported files exist until the block ends.

    Raises:
        UsageError: a batch is given for a package.
        NNStretchError: the model cannot be found, read or exported, or has dynamic shapes that `shapes` does not fix.
    """
    from nnstretch.package.format import is_package

    path = Path(model)
    if path.suffix == ".nns" or (path.is_file() and is_package(path)):
        if batch is not None:
            raise UsageError(f"{model} is a package, whose batch was fixed when it was made; compile the model again")
        yield Subject(model, "", package_feeds(path, seed))
        return
    from nnstretch.frontends.onnx_file import save
    from nnstretch.frontends.resolve import load_model

    graph = load_model(model, dict(shapes), batch=batch)
    feeds = random_feeds(graph, seed)
    if path.is_file() and not shapes and batch is None:
        yield Subject(model, str(path.resolve()), feeds)
        return
    with TemporaryDirectory(prefix="nnstretch-bench-") as folder:
        file = Path(folder) / "model.onnx"
        save(graph, file)
        yield Subject(model, str(file), feeds)


def random_feeds(graph: ir.Model, seed: int) -> dict[str, np.ndarray]:
    """Reproducible inputs for a graph with static shapes: normal noise, and zeros for integers (which may be indices)."""
    rng = np.random.default_rng(seed)
    feeds: dict[str, np.ndarray] = {}
    for value in graph.graph.inputs:
        shape = value.shape
        if shape is None or value.dtype is None or not shape.is_static():
            raise ModelError(f"input {value.name!r} has the shape {shape}; fix it with --shape {value.name}=…")
        feeds[str(value.name)] = random_array(rng, shape.numpy(), value.dtype.numpy())
    return feeds


def package_feeds(path: Path, seed: int) -> dict[str, np.ndarray]:
    """Reproducible inputs for a package."""
    from nnstretch.package import read_package
    from nnstretch.scheduler.plan.schema import Plan

    return plan_feeds(Plan.from_json(read_package(path).first.plan), seed)


def plan_feeds(plan: Any, seed: int) -> dict[str, np.ndarray]:
    """Reproducible inputs for a plan (`nnstretch.scheduler.plan.schema.Plan`)."""
    rng = np.random.default_rng(seed)
    return {t.name: random_array(rng, t.type.shape, t.type.element.storage) for t in plan.inputs}


def random_array(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """Normal noise, or zeros of a type that is not floating."""
    if np.issubdtype(dtype, np.floating):
        return np.asarray(rng.standard_normal(shape)).astype(dtype)
    return np.zeros(shape, dtype)
