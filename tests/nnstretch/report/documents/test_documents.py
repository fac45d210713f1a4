"""`nnstretch report` of every kind of file, in every form."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

import nnstretch as nns
from nnstretch.cli.main import main
from nnstretch.errors import FileError, NNStretchError
from nnstretch.report.documents.document import Document, Section, Table, cell_text, figure_text
from nnstretch.report.documents.facts import fact_text, facts_of
from nnstretch.report.documents.readers import read_document
from nnstretch.report.documents.writers import ENDINGS, html
from nnstretch.scheduler.plan.schema import Plan, PlanSubgraph
from nnstretch.training.data.preprocessing import PHOTO_MEAN, PHOTO_STD, Preprocessing
from tests.kits.made_up_study import small_study


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file of every kind."""
    folder = tmp_path_factory.mktemp("made")
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        net (float[1, 8, 12, 12] x) => (float[1, 8, 1, 1] z) { y = Relu (x) z = GlobalAveragePool (y) }
    """)
    onnx.save(model, folder / "net.onnx")
    with nns.compile(folder / "net.onnx", tune=False) as session:
        session.save(folder / "net.nns")
    assert main(["tune", str(folder / "net.onnx"), "-o", str(folder / "plan.json")]) == 0
    small_study(folder / "study.log", 2)
    run = folder / "w.run"
    run.mkdir()
    (run / "recipe.yaml").write_text("lr: 0.1\nopt: sgd\nclip_grad: null\n")
    log = [
        {"step": 10 * i, "epoch": 1, "loss": 2.0 / i, "lr": 0.1, "images_per_second": 100.0, "seconds": i}
        for i in (1, 2)
    ]
    log[1] |= {"top1": 75.5}
    (run / "log.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in log))
    (run / "result.json").write_text(json.dumps({"history": [{"epoch": 1, "loss": 1.5, "validation_top1": 75.5}]}))
    return folder


SOURCES = ("net.nns", "plan.json", "study.log", "w.run")


@pytest.mark.parametrize("source", SOURCES)
def test_every_kind_in_every_form(made: Path, source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outputs = [tmp_path / f"report{ending}" for ending in ENDINGS]
    assert main(["report", str(made / source), *(f"-o{path}" for path in outputs)]) == 0
    assert all(path.exists() or list(tmp_path.glob("report-*.csv")) for path in outputs)
    page = (tmp_path / "report.html").read_text()
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "https://" not in page
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")
    text = (tmp_path / "report.md").read_text()
    assert all((tmp_path / name.partition(")")[0]).is_file() for name in text.split("](")[1:])
    capsys.readouterr()
    assert main(["report", str(made / source), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["title"].split()[-1] in text
    assert main(["report", str(made / source)]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in answer["figures"])


def test_a_package_says_what_its_steps_are(made: Path) -> None:
    document = read_document(str(made / "net.nns"))
    steps = document.sections[-1].table
    assert steps is not None
    assert len(steps.rows) == document.figures["steps"]
    assert document.figures["MB of weights"] == 0


@pytest.mark.parametrize("tuned", [True, False])
def test_a_plan_for_several_processors_predicts_a_run_of_all_at_the_same_time(
    made: Path, tmp_path: Path, tuned: bool
) -> None:
    plan = Plan.from_json((made / "plan.json").read_text())
    first, queue = plan.steps[0], plan.queues[0]
    steps = (replace(first, cost_ms=2.0), replace(first, cost_ms=3.0), replace(first, cost_ms=1.0 if tuned else None))
    subgraphs = (PlanSubgraph(0, 0, 1), PlanSubgraph(1, 1, 1), PlanSubgraph(0, 2, 1, waits=(1,)))
    both = replace(plan, queues=(queue, replace(queue, processor="cpu:9")), steps=steps, subgraphs=subgraphs)
    (tmp_path / "both.json").write_text(both.to_json())
    document = read_document(str(tmp_path / "both.json"))
    figures = list(document.figures.items())
    assert figures[:2] == [
        ("predicted ms, transfers and contention left out", 4.0 if tuned else None),
        ("predicted ms, steps one after another", 6.0 if tuned else None),
    ]
    section = document.sections[-1]
    assert section.panel is not None
    assert ("wait, 1000.0 µs" in "".join(section.panel[1])) == section.text.startswith("A predicted run") == tuned
    assert "predicted ms" in read_document(str(made / "plan.json")).figures


def test_a_plan_counts_products_of_run_time_matrices_apart(tmp_path: Path) -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        net (float[1, 2, 4, 8] x, float[1, 2, 8, 3] y) => (float[1, 2, 4, 3] z) { z = MatMul (x, y) }
    """)
    onnx.save(model, tmp_path / "net.onnx")
    with nns.compile(tmp_path / "net.onnx", tune=False) as session:
        session.save(tmp_path / "net.nns")
    figures = read_document(str(tmp_path / "net.nns")).figures
    products = "million more in products of run-time matrices"
    assert figures[products] == pytest.approx(2 * 4 * 3 * 8 / 1e6)
    assert figures["million MACs"] == 0


def test_rows_that_are_computed_twice_are_counted_apart(made: Path, tmp_path: Path) -> None:
    plan = Plan.from_json((made / "plan.json").read_text())
    steps = tuple(replace(step, macs=30_000_000) for step in plan.steps)
    banded = replace(plan, steps=steps, repeated_macs=5_000_000)
    (tmp_path / "bands.json").write_text(banded.to_json())
    document = read_document(str(tmp_path / "bands.json"))
    whole = 30 * len(steps) - 5
    assert document.figures["million MACs"] == whole
    assert document.figures["million more of rows that two processors compute"] == 5
    said = f"rows near the cuts are computed twice, 5 M MACs or {5 / whole:.1%} more than the network has."
    assert said in document.sections[0].text
    assert "computed twice" not in read_document(str(made / "plan.json")).sections[0].text


def test_a_training(made: Path) -> None:
    document = read_document(str(made / "w.run"))
    assert document.figures["best top-1 (%)"] == 75.5
    assert document.figures["last loss"] == 1.0
    assert (document.facts["lr"], document.facts["clip_grad"]) == ("0.1", "–")
    assert "finished" in document.lead


def test_several_files_are_compared(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(made / "w.run", tmp_path / "w.run")
    log = tmp_path / "w.run" / "log.jsonl"
    log.write_text(log.read_text().replace("75.5", "77.01"))
    assert main(["report", str(made / "w.run"), str(tmp_path / "w.run"), "--json"]) == 0
    side_by_side = json.loads(capsys.readouterr().out)["tables"][0]
    rows = {row[0]: row[1:] for row in side_by_side["rows"]}
    assert rows["best top-1 (%)"] == [75.5, 77.01, pytest.approx(1.02)]
    assert side_by_side["columns"][1:3] == [str(made / "w.run"), str(tmp_path / "w.run")]


def _write_folder_with_page(path: Path) -> None:
    path.mkdir()
    (path / "index.html").touch()


REFUSED: dict[str, Callable[[Path], object]] = {
    "there is no": lambda _: None,
    "folder, but not that of a training": lambda path: path.mkdir(),
    "cannot read": lambda path: path.write_text("{"),
    "no JSON object": lambda path: path.write_text("[1]"),
    "not a plan, and not the answer": lambda path: path.write_text('{"a": 1}'),
    "is a timeline": lambda path: path.write_text('{"traceEvents": []}'),
    "is a design": lambda path: path.write_text('{"format": 2, "segments": [], "original_macs": 1}'),
    "page already: open": _write_folder_with_page,
    "is incomplete": lambda path: path.write_text('{"tuning_s": 1}'),
    "tune the model again": lambda path: path.write_text('{"subgraphs": 1}'),
    "not a whole nnstretch package": lambda path: path.write_bytes(b"PK\x03\x04" + bytes(200)),
}


@pytest.mark.parametrize("said", REFUSED)
def test_other_files_are_refused_in_one_line(said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.nns" if "package" in said else tmp_path / "x.json"
    REFUSED[said](path)
    assert main(["report", str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_damaged_runs_and_storages(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "w.run", tmp_path / "run")
    for content, said in (
        ("{", "not the run folder"),
        ("3\n", "no log of a training"),
        ('{"loss": 1.0}\n', "no log of a training"),
    ):
        (tmp_path / "run" / "log.jsonl").write_text(content)
        with pytest.raises(FileError, match=said):
            read_document(str(tmp_path / "run"))
    (tmp_path / "run" / "log.jsonl").write_text("")
    assert "before its first epoch" in read_document(str(tmp_path / "run")).lead
    (tmp_path / "run" / "result.json").unlink()
    with pytest.raises(FileError, match="no log of a training yet"):
        read_document(str(tmp_path / "run"))
    with pytest.raises(NNStretchError, match=r"nowhere://\S*@host/base is not understood") as caught:
        read_document("nowhere://me:secret@host/base")
    assert "secret" not in str(caught.value)


def test_values_are_escaped() -> None:
    table = Table(["<b>", "n"], [["<script>", None]])
    document = Document("a <title>", "", {"<i>": "<u>"}, [Section("<s>", table=table)], {"<f>": "<g>"})
    page = html(document)
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


@pytest.mark.parametrize(
    ("value", "text"), [(None, "–"), (0.000123456, "0.0001235"), (12345.6, "12,346"), (1234, "1,234")]
)
def test_numbers(value: float | None, text: str) -> None:
    assert cell_text(value) == text


@pytest.mark.parametrize(
    ("column", "texts"),
    [
        ([1.609, 0.0278, None, 0.0007776], ["1.609", "0.028", "–", "0.001"]),
        ([239.6, 196.0], ["239.6", "196.0"]),
        ([99.26, 8.0, -100.5], ["99.3", "8.0", "-100.5"]),
        ([123.456, 0.00012, 0.0], ["123.456", "0.00012", "0.000"]),
        ([9e-06, 2.5e-05], ["9.0e-06", "2.5e-05"]),
        ([12345.6, 7.25], ["12,345.6", "7.2"]),
        ([12, 3.5, math.inf], ["12", "3.500", "inf"]),
    ],
)
def test_values_of_a_column_have_as_many_decimals(column: list[float | None], texts: list[str]) -> None:
    table = Table(["n", "x"], [["", value] for value in column])
    assert [row[1] for row in table.rows_of_text()] == texts


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("predicted ms", 0.39691, ("0.397 ms", "predicted")),
        ("predicted ms, steps one after another", 1.5, ("1.5 ms", "predicted, steps one after another")),
        ("ms, net.onnx, 1 thread", 12.0, ("12 ms", "net.onnx, 1 thread")),
        ("p50 in ms, a on ssh:board", 3.0, ("3 ms", "p50, a on ssh:board")),
        ("million MACs", 77.4, ("77.4 M", "MACs")),
        ("MB of weights", 11.94, ("11.9 MB", "of weights")),
        ("% busy, cpu:0", 53.4, ("53.4 %", "busy, cpu:0")),
        ("best top-1 (%)", 98.5, ("98.5 %", "best top-1")),
        ("× the fastest single processor", 1.7777, ("1.78×", "the fastest single processor")),
        ("seconds of tuning", 5.77, ("5.77 s", "of tuning")),
        ("largest relative error", 0.0000163, ("1.6e-05", "largest relative error")),
        ("relative error of the outputs", 0.0038371, ("0.0038", "relative error of the outputs")),
        ("MB of tensors", 0.00819, ("8.19 kB", "of tensors")),
        ("best latency (ms)", 1234.5, ("1,234 ms", "best latency")),
        ("minutes of training", 0.4762, ("28.6 s", "of training")),
        ("signal to noise in dB", 48.32, ("48.3 dB", "signal to noise")),
        ("steps", 36, ("36", "steps")),
        ("measured ms", None, ("–", "measured ms")),
    ],
)
def test_figures_have_their_units(name: str, value: float | None, shown: tuple[str, str]) -> None:
    assert figure_text(name, value) == shown


def test_metadata_can_be_read() -> None:
    preprocessing = Preprocessing(224, 3, PHOTO_MEAN, PHOTO_STD)
    metadata = {
        "macs": 77_412_352,
        "bytes": 13_482_912,
        "tuning_seconds": 0.0021738472,
        "nnstretch.preprocessing": preprocessing.to_json(),
        "nnstretch.classes": {"0": "cat", "1": "dog"},
    }
    assert facts_of(metadata) == {
        "MACs": "77.4 M",
        "bytes": "13.5 MB",
        "tuning seconds": "2.17 ms",
        "preprocessing": "resize to cover 256×256 pixels (bilinear), the centre of 224×224 is cut out; red, green, blue, "
        "values 0 to 1; subtract 0.485 / 0.456 / 0.406, divide by 0.229 / 0.224 / 0.225",
        "classes": "2 classes: cat, dog",
    }
    digits = {str(number): str(number) for number in range(10)}
    assert fact_text(digits, "nnstretch.classes") == "10 classes, named by their numbers 0 to 9"
    assert fact_text({str(n): f"c{n}" for n in range(99)}, "nnstretch.classes").endswith("c10, c11, …")
    assert fact_text("{", "nnstretch.preprocessing") == "{"


def test_facts_are_words() -> None:
    source: dict[str, Any] = {"model": "m.onnx", "shapes": {}, "weights": None, "batch": 2, "checked": True}
    assert fact_text(source) == "model m.onnx, batch 2, checked yes"
    others: list[Any] = [None, False, [1, None], {}, "x" * 999]
    assert [fact_text(value) for value in others] == [
        "–",
        "no",
        "1, –",
        "–",
        "x" * 300 + "…",
    ]
