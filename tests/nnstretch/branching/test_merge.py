"""Branches that meet in 1x1 convolutions or in a sum."""

import copy
import math
from collections.abc import Collection
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from nnstretch import zoo
from nnstretch.branching.design.accounting import count_macs, count_parameters
from nnstretch.branching.design.blueprint import Blueprint, BranchChoice, SegmentChoice, blueprint
from nnstretch.branching.design.design import Design, Entry, Merge
from nnstretch.branching.design.from_choices import choices_of, make_design
from nnstretch.branching.search.limits import SearchLimits
from nnstretch.branching.search.options import SearchOptions
from nnstretch.branching.search.search import search
from nnstretch.branching.tracing.trace import TracedNetwork, trace
from nnstretch.branching.transform.build import build
from nnstretch.branching.transform.merge import even_ranges
from nnstretch.branching.transform.network import BranchedNetwork
from nnstretch.branching.transform.variants import Ends
from nnstretch.errors import DesignError
from nnstretch.frontends.torch_module import export
from nnstretch.graph.layer import Layer, TensorType
from nnstretch.passes import optimize
from nnstretch.zoo.blocks import Chain, Residual, classifier, conv_bn, with_shortcut

IMAGES = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
ENDS = (Merge.CONCAT_1X1, Merge.ADD)


def basic(channels: int, out: int, stride: int) -> Residual:
    body = nn.Sequential(conv_bn(channels, out, 3, stride=stride), conv_bn(out, out, 3, activation=None))
    return with_shortcut(body, channels, out, stride)


def small() -> nn.Module:
    """Its first stage begins with an identity shortcut."""
    stages = [nn.Sequential(basic(16, 16, 1), basic(16, 16, 1)), nn.Sequential(basic(16, 30, 2), basic(30, 30, 1))]
    chain = Chain(nn.Sequential(*conv_bn(3, 16, 3, stride=2)), stages, nn.Sequential(*classifier(30, 5)))
    zoo.weights.initialise(chain, 3, 0)
    return chain.eval()


class Dense(nn.Module):
    """A stage that passes its input through, which cannot be divided among branches."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(*conv_bn(3, 16, 3, stride=2))
        self.more = nn.Sequential(*conv_bn(16, 8, 3))
        self.head = nn.Sequential(*classifier(24, 5))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y: Tensor = self.head(torch.cat([x, self.more(x)], dim=1))
        return y


def designed(plan: Blueprint, widths: tuple[float, ...], *, shallow: bool) -> Design:
    """Every stage that may be has as many branches as there are widths; the first ones are shallow, if wanted."""
    choices = []
    for stage in plan.traced.stages:
        depths = plan.depth_candidates(stage) if plan.branchable(stage) else []
        branches = [
            BranchChoice(i, depths[-1 if shallow and i == 0 else 0], width) for i, width in enumerate(widths) if depths
        ]
        whole = [BranchChoice(0, tuple(stage.blocks), 1.0)]
        choices.append(SegmentChoice(stage, plan.meeting(stage, branches or whole)))
    return make_design(plan, choices)


def answers(module: nn.Module) -> Tensor:
    with torch.no_grad():
        answer: Tensor = module(IMAGES)
    return answer


@pytest.mark.parametrize(
    ("name", "widths", "merge"),
    [
        ("", (1.0, 1.0), Merge.CONCAT_1X1),
        ("", (1.0, 1.0, 1.0), Merge.ADD),
        ("mobilenetv2", (1.0, 1.0, 1.0), Merge.CONCAT_1X1),
        ("mobilenetv2", (1.0, 1.0), Merge.ADD),
    ],
)
def test_full_branches_are_equivalent_to_the_network(name: str, widths: tuple[float, ...], merge: Merge) -> None:
    module = zoo.build(name, num_classes=5, small_images=True) if name else small()
    plan = blueprint(module, IMAGES, merge=merge)
    expected = answers(module)
    found = answers(build(plan, designed(plan, widths, shallow=False)))
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))
    narrow = answers(build(plan, designed(plan, (0.5, *widths[1:]), shallow=False)))
    assert not torch.allclose(narrow, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


@pytest.mark.parametrize("merge", ENDS)
def test_ends_are_the_identity_in_training_too(merge: Merge) -> None:
    module = small()
    plan = blueprint(module, IMAGES, merge=merge)
    branched = build(plan, designed(plan, (1.0, 1.0), shallow=False))
    # Batch norms within see statistics of the batch in both; those at the ends have the example's, which is this batch.
    for norm in (m for m in module.modules() if isinstance(m, nn.BatchNorm2d)):
        norm.momentum = None
    expected, found = copy.deepcopy(module), copy.deepcopy(branched)
    for network in (expected, found):
        for name, norm in network.named_modules():
            if isinstance(norm, nn.BatchNorm2d):
                norm.train(".exit." in name)
    assert torch.allclose(answers(found), answers(expected), rtol=1e-3, atol=1e-3)


@cache
def traced(name: str) -> TracedNetwork:
    return trace(zoo.build(name, num_classes=5, small_images=True), IMAGES)


@pytest.mark.parametrize("merge", list(Merge))
@pytest.mark.parametrize("name", ["resnet18", "mobilenetv2", "squeezenet1_1"])
def test_counts_are_those_of_the_built_network(name: str, merge: Merge) -> None:
    plan = Blueprint(traced(name), merge=merge)
    design = designed(plan, (0.5, 0.75, 0.3), shallow=True)
    again = Design.from_json(design.to_json())
    assert choices_of(again) == choices_of(design)
    branched = build(plan, again)
    assert (count_macs(branched, IMAGES), count_parameters(branched)) == (design.macs, design.params)
    assert answers(branched).isfinite().all()


@pytest.mark.parametrize("merge", ENDS)
def test_meeting_points_have_the_original_channels(merge: Merge) -> None:
    plan = blueprint(small(), IMAGES, merge=merge)
    branched = build(plan, designed(plan, (0.5, 1.0, 0.5), shallow=True))
    x = IMAGES
    for segment, place in zip(branched.segments, branched.design.segments, strict=True):
        x = segment(x)
        assert x.shape[1] == plan.channels_before(place.stop)


def test_ranges_are_even_and_cover_all_channels() -> None:
    assert even_ranges(30, 4) == [(0, 8), (8, 16), (16, 23), (23, 30)]
    assert even_ranges(2, 3) == [(0, 1), (1, 2), (2, 2)]


def test_channels_that_a_branch_lacks_begin_as_their_mean() -> None:
    plan = blueprint(small(), IMAGES, merge=Merge.CONCAT_1X1)
    stage = plan.traced.stages[-1]
    first = plan.traced.stages[0]
    narrow = BranchChoice(0, tuple(stage.blocks), 0.25)
    design = make_design(
        plan,
        [
            SegmentChoice(first, (BranchChoice(0, tuple(first.blocks), 1.0),)),
            SegmentChoice(stage, plan.meeting(stage, (narrow, BranchChoice(1, tuple(stage.blocks), 1.0)))),
        ],
    )
    branched = build(plan, design)
    ends = branched.segments[1].branches[0].layers.exit
    closed = ends.norm.weight == 0
    assert closed.sum() == 15 - 8
    mean, _ = plan.statistics[plan.traced.blocks[stage.stop - 1].output]
    assert torch.allclose(ends.norm.bias[closed], mean[:15].float()[closed], rtol=1e-5, atol=1e-6)
    loss = branched.train()(IMAGES).square().sum()
    loss.backward()
    assert (ends.norm.weight.grad[closed] != 0).any()
    assert all(p.grad is None or p.grad.isfinite().all() for p in branched.parameters())


def test_exits_allow_branches_whose_channels_could_not_be_divided() -> None:
    module = Dense().eval()
    assert not any(map(blueprint(module, IMAGES).branchable, blueprint(module, IMAGES).traced.stages[1:]))
    plan = blueprint(module, IMAGES, merge=Merge.ADD)
    design = designed(plan, (1.0, 1.0), shallow=False)
    assert design.meeting_points
    branched = build(plan, design)
    assert (count_macs(branched, IMAGES), count_parameters(branched)) == (design.macs, design.params)
    assert torch.allclose(answers(branched), answers(module), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("merge", ENDS)
def test_merged_branches_without_the_original_channels_are_refused(merge: Merge) -> None:
    plan = blueprint(small(), IMAGES, merge=merge)
    stage = plan.traced.stages[0]
    halves = tuple(BranchChoice(i, tuple(stage.blocks), 0.25 + i / 2) for i in range(2))
    rest = [SegmentChoice(s, (BranchChoice(0, tuple(s.blocks), 1.0),)) for s in plan.traced.stages[1:]]
    ends = tuple(BranchChoice(c.processor, c.blocks, c.width, Ends(exit=(0, 4))) for c in halves)
    with pytest.raises(DesignError, match="segment 0 write"):
        make_design(plan, [SegmentChoice(stage, ends), *rest])


def test_designs_need_a_network_prepared_for_their_merge_mode() -> None:
    module = small()
    plan = blueprint(module, IMAGES, merge=Merge.ADD)
    design = designed(plan, (1.0, 0.5), shallow=False)
    with pytest.raises(DesignError, match="merges by add"):
        build(blueprint(module, IMAGES), design)


def test_entries_that_fit_no_block_are_refused() -> None:
    plan = blueprint(zoo.build("vgg11", num_classes=5, small_images=True), IMAGES)
    stage = plan.traced.stages[1]
    with pytest.raises(DesignError, match="no shortcut that could be projected"):
        plan.plan(stage, BranchChoice(0, tuple(stage.blocks), 1.0, Ends(Entry.PROJECTION)))
    with pytest.raises(DesignError, match="cannot run again"):
        plan.plan(stage, BranchChoice(0, (*stage.blocks[:1], *stage.blocks), 1.0))


class Steady:
    """A layer takes as long as it has MACs, on either processor; meeting is almost free."""

    def seconds(self, layers: list[Layer], processor: int) -> float:
        del processor
        return sum(1e-6 * (1 + layer.macs / 1e4) for layer in layers)

    def fused_seconds(self, pair: Layer, processor: int) -> float:
        del pair, processor
        return math.inf

    def confirm(self, layers: list[Layer], processor: int) -> bool:
        del layers, processor
        return False

    def meeting_seconds(self, tensor: TensorType, *_: Collection[int]) -> float:
        return 1e-9 * math.prod(tensor.shape)

    def fetch_seconds(self, tensor: TensorType, *_: Collection[int]) -> float:
        del tensor
        return 0.0

    def contention_factor(self, processor: int, others: frozenset[int]) -> float:
        del processor, others
        return 1.0


@pytest.mark.parametrize("merge", ENDS)
def test_searches_find_designs_that_can_be_built(merge: Merge) -> None:
    module = small()
    limits = SearchLimits(alpha=1.0, beta=1.0, min_macs=0.5, max_segment=1.0)
    designs, _ = search(blueprint(module, IMAGES[:1], merge=merge), Steady(), SearchOptions(2, limits, designs=2))
    for design in designs:
        assert design.merge is merge
        assert design.meeting_points
        branched = build(blueprint(module, IMAGES[:1], design.multiple, merge), design)
        assert (count_macs(branched, IMAGES), count_parameters(branched)) == (design.macs, design.params)
        assert answers(branched).isfinite().all()


def test_a_sum_where_branches_meet_is_a_layer_that_any_processor_may_run() -> None:
    from nnstretch.branching.transform.network import export_branched
    from nnstretch.graph.metadata import PLACEMENT_KEY

    plan = blueprint(small(), IMAGES[:1], merge=Merge.ADD)
    design = designed(plan, (1.0, 0.5, 0.5), shallow=False)
    branched: BranchedNetwork = build(plan, design)
    placed = optimize(export_branched(branched, IMAGES[:1]))
    sums = [node for node in placed.graph if node.op_type == "Add"]
    assert len(sums) == 2 * design.meeting_points
    assert all(PLACEMENT_KEY not in node.metadata_props for node in sums)
    # Without processors there is nobody to wait for.
    alone = optimize(export(branched, IMAGES[:1]))
    assert not [node for node in alone.graph if node.op_type == "Add"]
