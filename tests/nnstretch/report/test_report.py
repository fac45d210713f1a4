"""The report and its pictures: well-formed, complete, self-contained, and true to the numbers."""

import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from nnstretch.bench.ablation.answer import comparison_answer
from nnstretch.bench.ablation.breakdown import BranchTime
from nnstretch.bench.ablation.result import PLACED, Ablation, AblationRow, MeasuredBranch
from nnstretch.bench.timing import Latency
from nnstretch.branching.design.design import BranchDesign, Design, SegmentDesign
from nnstretch.cli.main import main
from nnstretch.errors import FileError
from nnstretch.report.charts.branching import design_panel, latency_panel, training_panel
from nnstretch.report.charts.style import CLASSES, COLOURS, op_class, standalone
from nnstretch.report.charts.svg import Panel, label, panel_picture, picture, ticks
from nnstretch.report.charts.timeline import timeline_svg
from nnstretch.report.documents.answers import read_answer
from nnstretch.report.documents.branching import branching_document
from nnstretch.report.documents.readers import read_document
from nnstretch.report.documents.writers import html, write
from nnstretch.report.pages import TEMPLATES
from nnstretch.report.tables.ablation import ablation_table, alternative_text
from nnstretch.report.tables.text import count_text, duration_text, plain_table, size_text
from nnstretch.scheduler.runtime.timeline import Event, Timeline
from nnstretch.support.measures import MEAN_AP
from nnstretch.support.other_programs import OtherPrograms
from nnstretch.training.loop.checkpoint import EpochRecord

MACHINE = {"cpu": "A CPU & co <x86>", "cores": 2, "peak_gflops_per_core": 250.0}
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def timeline() -> Timeline:
    conv, other = "cpu:float32/direct", "opencl:float32/direct"
    events = (
        Event("stem", "step", 0, 0, 2_000_000, conv, "Conv", 10**8),
        Event("left<1>", "step", 0, 2_000_000, 3_000_000, conv, "Conv", 10**8),
        Event("wait", "wait", 0, 3_000_000, 3_500_000),
        Event("join", "step", 0, 3_500_000, 4_000_000, conv, "Dense", 10**6),
        Event("wait", "wait", 1, 0, 3_900_000),
        Event("right", "step", 1, 2_100_000, 3_400_000, other, "Conv", 10**8),
    )
    return Timeline(("cpu:0", "opencl:0@1"), events, 4_000_000)


@pytest.fixture
def ablation(timeline: Timeline) -> Ablation:
    def row(network: str, how: str, processors: str, p50: float) -> AblationRow:
        return AblationRow(network, how, processors, 10**8, 10**6, 98.765, Latency(p50, p50 * 1.2, p50 * 0.9))

    both = "cpu:0,opencl:0@1"
    rows = (
        row("original", "alone", "cpu:0", 8.125),
        row("original", "ONNX Runtime", "cpu:0-1", 6.5),
        row("branched", "concurrent", both, 4.25),
        row("branched", "one after another", both, 7.5),
        row("control", "alone", "cpu:0", 7.0),
        row("control", "all CPU cores", "cpu:0-1", 4.0),
        row("control", "split layer by layer", both, 4.5),
        AblationRow("control", "perfect split, a bound", both, 10**8, 10**6, None, None, 3.5),
    )
    return Ablation(
        ("cpu:0", "opencl:0@1"),
        rows,
        original_ms={"cpu:0": 8.125, "opencl:0@1": 9.0},
        original_all_cores_ms=5.0,
        original_split_ms=5.5,
        onnxruntime_ms=6.5,
        onnxruntime_error="",
        branched_ms=4.25,
        branched_serial_ms=7.5,
        control_ms={"cpu:0": 7.0, "opencl:0@1": 7.0},
        control_all_cores_ms=4.0,
        control_split_ms=4.5,
        control_onnxruntime_ms=None,
        max_rel_error=3e-7,
        timeline=timeline,
        serial_timeline=timeline,
        intervals={"speedup_best_alternative": (0.9, 1.0)},
    )


def with_intervals(ablation: Ablation, half_width: float) -> Ablation:
    """The comparison with intervals of this half width around all latencies."""
    around = (1 - half_width, 1 + half_width)
    rows = (replace(r, interval_ms=(r.p50_ms * around[0], r.p50_ms * around[1])) for r in ablation.rows)
    return replace(ablation, rows=tuple(rows))


def answer_of(
    ablation: Ablation,
    design: Design,
    *,
    unbranched: str | None = None,
    histories: dict[str, list[EpochRecord]] | None = None,
) -> dict[str, Any]:
    """The answer of a comparison on a machine whose name has to be escaped."""
    trained = {name: list(map(asdict, records)) for name, records in (histories or {}).items()}
    return comparison_answer("net.onnx", ablation, design, MACHINE, unbranched=unbranched, histories=trained)


def svg(panel: Panel) -> str:
    return panel_picture(panel, "a chart")


@pytest.mark.parametrize("half_width", [0.02, 0.3])
def test_a_disturbed_machine_is_reported(ablation: Ablation, design: Design, half_width: float) -> None:
    found = with_intervals(ablation, half_width)
    said = "he machine was disturbed: intervals are wide (up to ±30%, more than ±5%)"
    wide = half_width > 0.05
    assert (said in html(branching_document(answer_of(found, design)))) == wide
    assert (said in str(ablation_table(found).caption)) == wide
    answer = found.to_json()
    assert (answer["widest_interval"], answer["disturbed"]) == (half_width, wide)


@pytest.mark.parametrize("used", [0.1, 0.8])
def test_a_machine_that_other_programs_use_is_reported(ablation: Ablation, design: Design, used: float) -> None:
    found = replace(with_intervals(ablation, 0.02), other_programs=OtherPrograms(used, 2))
    said = "ther programs used 0.8 of 2 cores while this was measured; figures may be too large"
    assert (said in html(branching_document(answer_of(found, design)))) == (used == 0.8)
    assert (said in str(ablation_table(found).caption)) == (used == 0.8)
    assert Ablation.from_json(found.to_json()).other_programs == found.other_programs


def test_a_network_that_is_not_branched_is_reported_first(ablation: Ablation, design: Design) -> None:
    page = html(branching_document(answer_of(ablation, design, unbranched="branching does not pay here: why")))
    _, _, lead = page.partition('class="lead">')
    assert lead.startswith("The network was not branched: branching does not pay here: why.")
    assert "<title>net.onnx, not branched</title>" in page


@pytest.fixture
def design() -> Design:
    def branch(processor: int, blocks: tuple[int, ...], depth: float) -> BranchDesign:
        return BranchDesign(processor, blocks, depth, 0.5, 32, 10**7, 0.4)

    segments = (
        SegmentDesign(0, 2, (branch(0, (0, 1), 1.0), branch(1, (0,), 0.5))),
        SegmentDesign(2, 5, (branch(0, (2, 3, 4), 1.0),)),
    )
    return Design("d123", segments, 16, 4 * 10**7, 10**6, 3 * 10**7, 10**6, 1.0)


@pytest.fixture
def histories() -> dict[str, list[EpochRecord]]:
    def record(epoch: int, top1: float | None) -> EpochRecord:
        return EpochRecord(epoch, 64, 2.0 / epoch, 90.0 + epoch, 0.1, top1, float(epoch))

    return {
        "original": [record(1, None), record(2, None), record(3, 97.0)],
        "branched": [record(1, 96.0)],
        "control": [],
    }


def shapes(text: str, tag: str, class_: str) -> list[ET.Element]:
    """Elements of a picture with a class."""
    root = ET.fromstring(text)  # noqa: S314 - our own text
    return [e for e in root.iter(f"{SVG}{tag}") if class_ in (e.get("class") or "").split()]


def number(element: ET.Element, name: str) -> float:
    return float(element.get(name, "nan"))


# -- timeline ------------------------------------------------------------------------------------------------------


def test_timeline_shows_every_step_in_its_queue_at_its_time(timeline: Timeline) -> None:
    text = timeline_svg(timeline, title="A run")
    steps = shapes(text, "rect", "conv")[:3]
    queues = shapes(text, "rect", "queue")
    assert len(queues) == 2
    assert [number(s, "y") for s in steps] == [number(queues[i], "y") for i in (0, 0, 1)]
    scale = number(queues[0], "width") / timeline.total
    left = number(queues[0], "x")
    for step, begin, end in zip(steps, (0, 2_000_000, 2_100_000), (2_000_000, 3_000_000, 3_400_000), strict=True):
        assert number(step, "x") == pytest.approx(left + begin * scale, abs=0.01)
        assert number(step, "width") == pytest.approx((end - begin) * scale, abs=1.0)


def test_times_without_work_are_hatched_until_there_is_nothing_to_come(timeline: Timeline) -> None:
    text = timeline_svg(timeline)
    waits = [w for w in shapes(text, "rect", "wait") if w.find(f"{SVG}title") is not None]
    assert [w.findtext(f"{SVG}title") for w in waits] == ["wait, 500.0 µs", "wait, 2100.0 µs", "wait, 500.0 µs"]
    assert all(w.get("fill") == "url(#hatched)" for w in waits)


@pytest.mark.parametrize(
    ("op", "routine", "kind"),
    [
        ("Conv", "cpu:float32/direct", "conv"),
        ("Conv", "opencl:float32/depthwise", "depthwise"),
        ("Chain", "cpu:float32/expand_depthwise", "depthwise"),
        ("Chain", "cpu:bfloat16/depthwise_project", "depthwise"),
        ("Chain", "cpu:float32/inverted_residual", "depthwise"),
        ("Conv", "cpu:float32/repeated_depthwise", "depthwise"),
        ("Chain", "cpu:int8/direct_add", "conv"),
        ("Chain", "cpu:int8/table", "elementwise"),
        ("Relu+Conv+Add", "cpu:float32/onnxruntime", "conv"),
        ("Softmax+MatMul", "cpu:float32/onnxruntime", "dense"),
        ("Concat", "cpu:float32/concat", "concat"),
        ("Reorder", "cpu:float32/reorder", "reorder"),
        ("TopK", "cpu:float32/onnxruntime", "other"),
    ],
)
def test_steps_have_the_colour_of_what_they_compute(op: str, routine: str, kind: str) -> None:
    assert op_class(op, routine) == kind
    assert kind in CLASSES


def test_fused_layers_have_no_name_of_their_own_in_a_timeline() -> None:
    event = Event("a+b", "step", 0, 0, 1000, "cpu:float32/expand_depthwise", "Chain", 10**3)
    text = timeline_svg(Timeline(("cpu:0",), (event,), 1000))
    assert "a+b\nfused layers, cpu:float32/expand_depthwise" in text
    assert "Chain" not in text


def test_timeline_names_are_escaped(timeline: Timeline) -> None:
    tips = [t.text or "" for t in ET.fromstring(timeline_svg(timeline)).iter(f"{SVG}title")]  # noqa: S314
    assert any(tip.startswith("left<1>\nConv, cpu:float32/direct") for tip in tips)


def test_a_picture_alone_has_its_colours(timeline: Timeline) -> None:
    assert "prefers-color-scheme" in timeline_svg(timeline, alone=True)
    assert "<style>" not in timeline_svg(timeline, alone=False)


def test_a_run_of_nothing_can_be_drawn() -> None:
    ET.fromstring(timeline_svg(Timeline(("cpu:0",), (), 0)))  # noqa: S314


# -- plots ---------------------------------------------------------------------------------------------------------


def test_bars_are_as_long_as_latencies(ablation: Ablation) -> None:
    text = svg(latency_panel(ablation))
    ET.fromstring(text)  # noqa: S314
    (ours,) = shapes(text, "rect", "accent")
    originals = shapes(text, "rect", "conv")
    assert number(originals[0], "width") / number(ours, "width") == pytest.approx(8.125 / 4.25, rel=1e-3)
    (bound,) = shapes(text, "line", "bound")
    left = number(ours, "x")
    assert (number(bound, "x1") - left) / number(ours, "width") == pytest.approx(3.5 / 4.25, rel=1e-2)


def test_the_chart_shows_the_best_alternative_in_bold(ablation: Ablation) -> None:
    bold = [element.text for element in shapes(svg(latency_panel(ablation)), "text", "strong")]
    assert bold == ["control, all CPU cores", "4"]


def test_the_best_alternative_is_never_a_bound_or_a_branched_row(ablation: Ablation) -> None:
    rows = tuple(replace(r, latency=Latency(1, 1, 1)) if r.network == "branched" else r for r in ablation.rows)
    assert replace(ablation, rows=rows).best_alternative.how == "all CPU cores"


def test_training_curves_have_a_line_for_every_network_that_was_trained(
    histories: dict[str, list[EpochRecord]],
) -> None:
    text = svg(training_panel({name: list(map(asdict, records)) for name, records in histories.items()}))
    assert len(shapes(text, "polyline", "series-0")) == 2
    assert len(shapes(text, "polyline", "series-1")) == 2
    assert len(shapes(text, "circle", "dot")) == 2
    assert "control" not in text


def test_a_training_of_one_epoch_is_a_dash(histories: dict[str, list[EpochRecord]]) -> None:
    first = next(records[0] for records in histories.values() if records)
    lines = shapes(svg(training_panel({"short": [asdict(first)]})), "polyline", "series-0")
    assert len(lines) == 2
    for found in lines:
        (left, y), (right, same) = (tuple(map(float, place.split(","))) for place in found.get("points", "").split())
        assert (right - left, y) == (16, same)


def test_design_shows_kept_and_dropped_blocks(design: Design) -> None:
    text = svg(design_panel(design, ("cpu:0", "opencl:0@1")))
    blocks = [e for e in ET.fromstring(text).iter(f"{SVG}rect") if e.find(f"{SVG}title") is not None]  # noqa: S314
    colours = [e.get("class") for e in blocks]
    assert colours.count("series-fill-0") == 5
    assert colours.count("series-fill-1") == 1
    assert colours.count("dropped") == 1
    assert len(shapes(text, "circle", "meet")) == 1
    assert text.count("32 channels, 10 M MACs") == 3
    assert "opencl:0@1" in text


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.integers(2, 12))
def test_ticks_are_round_few_and_inside(low: float, span: float, about: int) -> None:
    found = ticks(low, low + span, about)
    slack = span * 1e-6
    assert all(low - slack <= tick <= low + span + slack for tick in found)
    assert 1 <= len(found) <= 3 * about
    steps = {round((b - a) / span, 6) for a, b in itertools.pairwise(found)}
    assert len(steps) <= 1


@given(st.text(st.characters(exclude_categories=("Cc", "Cs", "Cn", "Co"))))
def test_any_text_can_be_a_label(text: str) -> None:
    root = ET.fromstring(picture(10, 10, label(0, 0, text), name=text))  # noqa: S314
    assert (root.findtext(f"{SVG}text") or "") == text
    assert root.get("aria-label") == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0021738472, "2.17 ms"), (21.7e-6, "21.7 µs"), (0.0, "0 s"), (12.34, "12.3 s"), (250.0, "4.2 min")],
)
def test_durations_in_words(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(1_814_073_344, "1.81 G"), (11_689_512, "11.7 M"), (7_200, "7.2 k"), (12, "12"), (None, "–")]
)
def test_counts_in_words(count: float | None, text: str) -> None:
    assert count_text(count) == text


# -- style ---------------------------------------------------------------------------------------------------------


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_text_can_be_read(mode: int) -> None:
    """Contrast against the page of at least 4.5 : 1 for text (WCAG 2, AA)."""
    for text in ("ink", "soft"):
        bright, dim = sorted((luminance(COLOURS[name][mode]) for name in (text, "paper")), reverse=True)
        assert (bright + 0.05) / (dim + 0.05) >= 4.5


def test_every_colour_is_defined_for_light_and_dark() -> None:
    used = set(re.findall(r"var\(--([a-z0-9-]+)\)", (TEMPLATES / "page.css").read_text() + standalone()))
    assert used <= COLOURS.keys()


# -- the whole -----------------------------------------------------------------------------------------------------


def test_report_is_one_file_that_needs_nothing_else(
    tmp_path: Path, ablation: Ablation, design: Design, histories: dict[str, list[EpochRecord]]
) -> None:
    path = tmp_path / "report.html"
    write(branching_document(answer_of(ablation, design, histories=histories)), path)
    text = path.read_text(encoding="utf-8")
    for needle in (">4.25<", ">98.77<", "1.91×", "82%", "A CPU &amp; co &lt;x86&gt;", "perfect split", "d123"):
        assert needle in text
    facts = len(MACHINE)
    assert text.count("<tr") == 1 + len(ablation.rows) + 1 + facts
    assert text.index("0.94×") < text.index("1.91×")
    assert "as fast as the best alternative, 0.90–1.00" in text
    assert "The best alternative is the control, all CPU cores, on cpu:0-1." in text
    assert len(re.findall("<svg", text)) == 5
    outside = re.sub(r'xmlns="http://www.w3.org/2000/svg"', "", text)
    assert not re.search(r"https?://|<script|<link|@import|src=", outside)
    for found in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        ET.fromstring(found)  # noqa: S314


def test_report_without_training(ablation: Ablation, design: Design) -> None:
    assert "Training" not in html(branching_document(answer_of(ablation, design)))


def test_report_that_cannot_be_written(tmp_path: Path, ablation: Ablation, design: Design) -> None:
    with pytest.raises(FileError, match="cannot write"):
        write(branching_document(answer_of(ablation, design)), tmp_path / "missing" / "r.html")


def test_a_network_that_was_placed_on_one_processor_names_it_and_the_others(ablation: Ablation) -> None:
    placed = replace(ablation.best_alternative, how=f"{PLACED}cpu:0 alone", processors="cpu:0,opencl:0@1")
    rows = tuple(placed if row == ablation.best_alternative else row for row in ablation.rows)
    found = alternative_text(replace(ablation, rows=rows))
    assert found == "the control, placed on cpu:0 alone, of cpu:0,opencl:0@1"


def test_table_for_terminals(ablation: Ablation) -> None:
    console = Console(width=160, record=True, file=None, quiet=False)
    branches = tuple(
        MeasuredBranch(BranchTime(1, i, name, 3.5, 3.75), None) for i, name in enumerate(ablation.processors)
    )
    with console.capture() as captured:
        console.print(ablation_table(replace(ablation, branches=branches)))
    text = captured.get()
    lines = [line for line in text.splitlines() if line.strip()]
    assert len([line for line in lines if line.startswith((" original ", " branched ", " control "))]) == len(
        ablation.rows
    )
    assert "0.94× (0.90–1.00) as fast as the best alternative: the control, all CPU cores, on cpu:0-1" in " ".join(
        lines[-6:]
    )
    assert text.index("best alternative") < text.index("Branching pays where") < text.index("fastest single processor")
    assert "Branching pays" not in str(ablation_table(ablation).caption)  # without branches
    assert "4.250" in text
    assert "82% of the perfect split" in text


def with_branches(ablation: Ablation) -> Ablation:
    """The comparison with branches, intervals and causes."""
    branches = (
        MeasuredBranch(BranchTime(0, 0, "cpu:0", 3.5, 3.75), 3.0),
        MeasuredBranch(BranchTime(0, 1, "opencl:0@1", 3.25, 3.5), None),
    )
    made = replace(ablation, branches=branches, predicted_ms=4.0, causes={"perfect split": 3.5, "contention": 0.75})
    return with_intervals(replace(made, idle=("opencl:0@1",), onnxruntime_error="it <fell>"), 0.02)


def test_an_answer_holds_the_whole_comparison(ablation: Ablation, design: Design) -> None:
    for made in (ablation, with_branches(ablation)):
        answer = json.loads(json.dumps(answer_of(made, design)))
        read = Ablation.from_json(answer)
        assert read.to_json() == made.to_json()
        assert (read.timeline, read.idle, read.processors) == (made.timeline, made.idle, made.processors)


@pytest.mark.parametrize("trained", [True, False])
def test_the_report_of_an_answer_is_the_page_of_the_measurement(
    ablation: Ablation, design: Design, histories: dict[str, list[EpochRecord]], trained: bool, tmp_path: Path
) -> None:
    answer = answer_of(with_branches(ablation), design, histories=histories if trained else None)
    file = tmp_path / "comparison.json"
    file.write_text(json.dumps(answer))
    document = branching_document(answer)
    assert html(read_document(str(file))) == html(document)
    titles = [section.title for section in document.sections if section.panel is not None]
    assert titles == [
        *("Latency", "Where the time goes", "One run, branches at the same time", "The same steps, one after another"),
        *("The branching", *(["Training"] if trained else [])),
    ]
    assert main(["report", str(file), "-o", str(tmp_path / "x.svg")]) == 0
    assert all(title in (tmp_path / "x.svg").read_text() for title in titles)


def test_the_answer_of_a_branched_comparison_has_a_report(ablation: Ablation, design: Design, tmp_path: Path) -> None:
    document = read_answer(tmp_path / "comparison.json", answer_of(ablation, design))
    assert document.figures["× as fast as the best alternative"] == ablation.to_json()["speedup_best_alternative"]
    table = document.sections[0].table
    assert table is not None
    assert len(table.rows) == len(ablation.rows)
    assert [table.rows[number][1] for number in table.marked] == ["concurrent"]
    whole = answer_of(ablation, design)
    for name in ("timelines", "design", "rows", "machine"):
        with pytest.raises(FileError, match=r"is incomplete .* run the command again"):
            read_answer(tmp_path / "comparison.json", {key: value for key, value in whole.items() if key != name})


# -- jobs ----------------------------------------------------------------------------------------------------------


def job_answer(comparison: dict[str, Any] | None, int8: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    def network(name: str, top1: float) -> dict[str, Any]:
        return {"name": name, "weights": "w", "validation_top1": top1 + 1, "test_top1": top1, "design": None}

    return {
        "model": "net.onnx",
        "original": network("original", 90.0),
        "candidates": [network("d123", 89.5), network("control", 88.0)],
        "int8": list(int8),
        "chosen": "d123",
        "unbranched": None,
        "comparison": comparison,
        "seconds": {"baseline": 3.5},
    }


def test_a_job_has_the_report_of_its_comparison_and_its_accuracies(
    ablation: Ablation, design: Design, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compared = answer_of(ablation, design)
    (tmp_path / "answer.json").write_text(json.dumps(job_answer(compared, [{"name": "d123", "top1": 89.0}])))
    document = read_document(str(tmp_path))
    assert html(document) == html(read_document(str(tmp_path / "answer.json")))
    first, *others = document.sections
    assert others == branching_document(compared).sections
    assert first.table is not None
    assert first.table.rows[1] == ["d123", 89.5, 90.5, 89.0]
    assert first.table.marked == {1}
    assert document.figures["top-1 (%), control"] == 88.0
    (tmp_path / "answer.json").write_text(json.dumps(job_answer(None)))
    assert "measured no latency" in read_document(str(tmp_path)).lead
    (tmp_path / "answer.json").unlink()
    assert main(["report", str(tmp_path)]) == 2
    assert "nor of a finished job (it has no answer.json)" in capsys.readouterr().err


def test_other_tasks_have_their_measure_in_tables_and_charts(
    ablation: Ablation, design: Design, histories: dict[str, list[EpochRecord]], tmp_path: Path
) -> None:
    """Trainings without top-1 of training images are drawn by their scores on validation images."""
    scored = replace(ablation, measure=MEAN_AP)
    dense = {
        name: [replace(record, train_top1=None, validation_score=40.0) for record in records]
        for name, records in histories.items()
    }
    compared = answer_of(scored, design, histories=dense)
    assert compared["rows"][0]["map"] == 98.765
    found = Ablation.from_json(compared)
    assert (found.measure, [row.score for row in found.rows]) == (MEAN_AP, [row.score for row in scored.rows])
    console = Console(width=200, record=True)
    console.print(ablation_table(scored))
    pages = console.export_text(), html(branching_document(compared))
    assert all("mAP" in page and "top-1" not in page for page in pages)
    assert len(shapes(svg(training_panel(compared["histories"], "mAP")), "polyline", "series-1")) == 2
    network = {"name": "original", "weights": "w", "validation_map": 41.0, "test_map": 42.0, "design": None}
    answer = job_answer(None, [{"name": "original", "map": 40.0}])
    answer |= {"measure": MEAN_AP._asdict(), "original": network, "candidates": [], "chosen": "original"}
    (tmp_path / "answer.json").write_text(json.dumps(answer))
    document = read_document(str(tmp_path))
    assert document.figures == {"mAP (%), original": 42.0}
    assert document.sections[0].table is not None
    assert document.sections[0].table.rows == [["original", 42.0, 41.0, 40.0]]


@pytest.mark.parametrize(("width", "left"), [(80, "model a b c"), (24, "model a c"), (19, "model a"), (12, "model a")])
def test_narrow_terminals_lack_optional_columns(width: int, left: str) -> None:
    """The model's name stays whole as long as a column can be left out."""
    table = plain_table("model", ">a", ">b", ">c", optional=("b", "c"))
    table.add_row("network.onnx", "1.0", "2.0", "3.0")
    console = Console(width=width, record=True)
    console.print(table)
    lines = console.export_text().splitlines()
    assert lines[1].split() == left.split()
    assert any("network.onnx" in line for line in lines) == (width > 12)


@pytest.mark.parametrize(
    ("size", "text"), [(46_900_000, "46.9 MB"), (100_000, "0.1 MB"), (99_999, "100.0 kB"), (5300, "5.3 kB")]
)
def test_sizes_in_words(size: int, text: str) -> None:
    assert size_text(size) == text
