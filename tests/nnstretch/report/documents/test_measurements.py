"""Reports of answers of `sweep latency` and `bench --target`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from nnstretch.bench.placement import Together
from nnstretch.bench.rates import Rate
from nnstretch.bench.targets.gain import gain_over_alternatives
from nnstretch.bench.targets.measure import Measured, TargetRun
from nnstretch.bench.targets.models import TargetModel
from nnstretch.bench.throughput import Throughput
from nnstretch.bench.timing import Latency
from nnstretch.cli.main import main
from nnstretch.devices.targets.probe import Probe
from nnstretch.devices.targets.results import ModelResult
from nnstretch.report.documents.document import Document
from nnstretch.report.documents.readers import read_document
from nnstretch.report.documents.writers import ENDINGS, html
from nnstretch.report.tables.runs import throughput_table, together_table
from nnstretch.support.other_programs import OtherPrograms
from nnstretch.sweeps.grid import GridPoint, GridResult
from tests.kits.boards.fake_runner import PROBE


def row(
    model: str, processors: str, batch: int | None, threads: int | None = None, ms: float | None = 2.0
) -> dict[str, Any]:
    point = GridPoint(model, processors, threads, None, batch)
    if ms is None:
        return GridResult(point, error="core 99 cannot be used").row()
    return GridResult(point, ms, ms * 1.1, 1e3 * (batch or 1) / ms, 9).row()


def document_of(folder: Path, answer: dict[str, Any]) -> Document:
    path = folder / "answer.json"
    path.write_text(json.dumps(answer))
    return read_document(str(path))


@pytest.mark.parametrize("others", [None, OtherPrograms(0.2, 2), OtherPrograms(1.2, 2)])
def test_other_programs_are_named_in_tables_and_pages(tmp_path: Path, others: OtherPrograms | None) -> None:
    """Of runs on several processors, and of several inputs in flight."""
    times, rate = Latency(2.0, 2.1, 1.9), Rate("one at a time", 500.0, 0.01)
    together = Together("m", times, times, {"cpu:0": times}, 1.5, 1.1, 2.0, 1.0, True, 1e-6, other_programs=others)
    streams = Throughput("m", 1, 2, rate, (rate,), rate.how, (), "", 1e-6, others)
    said = "ther programs used 1.2 of 2 cores while this was measured"
    named = others is not None and others.used > 1
    for table, answer in (
        (together_table(together), together.to_json()),
        (throughput_table(streams), streams.to_json()),
    ):
        assert (said in str(table.caption)) == named
        assert (said in document_of(tmp_path, answer).lead) == named
    rates = document_of(tmp_path, streams.to_json()).sections[0].table
    assert rates is not None
    assert rates.titles[3:] == ("% spread", "MB of weights", "MB of all streams")


def test_latencies_are_lines_over_each_setting_with_a_line_per_processor(tmp_path: Path) -> None:
    rows = [
        row(model, processors, batch, threads, None if processors == "cpu:99" else 2.0 * batch / threads)
        for model in ("a.onnx", "dir/b.onnx")
        for processors in ("cpu:0", "opencl:0", "cpu:99")
        for threads in (1, 2)
        for batch in (1, 4)
    ]
    document = document_of(tmp_path, {"results": rows, "environment": {"python": "3.11"}})
    titles = [section.title for section in document.sections]
    for model in ("a.onnx", "dir/b.onnx"):
        for axis in ("batch", "threads"):
            assert f"Latency by {axis}: {model}" in titles
            assert f"Images per second by {axis}: {model}" in titles
    assert titles[-2:] == ["All", "Could not be run"]
    chart = "".join(document.sections[0].panel[1]) if document.sections[0].panel else ""
    assert set(re.findall(r">(\w+:0, \d thread)s?<", chart)) == {
        "cpu:0, 1 thread", "cpu:0, 2 thread", "opencl:0, 1 thread", "opencl:0, 2 thread"
    }  # fmt: skip
    assert "images per run" in chart
    assert chart.count("<polyline") == 4
    assert document.title == "Latencies of a.onnx, b.onnx"
    assert document.figures["combinations that could not be run"] == 8
    assert document.figures["lowest p50 in ms, a.onnx"] == 1.0
    assert document.figures["most images per second, a.onnx"] == 1000.0
    failed = document.sections[-1].table
    assert failed is not None
    assert failed.rows[0] == ("a.onnx, cpu:99, batch 1, 1 thread", "core 99 cannot be used")
    assert document.facts == {"python": "3.11"}
    assert html(document)


def test_many_combinations_are_several_charts_and_single_ones_bars(tmp_path: Path) -> None:
    many = [row("m", f"cpu:{number}", batch) for number in range(5) for batch in (1, 2)]
    document = document_of(tmp_path, {"results": many})
    assert [s.title for s in document.sections if s.title.startswith("Latency")] == [
        "Latency by batch: m, part 1", "Latency by batch: m, part 2"
    ]  # fmt: skip
    bars = document_of(tmp_path, {"results": [row("m", "cpu:0", 8), row("n", "cpu:0", 8)]})
    assert bars.lead.endswith("All with batch 8.")
    assert [section.title for section in bars.sections] == ["Latency", "All"]
    assert bars.sections[0].panel is not None
    nothing = document_of(tmp_path, {"results": [row("m", "cpu:99", None, ms=None)]})
    assert [section.title for section in nothing.sections] == ["All", "Could not be run"]


def target_answer() -> dict[str, Any]:
    """What `bench --target --json` prints for a device and one that is missing."""
    queues = [{"kind": "cpu", "cores": [0, 1]}]
    litert = [{"kind": "cpu", "cores": [], "device": None}, {"kind": "litert", "cores": [1], "device": "gpu"}]
    seconds = [{"s": n, "p50_ms": 3 + n / 10, "khz": 2_000_000 - n, "temperature_c": 40 + n} for n in range(9)]

    def measured(name: str, ms: float | None, **more: object) -> Measured:
        entry = {"file": "m.nnm", "p50_ms": ms, "min_ms": ms, "queues": queues, **more}
        return Measured(TargetModel(name, Path("m.nnm")), ModelResult.from_json(entry), 1e-6, {})

    models = [
        measured("a", 3.0, sustained=seconds),
        measured("c", None, error="it <failed>"),
        measured("branched", 2.0, queues=litert),
    ]
    run = TargetRun("ssh:board", models, Probe.from_json(PROBE), "thermal limit", gain=gain_over_alternatives(models))
    answer = {"targets": [run.to_json(), TargetRun("adb:x", failure="there is no device x").to_json()]}
    return dict(json.loads(json.dumps(answer)))


def test_devices_have_a_card_latencies_and_sustained_runs(tmp_path: Path) -> None:
    document = document_of(tmp_path, target_answer())
    sections = {section.title: section for section in document.sections}
    assert list(sections) == [
        *("Device ssh:board", "Latency on ssh:board", "Failed on ssh:board", "Sustained runs on ssh:board", "adb:x"),
    ]
    card = sections["Device ssh:board"].table
    assert card is not None
    assert ("machine", "aarch64 Linux") in card.rows
    latency = sections["Latency on ssh:board"]
    assert latency.panel is not None
    assert latency.table is not None
    assert [list(row)[:4] for row in latency.table.rows] == [
        ["a", "cpu:0-1", "", 3.0],
        ["branched", "litert (gpu)", "", 2.0],
    ]
    assert "ended early: thermal limit" in latency.text
    assert document.figures["× as fast as a, branched on ssh:board"] == 1.5
    assert document.figures["p50 in ms, a on ssh:board"] == 3.0
    assert "there is no device x" in sections["adb:x"].text
    assert "it &lt;failed&gt;" in html(document)


@pytest.mark.parametrize("ending", ENDINGS)
def test_answers_of_devices_in_every_form(tmp_path: Path, ending: str) -> None:
    (tmp_path / "t.json").write_text(json.dumps(target_answer()))
    assert main(["report", str(tmp_path / "t.json"), "-o", str(tmp_path / f"r{ending}")]) == 0
    assert list(tmp_path.glob("r*"))


def test_incomplete_answers_are_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for answer in ({"results": [{"model": "m"}]}, {"targets": [{"target": "x"}]}, {"results": 3}, {"targets": None}):
        (tmp_path / "x.json").write_text(json.dumps(answer))
        assert main(["report", str(tmp_path / "x.json")]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "is incomplete" in line
