"""Sweeps on targets: designs measured there, devices that are lost, several devices, and what is refused."""

from __future__ import annotations

import csv
import itertools
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
import pytest

import nnstretch as nns
from nnstretch.cli.main import main
from nnstretch.cli.sweeping import target_runs, workers
from nnstretch.devices.base.spec import usable_cores
from nnstretch.devices.targets import schemes
from nnstretch.devices.targets.probe import Probe
from nnstretch.devices.targets.results import BenchOptions
from nnstretch.errors import UsageError
from nnstretch.frontends.resolve import load_module
from nnstretch.sweeps.measures import target_timer
from nnstretch.sweeps.measures.target_timer import NAME
from nnstretch.sweeps.study import ERROR, RUNG, TARGET, VALUES
from nnstretch.sweeps.workers.leases import AGAIN, GIVEN_UP, is_given_up
from nnstretch.sweeps.workers.storage import open_storage
from tests.kits.boards.target_board import Board, shorten_measurements
from tests.kits.command_line import Cli, answer_of, refuses
from tests.kits.networks.small_network import SMALL_NETWORK

pytestmark = pytest.mark.skipif(len(usable_cores()) < 2, reason="needs two cores")

TWO = ",".join(f"cpu:{core}" for core in usable_cores()[:2])
LIMITS = ("--alpha", "1e6", "--beta", "1e6", "--min-macs", "0.01", "--max-segment", "1")
FEW_LAYERS = ("--min-depth", "1", "--min-width", "1")  # designs share theirs, so that few are measured
QUICK = ("--no-tune", "--measure-all", "--warm-start", "0", "--sampler", "random", "--json")
DESIGNS = ("sweep", "designs", "net.py:small", *LIMITS, *FEW_LAYERS, *QUICK, "--objectives", "latency,p90")
LATENCY = ("sweep", "latency", "net.py:small", "--no-tune", "--seconds", "0.02")


@dataclass
class Boards:
    """Boards that are there as `ssh:NAME`."""

    folder: Path
    by_name: dict[str, Board]

    def add(self, name: str, cpu: str = "phone", **factors: float) -> Board:
        """A board with a CPU; its designs take as many milliseconds as its factor `design` says."""
        board = Board(self.folder / name, f"{self.folder} {cpu}")
        board.name = f"ssh:{name}"
        board.factors = factors
        self.by_name[name] = board
        return board


def shorten_all(patch: pytest.MonkeyPatch) -> None:
    shorten_measurements(patch)
    patch.setattr(target_timer, "RUNS", BenchOptions(runs=2, warmup=0.0))
    patch.setattr(target_runs, "_WARMUP", 0.0)


@pytest.fixture
def boards(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Boards:
    """A folder with a network, and boards."""
    shorten_all(monkeypatch)
    found = Boards(folder / "boards", {})
    monkeypatch.setitem(schemes.TRANSPORTS, "ssh", lambda name: found.by_name[name])
    Path("net.py").write_text(SMALL_NETWORK)
    return found


@dataclass(frozen=True)
class Ended:
    """A worker that has ended."""

    status: int

    def wait(self) -> int:
        return self.status


@pytest.fixture
def in_turn(monkeypatch: pytest.MonkeyPatch) -> Callable[[Sequence[str]], None]:
    """Lets the workers of a command run in this process, one after the other."""

    def given(arguments: Sequence[str]) -> None:
        def start(number: int, environment: object) -> Ended:
            more = [argument for argument in arguments if argument != "--json"]
            return Ended(main([*more, "--resume", "--worker", str(number)]))

        monkeypatch.setattr(workers, "start_worker", start)

    return given


def trials() -> list[optuna.trial.FrozenTrial]:
    return optuna.load_study(storage=open_storage("sweep.journal"), study_name="net.py-small").trials


def measured() -> list[optuna.trial.FrozenTrial]:
    return [trial for trial in trials() if trial.user_attrs.get(RUNG) == "measured" and not is_given_up(trial)]


def test_designs_are_predicted_and_measured_on_the_target(boards: Boards, cli: Cli) -> None:
    board = boards.add("a", design=7.0)
    answer = answer_of(cli(*DESIGNS, "--target", "ssh:a", "-p", TWO, "-n", "3", "-o", "front"))
    assert answer["targets"] == ["ssh:a"]
    assert answer["processors"] == TWO.split(",")
    assert answer["fidelity"] == "measured"
    front = answer["front"]
    assert all(point["values"]["latency"] == 7.0 for point in front)
    assert all(point["target"] == "ssh:a" and Path(point["file"]).is_file() for point in front)
    assert not list(Path("front").glob("*.nns"))  # packages are for this machine
    found = measured()
    assert 1 <= len(found) == sum(names == [NAME] for names in board.measured)
    for trial in found:
        assert trial.user_attrs[TARGET] == "ssh:a"
        assert trial.user_attrs[f"{VALUES}predicted"]["latency"] != 7.0
    assert all(TARGET not in trial.user_attrs for trial in trials() if trial not in found)
    assert board.left == []


def test_the_public_function_predicts_from_measurements_of_a_target(boards: Boards) -> None:
    module, image = load_module("net.py:small")
    limits: Any = {"alpha": 1e6, "beta": 1e6, "min_macs": 0.01, "max_segment": 1.0, "min_depth": 1.0, "min_width": 1.0}
    given: Any = {"trials": 1, "warm_start": 0, "options": nns.StretchOptions(**limits, learned=False)}
    board = boards.add("a")
    (point,) = nns.sweep(module, image, TWO, study="a", target="ssh:a", **given).front
    assert board.left == []
    slower = boards.add("b", "slower phone", **dict.fromkeys(itertools.chain(*board.measured), 10.0))
    (same,) = nns.sweep(module, image, TWO, study="b", target="ssh:b", **given).front
    assert same.design.id == point.design.id
    assert 5 * point.values["latency"] < same.values["latency"] < 20 * point.values["latency"]
    assert slower.measured
    with pytest.raises(UsageError, match="nowhere"):
        nns.sweep(module, image, TWO, target="nowhere:b")


def test_a_lost_target_ends_the_sweep_in_one_line_and_a_resume_goes_on(boards: Boards, cli: Cli) -> None:
    board = boards.add("a")
    board.dies_after = NAME
    command = (*DESIGNS, "--target", "ssh:a", "-p", TWO, "-n", "3")
    refuses(cli(*command), "the connection was lost", "the study keeps its trials", "--resume")
    lost = [trial for trial in trials() if GIVEN_UP in trial.user_attrs]
    again = [trial for trial in trials() if AGAIN in trial.user_attrs]
    assert [trial.user_attrs[AGAIN] for trial in again] == [trial.number for trial in lost]
    assert len(lost) == 1
    assert board.left == []
    board.dies_after = ""
    done = len(measured())
    answer = answer_of(cli(*command, "--resume"))
    assert answer["trials"] | {"complete": 0, "pruned": 0} == dict.fromkeys(answer["trials"], 0)
    assert answer["trials"]["complete"] + answer["trials"]["pruned"] == 3
    assert trials()[again[0].number].params == lost[0].params
    assert len(measured()) > done


def test_another_device_of_the_kind_takes_over(
    boards: Boards, cli: Cli, in_turn: Callable[[Sequence[str]], None]
) -> None:
    one, other = boards.add("a", design=2.0), boards.add("b", design=3.0)
    one.dies_after = NAME
    command = (*DESIGNS, "--target", "ssh:a", "--target", "ssh:b", "-p", TWO, "-n", "5")
    in_turn(command)
    status, out, error = cli(*command)
    assert status == 0, error
    lines = error.splitlines()
    assert sum("the connection was lost" in line for line in lines) == 1
    assert "the worker of ssh:a failed with status 2; the others took over its trial" in lines
    answer = json.loads(out)
    assert answer["trials"]["complete"] + answer["trials"]["pruned"] == 5
    for trial in measured():
        wanted = {"ssh:a": 2.0, "ssh:b": 3.0}[trial.user_attrs[TARGET]]
        assert trial.user_attrs[f"{VALUES}measured"]["latency"] == wanted
    assert {trial.user_attrs[TARGET] for trial in measured()} == {"ssh:a", "ssh:b"}
    assert {point["target"] for point in answer["front"]} <= {"ssh:a", "ssh:b"}
    assert one.left == other.left == []


def test_a_device_without_space_ends_the_sweep_and_its_trial_is_kept(boards: Boards, cli: Cli) -> None:
    board = boards.add("a")

    def fill() -> None:
        board.is_full = True

    board.events = {3: fill}
    command = (*DESIGNS, "--target", "ssh:a", "-p", TWO, "-n", "1")
    refuses(cli(*command), "No space left on device; free some space there", "--resume")
    board.is_full, board.events = False, {}
    answer = answer_of(cli(*command, "--resume"))
    assert answer["trials"]["fail"] == 0


def test_a_design_that_crashes_the_runner_fails_alone(boards: Boards, cli: Cli) -> None:
    board = boards.add("a")
    board.crashing = {NAME}
    refuses(cli(*DESIGNS, "--target", "ssh:a", "-p", TWO, "-n", "1"), "trials in a row failed: design", "does not run")
    (first,) = trials()
    assert "Segmentation fault" in first.user_attrs[ERROR]
    assert board.left == []


def test_energy_is_that_of_the_target(boards: Boards, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    board = boards.add("a")
    command = (*DESIGNS[:-1], "latency,energy", "--target", "ssh:a", "-p", TWO, "-n", "1")
    for shown in (False, True):
        monkeypatch.setattr(Probe, "shows_energy", shown)
        refuses(cli(*command), "unplug its charger" if shown else "ssh:a has no counter of energy", "--objectives")
        assert Path("sweep.journal").exists() == shown
    board.joules = 0.002
    (point,) = answer_of(cli(*command, "--resume"))["front"]
    assert point["values"]["energy"] == 2.0


def test_a_study_belongs_to_a_kind_of_device(boards: Boards, cli: Cli) -> None:
    boards.add("a")
    boards.add("b")
    boards.add("tablet", cpu="tablet")
    command = (*DESIGNS, "-p", TWO, "-n", "1")
    both = ("--target", "ssh:a", "--target", "ssh:tablet")
    refuses(cli(*command, *both), "ssh:a has", "ssh:tablet has", "a study of its own (--study)")
    assert not Path("sweep.journal").exists()
    answer_of(cli(*command, "--target", "ssh:a"))
    refuses(cli(*command, "--resume", "--target", "ssh:tablet"), "is for devices", "phone", "not for", "tablet")
    refuses(cli(*command, "--resume"), "is for devices", "not for none")
    answer_of(cli(*command, "--resume", "--target", "ssh:b"))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("--target", "phone:1"), ("there is no target 'phone:1'",)),
        (("--target", "ssh:a", "--target", "ssh:a"), ("--target ssh:a is given twice",)),
        (("--target", "ssh:a", "-p", "sim:phone/cpu,sim:phone/gpu"), ("simulated processors are on no target",)),
        (("--target", "ssh:a", "--workers", "2"), ("--workers 2 does not go with --target",)),
        (("--target", "ssh:a", "-p", "cpu:0"), ("names 1 processor",)),
        (
            ("--target", "ssh:a", "-p", "cpu:0,litert"),
            ("ssh:a: litert", "neither a group of CPU cores nor an OpenCL device"),
        ),
        (("--target", "ssh:a", "-p", "cpu:0,opencl:9"), ("ssh:a has no opencl:9",)),
        (("--target", "ssh:a", "-p", "cpu:0,cpu:4095"), ("ssh:a", "4095")),
        (("--target", "ssh:old", "-p", TWO), ("ssh:old is mips; the engine has no kernels",)),
    ],
)
def test_targets_that_cannot_be_swept_leave_no_study(
    boards: Boards, cli: Cli, monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...], words: tuple[str, ...]
) -> None:
    boards.add("a")
    monkeypatch.setattr(boards.add("old"), "machine", lambda: "mips")
    refuses(cli(*DESIGNS, *given, "-n", "1"), *words)
    assert not Path("sweep.journal").exists()


def test_latencies_of_targets_are_rows_and_a_lost_one_has_its_reason(boards: Boards, cli: Cli) -> None:
    boards.add("a", net=4.0)
    boards.add("b", cpu="tablet", net=5.0).dies_after = "net"
    command = (*LATENCY, "--target", "ssh:a", "--target", "ssh:b", "--batches", "1,2", "--image-sizes", "16")
    status, out, error = cli(*command, "--thread-counts", "1,2", "-o", "a.csv", "-o", "a.html", "--json")
    assert status == 0, error
    rows = json.loads(out)["results"]
    wanted = [(target, threads, batch) for target in ("ssh:a", "ssh:b") for threads in (1, 2) for batch in (1, 2)]
    assert [(row["target"], row["threads"], row["batch"]) for row in rows] == wanted
    assert [row["p50_ms"] for row in rows[:5]] == [4.0] * 4 + [5.0]
    assert [row["images_per_s"] for row in rows[:2]] == [250.0, 500.0]
    assert all(row["p50_ms"] is None and "the connection was lost" in row["error"] for row in rows[5:])
    with Path("a.csv").open() as file:
        assert [row["target"] for row in csv.DictReader(file)] == [row["target"] for row in rows]
    page = Path("a.html").read_text()
    assert "ssh:a" in page
    assert "ssh:b" in page
    assert all(board.left == [] for board in boards.by_name.values())
    refuses(cli(*LATENCY, "--target", "ssh:a", "-p", "sim:phone/cpu"), "simulated processors are on no target")
    refuses(cli(*LATENCY, "--target", "ssh:a", "--target", "phone:1"), "there is no target 'phone:1'")


def test_models_are_tuned_on_the_target_before_they_are_timed(boards: Boards, cli: Cli) -> None:
    board = boards.add("a", net=4.0)
    answer_of(
        cli(*(word for word in LATENCY if word != "--no-tune"), "--target", "ssh:a", "--thread-counts", "1", "--json")
    )
    assert max(len(set(names)) for names in board.measured) > 1  # routines raced there
    assert board.measured[-1] == ["net"]


@pytest.mark.slow  # where the runner for ARM is not built yet
def test_a_sweep_on_an_emulated_device(folder: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("qemu-aarch64-static") is None and shutil.which("qemu-aarch64") is None:
        pytest.skip("qemu-aarch64-static is not there (Debian, Ubuntu: apt-get install qemu-user-static)")
    shorten_all(monkeypatch)
    Path("net.py").write_text(SMALL_NETWORK)
    target = "qemu:aarch64:cortex-a53"
    answer = answer_of(cli(*DESIGNS, "--target", target, "-p", TWO, "-n", "1"))
    assert all(0 < point["values"]["latency"] <= point["values"]["p90"] for point in answer["front"])
    assert {point["target"] for point in answer["front"]} == {target}
    rows: Any = answer_of(cli(*LATENCY, "--target", target, "--json"))["results"]
    assert all(0 < row["p50_ms"] <= row["p90_ms"] and row["runs"] > 0 for row in rows)
