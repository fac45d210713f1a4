"""The command line as a user calls it: answers and products."""

import json
import math
import os
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree as ET

import numpy as np
import onnx
import onnxruntime
import pytest

import nnstretch as nns
from nnstretch.bench.timing import Latency
from nnstretch.branching.pycls.files import parse_published, read_published
from nnstretch.cli import console
from nnstretch.cli.commands import COMMANDS
from nnstretch.cli.commands.run import latency_line
from nnstretch.cli.commands.sweep import COMMANDS as SWEEPS
from nnstretch.cli.console import reporting
from nnstretch.cli.main import main
from nnstretch.cli.running.request import RunRequest
from nnstretch.devices.base.spec import usable_cores
from nnstretch.devices.engine.binding.library import engine
from nnstretch.package import read_package
from nnstretch.report.tables.text import plain_table
from nnstretch.scheduler.measurement.store.rows import Measurement, Row
from nnstretch.scheduler.measurement.store.store import ProfileStore
from nnstretch.scheduler.plan.schema import Plan
from nnstretch.scheduler.runtime.session import PlanSession
from nnstretch.support.settings import searches_dir
from nnstretch.training.recipe_files import PRESETS
from tests.kits.command_line import Cli, answer_of, refuses
from tests.kits.networks.published_networks import SETTINGS

pytestmark = pytest.mark.usefixtures("network")


def test_processors_that_compute_nothing_are_named(cli: Cli, folder: Path) -> None:
    values = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4, 5]) for name in "xy"]
    axis = onnx.helper.make_tensor("axis", onnx.TensorProto.INT64, [], [0])
    node = onnx.helper.make_node("CumSum", ["x", "axis"], ["y"])
    graph = onnx.helper.make_graph([node], "graph", values[:1], values[1:], [axis])
    opsets = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, ir_version=10, opset_imports=opsets), folder / "sum.onnx")
    commands = (("run", "-p", "ort@0", "--no-tune"), ("tune", "-p", "ort@0"))
    for command, *options in (*commands, ("bench", "-p", "ort@1,cpu:0", "--no-tune", "--rounds", "1")):
        status, _, err = cli(command, "sum.onnx", *options)
        assert status == 0, err
        assert sum(line.startswith("nothing is computed on ort@") for line in err.splitlines()) == 1, (command, err)
    assert "nothing is computed" not in cli("run", "sum.onnx", "-p", "cpu:0", "--no-tune")[2]


@pytest.mark.parametrize(("p50", "p90", "is_disturbed"), [(1.0, 1.4, False), (0.8, 13.0, True), (2.5, 2.6, True)])
def test_a_disturbed_machine_is_named_whatever_runs(p50: float, p90: float, is_disturbed: bool) -> None:
    """A package runs as a model does: that a tenth of the runs takes far longer is enough."""
    line = latency_line(Latency(p50, p90, 0.75), 10**8)
    assert line.startswith(f"latency p50 {p50:.3f} ms, p90 {p90:.3f} ms")
    assert line.endswith("the machine was disturbed") == is_disturbed
    assert latency_line(Latency(p50, p90, 0.75), 10**8, processors="cpu:0-1").startswith("latency on cpu:0-1: p50")


# -- help ----------------------------------------------------------------------------------------------------------


def test_commands_are_all_listed() -> None:
    folder = Path(main.__code__.co_filename).parent / "commands"
    assert sorted(COMMANDS) == sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")


def test_a_shell_completes_commands_and_options(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_NNSTRETCH_COMPLETE", "complete_bash")
    for words, completed in {
        "rep": {"report"},
        "sweep de": {"designs"},
        "sweep designs net --objec": {"--objectives"},
        "report a.json --st": {"--study"},
    }.items():
        monkeypatch.setenv("COMP_WORDS", f"nnstretch {words}")
        monkeypatch.setenv("COMP_CWORD", str(len(words.split())))
        with pytest.raises(SystemExit) as ended:
            main([])
        assert ended.value.code == 0
        assert set(capsys.readouterr().out.split()) == completed


def test_help_shows_what_to_type_and_no_type_of_python(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both spellings of a switch are in one column, and help leaves them as they are parsed."""
    monkeypatch.setenv("COLUMNS", "80")
    for words in ((), ("sweep",), *((name,) for name in COMMANDS), *INNER):
        out = cli(*words, "--help")[1]
        assert not set("<>{") & set(out.replace("[x>=", "")), out
        assert "[[" not in out and max(map(len, out.splitlines())) <= 80
    assert "Usage: nnstretch bench [OPTIONS] [MODEL...] " in cli("bench", "--help")[1]
    assert "Usage: nnstretch run [OPTIONS] MODEL " in cli("run", "--help")[1]
    assert "list|export|merge|clear" in cli("profiles", "--help")[1]
    assert "--tune,--no-tune " in (out := cli("run", "--help")[1]) and "[default: tune]" in out


def test_captions_are_as_wide_as_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    table = plain_table("a", title="a title that is wider than its table")
    table.add_row("1")
    table.caption = "a caption (--min-depth 1 keeps all) that is wider than its table"
    with reporting(as_json=False) as report:
        report.show(table)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].strip() == table.title and lines[-1].strip() == table.caption


INNER = [(name, inner) for name, inners in {"sweep": SWEEPS}.items() for inner in inners]


@pytest.mark.parametrize("words", [*((name,) for name in COMMANDS if name != "sweep"), *INNER], ids=" ".join)
def test_help_of_every_command_has_an_example(cli: Cli, words: tuple[str, ...]) -> None:
    command = " ".join(words)
    status, out, _ = cli(*words, "--help")
    assert status == 0
    assert f"Example: nnstretch {command}" in " ".join(out.split())
    assert "--json" in out


def test_help_lists_the_presets_and_shows_defaults_plainly(cli: Cli) -> None:
    for command in ("train", "stretch"):
        out = " ".join(cli(command, "--help")[1].replace("│", " ").split())
        assert f"preset ({', '.join(PRESETS)})" in out
    for command in COMMANDS:
        assert "[default: (" not in cli(command, "--help")[1]
    for command in ("quantize", "tune", "compile"):
        assert "not a package" in " ".join(cli(command, "--help")[1].replace("│", " ").split())


def test_answers_say_what_they_were_made_with(cli: Cli, onnx_file: Path, folder: Path) -> None:
    answers = [answer_of(cli("bench", str(onnx_file), "--no-tune", "-r", "1", "-o", "b.json", "--json"))]
    answers.append(json.loads((folder / "b.json").read_text()))
    for found in (answer["environment"] for answer in answers):
        assert {"nnstretch", "python", "system", "cpu", "engine", "libraries"} <= found.keys()
        assert "onnxruntime" in found["libraries"]


def test_without_a_command_there_is_the_help(cli: Cli) -> None:
    status, out, err = cli()
    assert status == 2
    assert "Start with: nnstretch doctor; nnstretch devices; nnstretch bench model.onnx" in " ".join(out.split())
    assert err == ""


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from nnstretch.cli.main import main; main(['--help'])\n"
        "print([m for m in ('numpy', 'torch', 'onnx', 'onnx_ir', 'onnxruntime', 'pyopencl') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]"


WATCH = """
import os, sys
from nnstretch.cli.main import main

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            os.write(1, " ".join(os.environ.get(name, "unset") for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")).encode())
            os._exit(0)

sys.meta_path.insert(0, Watch())
main(["train", "net.py:small", "--data", "digits", "-o", "w.safetensors"])
"""


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({}, "passive 3000"),
        ({"OMP_WAIT_POLICY": "active"}, "active unset"),
        ({"GOMP_SPINCOUNT": "7"}, "passive 7"),
    ],
)
def test_train_lets_idle_threads_sleep_before_torch_is_loaded(asked: dict[str, str], found: str) -> None:
    environment = dict(os.environ)
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        environment.pop(name, None)
    environment |= asked
    command = [sys.executable, "-c", WATCH]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, env=environment)
    assert done.stdout == found, done.stderr


def test_version(cli: Cli) -> None:
    status, out, _ = cli("--version")
    assert status == 0
    assert out.startswith("nnstretch ")


def test_names_are_shown_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["out[a]/net.nns", "layer[/b]", "model:smile:"]
    with reporting(as_json=False) as report:
        shown = plain_table("name")
        for name in names:
            shown.add_row(name)
            report.note(name)
        report.show(shown, *names)
    out, err = capsys.readouterr()
    assert [out.count(name) for name in names] == [2, 2, 2]
    assert err.split() == names


def test_long_work_writes_lines_where_there_is_no_bar(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 14.0, 15.0, 15.0, 16.0, 31.0, 31.0])
    monkeypatch.setattr(console, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    with reporting(as_json=True) as report, report.progress("Compiling") as advance:
        for number, what in enumerate(("one", "two", "three", "four")):
            advance(number, 4 if number < 3 else 0, what)
    out, err = capsys.readouterr()
    assert not out
    assert err == "… Compiling: two (1 of 4)\n… Compiling: four\n"


# -- what commands answer ------------------------------------------------------------------------------------------


def test_devices(cli: Cli) -> None:
    answer = answer_of(cli("devices", "--json"))
    cpu = answer["processors"][0]
    assert cpu["kind"] == "cpu"
    assert cpu["cores"] == len(os.sched_getaffinity(0))
    assert cpu["usable"] and cpu["why_not"] is None
    for one in answer["processors"]:
        assert {"name", "kind", "device", "cores", "dtypes", "usable", "why_not"} <= one.keys()
        assert (one["traits"] is not None) == (one["kind"] == "opencl")
    assert {"litert", "ort"} <= {one["kind"] for one in answer["processors"]}
    assert "cpu:" in cli("devices")[1]


def test_zoo_lists_and_exports(cli: Cli, folder: Path) -> None:
    networks = {one["name"]: one for one in answer_of(cli("zoo", "--json"))["networks"]}
    assert networks["resnet50"]["params"] == 25_557_032
    answer = answer_of(
        cli("zoo", "squeezenet1_1", "--num-classes", "7", "--image-size", "64", "-o", "s.onnx", "--json")
    )
    session = onnxruntime.InferenceSession("s.onnx", providers=["CPUExecutionProvider"])
    assert session.get_inputs()[0].shape == [1, 3, 64, 64]
    (y,) = session.run(None, {"x": np.zeros((1, 3, 64, 64), np.float32)})
    assert y.shape == (1, 7)
    assert answer["file"] == "s.onnx"
    status, out, err = cli("zoo", "squeezenet1_1", "--num-classes", "7", "--image-size", "64")
    assert (status, out.split(":")[0]) == (0, "squeezenet1_1")
    assert "input 1×3×64×64, " in out
    assert "nothing was written; -o squeezenet1_1.onnx writes the network" in err
    assert [path.name for path in folder.glob("*.onnx")] == ["s.onnx"]
    assert answer["macs"] > 0


def test_run_writes_outputs_that_are_onnxruntimes(cli: Cli, onnx_file: Path) -> None:
    x = np.random.default_rng(1).standard_normal((1, 1, 16, 16)).astype(np.float32)
    np.save("x.npy", x)
    session = onnxruntime.InferenceSession(str(onnx_file), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    (expected,) = session.run(None, {name: x})
    for given in (f"{name}=x.npy", "x.npy"):  # a file without a name is for the only input
        Path("y.npz").unlink(missing_ok=True)
        answer = answer_of(cli("run", str(onnx_file), "-i", given, "-o", "y.npz", "--no-tune", "--runs", "3", "--json"))
        with np.load("y.npz") as outputs:
            (found,) = (outputs[key] for key in outputs.files)
        np.testing.assert_allclose(found, expected, atol=1e-5)
        assert 0 < answer["min_ms"] <= answer["p50_ms"] <= answer["p90_ms"]
    refuses(cli("run", str(onnx_file), "-i", "other=x.npy", "--no-tune"), f"the model's inputs are {name}, not other")
    np.save("nan.npy", np.full_like(x, np.nan))
    once = ("run", str(onnx_file), "--no-tune", "--runs", "1")
    assert "are not finite" in cli(*once, "-i", f"{name}=nan.npy")[2]
    status, out, _ = cli(*once, "-i", f"{name}=nan.npy", "--check")
    assert (status, "nothing was compared" in out) == (1, True)
    np.save("swapped.npy", x.astype(x.dtype.newbyteorder()))
    assert answer_of(cli(*once, "-i", f"{name}=swapped.npy", "--check", "--json"))["passed"] is True


def test_run_checks_against_onnxruntime(cli: Cli, onnx_file: Path) -> None:
    options = ("--check", "--no-tune", "--runs", "2", "--json")
    answer = answer_of(cli("run", str(onnx_file), *options))
    assert answer["passed"] is True
    assert 0 < answer["max_rel_error"] < 1e-4
    status, out, _ = cli("run", str(onnx_file), *options, "--max-error", "0")
    assert status == 1
    assert json.loads(out)["passed"] is False


def test_a_check_of_an_int8_network_allows_for_rounding(cli: Cli, onnx_file: Path, folder: Path) -> None:
    name = onnxruntime.InferenceSession(str(onnx_file)).get_inputs()[0].name
    examples: dict[str, Any] = {name: np.random.default_rng(0).standard_normal((4, 1, 16, 16)).astype(np.float32)}
    np.savez("examples.npz", **examples)
    answer_of(cli("quantize", str(onnx_file), "--data", "examples.npz", "-o", "int8.onnx", "--json"))
    check = ("run", "int8.onnx", "--check", "--no-tune", "--runs", "1", "--json")
    answer = answer_of(cli(*check))
    layers = 6 + 1 + 1 + 1  # convolutions, pool, dense layer, and the quantisation of the input
    assert answer["max_error"] == pytest.approx(5e-4 + 2 * layers**0.5 / 255)
    assert answer["passed"] is True
    assert answer_of(cli(*check, "--max-error", "0.5"))["max_error"] == 0.5


def test_a_judgement_compares_with_what_plan_and_tolerance_explain(onnx_file: Path) -> None:
    with nns.compile(onnx_file, tune=False) as session:
        plan = session.plan
    rounding = replace(plan, steps=tuple(replace(step, routine="cpu:int8/direct") for step in plan.steps))
    request, outputs = RunRequest({}, None, None, 1, None, 1e-4, None, 0), {"y": np.array([1.0, np.nan])}
    assert request.judge(None, plan, outputs) is None
    for error, ran, passes in ((0.01, rounding, True), (0.5, rounding, False), (0.01, plan, False), (4e-4, None, True)):
        judgement = request.judge(error, ran, outputs)
        assert judgement is not None
        assert judgement.passes is passes
        assert ("within" if passes else "beyond") in str(judgement)
    strict = replace(request, max_error=0.0).judge(1e-9, rounding, outputs)
    assert strict is not None
    assert not strict.passes
    nothing = request.judge(0.0, plan, {"y": np.array([np.nan])})
    assert nothing is not None
    assert not nothing.passes
    empty = request.judge(0.0, plan, {"y": np.zeros((0, 6))})
    assert empty is not None
    assert empty.passes


def test_a_check_of_a_factory_uses_the_weights_that_ran(cli: Cli, folder: Path) -> None:
    (folder / "drawn.py").write_text(
        "import torch\ndef net():\n    return torch.nn.Conv2d(3, 8, 3), torch.zeros(1, 3, 16, 16)\n"
    )
    answer = answer_of(cli("run", "drawn.py:net", "--check", "--no-tune", "--runs", "2", "--json"))
    assert answer["passed"] is True


def test_more_threads_than_cores_are_named(cli: Cli, onnx_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    core = f"cpu:{usable_cores()[0]}"
    assert cli("run", str(onnx_file), "-p", core, "--threads", "99", "--no-tune", "-n", "1")[0] == 0
    assert [one.getMessage() for one in caplog.records] == [f"threads is 99; {core} has 1 core, and no more are used"]


@pytest.mark.parametrize(("given", "budget"), [((), 2.0), (("--runs", "60"), math.inf)])
def test_seconds_end_the_runs_only_where_no_number_of_them_is_given(
    cli: Cli, onnx_file: Path, given: tuple[str, ...], budget: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def as_if_time_were_up(session: PlanSession, feeds: Any, **how: Any) -> np.ndarray:
        asked.append(how["budget"])
        return np.full(60 if how["budget"] == math.inf else 7, 0.1)

    monkeypatch.setattr(PlanSession, "time", as_if_time_were_up)
    status, out, err = cli("run", str(onnx_file), "--no-tune", "--json", *given)
    assert status == 0 and asked == [budget]
    assert json.loads(out)["runs"] == (60 if given else 7)
    assert ("7 runs in 2 seconds; --runs 50 makes all of them" in err) == (not given)


def test_a_random_input_is_the_seeds(cli: Cli, onnx_file: Path) -> None:
    for seed, file in (("3", "a.npz"), ("3", "b.npz"), ("4", "c.npz")):
        assert cli("run", str(onnx_file), "--no-tune", "--runs", "1", "--seed", seed, "-o", file)[0] == 0
    a, b, c = (next(iter(np.load(file).values())) for file in ("a.npz", "b.npz", "c.npz"))
    assert np.array_equal(a, b)
    assert not np.array_equal(a, c)


def test_package_runs_checks_and_traces(cli: Cli, package: Path, folder: Path) -> None:
    status, out, err = cli("run", str(package), "--timeline", "t.json", "--runs", "2", "--check", "--json")
    assert status == 0, err
    answer = json.loads(out)
    assert answer["passed"] is True
    found = answer["timeline"]
    assert found["total_ms"] >= found["critical_path_ms"] > 0
    assert sum(step["ms"] for step in found["path"]) == pytest.approx(
        sum(queue["busy_ms"] for queue in found["queues"])
    )
    events = json.loads((folder / "t.json").read_text())["traceEvents"]
    steps = [event for event in events if event.get("cat") == "step"]
    assert {"Conv", "Dense"} <= {step["args"]["op"] for step in steps}


def test_a_run_is_a_picture_or_a_page_by_the_name_of_its_file(cli: Cli, package: Path, folder: Path) -> None:
    for file in ("t.svg", "t.html"):
        status, _, err = cli("run", str(package), "--timeline", file, "--runs", "1")
        assert status == 0, err
        assert f"wrote {file}" in err
    picture = ET.parse(folder / "t.svg").getroot()  # noqa: S314 - our own text
    steps = [one for one in picture.iter("{http://www.w3.org/2000/svg}title") if "cpu:float32/" in (one.text or "")]
    page = (folder / "t.html").read_text()
    assert f">{len(steps)}</b><span>steps" in page
    assert all(f"<h2>{title}</h2>" in page for title in ("Timeline", "Processors", "Steps"))
    assert f"One run of {package.name}, " in (folder / "t.svg").read_text()


def test_tune_selects_and_writes_a_plan(cli: Cli, onnx_file: Path, folder: Path) -> None:
    answer = answer_of(cli("tune", str(onnx_file), "--threads", "1", "-o", "plan.json", "--json"))
    plan = Plan.from_json((folder / "plan.json").read_text())
    assert [layer["name"] for layer in answer["layers"]] == [step.layer for step in plan.steps]
    assert answer["optimal"] is True
    assert answer["gap"] == 0
    assert answer["predicted_ms"] == pytest.approx(sum(layer["cost_ms"] for layer in answer["layers"]))
    assert answer["measured_ms"] > 0
    assert answer["tuning_s"] > 0
    for layer, step in zip(answer["layers"], plan.steps, strict=True):
        assert (layer["gflops"] is None) == (layer["peak_share"] is None) == (not step.macs)
        assert not step.macs or layer["gflops"] == pytest.approx(2 * step.macs / (layer["cost_ms"] * 1e6))
        assert not step.macs or layer["peak_share"] > 0


def test_profiles_are_listed_carried_and_cleared(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = """
        <ir_version: 8, opset_import: ["": 18]> model (float[1, 16, 8, 8] x) => (float[1, 16, 8, 8] y)
        {
            active = Relu(x)
            y = Conv(active, w)
        }
    """
    proto = onnx.parser.parse_model(lines)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((16, 16, 1, 1), np.float32), "w"))
    onnx.save(proto, "two.onnx")
    engine()  # built in the usual cache
    monkeypatch.setenv("NNSTRETCH_CACHE_DIR", str(folder / "cache"))
    common = ("tune", "two.onnx", "--threads", "1", "--json")

    def outside_networks() -> dict[str, float]:
        """Measurements of layers on their own, with their times; those inside a network are measured again where disturbed."""
        answer_of(cli("profiles", "export", "-o", "now.json", "--json"))
        rows = json.loads(Path("now.json").read_text())["measurements"]
        kept = ("processor", "workload", "routine", "parameters", "state")
        return {str([row[name] for name in kept]): row["measured"] for row in rows if " in " not in row["workload"]}

    answer_of(cli(*common))
    (first,) = answer_of(cli("profiles", "--json"))["processors"]
    assert first["measurements"] >= first["workloads"] > 0
    assert first["failed"] == 0
    before = outside_networks()
    answer_of(cli(*common, "--resume"))
    (resumed,) = answer_of(cli("profiles", "list", "--json"))["processors"]
    assert (resumed["processor"], resumed["failed"]) == (first["processor"], 0)
    assert before.items() <= outside_networks().items(), "what was measured is not measured again"
    answer_of(cli(*common, "--fresh"))
    (again,) = answer_of(cli("profiles", "--json"))["processors"]
    assert again["last"] > resumed["last"]
    after = outside_networks()
    assert before.keys() <= after.keys()
    assert any(after[key] > before[key] for key in before), "it is, where a fresh start is asked for"
    count = again["measurements"]
    exported = answer_of(cli("profiles", "export", "-o", "p.json", "--json"))
    assert (exported["file"], exported["measurements"]) == ("p.json", count)
    search = searches_dir() / "found.json"
    search.touch()
    refuses(cli("profiles", "clear", "--processor", "no such"), "'no such'", again["processor"])
    assert search.exists()
    assert answer_of(cli("profiles", "clear", "--json"))["measurements"] == count
    assert not search.exists(), "what searches have found rests on these measurements"
    assert answer_of(cli("profiles", "--json"))["processors"] == []
    assert answer_of(cli("profiles", "merge", "p.json", "--json"))["taken"] == count
    assert answer_of(cli("profiles", "--json"))["processors"] == [again]


def test_profiles_list_what_was_left_out(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NNSTRETCH_CACHE_DIR", str(folder / "cache"))
    late = Measurement(None, failure="wrong answer: relative error 2", when=2.0)
    early = Measurement(None, failure="too slow", when=1.0)
    with closing(ProfileStore()) as store:
        store.put_all(
            Row("cpu", json.dumps({"op": op, "inputs": [number]}), "cpu:float32/pool", {}, measurement)
            for op, number, measurement in (("MaxPool", 1, late), ("MaxPool", 2, early), ("Conv", 1, early))
        )
        store.put_all([Row("cpu", "a merged file's", "cpu:float32/dense", {}, early)])
        store.put_all([Row("cpu", json.dumps({"op": "Conv"}), "cpu:float32/direct", {}, Measurement(1e-3, (1e-3,)))])
    failures = answer_of(cli("profiles", "--json"))["failures"]
    assert failures == [
        {"routine": "cpu:float32/dense", "op": "", "layers": 1, "reason": "too slow"},
        {"routine": "cpu:float32/pool", "op": "Conv", "layers": 1, "reason": "too slow"},
        {"routine": "cpu:float32/pool", "op": "MaxPool", "layers": 2, "reason": "wrong answer: relative error 2"},
    ]
    _, shown, _ = cli("profiles")
    assert "wrong answer: relative error 2" in shown


def test_profiles_refuse_what_they_cannot_use(
    cli: Cli, folder: Path, onnx_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuses(cli("profiles", "export"), "-o FILE")
    refuses(cli("profiles", "export", "p.json", "-o", "p.json"), "no FILE")
    refuses(cli("profiles", "clear", "p.json"), "no FILE")
    refuses(cli("profiles", "merge", "missing.json"), "missing.json", "No such file")
    refuses(cli("profiles", "merge", "net.py"), "net.py", "JSON")
    (folder / "cache").mkdir()
    (folder / "cache" / "profiles.sqlite").write_text("no database, but long enough to be looked at " * 30)
    monkeypatch.setenv("NNSTRETCH_CACHE_DIR", str(folder / "cache"))
    refuses(cli("profiles"), "profiles.sqlite", "NNSTRETCH_CACHE_DIR")


def test_compile_answers_with_what_it_wrote(cli: Cli, folder: Path) -> None:
    answer = answer_of(cli("compile", "net.py:small", "--no-tune", "--json"))
    assert answer["file"] == "net.nns"
    assert answer["bytes"] == (folder / "net.nns").stat().st_size
    assert answer["macs"] > 0
    assert answer["fallback_layers"] == []


def test_packages_of_several_plans(cli: Cli, folder: Path) -> None:
    first, last = (sorted(os.sched_getaffinity(0))[i] for i in (0, -1))
    plans = f"cpu:{first};cpu:{last}" if first != last else f"cpu:{first}"
    answer = answer_of(cli("compile", "net.py:small", "--plans", plans, "--no-tune", "-o", "p.nns", "--json"))
    assert list(answer["plans"]) == plans.split(";")
    assert all(plan["p50_ms"] > 0 and plan["busy_ms"] for plan in answer["plans"].values())
    assert answer["bytes"] == (folder / "p.nns").stat().st_size
    for policy in ((), ("--policy", "fixed"), ("--policy", "deadline=1s")):
        ran = answer_of(cli("run", "p.nns", "--runs", "5", "--check", "--timeline", "t.json", "--json", *policy))
        assert ran["passed"]
        assert ran["p50_ms"] > 0
        if first != last or policy:
            assert sum(ran["plans"]["runs"].values()) >= 6
            assert ran["plans"]["failures"] == 0
    assert answer_of(cli("run", "net.py:small", "--no-tune", "--policy", "adaptive", "--json"))["plans"]
    text = cli("run", "p.nns", "--policy", "fixed", "--runs", "3")
    assert text[0] == 0
    assert f"by cpu:{first}" in text[1]
    refuses(cli("run", "p.nns", "--policy", "best"), "best", "adaptive")
    refuses(cli("compile", "net.py:small", "--plans", "cpu;"), "empty")
    refuses(cli("compile", "net.py:small", "--plans", "cpu", "-p", "cpu:0"), "plans", "processors")
    refuses(cli("compile", "net.py:small", "--plans", f"cpu:{first};cpu:{first}", "--no-tune"), "twice")


# -- from data to a branched network ------------------------------------------------------------------------------


def test_train_evaluate_and_resume(cli: Cli, folder: Path) -> None:
    common = ("net.py:small", "--data", "digits")
    options = ("--image-size", "16", "--epochs", "2", "--threads", "1")
    answer = answer_of(cli("train", *common, *options, "-o", "w.safetensors", "--json"))
    assert len(answer["history"]) == 2
    assert {path.name for path in (folder / "w.run").iterdir()} >= {"recipe.yaml", "log.jsonl", "result.json"}
    low, high = answer["top1_interval"]
    assert 0 < low < answer["top1"] < high < 100
    assert answer["top5"] > answer["top1"]
    _, out, err = cli("train", *common, *options, "-o", "w.safetensors", "--json", "--resume")
    assert "is finished" in err
    assert json.loads(out)["top1"] == answer["top1"]
    tops = {
        engine: answer_of(cli("evaluate", *common, "--weights", "w.safetensors", "--engine", engine, "--json", *extra))
        for engine, extra in (("torch", ()), ("onnxruntime", ()), ("nnstretch", ("--no-tune",)))
    }
    # The networks are the same; rounding may move an image that lies on the edge between two classes.
    for one in tops.values():
        assert one["top1"] == pytest.approx(answer["top1"], abs=0.4)
        assert one["images"] == 539
    made = answer_of(
        cli(
            "quantize",
            *common,
            "-w",
            "w.safetensors",
            "--images",
            "64",
            "-o",
            "int8.onnx",
            "--method",
            "percentile",
            "--json",
        )
    )
    assert made["int8_layers"] >= 3
    assert made["bytes"] == (folder / "int8.onnx").stat().st_size
    rounded = answer_of(cli("evaluate", "int8.onnx", "--data", "digits", "--no-tune", "--json"))
    assert rounded["top1"] >= answer["top1"] - 2


def test_quantize_refuses(cli: Cli, onnx_file: Path, folder: Path) -> None:
    name = onnxruntime.InferenceSession(str(onnx_file)).get_inputs()[0].name
    np.savez(folder / "wrong.npz", **{name: np.zeros((4, 1), np.float32)})  # type: ignore[arg-type]
    np.savez(folder / "none.npz", **{name: np.zeros((0, 1, 16, 16), np.float32)})  # type: ignore[arg-type]
    np.savez(folder / "nan.npz", **{name: np.full((2, 1, 16, 16), np.nan, np.float32)})  # type: ignore[arg-type]
    options = ("quantize", str(onnx_file), "-o", "q.onnx", "--data")
    refuses(cli(*options, "nan.npz"), "NaN or infinite", name)
    refuses(cli(*options, "wrong.npz"), "float32[4,1]", name)
    refuses(cli(*options, "none.npz"), "0 examples")
    refuses(cli(*options, "absent.npz"), "absent.npz")
    refuses(cli(*options, "letters"), "letters", "digits", "neither a folder of images nor a .npz file")
    refuses(cli(*options, "digits", "--method", "guess"), "guess", "minmax")
    assert not (folder / "q.onnx").exists()


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_published_networks_are_made_and_written_again(cli: Cli, folder: Path) -> None:
    setting = SETTINGS["R-34 C+D"]
    (folder / "R-34.yaml").write_text(setting.text())
    command = ["stretch", "resnet34", "--published", "R-34.yaml", "--image-size", "128", "-p", "cpu:0,opencl:0@1"]
    status, out, _ = cli(*command, "-o", "designs", "--yaml", "--json")
    assert status == 0
    (design,) = json.loads(out)["designs"]
    path = Path(design["file"])
    again = read_published(path.with_suffix(".yaml"))
    assert again.stages == parse_published(setting.text()).stages
    assert again.devices == ("cpu", "gpu")
    assert design["meeting_points"] == 4
    assert design["params"] / 1e6 == pytest.approx(13.457, abs=1e-3)
    # What was written can be used like any other design.
    status, out, _ = cli(
        "stretch", "resnet34", "--published", str(path.with_suffix(".yaml")), "--image-size", "128", "--json"
    )
    assert json.loads(out)["designs"][0]["id"] == design["id"]
    assert {found.suffix for found in path.parent.iterdir()} == {".json", ".safetensors", ".onnx", ".yaml"}
    refuses(cli("stretch", "resnet34", "--published", "R-34.yaml", "-p", "cpu:0"), "two or more")
    refuses(cli("stretch", "resnet50", "--published", "R-34.yaml"), "family")
    refuses(cli("stretch", "resnet34", "--published", "none.yaml"), "none.yaml")
    refuses(cli("stretch", "resnet34", "--merge", "sum"), "concat+1x1")


def test_stretch_retrain_compile_and_prove(cli: Cli, folder: Path) -> None:
    """Weights and design know the image size: only the first command names it."""
    processors = ("-p", "cpu:0,cpu:1")
    options = ("--data", "digits", "--epochs", "1", "--threads", "1")
    first = answer_of(cli("train", "net.py:shallow", *options, "--image-size", "16", "-o", "w.safetensors", "--json"))
    assert first["blockwise"] is None
    found = answer_of(
        cli(
            "stretch", "net.py:shallow", "--weights", "w.safetensors", *processors, "-o", "designs", "--top", "1",
            "--alpha", "100", "--beta", "100", "--even-if-slower", "--json",
        )
    )  # fmt: skip
    (design,) = found["designs"]
    assert design["meeting_points"] >= 1
    assert {branch["processor"] for branch in design["branches"]} == {"cpu:0", "cpu:1"}
    for suffix in (".json", ".safetensors", ".onnx"):
        assert Path(design["file"]).with_suffix(suffix).is_file()
    branched = ("--design", design["file"], "--weights", "b.safetensors")
    trained = answer_of(
        cli(
            "train", "net.py:shallow", *options, "--design", design["file"], "--weights", "w.safetensors",
            "--teacher", "net.py:shallow:w.safetensors", "--recipe", "quick-retrain", "-o", "b.safetensors", "--json",
        )
    )  # fmt: skip
    assert trained["macs"] == design["macs"]
    # A few epochs on a design that differs from machine to machine need not reach what it began with.
    assert trained["best_top1"] >= trained["validation_top1"] > 0
    assert trained["start_top1"] > 0
    before = trained["blockwise"]["before"]
    assert (trained["blockwise"]["steps"] > 0) == (max(before) > 1e-4)  # full widths leave nothing to learn
    assert len(trained["blockwise"]["after"]) == len(before) > 0
    compiled = answer_of(cli("compile", "net.py:shallow", *branched, *processors, "--no-tune", "-o", "b.nns", "--json"))
    assert compiled["macs"] == design["macs"]
    assert compiled["subgraphs"] > 2
    assert cli("run", "b.nns", "--check", "--runs", "2")[0] == 0
    ablation = answer_of(
        cli(
            "bench", "net.py:shallow", *branched, *processors, "--rounds", "2", "--no-tune", "--json",
        )
    )  # fmt: skip
    assert set(ablation["original_ms"]) == set(ablation["control_ms"]) == {"cpu:0", "cpu:1"}
    assert ablation["max_rel_error"] < 1e-4
    bound = 1 / sum(1 / ms for ms in ablation["control_ms"].values())
    assert ablation["perfect_split_ms"] == pytest.approx(bound, rel=1e-3)
    assert ablation["split_share"] == pytest.approx(bound / ablation["branched_ms"], rel=1e-3)
    tops = {row["network"]: row["top1"] for row in ablation["rows"]}
    assert tops["branched"] == pytest.approx(trained["top1"])
    assert tops["control"] is None
    in_flight = ("bench", "net.py:shallow", *branched, *processors, "--streams", "2", "--no-tune", "--rounds", "1")
    status, out, err = cli(*in_flight, "--latency-limit", "1s", "-o", "streams.json", "-o", "streams.html", "--json")
    rates = json.loads(out)
    assert (status, rates["limit_ms"], rates["streams"]) == (0, 1000, 2), err
    ways = {(row["network"], row["how"]): row for row in rates["results"]}
    ours = {
        name for name, row in ways.items() if name[0] == "branched" and len(row["replica_groups"][0]["processors"]) > 1
    }
    assert {"together", "together, one at a time"} == {how for _, how in ours}
    for network in ("original", "control", "branched"):
        assert {(network, "apart"), (network, "apart, only the fastest")} <= ways.keys()
    assert all(row["images_per_s"] > 0 < row["latency_ms"] for row in rates["results"])
    ahead, behind = (
        max(row["images_per_s"] for name, row in ways.items() if (name in ours) == own) for own in (True, False)
    )
    assert rates["over_best_alternative"] == pytest.approx(ahead / behind, rel=1e-2)
    assert rates["max_rel_error"] < 1e-4
    assert "Throughput of net.py:shallow" in Path("streams.html").read_text()
    refuses(cli("bench", "net.py:shallow", "--latency-limit", "1s"), "--latency-limit", "--design and --streams")
    refuses(cli(*in_flight, "--latency-limit", "never"), "'never' is no time above 0")
    refuses(cli(*in_flight, "--batch", "2"), "--batch", "--design")
    refuses(cli("run", "net.py:shallow", "--weights", "b.safetensors"), design["id"], "--design")
    weighted = ("bench", "net.py:shallow", "--weights", "w.safetensors", "--no-tune", "-r", "1", "--json")
    (timed,) = answer_of(cli(*weighted))["results"]  # for images of the size that the weights name
    assert (timed["macs"], timed["max_rel_error"] < 1e-4) == (found["original_macs"], True)
    assert answer_of(cli(*weighted, "--streams", "1"))["results"]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two processors need two cores")
def test_bench_on_several_processors(cli: Cli, onnx_file: Path) -> None:
    first, *_, last = sorted(os.sched_getaffinity(0))
    names = [f"cpu:{first}", f"cpu:{last}"]
    command = ("bench", str(onnx_file), "--no-tune", "-r", "1")
    found = answer_of(cli(*command, "-p", ",".join(names), "-o", "together.json", "--json"))
    assert json.loads(Path("together.json").read_text()) == found
    assert list(found["alone"]) == names
    assert cli("report", "together.json", "-o", "together.html", "-o", "together.svg")[0] == 0
    assert all(f"{name} alone" in Path("together.svg").read_text() for name in names)
    assert found["max_rel_error"] < 1e-4
    assert found["speedup"] == pytest.approx(
        min(times["p50_ms"] for times in found["alone"].values()) / found["together"]["p50_ms"], rel=1e-3
    )
    refuses(cli(*command, "-p", names[0]), "two or more")
    refuses(cli(*command, "-p", ",".join(names), "-o", "together.txt"), "together.txt", ".json")
    refuses(cli(*command, str(onnx_file), "-p", ",".join(names)), "one network")


def read_plan_of(package: Path) -> Plan:
    return Plan.from_json(read_package(package).first.plan)


def test_streams(cli: Cli, onnx_file: Path, package: Path) -> None:
    """Many inputs at a time: the same answer, a number of images per second, and who computes them."""
    options = ("--streams", "2", "--no-tune", "--json")
    answer = answer_of(cli("run", str(onnx_file), *options, "--check", "--runs", "20"))
    assert answer["passed"] is True
    assert answer["images_per_s"] > 0
    assert sum(group["streams"] for group in answer["replica_groups"]) == answer["streams"] == 2
    assert answer["weight_bytes"] > 0 < answer["stream_bytes"]
    packed = answer_of(cli("run", str(package), "--streams", "3", "--runs", "20", "--json"))
    assert packed["streams"] == 3
    found = answer_of(cli("bench", "net.py:small", *options, "--rounds", "1", "--batch", "3"))
    assert (found["batch"], found["streams"]) == (3, 2)
    assert found["chosen"] in [one["how"] for one in found["results"]]
    assert all(one["images_per_s"] > 0 for one in found["results"])
    assert [one["how"] for one in found["results"]][-1] == "ONNX Runtime, 2 at a time"
    Path("streams.json").write_text(json.dumps(found))
    status, out, _ = cli("report", "streams.json")
    assert (status, out.count("ONNX Runtime, 2 at a time")) == (0, 1)
    assert found["max_rel_error"] < 1e-4
    core = f"cpu:{usable_cores()[0]}"
    for command in (("run",), ("bench", "-r", "1")):
        said = cli(*command, str(onnx_file), "-p", core, "--streams", "8", "--no-tune")[2]
        assert "--streams 8: 2 of them are used, two per processor" in " ".join(said.split())
    refuses(cli("run", str(onnx_file), "--streams", "2", "--timeline", "t.json"), "--timeline", "--streams")
    refuses(cli("bench", str(package), "--streams", "2"), "package")
    ours = ",".join(read_plan_of(package).processors)
    assert str(read_plan_of(package)).startswith("plan: ") and f" on {ours}, " in str(read_plan_of(package))
    refuses(
        cli("bench", str(package), "-p", "cpu:0,cpu:1"),
        f"a package are fixed, and those of {package} are {ours}; leave",
    )
    refuses(cli("bench", "--streams", "2"), "--streams", "one network")


def test_batches(cli: Cli, onnx_file: Path, package: Path, tmp_path: Path) -> None:
    """A batch for a network by name and for a file whose batch is dynamic; not for one that has its own."""
    torch = pytest.importorskip("torch")
    answer = answer_of(cli("run", "net.py:small", "--batch", "3", "--no-tune", "--check", "--runs", "3", "--json"))
    assert answer["passed"] is True
    assert [one["shape"] for one in answer["outputs"].values()] == [[3, 10]]
    file = str(tmp_path / "dynamic.onnx")
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU()).eval()
    shapes = ({0: torch.export.Dim("n")},)
    torch.onnx.export(net, (torch.zeros(2, 3, 8, 8),), file, dynamo=True, dynamic_shapes=shapes, verbose=False)
    packed = str(tmp_path / "b.nns")
    answer_of(cli("compile", file, "--batch", "2", "--no-tune", "-o", packed, "--json"))
    answer = answer_of(cli("run", packed, "--check", "--json"))
    assert [one["shape"] for one in answer["outputs"].values()] == [[2, 8, 6, 6]]
    assert answer["passed"] is True
    answer = answer_of(cli("run", file, "--no-tune", "--json"))
    assert [one["shape"] for one in answer["outputs"].values()] == [[1, 8, 6, 6]]
    refuses(cli("run", str(onnx_file), "--batch", "2", "--no-tune"), "no input with a dynamic batch")
    refuses(cli("run", str(package), "--batch", "2"), "batch")
