"""Runs of branched networks, and contention of processors."""

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from torch import nn

from nnstretch.branching.design.blueprint import BranchChoice, SegmentChoice, blueprint
from nnstretch.branching.design.from_choices import make_design
from nnstretch.branching.transform.build import build
from nnstretch.compiler import costs
from nnstretch.compiler.costs import latency_predictor, measured_contention
from nnstretch.compiler.design_runs import UnbranchedRunner, _branch_times, design_runner
from nnstretch.compiler.processors import build_processors
from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.spec import usable_cores
from nnstretch.errors import FileError
from nnstretch.frontends.torch_module import export
from nnstretch.scheduler import planner
from nnstretch.scheduler.measurement import interference
from nnstretch.scheduler.measurement.interference import contention_factors, stored_contention_factors
from nnstretch.scheduler.measurement.store.store import ProfileStore
from nnstretch.scheduler.runtime.timeline import Event, Timeline

ROOT = Path(__file__).resolve().parents[3]
CORES = usable_cores()
needs_two_cores = pytest.mark.skipif(len(CORES) < 2, reason="needs two cores")
PROCESSORS = f"cpu:{CORES[0]},cpu:{CORES[1]}" if len(CORES) > 1 else ""


@needs_two_cores
def test_every_branch_of_a_run_takes_time_and_they_overlap() -> None:
    image = torch.zeros(1, 3, 64, 64)
    network = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.Flatten(), nn.LazyLinear(4)
    )
    network(image)
    plan = blueprint(network.eval(), image, 16)
    choices = [
        SegmentChoice(stage, tuple(BranchChoice(p, tuple(stage.blocks), 0.75) for p in (0, 1)))
        for stage in plan.traced.stages
    ]
    branched = build(plan, make_design(plan, choices))
    processors = build_processors(PROCESSORS)
    run_design = design_runner(processors, image, latency_predictor(processors))
    assert run_design is not None
    for tuned in (False, True):
        measured = run_design(branched, tuned=tuned)
        assert [len(branches) for branches in measured.branches] == [2] * len(choices)
        assert all(0.0 < seconds < measured.seconds for branches in measured.branches for seconds in branches)


@needs_two_cores
def test_tuned_designs_are_not_searched_for_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    """`tune` does that with the design that is chosen."""
    image, network = torch.zeros(1, 3, 32, 32), nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU())
    processors = build_processors(PROCESSORS)
    run_design = design_runner(processors, image, latency_predictor(processors, learned=False))
    assert run_design is not None
    monkeypatch.setattr(planner, "descend", lambda *_: pytest.fail("parameters are searched"))
    assert run_design.tuned(export(network.eval(), image)).plan.steps


def seconds_by_place() -> tuple[float, float, float]:
    """Seconds of a network without branches on either core, and on both."""
    image, network = torch.zeros(1, 3, 128, 128), nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU())
    processors = build_processors(PROCESSORS)
    run_design = design_runner(processors, image, latency_predictor(processors, learned=False))
    assert run_design is not None
    run = UnbranchedRunner(run_design, lambda: export(network, image))
    return run(0, ""), run(1, ""), run(None, f"cpu:{CORES[0]}+{CORES[1]}*10:1")


@needs_two_cores
def test_a_network_without_branches_runs_where_it_is_asked_to() -> None:
    """A slow core tells the places apart, in a process without sessions of other tests, whose threads are not slow."""
    code = f"from {__name__} import seconds_by_place; print(*seconds_by_place())"
    environment = {**os.environ, "NNSTRETCH_CORE_SPEEDS": f"{CORES[1]}:0.1"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False, timeout=250)
    assert done.returncode == 0, done.stderr
    first, second, both = map(float, done.stdout.split())
    assert 0 < first < second / 2
    assert both > 0


def test_a_branch_takes_its_steps_and_what_lies_between_them() -> None:
    a, b = (f"segments.0.branches.{branch}.conv" for branch in (0, 1))
    events = (
        Event(a, "step", 0, 100, 200),
        Event(a, "step", 0, 250, 300),
        Event("wait", "wait", 0, 300, 400),
        Event(a, "step", 0, 410, 500),
        Event("adapt", "step", 1, 0, 50),
        Event(b, "step", 1, 60, 100),
    )
    found = _branch_times(Timeline(("cpu:0", "cpu:1"), events, 500))
    assert found == pytest.approx({(0, 0): 290e-9, (0, 1): 40e-9})


@needs_two_cores
def test_contention_factors_are_measured_once(tmp_path: Path) -> None:
    processors, store = build_processors(PROCESSORS), ProfileStore(tmp_path / "profiles.sqlite")
    found = contention_factors(processors.named, processors.host, (0, 1), store)
    assert len(found) == 2
    assert all(1.0 <= ratio < 20.0 for ratio in found)
    again = contention_factors(processors.named, processors.host, (0, 1), store)
    if max(found) <= interference._DOUBTFUL:
        assert again == found
    else:  # other programs may have caused them, so the lower ones count
        assert all(later <= first for first, later in zip(found, again, strict=True))


def test_contention_factors_are_known_in_whatever_order_processors_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu, same, other = (cast("Processor", SimpleNamespace(fingerprint=name)) for name in ("cpu", "cpu", "other"))
    monkeypatch.setattr(interference, "_measured_ratios", lambda *_: [[1.5], [1.25], [2.0]])
    with closing(ProfileStore(tmp_path / "profiles.sqlite")) as store:
        assert contention_factors((cpu, same, other), cpu, (0, 1, 2), store) == (1.5, 1.25, 2.0)
        assert stored_contention_factors((other, cpu, same), (0, 1, 2), store) == (2.0, 1.5, 1.25)
        assert stored_contention_factors((cpu, other, same), (0, 1, 2), store) == (1.5, 2.0, 1.25)
        assert stored_contention_factors((other, cpu), (0, 1), store) is None


def test_the_store_is_closed_after_contention_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[ProfileStore] = []

    def factors(_named: object, _host: Processor, group: Sequence[int], store: ProfileStore, _: object) -> list[float]:
        opened.append(store)
        return [1.0] * len(group)

    monkeypatch.setattr(costs, "contention_factors", factors)
    assert measured_contention(build_processors(f"cpu:{CORES[0]}"))((0, 1)) == [1.0, 1.0]
    with pytest.raises(FileError, match="closed"):
        list(opened[0].rows())
