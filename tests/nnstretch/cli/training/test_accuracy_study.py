"""The accuracy study: equal budgets, nothing trained twice, nothing lost, tables by seed."""

from __future__ import annotations

import importlib
import json
import math
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from nnstretch.bench.accuracy import networks
from nnstretch.bench.accuracy.designs import ABLATION, ablation_designs, searched_design
from nnstretch.bench.accuracy.images import generate, look, stored_textures
from nnstretch.bench.accuracy.networks import NETWORKS, SWEPT, build_network
from nnstretch.bench.accuracy.results import (
    BRANCHED,
    CONTROL,
    FURTHER,
    MODELS,
    ORIGINAL,
    STAGES_OF,
    Results,
    differences,
    tables,
)
from nnstretch.branching.design.accounting import count_macs
from nnstretch.cli.console import silent_reporter
from nnstretch.cli.job import accuracy_study as study
from nnstretch.cli.job.accuracy_study import AccuracyStudy
from nnstretch.cli.job.study_options import ABLATED, COMMON, StudyOptions
from nnstretch.cli.training import event_shown
from nnstretch.errors import FileError, StoppedError, UsageError
from nnstretch.support.locks import lock_folder
from nnstretch.support.progress import silent
from nnstretch.training.data.sources.textures import Difficulty, Range
from nnstretch.zoo.blocks import Chain, classifier, conv_bn, with_shortcut

TINY: dict[str, Any] = {"epochs": 1, "retrain_epochs": 8, "epoch_images": 44, "held_out": 22, "batch_size": 22}


def tiny_network(num_classes: int, factor: int = 1) -> nn.Module:
    """Two stages of two residual blocks."""
    narrow, wide = 16 * factor, 32 * factor

    def block(width: int, out: int, stride: int) -> nn.Module:
        body = nn.Sequential(conv_bn(width, out, 3, stride=stride), conv_bn(out, out, 3, activation=None))
        return with_shortcut(body, width, out, stride)

    stages = [
        nn.Sequential(block(narrow, narrow, 1), block(narrow, narrow, 1)),
        nn.Sequential(block(narrow, wide, 2), block(wide, wide, 1)),
    ]
    return Chain(nn.Sequential(*conv_bn(3, narrow, 3, stride=2)), stages, nn.Sequential(*classifier(wide, num_classes)))


def make_tiny(patch: pytest.MonkeyPatch) -> None:
    """Makes the study's network small."""
    patch.setattr(networks, "NETWORKS", {"resnet34": tiny_network})
    patch.setattr(study, "COMMON", {**COMMON, "precise_bn_samples": 0})


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    make_tiny(monkeypatch)


def run(folder: Path, *tables: str, **changes: Any) -> Results:
    options = StudyOptions(folder, ("resnet34",), tables=tables, **{"seeds": 1, **TINY, **changes})
    return AccuracyStudy(options, silent_reporter()).run()


@pytest.fixture(scope="module")
def accuracy_table(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Results]:
    """The folder of a finished table "accuracy" and its results."""
    folder = tmp_path_factory.mktemp("accuracy")
    with pytest.MonkeyPatch.context() as patch:
        make_tiny(patch)
        return folder, run(folder, "accuracy")


@pytest.fixture
def finished(accuracy_table: tuple[Path, Results], tmp_path: Path) -> tuple[Path, Results]:
    """A copy of that folder, and the results."""
    folder, results = accuracy_table
    return shutil.copytree(folder, tmp_path / "finished"), results


def images_seen(folder: Path) -> float:
    """Epochs of a training, with those of its block-wise start."""
    recipe: dict[str, Any] = json.loads((folder / "stage.json").read_text())["settings"]["recipe"]
    return float(recipe["epochs"] + recipe["blockwise_epochs"])


@pytest.mark.usefixtures("tiny")
def test_rows_of_a_table_see_as_many_images_and_nothing_is_trained_twice(
    finished: tuple[Path, Results], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, alone = finished
    results = run(folder, "accuracy", "quarter")
    assert results["accuracy"] == alone["accuracy"]
    rows = results["accuracy"]["resnet34"]
    assert list(rows) == [ORIGINAL, FURTHER, CONTROL, BRANCHED]
    assert len(results["quarter"]["resnet34"]) == 6
    stages = folder / "resnet34" / "seed-0"
    assert {images_seen(path) for path in stages.glob("accuracy-*")} == {8}
    assert {images_seen(path) for path in stages.glob("quarter-*")} == {2}
    macs = {name: found[0]["macs"] for name, found in rows.items()}
    assert macs[FURTHER] == macs[ORIGINAL] > macs[BRANCHED]
    assert macs[CONTROL] == pytest.approx(macs[BRANCHED], rel=0.01)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr("nnstretch.training.loop.trainer.train", refuse)
    monkeypatch.setattr("nnstretch.training.evaluation.accuracy.scored", refuse)
    assert run(folder, "accuracy", "quarter") == results


def test_networks_that_are_named_are_those_of_every_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[tuple[str, str]] = []
    monkeypatch.setattr(AccuracyStudy, "_train", lambda _self, model, _seed, table: trained.append((table, model)))
    options = StudyOptions(tmp_path, ("regnet_x",), seeds=1, tables=("accuracy", "quarter"))
    AccuracyStudy(options, silent_reporter()).run()
    assert trained == [("accuracy", "regnet_x"), ("quarter", "regnet_x")]
    trained.clear()
    AccuracyStudy(replace(options, models=None), silent_reporter()).run()
    assert trained == [*(("accuracy", model) for model in MODELS), ("quarter", ABLATED)]


@pytest.mark.usefixtures("tiny")
def test_a_stopped_training_goes_on_and_ends_with_the_same_weights(
    accuracy_table: tuple[Path, Results], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = event_shown

    def stopping(advance: Any) -> Callable[[Any], None]:
        def show(event: Any) -> None:
            shown(advance)(event)
            if event.epoch == 3:
                raise StoppedError("stopped", 143)

        return show

    with monkeypatch.context() as patch:
        patch.setattr(study, "event_shown", stopping)
        with pytest.raises(StoppedError):
            run(tmp_path / "stopped", "accuracy")
    folder = tmp_path / "stopped" / "resnet34" / "seed-0"
    assert not json.loads((folder / "accuracy-further" / "stage.json").read_text())["done"]
    known = json.loads((tmp_path / "stopped" / "results.json").read_text())
    assert known == {"accuracy": {"resnet34": {ORIGINAL: accuracy_table[1]["accuracy"]["resnet34"][ORIGINAL]}}}
    original = (folder / "original" / "weights.safetensors").stat().st_mtime_ns
    resumed = run(tmp_path / "stopped", "accuracy")
    assert resumed == accuracy_table[1]
    assert (folder / "original" / "weights.safetensors").stat().st_mtime_ns == original


@pytest.mark.usefixtures("tiny")
def test_what_another_process_trains_is_left_to_it(tmp_path: Path) -> None:
    with lock_folder(tmp_path / "resnet34" / "seed-0", "-o"):
        options = StudyOptions(tmp_path, ("resnet34",), 1, ("accuracy",), **TINY)
        one = AccuracyStudy(options, silent_reporter())
        assert one.run() == {}
    assert one.elsewhere == [str(tmp_path / "resnet34" / "seed-0")]


@pytest.mark.usefixtures("tiny")
def test_trainings_with_other_settings_are_refused(finished: tuple[Path, Results]) -> None:
    with pytest.raises(UsageError, match="holds products of other settings"):
        run(finished[0], "accuracy", epochs=2)


@pytest.mark.usefixtures("tiny")
def test_a_study_at_a_larger_size(tmp_path: Path, finished: tuple[Path, Results]) -> None:
    at_size = {"image_size": 64, "width": 2, "batch_size": 44, "lr": 0.1}
    (found,) = run(tmp_path, "original", **at_size)["original"]["resnet34"][ORIGINAL]
    (default,) = finished[1]["accuracy"]["resnet34"][ORIGINAL]
    assert 15 < found["macs"] / default["macs"] < 16
    folders = [folder / "resnet34" / "seed-0" for folder in (tmp_path, finished[0])]
    assert not (folders[0] / "design").exists()
    larger, smaller = (json.loads((folder / "original" / "stage.json").read_text())["settings"] for folder in folders)
    assert (larger["size"], larger["width"]) == (64, 2)
    assert "width" not in smaller
    assert (larger["recipe"]["lr"], smaller["recipe"]["lr"]) == pytest.approx((0.1 * 44 / 64, 0.05 * 22 / 64))
    with pytest.raises(UsageError, match="width was null and is 2"):
        run(finished[0], "original", width=2)


@pytest.mark.usefixtures("tiny")
def test_tables_of_what_is_done_are_written_without_a_training(
    finished: tuple[Path, Results], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[4] / "scripts" / "studies"))
    script = importlib.import_module("accuracy_study")
    folder, results = finished
    (folder / "tables.md").unlink()
    given = ["-o", str(folder), "--models", "resnet34", "--tables", "accuracy,ablation", "--report"]
    assert script.main(given) == 0
    rows = results["accuracy"]["resnet34"]
    assert (folder / "tables.md").read_text() == tables(
        {**results, "ablation": {"resnet34": {ORIGINAL: rows[ORIGINAL]}}}
    )
    assert "| resnet34 | branched | 1 |" in capsys.readouterr().out


@pytest.mark.usefixtures("tiny")
def test_a_stage_is_run_again_with_those_after_it_on_request(finished: tuple[Path, Results]) -> None:
    folder, results = finished
    files = [*(folder / "resnet34" / "seed-0").glob("*/stage.json")]
    stages = {path.parent.name: json.loads(path.read_text())["run"] for path in files}
    assert run(folder, "accuracy", redo="accuracy") == results
    again = {path.parent.name: json.loads(path.read_text())["run"] for path in files}
    assert {name for name in stages if again[name] != stages[name]} == {
        "accuracy-further",
        "accuracy-control",
        "accuracy-branched",
    }


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"models": ("resnet35",)}, "resnet35: there are resnet34"),
        ({"tables": ("acuracy",)}, "acuracy: there are original, accuracy"),
        ({"seeds": 0}, "--seeds 0: 1 or more"),
        ({"width": 0}, "--width 0: 1 or more"),
        ({"redo": "retrain"}, "the stages are original"),
        ({"retrain_epochs": 12}, "a multiple of 8"),
        ({"blockwise_epochs": 8}, "fewer than --retrain-epochs"),
        ({"tables": ("accuracy",), "retrain_epochs": 0}, "--retrain-epochs 0: 1 or more"),
    ],
)
def test_impossible_studies_are_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        StudyOptions(**{"folder": tmp_path, "models": ("resnet34",), **changes})


def test_only_quarters_want_a_retraining_that_can_be_divided(tmp_path: Path) -> None:
    assert StudyOptions(tmp_path, ("resnet34",), tables=("accuracy",), retrain_epochs=5).retrain_epochs == 5


def test_images_are_those_of_the_data_set_and_generated_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = stored_textures(tmp_path, 16, 44, 22)
    source: Any = dataset.train
    expected = source.files.source.raw(5, 3)
    np.testing.assert_array_equal(dataset.train.raw(5, 3), expected)
    assert (dataset.train.raw(5, 3) != dataset.train.raw(5, 4)).any()
    held_out: Any = dataset.test
    np.testing.assert_array_equal(dataset.test.arrays(np.arange(22)), held_out.files.source.arrays(np.arange(22)))
    harder = replace(held_out.files.source, difficulty=Difficulty(grain=Range(0.3, 0.4)))
    assert look(harder) != look(held_out.files.source) == look(held_out)
    again = stored_textures(tmp_path, 16, 44, 22)
    monkeypatch.setattr("nnstretch.training.data.sources.textures.texture", None)
    np.testing.assert_array_equal(again.train.raw(5, 3), expected)


def test_images_of_all_epochs_are_generated_once_by_all_who_share_them(tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from nnstretch.bench.accuracy.images import generate, stored_textures
folder = Path({str(tmp_path)!r})
generate(stored_textures(folder, 16, 44, 22), folder, 3)
"""
    both = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    dataset = stored_textures(tmp_path, 16, 44, 22)
    source: Any = dataset.train
    assert sorted(path.name for path in source.files.folder.iterdir()) == [f"epoch-{epoch}.npy" for epoch in range(3)]
    np.testing.assert_array_equal(source.raw(5, 2), source.files.source.raw(5, 2))
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.npy")}
    assert len(written) == 5
    generate(dataset, tmp_path, 2)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.npy")} == written


def test_a_full_disk_ends_the_generation_of_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise FileError(f"cannot write {path.name}")

    monkeypatch.setattr("nnstretch.bench.accuracy.images.atomic_write", refuse)
    with pytest.raises(FileError, match=r"^cannot write epoch-0.npy$"):
        generate(stored_textures(tmp_path, 16, 44, 22), tmp_path, 1)


@pytest.mark.parametrize("name", MODELS)
def test_a_factor_makes_networks_wider(name: str) -> None:
    image = torch.randn(1, 3, 32, 32)
    narrow, wide = (count_macs(build_network(name, 22, 0, factor), image) for factor in (1, 2))
    assert 3 < wide / narrow < 4


@pytest.mark.parametrize("name", MODELS)
def test_networks_are_small_and_drawn_by_seed(name: str) -> None:
    network, image = build_network(name, 22, 0).eval(), torch.randn(2, 3, 32, 32)
    assert network(image).shape == (2, 22)
    assert count_macs(network, image[:1]) < 25e6
    assert torch.equal(network(image), build_network(name, 22, 0).eval()(image))
    assert not torch.equal(network(image), build_network(name, 22, 1).eval()(image))


@pytest.fixture
def _few_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorter stages of all networks but ResNet-34: a search takes as long as they are deep."""
    depths, widths = networks._REGNET
    monkeypatch.setattr(networks, "_REGNET", (tuple(min(depth, 2) for depth in depths), widths))
    rows = tuple(row._replace(repeats=min(row.repeats, 2)) for row in networks._LITE4)
    monkeypatch.setattr(networks, "_LITE4", rows)


@pytest.mark.usefixtures("_few_blocks")
@pytest.mark.parametrize("name", MODELS)
def test_the_search_branches_every_network(name: str) -> None:
    design = searched_design(build_network(name, 22, 0).eval(), torch.randn(1, 3, 32, 32), silent)
    assert 0.75 < design.macs / design.original_macs < 1
    assert any(len(segment.branches) == 2 for segment in design.segments)


def test_designs_keep_their_shape_at_a_larger_size() -> None:
    small, large = (
        searched_design(tiny_network(22, factor).eval(), torch.randn(1, 3, size, size), silent, factor)
        for factor, size in ((1, 32), (2, 64))
    )
    assert large.macs / large.original_macs == pytest.approx(small.macs / small.original_macs, abs=0.05)
    assert any(len(segment.branches) == 2 for segment in large.segments)


def test_ways_of_a_group_have_equal_macs() -> None:
    designs = ablation_designs(build_network("resnet34", 22, 0).eval(), torch.randn(1, 3, 32, 32))
    assert list(designs) == [row for row in STAGES_OF["ablation"] if row != ORIGINAL]
    for group in ABLATION.values():
        macs = [designs[name].macs for name in group]
        assert max(macs) / min(macs) < 1.03


def test_networks_are_listed_without_torch() -> None:
    assert tuple(NETWORKS) == (*MODELS, SWEPT)
    code = "import sys; sys.path.insert(0, 'scripts/studies'); import accuracy_study; print('torch' in sys.modules)"
    root = Path(__file__).resolve().parents[4]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def result(seed: int, top1: float) -> dict[str, Any]:
    return {"seed": seed, "test_top1": top1, "macs": 2_500_000, "params": 12_000, "epochs": 8}


def test_tables_have_means_intervals_and_differences_paired_by_seed() -> None:
    original = [result(0, 80.0), result(1, 82.0), result(2, 84.0)]
    further = [result(seed, 83.0) for seed in range(3)]
    branched = [result(2, 84.5), result(0, 80.5), result(1, 82.5)]
    assert differences(branched, original) == [0.5, 0.5, 0.5]
    text = tables({"accuracy": {"resnet34": {ORIGINAL: original, FURTHER: further, BRANCHED: branched}}})
    half = f"{4.303 * 2 / math.sqrt(3):.2f}"
    assert "| top-1 in % | against: original | against: original, trained further |" in text
    assert f"| resnet34 | original | 3 | 2.50 M | 12 k | 8 | 82.00 ± {half} |  | -1.00 ± {half} |" in text
    assert f"| resnet34 | branched | 3 | 2.50 M | 12 k | 8 | 82.50 ± {half} | +0.50 ± 0.00 | -0.50 ± {half} |" in text


def test_rows_are_compared_by_the_seeds_that_both_have() -> None:
    original, further = [result(0, 80.0), result(1, 82.0)], [result(1, 83.0)]
    assert differences(original, further) == [-1.0]
    text = tables({"accuracy": {"resnet34": {ORIGINAL: original, FURTHER: further}}})
    assert "| resnet34 | original, trained further | 1 | 2.50 M | 12 k | 8 | 83.00 | +1.00 |  |" in text
    assert "| 81.00 ± 12.71 |  |  |" in tables({"accuracy": {"resnet34": {ORIGINAL: original}}})


def test_a_single_seed_has_no_interval() -> None:
    found = {ORIGINAL: [result(0, 80.0)], "depth only": [result(0, 79.5)]}
    assert "| 79.50 | -0.50 |" in tables({"ablation": {"resnet34": found}})
