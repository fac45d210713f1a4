"""The table of models beside other engines: measured once, a failure is a row, and rows say who is faster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nnstretch.bench.kept_answers import CommandError
from scripts.studies import model_benchmark


def result(model: str, threads: int = 1, fallback: tuple[str, ...] = (), **times: float) -> dict[str, Any]:
    """An entry of "results" of `nnstretch bench --json`."""
    engines: dict[str, dict[str, Any]] = {name: {"p50_ms": ms} for name, ms in times.items()}
    others = {name: ms for name, ms in times.items() if name != "nnstretch"}
    best = min(others, key=others.__getitem__, default=None)
    speedup = others[best] / times["nnstretch"] if best and "nnstretch" in times else None
    return {
        "model": f"models/{model}.onnx",
        "threads": threads,
        "engines": {**engines, "litert": {"error": "no operator Erf"}},
        "best_peer": best,
        "speedup": speedup,
        "max_rel_error": 3.2e-7,
        "fallback_layers": list(fallback),
    }


def save(path: Path, *results: dict[str, Any]) -> str:
    path.write_text(json.dumps({"results": results}))
    return str(path)


def rows(text: str) -> list[list[str]]:
    """The cells of a Markdown table."""
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in text.splitlines() if line[:1] == "|"]


def test_answers_become_a_table_per_number_of_threads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fast = save(tmp_path / "a.json", result("fast", nnstretch=2.0, onnxruntime=4.0, openvino=3.0))
    both = [result("slow", n, ("Erf_3",), nnstretch=4.0, onnxruntime=3.0, openvino=5.0) for n in (1, 2)]
    output = tmp_path / "table.md"
    assert model_benchmark.main([fast, save(tmp_path / "b.json", *both), "-o", str(output)]) == 0
    text = capsys.readouterr().out
    assert output.read_text() == text
    one, two = text.split("On 2 threads, p50 in ms:")
    titles, _, *cells = rows(one)
    assert titles[:5] == ["model", "nnstretch", "ONNX Runtime", "OpenVINO", "LiteRT"]
    assert cells[0] == ["fast", "**2.00**", "4.00", "3.00", "failed", "1.50 (openvino)", "3e-07", "none"]
    assert cells[1] == ["slow", "4.00", "**3.00**", "5.00", "failed", "0.75 (onnxruntime)", "3e-07", "1: Erf_3"]
    assert "Geometric mean over 2 models: 1.06× the best engine." in one
    assert "Slower than the best engine: slow (0.75× onnxruntime)." in one
    assert "Geometric mean over 1 model: 0.75×" in two
    assert len(rows(two)) == 3


def test_models_are_measured_by_the_command_and_a_failure_is_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands: list[list[str]] = []

    def kept(file: Path, command: list[str], announce: Any) -> dict[str, Any]:
        commands.append(command)
        assert file == tmp_path / f"{Path(command[1]).stem}-1.json"
        if "broken" in command[1]:
            raise CommandError("nnstretch bench failed with status 2")
        return {"results": [result("good", nnstretch=1.0, onnxruntime=1.5)]}

    monkeypatch.setattr(model_benchmark, "kept_answer", kept)
    assert model_benchmark.main(["broken.onnx", "good.onnx", "--work", str(tmp_path)]) == model_benchmark.FAILED
    assert [command[:2] for command in commands] == [["bench", "broken.onnx"], ["bench", "good.onnx"]]
    assert commands[0][2:4] == ["--against", "ort,openvino,litert,ncnn"]
    assert commands[0][-1] == "--json"
    said = capsys.readouterr()
    assert "nnstretch bench failed with status 2" in said.err
    good, broken = rows(said.out)[2:]
    assert (good[0], broken[:2]) == ("good", ["broken", "failed"])
    assert model_benchmark.main(["broken.onnx", "--work", str(tmp_path)]) == model_benchmark.FAILED
    assert "All models failed: broken." in capsys.readouterr().out


def test_an_engine_of_ours_that_fails_is_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lost = {**result("lost", onnxruntime=1.5), "speedup": None}
    assert model_benchmark.main([save(tmp_path / "a.json", lost)]) == model_benchmark.FAILED
    assert "No other engine ran beside ours" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"results": []}', '{"results": [{"model": "a"}]}', '{"results": [3]}']
)
def test_files_that_are_no_answers_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    assert model_benchmark.main([str(tmp_path / "a.json")]) == 2
    assert "a.json" in capsys.readouterr().err
