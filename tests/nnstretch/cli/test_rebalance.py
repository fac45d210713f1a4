"""`--rebalance` of `run` and `compile`: plans for a CPU core and PoCL, packages, and refusals. Nothing is said of times."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import nnstretch as nns
from nnstretch.errors import UsageError
from nnstretch.graph.metadata import PLACEMENT_KEY
from nnstretch.graph.reference import relative_error, run_proto
from nnstretch.package import read_package, write_package
from nnstretch.package.format import Package
from nnstretch.scheduler.plan.schema import Plan
from tests.kits.command_line import Cli, answer_of, refuses

CORES = sorted(os.sched_getaffinity(0))
C, D, G = f"cpu:{CORES[0]}", f"cpu:{CORES[-1]}", f"opencl:0@{CORES[-1]}"
X = np.random.default_rng(1).standard_normal((1, 16, 8, 8)).astype(np.float32)
FIELDS = {
    *("rounds", "before_ms", "after_ms", "ratio", "ratio_interval", "waiting_before_ms", "waiting_after_ms", "moved"),
}

pytestmark = pytest.mark.skipif(len(CORES) < 2, reason="two processors need two cores")


def branched() -> onnx.ModelProto:
    """A segment with a branch for each processor, and a convolution behind it."""
    rng = np.random.default_rng(0)
    shapes = {"w0": (16, 16, 1, 1), "w1": (16, 16, 1, 1), "w2": (32, 32, 1, 1)}
    weights = [numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), name) for name, s in shapes.items()]
    declared = ", ".join(f"float[{','.join(map(str, w.dims))}] {w.name}" for w in weights)
    proto = parser.parse_model(f"""
    <ir_version: 10, opset_import: ["" : 20]>
    net (float[1,16,8,8] x) => (float[1,32,8,8] y) <{declared}> {{
        a = Conv (x, w0) b = Conv (x, w1) c = Concat <axis = 1> (a, b) y = Conv (c, w2)
    }}""")
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(weights)
    for branch, node in enumerate(proto.graph.node[:2]):
        node.name = f"segments.0.branches.{branch}.conv"
        entry = node.metadata_props.add()
        entry.key, entry.value = PLACEMENT_KEY, str(branch)
    return proto


@pytest.fixture
def model(folder: Path) -> str:
    """The network as a file in the working directory."""
    onnx.save(branched(), folder / "net.onnx")
    return "net.onnx"


def is_right(path: str) -> None:
    """A package computes what ONNX Runtime does."""
    with nns.compile(path) as session:
        (found,) = session.run(None, {"x": X})
        (wanted,) = run_proto(branched(), {"x": X})
        assert relative_error(found, wanted) < 1e-4


def is_no_loss(answer: dict[str, Any]) -> None:
    """The answer has all fields, and by its own words the plan that is kept is not slower than the first one."""
    assert answer.keys() == FIELDS
    assert answer["after_ms"] > 0 and answer["ratio"] <= 1 and len(answer["rounds"]) <= 4
    if answer["ratio_interval"] is None:
        assert (answer["ratio"], answer["moved"]) == (1, []) and answer["before_ms"] == answer["after_ms"]
        assert not any(one["kept"] for one in answer["rounds"])
    else:
        assert answer["ratio_interval"][1] < 1
    branches = [one for one in answer["moved"] if one["layer"].startswith("segments.")]
    assert branches == []
    assert answer["waiting_before_ms"] >= 0 <= answer["waiting_after_ms"]


@pytest.mark.slow
@pytest.mark.opencl
def test_a_network_is_rebalanced_into_a_package(cli: Cli, model: str, folder: Path) -> None:
    """Also by `compile`, whose package keeps the network and is rebalanced again."""
    answer = answer_of(
        cli("run", model, "-p", f"{C},{G}", "--rebalance", "--check", "-o", "new.nns", "-n", "3", "--json")
    )
    is_no_loss(answer["rebalance"])
    assert answer["passed"] and answer["bytes"] == (folder / "new.nns").stat().st_size
    is_right("new.nns")
    made = read_package(folder / "new.nns")
    assert not made.model and made.metadata["processors"] == f"{C},{G}"
    refuses(cli("run", "new.nns", "--rebalance"), "new.nns has one plan and no model", "--keep-model")

    answer = answer_of(
        cli("compile", model, "-p", f"{C},{G}", "--rebalance", "--keep-model", "-o", "kept.nns", "--json")
    )
    is_no_loss(answer["rebalance"])
    kept = read_package(folder / "kept.nns")
    assert (
        answer["bytes"] > len(kept.model) > 0
        and onnx.load_model_from_string(bytes(kept.model)).graph.input[0].name == "x"
    )

    answer = answer_of(cli("run", "kept.nns", "--rebalance", "-o", "again.nns", "-n", "3", "--json"))
    is_no_loss(answer["rebalance"])
    is_right("again.nns")
    again = read_package(folder / "again.nns")
    assert bytes(again.model) == bytes(kept.model) and again.metadata["source"] == kept.metadata["source"]


@pytest.mark.slow
@pytest.mark.opencl
def test_python_gets_the_report(model: str) -> None:
    with nns.compile(model, processors=f"{C},{G}", rebalance=True) as session:
        report = session.compiled.rebalancing
        assert report is not None
        is_no_loss(json.loads(json.dumps(report.to_json())))
        (found,) = session.run(None, {"x": X})
        (wanted,) = run_proto(branched(), {"x": X})
        assert relative_error(found, wanted) < 1e-4


def test_plans_of_a_package_are_measured_again(cli: Cli, model: str, folder: Path) -> None:
    cli("compile", model, "--plans", f"{C},{D};{C}", "--no-tune", "-o", "plans.nns", "--json")
    package = read_package(folder / "plans.nns")
    known = package.metadata["calibration"]
    wrong = {name: {**one, "ms": 1e6} for name, one in known["plans"].items()}
    metadata = {**package.metadata, "calibration": {**known, "plans": wrong}}
    write_package(Package(package.plans, package.constants, package.sources, metadata), folder / "wrong.nns")

    answer = answer_of(cli("run", "wrong.nns", "--rebalance", "-o", "right.nns", "-n", "3", "--json"))
    plans = answer["rebalance"]["plans"]
    assert plans.keys() == known["plans"].keys()
    assert all(one["before_ms"] == 1e6 > one["after_ms"] > 0 for one in plans.values())
    after = read_package(folder / "right.nns").metadata
    assert {name: one["ms"] for name, one in after["calibration"]["plans"].items()} == pytest.approx(
        {name: one["after_ms"] for name, one in plans.items()}
    )
    is_right("right.nns")
    refuses(cli("run", "wrong.nns", "--rebalance", "--policy", "fixed"), "policy fixed", "needs no times")


def test_what_cannot_be_rebalanced_is_refused(cli: Cli, model: str, folder: Path) -> None:
    (folder / "folder.nns").mkdir()
    both = ("-p", f"{C},{D}", "--rebalance")
    refuses(cli("run", model, "-p", C, "--rebalance"), f"{C} is one processor", "two or more")
    refuses(cli("run", model, "-p", "sim:phone/cpu,sim:phone/gpu", "--rebalance"), "simulated", "here")
    refuses(cli("run", model, *both, "--no-tune"), "rebalancing measures", "--no-tune")
    refuses(cli("run", model, *both, "-o", "folder.nns"), "folder.nns", "directory")
    refuses(cli("run", model, *both, "-o", "new.zip"), ".npz")
    refuses(cli("run", model, "-p", f"{C},{D}", "-o", "new.nns"), ".npz")
    refuses(cli("run", model, *both, "--streams", "2"), "rebalance", "streams")
    refuses(cli("run", model, *both, "--target", "qemu:aarch64"), "--rebalance measures runs on this machine")
    refuses(cli("run", model, *both, "--policy", "adaptive"), "a policy is for several plans")
    refuses(cli("run", model, "--plans", f"{C};{D}", "--rebalance"), "rebalance", "plans")
    refuses(cli("compile", model, "--plans", f"{C};{D}", "--keep-model"), "keep_model", "plans")
    with pytest.raises(UsageError, match="a policy is for several plans, and keep_model for one"):
        nns.compile(model, processors=f"{C},{D}", policy="adaptive", keep_model=True, tune=False)
    refuses(cli("compile", model, "--standalone", "--keep-model"), "--keep-model is for packages")
    refuses(cli("compile", model, "--standalone", *both), "--rebalance is for packages")


def test_a_plan_on_one_queue_is_written_as_it_is(cli: Cli, folder: Path) -> None:
    """Everything is placed on one of two processors, so nothing can move."""
    proto = branched()
    for node in proto.graph.node:
        del node.metadata_props[:]
        entry = node.metadata_props.add()
        entry.key, entry.value = PLACEMENT_KEY, "1"
    onnx.save(proto, folder / "one.onnx")
    status, out, _ = cli("run", "one.onnx", "-p", f"{C},{D}", "--rebalance", "-o", "one.nns", "-n", "1")
    assert status == 0 and "so the plan stays as it is" in out and f"everything runs on {D}" in out
    is_right("one.nns")
    answer = answer_of(cli("run", "one.onnx", "-p", f"{C},{D}", "--rebalance", "-n", "1", "--json"))
    is_no_loss(answer["rebalance"])
    assert answer["rebalance"]["moved"] == [] and answer["rebalance"]["rounds"] == []


@pytest.mark.slow
def test_a_kept_model_is_shared_out_on_a_machine_with_other_cores(cli: Cli, model: str, folder: Path) -> None:
    """The package is for a core of the CPU and one of PoCL; where there is one core only, both share it."""
    answer = answer_of(
        cli("compile", model, "-p", "cpu,opencl", "--no-tune", "--keep-model", "-o", "kept.nns", "--json")
    )
    assert answer["bytes"] > 0
    kept = read_package(folder / "kept.nns").metadata
    assert (kept["kept_model"]["processors"], kept["kept_model"]["threads"]) == ("cpu,opencl", None)
    assert len({core for queue in plan_of("kept.nns").queues for core in queue.cores}) == len(CORES)
    command = [
        sys.executable,
        "-m",
        "nnstretch.cli.main",
        "run",
        "kept.nns",
        "--rebalance",
        "-o",
        "here.nns",
        "-n",
        "1",
    ]
    one = ["taskset", "-c", str(CORES[-1]), *command, "--json"]
    done = subprocess.run(one, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    assert {core for queue in plan_of("here.nns").queues for core in queue.cores} == {CORES[-1]}
    is_right("here.nns")


def plan_of(path: str) -> Plan:
    return Plan.from_json(read_package(Path(path)).first.plan)


def test_kept_models_are_checked(cli: Cli, model: str, folder: Path) -> None:
    cli("compile", model, "-p", f"{C},{D}", "--no-tune", "--keep-model", "-o", "kept.nns", "--json")
    refuses(cli("run", "kept.nns", "--rebalance", "-o", "kept.nns"), "the command reads this file")
    content = bytearray((folder / "kept.nns").read_bytes())
    kept = bytes(read_package(folder / "kept.nns").model)
    content[content.index(kept) + len(kept) // 2] ^= 1
    (folder / "damaged.nns").write_bytes(content)
    refuses(cli("run", "damaged.nns"), "damaged.nns is damaged", "model.onnx")
    package = read_package(folder / "kept.nns")
    metadata = {**package.metadata, "kept_model": {"processors": C}}
    other = Package(package.plans, package.constants, package.sources, metadata, package.model)
    write_package(other, folder / "other.nns")
    refuses(cli("run", "other.nns", "--rebalance"), "other.nns does not say what its model was compiled for")
    evil = {**package.metadata["kept_model"], "processors": f"{C},tflite:{folder}/evil.so@0"}
    metadata = {**package.metadata, "kept_model": evil}
    write_package(
        Package(package.plans, package.constants, package.sources, metadata, package.model), folder / "evil.nns"
    )
    refuses(cli("run", "evil.nns", "--rebalance", "--trusted-sources"), "evil.nns loads the library", "evil.so")
    assert answer_of(cli("run", "other.nns", "-n", "1", "--json"))["outputs"]["y"]["shape"] == [1, 32, 8, 8]
