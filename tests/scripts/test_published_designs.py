"""The table of our designs beside published ones: its rows, what they are made of, and what is kept."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from nnstretch import scheduler, zoo
from nnstretch.branching.pycls.files import parse_published
from nnstretch.branching.stretch import published
from nnstretch.branching.transform.network import export_branched
from nnstretch.compiler.compile import simulate_model
from nnstretch.compiler.processors import build_processors
from nnstretch.devices.simulated.profile import load_profile
from nnstretch.frontends.resolve import load_module
from nnstretch.passes import optimize
from nnstretch.scheduler.simulation.fit import Measurement, simulated_seconds
from scripts.studies import published_designs
from scripts.studies.published_designs import (
    COLUMNS,
    Row,
    Study,
    efficientnet_b5_without_gates,
    kept_row,
    table,
)
from tests.kits.networks.published_files import MODELS, setting
from tests.kits.networks.published_latencies import PROCESSORS, SETTINGS, optimized
from tests.kits.networks.small_residual import BRANCHED, RESIDUAL

CG, CD = "sim:phone/cpu,sim:phone/gpu", "sim:phone/cpu,sim:phone/dsp"
ROW = Row(
    "net", "cpu, gpu", "net.yaml", original_ms=10.0, original_split_ms=9.0, control_ms=9.5, control_split_ms=8.0,
    perfect_split_ms=5.0, published_ms=8.4, published_macs=0.9, ours_ms=7.0, ours_macs=0.92,
)  # fmt: skip


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(Path(published_designs.__file__)), "--work", "kept", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=250, cwd=folder)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "net.py").write_text(RESIDUAL)
    (tmp_path / "cg.yaml").write_text(BRANCHED.text())
    (tmp_path / "cd.yaml").write_text(replace(BRANCHED, devices=("cpu", "dsp")).text())
    return tmp_path


def test_rows_are_published_and_own_designs_of_equal_macs(
    files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    three = f"{CG},sim:phone/dsp"
    command = ("net.py:residual=cg.yaml,cd.yaml", *(f"-p{names}" for names in (CG, CD, three)), "-o", "table.md")
    done = run(files, *command)
    assert done.returncode == 0, done.stderr
    assert (files / "table.md").read_text() == done.stdout
    titles, _, *rows = [
        [c.strip() for c in line.strip("| ").split(" | ")] for line in done.stdout.splitlines() if line[:1] == "|"
    ]
    assert titles == list(COLUMNS)
    assert [row[:2] for row in rows] == [["residual", part] for part in ("cpu, gpu", "cpu, dsp", "cpu, gpu, dsp")]
    module, image = load_module(f"{files / 'net.py'}:residual")
    result = published(module, image, parse_published(BRANCHED.text()))
    _, timeline = simulate_model(export_branched(result.module, image), build_processors(CG))
    place = COLUMNS.index("published")
    assert float(rows[0][place]) == pytest.approx(timeline.total * 1e-6, abs=0.006)
    assert float(rows[2][place]) == min(float(row[place]) for row in rows[:2])  # the best file for some of the three
    for row in rows:
        share, least = (float(row[place + step].rstrip("%")) for step in (3, 1))
        assert share >= least - 1  # both are rounded
    kept = {path.name for path in (files / "kept").iterdir()}
    assert len(kept) == 3
    monkeypatch.chdir(files)
    assert published_designs.main([*command, "--work", "kept"]) == 0
    assert capsys.readouterr().out == done.stdout
    assert {path.name for path in (files / "kept").iterdir()} == kept


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("net.py:residual", "-p", CG), "names no published design"),
        (("net.py:residual=gone.yaml", "-p", CG), "cannot read gone.yaml"),
        (("net.py:residual=cg.yaml", "-p", "cpu:0"), "name processors of a profile"),
        (("net.py:residual=cg.yaml", "-p", "sim:fone/cpu,sim:fone/gpu"), "no shipped profile 'fone'"),
    ],
)
def test_what_is_no_comparison_is_refused(
    arguments: tuple[str, ...],
    words: str,
    files: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(files)
    assert published_designs.main([*arguments, "--work", "kept"]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert words in line


def test_rows_are_kept_for_the_code_that_made_them(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[str] = []

    def row(_study: Study, processors: str) -> Row:
        rows.append(processors)
        return replace(ROW, ours_ms=float(len(rows)))

    monkeypatch.setattr(Study, "row", row)
    study = Study("net.py:residual", [files / "cg.yaml"], None)
    ours = [kept_row(study, CG, files / "kept") for _ in range(2)]
    assert ours == 2 * [replace(ROW, ours_ms=1.0)]
    package = files / "package"
    package.mkdir()
    monkeypatch.setattr(scheduler, "__path__", [str(package)])
    for number, text in enumerate(("one", "other"), 2):
        (package / "plan.py").write_text(text)
        published_designs.code_digest.cache_clear()
        assert kept_row(study, CG, files / "kept") == replace(ROW, ours_ms=float(number))
    published_designs.code_digest.cache_clear()


def test_a_row_says_where_our_design_is_not_ahead() -> None:
    behind = replace(ROW, ours_ms=8.75)
    cells = dict(zip(COLUMNS[7:], ROW.cells[7:], strict=True))
    assert (cells["ours"], cells["× published"]) == ("7.00", "1.20×")
    assert (cells["× best alternative"], cells["of the perfect split"]) == ("1.14×", "71%")
    assert dict(zip(COLUMNS[7:], behind.cells[7:], strict=True))["× published"] == "0.96×"
    assert "faster than the published one in 1 of 2 rows" in table([ROW, behind], ["phone"])


def test_all_published_branchings_can_be_written_as_files() -> None:
    for name, processors in SETTINGS:
        found = parse_published(setting(name, processors).text())
        depths, widths = SETTINGS[name, processors]
        assert [list(stage.depths) for stage in found.stages] == list(depths)
        assert [list(stage.widths) for stage in found.stages] == list(widths)
        assert found.devices == tuple(PROCESSORS[letter] for letter in processors)
    assert {name for name, _ in SETTINGS} == MODELS.keys()


@pytest.mark.slow
def test_a_published_file_is_scored_as_the_graph_that_the_profile_was_fitted_to() -> None:
    """That graph is built from the setting alone, without torch and without a search."""
    module, image = zoo.build("resnet34", pretrained_seed=None), torch.zeros(1, 3, 224, 224)
    result = published(module, image, parse_published(setting("R-34", "CD").text()))
    graph, phone = export_branched(result.module, image), load_profile("phone")
    found, expected = (
        simulated_seconds(phone, Measurement(model, ("cpu", "dsp"), 1.0))
        for model in (optimize(graph), optimized("R-34", "CD"))
    )
    assert found == pytest.approx(expected, rel=1e-3)
    _, timeline = simulate_model(graph, build_processors(CD))  # the scheduler splits the stem, too
    assert 0.9 * expected < timeline.total * 1e-9 < expected


@pytest.mark.slow
def test_the_network_without_gates_computes_no_gates() -> None:
    network, image = efficientnet_b5_without_gates()
    kinds = {type(module).__name__ for module in network.modules()}
    assert {"SqueezeExcite", "SiLU", "Sigmoid"} & kinds == set()
    assert network(image[..., :64, :64]).shape == torch.Size((1, 1000))
