"""Branched networks: function, counts, channels and gradients."""

import copy
import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from nnstretch import zoo
from nnstretch.branching.channels.scaling import full_selection
from nnstretch.branching.design.accounting import count_macs, count_parameters
from nnstretch.branching.design.blueprint import Blueprint, BranchChoice, SegmentChoice, blueprint
from nnstretch.branching.design.from_choices import make_design
from nnstretch.branching.tracing.operators import Role, channels_of, role_of, tensor_operands
from nnstretch.branching.tracing.trace import Segment, TracedNetwork, trace
from nnstretch.branching.transform.build import build
from nnstretch.branching.transform.inherit import ChannelOrigins, _Channels, _Copier, scaled_copy
from nnstretch.branching.transform.network import BranchedNetwork
from nnstretch.errors import DesignError
from nnstretch.zoo import weights
from nnstretch.zoo.blocks import (
    Chain,
    Residual,
    bottleneck,
    classifier,
    conv_bn,
    conv_relu,
    with_shortcut,
)
from nnstretch.zoo.mobilenet import InvertedRow, inverted_stages

# One network of every kind of block; the others are deeper or wider ones of the same.
CHAINS = ("resnet18", "resnet50", "vgg11", "mobilenetv2", "regnet_x_1_6gf", "squeezenet1_1", "googlenet")


def basic(channels: int, out: int, stride: int) -> Residual:
    body = nn.Sequential(conv_bn(channels, out, 3, stride=stride), conv_bn(out, out, 3, activation=None))
    return with_shortcut(body, channels, out, stride)


def resnet_like() -> Chain:
    """The pool gives the first stage the stem's channels after an identity shortcut: it needs an entry."""
    stem = nn.Sequential(*conv_bn(3, 16, 3, stride=2), nn.MaxPool2d(2))
    stages = [nn.Sequential(basic(16, 16, 1), basic(16, 16, 1)), nn.Sequential(basic(16, 32, 2), basic(32, 32, 1))]
    return Chain(stem, stages, nn.Sequential(*classifier(32, 5)))


def mobilenet_like() -> Chain:
    rows = [InvertedRow(1, 8, 1, 2), InvertedRow(4, 16, 2, 1), InvertedRow(4, 24, 3, 2, kernel=5)]
    stem = nn.Sequential(*conv_bn(3, 16, 3, stride=2, activation=nn.ReLU6))
    head = nn.Sequential(conv_bn(24, 40, 1, activation=nn.ReLU6), *classifier(40, 5, dropout=0.1))
    return Chain(stem, inverted_stages(16, rows), head)


def regnet_like() -> Chain:
    stages = [
        nn.Sequential(bottleneck(16, 24, 2, inner=24, groups=4), bottleneck(24, 24, 1, inner=24, groups=4)),
        nn.Sequential(*(bottleneck(i, 36, s, inner=36, groups=6) for i, s in ((24, 2), (36, 1), (36, 1)))),
    ]
    return Chain(nn.Sequential(*conv_bn(3, 16, 3)), stages, nn.Sequential(*classifier(36, 5)))


def vgg_like() -> Chain:
    stages = [
        nn.Sequential(conv_relu(12, 12, 3, padding=1)),
        nn.Sequential(nn.MaxPool2d(2), conv_relu(12, 20, 3, padding=1), conv_relu(20, 20, 3, padding=1)),
    ]
    # The dense layer reads a 4x4 map of every channel.
    head = nn.Sequential(
        nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(20 * 16, 7), nn.ReLU(), nn.Linear(7, 5)
    )
    return Chain(conv_relu(3, 12, 3, padding=1), stages, head)


class Gate(nn.Module):
    """Squeeze-and-excitation."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, 6, 1), nn.SiLU(), nn.Conv2d(6, channels, 1), nn.Sigmoid()
        )

    def forward(self, x: Tensor) -> Tensor:
        gated: Tensor = x * self.layers(x)
        return gated


def gated_like() -> Chain:
    """Depthwise convolutions, gates, and a stage that begins with a depthwise convolution and a batch norm."""

    def body(channels: int) -> nn.Sequential:
        return nn.Sequential(
            conv_bn(channels, 4 * channels, 1, activation=nn.SiLU),
            conv_bn(4 * channels, 4 * channels, 3, groups=4 * channels, activation=nn.SiLU),
            Gate(4 * channels),
            conv_bn(4 * channels, channels, 1, activation=None),
        )

    separable = [conv_bn(12, 12, 3, stride=2, groups=12), conv_bn(12, 16, 1)]
    stages = [
        nn.Sequential(*(Residual(body(12), nn.Identity(), nn.Identity()) for _ in range(2))),
        nn.Sequential(*separable, *(Residual(body(16), nn.Identity(), nn.Identity()) for _ in range(2))),
    ]
    return Chain(nn.Sequential(*conv_bn(3, 12, 3, stride=2)), stages, nn.Sequential(nn.PReLU(16), *classifier(16, 5)))


class FunctionalBlock(nn.Module):
    """A residual block that shares one ReLU and adds in place."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.bn2 = nn.Conv2d(out, out, 3, 1, 1), nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None if stride == 1 and channels == out else nn.Conv2d(channels, out, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += identity
        result: Tensor = self.relu(y)
        return result


class Functional(nn.Module):
    """Written without containers and with plain functions, as networks of other libraries are."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, 1, 1)
        self.blocks = nn.ModuleList(
            [FunctionalBlock(i, o, s) for i, o, s in ((16, 16, 1), (16, 16, 1), (16, 24, 2), (24, 24, 1))]
        )
        self.scale = nn.Parameter(torch.tensor([1.5]))
        self.classifier = nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu6(self.conv(x)), 3, stride=2, padding=1)
        for block in self.blocks:
            x = block(x)
        x = functional.adaptive_avg_pool2d(x * self.scale, (1, 1))
        x = functional.dropout(x.view(x.size(0), -1), 0.2, self.training)
        result: Tensor = self.classifier(x)
        return result


LIKE: dict[str, Callable[[], nn.Module]] = {
    "resnet": resnet_like,
    "mobilenet": mobilenet_like,
    "regnet": regnet_like,
    "vgg": vgg_like,
    "gated": gated_like,
    "functional": Functional,
}
IMAGES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def fresh(name: str, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, TracedNetwork]:
    network = LIKE[name]()
    weights.initialise(network, 3, 0)
    network.to(dtype).eval()
    return network, trace(network, IMAGES.to(dtype))


traced_once = cache(fresh)
"""Tests change neither the network nor what is traced."""


def prepared(name: str, multiple: int = 1, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, Blueprint]:
    network, traced = traced_once(name, dtype)
    return network, Blueprint(traced, multiple)


def full(plan: Blueprint, branches: int = 2) -> list[SegmentChoice]:
    return [
        SegmentChoice(stage, tuple(BranchChoice(i, tuple(stage.blocks), 1.0) for i in range(branches)))
        for stage in plan.traced.stages
    ]


def outputs(network: nn.Module, images: Tensor = IMAGES) -> Tensor:
    with torch.no_grad():
        result: Tensor = copy.deepcopy(network).double().eval()(images.double())
    return result


@pytest.mark.parametrize("branches", [1, 2, 3])
@pytest.mark.parametrize("name", LIKE)
def test_full_branches_are_equivalent_to_the_network(name: str, branches: int) -> None:
    # In float64 nothing but the order of sums differs.
    network, plan = prepared(name, dtype=torch.float64)
    branched = build(plan, make_design(plan, full(plan, branches)))
    torch.testing.assert_close(outputs(branched), outputs(network), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", LIKE)
def test_a_network_of_one_full_branch_per_segment_is_the_network(name: str) -> None:
    network, plan = prepared(name)
    design = make_design(plan, full(plan, 1))
    branched = build(plan, design)
    assert (design.macs, design.params) == (design.original_macs, design.original_params)
    assert torch.equal(branched(IMAGES), network(IMAGES))


@st.composite
def choices(draw: st.DrawFn, plan: Blueprint) -> list[SegmentChoice]:
    """Branches anywhere: meeting points lie inside stages too, and segments span several of them."""
    found = []
    count = len(plan.traced.blocks)
    inner = draw(st.sets(st.integers(1, count - 1), max_size=4)) if count > 1 else set()
    for first, stop in itertools.pairwise([0, *sorted(inner), count]):
        segment = Segment(first, stop)
        several = plan.branchable(segment)
        branches = tuple(
            BranchChoice(
                draw(st.integers(0, 2)),
                draw(st.sampled_from(plan.depth_candidates(segment) if several else [tuple(segment.blocks)])),
                draw(st.floats(0.05, 1.0)),
            )
            for _ in range(draw(st.integers(1, 3)) if several else 1)
        )
        found.append(SegmentChoice(segment, branches))
    return found


@pytest.mark.parametrize("name", LIKE)
@settings(max_examples=12)
@given(data=st.data())
def test_counts_are_exact_and_gradients_reach_everything(name: str, data: st.DataObject) -> None:
    multiple = data.draw(st.sampled_from([1, 4, 8]))
    _, plan = prepared(name, multiple)
    design = make_design(plan, data.draw(choices(plan)))
    branched = build(plan, design).train()
    assert design.macs == count_macs(branched, IMAGES)
    assert design.params == count_parameters(branched)
    result = branched(IMAGES)
    assert result.shape == (2, 5)
    result.square().sum().backward()
    assert all(parameter.grad is not None for parameter in branched.parameters())


class Numbered(nn.Module):
    """Two stages in which channel c holds the number c + 1, whatever channels are dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 16, 1, bias=False)
        self.first = nn.Conv2d(16, 16, 1, bias=False)
        self.second = nn.Conv2d(16, 16, 1, bias=False)
        dense = nn.Linear(16, 16, bias=False)
        self.head = nn.Sequential(nn.Flatten(), dense)
        with torch.no_grad():
            self.stem.weight.copy_(torch.arange(1.0, 17.0)[:, None, None, None])
            for layer in (self.first, self.second):
                layer.weight.copy_(torch.eye(16)[:, :, None, None])
            dense.weight.copy_(torch.eye(16))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.second(self.first(self.stem(x))))
        return y


def test_branches_write_different_channels_and_the_head_reads_each_once() -> None:
    network = Numbered()
    image = torch.ones(1, 1, 1, 1)
    plan = blueprint(network, image, 1)
    shares = (BranchChoice(0, (0,), 0.75), BranchChoice(1, (0,), 0.5))  # both identities are dropped
    branched = build(plan, make_design(plan, [SegmentChoice(Segment(0, 3), shares)]))
    branches = branched.get_submodule("segments.0.branches").children()
    left, right = ([int(value) for value in branch(image).flatten()] for branch in branches)
    assert (len(left), len(right)) == (12, 8)
    assert left == sorted(set(left))
    assert set(left) | set(right) == set(range(1, 17))
    # Four channels are there twice, and yet everything is counted once.
    torch.testing.assert_close(branched(image), network(image))


def test_a_dense_layer_over_a_flattened_map_divides_by_how_often_a_channel_is_there() -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1), nn.Flatten(), nn.Linear(16, 2))
    plan = blueprint(network, torch.zeros(1, 3, 2, 2), 1)
    copied, written = scaled_copy(
        plan.head, full_selection(plan.head), {plan.head.source: ChannelOrigins(np.array([2, 0, 2, 2]), exact=False)}
    )
    layer, original = copied.get_submodule("3"), network.get_submodule("3")
    assert isinstance(layer, nn.Linear)
    assert isinstance(original, nn.Linear)
    maps = original.weight.detach().reshape(2, 4, 4)
    expected = torch.stack([maps[:, 2] / 3, maps[:, 0], maps[:, 2] / 3, maps[:, 2] / 3], dim=1)
    torch.testing.assert_close(layer.weight.detach(), expected.reshape(2, 16))
    assert written.tolist() == [0, 1]


def test_an_entry_takes_the_mean_of_equal_channels_and_leaves_missing_ones_zero() -> None:
    _, plan = prepared("resnet")
    branch = plan.whole(Segment(1, 2))
    assert branch.source in branch.entries
    origins = np.array([*range(15), 3, 3])  # channel 15 is missing, channel 3 is there three times
    copied, _ = scaled_copy(branch, full_selection(branch), {branch.source: ChannelOrigins(origins, exact=False)})
    entry = copied.get_submodule("entry")
    assert isinstance(entry, nn.Conv2d)
    weight = entry.weight.detach()[:, :, 0, 0]
    assert weight.shape == (16, 17)
    torch.testing.assert_close(weight[3, [3, 15, 16]], torch.full((3,), 1 / 3))
    torch.testing.assert_close(weight.sum(dim=1), torch.tensor([1.0] * 15 + [0.0]))


def test_channels_in_original_order_by_chance_are_counted_like_others() -> None:
    """Two channels, one per branch, come out as they were; the second stage begins with an entry all the same."""
    stages = [nn.Sequential(basic(2, 2, 1)), nn.Sequential(nn.MaxPool2d(2), basic(2, 2, 1))]
    network = Chain(nn.Sequential(*conv_bn(3, 2, 3)), stages, nn.Sequential(*classifier(2, 5)))
    for seed in range(4):
        weights.initialise(network, 3, seed)
        plan = blueprint(network.eval(), IMAGES, 1)
        stage, *others = full(plan, 2)
        first = SegmentChoice(stage.segment, tuple(replace(branch, width=0.5) for branch in stage.branches))
        design = make_design(plan, [first, *others])
        assert design.macs == count_macs(build(plan, design), IMAGES)


def test_sums_of_different_channels_are_refused() -> None:
    _, plan = prepared("resnet")
    part = plan.whole(Segment(2, 3))
    copier = _Copier(part, full_selection(part))
    every = {tensor: np.arange(channels_of(tensor), dtype=np.int64) for tensor in part.sources}
    copier.run({tensor: ChannelOrigins(origins, exact=True) for tensor, origins in every.items()})
    addition = next(node for node in part.nodes if role_of(node) is Role.BINARY)
    first, second = (part.read(operand) for operand in tensor_operands(addition))
    origins = copier.channels[first].origins
    assert np.array_equal(copier._summed(addition).origins, origins)
    for changed in (first, second):
        kept = copier.channels[changed]
        copier.channels[changed] = _Channels(origins[::-1].copy())
        with pytest.raises(DesignError, match="combines tensors that would keep different channels"):
            copier._summed(addition)
        copier.channels[changed] = kept


@pytest.mark.parametrize("training", [True, False])
def test_modes_and_frozen_weights_carry_over_and_the_original_stays(training: bool) -> None:
    network = resnet_like()
    network.stem[0].weight.requires_grad_(False)
    network.train(training)
    before = copy.deepcopy(network.state_dict())
    plan = blueprint(network, IMAGES, 8)
    branched = build(plan, make_design(plan, full(plan)))
    assert branched.training is training
    frozen = {name for name, parameter in branched.named_parameters() if not parameter.requires_grad}
    assert frozen == {f"segments.0.branches.{i}.layers.stem.0.weight" for i in range(2)}
    with torch.no_grad():
        for parameter in branched.parameters():
            parameter.fill_(7.0)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert network.training is training


def test_building_twice_gives_the_same_weights() -> None:
    def weights_of() -> dict[str, Tensor]:
        plan = Blueprint(fresh("mobilenet")[1], 1)
        halves = [
            SegmentChoice(s, tuple(BranchChoice(i, plan.depth_candidates(s)[-1], 0.6) for i in range(2)))
            for s in plan.traced.stages
        ]
        return build(plan, make_design(plan, halves)).state_dict()

    first, second = weights_of(), weights_of()
    assert list(first) == list(second)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_placement_names_modules() -> None:
    _, plan = prepared("resnet")
    branched = build(plan, make_design(plan, full(plan)))
    stages = range(len(plan.traced.stages))
    assert branched.placement == {f"segments.{s}.branches.{i}": i for s in stages for i in range(2)}
    for path in branched.placement:
        branched.get_submodule(path)


def test_a_deep_copy_keeps_the_function() -> None:
    _, plan = prepared("resnet")
    branched = build(plan, make_design(plan, full(plan)))
    duplicate = copy.deepcopy(branched)
    assert isinstance(duplicate, BranchedNetwork)
    assert torch.equal(duplicate(IMAGES), branched(IMAGES))


def with_first(choices: list[SegmentChoice], **changes: Any) -> list[SegmentChoice]:
    """The choices with the first branch of the first segment changed."""
    branch, *others = choices[0].branches
    return [replace(choices[0], branches=(replace(branch, **changes), *others)), *choices[1:]]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c[:-1], "segments end at blocks"),
        (lambda c: [c[1], c[0], *c[2:]], "segments end at blocks"),
        (lambda c: [replace(c[0], branches=()), *c[1:]], "no branch"),
        (lambda c: with_first(c, blocks=(0, 1, 70)), "blocks [0, 1, 70]"),
        (lambda c: with_first(c, blocks=(1,)), "it must keep [0"),
        (lambda c: with_first(c, width=1.5), "width 1.5"),
        (lambda c: with_first(c, processor=-1), "processor -1"),
    ],
)
def test_designs_for_other_networks_are_refused(
    change: Callable[[list[SegmentChoice]], list[SegmentChoice]], words: str
) -> None:
    _, plan = prepared("resnet")
    with pytest.raises(DesignError) as caught:
        make_design(plan, change(full(plan)))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


class Roll(nn.Module):
    """An operation that is not known to keep channels apart."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.roll(x, 1, dims=1)


def test_unknown_operators_keep_their_channels() -> None:
    body = nn.Sequential(conv_bn(16, 16, 3), Roll(), conv_bn(16, 16, 3, activation=None))
    stages = [
        nn.Sequential(Residual(body, nn.Identity(), nn.ReLU()), basic(16, 16, 1)),
        nn.Sequential(basic(16, 32, 2), basic(32, 32, 1)),
    ]
    network = Chain(nn.Sequential(*conv_bn(3, 16, 3, stride=2)), stages, nn.Sequential(*classifier(32, 5))).eval()
    weights.initialise(network, 3, 0)
    plan = blueprint(network, IMAGES, 1)
    assert all(plan.branchable(stage) for stage in plan.traced.stages)
    half = [
        SegmentChoice(stage, tuple(BranchChoice(i, tuple(stage.blocks), 0.5) for i in range(2)))
        for stage in plan.traced.stages
    ]
    branched = build(plan, make_design(plan, half))
    assert branched(IMAGES).shape == (2, 5)
    inner = branched.get_submodule("segments.0.branches.0.layers.stages.0.0.body.0.0")
    assert inner.out_channels == 16
    torch.testing.assert_close(
        outputs(build(plan, make_design(plan, full(plan)))), outputs(network), rtol=1e-10, atol=1e-10
    )


def test_a_stage_whose_channels_must_stay_together_cannot_be_branched() -> None:
    stages = [
        nn.Sequential(basic(16, 16, 1), Roll()),
        nn.Sequential(basic(16, 32, 2), basic(32, 32, 1)),
    ]
    network = Chain(nn.Sequential(*conv_bn(3, 16, 3, stride=2)), stages, nn.Sequential(*classifier(32, 5))).eval()
    plan = blueprint(network, IMAGES, 1)
    assert [plan.branchable(stage) for stage in plan.traced.stages] == [False, True]
    with pytest.raises(DesignError, match=r"segment 0 .* cannot be branched"):
        make_design(plan, full(plan))
    mixed = [full(plan, 1)[0], full(plan, 2)[1]]
    torch.testing.assert_close(outputs(build(plan, make_design(plan, mixed))), outputs(network), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", CHAINS)
def test_zoo_chains_branch_with_exact_counts(name: str) -> None:
    images = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    network = zoo.build(name, num_classes=10, small_images=True)
    plan = blueprint(network, images)
    original = plan.original_cost
    assert (original.macs, original.params) == (count_macs(network, images), count_parameters(network))
    same = build(plan, make_design(plan, full(plan)))
    with torch.no_grad():
        torch.testing.assert_close(same(images), network(images), rtol=1e-4, atol=1e-4)
    two = [
        SegmentChoice(
            stage,
            (BranchChoice(0, plan.depth_candidates(stage)[-1], 0.75), BranchChoice(1, tuple(stage.blocks), 0.5)),
        )
        for stage in plan.traced.stages
    ]
    design = make_design(plan, two)
    branched = build(plan, design)
    assert (design.macs, design.params) == (count_macs(branched, images), count_parameters(branched))
    assert branched(images).shape == (1, 10)
    assert design.meeting_points == len(plan.traced.stages)
