"""Exported graphs of branched networks: the processor of every node, the same numbers, the layers that were predicted."""

from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional

import nnstretch as nns
from nnstretch import zoo
from nnstretch.branching.channels.scaling import TensorChannels, kept_counts
from nnstretch.branching.design.blueprint import Blueprint, BranchChoice, SegmentChoice, blueprint
from nnstretch.branching.design.design import Design, Merge
from nnstretch.branching.design.from_choices import choices_of, make_design
from nnstretch.branching.latency.fused_plan import noise
from nnstretch.branching.latency.workloads import merge_layers, part_layers
from nnstretch.branching.tracing.trace import Segment
from nnstretch.branching.transform.build import build
from nnstretch.branching.transform.merge import merged_channels
from nnstretch.branching.transform.network import export_branched
from nnstretch.frontends import onnx_file
from nnstretch.frontends.resolve import load_any
from nnstretch.frontends.torch_module import export
from nnstretch.graph.layer import Layer
from nnstretch.graph.layers import layers
from nnstretch.graph.metadata import PLACEMENT_KEY
from nnstretch.passes import optimize
from nnstretch.scheduler.lowering.choices import find_fusion_groups
from nnstretch.scheduler.lowering.units import unit_graph
from nnstretch.zoo import densenet, resnet, weights
from tests.kits.networks.tiny_branching import SIDE, branched, original

IMAGES = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
# Networks of the zoo with a few of their blocks.
SHORT: Mapping[str, Callable[..., nn.Module]] = {
    "bottlenecks": partial(resnet._resnet, resnet._bottleneck, (2, 2)),
    "densenet": partial(densenet._densenet, (3, 3), 32),
    "regnet": partial(resnet._regnet_x, 24, (1, 2, 2), (72, 168, 408)),
}


@cache
def network_of(name: str) -> nn.Module:
    """A network of the zoo, or a short one, which tests do not change."""
    options: dict[str, Any] = {"num_classes": 10, "small_images": True}
    if name not in SHORT:
        return zoo.build(name, **options)
    network = SHORT[name](in_channels=3, **options)
    weights.initialise(network, 3, 0)
    return network.eval()


@cache
def prepared(name: str, merge: Merge = Merge.CONCAT) -> Blueprint:
    """Its plan, traced once for all tests."""
    return blueprint(network_of(name), IMAGES, merge=merge)


def uneven(plan: Blueprint) -> Design:
    """The shallowest branch at half the width beside a deep one at three quarters; the last segment is not branched."""
    pairs = [
        plan.meeting(
            stage, (BranchChoice(1, plan.depth_candidates(stage)[-1], 0.5), BranchChoice(0, tuple(stage.blocks), 0.75))
        )
        for stage in plan.traced.stages
    ]
    alone = BranchChoice(0, tuple(plan.traced.stages[-1].blocks), 1.0 if plan.merge is not Merge.CONCAT else 0.75)
    return make_design(plan, list(map(SegmentChoice, plan.traced.stages, [*pairs[:-1], (alone,)])))


def predicted_layers(plan: Blueprint, design: Design) -> list[Layer]:
    found: list[Layer] = []
    reads = dict[fx.Node, TensorChannels]()
    for choice in choices_of(design):
        ends = []
        for branch in choice.branches:
            counts = plan.counts(choice.segment, branch)
            run = list(part_layers(plan.plan(choice.segment, branch), counts, reads).layers)
            found += run
            ends.append(run[-1].outputs[0].shape)
        if len(ends) > 1:
            found += merge_layers(plan.merge, ends)
        channels = merged_channels(plan.merge, [shape[1] for shape in ends])
        exact = plan.merge is not Merge.CONCAT and channels == plan.channels_before(choice.segment.stop)
        reads[plan.boundary(choice.segment.stop)] = TensorChannels(channels, exact)
    return [*found, *part_layers(plan.head, kept_counts(plan.head, 1.0), reads).layers]


@pytest.mark.parametrize(
    ("name", "left_out"),
    [
        ("resnet18", ()),
        ("vgg11", ()),
        ("mobilenetv2", ()),
        ("squeezenet1_1", ()),
        ("regnet", ()),
        # Both branches begin with the same pool, which the optimiser may merge.
        ("googlenet", ("MaxPool",)),
    ],
)
def test_predicted_layers_are_those_of_the_optimised_export(name: str, left_out: tuple[str, ...]) -> None:
    check_layers(prepared(name), left_out)


@pytest.mark.parametrize(("name", "merge"), [("mobilenetv2", Merge.CONCAT_1X1), ("resnet18", Merge.ADD)])
def test_predicted_layers_of_branches_with_exits_are_those_of_the_optimised_export(name: str, merge: Merge) -> None:
    check_layers(prepared(name, merge), ())


def check_layers(plan: Blueprint, left_out: tuple[str, ...]) -> None:
    design = uneven(plan)
    model = optimize(export_branched(build(plan, design), IMAGES))
    exported = Counter(node.layer.workload for node in layers(model) if node.layer.op not in left_out)
    predicted = [layer for layer in predicted_layers(plan, design) if layer.op not in left_out]
    assert Counter(layer.workload for layer in predicted) == exported
    assert sum(node.layer.macs for node in layers(model)) == design.macs


@pytest.mark.parametrize(("name", "least"), [("mobilenetv2", 20), ("densenet", 5), ("bottlenecks", 5)])
def test_pairs_of_layers_are_those_of_the_optimised_graph(name: str, least: int) -> None:
    plan = prepared(name)
    graph = unit_graph(optimize(export(network_of(name), IMAGES)), lambda layer: not layer.op.startswith("onnx:"))
    runs = Counter(run.layer.workload for run in find_fusion_groups(graph) if len(run.units) == 2)
    pairs: Counter[str] = Counter()
    for block in range(len(plan.traced.blocks)):
        part = plan.whole(Segment(block, block + 1))
        row = part_layers(part, kept_counts(part, 1.0))
        pairs.update(pair.workload for pair in row.joined.values())
    assert pairs.total() >= least
    assert pairs <= runs


class Named(nn.Module):
    """A network whose `forward` names its argument."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = original()

    def forward(self, image: Tensor) -> Tensor:
        scores: Tensor = self.layers(image)
        return scores


def test_branched_or_not_a_network_has_the_names_of_its_module() -> None:
    images = torch.randn(1, 1, SIDE, SIDE)
    plan = blueprint(Named(), images, 4)
    stage, *others = plan.traced.stages
    blocks = tuple(stage.blocks)
    halves = plan.meeting(stage, (BranchChoice(0, blocks, 0.5), BranchChoice(1, blocks, 0.5)))
    whole = [SegmentChoice(other, (BranchChoice(0, tuple(other.blocks), 1.0),)) for other in others]
    network = build(plan, make_design(plan, [SegmentChoice(stage, halves), *whole]))
    for graph in (export(Named(), images).graph, export_branched(network, images).graph):
        assert [value.name for value in graph.inputs] == ["image"]
        assert [value.name for value in graph.outputs] == ["y"]


class Plain(nn.Module):
    """Functions and methods in place of modules: activations, pools, a gate, a sum, a mean."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.wide = nn.Conv2d(3, 16, 3, padding="same"), nn.Conv2d(16, 24, (3, 1), 2, (1, 0))
        self.first, self.second = (nn.Conv2d(16, 16, 3, padding=1, bias=False) for _ in range(2))
        self.third, self.gate = nn.Conv2d(24, 24, 1), nn.Conv2d(24, 24, 1)
        self.last = nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.silu(self.stem(x))
        x = functional.relu(torch.add(x, self.first(x)))
        x = functional.hardswish(self.second(x)) * 0.5
        x = functional.max_pool2d(functional.leaky_relu(self.wide(x), 0.01), 3, stride=2, ceil_mode=True)
        x = functional.avg_pool2d(x + self.third(x).tanh(), 2)
        x = x * torch.sigmoid(self.gate(functional.adaptive_avg_pool2d(x, 1)))
        result: Tensor = self.last(torch.mean(x, [2, 3]))
        return result


def test_plain_functions_are_predicted_as_they_are_exported() -> None:
    network = Plain().eval()
    plan = blueprint(network, IMAGES, 4)
    design = uneven(plan)
    branched = build(plan, design)
    exported = Counter(node.layer.workload for node in layers(optimize(export_branched(branched, IMAGES))))
    assert Counter(layer.workload for layer in predicted_layers(plan, design)) == exported


@pytest.mark.parametrize("mode", [True, False])
def test_nodes_of_branches_know_their_processor_in_the_file_too(tmp_path: Path, mode: bool) -> None:
    plan = prepared("bottlenecks")
    design = uneven(plan)
    network = build(plan, design).train(mode)
    with torch.no_grad():  # as after training
        for parameter in network.parameters():
            parameter.mul_(0.9)
    path = tmp_path / "branched.onnx"
    onnx_file.save(export_branched(network, IMAGES), path)
    assert network.training is mode
    loaded = onnx_file.load(path)
    for model in (loaded, optimize(loaded)):
        kinds = {(node.op_type, node.metadata_props.get(PLACEMENT_KEY)) for node in model.graph}
        assert {("Conv", "0"), ("Conv", "1"), ("Concat", None)} <= kinds
        assert ("Conv", None) not in kinds  # the stem is part of the first segment
        assert ("Concat", "0") not in kinds
    placed = Counter(node.metadata_props.get(PLACEMENT_KEY) for node in loaded.graph if node.op_type == "Add")
    # Sums are plain functions in the module, and placed all the same.
    assert set(placed) == {"0", "1"}
    session = onnxruntime.InferenceSession(path)
    (answer,) = session.run(None, {session.get_inputs()[0].name: IMAGES.numpy()})
    with torch.no_grad():
        expected = network.eval()(IMAGES).numpy()
    assert np.abs(answer - expected).max() <= 1e-4 * np.ptp(expected)


def test_a_module_that_is_compiled_keeps_its_placement() -> None:
    network, image = branched(0.5), torch.zeros(1, 1, SIDE, SIDE)
    graph = load_any(network, image)
    assert {node.metadata_props.get(PLACEMENT_KEY) for node in graph.graph} == {None, "0", "1"}
    expected = "for 2 processors \\(layer .* is for the last one\\), but there are only cpu:0; name 2 with --processors"
    with pytest.raises(nns.NNStretchError, match=expected):
        nns.compile(network, image, processors="cpu:0", tune=False)


def test_noise_of_any_shape_varies_in_every_direction_and_takes_no_memory() -> None:
    weight = noise((512, 512, 3, 3))
    assert weight.shape == (512, 512, 3, 3)
    assert weight.base is not None
    for axis in range(4):
        assert weight.std(axis=axis).min() > 0
    assert not weight.flags.writeable
