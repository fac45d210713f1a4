"""Constraints of the search: what is within them, and what is said where nothing is."""

import math
import re
from collections.abc import Collection

import pytest

from nnstretch import zoo
from nnstretch.branching.design.accounting import count_macs
from nnstretch.branching.design.blueprint import blueprint
from nnstretch.branching.design.from_choices import segment_cost
from nnstretch.branching.search.limits import Family, SearchLimits, family_of
from nnstretch.branching.search.options import SearchOptions
from nnstretch.branching.search.search import search
from nnstretch.branching.stretch import rebuild
from nnstretch.branching.tracing.trace import Segment
from nnstretch.errors import DesignError
from nnstretch.graph.layer import TensorType
from tests.kits.networks.searched_networks import (
    IMAGES,
    Rates,
    prepared,
    prepared_small,
    resnet,
)


def test_an_infeasible_beta_is_refused_with_the_best_one() -> None:
    with pytest.raises(DesignError) as caught:
        search(prepared("resnet18"), Rates(100e9, 2e9), SearchOptions(2, even_if_slower=True))
    message = str(caught.value)
    assert "\n" not in message
    assert "beta = 0.8" in message
    assert "the least that can be reached is" in message
    assert "--beta" in message


def test_an_infeasible_alpha_is_refused_with_the_best_one() -> None:
    predictor, options = (
        Rates(100e9, 100e9, meeting=1.0),
        SearchOptions(2, SearchLimits(alpha=0.1), even_if_slower=True),
    )
    with pytest.raises(DesignError, match=r"alpha = 0\.1 .*the least that can be reached is .*--alpha"):
        search(prepared("resnet18"), predictor, options)


def test_infeasible_min_macs_are_refused_with_the_best_ones() -> None:
    with pytest.raises(DesignError, match=r"min_macs = 3 .*the most that can be reached is 1\.\d.*--min-macs"):
        search(prepared("resnet18"), Rates(100e9, 100e9), SearchOptions(2, SearchLimits(min_macs=3.0)))


@pytest.mark.parametrize("predictor", [Rates(100e9, 100e9, together=3.0), Rates(100e9, 100e9, meeting=1.0)])
def test_a_best_effort_finds_designs_where_none_is_within_alpha_and_beta(predictor: Rates) -> None:
    """As where other programs take the time of the processors: branches, or what they exchange, seem slow."""
    plan, limits = prepared("resnet18"), SearchLimits(alpha=0.1)
    with pytest.raises(DesignError) as caught:
        search(plan, predictor, SearchOptions(2, limits, even_if_slower=True))
    forced = SearchOptions(2, limits, designs=2, best_effort=True, even_if_slower=True)
    designs, report = search(plan, predictor, forced)
    assert str(caught.value).startswith(report.lifted)
    assert "--" not in report.lifted  # the advice is taken already
    assert report.lifted in report.lifted_note
    assert (report.limits.alpha, report.limits.beta) == (math.inf, math.inf)
    for design in designs:
        assert design.meeting_points
        for segment in design.segments:
            if len(segment.branches) > 1:
                whole = segment_cost(plan, Segment(segment.first, segment.stop)).macs
                assert sum(branch.macs for branch in segment.branches) >= 0.8 * whole  # as the other limits say


def test_a_best_effort_keeps_the_limits_that_can_be_kept() -> None:
    plan, predictor = prepared_small(), Rates(100e9, 70e9)
    usual, _ = search(plan, predictor, SearchOptions(2))
    designs, report = search(plan, predictor, SearchOptions(2, best_effort=True))
    assert (report.lifted, report.lifted_note, report.limits.alpha) == ("", "", 0.3)
    assert [design.id for design in designs] == [design.id for design in usual]
    with pytest.raises(DesignError, match="min_macs = 3 "):
        search(plan, predictor, SearchOptions(2, SearchLimits(min_macs=3.0), best_effort=True))


def test_segments_are_left_whole_where_branching_would_not_be_faster() -> None:
    class Uneven(Rates):
        """Meetings at large maps are dear; the last segment reads an 8x8 map."""

        def meeting_seconds(self, tensor: TensorType, /, *_: Collection[int]) -> float:
            return 1.0 if 8 < tensor.shape[2] < 64 else 1e-6

    options = SearchOptions(2, SearchLimits(beta=0.99), splits=False)
    designs, _ = search(prepared("resnet18"), Uneven(100e9, 90e9), options)
    # The image can be read by all; between it and the 8x8 map there is no place to meet.
    assert all(len(segment.branches) == 1 or segment.stop >= 8 for segment in designs[0].segments)
    branched = rebuild(resnet(), IMAGES, designs[0])
    assert count_macs(branched, IMAGES) == designs[0].macs


def test_branches_meet_before_they_have_done_too_much() -> None:
    plan = prepared("resnet18")
    for share in (0.2, 0.5):
        designs, _ = search(plan, Rates(100e9, 90e9), SearchOptions(2, SearchLimits(max_segment=share)))
        for segment in designs[0].segments:
            macs = segment_cost(plan, Segment(segment.first, segment.stop)).macs
            is_one_block = segment.stop - segment.first == 1
            assert len(segment.branches) == 1 or is_one_block or macs <= share * designs[0].original_macs


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("resnet18", Family.RESIDUAL),
        ("resnet50", Family.BOTTLENECK),
        ("regnet_x_1_6gf", Family.GROUPED),
        ("mobilenetv2", Family.INVERTED),
        ("vgg16", Family.PLAIN),
    ],
)
def test_families(name: str, family: Family) -> None:
    assert family_of(blueprint(zoo.build(name, num_classes=10, small_images=True), IMAGES).traced) is family


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"alpha": 0.0}, "alpha is 0.0"),
        ({"beta": -1.0}, "beta is -1.0"),
        ({"beta": math.nan}, "beta is nan"),
        ({"min_depth": 1.5}, "min_depth is 1.5"),
        ({"min_width": 0.0}, "min_width is 0.0"),
        ({"min_macs": -0.1}, "min_macs is -0.1"),
        ({"max_segment": 2.0}, "max_segment is 2.0"),
        ({"target_ms": 0.0}, "target_ms is 0.0"),
    ],
)
def test_limits_out_of_range_are_refused(limits: dict[str, float], words: str) -> None:
    with pytest.raises(DesignError, match=re.escape(words)) as caught:
        search(prepared_small(), Rates(1e11, 1e11), SearchOptions(limits=SearchLimits(**limits)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "is_allowed"),
    [
        *((name, math.inf, False) for name in ("alpha", "beta", "target_ms", "min_macs")),
        *((name, 1.0, True) for name in ("min_depth", "min_width", "max_segment")),
        *((name, 0.0, False) for name in ("beta", "min_depth", "max_segment")),
        ("min_macs", 0.0, True),
        ("min_macs", math.nan, False),
    ],
)
def test_ranges_of_limits_end_where_they_say(name: str, value: float, is_allowed: bool) -> None:
    limits = SearchLimits(**{name: value})
    if is_allowed:
        limits.check()
    else:
        with pytest.raises(DesignError, match=f"{name} is {value}"):
            limits.check()
