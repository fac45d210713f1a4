"""Sweeps of designs: parameters and designs, limits, the fidelity ladder, and the command."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import optuna
import pytest
import torch

import nnstretch as nns
from nnstretch.branching.design.design import Design, Merge, load_design
from nnstretch.branching.search.limits import SearchLimits
from nnstretch.branching.transform.build import build
from nnstretch.cli.models.networks import NetworkOptions, build_network
from nnstretch.cli.sweeping.designs import DesignJob
from nnstretch.cli.sweeping.front import front_table
from nnstretch.compiler.processors import build_processors
from nnstretch.errors import DesignError, UsageError
from nnstretch.scheduler.costmodel.costs import Estimates
from nnstretch.support.image_size import ImageSize
from nnstretch.sweeps.designs import DesignSweep, SweepSpec, evaluation_by
from nnstretch.sweeps.evaluation import DesignEvaluation, predicted_values
from nnstretch.sweeps.feasibility import Bounds
from nnstretch.sweeps.ladder import front_numbers, hypervolume, is_promoted, ranks
from nnstretch.sweeps.measures.energy import EnergyMeter
from nnstretch.sweeps.measures.measuring import DesignTimer
from nnstretch.sweeps.measures.quantizer import Quantizer
from nnstretch.sweeps.measures.results import ResultStore
from nnstretch.sweeps.objectives import Fidelity, fidelity_of, parse_objectives
from nnstretch.sweeps.samplers import _auto_sampler
from nnstretch.sweeps.space import DesignSpace, Form
from nnstretch.sweeps.study import RUNG, VALUES, states
from nnstretch.sweeps.workers.turns import Turns
from nnstretch.sweeps.workers.worker import SweepBudget
from tests.kits.command_line import Cli
from tests.kits.networks.small_training import few_digits
from tests.kits.networks.tiny_branching import SIDE, original

PROCESSORS = "sim:phone/cpu,sim:phone/gpu"
LOOSE = SearchLimits(alpha=1e4, beta=1e4, min_macs=0.01, max_segment=1.0)


def sweep_of(folder: Path, **more: Any) -> DesignSweep:
    spec = SweepSpec(**{"storage": str(folder / "sweep.journal"), "limits": LOOSE, "budget": SweepBudget(20), **more})
    return DesignSweep(original(), torch.randn(1, 1, SIDE, SIDE), build_processors(PROCESSORS), spec)


def evaluation(sweep: DesignSweep, study: optuna.Study, objectives: str, **more: Any) -> DesignEvaluation:
    wanted = parse_objectives(objectives)
    fidelity = more.pop("fidelity", fidelity_of(wanted, None))
    store = ResultStore(Path(sweep.spec.storage).parent / "work")
    return DesignEvaluation(study, sweep.space, wanted, fidelity, sweep.space.limits, sweep.spec.bounds, store, **more)


def random_parameters(space: DesignSpace, seed: int) -> dict[str, Any]:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed))
    return study.ask(dict(space.distributions)).params


@pytest.mark.parametrize("merge", list(Merge))
def test_every_combination_of_parameters_is_a_design_that_can_be_built_and_found_again(
    tmp_path: Path, merge: Merge
) -> None:
    sweep = sweep_of(tmp_path, forms=(Form(merge), Form(merge, SIDE * 2)))
    found: dict[str, Design] = {}
    for seed in range(16):
        parameters = random_parameters(sweep.space, seed)
        predicted = sweep.space.design(parameters)
        found[predicted.design.id] = predicted.design
        again = sweep.space.design(sweep.space.parameters(predicted.design, sweep.space.form(parameters)))
        assert again.design.segments[0].stop == predicted.design.segments[0].stop
        if seed < 2:
            image = predicted.latencies.blueprint.traced.example_input
            assert build(predicted.latencies.blueprint, predicted.design)(image).shape == (1, 10)
    assert len(found) > 8
    assert {design.meeting_points for design in found.values()} >= {0, 1}
    assert any(branch.width < 1 for design in found.values() for s in design.segments for branch in s.branches)


def test_what_runs_alike_is_one_design_wherever_its_segments_end(tmp_path: Path) -> None:
    space = sweep_of(tmp_path).space
    ends = [name for name in space.distributions if name.startswith("processors.")]
    found = [
        space.design({**random_parameters(space, seed), **dict.fromkeys(ends, space.names[seed % 2])})
        for seed in range(8)
    ]
    assert len({one.design.id for one in found}) == 1
    assert found[0].design.meeting_points == 0
    assert all(one.prediction.seconds == found[0].prediction.seconds for one in found)


def test_a_segment_that_is_too_large_ends_where_it_may(tmp_path: Path) -> None:
    space = sweep_of(tmp_path, limits=replace(LOOSE, max_segment=0.3)).space
    both = list(space.groups)[-1]
    parameters = {name: both for name in space.distributions if name.startswith("processors.")}
    segments = space.design(parameters).design.segments
    assert len(segments) > 1
    assert segments[-1].stop == space.boundaries[-1]


def test_the_front_of_the_analytic_search_comes_first_and_is_not_lost(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, warm=4)
    study = sweep.open()
    assert sweep.warm_start(study) == ""
    queued = len(study.trials)
    assert queued > 1
    assert sweep.warm_start(study) == ""  # a study with trials has begun
    assert len(study.trials) == queued
    sweep.run(study, evaluation(sweep, study, "latency,macs"))
    assert states(study)["complete"] == 20
    front = sweep.result(study).front
    analytic = [trial.values for trial in study.trials[:queued]]
    for latency, macs in analytic:
        assert any(p.values["latency"] <= latency * 1.0001 and p.values["macs"] >= macs * 0.9999 for p in front)


def test_a_warm_start_leaves_out_designs_that_the_space_does_not_have(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, warm=4, budget=SweepBudget(6))
    full = replace(sweep.space.limits, min_width=1.0)  # designs with narrow branches are not in this space
    sweep.__dict__["space"] = DesignSpace(sweep._latencies, sweep.spec.forms, sweep.names, full)
    study = sweep.open()
    note = sweep.warm_start(study)
    assert re.fullmatch(r"warm start without \d of 4 designs: design \S+ is not in the search space of the sweep", note)
    assert 0 < len(study.trials) < 4
    sweep.run(study, evaluation(sweep, study, "latency,macs"))
    assert states(study)["complete"] == 6


def test_impossible_limits_are_said_with_the_best_that_was_reached(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, bounds=Bounds(latency=1e-6), warm=0, budget=SweepBudget(6))
    study = sweep.open()
    sweep.run(study, evaluation(sweep, study, "latency,macs"))
    with pytest.raises(
        DesignError, match=r"6 designs tried: latency is to be at most 1e-06, the best is [0-9.]+; change"
    ):
        sweep.result(study)


@dataclass(frozen=True)
class CountedTimer:
    """Pretends to run designs."""

    counts: dict[str, int]
    tune: bool = False
    energy: bool = False

    def __call__(self, predicted: Any) -> dict[str, float]:
        name = predicted.design.id
        self.counts[name] = self.counts.get(name, 0) + 1
        values = predicted_values(predicted)
        found = {"latency": 1.1 * values["latency"], "p90": 1.2 * values["latency"], "memory": values["memory"]}
        return found | ({"energy": 1.0} if self.energy else {})


def test_the_ladder_measures_a_share_of_the_designs_and_none_twice(tmp_path: Path) -> None:
    counts: dict[str, int] = {}
    for study_name in ("one", "two"):
        sweep = sweep_of(tmp_path, warm=0, budget=SweepBudget(18), study=study_name, names=("latency", "p90", "macs"),
                         directions=("minimize", "minimize", "maximize"))  # fmt: skip
        study = sweep.open()
        timer: Any = CountedTimer(counts)
        sweep.run(study, evaluation(sweep, study, "latency,p90,macs", timer=timer))
        counted = states(study)
        assert counted["complete"] + counted["pruned"] == 18
        assert 4 <= counted["complete"] <= 14
        for trial in study.trials:
            measured = trial.user_attrs[RUNG] == "measured"
            assert measured == (trial.state.name == "COMPLETE") == (f"{VALUES}measured" in trial.user_attrs)
    assert set(counts.values()) == {1}


def test_a_result_without_energy_is_none_for_a_sweep_of_energy(tmp_path: Path) -> None:
    for names in (("latency", "p90"), ("latency", "energy")):
        sweep = sweep_of(
            tmp_path, warm=0, budget=SweepBudget(3), study=names[1], names=names, directions=("minimize",) * 2
        )
        study = sweep.open()
        timer: Any = CountedTimer({}, energy="energy" in names)
        sweep.run(study, evaluation(sweep, study, ",".join(names), timer=timer))
        assert states(study)["fail"] == 0 < len(timer.counts)


@pytest.mark.parametrize(
    ("limits", "bounds"),
    [
        (replace(LOOSE, alpha=1e-9), Bounds()),
        (replace(LOOSE, beta=1e-9), Bounds()),
        (replace(LOOSE, min_macs=50.0), Bounds()),
        (LOOSE, Bounds(memory=1e-6)),
    ],
)
def test_a_design_beyond_a_limit_is_not_run(tmp_path: Path, limits: SearchLimits, bounds: Bounds) -> None:
    counts: dict[str, int] = {}
    sweep = sweep_of(tmp_path, warm=0, limits=limits, bounds=bounds, budget=SweepBudget(6), names=("latency", "p90"),
                     directions=("minimize", "minimize"))  # fmt: skip
    study = sweep.open()
    choices: dict[str, Any] = {name: getattr(kind, "choices", ()) for name, kind in sweep.space.distributions.items()}
    both = {name: some[-1] for name, some in choices.items() if name.startswith("processors.")}
    study.enqueue_trial(both)  # branches in every segment
    timer: Any = CountedTimer(counts)
    sweep.run(study, evaluation(sweep, study, "latency,p90", timer=timer))
    beyond = {t.user_attrs["design"] for t in study.trials if any(value > 0 for value in t.constraints.values())}
    assert study.trials[0].user_attrs["design"] in beyond
    assert not beyond & counts.keys()
    assert all(t.state.name == "PRUNED" for t in study.trials if t.user_attrs["design"] in beyond)


def test_a_sweep_with_the_same_seed_evaluates_the_same_designs_to_the_same_values(tmp_path: Path) -> None:
    found = []
    for number in range(2):
        sweep = sweep_of(tmp_path, warm=3, study=str(number), budget=SweepBudget(11), sampler="gp", seed=5)
        study = sweep.open()
        sweep.warm_start(study)
        sweep.run(study, evaluation(sweep, study, "latency,macs"))
        found.append([(t.params, t.values, t.state) for t in study.trials])
    assert found[0] == found[1]
    assert len(found[0]) == 11  # the last by Gaussian processes


def test_any_whole_number_is_a_seed(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, warm=0, budget=SweepBudget(1), sampler="random", seed=10**23)
    study = sweep.open()
    sweep.run(study, evaluation(sweep, study, "latency,macs"))
    assert len(study.trials) == 1


def test_an_objective_of_the_callers_sees_designs_within_the_limits_only(tmp_path: Path) -> None:
    seen: list[Design] = []

    def objective(design: Design) -> float:
        seen.append(design)
        return float(design.macs)

    sweep = sweep_of(tmp_path, warm=0, limits=replace(LOOSE, min_macs=0.7), names=("value",), directions=("minimize",))
    study = sweep.open()
    sweep.run(study, evaluation_by(sweep, objective), guarded=True)
    (best,) = sweep.result(study).front
    assert best.values["value"] == min(design.macs for design in seen)
    assert len(seen) == states(study)["complete"] < 20


def test_fronts_ranks_and_hypervolume() -> None:
    points = np.array([[1.0, 4.0], [2.0, 2.0], [4.0, 1.0], [3.0, 3.0], [5.0, 5.0]])
    assert front_numbers(points).tolist() == [0, 0, 0, 1, 2]
    assert ranks(points).tolist()[3:] == [3, 4]
    assert hypervolume(points, (6.0, 6.0)) == 20.0
    assert hypervolume(points[:1], (6.0, 6.0)) == 10.0
    assert hypervolume(points[:2], (6.0, 6.0)) == 18.0
    assert hypervolume(np.array([[1.0, 1.0, 1.0]]), (2.0, 3.0, 4.0)) == 6.0
    assert hypervolume(points, (0.5, 0.5)) == 0.0


def test_promotion_counts_what_all_know() -> None:
    objectives = parse_objectives("latency,accuracy")
    fast, slow = {"latency": 1.0, "macs": 5.0}, {"latency": 2.0, "macs": 4.0}
    assert is_promoted(slow, [], objectives, 3)
    assert is_promoted(fast, [slow, slow], objectives, 3)
    assert not is_promoted(slow, [fast, fast], objectives, 3)
    assert is_promoted(slow | {"accuracy": 90.0}, [fast | {"accuracy": 10.0}], objectives, 2) != is_promoted(
        slow | {"accuracy": 5.0}, [fast | {"accuracy": 10.0}], objectives, 2
    )


@pytest.mark.parametrize(
    ("objectives", "fidelity", "message"),
    [
        ("latency,speed", None, "'speed' is none; give some of latency"),
        ("latency,latency", None, "names one twice"),
        ("latency,p90", "predicted", "does not know p90; give measured or more"),
        ("latency", "best", "--fidelity best is unknown"),
    ],
)
def test_objectives_that_cannot_be_known_are_refused(objectives: str, fidelity: str | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        fidelity_of(parse_objectives(objectives), fidelity)
    assert fidelity_of(parse_objectives("latency,accuracy"), None) is Fidelity.DISTILLED


@pytest.mark.parametrize("objectives", ["latency,macs", "latency,memory"])
def test_the_table_of_a_front_says_which_macs_it_counts(objectives: str) -> None:
    wanted = parse_objectives(objectives)
    caption = front_table([], {one.name: 1.0 for one in wanted}, wanted, []).caption
    assert caption == ("macs: of convolutions and dense layers" if "macs" in objectives else None)


def test_the_row_of_the_original_has_no_empty_cell() -> None:
    wanted = parse_objectives("latency")
    table = front_table([], {"latency": 1.0}, wanted, [], ("adb:a", "adb:b"))
    assert [list(column.cells) for column in table.columns] == [["original"], ["1"], ["0"], ["–"], ["–"]]


def test_energy_is_read_from_power_zones(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no energy counter can be read"):
        EnergyMeter(tmp_path)
    for name, energy in (("intel-rapl:0", 900), ("intel-rapl:0:0", 5), ("intel-rapl:1", 100)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "energy_uj").write_text(f"{energy}\n")
        (tmp_path / name / "max_energy_range_uj").write_text("1000\n")
    meter = EnergyMeter(tmp_path)
    before = meter.read()
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("100\n")  # it began again at zero
    (tmp_path / "intel-rapl:1" / "energy_uj").write_text("150\n")
    assert meter.joules_since(before) == pytest.approx(250e-6)


def test_a_design_is_planned_and_run(tmp_path: Path) -> None:
    sweep = replace(sweep_of(tmp_path), example_input=torch.randn(1, 1, 16, 16))  # as images of digits are
    predicted = sweep.space.design(random_parameters(sweep.space, 0))
    here = build_processors("cpu:0,cpu:1")
    found = DesignTimer(here, Estimates(), tune=False, seconds=0.05)(predicted)
    assert 0 < found["latency"] <= found["p90"] < 1e3
    assert found["memory"] * 2**20 > 4 * predicted.design.params
    quantizer = Quantizer(few_digits(8, 4))
    rounded = DesignTimer(here, Estimates(), tune=False, seconds=0.05, quantizer=quantizer)(
        replace(predicted, dtype="int8")
    )
    assert predicted.design.params < rounded["memory"] * 2**20 < found["memory"] * 2**20 / 2


def test_the_original_is_known_as_its_designs_are(tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, names=("latency", "p90"), directions=("minimize",) * 2, forms=(Form(Merge.ADD, 24),))
    timer: Any = CountedTimer({})
    known = evaluation(sweep, sweep.open(), "latency,p90", timer=timer)
    found = known.original()
    predicted = sweep.space.original
    assert (predicted.design.meeting_points, predicted.design.image_size, predicted.dtype) == (0, SIDE, "float32")
    assert predicted.design.macs == predicted.design.original_macs == 1e6 * found["macs"]
    assert found["latency"] == pytest.approx(1.1e3 * predicted.prediction.seconds)
    assert known.original() == found
    assert set(timer.counts.values()) == {1}


def test_the_type_is_a_parameter_of_designs(tmp_path: Path) -> None:
    forms = (Form(), Form(dtype="int8"))
    sweep = sweep_of(tmp_path, forms=forms)
    space = DesignSpace(lambda _: sweep.space.latencies(Form()), forms, sweep.names, sweep.space.limits)
    parameters = random_parameters(space, 0)
    one, other = (space.design({**parameters, "dtype": dtype}) for dtype in ("float32", "int8"))
    assert (one.dtype, other.dtype) == ("float32", "int8")
    assert space.parameters(other.design, forms[1])["dtype"] == "int8"
    assert predicted_values(other)["memory"] == pytest.approx(predicted_values(one)["memory"] / 4)
    with pytest.raises(UsageError, match="simulated in float32 only; leave int8 out of `dtypes`"):
        sweep.space.latencies(forms[1])


def test_types_compete_only_where_the_accuracy_is_known(tmp_path: Path) -> None:
    """An int8 design is faster than the same one in float32, which would never be trained otherwise."""
    sweep = sweep_of(tmp_path)
    study = sweep.open()

    def predicted(dtype: str, latency: float) -> optuna.Trial:
        study.enqueue_trial({"dtype": dtype})
        trial = study.ask({"dtype": optuna.distributions.CategoricalDistribution(["float32", "int8"])})
        trial.set_user_attr(f"{VALUES}predicted", {"latency": latency, "macs": 1.0})
        return trial

    predicted("int8", 1.0)
    predicted("int8", 2.0)
    trial = predicted("float32", 3.0)
    for objectives, count in (("latency,accuracy", 0), ("latency,macs", 2)):
        known = evaluation(sweep, study, objectives)
        assert len(known._others(trial, Fidelity.PREDICTED)) == count


NETWORK = """
import torch

import nnstretch as nns
from torch import nn

def block(read, written, stride=1):
    return nn.Sequential(nn.Conv2d(read, written, 3, stride, 1, bias=False), nn.BatchNorm2d(written), nn.ReLU())

def tiny():
    torch.manual_seed(0)
    body = [block(1, 16, 2), block(16, 16), block(16, 32, 2), block(32, 32)]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)).eval(), torch.randn(1, 1, 16, 20)
"""
LIMITS = ("--alpha", "10000", "--beta", "10000", "--min-macs", "0.01", "--max-segment", "1")


def test_the_command_writes_a_front_of_distilled_designs(folder: Path, cli: Cli) -> None:
    Path("net.py").write_text(NETWORK)
    common = ("sweep", "designs", "net.py:tiny", "-p", PROCESSORS, *LIMITS, "--json")
    wanted = ("--objectives", "latency,memory,accuracy", "--data", "digits", "--warm-start", "0", "-n", "3")
    status, out, error = cli(*common, *wanted, "-o", "front")
    assert status == 0, error
    answer: Mapping[str, Any] = MappingProxyType(json.loads(out))
    assert answer["fidelity"] == "distilled"
    assert answer["trials"]["complete"] >= 1
    assert answer["original"].keys() == {"latency", "memory", "accuracy"}
    for one in answer["front"]:
        design = load_design(Path(one["file"]))
        assert design.id == one["id"]
        assert set(one["values"]) == {"latency", "memory", "accuracy"}
        assert one["image_size"] == [16, 20]
        assert Path(one["file"]).with_suffix(".safetensors").is_file()
    status, _, error = cli(*common, *wanted)
    assert status == 2
    assert "go on with it (--resume), or give another name (--study)" in error
    status, out, error = cli(*common, *wanted, "--resume")
    assert status == 0, error
    assert json.loads(out)["front"][0]["values"] == answer["front"][0]["values"]
    Path("net.py-tiny.work").rename("moved")
    status, _, error = cli(*common, *wanted, "--resume", "-o", "again")
    assert (status, "are not in net.py-tiny.work; name the folder of the worker" in error) == (2, True), error
    status, out, error = cli(*common, *wanted, "--resume", "-o", "again", "--work", "moved")
    assert status == 0, error
    first = [Path(one["file"]).with_suffix(".safetensors").read_bytes() for one in answer["front"]]
    again = [Path(one["file"]).with_suffix(".safetensors").read_bytes() for one in json.loads(out)["front"]]
    assert again == first
    status, _, error = cli(*common[:-1], "--resume", "--objectives", "latency,macs")
    assert status == 2
    assert "is for objectives latency, memory, accuracy" in error


def test_a_sweep_whose_trials_are_all_its_warm_start_says_so(folder: Path, cli: Cli) -> None:
    Path("net.py").write_text(NETWORK)
    common = ("sweep", "designs", "net.py:tiny", "-p", PROCESSORS, *LIMITS, "--objectives", "latency,macs")
    status, _, error = cli(*common, "--warm-start", "2", "-n", "2")
    assert status == 0, error
    said = "all 2 trials are designs of the warm start, which `nnstretch stretch --pareto` finds, too, and none was sampled: "
    said += "the start has 2 designs, so --trials 4 samples 2; --warm-start 0 leaves it out"
    assert said in " ".join(error.split())
    status, _, error = cli(*common, "--warm-start", "2", "-n", "4", "--resume")
    assert status == 0, error
    assert "none was sampled" not in error


def test_packages_of_the_front_run_and_compute_what_their_designs_compute(folder: Path, cli: Cli) -> None:
    Path("net.py").write_text(NETWORK)
    common = ("net.py:tiny", "-p", "cpu:0,cpu:1", *LIMITS, "--no-tune", "--json")
    status, out, error = cli("sweep", "designs", *common, "--warm-start", "0", "-n", "2", "-o", "front")
    assert status == 0, error
    file = Path(json.loads(out)["front"][0]["file"])
    image = np.random.default_rng(0).random((1, 1, 16, 20), np.float32)
    with nns.compile(str(file.with_suffix(".nns"))) as session:
        (found,) = session.run(None, {session.get_inputs()[0].name: image})
    with nns.compile(str(file.with_suffix(".onnx")), processors="cpu:0,cpu:1", tune=False) as session:
        (wanted,) = session.run(None, {session.get_inputs()[0].name: image})
    np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_workers_train_on_their_devices_in_turn(folder: Path) -> None:
    Path("net.py").write_text(NETWORK)
    job = DesignJob(
        network=build_network("net.py:tiny", NetworkOptions()), processors=PROCESSORS, targets=(),
        objectives=parse_objectives("accuracy"), fidelity=Fidelity.DISTILLED, spec=SweepSpec(), data="digits",
        recipe="quick-retrain", devices=("cpu", "meta"), tune=False, work=folder, output=None, workers=4, worker=None,
    )  # fmt: skip
    sweep = sweep_of(folder)
    made = [replace(job, worker=number)._training(sweep, Turns()) for number in (None, 0, 1, 2, 3)]
    assert [one.device.type for one in made if one is not None] == ["cpu", "cpu", "meta", "cpu", "meta"]


def test_the_public_function_takes_an_objective_in_a_few_lines(folder: Path) -> None:
    def work_per_branch(design: Design) -> tuple[float, float]:
        if design.meeting_points > 3:
            raise ValueError("too many")
        return design.macs / 1e6, float(design.meeting_points)

    network, image = original(), torch.randn(1, 1, SIDE, SIDE)
    limits = nns.StretchOptions(limits=LOOSE)
    both: Any = {"directions": ("minimize", "maximize"), "warm_start": 0, "options": limits}
    result = nns.sweep(network, image, PROCESSORS, work_per_branch, trials=12, **both)
    assert {point.values["value 1"] for point in result.front} <= {0.0, 1.0, 2.0, 3.0}
    first, *points = str(result).splitlines()
    assert first == f"sweep: {len(result.front)} designs on the front of 12 trials".replace("1 designs", "1 design")
    assert points[0].startswith("  value 0 ")
    assert points[0].endswith(f": {result.front[0].design}")
    again = nns.sweep(network, image, PROCESSORS, work_per_branch, trials=14, resume=True, **both)
    assert len(again.study.trials) >= 14
    default = nns.sweep(network, image, PROCESSORS, trials=6, study="default", options=limits)
    assert default.front[0].values.keys() == {"latency", "macs"}
    with pytest.raises(UsageError, match=r"go on with it \(`resume=True`\)") as caught:
        nns.sweep(network, image, PROCESSORS, work_per_branch, trials=14, **both)
    assert "--" not in str(caught.value), "options are the command line's"
    with pytest.raises(UsageError, match="is for network"):
        nns.sweep(original()[:6], image, PROCESSORS, work_per_branch, trials=14, resume=True, **both)
    with pytest.raises(UsageError, match="give minimize or maximize"):
        nns.sweep(network, image, PROCESSORS, work_per_branch, directions=("best",))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="`sampler` best is unknown"):
        nns.sweep(network, image, PROCESSORS, sampler="best")


def test_the_public_function_chooses_among_forms_as_the_command_does(folder: Path) -> None:
    seen: set[tuple[ImageSize | None, str, str]] = set()

    def objective(design: Design, dtype: str) -> float:
        seen.add((design.image_size, design.merge.value, dtype))
        assert design.predicted_ms is not None
        return design.predicted_ms

    network, image = original(), torch.randn(1, 1, 16, 16)
    common: Any = {"warm_start": 0, "sampler": "random", "options": nns.StretchOptions(limits=LOOSE)}
    forms: Any = {"merges": ("concat", "add"), "image_sizes": (12, 16), "dtypes": ("float32", "int8")}
    (best,) = nns.sweep(network, image, "cpu:0,cpu:1", objective, trials=8, **forms, **common).front
    sizes, merges, dtypes = (set(values) for values in zip(*seen, strict=True))
    assert (sizes, merges, dtypes) == ({12, 16}, {"concat", "add"}, {"float32", "int8"})
    assert best.form.dtype in dtypes
    with pytest.raises(UsageError, match="simulated in float32 only; leave int8 out of `dtypes`"):
        nns.sweep(network, image, PROCESSORS, study="simulated", **forms, **common)
    for wrong, message in (
        ({"dtypes": ("int4",)}, "`dtypes` is int4; give float32, int8, or both"),
        ({"image_sizes": (4,)}, "`image_sizes` has 4"),
    ):
        with pytest.raises(UsageError, match=message):
            nns.sweep(network, image, PROCESSORS, **wrong, **common)


def test_what_a_sweep_refuses_leaves_no_study(folder: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optunahub", None)  # not installed
    _auto_sampler.cache_clear()
    Path("net.py").write_text(NETWORK)
    common = ("sweep", "designs", "net.py:tiny", "-p", PROCESSORS, *LIMITS)
    for wanted, message in (
        (("--objectives", "latency,p90"), "designs cannot run on sim:phone/cpu"),
        (("--objectives", "accuracy"), "name them with --data"),
        (("--objectives", "accuracy", "--data", "digits", "--device", "cpu", "--device", "nosuch"), "nosuch"),
        (("--sampler", "auto"), "pip install 'nnstretch[auto]'"),
        (("--data", "digits", "--image-sizes", "16,32"), "--image-sizes is for sweeps without --data"),
        (("--image-sizes", "large"), "--image-sizes large is no size"),
        (("--image-sizes", "4"), "--image-sizes 4 is too small"),
        (("--dtypes", "int4"), "--dtypes is int4"),
        (("--merges", "sum"), "concat"),
    ):
        status, _, error = cli(*common, *wanted)
        assert (status, message in error) == (2, True), error
    assert not Path("sweep.journal").exists()
    assert cli("sweep", "designs", "resnet18", "-p", PROCESSORS, "--objectives", "accuracy")[0] == 2
