"""What tests share: the check that a fused graph computes what the original does, and calls of commands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from nnstretch.cli.benchmarking import comparisons
from nnstretch.cli.main import main
from nnstretch.graph.layers import GraphNode, graph_inputs, layers
from nnstretch.graph.reference import relative_error, run_proto
from nnstretch.passes import optimize
from nnstretch.scheduler.measurement import interference
from tests.kits.command_line import Answer, Cli
from tests.kits.graphs.fused_graphs import run_layers


@pytest.fixture(scope="session", autouse=True)
def _short_rounds() -> Iterator[None]:
    """How much processors slow each other down is measured as always, but in few rounds of small layers; turns are short.

    Tests share the cores, so any figure may come out; high ones are measured again by the next command.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interference, "_ROUNDS", 2)
        patch.setattr(interference, "_RUNS", 1)
        patch.setattr(interference, "_CHAIN", ((16, 1),))
        patch.setattr(interference, "_SMALL_IMAGE", (1, 16, 8, 8))
        patch.setattr(comparisons, "_TURN", 0.01)
        patch.setattr(comparisons, "_STREAMED_TURN", 0.01)
        yield


def feeds_for(model: ir.Model, seed: int = 0) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    return {name: generator.standard_normal(kind.shape).astype(kind.dtype) for name, kind in graph_inputs(model)}


def fuse_and_compare(model: ir.Model, tolerance: float = 1e-5) -> list[GraphNode]:
    """Optimise, compare with the original in ONNX Runtime, and return the layers.

    Folding changes the order in which float32 numbers are added, and no more, hence the tolerance.
    """
    feeds, proto = feeds_for(model), ir.to_proto(model)
    wanted = run_proto(proto, feeds)
    names = [value.name for value in model.graph.outputs]
    fused = optimize(model)
    assert [value.name for value in fused.graph.outputs] == names
    for result, reference in zip(run_layers(fused, feeds), wanted, strict=True):
        assert result.dtype == reference.dtype
        assert relative_error(result, reference) < tolerance
    assert ir.to_proto(model) == proto, "the original is untouched, and so are the tensors that it shares"
    return layers(fused)


@pytest.fixture(scope="session")
def check() -> Callable[..., list[GraphNode]]:
    """`fuse_and_compare(model, tolerance=1e-5) -> layers`."""
    return fuse_and_compare


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own as the working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Calls a command; returns exit status, standard output and standard error."""

    def call(*arguments: str) -> Answer:
        capsys.readouterr()
        status = main(list(arguments))
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call
