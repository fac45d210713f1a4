"""The runner's results: outputs, timings, timelines, batches, and what it prints when it is stopped."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import zlib
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from nnstretch.devices.base.spec import ProcessorSpec
from nnstretch.devices.cpu.processor import CpuProcessor
from nnstretch.devices.engine.build.instruction_sets import local_isa
from nnstretch.graph.reference import relative_error
from nnstretch.package.standalone import write_model_file
from nnstretch.package.standalone_session import StandaloneSession
from nnstretch.passes import optimize
from nnstretch.scheduler.planner import make_plan
from tests.kits.boards.machines import write_tree
from tests.kits.boards.runner import QUICK, bench, seeded_input, write_model
from tests.kits.graphs.graphs import RandomNetwork
from tests.kits.graphs.typed_networks import NATIVE, SHAPE, all_types

TOLERANCE = 1e-4


def test_outputs_are_those_of_the_network(runner: Path, model: Path, network: RandomNetwork, tmp_path: Path) -> None:
    network.input.tofile(tmp_path / "x.bin")
    answer = bench(runner, *QUICK, "--input", f"x={tmp_path / 'x.bin'}", "--outputs", tmp_path / "out", model, model)
    assert answer["stopped"] is None
    expected = network.expected()
    for number, entry in enumerate(answer["models"]):
        assert entry["inputs"][0]["crc32"] == zlib.crc32(network.input.tobytes())
        assert entry["repeatable"]
        assert len(entry["outputs"]) == len(expected)
        for place, (output, wanted) in enumerate(zip(entry["outputs"], expected, strict=True)):
            content = (tmp_path / "out" / f"{number}-{place}.bin").read_bytes()
            found = np.frombuffer(content, np.float32).reshape(output["shape"])
            assert output["crc32"] == zlib.crc32(content)
            assert (output["min"], output["max"]) == pytest.approx((found.min(), found.max()))
            assert relative_error(found, wanted) < TOLERANCE
    files = [f"{number}-{place}.bin" for number in range(2) for place in range(len(expected))]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(files)


@pytest.mark.parametrize("seed", [0, 7])
def test_outputs_are_those_of_a_session_for_the_seeded_inputs(runner: Path, model: Path, seed: int) -> None:
    (entry,) = bench(runner, *QUICK, "--seed", str(seed), model)["models"]
    (x,) = entry["inputs"]
    numbers = seeded_input(x["shape"], seed)
    assert x["crc32"] == zlib.crc32(numbers.tobytes())
    assert (x["min"], x["max"]) == pytest.approx((numbers.min(), numbers.max()))
    with StandaloneSession(model) as session:
        outputs = session.run(None, {x["name"]: numbers})
    assert [one["crc32"] for one in entry["outputs"]] == [zlib.crc32(one.tobytes()) for one in outputs]


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with an input and an output of every type."""
    return write_model(all_types(), tmp_path_factory.mktemp("typed") / "typed.nnm")


def test_inputs_and_outputs_of_all_types(runner: Path, typed: Path) -> None:
    (entry,) = bench(runner, *QUICK, "--seed", "3", typed)["models"]
    assert [one["type"] for one in entry["inputs"]] == list(NATIVE)
    inputs = {one["name"]: seeded_input(SHAPE, 3, index, one["type"]) for index, one in enumerate(entry["inputs"])}
    with StandaloneSession(typed) as session:
        outputs = session.run(None, inputs)
    assert entry["repeatable"]
    for one, array in zip([*entry["inputs"], *entry["outputs"]], [*inputs.values(), *outputs], strict=True):
        numbers = array.astype(np.float64)
        assert (one["type"], one["crc32"]) == (array.dtype.name, zlib.crc32(array.tobytes()))
        assert (one["min"], one["max"]) == pytest.approx((numbers.min(), numbers.max()))
        assert one["finite"] is True
        is_wide = array.dtype.kind in "iu" and array.dtype.itemsize > 1
        assert (one["min"] == one["max"] == 0) == is_wide


def test_files_of_all_types(runner: Path, typed: Path, tmp_path: Path) -> None:
    """Largest and least integers come back with all digits that a float64 has."""
    feeds = all_types().feeds
    limits = {name: np.iinfo(name) for name in feeds if feeds[name].dtype.kind in "iu"}
    words: list[str | Path] = []
    for name, array in feeds.items():
        if name in limits:
            array.flat[:2] = limits[name].min, limits[name].max
        array.tofile(tmp_path / name)
        words += ["--input", f"{name}={tmp_path / name}"]
    (entry,) = bench(runner, *QUICK, *words, "--outputs", tmp_path / "out", typed)["models"]
    for place, (output, array) in enumerate(zip(entry["outputs"], feeds.values(), strict=True)):
        content = (tmp_path / "out" / f"0-{place}.bin").read_bytes()
        assert content == np.ascontiguousarray(array.transpose(2, 0, 1)).tobytes()
        if output["type"] in limits:
            known = limits[output["type"]]
            assert (output["min"], output["max"]) == (int(float(known.min)), int(float(known.max)))
    (tmp_path / "uint8").write_bytes(bytes(25))
    (entry,) = bench(runner, *QUICK, *words, typed, status=1)["models"]
    assert entry["error"] == f"{tmp_path / 'uint8'} does not hold exactly the 24 uint8 numbers of input uint8"


def test_models_of_other_types_share_no_inputs(runner: Path, tmp_path: Path) -> None:
    """Inputs of one place and size: uint8 and int8 numbers are drawn differently."""
    cpu = CpuProcessor(ProcessorSpec("cpu", cores=(0,)), local_isa())
    paths = []
    for dtype in (TensorProto.UINT8, TensorProto.INT8, TensorProto.BOOL):
        ends = [helper.make_tensor_value_info(name, dtype, (4, 6) if name == "x" else (6, 4)) for name in "xy"]
        graph = helper.make_graph([helper.make_node("Transpose", ["x"], ["y"])], "graph", ends[:1], ends[1:])
        model = ir.serde.deserialize_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
        paths.append(tmp_path / f"{dtype}.nnm")
        write_model_file(make_plan(optimize(model), [cpu], cpu), "turned", local_isa(), paths[-1])
    for entry in bench(runner, *QUICK, *paths)["models"]:
        (x,) = entry["inputs"]
        assert x["crc32"] == zlib.crc32(seeded_input((4, 6), dtype=x["type"]).tobytes())


def test_seeded_inputs_are_nearly_normal() -> None:
    numbers = seeded_input((100_000,))
    assert abs(numbers.mean()) < 0.02
    assert abs(numbers.std() - 1) < 0.01
    assert not np.array_equal(numbers, seeded_input((100_000,), index=1))


def write_graph(path: Path, nodes: list[tuple[str, str, str]], shape: tuple[int, ...] = (1, 16, 4, 4)) -> Path:
    """A model file of operators from x on; tensors that nothing reads are outputs."""
    read = {source for _, source, _ in nodes}
    outputs = [to for _, _, to in nodes if to not in read]
    graph = helper.make_graph(
        [helper.make_node(op, [source], [to]) for op, source, to in nodes],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in outputs],
    )
    model = ir.serde.deserialize_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))
    cpu = CpuProcessor(ProcessorSpec("cpu", cores=(0,)), local_isa())
    write_model_file(make_plan(optimize(model), [cpu], cpu), path.stem, local_isa(), path)
    return path


@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan])
def test_numbers_that_are_not_finite(runner: Path, tmp_path: Path, number: float) -> None:
    path = write_graph(tmp_path / "relu.nnm", [("Relu", "x", "y"), ("Sigmoid", "x", "z")])
    x = np.zeros((1, 16, 4, 4), np.float32)
    x[0, 3, 2, 1] = number
    x.tofile(tmp_path / "x")
    (entry,) = bench(runner, *QUICK, "--input", f"x={tmp_path / 'x'}", path)["models"]
    (given,), by_name = entry["inputs"], {output["name"]: output for output in entry["outputs"]}
    assert (given["min"], given["max"], given["finite"]) == (None, None, False)
    assert by_name["y"]["finite"] is (number == -np.inf)
    assert by_name["z"]["finite"] is not np.isnan(number)
    assert (by_name["z"]["max"] is None) == np.isnan(number)
    assert by_name["y"]["shape"] == [1, 16, 4, 4]


def test_odd_names_are_valid_json(runner: Path, tmp_path: Path) -> None:
    name = 'a"b\\\n\t\x7f/é😀'
    path = write_graph(tmp_path / 'od"d\\ \x01é.nnm', [("Relu", "x", name)])
    odd = tmp_path / "x"
    shutil.copy(path, tmp_path / "o.nnm")
    (entry,) = bench(runner, *QUICK, path)["models"]
    assert entry["file"] == str(path)
    assert entry["outputs"][0]["name"] == name
    done = subprocess.run([bytes(runner), bytes(odd) + b"\xff\xfe.nnm"], capture_output=True, check=False, env={})
    assert done.returncode == 1
    (entry,) = json.loads(done.stdout.decode())["models"]
    assert entry["file"] == f"{odd}\ufffd\ufffd.nnm"


def test_statistics_are_those_of_the_samples(runner: Path, model: Path) -> None:
    answer = bench(runner, "--seconds", "0.1", "--warmup", "0.01", model, model)
    (exact,) = bench(runner, "--runs", "37", "--warmup", "0", model)["models"]
    assert exact["runs"] == 37
    for entry in (*answer["models"], exact):
        samples = np.array(entry["samples_ms"])
        assert len(samples) == min(1000, entry["runs"])
        assert entry["min_ms"] <= entry["p50_ms"] <= entry["p90_ms"] <= entry["p99_ms"]
        if entry["runs"] <= 1000:
            statistics = [*np.percentile(samples, [50, 90, 99]), samples.min(), samples.mean()]
            assert [entry[f"{key}_ms"] for key in ("p50", "p90", "p99", "min", "mean")] == pytest.approx(
                statistics, rel=1e-6
            )
    for entry in answer["models"]:
        assert entry["mean_ms"] * entry["runs"] >= 100


def test_a_timeline_has_all_steps_in_order(runner: Path, model: Path) -> None:
    (entry,) = bench(runner, *QUICK, "--timeline", model)["models"]
    timeline = entry["timeline"]
    assert {step["queue"] for step in timeline} == {0, 1}
    for queue in (0, 1):
        times = [t for step in timeline if step["queue"] == queue for t in (step["begin"], step["end"])]
        assert times == sorted(times)
        assert times[0] >= 0
    assert all("/" in step["step"] or step["step"] for step in timeline)
    assert "timeline" not in bench(runner, *QUICK, model)["models"][0]


def test_a_model_that_fails_is_data(runner: Path, model: Path, tmp_path: Path) -> None:
    (tmp_path / "damaged.nnm").write_bytes(model.read_bytes()[:-1])
    answer = bench(runner, *QUICK, tmp_path / "none.nnm", model, tmp_path / "damaged.nnm", status=1)
    missing, whole, damaged = answer["models"]
    assert (missing["file"], missing["name"]) == (str(tmp_path / "none.nnm"), None)
    assert "cannot open" in missing["error"]
    assert "copy it again" in damaged["error"]
    assert whole["runs"] == 3
    assert "error" not in whole


def test_many_models_of_little_memory_are_batches(runner: Path, model: Path, tmp_path: Path) -> None:
    """The machine has memory for the weights of three models; their activations are given back."""
    size = model.stat().st_size
    write_tree(tmp_path, {"proc/meminfo": f"MemAvailable: {7 * size // 1024} kB"})
    answer = bench(runner, *QUICK, "--root", tmp_path, *[model] * 8)
    assert [entry["batch"] for entry in answer["models"]] == [0, 0, 0, 1, 1, 1, 2, 2]
    assert len({entry["outputs"][0]["crc32"] for entry in answer["models"]}) == 1
    assert all(entry["repeatable"] and entry["runs"] == 3 for entry in answer["models"])
    write_tree(tmp_path, {"proc/meminfo": "MemAvailable: 0 kB"})
    answer = bench(runner, *QUICK, "--root", tmp_path, *[model] * 2)
    assert [entry["batch"] for entry in answer["models"]] == [0, 1]


def test_the_peak_memory_of_a_model_does_not_hold_the_others(runner: Path, model: Path, tmp_path: Path) -> None:
    large = write_graph(tmp_path / "large.nnm", [("Relu", "x", "y"), ("Relu", "x", "z")], (1, 16, 512, 512))
    first, second, third = bench(runner, *QUICK, model, large, model)["models"]
    if third["peak_memory_bytes"] is None:
        pytest.skip("this kernel does not let a process reset its peak")
    assert second["peak_memory_bytes"] > 30e6
    assert max(first["peak_memory_bytes"], third["peak_memory_bytes"]) < 15e6


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_prints_what_there_is(runner: Path, model: Path, number: signal.Signals) -> None:
    command = [str(runner), "--progress", "--minutes", "5", "--warmup", "0", str(model), str(model)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={}) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for _ in range(2):
            while " timing " not in process.stderr.readline():
                pass
        process.send_signal(number)
        answer = json.loads(process.stdout.read())
    assert process.returncode == 128 + number
    assert answer["stopped"] == number.name
    timed, other = sorted(answer["models"], key=lambda entry: "error" in entry)
    assert timed["runs"] > 0
    assert other["error"] == f"not timed: stopped by {number.name}"


def test_a_closed_output_is_an_error(runner: Path, model: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [str(runner), *QUICK, str(model)], stdout=full, stderr=subprocess.PIPE, check=False, env={}
        )
    assert done.returncode == 2
    assert done.stderr.startswith(b"error: cannot write to the standard output")
