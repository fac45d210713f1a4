"""Plans as files: `nnstretch tune -o` writes them, and compile, run, bench and `nnstretch.compile` take them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnstretch as nns
from nnstretch.cli.main import main
from nnstretch.compiler.compile import measured_space, unmeasured_space
from nnstretch.compiler.costs import open_profiler
from nnstretch.compiler.processors import build_processors
from nnstretch.compiler.saved_plan import plan_file
from nnstretch.devices.base.spec import usable_cores
from nnstretch.devices.cpu.processor import cpu_model
from nnstretch.package import read_package
from nnstretch.scheduler.measurement.profiler import Profiler
from nnstretch.scheduler.planner import ChoiceSpace, plan_of
from nnstretch.scheduler.runtime.session import PlanSession
from nnstretch.scheduler.selection import default_selector
from tests.kits.command_line import Cli, answer_of, refuses
from tests.kits.graphs.graphs import RandomNetwork

NETWORK = """
import torch
from torch import nn

def small(channels=16):
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, channels, 3, padding=1), nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1, groups=channels),
        nn.Conv2d(channels, 32, 1), nn.ReLU(), nn.Softmax(1),
    )
    return net, torch.zeros(1, 3, 12, 12)

def wide():
    return small(32)
"""
CORES = usable_cores()


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a network and its plan."""
    folder = tmp_path_factory.mktemp("tuned")
    (folder / "net.py").write_text(NETWORK)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["tune", "net.py:small", "--threads", "1", "-o", "plan.json", "--json"]) == 0
    return folder


@pytest.fixture
def plan(tuned: Path, folder: Path) -> Path:
    """A plan of a network in the working directory."""
    for file in tuned.iterdir():
        if file.is_file():
            shutil.copy(file, folder)
    return folder / "plan.json"


def test_commands_take_a_plan_and_measure_nothing(cli: Cli, plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(*_: Any, **__: Any) -> None:
        raise AssertionError("a plan needs no measurement")

    monkeypatch.setattr(Profiler, "compare", measured)
    monkeypatch.setattr(Profiler, "seconds", measured)
    steps = json.loads(plan.read_text())["steps"]
    packed = answer_of(cli("compile", "net.py:small", "--plan", str(plan), "-o", "p.nns", "--json"))
    assert packed["steps"] == len(steps)
    for model in (("net.py:small", "--plan", str(plan)), ("p.nns",)):
        assert answer_of(cli("run", *model, "--check", "--runs", "3", "--json"))["passed"]
    with nns.compile("net.py:small", plan=plan) as session:
        assert [step.routine for step in session.plan.steps] == [step["routine"] for step in steps]
        assert session.plan.predicted_ms is not None
    found = answer_of(cli("bench", "net.py:small", "--plan", str(plan), "-r", "1", "--json"))
    assert "error" not in found["results"][0]["engines"]["nnstretch"]
    cores = plan.parent / "standalone"
    answer_of(cli("compile", "net.py:small", "--plan", str(plan), "--standalone", "-o", str(cores), "--json"))


def test_plans_and_packages_of_another_cpu_are_noted(
    cli: Cli, plan: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = ("run", "net.py:small", "--plan", str(plan), "-n", "1")
    answer_of(cli("compile", "net.py:small", "--plan", str(plan), "-o", "here.nns", "--json"))
    for model in (run, ("run", "here.nns", "-n", "1")):
        assert cli(*model)[0] == 0
        assert not caplog.records
    text = json.loads(plan.read_text())
    here = cpu_model()
    assert text["selection"]["cpu"] == here
    text["selection"]["cpu"] = "Another CPU"
    plan.write_text(json.dumps(text))
    note = f"was tuned on Another CPU, and this machine has {here}; `nnstretch"
    answer_of(cli("compile", "net.py:small", "--plan", str(plan), "-o", "there.nns", "--json"))
    assert [one.getMessage() for one in caplog.records] == [f"{plan} {note} tune -o` here may give a faster one"]
    caplog.clear()
    for policy in ((), ("--policy", "fixed")):
        assert cli("run", "there.nns", "-n", "1", *policy)[0] == 0
        assert [one.getMessage() for one in caplog.records] == [f"there.nns {note} compile` here may give a faster one"]
        caplog.clear()
    answer_of(cli("compile", "net.py:small", "--no-tune", "-o", "untuned.nns", "--json"))
    assert "cpu" not in read_package(Path("untuned.nns")).metadata


def test_the_tolerance_of_a_plan_is_refused_where_another_is_given(cli: Cli, plan: Path) -> None:
    """That by which commands tune without one, too."""
    text = json.loads(plan.read_text())
    text["selection"]["tolerance"] = 0.005
    plan.write_text(json.dumps(text))
    wanted = "was tuned with a tolerance of 0.005, not 0.0001"
    refuses(cli("run", "net.py:small", "--plan", str(plan), "--tolerance", "1e-4"), wanted)


def test_plans_for_something_else_are_refused(cli: Cli, plan: Path, folder: Path) -> None:
    run = ("run", "net.py:small", "--plan")
    refuses(cli("run", "net.py:wide", "--plan", str(plan)), "plan.json is for another model", "nnstretch tune -o")
    refuses(cli("run", "squeezenet1_1", "--plan", str(plan)), "plan.json is for another model", "has layer")
    refuses(cli(*run, str(plan), "-p", "cpu:99"), "cpu:99")
    other = f"cpu:{CORES[-1]}" if len(CORES) > 1 else "opencl"
    refuses(cli(*run, str(plan), "-p", other), "plan.json is for processors", other, "nnstretch tune -p")
    refuses(cli(*run, str(plan), "--threads", "1"), "a plan fixes", "threads")
    refuses(cli(*run, str(plan), "--tolerance", "0.01"), "was tuned with a tolerance of 0.0001, not 0.01")
    refuses(cli(*run, "missing.json"), "no plan missing.json", "nnstretch tune MODEL -o missing.json")
    refuses(cli("run", "net.py:small", "--batch", "2", "--plan", str(plan)), "plan.json is for another model")
    raw = json.loads(plan.read_text())
    first = next(i for i, choice in enumerate(raw["selection"]["choices"]) if choice["routine"].startswith("cpu"))

    def changed(**entries: Any) -> str:
        text = json.loads(plan.read_text())
        text["selection"]["choices"][first].update(entries)
        (folder / "changed.json").write_text(json.dumps(text))
        return "changed.json"

    refuses(cli(*run, changed(routine="cpu:float32/abacus")), "cpu:float32/abacus", "does not have", "tune -o")
    refuses(cli(*run, changed(queue=-1)), "damaged")
    refuses(cli(*run, changed(queue=7)), "damaged")
    refuses(cli(*run, changed(parameters="many")), "damaged")
    refuses(cli(*run, changed(unit="nobody")), "another model")
    del raw["selection"]
    (folder / "old.json").write_text(json.dumps(raw))
    refuses(cli(*run, "old.json"), "has no selection", "nnstretch tune -o")
    (folder / "half.json").write_text(plan.read_text()[:1000])
    refuses(cli(*run, "half.json"), "half.json is damaged: line ", ", column ", "tune -o")
    refuses(cli("report", "half.json"), "half.json: it is not JSON (line ")
    (folder / "bytes.json").write_bytes(b"\xff\xfe\x00")
    refuses(cli(*run, "bytes.json"), "not a plan")


@pytest.mark.parametrize("command", [("run",), ("bench",), ("compile", "--standalone"), ("compile",)])
def test_plans_for_other_machines_are_refused_before_a_model_is_made(
    cli: Cli, plan: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    def made(*given: object) -> None:
        raise AssertionError(given)

    monkeypatch.setattr("nnstretch.cli.models.sources.Source.load", made)
    monkeypatch.setattr("nnstretch.bench.comparison.suite.run_series", made)
    raw = json.loads(plan.read_text())
    for entries, words in (
        ({"isa": "armv8.2"}, "plan.json is for armv8.2, this machine has"),
        ({"processors": ["cpu:0-4095"]}, "plan.json is for processors cpu:0-4095, "),
    ):
        plan.write_text(json.dumps({**raw, "selection": {**raw["selection"], **entries}}))
        refuses(cli(*command, "net.py:small", "--plan", str(plan)), words)


def saved(space: ChoiceSpace, processors: Any, path: Path) -> list[np.ndarray]:
    """Writes the plan of a space, and returns its outputs for a network's input."""
    selection = default_selector().select(space.problem)
    made = plan_of(space, selection)
    path.write_text(plan_file(made.plan, space, selection, processors))
    with PlanSession(made) as session:
        return session.run(None, session.zeros())


@pytest.mark.parametrize("seed", range(6))
def test_plans_of_any_network_are_made_again(seed: int, tmp_path: Path) -> None:
    names = f"cpu:{CORES[0]},cpu:{CORES[-1]}" if len(CORES) > 1 and seed % 2 else f"cpu:{CORES[0]}"
    network, usable = RandomNetwork(seed, processors=0, nodes=8), build_processors(names)
    wanted = saved(unmeasured_space(network.graph(), usable), usable, tmp_path / "plan.json")
    with nns.compile(network.graph(), plan=tmp_path / "plan.json") as session:
        for a, b in zip(session.run(None, session.zeros()), wanted, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.skipif(len(CORES) < 2, reason="layers are split between two cores")
def test_plans_with_split_layers_are_made_again(tmp_path: Path) -> None:
    import torch

    layers = [torch.nn.Conv2d(a, 256, 3, padding=1) for a in (3, 256, 256)]
    network, image = torch.nn.Sequential(*layers).eval(), torch.zeros(1, 3, 56, 56)
    from nnstretch.frontends.resolve import load_any

    usable = build_processors(f"cpu:{CORES[0]},cpu:{CORES[1]}")
    with open_profiler(usable) as costs:
        space = measured_space(load_any(network, image), usable, costs)
    wanted = saved(space, usable, tmp_path / "plan.json")
    assert space.splits or not (space.placement and space.placement.pays)
    with nns.compile(network, image, plan=str(tmp_path / "plan.json")) as session:
        for a, b in zip(session.run(None, session.zeros()), wanted, strict=True):
            np.testing.assert_array_equal(a, b)
