"""Fused layers of plans: of blocks one by one as of all at once; operations as torch's exporter makes them."""

from collections import Counter
from collections.abc import Sequence

import onnx_ir as ir
import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from nnstretch import zoo
from nnstretch.branching.channels.scaling import TensorChannels, kept_counts
from nnstretch.branching.design.blueprint import blueprint
from nnstretch.branching.latency import exported_operations, fused_plan
from nnstretch.branching.latency.workloads import part_layers
from nnstretch.branching.tracing.trace import Segment, trace

IMAGES = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))


class Open(nn.Module):
    """Blocks between which layers are fused: a convolution, then a batch norm with its activation."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(8 if i else 3, 8, 3, padding=1, bias=False) for i in range(4))
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(4))
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = functional.relu(norm(conv(x)))
        result: Tensor = self.head(x.mean([2, 3]))
        return result


@pytest.mark.parametrize("network", ["resnet18", "vgg11", "squeezenet1_1", "open"])
def test_blocks_fused_one_by_one_are_those_fused_together(network: str) -> None:
    module = Open() if network == "open" else zoo.build(network, num_classes=10, small_images=True)
    plan = blueprint(module.eval(), IMAGES)
    for first in range(len(plan.traced.blocks)):
        part = plan.whole(Segment(first, len(plan.traced.blocks)))
        entries = tuple(part.entries)
        ends = (part.sources, part.results)
        together = fused_plan._BlocksGraph(part, part.blocks, ends, entries).fused()
        found = fused_plan.fuse_plan(part, entries)
        assert [layer.layer.workload for layer in found.layers] == [layer.layer.workload for layer in together.layers]
        assert [layer.layer.name for layer in found.layers] == [layer.layer.name for layer in together.layers]
        assert found.pairs == together.pairs


def test_equal_layers_of_copies_are_one_object() -> None:
    plan = blueprint(zoo.build("resnet18", num_classes=10, small_images=True), IMAGES)
    part = plan.whole(Segment(1, 4))
    counts = kept_counts(part, 0.5)
    first, second = (
        part_layers(part, counts, {part.source: TensorChannels(channels, exact=False)}) for channels in (64, 32)
    )
    shared = [a is b for a, b in zip(first.layers, second.layers, strict=True)]
    assert shared == [a.workload == b.workload for a, b in zip(first.layers, second.layers, strict=True)]
    assert not all(shared)
    assert any(shared)


class Operations(nn.Module):
    """A convolution, then operations without weights."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.slope, self.act = nn.Conv2d(3, 8, 3), nn.PReLU(), nn.ReLU(inplace=True)
        self.second, self.last = nn.Conv2d(8, 8, 3), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.slope(self.conv(x)))
        x = functional.relu(self.second(functional.max_pool2d(x, 3, stride=2, ceil_mode=True) * 2.0))
        result: Tensor = self.last(x.mean([2, 3]))
        return result


def exported(network: nn.Module) -> dict[str, Counter[str] | None]:
    """Operators that each node is exported to, by name."""
    graph = trace(network.eval(), IMAGES).graph.graph
    found: dict[str, Counter[str] | None] = {}
    for node in graph.nodes:
        operation = exported_operations.exported_operation(node)
        found[node.name] = None if operation is None else Counter(part.op_type for part in operation.nodes)
    return found


def test_operations_without_weights_are_exported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    exports = []
    export = exported_operations._export_together

    def counting(nodes: Sequence[fx.Node]) -> ir.Model:
        exports.append(len(nodes))
        return export(nodes)

    monkeypatch.setattr(exported_operations, "_exported", {})
    monkeypatch.setattr(exported_operations, "_export_together", counting)
    found = exported(Operations())
    assert found["conv"] is None
    assert [found[name] for name in ("slope", "act")] == [Counter(["PRelu"]), Counter(["Relu"])]
    assert Counter(["MaxPool"]) in found.values()
    assert Counter(["Mul"]) in found.values()
    assert exports == [6]
    assert exported(Operations()) == found
    assert exports == [6]


class TwoReaders(nn.Module):
    """A value that the next layer reads, and one after that."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Conv2d(channels, 8, 3, padding=1) for channels in (3, 8, 8))
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = x + self.third(self.second(x))
        result: Tensor = self.head(x.mean([2, 3]))
        return result


def test_a_value_that_two_layers_read_makes_no_pair() -> None:
    plan = blueprint(TwoReaders().eval(), IMAGES)
    part = plan.whole(Segment(0, len(plan.traced.blocks)))
    found = fused_plan._BlocksGraph(part, part.blocks, (part.sources, part.results), ()).fused()
    ops = [layer.layer.op for layer in found.layers]
    assert ops[:3] == ["Conv", "Conv", "Conv"]
    assert {0, 1} & found.pairs == {1}
