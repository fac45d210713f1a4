"""More than one image per run: every kind of layer, on all processors, alone and branched."""

from __future__ import annotations

import os

import numpy as np
import onnx_ir as ir
import pytest
import torch
from torch import nn

import nnstretch as nns
from nnstretch.bench.comparison.subject import random_feeds, reference_outputs
from nnstretch.branching.search.limits import SearchLimits
from nnstretch.compiler.compile import compile_model
from nnstretch.compiler.processors import build_processors
from nnstretch.errors import UsageError
from nnstretch.frontends.torch_module import export
from nnstretch.graph.layers import layers
from nnstretch.graph.reference import largest_error
from nnstretch.passes import optimize

CORES = sorted(os.sched_getaffinity(0))
_MOST = 1e-5
"""Error of plans whose routines were not chosen to be inexact, relative to the output's range."""


class EveryKind(nn.Module):
    """Convolutions of all kinds, sums, products, pools, a resize, concats, a softmax and dense layers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, 2, 1)
        self.wide = nn.Conv2d(32, 32, 3, 1, 1)
        self.depthwise = nn.Conv2d(32, 32, 3, 1, 1, groups=32)
        self.pointwise = nn.Conv2d(32, 64, 1)
        self.grouped = nn.Conv2d(64, 64, 3, 1, 1, groups=2)
        self.semaphore = nn.Conv2d(64, 64, 1)
        self.down = nn.Conv2d(64, 32, 5, 2, 2)
        self.hidden, self.head = nn.Linear(96 + 32, 40), nn.Linear(40, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.stem(x))
        x = torch.relu(self.wide(torch.relu(x)) + x)
        x = nn.functional.hardswish(self.depthwise(x))
        y = torch.relu(self.grouped(self.pointwise(x)))
        y = y * torch.sigmoid(self.semaphore(nn.functional.adaptive_avg_pool2d(y, 1)))
        z = nn.functional.interpolate(torch.relu(self.down(y)), scale_factor=2.0, mode="nearest")
        both = torch.cat([y, z], 1)
        pooled = [nn.functional.max_pool2d(both, 3, 2, 1).mean((2, 3)), nn.functional.avg_pool2d(x, 8).flatten(1)]
        return torch.softmax(self.head(torch.relu(self.hidden(torch.cat(pooled, 1)))), 1)


def graph(batch: int) -> ir.Model:
    torch.manual_seed(0)
    return export(EveryKind().eval(), torch.zeros(batch, 3, 16, 16), input_names=["x"])


@pytest.mark.parametrize(
    ("processors", "batch"),
    [
        (f"cpu:{CORES[0]}", 2),
        ("cpu", 3),
        pytest.param(f"opencl:0@{CORES[-1]}", 3, marks=pytest.mark.opencl),
    ],
)
def test_every_kind_of_layer_computes_batches(processors: str, batch: int) -> None:
    model = graph(batch)
    feeds = random_feeds(model, seed=batch)
    wanted = reference_outputs(model, feeds)
    with compile_model(model.clone(), build_processors(processors), tune=False) as session:
        assert not session.plan.fallback_layers
        names = [output.name for output in session.get_outputs()]
        found = dict(zip(names, session.run(None, feeds), strict=True))
    assert largest_error(found, wanted) < _MOST


def test_images_of_a_batch_are_computed_as_alone() -> None:
    feeds = random_feeds(graph(3), seed=1)
    with (
        compile_model(graph(3), build_processors(f"cpu:{CORES[0]}"), tune=False) as three,
        compile_model(graph(1), build_processors(f"cpu:{CORES[0]}"), tune=False) as one,
    ):
        (together,) = three.run(None, feeds)
        alone = [one.run(None, {"x": image[None]})[0] for image in feeds["x"]]
    np.testing.assert_allclose(together, np.concatenate(alone), rtol=1e-4, atol=1e-6)


def test_workloads_of_other_batches_are_measured_by_themselves() -> None:
    names = [{node.layer.workload for node in layers(optimize(graph(batch)))} for batch in (1, 2)]
    assert not names[0] & names[1]


@pytest.mark.skipif(len(CORES) < 2, reason="two processors need two cores")
def test_a_branched_network_keeps_the_batch() -> None:
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Conv2d(a, b, 3, 1, 1), nn.ReLU()) for a, b in ((3, 16), (16, 32), (32, 32), (32, 32))]
    module = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 5)).eval()
    example = torch.randn(2, 3, 12, 12)
    limits = SearchLimits(alpha=5.0, beta=5.0, min_macs=0.1)
    found = nns.stretch(module, example, "sim:phone/cpu,sim:phone/gpu", limits=limits, even_if_slower=True)
    model = export(found[0].module, example, input_names=["x"])
    with nns.compile(model, processors=f"cpu:{CORES[0]},cpu:{CORES[-1]}", tune=False) as session:
        (answer,) = session.run(None, {"x": example.numpy()})
    with torch.no_grad():
        np.testing.assert_allclose(answer, found[0].module(example).numpy(), rtol=1e-3, atol=1e-5)


def test_batches_that_cannot_be() -> None:
    with pytest.raises(UsageError, match="example_input"):
        nns.compile(EveryKind(), torch.zeros(1, 3, 16, 16), batch=2)
    with pytest.raises(UsageError, match="holds nothing"):
        nns.compile("squeezenet1_1", batch=0)
