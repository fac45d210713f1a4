"""Width scaling: numbers of channels, their selection, and their assignment to branches."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from nnstretch import zoo
from nnstretch.branching.channels.coupling import plan_channels
from nnstretch.branching.channels.groups import ChannelPlan, DependencyGroup
from nnstretch.branching.channels.scaling import (
    assign_groups,
    best_groups,
    importance_scores,
    kept_count,
    kept_counts,
    kept_positions,
)
from nnstretch.branching.design.blueprint import blueprint
from nnstretch.branching.tracing.trace import trace

IMAGES = torch.zeros(1, 3, 64, 64)


def group(channel_groups: int, group_channels: int = 1, *, locked: bool = False) -> DependencyGroup:
    return DependencyGroup(0, channel_groups, group_channels, locked, ())


@pytest.mark.parametrize(
    ("channel_groups", "width", "ratio", "multiple", "kept"),
    [
        (64, 1, 0.5, 8, 32),
        (64, 1, 0.55, 8, 32),
        (64, 1, 0.5625, 8, 40),  # half a step goes up
        (64, 1, 0.01, 8, 8),
        (12, 1, 0.9, 8, 8),
        (12, 1, 1.0, 8, 12),
        (4, 1, 0.25, 8, 4),  # too narrow for the multiple
        (38, 24, 0.5, 8, 19),  # groups of 24 are multiples of 8 by themselves
        (10, 3, 0.5, 8, 6),  # three groups of 3 are the least multiple that is not below 8
        (64, 1, 1.25, 8, 80),
    ],
)
def test_kept_count(channel_groups: int, width: int, ratio: float, multiple: int, kept: int) -> None:
    assert kept_count(group(channel_groups, width), ratio, multiple) == kept


def test_a_locked_group_keeps_all() -> None:
    assert kept_count(group(64, locked=True), 0.25) == 64


@given(
    st.integers(1, 60).flatmap(
        lambda n: st.tuples(st.just(n), st.lists(st.integers(1, n), min_size=1, max_size=4), st.integers(0, 2**32 - 1))
    )
)
def test_every_branch_gets_its_count_and_together_they_cover_all_that_fit(case: tuple[int, list[int], int]) -> None:
    channel_groups, counts, seed = case
    scores = np.random.default_rng(seed).random(channel_groups)
    assigned = assign_groups(scores, counts)
    assert [len(part) for part in assigned] == counts
    assert all(len(set(part.tolist())) == len(part) and (np.diff(part) > 0).all() for part in assigned)
    covered = set().union(*(part.tolist() for part in assigned))
    assert len(covered) == min(channel_groups, sum(counts))
    if sum(counts) < channel_groups:
        # Unassigned channel groups are the least important.
        assert min(scores[sorted(covered)]) >= max(scores[i] for i in range(channel_groups) if i not in covered)


def test_important_and_unimportant_channel_groups_are_spread_evenly() -> None:
    scores = np.arange(64, dtype=float)[::-1].copy()
    left, right = assign_groups(scores, [32, 32])
    assert abs(scores[left].sum() - scores[right].sum()) <= 32
    left, right = assign_groups(scores, [48, 24])
    both = set(left.tolist()) & set(right.tolist())
    assert both == set(range(8))  # the best are in both


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.integers(1, 70))
def test_best_groups_repeats_only_when_all_are_taken(scores: list[float], count: int) -> None:
    kept = best_groups(np.array(scores), count)
    occurrences = np.bincount(kept, minlength=len(scores))
    assert occurrences.sum() == count
    assert occurrences.max() - occurrences.min() <= 1
    if occurrences.min() < occurrences.max():
        worst_of_more = min(s for s, n in zip(scores, occurrences, strict=True) if n == occurrences.max())
        best_of_less = max(s for s, n in zip(scores, occurrences, strict=True) if n == occurrences.min())
        assert worst_of_more >= best_of_less


def whole_plan(name: str) -> ChannelPlan:
    traced = trace(zoo.build(name, num_classes=10, small_images=True), IMAGES)
    return plan_channels(traced.chain, range(len(traced.chain)), lock_output=True, allow_entry=False)


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "mobilenetv2"])
def test_dependency_groups_are_those_of_torch_pruning(name: str) -> None:
    """DepGraph's reference implementation finds the same layers that must be pruned together."""
    pruning = pytest.importorskip("torch_pruning")
    network = zoo.build(name, num_classes=10, small_images=True)
    names = {module: path for path, module in network.named_modules()}
    graph = pruning.DependencyGraph().build_dependency(network, IMAGES)
    expected = set()
    for module in network.modules():
        if not isinstance(module, (nn.Conv2d, nn.Linear)) or (isinstance(module, nn.Conv2d) and module.groups > 1):
            continue
        group = graph.get_pruning_group(module, graph.get_pruner_of_module(module).prune_out_channels, [0])
        writers = {
            names[dep.target.module]
            for dep, _ in group
            if isinstance(dep.target.module, (nn.Conv2d, nn.Linear))
            and graph.is_out_channel_pruning_fn(dep.handler)
            and getattr(dep.target.module, "groups", 1) == 1
        }
        expected.add(frozenset(writers))
    plan = whole_plan(name)
    assert {frozenset(str(node.target) for node, _ in s.producers) for s in plan.groups} == expected


def test_groups_are_kept_whole() -> None:
    plan = whole_plan("regnet_x_1_6gf")
    counts = kept_counts(plan, 0.5)
    selection = {
        s.index: best_groups(scores, count)
        for s, scores, count in zip(plan.groups, importance_scores(plan), counts, strict=True)
    }
    grouped = [node for node in plan.produced if str(node.target).endswith("body.1.0")]
    assert len(grouped) == 18
    for node in grouped:
        kept = kept_positions(plan, node, selection).reshape(-1, 24)
        assert (kept == kept[:, :1] + np.arange(24)).all()
        assert (kept[:, 0] % 24 == 0).all()


def test_scores_are_the_norms_of_filters_with_their_batch_norms_scale() -> None:
    network = zoo.build("vgg16", num_classes=10, small_images=True)
    prepared = blueprint(network, IMAGES)
    stage = prepared.traced.stages[1]
    plan = prepared.whole(stage)
    first = network.get_submodule("stages.1.1.0")
    assert isinstance(first, nn.Conv2d)
    norms = first.weight.detach().double().flatten(1).norm(dim=1).numpy()
    assert np.allclose(prepared.scores(stage, tuple(stage.blocks))[0], norms / norms.mean())
    assert str(plan.groups[0].producers[0][0].target) == "stages.1.1.0"
