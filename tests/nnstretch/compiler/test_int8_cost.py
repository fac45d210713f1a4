"""What int8 costs and saves: bytes of packages beside float32, and errors beside ONNX Runtime's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch

from nnstretch import zoo
from nnstretch.compiler.compile import compile_model
from nnstretch.compiler.processors import build_processors
from nnstretch.frontends.onnx_file import load
from nnstretch.frontends.torch_module import export
from nnstretch.graph.reference import run_proto
from nnstretch.package import read_package
from nnstretch.quantization import quantize
from nnstretch.scheduler.plan.schema import Plan
from tests.kits.graphs.float_networks import classifier, examples

MOST_WEIGHTS, MOST_OF_FILE = 0.27, 0.275
"""Bytes of an int8 package over those of the one in float32: a quarter, and what scales and biases take, and the plan."""
MOST_ERROR = 1.05
"""Our error over ONNX Runtime's, both against the network in float32."""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mobilenetv3_small", "squeezenet1_1"])
def test_int8_packages_take_a_quarter(name: str, tmp_path: Path) -> None:
    """Untuned, the weights alone and the whole file with its plan."""
    image = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    graph, processors = export(zoo.build(name).eval(), image), build_processors("cpu:0")
    quantize(graph, [{str(graph.graph.inputs[0].name): image.numpy()}], tmp_path / "q.onnx")
    weights, sizes = list[int](), list[int]()
    for model in (graph, load(tmp_path / "q.onnx")):
        path = tmp_path / f"{len(sizes)}.nns"
        with compile_model(model, processors, tune=False) as session:
            session.save(path)
            plan = session.plan
        package = read_package(path)
        assert Plan.from_json(package.first.plan) == plan
        weights.append(package.constants.nbytes)
        sizes.append(path.stat().st_size)
    assert weights[1] <= MOST_WEIGHTS * weights[0]
    assert sizes[1] <= MOST_OF_FILE * sizes[0]


@pytest.mark.parametrize("seed", range(3))
def test_whole_outputs_are_as_close_to_float32_as_onnx_runtimes(seed: int, tmp_path: Path) -> None:
    """Of a quantised network, over images that its ranges were not learned from."""
    float_proto = ir.to_proto(classifier())
    graph, path = classifier(), tmp_path / "q.onnx"
    quantize(graph, examples(8, 1, 3, 16, 16), path)
    model, errors = load(path), np.zeros(2)
    rng = np.random.default_rng(seed)
    images = [rng.standard_normal((1, 3, 16, 16)).astype(np.float32) for _ in range(16)]
    other = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    with compile_model(model, build_processors("cpu:0"), tune=False) as session:
        assert not session.plan.fallback_layers
        for image in images:
            (wanted,) = run_proto(float_proto, {"x": image})
            found = session.run(None, {"x": image})[0], other.run(None, {"x": image})[0]
            errors += [float(np.square(one - wanted).sum()) for one in found]
    assert 0 < errors[0] <= MOST_ERROR**2 * errors[1]
