"""Whole networks of the zoo: what they are fused to, and that they compute what ONNX Runtime does, on every processor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
import pytest
import torch
from torch import nn

from nnstretch import zoo
from nnstretch.compiler.compile import plan_model
from nnstretch.compiler.processors import build_processors
from nnstretch.frontends.torch_module import export
from nnstretch.graph.layers import GraphNode, layers
from nnstretch.graph.reference import relative_error, run_proto
from nnstretch.passes import optimize
from nnstretch.scheduler.runtime.session import PlanSession

TOLERANCE = 1e-4
# MACs up to which a network runs in torch, and on OpenCL, which is a CPU's in tests; the others are planned there.
FEW_MACS = 2e9
FAST = ("resnet18", "squeezenet1_1")
# Wider or deeper ones of the same layers. The graphs of the wider ones are tested; of the deeper ones it is enough that they
# have more of the layers (and the MACs and parameters that `test_zoo.py` tests).
WIDER = ("vgg13", "vgg16", "vgg19", "squeezenet1_0", "mobilenetv3_large")
DEEPER = (
    *("resnet34", "resnet101", "resnet152", "resnetxy", "regnet_x_4gf"),
    *("densenet161", "densenet169", "densenet201"),
)
ZOO_LAYERS = {
    "resnet18": {"Conv": 20, "MaxPool": 1, "GlobalPool": 1, "Reshape": 1, "Dense": 1},
    "resnet34": {"Conv": 36, "MaxPool": 1, "GlobalPool": 1, "Reshape": 1, "Dense": 1},
    "resnet50": {"Conv": 53, "MaxPool": 1, "GlobalPool": 1, "Reshape": 1, "Dense": 1},
    "vgg16": {"Conv": 13, "MaxPool": 5, "Reshape": 1, "Dense": 3},
    "mobilenetv2": {"Conv": 52, "GlobalPool": 1, "Reshape": 1, "Dense": 1},
    "regnet_x_1_6gf": {"Conv": 59, "GlobalPool": 1, "Reshape": 1, "Dense": 1},
    "efficientnet_lite4": {"Conv": 91, "GlobalPool": 1, "Reshape": 1, "Dense": 1},
    "squeezenet1_0": {"Conv": 26, "MaxPool": 3, "Concat": 8, "GlobalPool": 1, "Reshape": 1},
    "squeezenet1_1": {"Conv": 26, "MaxPool": 3, "Concat": 8, "GlobalPool": 1, "Reshape": 1},
    "densenet121": {
        "Conv": 120, "MaxPool": 1, "Affine": 62, "Concat": 58, "AveragePool": 3, "GlobalPool": 1, "Reshape": 1, "Dense": 1,
    },
    "googlenet": {"Conv": 57, "MaxPool": 13, "Concat": 9, "GlobalPool": 1, "Reshape": 1, "Dense": 1},
    "resnet101": {"Conv": 104, "MaxPool": 1, "GlobalPool": 1, "Reshape": 1, "Dense": 1},
    "resnet152": {"Conv": 155, "MaxPool": 1, "GlobalPool": 1, "Reshape": 1, "Dense": 1},
    "vgg11": {"Conv": 8, "MaxPool": 5, "Reshape": 1, "Dense": 3},
    "vgg13": {"Conv": 10, "MaxPool": 5, "Reshape": 1, "Dense": 3},
    "vgg19": {"Conv": 16, "MaxPool": 5, "Reshape": 1, "Dense": 3},
    "densenet161": {
        "Conv": 160, "MaxPool": 1, "Affine": 82, "Concat": 78, "AveragePool": 3, "GlobalPool": 1, "Reshape": 1, "Dense": 1,
    },
    "densenet169": {
        "Conv": 168, "MaxPool": 1, "Affine": 86, "Concat": 82, "AveragePool": 3, "GlobalPool": 1, "Reshape": 1, "Dense": 1,
    },
    "densenet201": {
        "Conv": 200, "MaxPool": 1, "Affine": 102, "Concat": 98, "AveragePool": 3, "GlobalPool": 1, "Reshape": 1, "Dense": 1,
    },
    "inception_v3": {
        "Conv": 94, "MaxPool": 4, "AveragePool": 9, "Concat": 15, "GlobalPool": 1, "Reshape": 1, "Dense": 1,
    },
    "ssd_resnet50": {
        "Conv": 73, "MaxPool": 1, "Transpose": 10, "Reshape": 14, "Concat": 3, "Softmax": 1,
        "Slice": 2, "Mul": 2, "Affine": 1, "Add": 2, "Sub": 1,
    },
    "mobilenetv3_small": {"Conv": 52, "GlobalPool": 10, "Mul": 9, "Reshape": 1, "Dense": 2},
    "mobilenetv3_large": {"Conv": 62, "GlobalPool": 9, "Mul": 8, "Reshape": 1, "Dense": 2},
    "efficientnet_b5": {"Conv": 194, "GlobalPool": 40, "Mul": 39, "Reshape": 1, "Dense": 1},
    "regnet_x_4gf": {"Conv": 74, "GlobalPool": 1, "Reshape": 1, "Dense": 1},
    "resnetxy": {"Conv": 53, "MaxPool": 1, "GlobalPool": 1, "Reshape": 1, "Dense": 1},
}  # fmt: skip


@dataclass(frozen=True)
class Exported:
    """A network as a graph, with an input and the outputs of ONNX Runtime, and of torch where it has few MACs."""

    name: str
    model: ir.Model
    feeds: dict[str, np.ndarray]
    wanted: list[np.ndarray]
    by_torch: np.ndarray | None

    @property
    def macs(self) -> int:
        return zoo.entry(self.name).macs


def named(names: Iterable[str]) -> list[object]:
    return [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in names]


@pytest.fixture(scope="module", params=named(name for name in zoo.names() if name not in (*WIDER, *DEEPER)))
def exported(request: pytest.FixtureRequest) -> Exported:
    """Every network of the zoo but the wider and deeper ones, exported once for all tests."""
    name = str(request.param)
    module, example = zoo.build(name), zoo.example_input(name)
    model = export(module, example)
    (image,) = model.graph.inputs
    assert image.name is not None
    feeds = {image.name: np.random.default_rng(0).standard_normal(example.shape).astype(np.float32)}
    by_torch = None
    if zoo.entry(name).macs < FEW_MACS:
        with torch.no_grad():
            by_torch = module(torch.from_numpy(feeds[image.name])).numpy()
    return Exported(name, model, feeds, run_proto(ir.to_proto(model), feeds), by_torch)


def test_every_network_of_the_zoo_is_covered() -> None:
    assert set(ZOO_LAYERS) == set(zoo.names())
    assert {*WIDER, *DEEPER} < set(zoo.names())


def test_layers(exported: Exported) -> None:
    # Numbers are compared where they run on kernels, which is much faster than layer by layer.
    check_layers(exported.name, layers(optimize(exported.model)))


def test_the_graph_computes_what_torch_does(exported: Exported) -> None:
    (found, *_) = exported.wanted
    assert exported.by_torch is None or relative_error(found, exported.by_torch) < TOLERANCE
    assert (exported.by_torch is None) == (exported.macs >= FEW_MACS)


@pytest.mark.slow
@pytest.mark.parametrize("name", WIDER)
def test_layers_of_wider_networks(name: str) -> None:
    network = unfilled(name).to_empty(device="cpu")  # to draw millions of numbers would take longer than all else
    with torch.no_grad():
        for tensor in (*network.parameters(), *network.buffers()):
            tensor.fill_(0.5)
    check_layers(name, layers(optimize(export(network, zoo.example_input(name)))))


@pytest.mark.parametrize("name", DEEPER)
def test_layers_of_deeper_networks(name: str) -> None:
    kinds = {nn.Conv2d: "Conv", nn.Linear: "Dense", nn.MaxPool2d: "MaxPool", nn.AvgPool2d: "AveragePool"}
    found = Counter(kinds[type(layer)] for layer in unfilled(name).modules() if type(layer) in kinds)
    assert found == {kind: count for kind, count in ZOO_LAYERS[name].items() if kind in kinds.values()}


def unfilled(name: str) -> nn.Module:
    with torch.device("meta"):
        return zoo.entry(name).build(num_classes=1000, in_channels=3, small_images=False).eval()


def check_layers(name: str, nodes: list[GraphNode]) -> None:
    assert Counter(node.layer.op for node in nodes) == ZOO_LAYERS[name]
    assert sum(node.layer.macs for node in nodes) == zoo.entry(name).macs
    # No activation and no sum is a layer where a convolution could have taken it.
    assert {str(node.layer.activation) for node in nodes if node.layer.op == "Affine"} <= {"relu", "exp"}
    assert not any(node.layer.op == "Activation" for node in nodes)
    assert all(node.path for node in nodes if node.layer.op in ("Conv", "Dense"))


@pytest.mark.parametrize("processor", ["cpu", pytest.param("opencl", marks=pytest.mark.opencl)])
def test_outputs(exported: Exported, processor: str, optimised_opencl: None) -> None:
    compiled = plan_model(exported.model, build_processors(processor), tune=False)
    assert not compiled.plan.fallback_layers
    assert compiled.plan.macs == exported.macs
    if processor == "opencl" and exported.macs > FEW_MACS:
        return
    with PlanSession(compiled) as session:
        found = session.run(None, exported.feeds)
    for result, reference in zip(found, exported.wanted, strict=True):
        assert float(np.ptp(reference)) > 1e-2, "a network whose outputs vanish compares equal to anything"
        assert relative_error(result, reference) < TOLERANCE
