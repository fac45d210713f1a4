"""Modules of all kinds are branched: detectors, segmenters, and layers that torch has no module for."""

import itertools
from collections.abc import Callable
from functools import cache

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from nnstretch.branching.channels.coupling import plan_channels
from nnstretch.branching.design.accounting import count_macs, count_parameters
from nnstretch.branching.design.blueprint import Blueprint, BranchChoice, SegmentChoice, blueprint
from nnstretch.branching.design.design import Design, Merge
from nnstretch.branching.design.from_choices import make_design
from nnstretch.branching.search.dynamic_programming import merged_choices
from nnstretch.branching.search.limits import SearchLimits
from nnstretch.branching.search.options import SearchOptions
from nnstretch.branching.search.report import diagnose
from nnstretch.branching.search.search import search
from nnstretch.branching.stretch import rebuild
from nnstretch.branching.tracing.canonicalize import canonicalize
from nnstretch.branching.tracing.capture import _by_export, _by_fx, capture, tensors_of
from nnstretch.branching.tracing.modules import ChannelShuffle, ChannelSlice
from nnstretch.branching.tracing.operators import module_of, shape_of
from nnstretch.branching.tracing.trace import Segment, TracedNetwork, trace
from nnstretch.branching.transform.build import build
from nnstretch.branching.transform.network import export_branched
from nnstretch.errors import DesignError
from tests.kits.networks.any_module import ANY, Basic, ConvNext, Detector, Shuffled, Tail, UNet, conv, small
from tests.kits.networks.searched_networks import Rates

IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def stretches(plan: Blueprint) -> list[Segment]:
    """Segments of one or two blocks that end at skip connections."""
    found, first, count = [], 0, len(plan.traced.blocks)
    while first < count:
        both = Segment(first, min(first + 2, count))
        found.append(both if plan.traced.is_self_contained(both) else Segment(first, first + 1))
        first = found[-1].stop
    return found


def branched(plan: Blueprint, widths: tuple[float, ...]) -> Design:
    """Two branches in every branchable segment; the second one has minimum depth unless it is full."""
    choices = []
    for segment in stretches(plan):
        whole = tuple(segment.blocks)
        branches = [BranchChoice(0, whole, 1.0)]
        if plan.branchable(segment):
            shallow = plan.depth_candidates(segment)[-1]
            depths = [whole, whole if widths[-1] == 1.0 else shallow]
            branches = [
                BranchChoice(i, blocks, width) for i, (blocks, width) in enumerate(zip(depths, widths, strict=True))
            ]
        choices.append(SegmentChoice(segment, plan.meeting(segment, branches)))
    return make_design(plan, choices)


def double(network: nn.Module, images: Tensor = IMAGES) -> list[Tensor]:
    with torch.no_grad():
        return tensors_of(network.double()(images.double()))


@pytest.mark.parametrize("name", ANY)
def test_full_branches_are_equivalent_to_the_module(name: str) -> None:
    network = small(ANY[name]()).double()
    plan = blueprint(network, IMAGES.double(), 1)
    design = branched(plan, (1.0, 1.0))
    assert design.meeting_points >= 2
    for found, wanted in zip(double(build(plan, design)), double(network), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


@cache
def traced(name: str) -> tuple[nn.Module, TracedNetwork]:
    """A network, traced once for all merge modes."""
    network = small(ANY[name]())
    return network, trace(network, IMAGES)


@pytest.mark.parametrize(("name", "merge"), list(itertools.product(ANY, [Merge.CONCAT, Merge.ADD])))
def test_counts_of_scaled_branches_match_the_built_network(name: str, merge: Merge) -> None:
    network, whole = traced(name)
    plan = Blueprint(whole, 2, merge)
    original = plan.original_cost
    assert (original.macs, original.params) == (count_macs(whole.graph, IMAGES), count_parameters(whole.graph))
    design = branched(plan, (0.5, 0.6))
    built = build(plan, design)
    assert (design.macs, design.params) == (count_macs(built, IMAGES), count_parameters(built))
    assert design.macs != design.original_macs
    # Another number of images at once, as in training.
    for found, wanted in zip(tensors_of(built(IMAGES[:1])), tensors_of(network(IMAGES[:1])), strict=True):
        assert found.shape == wanted.shape


@pytest.mark.parametrize("name", ["detector", "u-net"])
def test_a_detector_and_a_segmenter_go_through_the_search_to_onnx(name: str) -> None:
    network = small(ANY[name]())
    image = IMAGES[:1]
    plan = blueprint(network, image, 4)
    limits = SearchLimits(alpha=2.0, beta=1.2, min_macs=0.3)
    (design,), report = search(plan, Rates(1e9, 0.8e9, meeting=1e-7), SearchOptions(2, limits, designs=1))
    assert design.meeting_points >= 1
    assert design.predicted_ms is not None
    assert design.predicted_ms < min(report.original_ms)
    built = rebuild(network, image, design)
    wanted = tensors_of(built(image))
    assert [value.shape for value in wanted] == [value.shape for value in tensors_of(network(image))]
    model = export_branched(built, image)
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])
    found = session.run(None, {session.get_inputs()[0].name: image.numpy()})
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(
            one, other.detach().numpy(), rtol=1e-5, atol=1e-5 * float(other.detach().abs().max())
        )


def test_a_head_with_skip_inputs_is_one_block_and_predicted_with_their_channels() -> None:
    plan = blueprint(small(Detector()), IMAGES)
    traced = plan.traced
    names = {block.output: block.name for block in traced.blocks}
    # The neck is part of the chain, so the head reads what the neck makes at every level.
    assert [block.name for block in traced.blocks][-3:] == ["lateral.1", "interpolate_1", "lateral.0"]
    assert [names[skip] for skip in traced.blocks[-1].skips] == ["stages.0.1"]
    assert [names[skip] for skip in traced.head.skips] == ["lateral.1", "lateral.2", "stages.1.1"]
    assert not traced.is_self_contained(Segment(0, len(traced.blocks)))
    # What can be branched is not reported, but the layers that all levels share, which are the rest of the head.
    assert [tower.name for tower in plan.head_parts.towers] == ["smooth.0", "smooth.1", "smooth.2", "auxiliary"]
    assert any("what the 4 branchable parts of the head compute" in note for note in diagnose(plan))
    narrow, wide = (branched(plan, widths) for widths in ((0.5, 0.6), (1.0, 1.0)))
    # Wider maps make the head's first layers larger.
    heads = [design.macs - sum(b.macs for s in design.segments for b in s.branches) for design in (narrow, wide)]
    assert heads[0] < heads[1]
    with pytest.raises(DesignError, match="read after"):
        make_design(
            plan,
            [SegmentChoice(Segment(0, len(traced.blocks)), (BranchChoice(0, tuple(range(len(traced.blocks))), 1.0),))],
        )


def test_downsampling_and_upsampling_paths_form_a_chain_with_skip_connections() -> None:
    traced = trace(small(UNet()), IMAGES)
    sides = [(shape_of(block.output) or ())[-1] for block in traced.blocks]
    assert sides[:3] == [32, 16, 16]
    assert min(sides) == 8
    assert sides[-1] == 32
    skips = [skip for block in traced.blocks for skip in block.skips]
    assert [shape_of(skip) for skip in skips] == [(2, 16, 16, 16), (2, 8, 32, 32)]


class InnerSkip(nn.Module):
    """Goes down and up again, and reads on the way up the body of a residual sum: no cut point, as the sum bypasses it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.body, self.bottom = conv(3, 8), conv(8, 8), conv(8, 8)
        self.up, self.across = nn.ConvTranspose2d(8, 8, 2, 2), conv(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        inner = self.body(x)
        low = self.bottom(functional.max_pool2d(x + inner, 2))
        y: Tensor = self.across(torch.cat([self.up(low), inner], dim=1))
        return y


def test_tensors_inside_a_block_are_not_read_outside() -> None:
    traced = trace(small(InnerSkip()), IMAGES)
    skips = {skip for block in traced.blocks for skip in block.skips}
    for block in traced.blocks:
        inner = {*block.nodes} - {block.output}
        assert not inner & skips, block.name
        assert all(user in block.nodes for node in inner for user in node.users), block.name


def test_whole_blocks_are_joined_up_to_where_a_skip_connection_leaves() -> None:
    traced = trace(small(UNet()), IMAGES)
    single = [Segment(block, block + 1) for block in range(len(traced.blocks))]
    joined = merged_choices(traced, [SegmentChoice(one, (BranchChoice.whole(one, 0),)) for one in single])
    assert 1 < len(joined) < len(single)
    assert all(traced.is_self_contained(choice.segment) for choice in joined if len(choice.segment.blocks) > 1)


def test_all_spellings_of_slices_and_shuffles_become_layers() -> None:
    graph = capture(Tail(Shuffled(16), channels=16).eval(), torch.randn(1, 16, 8, 8))
    modules = [module_of(node) for node in graph.graph.nodes if node.op == "call_module"]
    (shuffle,) = (module for module in modules if isinstance(module, ChannelShuffle))
    assert shuffle.groups == 2
    assert [(m.first, m.stop) for m in modules if isinstance(m, ChannelSlice)] == [(0, 8), (8, 16)]
    assert torch.equal(
        shuffle(torch.arange(6.0).reshape(1, 6, 1, 1)).flatten(), torch.tensor([0.0, 3.0, 1.0, 4.0, 2.0, 5.0])
    )


def test_dense_layers_over_the_last_axis_can_be_scaled() -> None:
    traced = trace(small(Tail(nn.Conv2d(3, 16, 4, 4), ConvNext(16), nn.Conv2d(16, 8, 1), channels=8)), IMAGES)
    plan = plan_channels(traced.blocks, range(len(traced.blocks)))
    assert not any(group.locked for group in plan.groups)
    assert sorted(group.channel_groups for group in plan.groups) == [8, 16, 32]


class InPlace(nn.Module):
    """An operation whose second operand was overwritten by an in-place activation."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.last = conv(3, 8), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = functional.hardswish(x, inplace=True)
        y = y.add_(x)
        z: Tensor = self.last(y)
        return z


def test_readers_of_in_place_results_read_the_right_tensor() -> None:
    network = small(InPlace())
    graph = capture(network, IMAGES)
    torch.testing.assert_close(graph(IMAGES), network(IMAGES))
    images = IMAGES.clone()
    assert all(not getattr(module, "inplace", False) for module in graph.modules())
    assert torch.equal(graph(images), graph(images))


Trace = Callable[[nn.Module, Tensor], fx.GraphModule]


class Calls(nn.Module):
    """Functional layers with arguments that the corresponding modules lack."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.middle, self.last = conv(3, 8), conv(8, 8), nn.Conv2d(8, 4, 1)
        self.shift = nn.Parameter(torch.linspace(0.5, 2.0, 8).reshape(1, 8, 1, 1))
        self.gain = nn.Parameter(torch.linspace(0.5, 1.5, 8))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.add(self.stem(x), self.shift, alpha=2)
        x = functional.dropout2d(x, 0.25, self.training)
        x = functional.group_norm(self.middle(x), 2, self.gain)
        x = functional.dropout(x, p=0.75, training=self.training)
        z: Tensor = self.last(x)
        return z


@pytest.mark.parametrize("trace_it", [_by_fx, _by_export])
def test_functional_calls_keep_their_arguments_and_dropout_is_active_in_training(trace_it: Trace) -> None:
    network = small(Calls())
    graph = canonicalize(trace_it(network, IMAGES), IMAGES)
    torch.testing.assert_close(graph(IMAGES), network(IMAGES))
    dropped = [(type(m), m.p) for m in graph.modules() if isinstance(m, (nn.Dropout, nn.Dropout2d))]
    assert dropped == [(nn.Dropout2d, 0.25), (nn.Dropout, 0.75)]
    assert not any(parameter.is_meta for parameter in graph.parameters())


class WritesOver(nn.Module):
    """In-place activations that exist only as functions in torch."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.hardtanh_(functional.elu_(functional.leaky_relu_(x, 0.2), 0.5), -0.4, 0.3)


def test_in_place_functions_become_out_of_place() -> None:
    graph, images = capture(WritesOver(), IMAGES), IMAGES.clone()
    torch.testing.assert_close(graph(images), WritesOver()(IMAGES.clone()))
    assert torch.equal(images, IMAGES)


class Judges(nn.Module):
    """Returns a mask, and NaN."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(conv(3, 8), nn.Conv2d(8, 4, 1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y: Tensor = self.layers(x)
        return y > 0, torch.where(y > 0, y, torch.nan), torch.where(y > 0, y, -torch.inf)


def test_outputs_may_be_masks_and_contain_nan() -> None:
    network = small(Judges())
    for found, wanted in zip(capture(network, IMAGES)(IMAGES), network(IMAGES), strict=True):
        torch.testing.assert_close(found, wanted, equal_nan=True)


class Attends(nn.Module):
    """Weights between pixels that are normalised over the wrong axis, in a residual block of a network of convolutions."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.query = nn.Conv2d(channels, 3 * channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        read: Tensor = self.query(x)
        q, k, v = read.flatten(2).chunk(3, dim=1)
        y = torch.softmax(q.transpose(1, 2) @ k, dim=-2) @ v.transpose(1, 2)
        return x + y.transpose(1, 2).reshape(x.shape)


def test_unbranched_parts_stay_whole_and_are_diagnosed() -> None:
    network = small(Tail(conv(3, 16, stride=2), Attends(16), Basic(16, 24, 2), Basic(24, 24, 1), channels=24)).double()
    plan = blueprint(network, IMAGES.double(), 1)
    notes = diagnose(plan)
    assert any("layers.1" in note and "softmax" in note for note in notes)
    design = branched(plan, (1.0, 1.0))
    assert design.meeting_points >= 1
    for found, wanted in zip(double(build(plan, design)), double(network), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


class Narrow(nn.Module):
    """Layers of one channel."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 1, 3), nn.ReLU(), nn.Conv2d(1, 1, 3), nn.BatchNorm2d(1), nn.Conv2d(1, 4, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return y


def test_single_channel_layers_keep_their_channel_in_every_branch() -> None:
    network = small(Narrow())
    plan = blueprint(network, IMAGES)
    design = branched(plan, (0.5, 0.5))
    assert {branch.channels for segment in design.segments for branch in segment.branches} == {1}
    built = build(plan, design)
    assert (design.macs, design.params) == (count_macs(built, IMAGES), count_parameters(built))
    torch.testing.assert_close(built(IMAGES), network(IMAGES), rtol=1e-4, atol=1e-4)


def without_statistics() -> nn.Module:
    network = conv(3, 8)
    network[1] = nn.BatchNorm2d(8, track_running_stats=False)
    return nn.Sequential(network, nn.Conv2d(8, 4, 1))


class Decides(nn.Module):
    """Control flow that depends on tensor values."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(conv(3, 8), nn.Conv2d(8, 4, 1))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x if x.sum() > 0 else -x)
        return y


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        (Decides, ["torch.fx", "torch.export", "control flow"]),
        (without_statistics, ["0.1", "no running statistics", "track_running_stats"]),
        (lambda: nn.Conv2d(3, 4, 3), ["Conv2d", "nothing to branch"]),
    ],
)
def test_bad_modules_are_refused_in_one_line(factory: Callable[[], nn.Module], words: list[str]) -> None:
    with pytest.raises(DesignError) as caught:
        trace(factory().eval(), IMAGES)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 600
    for word in words:
        assert word in message
