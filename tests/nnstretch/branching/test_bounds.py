"""Learned bounds of depth, width and MACs: bisection, files, and resumed searches."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from nnstretch.branching.design.blueprint import Blueprint, blueprint
from nnstretch.branching.search.bounds import (
    Bounds,
    BoundsCandidate,
    BoundsSearch,
    ShortTraining,
    candidates_by_depth,
    candidates_by_macs,
    candidates_by_width,
)
from nnstretch.branching.search.bounds_file import BoundsSetup, LearnedBounds, load_bounds, weights_digest
from nnstretch.branching.transform.network import BranchedNetwork
from nnstretch.errors import DesignError, FileError, UsageError

ORIGINAL = 90.0


def block(channels: int, out: int, stride: int = 1) -> nn.Module:
    return nn.Sequential(nn.Conv2d(channels, out, 3, stride, 1), nn.ReLU())


@pytest.fixture(scope="module")
def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        body = [block(3, 32), *(block(32, 32) for _ in range(3)), block(32, 64, 2), *(block(64, 64) for _ in range(4))]
        return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)).eval()


@pytest.fixture(scope="module")
def plan(network: nn.Module) -> Blueprint:
    return blueprint(network, torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0)), 4)


class Nature:
    """Simulated trainings: networks below given bounds lose accuracy; records the trainings."""

    def __init__(self, depth: float = 0.5, width: float = 0.4, macs: float = 0.45, ends_after: int = 1000) -> None:
        self.depth, self.width, self.macs, self.ends_after = depth, width, macs, ends_after
        self.trained: list[str] = []

    def keeps(self, network: BranchedNetwork) -> bool:
        pairs = [segment for segment in network.design.segments if len(segment.branches) > 1]
        assert pairs
        branches = [branch for segment in pairs for branch in segment.branches]
        deep = all(branch.depth >= self.depth and branch.width >= self.width for branch in branches)
        return deep and network.design.macs >= self.macs * network.design.original_macs

    def __call__(self, module: nn.Module, what: str) -> tuple[float, float]:
        if len(self.trained) == self.ends_after:
            raise KeyboardInterrupt
        self.trained.append(what)
        good = not isinstance(module, BranchedNetwork) or self.keeps(module)
        return ORIGINAL if good else ORIGINAL - 1.0, 0.5


def learned(plan: Blueprint, network: nn.Module, nature: Nature, **options: Any) -> tuple[Bounds, list[Bounds]]:
    kept: list[Bounds] = []
    known = options.pop("known", Bounds(0.2, 100_000))
    return BoundsSearch(plan, network, nature, known, kept.append, **options).run(), kept


def test_bisection_finds_the_smallest_candidate_within_the_tolerance(plan: Blueprint, network: nn.Module) -> None:
    before = weights_digest(network)
    reports: list[tuple[int, int, str]] = []
    nature = Nature()
    found, kept = learned(plan, network, nature, progress=lambda *now: reports.append(now))

    def least(settings: list[BoundsCandidate], keeps: Callable[[BoundsCandidate], bool]) -> BoundsCandidate:
        return next(setting for setting in settings if keeps(setting))

    assert found.min_depth == least(candidates_by_depth(plan), lambda one: one.depth >= nature.depth).depth
    assert found.min_width == least(candidates_by_width(plan), lambda one: one.width >= nature.width).width
    diagonal = candidates_by_macs(plan, found.min_depth or 0, found.min_width or 0)
    smallest = least(diagonal, lambda one: one.design.macs >= nature.macs * one.design.original_macs)
    assert found.min_macs == pytest.approx(smallest.macs, abs=1e-3)
    assert smallest is not diagonal[0]
    assert found.complete
    assert kept[-1] == found
    assert len(found.trainings) == len(nature.trained) <= 13
    assert nature.trained[0] == "original"
    assert len({training.design for training in found.trainings}) == len(found.trainings)
    assert reports[-1][0] == reports[-1][1]
    assert all(done <= total for done, total, _ in reports)
    assert weights_digest(network) == before  # the caller's network is left alone


def test_candidates_ascend_and_match_their_ratios(plan: Blueprint) -> None:
    depths, widths, diagonal = candidates_by_depth(plan), candidates_by_width(plan), candidates_by_macs(plan, 0.5, 0.25)
    assert [one.depth for one in depths] == sorted({one.depth for one in depths})
    assert [one.width for one in widths] == sorted({one.width for one in widths})
    assert [one.macs for one in diagonal] == sorted(one.macs for one in diagonal)
    assert depths[-1].design.id == widths[-1].design.id  # two full copies
    for one in (*depths, *widths, *diagonal):
        branches = [b for segment in one.design.segments if len(segment.branches) > 1 for b in segment.branches]
        assert all(branch.depth >= one.depth - 1e-9 and branch.width == one.width for branch in branches)
    assert all(one.depth >= 0.5 and one.width >= 0.25 for one in diagonal)


def test_interrupted_learning_resumes(plan: Blueprint, network: nn.Module) -> None:
    whole, _ = learned(plan, network, Nature())
    kept: list[Bounds] = []
    first, second = Nature(ends_after=5), Nature()
    with pytest.raises(KeyboardInterrupt):
        BoundsSearch(plan, network, first, Bounds(0.2, 100_000), kept.append).run()
    found, _ = learned(plan, network, second, known=kept[-1])
    assert found == whole
    assert len(first.trained) + len(second.trained) == len(whole.trainings)
    again = Nature(ends_after=0)
    assert learned(plan, network, again, known=whole)[0] == whole
    # Another tolerance evaluates the same trainings again.
    assert learned(plan, network, Nature(), known=replace(whole, tolerance=5.0))[0].min_width == 2 / 16


def test_an_exhausted_budget_stops_learning_and_a_larger_one_resumes_it(plan: Blueprint, network: nn.Module) -> None:
    kept: list[Bounds] = []
    with pytest.raises(DesignError, match=r"budget of 3 trainings ended .* --budget \d+$") as caught:
        BoundsSearch(plan, network, Nature(), Bounds(0.2, 100_000), kept.append, budget=3).run()
    assert len(kept[-1].trainings) == 3
    enough = int(str(caught.value).split()[-1])
    assert learned(plan, network, Nature(), known=kept[-1], budget=enough)[0] == learned(plan, network, Nature())[0]


def test_tolerance_that_no_candidate_meets_is_reported(plan: Blueprint, network: nn.Module) -> None:
    with pytest.raises(
        DesignError, match=r"no depth stays within .* 89\.00 % .* 90\.00 %.*--recipe.*--max-drop"
    ) as caught:
        learned(plan, network, Nature(macs=100.0))
    assert "\n" not in str(caught.value)


def test_standard_error_on_few_images_widens_the_tolerance() -> None:
    original = ShortTraining("", 1.0, 1.0, 1.0, 90.0, 1.0)
    few, many = (Bounds(0.2, images, trainings=(original,)) for images in (100, 1_000_000))
    assert few.margin == pytest.approx(3.0, rel=0.05)  # 100 sqrt(0.9 0.1 / 100)
    assert few.least == pytest.approx(90.0 - few.margin)
    assert many.least == pytest.approx(89.8)
    assert Bounds(0.2, 50, trainings=(replace(original, top1=100.0),)).margin > 0


# -- files ---------------------------------------------------------------------------------------------------------

SUBJECT = BoundsSetup("net.py:small", "abc", "digits", {"epochs": 1}, "concat", 16)
LEARNED = LearnedBounds(
    SUBJECT,
    Bounds(
        0.2, 500, 0.5, 0.25, 0.8, (ShortTraining("", 1, 1, 1, 90.5, 2.0), ShortTraining("d1", 0.5, 1.0, 1.2, 90.4, 2.0))
    ),
)


@pytest.mark.parametrize("element", [torch.float32, torch.bfloat16])
def test_digests_depend_on_the_weights(element: torch.dtype) -> None:
    digests = set()
    for number in (1.0, 1.0, 2.0):
        layer = nn.BatchNorm2d(3).to(element)
        nn.init.constant_(layer.weight, number)
        digests.add(weights_digest(layer))
    assert len(digests) == 2


def test_files_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    LEARNED.save(path)
    assert load_bounds(path) == LEARNED
    unfinished = replace(LEARNED, bounds=replace(LEARNED.bounds, min_macs=None))
    unfinished.save(path)
    assert load_bounds(path) == unfinished
    assert not unfinished.bounds.complete
    new = LearnedBounds(SUBJECT, Bounds(0.5, 500))
    assert new.resumed(LEARNED, path).bounds == Bounds(0.5, 500, trainings=LEARNED.bounds.trainings)
    for other in (replace(SUBJECT, data="folder:x"), replace(SUBJECT, recipe={"epochs": 2})):
        with pytest.raises(UsageError, match=r"trainings of another kind: (data|recipe) is not the same"):
            LearnedBounds(other, Bounds(0.5, 500)).resumed(LEARNED, path)
    with pytest.raises(UsageError, match="validation images"):
        LearnedBounds(SUBJECT, Bounds(0.5, 400)).resumed(LEARNED, path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"format": "nnstretch-profiles"}, "holds no bounds"),
        ({"version": 2}, "version 2"),
        ({"min_depth": 1.5}, "min_depth is 1.5"),
        ({"min_width": True}, "min_width is True"),
        ({"min_macs": -1}, "min_macs is -1"),
        ({"images": 0}, "images is 0"),
        ({"recipe": []}, "recipe is no object"),
        ({"model": 7}, "model is 7"),
        ({"trainings": [{"design": "d"}]}, "damaged"),
        ({"trainings": 7}, "damaged"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    path = tmp_path / "b.json"
    LEARNED.save(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(FileError, match=says) as caught:
        load_bounds(path)
    assert "\n" not in str(caught.value)


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("{")
    with pytest.raises(FileError, match="no JSON"):
        load_bounds(tmp_path / "text")
    with pytest.raises(FileError, match="No such file"):
        load_bounds(tmp_path / "missing")
