"""The table of branched networks and their strongest alternatives: measured, kept, and true where rows are shared."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from nnstretch.branching.design.blueprint import BranchChoice, SegmentChoice, blueprint
from nnstretch.branching.design.design import save_design
from nnstretch.branching.design.from_choices import make_design
from nnstretch.devices.base.spec import usable_cores
from nnstretch.frontends.resolve import load_module
from scripts.studies import alternatives

CORES = usable_cores()
SCRIPT = Path(alternatives.__file__)
NETWORK = """\
import torch
from torch import nn

def small():
    torch.manual_seed(0)
    widths = [3, *[16] * 4]
    layers = [nn.Sequential(nn.Conv2d(a, b, 3, 1, 1), nn.ReLU()) for a, b in zip(widths, widths[1:])]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)), torch.zeros(1, 3, 16, 16)
"""


QUICK = ("--quick", "--rounds", "1")


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *QUICK, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=250, cwd=folder)


def rows(text: str) -> list[list[str]]:
    """The cells of a Markdown table."""
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in text.splitlines() if line[:1] == "|"]


def write_design(folder: Path) -> None:
    """net.py with a network, and design.json: two half-width branches per stage."""
    (folder / "net.py").write_text(NETWORK)
    plan = blueprint(*load_module(f"{folder / 'net.py'}:small"))
    choices = [
        SegmentChoice(stage, tuple(BranchChoice(processor, tuple(stage.blocks), 0.5) for processor in (0, 1)))
        for stage in plan.traced.stages
    ]
    save_design(make_design(plan, choices), folder / "design.json")


@pytest.mark.skipif(len(CORES) < 2, reason="two processors need two cores")
def test_networks_are_measured_once_and_a_failure_is_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_design(tmp_path)
    first, missing = (f"net.py:{factory}=design.json" for factory in ("small", "missing"))
    command = ("-p", f"cpu:{CORES[0]},cpu:{CORES[1]}", "--work", "kept", "-o", "table.md", first)
    done = run(tmp_path, *command)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "table.md").read_text() == done.stdout
    titles, _, measured = rows(done.stdout)
    assert titles == list(alternatives.COLUMNS)
    assert len(measured) == len(titles)
    figures = dict(zip(titles[1:-1], measured[1:-1], strict=True))
    assert [figures.pop(title) for title in ("predicted", "search s")] == ["–", "–"]  # the design was given
    assert all(float(cell.split()[0].rstrip("×%")) > 0 for cell in figures.values())
    assert "nnstretch bench net.py:small --design design.json" in done.stderr

    monkeypatch.chdir(tmp_path)
    assert alternatives.main([*QUICK, *command, missing]) == alternatives.FAILED
    again = capsys.readouterr()
    assert "bench net.py:small" not in again.err  # its result was kept
    assert rows(again.out)[2] == measured
    failed = rows(again.out)[3]
    assert (failed[0], failed[-1]) == (missing, "failed")
    assert alternatives.main([*QUICK, *command, "--rounds", "2"]) == 2
    assert "other options; give another folder with --work" in capsys.readouterr().err


def test_a_network_without_a_design_is_searched_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[Sequence[str]] = []

    def kept(file: Path, command: Sequence[str], announce: Callable[[str], None], _: object) -> dict[str, Any]:
        commands.append(command)
        return search() if "stretch" in command else answer()

    monkeypatch.setattr(alternatives, "kept_answer", kept)
    networks = ("resnet18", "net.py:small")
    assert alternatives.main([*networks, "-p", "cpu:0,cpu:1", "--image-size", "64", "--work", str(tmp_path)]) == 0
    assert [command[:2] for command in commands] == [[how, net] for net in networks for how in ("stretch", "bench")]
    assert [("--image-size" in command) for command in commands] == [True, True, False, False]
    assert all(command[command.index("--design") + 1] == "best.json" for command in commands[1::2])
    assert all("0.95" in command for command in commands[::2])


def test_every_search_has_an_empty_store_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stores: list[Path] = []

    def kept(file: Path, command: Sequence[str], announce: object, environment: Mapping[str, str]) -> dict[str, Any]:
        stores.append(Path(environment["NNSTRETCH_CACHE_DIR"]))
        return search() if "stretch" in command else answer()

    monkeypatch.setattr(alternatives, "kept_answer", kept)
    table = tmp_path / "table.md"
    command = ["resnet18", "-p", "cpu:0,cpu:1", "--searches", "2", "--work", str(tmp_path / "work"), "-o", str(table)]
    assert alternatives.main(command) == 0
    assert stores[0] == stores[1] != stores[2] == stores[3]
    for store in stores:
        assert {path.name for path in store.iterdir()} == {"engine"}
        assert list((store / "engine").glob("*.so"))
    assert [row[0] for row in rows(table.read_text())[2:]] == ["resnet18, search 1", "resnet18, search 2"]


def search() -> dict[str, Any]:
    """An answer of `nnstretch stretch`."""
    designs = [{"file": "best.json", "predicted_ms": 2.4}, {"file": "second.json", "predicted_ms": 2.6}]
    return {"designs": designs, "search_s": 61.2}


def answer(**changes: Any) -> dict[str, Any]:
    """An answer of `nnstretch bench --design`."""
    rows = [{"network": network, "how": "split layer by layer"} for network in alternatives.UNBRANCHED]
    figures = {f"{network}_{way}_ms": 3.0 for network in alternatives.UNBRANCHED for way in ("all_cores", "split")}
    return {
        "original_ms": {"cpu:0": 5.0, "opencl:0@1": 4.0},
        "control_ms": {"cpu:0": 5.0, "opencl:0@1": 6.0},
        **figures,
        "onnxruntime_ms": 3.5,
        "control_onnxruntime_ms": None,
        "branched_ms": 2.5,
        "speedup_best_alternative": 1.2,
        "speedup_equal_macs": 2.0,
        "split_share": 0.91,
        "best_alternative": {"network": "control", "how": "split layer by layer", "processors": "cpu:0,opencl:0@1"},
        "intervals": {"speedup_best_alternative": [1.1, 1.3]},
        "rows": rows,
        **changes,
    }


def row(**changes: Any) -> dict[str, str]:
    return dict(
        zip(
            alternatives.COLUMNS,
            alternatives.cells("net", alternatives.Comparison(search(), answer(**changes))),
            strict=True,
        )
    )


def test_a_row_has_the_gain_its_interval_and_the_best_alternative() -> None:
    found = row()
    assert found["× best alternative (95 % interval)"] == "1.20× (1.10–1.30)"
    assert (found["predicted"], found["search s"]) == ("2.400", "61")
    assert (found["at equal MACs"], found["of the perfect split"]) == ("2.00×", "91%")
    assert found["best alternative"] == "the control, split layer by layer, on cpu:0,opencl:0@1"
    assert found["original: fastest processor"] == "4.000 (opencl:0@1)"
    assert found["control: fastest processor"] == "5.000 (cpu:0)"
    assert found["original: split"] == "3.000"
    assert found["control: ONNX Runtime"] == "–"


def test_a_split_that_keeps_one_processor_is_marked() -> None:
    rows = [
        {"network": "original", "how": "placed on cpu:0 alone"},
        {"network": "control", "how": "split layer by layer"},
    ]
    found = row(rows=rows)
    assert found["original: split"] == "3.000 (placed on cpu:0 alone)"
    assert found["control: split"] == "3.000"


def test_a_processor_of_all_cores_fills_both_columns() -> None:
    found = row(original_ms={"cpu:0,1": 3.0, "opencl:0": 9.0})
    assert found["original: fastest processor"] == "3.000 (cpu:0,1)"
    assert found["original: all cores"] == "3.000"
