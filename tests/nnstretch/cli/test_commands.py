"""The command line as a user calls it: answers, products, and one clear line for everything that can be wrong."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from nnstretch.branching.pycls.files import read_published
from nnstretch.branching.pycls.parser import parse_published
from nnstretch.cli.commands import COMMANDS
from nnstretch.cli.console import reporting
from nnstretch.cli.main import main
from nnstretch.devices.engine.binding.library import engine
from nnstretch.package.format import FORMAT_VERSION
from nnstretch.report.tables.text import plain_table
from nnstretch.scheduler.plan.schema import Plan
from tests.kits.command_line import Cli, answer_of, refuses
from tests.kits.published_networks import SETTINGS

NETWORK = """
import torch
from torch import nn


def block(a, b, stride=1):
    return nn.Sequential(nn.Conv2d(a, b, 3, stride, 1), nn.ReLU())


def small():
    torch.manual_seed(0)
    net = nn.Sequential(
        block(1, 16), block(16, 16), block(16, 16), block(16, 32, 2), block(32, 32), block(32, 32),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )
    return net, torch.zeros(1, 1, 16, 16)


def wants_an_argument(n):
    return nn.Conv2d(n, n, 1)


def not_a_module():
    return 42
"""


@pytest.fixture(autouse=True)
def network(folder: Path) -> None:
    """A network in the working directory."""
    (folder / "net.py").write_text(NETWORK)


@pytest.fixture(scope="module")
def onnx_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The network as an ONNX file."""
    from nnstretch.frontends.onnx_file import save
    from nnstretch.frontends.resolve import load_model

    folder = tmp_path_factory.mktemp("onnx")
    (folder / "net.py").write_text(NETWORK)
    save(load_model(f"{folder / 'net.py'}:small"), folder / "small.onnx")
    return folder / "small.onnx"


@pytest.fixture(scope="module")
def package(onnx_file: Path) -> Path:
    """The network as a package."""
    path = onnx_file.with_suffix(".nns")
    assert main(["compile", str(onnx_file), "-o", str(path), "--no-tune", "--threads", "1"]) == 0
    return path


def subprocess_cli(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nnstretch.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, **options)


# -- help ----------------------------------------------------------------------------------------------------------


def test_commands_are_all_listed() -> None:
    folder = Path(main.__code__.co_filename).parent / "commands"
    assert sorted(COMMANDS) == sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_has_an_example(cli: Cli, command: str) -> None:
    status, out, _ = cli(command, "--help")
    assert status == 0
    assert f"Example: nnstretch {command}" in " ".join(out.split())
    assert "--json" in out


def test_without_a_command_there_is_the_help(cli: Cli) -> None:
    status, out, err = cli()
    assert status == 2
    assert "Start with: nnstretch devices" in out
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
            os.write(1, os.environ.get("OMP_WAIT_POLICY", "unset").encode())
            os._exit(0)

sys.meta_path.insert(0, Watch())
main(["train", "net.py:small", "--data", "digits", "-o", "w.safetensors"])
"""


@pytest.mark.parametrize(("asked", "found"), [({}, "passive"), ({"OMP_WAIT_POLICY": "active"}, "active")])
def test_train_lets_idle_threads_sleep_before_torch_is_loaded(asked: dict[str, str], found: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"} | asked
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


# -- what commands answer ------------------------------------------------------------------------------------------


def test_devices(cli: Cli) -> None:
    answer = answer_of(cli("devices", "--json"))
    cpu = answer["processors"][0]
    assert cpu["kind"] == "cpu"
    assert cpu["cores"] == len(os.sched_getaffinity(0))
    assert cpu["usable"] and cpu["why_not"] is None
    for one in answer["processors"]:
        assert {"name", "kind", "device", "cores", "dtypes", "usable", "why_not"} <= one.keys()
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
    assert answer["macs"] > 0


def test_run_writes_outputs_that_are_onnxruntimes(cli: Cli, onnx_file: Path) -> None:
    x = np.random.default_rng(1).standard_normal((1, 1, 16, 16)).astype(np.float32)
    np.save("x.npy", x)
    session = onnxruntime.InferenceSession(str(onnx_file), providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    answer = answer_of(
        cli("run", str(onnx_file), "-i", f"{name}=x.npy", "-o", "y.npz", "--no-tune", "--runs", "3", "--json")
    )
    (expected,) = session.run(None, {name: x})
    with np.load("y.npz") as outputs:
        (found,) = (outputs[key] for key in outputs.files)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert 0 < answer["min_ms"] <= answer["p50_ms"] <= answer["p90_ms"]


def test_run_checks_against_onnxruntime(cli: Cli, onnx_file: Path) -> None:
    options = ("--check", "--no-tune", "--runs", "2", "--json")
    answer = answer_of(cli("run", str(onnx_file), *options))
    assert answer["passed"] is True
    assert 0 < answer["max_rel_error"] < 1e-4
    status, out, _ = cli("run", str(onnx_file), *options, "--max-error", "0")
    assert status == 1
    assert json.loads(out)["passed"] is False


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


def test_tune_selects_and_writes_a_plan(cli: Cli, onnx_file: Path, folder: Path) -> None:
    answer = answer_of(cli("tune", str(onnx_file), "--threads", "1", "-o", "plan.json", "--json"))
    plan = Plan.from_json((folder / "plan.json").read_text())
    assert [layer["name"] for layer in answer["layers"]] == [step.layer for step in plan.steps]
    assert answer["optimal"] is True
    assert answer["gap"] == 0
    assert answer["predicted_ms"] == pytest.approx(sum(layer["cost_ms"] for layer in answer["layers"]))
    assert answer["measured_ms"] > 0
    assert answer["tuning_s"] > 0


def test_profiles_are_listed_carried_and_cleared(
    cli: Cli, onnx_file: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nnstretch.devices.engine.binding.library import engine

    engine()  # built in the usual cache
    monkeypatch.setenv("NNSTRETCH_CACHE_DIR", str(folder / "cache"))
    common = ("tune", str(onnx_file), "--threads", "1", "--json")
    answer_of(cli(*common))
    (first,) = answer_of(cli("profiles", "--json"))["processors"]
    assert first["measurements"] >= first["workloads"] > 0
    assert first["failed"] == 0
    answer_of(cli(*common, "--resume"))
    (resumed,) = answer_of(cli("profiles", "list", "--json"))["processors"]
    counts = ("processor", "workloads", "measurements", "failed")
    assert {name: resumed[name] for name in counts} == {name: first[name] for name in counts}
    assert resumed["samples"] >= first["samples"], "layers whose times were disturbed are confirmed inside the network"
    answer_of(cli(*common, "--fresh"))
    (again,) = answer_of(cli("profiles", "--json"))["processors"]
    assert again["measurements"] >= first["measurements"], "other times may lead the search to other settings"
    assert again["last"] > resumed["last"]
    count = again["measurements"]
    assert answer_of(cli("profiles", "export", "-o", "p.json", "--json")) == {"file": "p.json", "measurements": count}
    assert answer_of(cli("profiles", "clear", "--processor", "no such", "--json"))["measurements"] == 0
    assert answer_of(cli("profiles", "clear", "--json"))["measurements"] == count
    assert answer_of(cli("profiles", "--json"))["processors"] == []
    assert answer_of(cli("profiles", "merge", "p.json", "--json"))["taken"] == count
    assert answer_of(cli("profiles", "--json"))["processors"] == [again]


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
    assert not (folder / "w.safetensors.checkpoint").exists()
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
    options = ("quantize", str(onnx_file), "-o", "q.onnx", "--data")
    refuses(cli(*options, "wrong.npz"), "float32[4,1]", name)
    refuses(cli(*options, "none.npz"), "0 examples")
    refuses(cli(*options, "absent.npz"), "absent.npz")
    refuses(cli(*options, "letters"), "letters", "digits")
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
    processors = ("-p", "cpu:0,cpu:1")
    options = ("--data", "digits", "--image-size", "16", "--epochs", "1", "--threads", "1")
    answer_of(cli("train", "net.py:small", *options, "-o", "w.safetensors", "--json"))
    found = answer_of(
        cli(
            "stretch", "net.py:small", "--weights", "w.safetensors", *processors, "-o", "designs", "--top", "1",
            "--alpha", "100", "--beta", "100", "--json",
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
            "train", "net.py:small", *options, "--design", design["file"], "--weights", "w.safetensors",
            "--teacher", "net.py:small:w.safetensors", "-o", "b.safetensors", "--json",
        )
    )  # fmt: skip
    assert trained["macs"] == design["macs"]
    compiled = answer_of(cli("compile", "net.py:small", *branched, *processors, "--no-tune", "-o", "b.nns", "--json"))
    assert compiled["macs"] == design["macs"]
    assert compiled["subgraphs"] > 2
    assert cli("run", "b.nns", "--check", "--runs", "2")[0] == 0
    ablation = answer_of(
        cli(
            "bench", "net.py:small", *branched, *processors, "--original-weights", "w.safetensors",
            "--rounds", "2", "--no-tune", "--json",
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
    refuses(cli("run", "net.py:small", "--weights", "b.safetensors"), design["id"], "--design")


# -- what can be wrong ---------------------------------------------------------------------------------------------


def test_models_that_are_none(cli: Cli, onnx_file: Path, folder: Path) -> None:
    (folder / "text.onnx").write_text("hello")
    (folder / "half.onnx").write_bytes(onnx_file.read_bytes()[:2000])
    (folder / "empty.onnx").touch()
    refuses(cli("run", "missing.onnx"), "missing.onnx", "No such file")
    refuses(cli("run", "text.onnx"), "text.onnx", "not an ONNX file")
    refuses(cli("compile", "half.onnx"), "half.onnx", "truncated")
    refuses(cli("tune", "empty.onnx"), "empty.onnx", "empty")
    refuses(cli("bench", "text.onnx"), "text.onnx")
    (folder / "directory").mkdir()
    refuses(cli("run", "directory"), "directory is a folder", "ONNX file")
    refuses(cli("bench", "directory"), "directory is a folder")
    refuses(cli("run", "resnet18", "--weights", "directory"), "directory", "it is a folder")
    refuses(cli("zoo", "resnet5"), "did you mean", "resnet50")
    refuses(cli("run", "resnet5"), "did you mean", "resnet50")
    refuses(cli("run", "net.py"), "net.py:FACTORY")
    refuses(cli("run", "net.py:tall"), "tall")
    refuses(cli("run", "net.py:wants_an_argument"), "without arguments")
    refuses(cli("run", "net.py:not_a_module"), "int")
    refuses(cli("stretch", str(onnx_file)), "torch module")
    assert sorted(p.name for p in folder.iterdir() if p.suffix == ".nns") == []


def test_shapes_and_feeds(cli: Cli, onnx_file: Path) -> None:
    name = onnxruntime.InferenceSession(str(onnx_file)).get_inputs()[0].name
    np.save("good.npy", np.zeros((1, 1, 16, 16), np.float32))
    np.save("double.npy", np.zeros((1, 1, 16, 16)))
    np.save("large.npy", np.zeros((1, 1, 17, 16), np.float32))
    np.save("objects.npy", np.array([{}]), allow_pickle=True)
    run = ("run", str(onnx_file), "--no-tune")
    refuses(cli(*run, "--shape", "x=1,a"), "x=1,a")
    refuses(cli(*run, "--shape", "nobody=1,1,16,16"), "nobody")
    refuses(cli(*run, "-i", "nobody=good.npy"), "nobody", name)
    refuses(cli(*run, "-i", f"{name}=double.npy"), "float64", "float32")
    refuses(cli(*run, "-i", f"{name}=large.npy"), "[1, 1, 17, 16]", "[1, 1, 16, 16]")
    refuses(cli(*run, "-i", f"{name}=objects.npy"), "objects.npy")
    refuses(cli(*run, "-i", f"{name}=missing.npy"), "missing.npy")
    refuses(cli(*run, "-i", "good.npy"), "NAME=VALUE")
    refuses(cli(*run, "-i", f"{name}=good.npy", "-i", f"{name}=good.npy"), "twice")


def test_packages_that_are_damaged_or_newer(cli: Cli, package: Path, folder: Path) -> None:
    data = package.read_bytes()
    flipped = bytearray(data)
    flipped[data.index(b'"subgraphs"') + 3] ^= 1
    (folder / "flipped.nns").write_bytes(bytes(flipped))
    (folder / "half.nns").write_bytes(data[: len(data) // 2])
    newer = data.replace(b'"format": 1', f'"format": {FORMAT_VERSION + 1}'.encode())
    (folder / "newer.nns").write_bytes(newer)
    refuses(cli("run", "flipped.nns"), "damaged", "checksum")
    refuses(cli("run", "half.nns"), "half.nns", "not a whole")
    refuses(cli("run", "newer.nns"), "upgrade")
    refuses(cli("run", "missing.nns"), "missing.nns")
    refuses(cli("tune", str(package)), "package")
    refuses(cli("run", str(package), "-p", "cpu:0"), "package")
    refuses(cli("evaluate", str(package), "--data", "digits", "--engine", "torch"), "package")


def test_processors(cli: Cli, onnx_file: Path) -> None:
    run = ("run", str(onnx_file), "--no-tune")
    refuses(cli(*run, "-p", "gpu"), "gpu", "cpu[:CORES")
    refuses(cli(*run, "-p", "cpu:100000"), "100000")
    refuses(cli(*run, "-p", "cpu:0,cpu:0"), "twice")
    refuses(cli("stretch", "net.py:small", "-p", "cpu:0"), "processor")
    refuses(cli("bench", str(onnx_file), "--threads", "100000"), "100000")
    refuses(cli("bench", str(onnx_file), "--against", "abacus"), "abacus", "openvino")


def test_no_opencl_driver(onnx_file: Path) -> None:
    environment = {**os.environ, "OCL_ICD_VENDORS": "/nonexistent", "OCL_ICD_FILENAMES": ""}
    done = subprocess_cli("run", str(onnx_file), "-p", "opencl", env=environment)
    refuses((done.returncode, done.stdout, done.stderr), "OpenCL", "pocl-opencl-icd")
    listed = subprocess_cli("devices", "--json", env=environment)
    assert listed.returncode == 0
    kinds = [one["kind"] for one in json.loads(listed.stdout)["processors"]]
    assert kinds[0] == "cpu" and "opencl" not in kinds


def test_usage(cli: Cli) -> None:
    refuses(cli("frobnicate"), "frobnicate")
    refuses(cli("run"), "MODEL")
    refuses(cli("run", "resnet18", "--runs", "many"), "--runs", "integer")
    refuses(cli("train", "resnet18", "--data", "nothing", "-o", "w.safetensors"), "nothing", "digits")
    refuses(cli("train", "resnet18", "--data", "digits", "--recipe", "stew", "-o", "w.safetensors"), "stew", "quick")
    refuses(
        cli("train", "resnet18", "--data", "digits", "--teacher", "resnet18", "-o", "w.safetensors"), "MODEL:WEIGHTS"
    )
    refuses(cli("evaluate", "resnet18", "--data", "digits", "--engine", "abacus"), "abacus")
    refuses(cli("zoo", "resnet18", "--weights", "missing.safetensors"), "missing.safetensors")
    refuses(cli("bench", "resnet18", "vgg16", "--design", "d.json"), "one network")
    refuses(cli("bench", "resnet18", "--design", "d.json", "-o", "d.svg"), "d.svg", ".json, .html")
    refuses(cli("bench", "resnet18", "--original-weights", "w.safetensors"), "--original-weights", "--design")


def test_places_that_cannot_be_written(cli: Cli, onnx_file: Path, folder: Path) -> None:
    (folder / "file").touch()
    for place in ("file/x", "/proc/x", "missing/x"):
        refuses(cli("compile", str(onnx_file), "-o", place), f"cannot write {place}")
        refuses(cli("run", str(onnx_file), "-o", place), place)
        refuses(cli("zoo", "resnet18", "-o", place), place)
        refuses(cli("tune", str(onnx_file), "-o", place), place)
        refuses(cli("train", "net.py:small", "--data", "digits", "-o", place), place)
    refuses(cli("compile", str(onnx_file), "-o", str(folder)), "directory")
    refuses(cli("stretch", "net.py:small", "-o", "file/x"), "file/x")


def test_a_disk_without_room(onnx_file: Path, folder: Path) -> None:
    """A limit on the size of files stands for the full disk: writing fails in the middle."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    engine()  # has been built: its files are larger
    (folder / "small.nns").write_bytes(b"what was there before")
    done = subprocess_cli("compile", str(onnx_file), "-p", "cpu:0", "--no-tune", "-o", "small.nns", preexec_fn=limit)
    refuses((done.returncode, done.stdout, done.stderr), "cannot write small.nns")
    assert (folder / "small.nns").read_bytes() == b"what was there before"
    assert sorted(p.name for p in folder.iterdir()) == ["net.py", "small.nns"]


def test_an_output_without_room() -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "nnstretch.cli.main", "zoo", "--json"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    refuses((done.returncode, "", done.stderr), "No space left")


def test_a_reader_that_has_enough() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "nnstretch.cli.main", "zoo", "--json"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    os.close(writing)
    assert done.returncode == 1
    assert done.stderr == ""


def test_ctrl_c_leaves_a_checkpoint_to_resume_from(cli: Cli, folder: Path) -> None:
    arguments = (
        "train", "net.py:small", "--data", "digits", "--image-size", "16", "--epochs", "3", "--threads", "1",
        "-o", "w.safetensors",
    )  # fmt: skip
    command = [sys.executable, "-m", "nnstretch.cli.main", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    checkpoint = folder / "w.safetensors.checkpoint"
    while not checkpoint.exists() and process.poll() is None:
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert out == ""
    assert err == "interrupted\n"
    assert not (folder / "w.safetensors").exists()
    answer = answer_of(cli(*arguments, "--resume", "--json"))
    assert [record["epoch"] for record in answer["history"]] == [1, 2, 3]
    assert not checkpoint.exists()


def test_a_bug_is_not_dressed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("nnstretch.cli.commands.zoo._list", broken)
    with pytest.raises(ZeroDivisionError):
        main(["zoo"])


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two processors need two cores")
def test_bench_on_several_processors(cli: Cli, onnx_file: Path) -> None:
    first, *_, last = sorted(os.sched_getaffinity(0))
    names = [f"cpu:{first}", f"cpu:{last}"]
    command = ("bench", str(onnx_file), "--no-tune", "-r", "1")
    found = answer_of(cli(*command, "-p", ",".join(names), "-o", "together.json", "--json"))
    assert json.loads(Path("together.json").read_text()) == found
    assert list(found["alone"]) == names
    assert found["max_rel_error"] < 1e-4
    assert found["speedup"] == pytest.approx(
        min(times["p50_ms"] for times in found["alone"].values()) / found["together"]["p50_ms"], rel=1e-3
    )
    refuses(cli(*command, "-p", names[0]), "two or more")
    refuses(cli(*command, "-p", ",".join(names), "-o", "together.svg"), "together.svg", ".json")
    refuses(cli(*command, str(onnx_file), "-p", ",".join(names)), "one network")


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
    assert found["max_rel_error"] < 1e-4
    refuses(cli("run", str(onnx_file), "--streams", "2", "--timeline", "t.json"), "--timeline", "--streams")
    refuses(cli("bench", str(package), "--streams", "2"), "package")
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
    refuses(cli("run", file, "--no-tune"), "dynamic shape", "--shape")
    refuses(cli("run", str(onnx_file), "--batch", "2", "--no-tune"), "no input with a dynamic batch")
    refuses(cli("run", str(package), "--batch", "2"), "batch")
