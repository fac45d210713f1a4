"""The search: constraints, optimality on small networks, agreement of predictions with the exported graph."""

import itertools
import math
import re

import pytest
import torch
from torch import nn

from nnstretch import zoo
from nnstretch.branching.accounting import count_macs, count_parameters
from nnstretch.branching.build import Blueprint, BranchChoice, blueprint, build, make_design
from nnstretch.branching.export import export_branched
from nnstretch.branching.options import SearchLimits
from nnstretch.branching.scaling import kept_counts
from nnstretch.branching.search import SearchReport, search, search_blueprint
from nnstretch.branching.stretch import rebuild, stretch
from nnstretch.branching.workloads import part_layers
from nnstretch.errors import DesignError
from nnstretch.graph.layer import Layer, TensorType
from nnstretch.graph.layers import layers
from nnstretch.graph.passes import optimize
from nnstretch.graph.placement import PLACEMENT_KEY
from nnstretch.zoo import weights
from nnstretch.zoo.blocks import Chain, Residual, classifier, conv_bn, with_shortcut

IMAGES = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))


class Rates:
    """Every processor has a rate for multiply-accumulates, and memory and launches cost the same everywhere."""

    def __init__(self, *rates: float, meeting: float = 5e-6) -> None:
        self.rates, self.meeting = rates, meeting
        self.asked: set[tuple[int, str]] = set()

    def layer_seconds(self, layer: Layer, processor: int) -> float:
        moved = sum(t.elements for t in (*layer.inputs, *layer.outputs) if t is not None)
        return layer.macs / self.rates[processor] + 4 * moved / 20e9 + 1e-6

    def seconds(self, found: list[Layer], processor: int, /) -> float:
        self.asked.update((processor, layer.workload) for layer in found)
        return sum(self.layer_seconds(layer, processor) for layer in found)

    def meeting_seconds(self, tensor: TensorType, /) -> float:
        return self.meeting + tensor.elements * 1e-11


def basic(channels: int, out: int, stride: int) -> Residual:
    body = nn.Sequential(conv_bn(channels, out, 3, stride=stride), conv_bn(out, out, 3, activation=None))
    return with_shortcut(body, channels, out, stride)


def small(stages: int = 2) -> Chain:
    widths = [32, 48, 64][: stages + 1]
    parts = [
        nn.Sequential(basic(before, after, 2), basic(after, after, 1)) for before, after in itertools.pairwise(widths)
    ]
    network = Chain(nn.Sequential(*conv_bn(3, 32, 3, stride=2)), parts, nn.Sequential(*classifier(widths[-1], 10)))
    weights.initialise(network, 3, 0)
    return network.eval()


def resnet() -> nn.Module:
    return zoo.build("resnet18", num_classes=10, small_images=True)


def test_designs_are_within_the_limits_and_ranked() -> None:
    network, predictor = resnet(), Rates(100e9, 70e9)
    designs, report = search(network, IMAGES, predictor, 2, designs=4)
    assert 1 <= len(designs) <= 4
    times = [design.predicted_ms for design in designs]
    assert times == sorted(times, key=lambda ms: ms or 0.0)
    assert len({design.id for design in designs}) == len(designs)
    fastest = min(report.original_ms)
    for design in designs:
        assert design.predicted_ms is not None
        assert design.predicted_ms < 0.65 * fastest
        assert 0.7 * design.original_macs <= design.macs
        assert design.meeting_points == 4
        for segment in design.segments:
            assert [branch.processor for branch in segment.branches] == [0, 1]
            assert all(branch.depth >= 0.5 and branch.width >= 0.25 for branch in segment.branches)
    assert design.original_macs == count_macs(network, IMAGES)
    assert design.original_params == count_parameters(network)


def test_few_different_layers_are_asked_for() -> None:
    predictor = Rates(100e9, 70e9)
    _, report = search(resnet(), IMAGES, predictor, 2)
    assert report.predicted_workloads == len(predictor.asked)
    # At 15 ms each they would take 15 s.
    assert report.predicted_workloads <= 1000


def test_the_report_counts_candidates_after_every_step() -> None:
    _, report = search(resnet(), IMAGES, Rates(100e9, 70e9), 2)
    assert [segment.segment for segment in report.segments] == [0, 1, 2, 3]
    for segment in report.segments:
        assert segment.branches >= segment.within_latency > 0
        assert segment.combinations >= segment.within_communication >= segment.within_capacity >= segment.kept > 0
        assert segment.best_beta <= 0.8
        assert segment.best_alpha <= 0.3
        assert segment.best_macs >= 0.8
        assert segment.note == ""
    assert report.joined > 0


def exported_ms(plan: Blueprint, design_index: int, predictor: Rates) -> tuple[float, float]:
    """Latency of a design predicted by the search, and added up from the layers of its exported graph."""
    designs, _ = search_blueprint(plan, predictor, 2)
    design = designs[design_index]
    graph = layers(optimize(export_branched(build(plan, design), IMAGES)))
    total = 0.0
    for segment in range(len(design.segments)):
        prefix = f"segments.{segment}"
        sums = [0.0, 0.0]
        for node in graph:
            if node.path.startswith(f"{prefix}.branches"):
                processor = int(node.metadata[PLACEMENT_KEY])
                sums[processor] += predictor.layer_seconds(node.layer, processor)
            elif node.path == prefix:
                total += min(predictor.layer_seconds(node.layer, p) for p in (0, 1))
                total += predictor.meeting_seconds(node.layer.outputs[0])
        total += max(sums)
        for branch, seconds in zip(design.segments[segment].branches, sums, strict=True):
            assert branch.predicted_ms == pytest.approx(seconds * 1e3)
    for node in graph:
        if not node.path.startswith("segments"):
            total += predictor.layer_seconds(node.layer, 0)  # the first processor is the faster one
    assert design.predicted_ms is not None
    return design.predicted_ms, total * 1e3


def test_the_predicted_latency_is_that_of_the_exported_graph() -> None:
    plan = blueprint(small(), IMAGES)
    stem = plan.stem
    assert stem is not None
    predicted, added = exported_ms(plan, 0, Rates(100e9, 60e9))
    # What meets at the first segment is the stem's output, which one processor hands to the other.
    handed = (5e-6 + 32 * 32 * 32 * 1e-11) * 1e3
    assert predicted == pytest.approx(added + handed, rel=1e-6)


def test_no_pair_of_branches_on_the_grid_is_faster() -> None:
    """Against brute force over a network of one segment."""
    plan, predictor = blueprint(small(1), IMAGES), Rates(100e9, 60e9)
    found, _ = search_blueprint(plan, predictor, 2, SearchLimits(min_width=0.5))
    original = make_design(plan, [[BranchChoice(0, plan.all_blocks(0), 1.0)]]).segments[0].branches[0].macs
    branches = [
        [BranchChoice(p, blocks, i / 16) for blocks in plan.depth_options(0) for i in range(8, 17)] for p in (0, 1)
    ]
    best = math.inf
    for pair in itertools.product(*branches):
        made = make_design(plan, [pair]).segments[0].branches
        if sum(branch.macs for branch in made) >= 0.8 * original:
            best = min(best, max(branch_seconds(plan, choice, predictor) for choice in pair))
    chosen = found[0].segments[0].branches
    slowest = max(branch.predicted_ms or math.inf for branch in chosen)
    assert slowest <= best * 1e3 * (1 + 1e-9)
    assert sum(branch.macs for branch in chosen) >= 0.95 * 0.8 * original


def branch_seconds(plan: Blueprint, choice: BranchChoice, predictor: Rates) -> float:
    part = plan.branch(0, choice.blocks)
    run = part_layers(part, kept_counts(part, choice.width, plan.multiple), 32, exact=True)
    return predictor.seconds(run, choice.processor)


def test_a_processor_that_is_too_slow_is_refused_with_what_can_be_reached() -> None:
    with pytest.raises(DesignError) as caught:
        search(resnet(), IMAGES, Rates(100e9, 2e9), 2)
    message = str(caught.value)
    assert "\n" not in message
    assert "beta = 0.8" in message
    assert "the least that can be reached is" in message


def test_meetings_that_cost_too_much_are_refused_with_what_can_be_reached() -> None:
    with pytest.raises(DesignError, match=r"alpha = 0\.1 .*the least that can be reached is"):
        search(resnet(), IMAGES, Rates(100e9, 100e9, meeting=1.0), 2, SearchLimits(alpha=0.1))


WHOLE = [(0, 1, 2), (0, 1), (0, 1), (0, 1, 2)]


def test_capacity_that_cannot_be_reached_gives_nearly_the_most() -> None:
    designs, report = search(resnet(), IMAGES, Rates(100e9, 100e9), 2, SearchLimits(beta=0.4))
    assert all(segment.best_macs < 0.8 for segment in report.segments)
    whole = make_design(blueprint(resnet(), IMAGES), [[BranchChoice(0, blocks, 1.0)] for blocks in WHOLE])
    for segment, original, found in zip(designs[0].segments, whole.segments, report.segments, strict=True):
        reached = sum(branch.macs for branch in segment.branches) / original.branches[0].macs
        assert reached >= 0.85 * found.best_macs


def test_segments_are_left_whole_where_branching_would_not_be_faster() -> None:
    class Uneven(Rates):
        """Meetings at large maps are dear; the last segment reads an 8x8 map."""

        def meeting_seconds(self, tensor: TensorType, /) -> float:
            return 1.0 if 8 < tensor.shape[2] < 64 else 1e-6

    designs, report = search(resnet(), IMAGES, Uneven(100e9, 90e9), 2)
    assert [len(segment.branches) for segment in designs[0].segments] == [1, 1, 1, 2]
    assert "alpha" in report.segments[0].note
    assert designs[0].meeting_points == 1
    branched = rebuild(resnet(), IMAGES, designs[0])
    assert count_macs(branched, IMAGES) == designs[0].macs


def test_three_processors() -> None:
    designs, _ = search(small(), IMAGES, Rates(100e9, 80e9, 60e9), 3)
    assert designs[0].processors == (0, 1, 2)
    assert all(len(segment.branches) in (1, 3) for segment in designs[0].segments)


def test_equal_searches_give_equal_designs() -> None:
    def run() -> tuple[list[str], SearchReport]:
        designs, report = search(small(), IMAGES, Rates(100e9, 70e9), 2)
        return [design.to_json() for design in designs], report

    assert run() == run()


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"alpha": 0.0}, "alpha is 0.0"),
        ({"beta": -1.0}, "beta is -1.0"),
        ({"beta": math.nan}, "beta is nan"),
        ({"min_depth": 1.5}, "min_depth is 1.5"),
        ({"min_width": 0.0}, "min_width is 0.0"),
        ({"min_macs": -0.1}, "min_macs is -0.1"),
    ],
)
def test_limits_out_of_range_are_refused(limits: dict[str, float], words: str) -> None:
    with pytest.raises(DesignError, match=re.escape(words)) as caught:
        search(small(), IMAGES, Rates(1e11, 1e11), limits=SearchLimits(**limits))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"processors": 1}, "1 processors"), ({"designs": 0}, "0 designs"), ({"multiple": 0}, "multiples of 0")],
)
def test_options_out_of_range_are_refused(options: dict[str, int], words: str) -> None:
    with pytest.raises(DesignError, match=words) as caught:
        search(small(), IMAGES, Rates(1e11, 1e11), **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_progress_ends_complete() -> None:
    told: list[tuple[str, int, int]] = []
    search(small(), IMAGES, Rates(1e11, 1e11), progress=lambda *now: told.append(now))
    assert told[-1][1] == told[-1][2]
    assert all(0 <= done <= total for _, done, total in told)


def test_stretch_builds_what_the_designs_say() -> None:
    network = small().train()
    results = stretch(network, IMAGES, Rates(100e9, 70e9), designs=2)
    assert [result.design.predicted_ms for result in results] == sorted(
        result.design.predicted_ms or 0.0 for result in results
    )
    for result in results:
        assert result.module.training
        assert count_macs(result.module, IMAGES) == result.design.macs
        assert count_parameters(result.module) == result.design.params
        again = rebuild(network, IMAGES, result.design).state_dict()
        assert all(torch.equal(value, again[name]) for name, value in result.module.state_dict().items())
