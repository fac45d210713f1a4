"""`nnstretch tune` with limits, explanations, comparisons and fronts; and how they are drawn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from nnstretch.cli.main import main
from nnstretch.cli.tuning.report import TuningRequest, parse_front, parse_limits
from nnstretch.errors import UsageError
from nnstretch.report.charts.selection import front_panel
from nnstretch.report.documents.answers import answer_document
from nnstretch.report.documents.document import Section
from nnstretch.report.documents.readers import read_document
from nnstretch.report.documents.tuning import tuning_document
from nnstretch.report.documents.writers import html, picture
from nnstretch.report.tables.selection import (
    choice_text,
    comparison_rows,
    comparison_table,
    difference_text,
    explanation_table,
    front_table,
)
from nnstretch.scheduler.plan.schema import Plan
from nnstretch.scheduler.selection import SELECTORS, selector_class

NETWORK = """
import torch
from torch import nn

def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1)), torch.zeros(1, 3, 12, 12)
"""
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a network, and all that one tuning of it wrote."""
    folder = tmp_path_factory.mktemp("tuned")
    (folder / "net.py").write_text(NETWORK)
    options = ["--explain", "--compare", "--pareto", "latency,memory", "--limit", "memory=100MB", "--threads", "1"]
    outputs = [part for name in ("plan.json", "all.svg", "all.html") for part in ("-o", str(folder / name))]
    command = ["tune", f"{folder}/net.py:small", *options, *outputs, "--json"]
    with pytest.MonkeyPatch.context() as patch, (folder / "answer.json").open("w") as file:
        patch.setattr("sys.stdout", file)
        assert main(command) == 0
    return folder


@pytest.fixture(scope="module")
def answer(tuned: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((tuned / "answer.json").read_text())
    return found


def test_all_that_was_asked_for_is_answered(tuned: Path, answer: dict[str, Any]) -> None:
    assert answer["selector"] == "elimination"
    assert answer["optimal"] is True
    assert [row["selector"] for row in answer["comparison"]] == list(SELECTORS)
    best = min(row["predicted_ms"] for row in answer["comparison"])
    for row in answer["comparison"]:
        assert row["predicted_ms"] == pytest.approx(best) or not row["optimal"]
        assert row["predicted_ms"] * (1 - row["gap"]) <= best * (1 + 1e-9)
    assert answer["limits"] == {"memory": 100e6}
    assert answer["amounts"]["memory"] <= 100e6
    plan = Plan.from_json((tuned / "plan.json").read_text())
    chosen = {u["name"]: next(c for c in u["candidates"] if c["chosen"]) for u in answer["explanation"]}
    for step in plan.steps:
        if step.layer in chosen:
            assert step.routine == chosen[step.layer]["routine"]
            assert dict(step.parameters) == chosen[step.layer]["parameters"]


def test_differences_of_selectors_are_shares_of_their_own_cost() -> None:
    row = {"selector": "s", "optimal": False, "gap": 0.5, "states": 1, "seconds": 0.1}
    rows = comparison_rows([{**row, "predicted_ms": ms} for ms in (2.0, 4.0)])
    assert [cells[3] for cells in rows] == ["0.00%", "50.00%"]
    assert rows[1][1] == "at most 50.00% from the optimum"  # the best may be the optimum


def test_fronts_lead_from_the_fastest_to_the_smallest(answer: dict[str, Any]) -> None:
    front = answer["pareto"]
    assert front["objectives"] == ["latency", "memory"]
    assert front["complete"] is True
    assert front["points"][0]["latency_ms"] == pytest.approx(answer["predicted_ms"])
    assert front["points"][0]["memory"] == answer["amounts"]["memory"]
    for faster, smaller in zip(front["points"][:-1], front["points"][1:], strict=True):
        assert faster["latency_ms"] < smaller["latency_ms"]
        assert faster["memory"] > smaller["memory"]


def test_pictures_stand_by_themselves(tuned: Path, answer: dict[str, Any]) -> None:
    shown = ET.fromstring((tuned / "all.svg").read_text())  # noqa: S314 - we wrote it ourselves
    texts = [t.text for t in shown.iter(f"{SVG}text")]
    assert "Pareto front: latency against memory" in texts
    assert {"q-learning", "random"} <= set(texts)
    dots = len(list(shown.iter(f"{SVG}circle")))
    episodes = sum(len(row["curve"][:: max(1, len(row["curve"]) // 500)]) for row in answer["comparison"])
    assert dots == episodes + len(answer["pareto"]["points"])
    page = (tuned / "all.html").read_text()
    assert page == html(read_document(str(tuned / "answer.json")))
    assert (tuned / "all.svg").read_text() == picture(read_document(str(tuned / "answer.json")))
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert all(row["selector"] in page for row in answer["comparison"])


def sections_of(answer: dict[str, Any]) -> dict[str, Section]:
    return {section.title: section for section in tuning_document("x", answer).sections}


def test_a_report_compares_every_layer_with_its_next_best_routine(answer: dict[str, Any]) -> None:
    table = sections_of(answer)["Layers"].table
    assert table is not None
    units = {unit["name"]: unit for unit in answer["explanation"]}
    assert [row[0] for row in table.rows] == [layer["name"] for layer in answer["layers"]]
    compared = 0
    for row in table.rows:
        cells = dict(zip(table.titles, row, strict=True))
        unit = units.get(str(cells["layer"]))
        if unit is None or not cells["next best"]:
            continue
        others = [c for c in unit["candidates"] if c["routine"] != cells["routine"] and not c["fused"]]
        best = min(others, key=lambda c: float(c["cost_ms"]))
        assert (cells["next best"], cells["next best ms"]) == (best["routine"], best["cost_ms"])
        assert cells["× as long"] == pytest.approx(best["cost_ms"] / float(str(cells["ms"])))
        chosen = next(c for c in unit["candidates"] if c["chosen"])
        assert cells["error"] == chosen["error"]
        assert chosen["error"] is None or 0 <= chosen["error"] <= 1e-4
        compared += 1
    assert compared
    share = list(table.titles).index("% of all")
    assert sum(float(str(row[share])) for row in table.rows) == pytest.approx(100.0)


def test_a_report_says_what_failed(answer: dict[str, Any]) -> None:
    unit = {**answer["explanation"][0]}
    reason = "wrong answer: relative error 0.3"
    failure = {"processor": "cpu:0", "routine": "cpu:float32/x", "failed": 2, "settings": 5, "reason": reason}
    found = sections_of({**answer, "explanation": [{**unit, "failures": [failure]}]})["What failed"]
    assert found.table is not None
    assert [list(row) for row in found.table.rows] == [[unit["name"], "cpu:0", "cpu:float32/x", "2 of 5", reason]]
    none = sections_of({**answer, "explanation": [{**unit, "failures": []}]})["What failed"]
    assert (none.table, none.text.partition(":")[0]) == (None, "Nothing")


def test_a_report_without_an_explanation_has_the_steps(answer: dict[str, Any]) -> None:
    short = {key: value for key, value in answer.items() if key not in ("explanation", "comparison", "pareto")}
    assert list(sections_of(short)) == ["Where the time goes", "Layers"]
    document = answer_document(short)
    assert document is not None
    assert document.title == "Tuning net.py:small"
    assert html(document)


@pytest.mark.parametrize("pays", [True, False])
def test_a_report_says_which_processors_were_compared(answer: dict[str, Any], pays: bool) -> None:
    placement = {
        "pays": pays,
        "together_ms": 1.0,
        "bound_ms": 0.5,
        "alone_ms": {"cpu:0": 3.0, "opencl:0": 2.0},
        "splits": {"conv": {"cpu:0": 16, "opencl:0": 16}},
    }
    first, *others = answer["layers"]
    layers = [{**first, "processor": "opencl:0"}, *others]
    found = sections_of({**answer, "placement": placement, "layers": layers})
    table = found["Processors"].table
    assert table is not None
    assert [table.rows[row][0] for row in table.marked] == ["all at the same time" if pays else "opencl:0 alone"]
    assert ("conv" in found["Processors"].text) == pays
    steps = found["Layers"].table
    assert steps is not None
    assert "processor" in steps.titles


def test_tables_say_the_same(answer: dict[str, Any]) -> None:
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    console.print(explanation_table(answer["explanation"]))
    console.print(comparison_table(answer["comparison"]))
    console.print(front_table(answer["pareto"]))
    text = console.export_text()
    assert all(name in text for name in SELECTORS)
    assert f"{answer['pareto']['points'][-1]['latency_ms']:.3f}" in text
    assert text.count("●") == 1 + len(answer["explanation"])  # layers with one candidate too, and the caption


def test_long_and_unfinished_fronts_are_shown_in_steps() -> None:
    points = [{"latency_ms": 1.0 + i, "memory": 1e9 - i, "error": 1e-6} for i in range(500)]
    front = {"objectives": ["latency", "memory", "error"], "complete": False, "gap": 0.01, "points": points}
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    console.print(front_table(front))
    text = console.export_text()
    assert "40 of 500 points, points left out gain at most 1.00%" in " ".join(text.split())
    assert "500.000" in text
    assert "".join(front_panel(front)[1]).count("<circle") == 500


def test_one_point_is_a_front() -> None:
    front = {
        "objectives": ["latency", "memory"],
        "complete": True,
        "gap": 0.0,
        "points": [{"latency_ms": 1.0, "memory": 0.0}],
    }
    assert "1 points" not in "".join(front_panel(front)[1])


def test_another_selector_may_be_asked_for(tuned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outputs = [str(tuned / name) for name in ("greedy.md", "greedy.json")]
    command = ["tune", f"{tuned}/net.py:small", "--selector", "greedy", "--threads", "1", "--json"]
    assert main([*command, *(part for path in outputs for part in ("-o", path))]) == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert found["selector"] == "greedy"
    assert set(found["clocks"]) == {layer["processor"] for layer in found["layers"]}
    assert f"wrote {outputs[1]}, {outputs[0]}" in " ".join(captured.err.split())


def test_the_quality_of_the_choice_is_said_in_plain_words() -> None:
    assert "no other choice of routines is faster" in choice_text({"optimal": True, "gap": 0.0})
    limited = {"optimal": False, "gap": 0.012, "limits": {"memory": 1e6}}
    assert "another choice of routines within the limits is at most 1.20% faster" in choice_text(limited)


@pytest.mark.parametrize(
    ("measured", "used", "clock", "measurements", "words"),
    [
        (1.4, 0.1, 0.8, 9, ()),
        (1.4, 0.8, 1.0, 0, ()),  # of other programs suffers only what is measured
        (1.4, 0.8, 1.0, 9, ("other programs used 0.8 of 2 cores", "with --fresh")),
        (
            3.25,
            0.8,
            1.0,
            0,
            ("measured 3.25× the predicted latency: other programs used 0.8 of 2 cores", "with --fresh"),
        ),
        (3.25, 0.1, 1.0, 9, ("either the machine was disturbed, or the layers are slow together", "with --fresh")),
        (3.25, None, None, 9, ("either the machine was disturbed",)),
        (2.1, 0.8, 0.5, 9, ("reference frequency", "cpu:0 at 50%, cpu:1 at 100% of it", "about 2.000 ms")),
        (0.4, 0.1, 0.5, 9, ("measured 0.40× the predicted latency", "when routines were measured")),
    ],
)
def test_a_prediction_that_is_far_off_is_explained(
    answer: dict[str, Any],
    measured: float,
    used: float | None,
    clock: float | None,
    measurements: int,
    words: tuple[str, ...],
) -> None:
    changes = {
        "predicted_ms": 1.0,
        "measured_ms": measured,
        "measurements": measurements,
        "other_programs": None if used is None else {"used_cores": used, "cores": 2},
        "clocks": {} if clock is None else {"cpu:0": clock, "cpu:1": 1.0},
    }
    said = difference_text({**answer, **changes})
    assert bool(said) == bool(words)
    assert all(word in said for word in words)
    assert said[1:] in tuning_document("x", {**answer, **changes}).lead


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("200MB", 2e8),
        ("1.5GiB", 1.5 * 2**30),
        ("64KiB", 65536.0),
        ("5 eggs", None),
        ("5", 5.0),
        ("2e6", 2e6),
        ("10 kB", 1e4),
        ("10KB", 1e4),
        ("1.5mb", 1.5e6),
        ("2gib", 2.0**31),
    ],
)
def test_amounts_are_understood(text: str, amount: float | None) -> None:
    if amount is None:
        with pytest.raises(UsageError, match="no amount of memory; write one such as 200MB"):
            parse_limits([f"memory={text}"])
    else:
        assert parse_limits([f"memory={text}"]) == {"memory": amount}


def test_amounts_that_selectors_compare_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selector_class("greedy"), "resources", ("memory",))

    def needed(selector: str, *, compare: bool) -> tuple[str, ...]:
        request = TuningRequest(selector, False, compare, ("error",), {}, 0, False, "default")
        return request.resources

    assert needed("greedy", compare=False) == needed("elimination", compare=True) == ("error", "memory")
    assert needed("elimination", compare=False) == ("error",)


def test_limits_and_fronts_of_accuracy_are_top1() -> None:
    assert parse_limits(["accuracy=0.5", "memory=1"]) == {"accuracy": 0.5, "memory": 1.0}
    assert parse_front("latency, accuracy") == ("accuracy",)
    request = TuningRequest("elimination", False, False, ("accuracy", "memory"), {}, 0, False, "default")
    assert request.resources == ("error", "memory"), "errors order the plans whose top-1 is measured"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--selector", "best"), "elimination"),
        (("--pareto", "memory"), "write latency"),
        (("--pareto", "latency"), "write latency"),
        (("--pareto", "latency,speed"), "memory, error"),
        (("--pareto", "latency,memory,memory"), "write latency"),
        (("--limit", "memory"), "NAME=VALUE"),
        (("--limit", "power=3"), "resources are memory, error, accuracy"),
        (("--limit", "accuracy=1MB"), "accuracy=0.5"),
        (("--limit", "accuracy=1"), "add --dtype hybrid"),
        (("--limit", "accuracy=1", "--dtype", "hybrid"), "add --data SET"),
        (("--limit", "accuracy=1", "--dtype", "hybrid", "--data", "digits", "--target", "ssh:board"), "leave --target"),
        (("--data", "digits"), "add --limit accuracy=POINTS"),
        (("--pareto", "latency,accuracy"), "--pareto accuracy measures top-1 on validation images; add --data SET"),
        (("--pareto", "latency,accuracy", "--data", "digits", "--target", "ssh:board"), "leave --target"),
        (("--limit", "error=3MB"), "error=0.001"),
        (("--limit", "memory=lots"), "'lots' is no amount of memory; write one such as 200MB"),
        (("-o", "all.onnx"), "plans and reports are written as .json, .html"),
        (("-o", "plan.xyz"), "-o plan.xyz"),
        (("--limit", "memory=1", "--threads", "1"), "memory is limited to 1"),
    ],
)
def test_what_cannot_be_done_is_told(
    options: tuple[str, ...], words: str, tuned: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", f"{tuned}/net.py:small", *options]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.count("\n") == 1
