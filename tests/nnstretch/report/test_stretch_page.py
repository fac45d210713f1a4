"""The page of a search for branchings: complete, self-contained, true, and safe to open."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import torch
from torch import nn

from nnstretch.branching.design.blueprint import blueprint
from nnstretch.branching.search.limits import SearchLimits
from nnstretch.branching.search.options import SearchOptions
from nnstretch.branching.search.report import SearchReport
from nnstretch.branching.stretch import StretchResult, stretch
from nnstretch.cli.console import Reporter
from nnstretch.cli.stretching.files import PAGE, write_page
from nnstretch.cli.stretching.search import FoundDesigns, show
from nnstretch.errors import FileError
from nnstretch.graph.layer import Layer, TensorType
from nnstretch.report.charts.stretch import front_svg
from nnstretch.report.pages.stretch import PredictedDesign, stretch_html
from nnstretch.report.tables.text import power_text

HOSTILE = "<script>alert('&\"')</script>"
SVG = "{http://www.w3.org/2000/svg}"
NAMES = ("cpu:0", f"opencl{HOSTILE}")


class Rates:
    """Two processors with a rate each."""

    def seconds(self, layers: list[Layer], processor: int, /) -> float:
        return sum(layer.macs / (100e9, 70e9)[processor] + 1e-6 for layer in layers)

    def fused_seconds(self, pair: Layer, processor: int, /) -> float:
        return math.inf

    def confirm(self, layers: list[Layer], processor: int, /) -> bool:
        return False

    def meeting_seconds(self, tensor: TensorType, /, *_: object) -> float:
        return 5e-7

    def fetch_seconds(self, tensor: TensorType, /, *_: object) -> float:
        return 0.0

    def contention_factor(self, processor: int, others: frozenset[int], /) -> float:
        return 1.1


@pytest.fixture(scope="module")
def results() -> list[StretchResult]:
    def block(channels: int, out: int, stride: int = 1) -> nn.Module:
        return nn.Sequential(nn.Conv2d(channels, out, 3, stride, 1), nn.ReLU())

    network = nn.Sequential(
        *(block(3, 32), block(32, 64), block(64, 64), block(64, 96, 2), block(96, 96)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, 4)),
    )
    limits = SearchLimits(alpha=1.0, beta=0.95, max_segment=1.0)
    return stretch(blueprint(network.eval(), torch.zeros(1, 3, 32, 32)), Rates(), SearchOptions(2, limits, designs=3))


class Text(HTMLParser):
    """What a page shows, its tags, its anchors and where its links lead."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            if name in ("href", "src") and value:
                self.links.append(value)
            assert not name.startswith("on"), f"{tag} has {name}"

    def handle_data(self, data: str) -> None:
        self.text += f"{data} "


def shown(results: list[StretchResult], files: Callable[[int], str | None] = lambda rank: f"{rank}.json") -> Text:
    found = [PredictedDesign(one.design, one.prediction, files(rank)) for rank, one in enumerate(results)]
    return Text(stretch_html("net<small>", NAMES, results[0].report, found))


def test_the_page_says_what_was_dropped_and_why(results: list[StretchResult]) -> None:
    page, report = shown(results), results[0].report
    for step in report.pruning:
        assert power_text(step.designs_log10) in page.text
        assert step.step in page.text
    for name in ("alpha", "beta", "min-macs", "min-depth", "min-width", "max-segment"):
        assert name in page.text
    assert f"{len(report.boundaries)} of {report.cut_points} cut points" in page.text
    assert all(block.name in page.text for block in report.blocks)
    assert "plain" in page.text  # the family whose bounds hold


def test_the_page_says_that_limits_were_left_out() -> None:
    network = nn.Sequential(nn.Conv2d(3, 32, 3), nn.Conv2d(32, 32, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    plan, limits = blueprint(network, torch.zeros(1, 3, 32, 32)), SearchLimits(beta=1e-3)
    page = shown(stretch(plan, Rates(), SearchOptions(2, limits, best_effort=True)))
    assert "little or no gain is predicted" in page.text
    assert "beta = 0.001" in page.text
    assert "inf" not in page.text.split()


def test_the_page_shows_every_design_part_by_part(results: list[StretchResult]) -> None:
    page = shown(results)
    assert len(results) > 1
    for rank, one in enumerate(results):
        assert one.design.id in page.anchors
        assert f"#{one.design.id}" in page.links
        assert f"{rank}.json" in page.links
        assert f"{one.design.predicted_ms:.3f}" in page.text
        for segment, part in zip(one.design.segments, one.prediction.segments, strict=True):
            for branch, predicted in zip(segment.branches, part.branches, strict=True):
                assert f"{1e3 * predicted.alone:.4f}" in page.text
                assert str(branch.channels) in page.text
    assert all(link.removeprefix("#") in page.anchors for link in page.links if link.startswith("#"))
    without = shown(results, lambda _: None)
    assert not any(link.endswith(".json") for link in without.links)


def test_the_page_says_which_designs_were_measured(results: list[StretchResult]) -> None:
    assert not results[0].report.measured_ms
    assert "No design was measured" in shown(results).text
    assert "measured ms" not in shown(results).text
    report = replace(results[0].report, measured_ms={results[1].design.id: 98.7654})
    page = shown([replace(one, report=report) for one in results])
    assert "No design was measured" not in page.text
    assert "measured ms" in page.text
    assert page.text.count("98.765") == 1


@pytest.mark.parametrize("rates", [(1.0, 0.7), (1.0, 0.02), (1.0, 1.0)])
def test_no_label_of_the_front_lies_over_the_perfect_split(
    results: list[StretchResult], rates: tuple[float, float]
) -> None:
    """Its line is straight, so that it is enough to know where it is beside every label."""
    report = results[0].report
    known = replace(report, original_ms=tuple(min(report.original_ms) / rate for rate in rates))
    root = ET.fromstring(front_svg(known, [one.design for one in results]))  # noqa: S314 - our own text
    (drawn,) = (one.get("points", "").split() for one in root.iter(f"{SVG}polyline") if one.get("class") == "bound")
    (x0, y0), (x1, y1) = (map(float, point.split(",")) for point in drawn)
    found = [one for one in root.iter(f"{SVG}text") if one.text in ("perfect split", "original")]
    assert {one.text for one in found} == {"perfect split", "original"}
    for one in found:
        x, y = float(one.get("x", "")), float(one.get("y", ""))
        width = 6.4 * len(one.text or "")
        left = x - {"end": width, "middle": width / 2}.get(one.get("text-anchor", ""), 0.0)
        assert 0 < left < left + width < 960
        if min(y0, y1) <= y <= max(y0, y1) + 10:
            crossing = x0 + (x1 - x0) * (min(y, max(y0, y1)) - y0) / (y1 - y0)
            assert not left - 2 < crossing < left + width + 2


def test_the_page_needs_nothing_and_runs_nothing(results: list[StretchResult]) -> None:
    report = results[0].report
    notes = SearchReport(**{**vars(report), "diagnostics": (f"block 1, {HOSTILE}: no",), "unpredicted": (HOSTILE,)})
    found = [PredictedDesign(one.design, one.prediction, f"{HOSTILE}.json") for one in results]
    written = stretch_html(HOSTILE, NAMES, notes, found)
    page = Text(written)
    assert not page.tags & {"script", "iframe", "link", "img"}
    assert "<script" not in written
    assert page.text.count(HOSTILE) >= 4
    assert not re.search(r"https?://", written.replace("http://www.w3.org/2000/svg", ""))


def test_the_page_lies_beside_the_designs(results: list[StretchResult], tmp_path: Path) -> None:
    files = [str(tmp_path / f"{rank}.json") for rank in range(len(results))]
    path = write_page(tmp_path, "net.py:small", ("cpu:0", "cpu:1"), results, files)
    assert path == tmp_path / PAGE
    links = Text(path.read_text(encoding="utf-8")).links
    assert {Path(file).name for file in files} <= set(links)  # so that the folder can be moved
    with pytest.raises(FileError):
        write_page(tmp_path / "missing", "m", ("a", "b"), results, files)


@pytest.mark.parametrize("ratio", [1.9, 2.1])
def test_a_bad_prediction_is_told_directly_below_its_table(
    results: list[StretchResult], ratio: float, capsys: pytest.CaptureFixture[str]
) -> None:
    design = results[0].design
    ran = replace(results[0].report, measured_ms={design.id: ratio * (design.predicted_ms or 0.0)})
    show(Reporter(sys.stderr, as_json=False), FoundDesigns([replace(results[0], report=ran)], {}), NAMES, None)
    said = " ".join(capsys.readouterr().err.split())
    warning = "over predicted latency a design took much longer than predicted: "
    assert (warning in said) == (ratio > 2)
    assert ("search again on a quiet machine, with --fresh" in said) == (ratio > 2)
    if ratio > 2:
        assert said.index(warning) < said.index("depth × width of the branches")


def test_a_search_that_recalls_designs_says_what_the_fastest_took(
    results: list[StretchResult], capsys: pytest.CaptureFixture[str]
) -> None:
    ran = replace(results[0].report, measured_ms={"other": 9.0, results[0].design.id: 0.5}, recalled=True)
    show(Reporter(sys.stderr, as_json=False), FoundDesigns([replace(results[0], report=ran)], {}), NAMES, None)
    said = " ".join(capsys.readouterr().err.split())
    fastest = f"in the same search before (the fastest is {results[0].design.id} with 0.500 ms); --fresh runs"
    assert fastest in said
