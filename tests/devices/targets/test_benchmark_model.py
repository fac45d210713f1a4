"""TFLite's own benchmark tool on targets: its command line, what it prints, and rows beside ours."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from nnstretch.bench.targets.tflite import measure_tflite, tflite_model
from nnstretch.devices.targets.base import TargetError
from nnstretch.devices.targets.benchmark_model import benchmark_arguments, parse_benchmark
from nnstretch.devices.targets.device import Device
from nnstretch.devices.targets.results import BenchOptions
from nnstretch.frontends.resolve import load_any
from tests.kits.boards.adb_daemon import AdbDaemon
from tests.kits.boards.fake_benchmark_model import printed, write_benchmark_model
from tests.kits.command_line import Cli, answer_of, refuses

QUICK = ("--budget", "0.05", "--no-tune", "--json")


@pytest.mark.parametrize(("median", "p50"), [(True, 266.4), (False, 266.473)])
def test_what_the_tool_prints_is_understood(*, median: bool, p50: float) -> None:
    found = parse_benchmark(printed(median=median), "there/m.tflite", "m", "adb")
    assert (found.name, found.runs, found.error) == ("m", 50, None)
    assert (found.p50_ms, found.min_ms, found.mean_ms) == pytest.approx((p50, 265.837, 266.473))
    assert (found.load_ms, found.first_ms) == pytest.approx((20.283, 339.304))


@pytest.mark.parametrize("output", ["", "STARTING!\nERROR: no model", printed().partition("Inference timings")[0]])
def test_output_without_latencies_is_one_line(output: str) -> None:
    with pytest.raises(TargetError, match="adb: benchmark_model printed no latencies: ") as caught:
        parse_benchmark(output, "m.tflite", "m", "adb")
    assert "\n" not in str(caught.value)


def test_the_tool_measures_as_long_as_the_runner() -> None:
    words = benchmark_arguments("m.tflite", BenchOptions(seconds=30, warmup=2), 4)
    assert {"--graph=m.tflite", "--num_threads=4", "--min_secs=30", "--max_secs=90", "--warmup_min_secs=2"} <= set(
        words
    )


def saved(path: Path, body: str) -> str:
    """A network of one layer as an ONNX file."""
    graph = f'<ir_version: 8, opset_import: ["": 18]> m (float[1, 1] x) => (float[1, 1] y) {{ {body} }}'
    onnx.save(onnx.parser.parse_model(graph), path)
    return str(path)


@pytest.fixture
def model(tmp_path: Path) -> str:
    return saved(tmp_path / "one.onnx", "y = Relu(x)")


def test_a_layer_that_tflite_lacks_is_a_row_with_its_reason(tmp_path: Path) -> None:
    path = saved(tmp_path / "other.onnx", "y = Hardmax(x)")
    other = tflite_model(path, load_any(path), tmp_path / "other.tflite")
    assert "Hardmax" in other.error
    device = Device.__new__(Device)  # nothing is asked of it
    (row,) = measure_tflite(device, tmp_path, [other], BenchOptions(), 2)
    assert row.result.error == other.error
    assert row.to_json()["error"] == other.error
    assert row.model.name == f"{path} (benchmark_model, 2 threads)"


def test_a_tflite_file_is_given_to_the_tool_as_it_is(tmp_path: Path) -> None:
    path = saved(tmp_path / "one.onnx", "y = Relu(x)")
    assert tflite_model("there.tflite", load_any(path), tmp_path / "made.tflite").file == Path("there.tflite")
    assert not (tmp_path / "made.tflite").exists()


def test_a_row_beside_ours(
    fake_runner: Path, plug_in: Callable[..., AdbDaemon], cli: Cli, model: str, tmp_path: Path
) -> None:
    phone = plug_in()
    tool = write_benchmark_model(tmp_path)
    asked = ("--target", f"adb:{phone.serial}", "--benchmark-model", str(tool), *QUICK, "-o", "found.csv")
    (run,) = answer_of(cli("bench", model, *asked))["targets"]
    ours, tflite = run["results"]
    assert (ours["model"], ours["p50_ms"]) == (model, 1.0)
    assert tflite["model"] == f"{model} (benchmark_model, 1 thread)"
    assert (tflite["engine"], tflite["p50_ms"], tflite["runs"]) == ("benchmark_model", 266.4, 50)
    rows = list(csv.DictReader(Path("found.csv").read_text().splitlines()))
    assert [row["latency"] for row in rows] == ["1", "266.4"]
    assert not list(phone.phone.folder.iterdir())


def test_a_tool_that_fails_or_is_not_there(
    fake_runner: Path, plug_in: Callable[..., AdbDaemon], cli: Cli, model: str, tmp_path: Path
) -> None:
    target = ("--target", f"adb:{plug_in().serial}")
    refuses(cli("bench", model, *target, "--benchmark-model", "nosuch"), "nosuch", "--benchmark-model")
    refuses(cli("bench", model, "--benchmark-model", "nosuch"), "--benchmark-model", "--target local")
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho 'cannot map the file' >&2\nexit 3\n")
    broken.chmod(0o755)
    status, out, _ = cli("bench", model, *target, "--benchmark-model", str(broken), *QUICK)
    ours, tflite = json.loads(out)["targets"][0]["results"]
    assert (status, ours["p50_ms"]) == (0, 1.0)
    assert tflite["error"] == "benchmark_model ended with status 3: cannot map the file"
    broken.write_text("#!/no/such/loader\n")
    refuses(cli("bench", model, *target, "--benchmark-model", str(broken), *QUICK), "does not run", "broken")
