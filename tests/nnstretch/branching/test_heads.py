"""Heads of detectors: parts that do not depend on each other, on several processors and scaled in width."""

import itertools
from functools import cache

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, fx, nn

from nnstretch.branching.design.accounting import count_macs, count_parameters
from nnstretch.branching.design.blueprint import Blueprint, BranchChoice, HeadChoice, SegmentChoice, blueprint
from nnstretch.branching.design.design import Design
from nnstretch.branching.design.from_choices import choices_of, head_of, make_design
from nnstretch.branching.latency.table import LatencyTable
from nnstretch.branching.search.head_candidates import head_candidates, head_units
from nnstretch.branching.search.limits import SearchLimits
from nnstretch.branching.search.network_latency import State, head_prediction, states_before
from nnstretch.branching.search.options import SearchOptions
from nnstretch.branching.search.report import diagnose
from nnstretch.branching.search.search import search
from nnstretch.branching.tracing.trace import Segment
from nnstretch.branching.transform.build import build
from nnstretch.branching.transform.network import export_branched
from nnstretch.errors import DesignError
from nnstretch.exporters.splitting import split
from nnstretch.graph.metadata import PLACEMENT_KEY
from tests.kits.networks.any_module import Levels, small
from tests.kits.networks.searched_networks import Rates

IMAGES = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
TOWERS = ("box.0", "classes.0", "box.1", "classes.1", "box.2", "classes.2")


@cache
def prepared() -> Blueprint:
    return blueprint(small(Levels()), IMAGES)


def body(plan: Blueprint, widths: tuple[float, ...]) -> list[SegmentChoice]:
    """One segment per block, with a branch for every width."""
    blocks = [Segment(number, number + 1) for number in range(len(plan.traced.blocks))]
    return [SegmentChoice(s, tuple(BranchChoice(p, (s.first,), w) for p, w in enumerate(widths))) for s in blocks]


def test_the_body_ends_where_towers_begin() -> None:
    """The layers before the last one of the finest level have more work before them than the coarsest map."""
    plan = prepared()
    stages = [block.name.split(".")[0] for block in plan.traced.blocks]
    assert list(dict.fromkeys(stages)) == ["first", "second", "third"]
    assert plan.head_parts is not None
    assert tuple(tower.name for tower in plan.head_parts.towers) == TOWERS
    assert [len(tower.output.all_input_nodes) for tower in plan.head_parts.towers] == [1] * 6
    assert diagnose(plan) == []


class OneEnd(nn.Module):
    """A classifier with two outputs that one dense layer computes."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.end = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        found = self.end(self.features(x).mean((2, 3)))
        return found, found.softmax(1)


def test_a_head_without_towers_stays_whole() -> None:
    plan = blueprint(OneEnd().eval(), IMAGES)
    assert plan.tower_count == 0
    with pytest.raises(DesignError, match="has 0"):
        make_design(plan, body(plan, (1.0,)), head=[HeadChoice(0, (0,), 1.0)])


@given(
    st.lists(st.integers(0, 2), min_size=6, max_size=6),
    st.lists(st.floats(0.1, 1.0), min_size=3, max_size=3),
    st.sampled_from([(1.0,), (0.5, 0.75)]),
)
@settings(max_examples=12, deadline=None)
def test_costs_are_exact_and_outputs_keep_their_shapes(
    owners: list[int], ratios: list[float], widths: tuple[float, ...]
) -> None:
    plan = prepared()
    head = [
        HeadChoice(p, tuple(t for t, owner in enumerate(owners) if owner == p), ratios[p]) for p in sorted({*owners})
    ]
    design = make_design(plan, body(plan, widths), head=head)
    assert Design.from_json(design.to_json()) == design
    assert list(head_of(design)) == head
    network = build(plan, design)
    assert design.macs == count_macs(network, IMAGES)
    assert design.params == count_parameters(network)
    assert [branch.macs for branch in design.head] == [plan.head_cost(c, _reads(plan, design)).macs for c in head]
    found, expected = network(IMAGES), small(Levels())(IMAGES)
    assert {name: y.shape for name, y in found.items()} == {name: y.shape for name, y in expected.items()}
    if widths == (1.0,) and min(branch.width for branch in design.head) == 1.0:
        assert all(torch.allclose(found[name], y, atol=1e-5) for name, y in expected.items())


def _reads(plan: Blueprint, design: Design) -> dict[fx.Node, State]:
    return states_before(LatencyTable(plan, Rates(1e9, 1e9, 1e9), 3), choices_of(design))


def test_whole_towers_compute_the_original() -> None:
    plan = prepared()
    head = [HeadChoice(0, (0, 3, 4), 1.0), HeadChoice(1, (1, 2, 5), 1.0)]
    design = make_design(plan, body(plan, (1.0,)), head=head)
    assert (design.macs, design.params) == (plan.original_cost.macs, plan.original_cost.params)
    assert (design.meeting_points, design.processors) == (1, (0, 1))
    network = build(plan, design)
    expected = small(Levels())(IMAGES)
    for name, y in network(IMAGES).items():
        torch.testing.assert_close(y, expected[name], rtol=0, atol=1e-5)


def test_exported_branches_name_their_processors() -> None:
    plan, image = prepared(), IMAGES[:1]
    head = [HeadChoice(1, (0, 3, 4), 0.5), HeadChoice(0, (1, 2, 5), 1.0)]
    network = build(plan, make_design(plan, body(plan, (0.5, 0.75)), head=head))
    model = export_branched(network, image)
    convolutions = [node for node in model.graph if node.op_type == "Conv"]
    assert [c.metadata_props.get(PLACEMENT_KEY) for c in convolutions[-18:]] == ["1"] * 9 + ["0"] * 9
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])
    found = session.run(None, {session.get_inputs()[0].name: image.numpy()})
    with torch.no_grad():
        expected = [y.numpy() for y in network(image).values()]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5 * np.abs(other).max())


def test_branches_of_a_head_are_parts_of_their_own() -> None:
    """The parts that `export --per-branch` writes."""
    plan = prepared()
    head = [HeadChoice(0, (0, 3, 4), 1.0), HeadChoice(1, (1, 2, 5), 1.0)]
    design = make_design(plan, body(plan, (0.5, 0.75)), head=head)
    parts = split(export_branched(build(plan, design), IMAGES[:1])).parts
    last = len(design.segments)
    assert [part.name for part in parts[-3:]] == [f"segment{last}-branch0", f"segment{last}-branch1", "head"]
    assert [part.processor for part in parts[-3:]] == [0, 1, None]
    assert [len(part.outputs) for part in parts[-3:]] == [3, 3, 2]
    assert set(parts[-1].inputs) == {name for part in parts[-3:-1] for name in part.outputs}


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ([HeadChoice(0, (0, 1, 2, 3, 4), 1.0)], r"parts \[0, 1, 2, 3, 4\], the network's head has 6"),
        ([HeadChoice(0, (0, 1, 2, 3, 4, 5), 1.0), HeadChoice(1, (), 1.0)], "has 6"),
        ([HeadChoice(0, (0, 1, 2, 3, 4, 5), 1.5)], "width 1.5"),
    ],
)
def test_heads_that_do_not_fit_are_refused(head: list[HeadChoice], message: str) -> None:
    plan = prepared()
    with pytest.raises(DesignError, match=message):
        make_design(plan, body(plan, (1.0,)), head=head)


def test_damaged_heads_are_refused() -> None:
    plan = prepared()
    text = make_design(plan, body(plan, (1.0,)), head=[HeadChoice(0, tuple(range(6)), 1.0)]).to_json()
    for old, new in (('"towers": [', '"towers": ["x",'), ('"format": 3', '"format": 4')):
        assert old in text
        with pytest.raises(DesignError):
            Design.from_json(text.replace(old, new))
    assert '"format": 2' in make_design(plan, body(plan, (1.0,))).to_json()


def test_candidates_are_the_best_of_all_assignments() -> None:
    """Compared with all assignments and widths one by one."""
    plan = prepared()
    latencies = LatencyTable(plan, Rates(3e9, 1e9), 2)
    limits = SearchLimits(alpha=1.0, beta=1.0, min_macs=0.7, min_width=0.75)
    states = {plan.head.source: State(plan.channels_before(len(plan.traced.blocks)), exact=True, home=(0,))}
    found = head_candidates(latencies, limits, states)
    whole = plan.head_cost(HeadChoice(0, tuple(range(6)), 1.0)).macs
    ways: list[tuple[list[HeadChoice], int]] = [([], 0)]
    for owners in itertools.product((0, 1), repeat=6):
        for widths in itertools.product((0.75, 0.875, 1.0), repeat=2 if len({*owners}) == 2 else 0):
            head = [HeadChoice(p, tuple(t for t in range(6) if owners[t] == p), w) for p, w in enumerate(widths)]
            if head:
                ways.append((head, sum(plan.head_cost(choice).macs for choice in head) - whole))
    for head, macs in ways:
        seconds = head_prediction(latencies, states, head).seconds
        if macs >= -0.3 * whole:
            assert any(one.macs >= macs and one.seconds <= seconds + 1e-12 for one in found)
    for candidate in found:
        assert candidate.macs >= -0.3 * whole
        again = head_prediction(latencies, states, candidate.branches)
        assert again.seconds == pytest.approx(candidate.seconds)
    work = [candidate.macs for candidate in found]
    assert work == sorted(work)
    assert head_units(plan) == [(t,) for t in range(6)]


def test_a_search_divides_the_head_among_processors() -> None:
    plan = prepared()
    limits = SearchLimits(alpha=1.0, beta=1.0)
    designs, report = search(plan, Rates(2e9, 2e9, meeting=1e-6), SearchOptions(2, limits, designs=1))
    (design,) = designs
    assert [branch.processor for branch in design.head] == [0, 1]
    assert sorted(t for branch in design.head for t in branch.towers) == list(range(6))
    (prediction,) = report.predictions.values()
    assert len(prediction.head.branches) == 2
    assert design.predicted_ms == pytest.approx(1e3 * prediction.seconds)
    network = build(plan, design)
    assert design.macs == count_macs(network, IMAGES)
    heads = [branch.predicted_ms for branch in design.head]
    assert heads == pytest.approx([1e3 * branch.alone for branch in prediction.head.branches])
