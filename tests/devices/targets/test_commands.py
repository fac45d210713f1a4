"""`bench`, `run` and `devices` on targets: the real runner on emulated ARM processors, over every transport."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from nnstretch.api.options import CompileOptions
from nnstretch.cli.targets.several import path_for_target
from nnstretch.compiler.compile import plan_model
from nnstretch.compiler.processors import foreign_processors
from nnstretch.compiler.targets import site
from nnstretch.devices.engine.build.instruction_sets import ISAS
from nnstretch.devices.targets.device import Device
from nnstretch.frontends.resolve import load_any
from nnstretch.package import write_package
from nnstretch.package.standalone import write_model_file
from nnstretch.scheduler.measurement.store import store
from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.scheduler.plan.packaging import packaged
from scripts import device_benchmark
from tests.kits.boards.adb_daemon import AdbDaemon
from tests.kits.boards.ssh_board import Board
from tests.kits.command_line import Cli, answer_of, refuses

CORES = sorted(os.sched_getaffinity(0))

NETWORK = """
<ir_version: 8, opset_import: ["": 18]> model (float[1, 4, 9, 9] x) => (float[1, 7, 1, 1] y)
{
    stem = Conv<pads = [1, 1, 1, 1]>(x, a)
    active = Relu(stem)
    small = MaxPool<kernel_shape = [3, 3], strides = [2, 2]>(active)
    wide = Conv(small, b)
    y = GlobalAveragePool(wide)
}
"""


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small network as an ONNX file."""
    proto = onnx.parser.parse_model(NETWORK)
    generator = np.random.default_rng(0)
    for name, shape in {"a": (8, 4, 3, 3), "b": (7, 8, 1, 1)}.items():
        weight = generator.standard_normal(shape).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    path = tmp_path_factory.mktemp("network") / "net.onnx"
    onnx.save(proto, path)
    return path


QUICK = ("--budget", "0.05", "--json")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cpu", "features"),
    [
        ("cortex-a53", {"asimd"}),
        ("cortex-a76", {"asimd", "asimddp"}),
        ("max,sve=off", {"asimd", "asimddp", "i8mm", "bf16"}),
    ],
)
def test_a_model_runs_on_an_emulated_cpu(emulator: str, cli: Cli, network: Path, cpu: str, features: set[str]) -> None:
    target = f"qemu:aarch64:{cpu}"
    (run,) = answer_of(cli("bench", str(network), "--target", target, *QUICK))["targets"]
    assert run["target"] == target
    assert features <= set(run["device"]["features"])
    assert "sve" not in run["device"]["features"]
    (result,) = run["results"]
    assert result["max_rel_error"] < 1e-5
    assert 0 < result["min_ms"] <= result["p50_ms"] <= result["p90_ms"] <= result["p99_ms"]
    assert result["model"] == str(network)
    assert result["macs"] > 0


@pytest.mark.slow
def test_all_targets_at_once_give_the_same_answers(
    emulator: str, cli: Cli, network: Path, plug_in: Callable[..., AdbDaemon], board: Board
) -> None:
    phone = plug_in(launcher=f"{emulator} -cpu cortex-a53")
    targets = ("qemu:aarch64:cortex-a53", f"adb:{phone.serial}", board.target)
    named = [word for target in targets for word in ("--target", target)]
    runs = answer_of(cli("bench", str(network), *named, *QUICK, "-o", "found.json", "-o", "found.csv"))["targets"]
    assert [run["target"] for run in runs] == list(targets)
    sums = {run["results"][0]["outputs"][0]["crc32"] for run in runs}
    assert len(sums) == 1
    assert all(run["results"][0]["max_rel_error"] < 1e-5 for run in runs)
    assert json.loads(Path("found.json").read_text())["targets"] == runs
    rows = list(csv.DictReader(Path("found.csv").read_text().splitlines()))
    assert [row["cfg"] for row in rows] == [f"{target}/{network}" for target in targets]
    assert [float(row["latency"]) for row in rows] == pytest.approx([r["results"][0]["p50_ms"] for r in runs], rel=1e-4)
    assert not list(phone.phone.folder.iterdir())


@pytest.mark.slow
@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
def test_a_branched_network_is_timed_against_its_alternatives(emulator: str, cli: Cli) -> None:
    from nnstretch.branching.design.design import save_design
    from tests.kits.networks.tiny_branching import SIDE, branched

    module = branched(0.5).design
    save_design(module, Path("design.json"))
    Path("net.py").write_text(
        f"import torch\nfrom tests.kits.networks.tiny_branching import original\n"
        f"def made():\n    return original(), torch.zeros(1, 1, {SIDE}, {SIDE})\n"
    )
    processors = f"cpu:{CORES[0]},cpu:{CORES[1]}"
    options = ("--design", "design.json", "-p", processors, "--target", "qemu:aarch64:cortex-a76", *QUICK)
    (run,) = answer_of(cli("bench", "net.py:made", *options, "-o", "page.html"))["targets"]
    *alternatives, result = run["results"]
    assert [queue["cores"] for queue in result["queues"]] == [[CORES[0]], [CORES[1]]]
    one, other = processors.split(",")
    alone = [[one], [other], [f"cpu:{','.join(map(str, CORES))}"]]
    names = [f"{name} on {where}" for name in ("original", "control") for where in (one, other, "all fast cores")]
    assert [found["model"] for found in alternatives] == names
    used = [[f"cpu:{','.join(map(str, queue['cores']))}" for queue in found["queues"]] for found in alternatives]
    assert used == [*alone, *alone]
    assert max(found["max_rel_error"] for found in run["results"]) < 1e-5
    best = min(alternatives, key=lambda found: found["p50_ms"])
    assert (run["best_alternative"], run["best_alternative_ms"]) == (best["model"], best["p50_ms"])
    assert run["branched_ms"] == result["p50_ms"]
    assert run["speedup_best_alternative"] == pytest.approx(best["p50_ms"] / result["p50_ms"], rel=1e-3)
    page = Path("page.html").read_text()
    assert page.count("<svg") == 1 + len(run["results"])  # latencies, and a timeline each
    assert "as fast as the best alternative" in page
    refuses(cli("bench", "net.py:made", "other", *options), "--design is for one network")


@pytest.mark.slow
def test_a_network_is_tuned_on_an_emulated_cpu(
    emulator: str, cli: Cli, network: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("LOOK", "RACE"):
        monkeypatch.setattr(site, name, replace(getattr(site, name), runs=1))
    monkeypatch.setattr(store, "cache_dir", lambda *_: tmp_path)  # where nothing was measured before
    target = ("--target", "qemu:aarch64:cortex-a53", "--threads", "1")
    (run,) = answer_of(cli("bench", str(network), *target, *QUICK))["targets"]
    assert run["results"][0]["routines"] == "estimated"
    found = answer_of(cli("tune", str(network), *target, "-o", "plan.json", "--json"))
    assert found["target"] == target[1]
    assert found["measurements"] > 10
    assert found["predicted_ms"] > 0 and found["measured_ms"] > 0
    planned = ("--target", target[1], "--plan", "plan.json")
    for options in (target, planned):
        (run,) = answer_of(cli("bench", str(network), *options, *QUICK))["targets"]
        (result,) = run["results"]
        assert result["routines"] == "tuned"
        assert result["max_rel_error"] < 1e-4
    assert answer_of(cli("run", str(network), *planned, "--runs", "1", "--json"))["passed"]
    assert [
        row["measurements"] for row in answer_of(cli("profiles", "--processor", "cortex-a53", "--json"))["processors"]
    ]
    for elsewhere in (("run", str(network)), ("bench", str(network), "--target", "local", "--keep")):
        refuses(cli(*elsewhere, "--plan", "plan.json"), "plan.json is for aarch64", "give the --target")
    refuses(cli("bench", str(network), *planned, "-p", "cpu:1"), "plan.json is for processors cpu:0, not cpu:1")


HALF = "qemu:aarch64:cortex-a76"
"""An ARMv8.2 with arithmetic of float16."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "tolerance", "used"),
    [(HALF, "5e-3", True), (HALF, "1e-3", False), ("qemu:aarch64:cortex-a53", "5e-3", False)],
)
def test_products_of_float16_where_the_cpu_and_the_tolerance_allow_them(
    emulator: str, cli: Cli, network: Path, target: str, tolerance: str, used: bool
) -> None:
    options = ("--target", target, "--tolerance", tolerance, "--no-tune")
    (run,) = answer_of(cli("bench", str(network), *options, *QUICK))["targets"]
    (result,) = run["results"]
    assert result["features"] == (["asimdhp"] if used else [])
    assert (result["max_rel_error"] > 1e-5) == used
    assert result["max_rel_error"] < 5e-3


@pytest.mark.slow
def test_a_package_with_products_of_float16_is_refused_by_a_cpu_without(emulator: str, cli: Cli, network: Path) -> None:
    isa = next(isa for isa in ISAS if isa.name == "aarch64")
    processors = foreign_processors(isa, CompileOptions("cpu", threads=1, tolerance=5e-3), {"asimdhp"})
    compiled = plan_model(load_any(str(network)), processors, tune=False)
    write_package(packaged({"plan": compiled}, {}, {}), Path("half.nns"))
    assert cli("run", "half.nns", "--target", HALF, "--runs", "1")[0] == 0
    refuses(cli("run", "half.nns", "--target", "qemu:aarch64:cortex-a53"), "this CPU lacks asimdhp", "--target")


@pytest.mark.slow
def test_tuning_checks_products_of_float16(
    emulator: str, cli: Cli, network: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Their errors are measured and within the tolerance; the emulator is slow at them, so that others are chosen."""
    for name in ("LOOK", "RACE"):
        monkeypatch.setattr(site, name, replace(getattr(site, name), runs=1))
    monkeypatch.setattr(store, "cache_dir", lambda *_: tmp_path)
    options = ("--target", HALF, "--threads", "1", "--tolerance", "5e-3")
    assert cli("tune", str(network), *options, "-o", "report.csv", "-o", "plan.json")[0] == 0
    rows = list(csv.DictReader(Path("report-candidates-of-every-layer.csv").read_text().splitlines()))
    errors = [float(row["error"]) for row in rows if row["routine"] == "cpu:float16/rows"]
    assert errors
    assert all(1e-5 < error < 5e-3 for error in errors)
    (run,) = answer_of(cli("bench", str(network), "--target", HALF, "--plan", "plan.json", *QUICK))["targets"]
    assert run["results"][0]["max_rel_error"] < 5e-3


@pytest.mark.slow
def test_one_run_with_inputs_outputs_and_a_timeline(emulator: str, cli: Cli, network: Path) -> None:
    x = np.random.default_rng(3).standard_normal((1, 4, 9, 9)).astype(np.float32)
    np.save("x.npy", x)
    target = ("--target", "qemu:aarch64:cortex-a53", "--runs", "3")
    given = ("--input", "x=x.npy", "-o", "y.npz", "--timeline", "t.json", "--json")
    answer = answer_of(cli("run", str(network), *target, *given))
    expected = onnxruntime.InferenceSession(str(network)).run(None, {"x": x})[0]
    np.testing.assert_allclose(np.load("y.npz")["y"], expected, rtol=1e-4, atol=1e-5)
    assert answer["outputs"] == {"y": {"shape": [1, 7, 1, 1], "dtype": "float32"}}
    assert (answer["runs"], answer["passed"]) == (3, True)
    events = [event for event in json.loads(Path("t.json").read_text())["traceEvents"] if event["ph"] == "X"]
    assert {event["args"]["op"] for event in events} >= {"Conv", "MaxPool"}
    assert all(event["name"] and event["args"]["routine"] for event in events if event["cat"] == "step")
    assert all(event["dur"] >= 0 for event in events)
    status, out, _ = cli("run", str(network), *target, "--max-error", "0")
    assert status == 1
    assert "beyond the allowed" in out
    refuses(cli("run", str(network), *target, "--input", "z=x.npy"), "the inputs are z", "has x")
    refuses(
        cli("run", str(network), *target, "-p", "opencl:0"), "has no opencl:0", "only static programs", "QEMU_LD_PREFIX"
    )


@pytest.mark.slow
def test_model_files_and_packages(emulator: str, cli: Cli, network: Path) -> None:
    from nnstretch.devices.engine.build.instruction_sets import local_isa

    target = ("--target", "qemu:aarch64")
    assert cli("compile", str(network), "--no-tune", "-p", "cpu", "-o", "net.nns")[0] == 0
    if local_isa().block != 4:
        refuses(cli("bench", "net.nns", *target), "vectors of", "aarch64 (vectors of 4)")
    refuses(cli("bench", "net.nnm", *target), "net.nnm")
    Path("net.nnm").write_bytes(b"no model file")
    refuses(cli("bench", "net.nnm", str(network), *target), "net.nnm is no model file")
    made = ("--no-tune", "--threads", "1", "--standalone", "--target", "aarch64-linux-musl", "-o", "made")
    assert cli("compile", str(network), *made)[0] == 0
    Path("net.nnm").write_bytes(Path(f"made/{network.stem}.nnm").read_bytes()[:-1] + b"x")
    status, out, _ = cli("bench", "net.nnm", str(network), *target, *QUICK)
    failed, fine = json.loads(out)["targets"][0]["results"]
    assert (status, "net.nnm" in failed["model"]) == (0, True)
    assert failed["error"]
    assert fine["max_rel_error"] < 1e-5


@pytest.mark.slow
def test_a_device_card(emulator: str, cli: Cli) -> None:
    status, out, _ = cli("devices", "--target", "qemu:aarch64:cortex-a76")
    assert status == 0
    for word in ("qemu:aarch64:cortex-a76", "aarch64 Linux", "cluster", "asimddp", "GiB", "OpenCL"):
        assert word in out
    answer = answer_of(cli("devices", "--target", "qemu:aarch64:cortex-a76", "--json"))
    assert answer["device"]["machine"] == "aarch64"
    assert sorted(cpu for cluster in answer["clusters"] for cpu in cluster["cpus"]) == [
        cpu["number"] for cpu in answer["device"]["cpus"] if cpu["online"] and cpu["allowed"]
    ]
    refuses(cli("devices", "--target", "local", "--peak"), "--peak")


@pytest.fixture
def one_number(tmp_path: Path) -> Path:
    """A network whose output is one number, as that of the fake runner."""
    graph = "<ir_version: 8, opset_import: ['': 18]> m (float[1, 1] x) => (float[1, 1] y) { y = Relu(x) }"
    path = tmp_path / "one.onnx"
    onnx.save(onnx.parser.parse_model(graph.replace("'", '"')), path)
    return path


def test_two_phones_with_answers_and_speeds_of_their_own(
    fake_runner: Path, plug_in: Callable[..., AdbDaemon], cli: Cli, one_number: Path
) -> None:
    fast = plug_in()
    slow = plug_in(rewrite=lambda script: script.replace(".run --", ".run --slow --"))
    named = ("--target", f"adb:{slow.serial}", "--target", f"adb:{fast.serial}", "--target", "adb:nosuch")
    status, out, err = cli("bench", str(one_number), *named, *QUICK)
    assert status == 1, err
    first, second, third = json.loads(out)["targets"]
    assert [run["results"][0]["p50_ms"] for run in (first, second)] == [9.0, 1.0]
    errors = [run["results"][0]["max_rel_error"] for run in (first, second)]
    assert errors[0] != errors[1]
    assert "there is no device nosuch" in third["error"]
    status, out, err = cli("bench", str(one_number), *named, "--budget", "0")
    assert status == 1
    assert "9.000" in out
    assert "1.000" in out
    assert "nosuch" in out
    for phone in (fast, slow):
        assert not list(phone.phone.folder.iterdir())


def test_two_devices_are_measured_at_the_same_time(
    fake_runner: Path, plug_in: Callable[..., AdbDaemon], cli: Cli, one_number: Path
) -> None:
    seconds = 1.5
    slow = [plug_in(rewrite=lambda s: f"sleep {seconds}; {s}" if "--seconds" in s else s) for _ in range(2)]
    named = [word for phone in slow for word in ("--target", f"adb:{phone.serial}")]
    spans: list[tuple[float, float]] = []
    bench = Device.bench

    def timed(self: Device, *args: object, **more: object) -> object:
        begin = time.monotonic()
        try:
            return bench(self, *args, **more)  # type: ignore[arg-type]
        finally:
            spans.append((begin, time.monotonic()))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Device, "bench", timed)
        assert cli("bench", str(one_number), *named, *QUICK)[0] == 0
    (first, first_end), (second, second_end) = spans
    assert max(first, second) < min(first_end, second_end)


@pytest.fixture
def phones(fake_runner: Path, plug_in: Callable[..., AdbDaemon]) -> tuple[str, str]:
    """The targets of two phones with the fake runner."""
    return f"adb:{plug_in().serial}", f"adb:{plug_in().serial}"


def named(targets: Sequence[str]) -> list[str]:
    return [word for target in targets for word in ("--target", target)]


def test_devices_and_run_take_several_targets(cli: Cli, one_number: Path, phones: tuple[str, str]) -> None:
    found = answer_of(cli("devices", *named(phones), "--json"))["targets"]
    assert [entry["target"] for entry in found] == list(phones)
    assert all(entry["device"]["machine"] == "aarch64" for entry in found)
    status, out, err = cli("devices", *named([phones[0], "adb:nosuch"]), "--json")
    assert (status, [entry["target"] for entry in json.loads(out)["targets"]]) == (1, [phones[0], "adb:nosuch"])
    assert "there is no device nosuch" in json.loads(out)["targets"][1]["error"]
    assert "there is no device nosuch" in err
    allowed = ("--runs", "1", "--max-error", "10", "--json")
    runs = answer_of(cli("run", str(one_number), *named(phones), *allowed))["targets"]
    assert [(run["target"], run["p50_ms"], run["passed"]) for run in runs] == [(phone, 1.0, True) for phone in phones]
    refuses(cli("run", str(one_number), *named(phones), "-o", "y.npz"), "-o holds one run")


def test_tune_and_stretch_try_every_target(cli: Cli, one_number: Path, adb_server: str) -> None:
    """The first error is that of the command; the others are notes."""
    targets = named(["adb:nosuch", "adb:none"])
    for command in (("tune", str(one_number)), ("stretch", "resnet18")):
        status, out, err = cli(*command, *targets)
        assert (status, out.splitlines()) == (2, ["adb:nosuch:", "adb:none:"])
        assert "there is no device nosuch" in err.splitlines()[-1]
        assert "there is no device none" in err


def test_files_for_several_targets_have_their_names() -> None:
    one, two = "qemu:aarch64:max,sve=off", "ssh:pi@board:22"
    assert path_for_target(Path("a/plan.json"), one, [one, one]) == Path("a/plan.json")
    assert path_for_target(Path("a/plan.json"), one, [one, two]) == Path("a/plan-qemu-aarch64-max-sve-off.json")
    assert path_for_target(Path("designs"), two, [one, two]) == Path("designs-ssh-pi-board-22")


def test_what_is_measured_is_written_before_the_last_target_has_ended(
    fake_runner: Path, plug_in: Callable[..., AdbDaemon], cli: Cli, one_number: Path
) -> None:
    """A slow device that goes away, or an interrupt, loses nothing of the others."""
    seen: list[list[str]] = []
    folder = one_number.parent

    def rewrite(script: str) -> str:
        if "--seconds" in script:
            end = time.monotonic() + 60
            while not (folder / "found.json").exists() and time.monotonic() < end:
                time.sleep(0.02)
            rows = list(csv.DictReader((folder / "found.csv").read_text().splitlines()))
            seen.append([run["target"] for run in json.loads((folder / "found.json").read_text())["targets"]])
            seen.append([row["latency"] for row in rows])
        return script

    fast, slow = plug_in(), plug_in(rewrite=rewrite)
    targets = [f"adb:{slow.serial}", f"adb:{fast.serial}"]
    outputs = ("-o", str(folder / "found.csv"), "-o", str(folder / "found.json"))
    assert cli("bench", str(one_number), *named(targets), *QUICK, *outputs)[0] == 0
    assert seen == [[targets[1]], ["1"]]
    assert [run["target"] for run in json.loads((folder / "found.json").read_text())["targets"]] == targets


def foreign_compiled(isa_name: str, one_number: Path) -> Compiled:
    """The network for an instruction set, whatever that of this machine is."""
    isa = next(isa for isa in ISAS if isa.name == isa_name)
    return plan_model(load_any(str(one_number)), foreign_processors(isa, CompileOptions("cpu", threads=1)), tune=False)


@pytest.mark.parametrize("isa", ["x86-64-v4", "x86-64-v3", "x86-64-v2", "riscv64"])
def test_models_of_another_instruction_set_are_refused_before_they_are_pushed(
    cli: Cli, one_number: Path, fake_runner: Path, plug_in: Callable[..., AdbDaemon], isa: str
) -> None:
    phone = plug_in()
    target = ("--target", f"adb:{phone.serial}")
    compiled = foreign_compiled(isa, one_number)
    write_model_file(compiled, "m", next(one for one in ISAS if one.name == isa), Path("net.nnm"))
    refuses(cli("bench", "net.nnm", *target), f"net.nnm is for {isa}, adb:{phone.serial} has aarch64", "--standalone")
    refuses(cli("run", "net.nnm", *target), f"net.nnm is for {isa}")
    write_package(packaged({"plan": compiled}, {}, {}), Path("net.nns"))
    if compiled.plan.block == 4:  # a package holds no code of the processor, and its kernels are there
        assert cli("bench", "net.nns", *target, *QUICK)[0] == 0
        steps = [replace(step, kernel="no_such_kernel") for step in compiled.plan.steps]
        other = replace(compiled, plan=replace(compiled.plan, steps=tuple(steps)))
        write_package(packaged({"plan": other}, {}, {}), Path("net.nns"))
    phone.phone.commands.clear()
    refuses(cli("bench", "net.nns", *target), isa, f"adb:{phone.serial} has aarch64 (vectors of 4)")
    assert not [script for script in phone.phone.commands if ".nnm" in script]


def test_every_plan_of_a_package_is_measured(
    cli: Cli, one_number: Path, fake_runner: Path, plug_in: Callable[..., AdbDaemon]
) -> None:
    target = ("--target", f"adb:{plug_in().serial}")
    compiled = foreign_compiled("aarch64", one_number)
    fallback = replace(compiled, plan=replace(compiled.plan, steps=tuple(
        replace(step, kind="call", is_fallback=True) for step in compiled.plan.steps)))  # fmt: skip
    write_package(packaged({"one": compiled, "two": compiled, "three": fallback}, {}, {}), Path("net.nns"))
    status, out, err = cli("bench", "net.nns", *target, *QUICK)
    (run,) = json.loads(out)["targets"]
    assert (status, [result["model"] for result in run["results"]]) == (0, ["net.nns: one", "net.nns: two"])
    assert "left out: net.nns: three: a target runs native kernels only" in err
    answer = answer_of(cli("run", "net.nns", *target, "--runs", "1", "--json"))
    assert answer["model"] == "net.nns: one"
    write_package(packaged({"three": fallback}, {}, {}), Path("net.nns"))
    refuses(cli("bench", "net.nns", *target), "a target runs native kernels only")


def test_kept_files_and_limits_reach_the_runner(
    fake_runner: Path, plug_in: Callable[..., AdbDaemon], cli: Cli, one_number: Path
) -> None:
    phone = plug_in()
    options = ("--minutes", "0.5", "--cool-down", "2", "--hottest", "70", "--stop-when-hot", "--keep", "--seed", "7")
    assert cli("bench", str(one_number), "--target", f"adb:{phone.serial}", *QUICK, *options)[0] == 0
    (asked,) = [line for line in phone.phone.commands if "--minutes" in line]
    for words in ("--minutes 0.5", "--cool-down 2", "--hottest 70", "--when-hot stop", "--seed 7", "--seconds 0.05"):
        assert words in asked
    (kept,) = phone.phone.folder.iterdir()
    assert kept.name == "nnstretch-kept"
    assert {file.suffix for file in kept.iterdir()} >= {".run", ".nnm"}


def test_the_script_writes_the_columns_of_nn_stretch(
    fake_runner: Path, plug_in: Callable[..., AdbDaemon], cli: Cli, one_number: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    phone = plug_in()
    models = [one_number, one_number.with_name("two.onnx")]
    models[1].write_bytes(one_number.read_bytes())
    named = [word for model in models for word in ("--model", str(model))]
    assert (
        device_benchmark.main([*named, "--target", f"adb:{phone.serial}", "--csv", "t.csv", "--", "--budget", "0"]) == 0
    )
    assert Path("t.csv").read_text() == "cfg,latency,energy\n" + "".join(f"{model},1,\n" for model in models)
    assert device_benchmark.main([*named]) == 2
    assert "--target" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--minutes", "1"), ("--minutes", "--target local")),
        (("--keep",), ("--keep", "--target local")),
        (("--target", "telnet:x"), ("there is no target 'telnet:x'", "qemu:aarch64")),
        (("--target", "qemu:aarch64", "--streams", "2"), ("--streams", "--target")),
        (("--target", "qemu:aarch64", "--layers"), ("--layers", "--target")),
        (("--target", "qemu:aarch64", "--rounds", "3"), ("--rounds does not go with --target",)),
        (("--target", "qemu:aarch64", "--against", "litert"), ("--against does not go with --target",)),
        (("--target", "qemu:aarch64", "--plan", "plan.json", "-t", "1"), ("a plan fixes", "threads")),
        (("--target", "qemu:aarch64", "-t", "1,2"), ("--threads '1,2'", "--target")),
        (("--target", "qemu:aarch64", "-o", "x.txt"), (".json, .html", "x.txt")),
        (("--target", "qemu:aarch64", "--original-weights", "w"), ("--original-weights", "--design")),
        (("--target", "ssh:-x"), ("ssh:-x", "is not understood")),
    ],
)
def test_wrong_options_are_one_line(
    cli: Cli, one_number: Path, emulator: str, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    refuses(cli("bench", str(one_number), *arguments), *words)


def test_wrong_processors_and_layers_are_one_line(
    fake_runner: Path, plug_in: Callable[..., AdbDaemon], cli: Cli, one_number: Path
) -> None:
    phone = plug_in()
    target = ("--target", f"adb:{phone.serial}")
    refuses(cli("bench", str(one_number), *target, "-p", "cpu:9"), f"adb:{phone.serial}", "core 9 cannot be used")
    refuses(cli("bench", str(one_number), *target, "-p", "cpu:0,opencl:0"), "has no opencl:0", "drivers list none")
    refuses(cli("bench", "nosuchnetwork", *target), "nosuchnetwork")
    refuses(cli("tune", str(one_number), *target, "-p", "cpu:9"), f"adb:{phone.serial}", "core 9 cannot be used")
    refuses(cli("tune", str(one_number), *target, "-p", "cpu:0,opencl:0"), "has no opencl:0", "drivers list none")
    refuses(
        cli("tune", str(one_number), *target, "-p", "cpu:0,litert"), "neither a group of CPU cores nor an OpenCL device"
    )
    refuses(cli("tune", str(one_number), *target, "--engines", "ort"), "--engines does not go with --target")
    fallback = one_number.with_name("fallback.onnx")
    graph = "m (float[1, 2] x) => (float[1, 2] y) { y = Hardmax(x) }"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> {graph}'), fallback)
    refuses(cli("tune", str(fallback), *target), "fallback.onnx: a target runs native kernels only")
    assert not list(phone.phone.folder.iterdir())


def test_the_local_machine_by_its_runner(fake_runner: Path, cli: Cli, one_number: Path) -> None:
    found = answer_of(cli("bench", str(one_number), "--target", "local", "--cool-down", "0.1", *QUICK))
    assert [run["target"] for run in found["targets"]] == ["local"]


@pytest.mark.slow
@pytest.mark.opencl
@pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
def test_cores_and_an_opencl_device_of_the_local_machine(cli: Cli, network: Path) -> None:
    """The real runner, which drives the device itself."""
    processors = f"cpu:{CORES[0]},opencl:0@{CORES[1]}"
    options = ("--no-tune", "-p", processors, "--cool-down", "0.1", "--target", "local", *QUICK)
    (run,) = answer_of(cli("bench", str(network), *options))["targets"]
    (result,) = run["results"]
    assert result["max_rel_error"] < 1e-5
    assert {queue["kind"] for queue in result["queues"]} <= {"cpu", "opencl"}
    alone = ("--no-tune", "-p", f"opencl:0@{CORES[1]}", "--standalone", "-o", "alone")
    assert cli("compile", str(network), *alone)[0] == 0
    (run,) = answer_of(cli("bench", f"alone/{network.stem}.nnm", "--cool-down", "0.1", "--target", "local", *QUICK))[
        "targets"
    ]
    (result,) = run["results"]
    assert "opencl" in {queue["kind"] for queue in result["queues"]}


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_end_the_runner_and_leave_nothing(
    emulator: str, network: Path, tmp_path: Path, number: signal.Signals, status: int
) -> None:
    command = [sys.executable, "-m", "nnstretch", "bench", str(network), "--target", "qemu:aarch64", "--budget", "600"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    runner = ""
    while "--seconds" not in runner:
        assert process.poll() is None
        time.sleep(0.1)
        for file in tmp_path.glob("nnstretch-*/pid-*"):
            with suppress(OSError, ValueError):
                runner = Path(f"/proc/{int(file.read_text())}/cmdline").read_text().replace("\0", " ")
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == status, said
    assert not list(tmp_path.glob("nnstretch-*"))
    assert not [p for p in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path) in _content(p)]


def _content(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(errors="replace")
    return ""
