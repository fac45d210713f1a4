"""The study of detection and segmentation: equal budgets, nothing trained twice, measures of the task, impossible studies."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from nnstretch.bench.accuracy import dense_networks
from nnstretch.bench.accuracy.dense_networks import DENSE_NETWORKS, build_dense_network
from nnstretch.bench.accuracy.designs import searched_design
from nnstretch.bench.accuracy.results import (
    ALONE,
    BRANCHED,
    CONTROL,
    DETECTION,
    FURTHER,
    ORIGINAL,
    TASKS,
    Results,
    tables,
)
from nnstretch.branching.design.accounting import count_macs
from nnstretch.cli.console import silent_reporter
from nnstretch.cli.job import accuracy_study
from nnstretch.cli.job.dense_study import DenseOptions, DenseStudy
from nnstretch.cli.job.study_options import COMMON
from nnstretch.support.progress import silent
from nnstretch.training.tasks.yolo import YoloHead

TINY: dict[str, Any] = {
    "seeds": 1,
    "epochs": 1,
    "retrain_epochs": 2,
    "epoch_images": 32,
    "held_out": 8,
    "batch_size": 16,
}
ROWS = [ORIGINAL, FURTHER, CONTROL, BRANCHED, ALONE]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).resolve().parents[4] / "scripts" / "studies"))
        return importlib.import_module("dense_tasks_study")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Results]:
    """The folder of a finished study of narrow networks, and its results."""
    pytest.importorskip("pycocotools")
    folder = tmp_path_factory.mktemp("dense")
    with pytest.MonkeyPatch.context() as patch:
        narrow(patch)
        return folder, run(folder)


def narrow(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(dense_networks, "_WIDTHS", (8, 8, 16, 16))
    patch.setattr(dense_networks, "_NECK", 16)
    patch.setattr(accuracy_study, "COMMON", {**COMMON, "precise_bn_samples": 0})


def run(folder: Path, **changes: Any) -> Results:
    return DenseStudy(DenseOptions(folder, **{**TINY, **changes}), silent_reporter()).run()


def test_both_tasks_have_all_rows_at_equal_budgets_and_the_tasks_measures(finished: tuple[Path, Results]) -> None:
    folder, results = finished
    assert {task: list(networks) for task, networks in results.items()} == {
        task: [name] for task, name in TASKS.items()
    }
    for task, keys in (("detection", {"map", "map50", "map75"}), ("segmentation", {"miou", "pixel_accuracy"})):
        rows = results[task][TASKS[task]]
        assert list(rows) == ROWS
        assert [found[0]["epochs"] for found in rows.values()] == [1, 2, 2, 2, 2]
        macs = {name: found[0]["macs"] for name, found in rows.items()}
        assert macs[FURTHER] == macs[ALONE] == macs[ORIGINAL] > macs[BRANCHED]
        assert macs[CONTROL] == pytest.approx(macs[BRANCHED], rel=0.01)
        for (found,) in rows.values():
            assert {key.removeprefix("test_") for key in found if key.startswith("test_")} == keys
            assert all(0 <= found[f"{split}_{key}"] <= 100 for split in ("validation", "test") for key in keys)
        stages = [json.loads(file.read_text()) for file in (folder / TASKS[task]).glob("seed-0/accuracy-*/stage.json")]
        recipes = [stage["settings"]["recipe"] for stage in stages]
        assert [recipe["epochs"] + recipe["blockwise_epochs"] for recipe in recipes] == [2] * 4
        assert sorted(recipe["kd_feature_weight"] for recipe in recipes) == [0.0, 1.0, 1.0, 1.0]
    assert (folder / "tables.md").read_text() == tables(results)
    assert [path.name for path in (folder / "images").glob("shapes-train-*")] != []
    assert len(list((folder / "images").glob("shapes-*"))) == 3, "both tasks read the same images"


def test_nothing_is_trained_twice_and_a_report_trains_nothing(
    finished: tuple[Path, Results],
    monkeypatch: pytest.MonkeyPatch,
    script: ModuleType,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, results = finished
    narrow(monkeypatch)
    monkeypatch.setattr("nnstretch.training.loop.trainer.train", None)
    monkeypatch.setattr("nnstretch.training.evaluation.accuracy.scored", None)
    assert run(folder) == results
    assert script.main(["-o", str(folder), "--seeds", "1", "--tasks", DETECTION, "--report", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["results"] == {DETECTION: results[DETECTION]}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--tasks", "classification"), "--tasks classification: there are detection, segmentation"),
        (("--tasks", ""), "--tasks : there are detection, segmentation"),
        (("--seeds", "0"), "--seeds 0: 1 or more"),
        (("--epochs", "-1"), "--epochs -1: 0 or more"),
        (("--retrain-epochs", "0"), "--retrain-epochs 0: 1 or more"),
        (("--blockwise-epochs", "8"), "--blockwise-epochs 8: fewer than"),
        (("--epoch-images", "31"), "--epoch-images 31: 32 or more"),
        (("--held-out", "0"), "--held-out 0: 1 or more"),
        (("--image-size", "40"), "--image-size 40: a multiple of 16"),
        (("--image-size", "0"), "--image-size 0: a multiple of 16"),
        (("--batch-size", "1"), "batch_size"),
        (("--lr", "nan"), "lr"),
        (("--teaching", "1.5"), "--teaching 1.5: 0 to 1"),
        (("--teaching", "nan"), "--teaching nan: 0 to 1"),
        (("--teaching", "0"), "--teaching 0: a block-wise start needs a teacher"),
        (("--device", "abacus"), "abacus"),
    ],
)
def test_impossible_studies_are_refused_in_one_line(
    tmp_path: Path, script: ModuleType, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    assert script.main(["-o", str(tmp_path), *arguments]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if not line.endswith("…")]
    assert said in line


@pytest.mark.parametrize(("name", "classes"), [("yolo", 6), ("deeplab", 7)])
def test_networks_are_small_drawn_by_seed_and_of_the_tasks_form(name: str, classes: int) -> None:
    network, image = build_dense_network(name, classes, 0).eval(), torch.randn(2, 3, 64, 64)
    assert count_macs(network, image[:1]) < 40e6
    outputs = [
        found if isinstance(found, tuple) else (found,)
        for found in (build_dense_network(name, classes, seed).eval()(image) for seed in (0, 0, 1))
    ]
    assert torch.equal(outputs[0][0], outputs[1][0])
    assert not torch.equal(outputs[0][0], outputs[2][0])
    if name == "yolo":
        YoloHead(classes, 64).check_outputs(outputs[0], 2)
        scores = network.train()(image)[0][:, 64:].detach().sigmoid()
        assert float(scores.median()) < 0.05, "most cells have no object"
    else:
        assert outputs[0][0].shape == (2, classes, 16, 16)


def test_the_search_branches_a_detector_with_its_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense_networks, "_WIDTHS", (8, 8, 16, 16))
    design = searched_design(build_dense_network("yolo", 6, 0).eval(), torch.randn(1, 3, 64, 64), silent)
    assert 0.6 < design.macs / design.original_macs < 1
    assert any(len(segment.branches) == 2 for segment in design.segments)
    assert len(design.head) == 2
    assert tuple(DENSE_NETWORKS) == tuple(TASKS.values())


def test_tables_of_detection_have_two_measures_and_differences_of_the_first() -> None:
    counts = {"macs": 2_500_000, "params": 12_000, "epochs": 8}
    original = [{"seed": seed, "test_map": 30.0 + seed, "test_map50": 60.0, **counts} for seed in range(2)]
    branched = [{"seed": seed, "test_map": 31.5 + seed, "test_map50": 61.0, **counts} for seed in range(2)]
    text = tables({DETECTION: {"yolo": {ORIGINAL: original, BRANCHED: branched}}})
    assert "| epochs | mAP in % | mAP at 50 % in % | against: original | against: original, trained" in text
    assert "| yolo | branched | 2 | 2.50 M | 12 k | 8 | 32.00 ± 6.35 | 61.00 ± 0.00 | +1.50 ± 0.00 |  |  |" in text
