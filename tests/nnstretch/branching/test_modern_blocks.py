"""Attention, windows, response norms, detectors and upscalers go from tracing over scaling to ONNX."""

import math
from collections import Counter
from collections.abc import Callable
from functools import cache

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from torch import nn
from torch.nn import functional

from nnstretch.branching.channels.scaling import ORIGINAL, TensorChannels, kept_counts
from nnstretch.branching.design.accounting import count_macs, count_parameters
from nnstretch.branching.design.blueprint import Blueprint, BranchChoice, SegmentChoice, blueprint
from nnstretch.branching.design.design import Design, Merge
from nnstretch.branching.design.from_choices import make_design
from nnstretch.branching.latency.workloads import part_layers
from nnstretch.branching.tracing.canonicalize import canonicalize
from nnstretch.branching.tracing.capture import _by_export, _by_fx, capture, tensors_of
from nnstretch.branching.tracing.operators import Role, channels_of, module_of, role_of, title_of
from nnstretch.branching.tracing.tokens import Attention
from nnstretch.branching.tracing.trace import Segment
from nnstretch.branching.transform.build import build
from nnstretch.branching.transform.network import export_branched
from nnstretch.devices.cpu.routines import native_routines
from nnstretch.devices.engine.build.instruction_sets import ISAS
from nnstretch.frontends.torch_module import export
from nnstretch.graph.layers import layers
from nnstretch.graph.reference import run_layer
from nnstretch.passes import optimize
from tests.kits.networks.any_module import small
from tests.kits.networks.modern_blocks import MODERN, Upscaler, VisionTransformer, Yolo, patches, shared_keys

IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@cache
def network(name: str) -> nn.Module:
    return small(MODERN[name]())


@cache
def plan_of(name: str, merge: Merge = Merge.CONCAT) -> Blueprint:
    """Of a network that is traced once for all merge modes."""
    is_first = merge is Merge.CONCAT
    return blueprint(network(name), IMAGES, 2) if is_first else Blueprint(plan_of(name).traced, 2, merge)


def branched(plan: Blueprint, widths: tuple[float, float]) -> Design:
    """Two branches in every branchable block; a block that is left alone stays whole."""
    choices = []
    for number in range(len(plan.traced.blocks)):
        alone = Segment(number, number + 1)
        branches = [BranchChoice(0, (number,), 1.0)]
        if plan.branchable(alone):
            branches = [BranchChoice(i, (number,), width) for i, width in enumerate(widths)]
        choices.append(SegmentChoice(alone, plan.meeting(alone, branches)))
    return make_design(plan, choices)


@pytest.mark.parametrize("name", MODERN)
def test_full_branches_compute_what_the_network_computes(name: str) -> None:
    original = network(name)
    built = build(plan_of(name), branched(plan_of(name), (1.0, 1.0)))
    with torch.no_grad():
        for found, wanted in zip(tensors_of(built(IMAGES)), tensors_of(original(IMAGES)), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max()))


@pytest.mark.parametrize("merge", [Merge.CONCAT, Merge.ADD])
@pytest.mark.parametrize("name", MODERN)
def test_counts_of_scaled_branches_match_the_built_network(name: str, merge: Merge) -> None:
    plan, original = plan_of(name, merge), network(name)
    cost = plan.original_cost
    assert (cost.macs, cost.params) == (count_macs(original, IMAGES), count_parameters(plan.traced.graph))
    design = branched(plan, (0.5, 0.6))
    built = build(plan, design)
    assert design.meeting_points >= 3
    assert (design.macs, design.params) == (count_macs(built, IMAGES), count_parameters(built))
    # Another number of images at once.
    found, wanted = tensors_of(built(IMAGES[:1])), tensors_of(original(IMAGES[:1]))
    assert [one.shape for one in found] == [one.shape for one in wanted]


@pytest.mark.parametrize("name", MODERN)
def test_layers_of_all_blocks_and_of_the_head_are_predicted(name: str) -> None:
    plan = plan_of(name)
    whole = Segment(0, len(plan.traced.blocks))
    for channels in (plan.head, plan.whole(whole), *(plan.whole(Segment(i, i + 1)) for i in whole.blocks)):
        row = part_layers(channels, [group.channel_groups for group in channels.groups])
        assert len(row.layers) > 0


@pytest.mark.parametrize(
    "name", ["transformer", "windows", "patches", "shared keys", "response norm", "partly attended"]
)
def test_attention_products_and_rearrangements_are_predicted_as_the_layers_that_are_run(name: str) -> None:
    plan = plan_of(name)
    parts = (plan.whole(Segment(0, len(plan.traced.blocks))), plan.head)
    predicted = [layer for part in parts for layer in part_layers(part, kept_counts(part, 1.0)).layers]
    assert [layer.op for layer in predicted if layer.op.startswith("onnx:")] == []
    run = [node.layer for node in layers(optimize(export(plan.traced.graph, IMAGES)))]
    assert sum(layer.macs for layer in predicted) == sum(layer.macs for layer in run)
    weighted = ("Conv", "Dense", "LayerNorm")
    found, wanted = (
        Counter((layer.op, math.prod(layer.outputs[0].shape)) for layer in some if layer.op in weighted)
        for some in (predicted, run)
    )
    assert found == wanted


@pytest.mark.parametrize("name", ["transformer", "windows", "shared keys", "partly attended"])
def test_predicted_attention_of_scaled_branches_has_whole_heads(name: str) -> None:
    plan = plan_of(name)
    pairs = []
    for number in range(len(plan.traced.blocks)):
        alone = Segment(number, number + 1)
        rows = []
        for width in (1.0, 0.5):
            choice = BranchChoice(0, (number,), width)
            row = part_layers(plan.plan(alone, choice), plan.counts(alone, choice))
            rows.append([layer for layer in row.layers if layer.op == "Attention"])
        pairs += list(zip(*rows, strict=True))
    assert pairs
    for full, half in pairs:
        heads, fewer = full.integer("heads"), half.integer("heads")
        assert heads == 2 * fewer
        assert full.outputs[0].shape[1] // heads == half.outputs[0].shape[1] // fewer
        assert full.macs == 2 * half.macs
        for index in half.constants:
            assert half.type_of(index).shape[1] == fewer
        assert any(routine.supports(half) for routine in native_routines(ISAS[0]))


@pytest.mark.parametrize("name", [name for name in MODERN if name not in ("transformer in products", "yolo")])
def test_scaled_branches_are_exported_to_onnx(name: str) -> None:
    plan, image = plan_of(name), IMAGES[:1]
    built = build(plan, branched(plan, (0.5, 0.5)))
    model = export_branched(built, image)
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])
    found = session.run(None, {session.get_inputs()[0].name: image.numpy()})
    for one, other in zip(found, tensors_of(built(image)), strict=True):
        wanted = other.detach().numpy()
        np.testing.assert_allclose(one, wanted, rtol=1e-4, atol=1e-5 * float(np.abs(wanted).max()))


def test_a_transformer_is_a_chain_of_blocks_that_scale_by_heads() -> None:
    plan = plan_of("transformer")
    # Attention and dense layers of two transformer layers; the stem and the tokens come before.
    assert [block.droppable for block in plan.traced.blocks] == [False, False, True, True, True, True]
    groups = plan.whole(Segment(2, 3)).groups
    # Queries, keys and values of a head have 8 channels each, and stay together.
    assert [(group.channel_groups, group.group_channels, group.locked) for group in groups] == [
        (32, 1, False),
        (4, 24, False),
    ]


def test_a_narrow_branch_inherits_whole_heads_with_their_bias() -> None:
    plan = plan_of("transformer")
    segment = Segment(2, 3)
    whole = tuple(SegmentChoice(Segment(i, i + 1), (BranchChoice(0, (i,), 1.0),)) for i in range(6))
    halves = SegmentChoice(segment, (BranchChoice(0, (2,), 0.5), BranchChoice(1, (2,), 0.5)))
    built = build(plan, make_design(plan, [*whole[:2], halves, *whole[3:]]))
    original = network("transformer")
    assert isinstance(original, VisionTransformer)
    qkv, bias = original.layers[0].attention.qkv, original.layers[0].attention.bias
    for branch in built.segments[2].branches:
        (attention,) = (module for module in branch.modules() if isinstance(module, Attention))
        assert attention.bias is not None
        heads = [int((bias[0] == one).all(dim=(1, 2)).nonzero()) for one in attention.bias[0]]
        assert len(heads) == 2
        rows = torch.cat([torch.arange(8) + part * 32 + head * 8 for part in range(3) for head in heads])
        narrow = next(
            module for module in branch.modules() if isinstance(module, nn.Conv2d) and len(module.weight) == 48
        )
        assert narrow.bias is not None
        assert torch.equal(narrow.bias, qkv.bias[rows])


def test_heads_with_queries_keys_and_wider_values_side_by_side_scale_together() -> None:
    plan = plan_of("partly attended")
    # The convolution writes 8 channels per head, values the last 4 of them; what follows keeps 16 channels.
    assert [(g.channel_groups, g.group_channels, g.locked) for g in plan.whole(Segment(3, 4)).groups] == [
        (16, 1, False),
        (4, 8, False),
    ]
    titles = {title_of(node) for node in plan.traced.graph.graph.nodes}
    assert "Attention" in titles
    assert not titles & {"matmul", "softmax", "split", "ToMap", "Rearranged"}


def test_shared_keys_and_values_stay_whole() -> None:
    plan = blueprint(small(shared_keys()), IMAGES, 1)
    locked = [(g.channel_groups, g.locked) for g in plan.whole(Segment(1, 2)).groups]
    assert locked == [(16, False), (4, False), (4, True), (4, True)]


class TiedKeys(nn.Module):
    """Attention whose keys are its queries."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Conv2d(3, 16, 4, 4), nn.Conv2d(16, 4, 1)
        self.query, self.value = nn.Conv2d(16, 16, 1), nn.Conv2d(16, 16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.enter(x)
        n, c, h, w = x.shape
        q, v = (layer(x).view(n, 4, c // 4, h * w).transpose(2, 3) for layer in (self.query, self.value))
        y = functional.scaled_dot_product_attention(q, q, v).transpose(2, 3).reshape(n, c, h, w)
        z: torch.Tensor = self.leave(x + y)
        return z


def test_keys_may_be_the_queries() -> None:
    plan = blueprint(small(TiedKeys()), IMAGES, 1)
    design = branched(plan, (0.5, 0.5))
    built = build(plan, design)
    assert (design.macs, design.params) == (count_macs(built, IMAGES), count_parameters(built))
    assert any(isinstance(module, Attention) for module in built.modules())


@pytest.mark.parametrize("trace", [_by_fx, _by_export])
def test_both_tracers_find_the_attention(trace: Callable[[nn.Module, torch.Tensor], torch.fx.GraphModule]) -> None:
    original = network("windows")
    graph = canonicalize(trace(original, IMAGES), IMAGES)
    found = [module_of(node) for node in graph.graph.nodes if role_of(node) is Role.ATTENTION]
    assert [tuple(one.bias.shape) for one in found] == [(1, 2, 16, 16), (4, 4, 16, 16)]  # type: ignore[arg-type]
    torch.testing.assert_close(graph(IMAGES), original(IMAGES))


def test_reshapes_that_mix_batch_and_channels_are_rearrangements() -> None:
    graph = capture(small(patches()), IMAGES[:1])
    titles = {title_of(node) for node in graph.graph.nodes}
    assert "Rearranged" in titles
    assert not titles & {"reshape", "view", "transpose"}
    for images in (IMAGES, IMAGES[:1]):
        assert len(tensors_of(graph(images))[0]) == len(images)


def test_a_neck_that_goes_up_and_down_is_a_chain_with_skip_connections() -> None:
    traced = plan_of("yolo").traced
    names = {block.output: block.name for block in traced.blocks}
    joins = {
        block.name.partition("_")[0]: [names[skip] for skip in block.skips] for block in traced.blocks if block.skips
    }
    skips = [[names[skip] for skip in block.skips] for block in traced.blocks if block.skips]
    assert joins.keys() == {"cat"}
    assert skips == [["stages.0.leave"], ["stem.2.leave"], ["neck.0.leave"], ["stages.1.1.leave"]]
    assert [names[skip] for skip in traced.head.skips] == ["neck.1.leave", "neck.2.leave"]
    assert traced.blocks[-1].name == "neck.3.leave"  # the head reads all three
    assert isinstance(network("yolo"), Yolo)


def test_the_body_of_an_upscaler_is_divided_under_its_shortcut() -> None:
    blocks = {block.name: block for block in plan_of("upscaler").traced.blocks}
    assert [name for name, block in blocks.items() if block.droppable] == ["body.0", "body.1", "body.2"]
    assert isinstance(network("upscaler"), Upscaler)
    plan = plan_of("upscaler").whole(Segment(5, 7))
    # Four channels of the convolution make one of the pixels.
    assert [(group.channel_groups, group.group_channels) for group in plan.groups] == [(8, 4)]


@pytest.mark.parametrize("name", MODERN)
@pytest.mark.parametrize("width", [1.0, 0.6])
def test_predicted_layers_can_be_computed(name: str, width: float) -> None:
    plan = plan_of(name)
    whole = Segment(0, len(plan.traced.blocks))
    narrow = {tensor: TensorChannels(max(2, channels_of(tensor) // 2), exact=False) for tensor in boundaries(plan)}
    for part in (plan.head, *(plan.whole(Segment(i, i + 1)) for i in whole.blocks)):
        for reads in (ORIGINAL, narrow):
            for layer in part_layers(part, kept_counts(part, width, 2), reads).layers:
                if not layer.op.startswith("onnx:torch/"):
                    inputs = [np.ones(layer.type_of(index).shape, np.float32) for index in layer.activations]
                    (found,) = run_layer(layer, *inputs)
                    assert (layer.op, found.shape) == (layer.op, layer.outputs[0].shape)


def boundaries(plan: Blueprint) -> list[torch.fx.Node]:
    """The tensors between the blocks."""
    return [plan.boundary(block) for block in range(1, len(plan.traced.blocks) + 1)]
