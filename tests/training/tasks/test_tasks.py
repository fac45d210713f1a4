"""From an original to its branched network, retrained with feature distillation and evaluated, for every task on shapes."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import nnstretch as nns
from nnstretch.branching.transform.network import BranchedNetwork
from nnstretch.cli.main import main
from nnstretch.cli.training import check_classification
from nnstretch.errors import ModelError, UsageError
from nnstretch.training.data import load_dataset
from nnstretch.training.data.split import Dataset
from nnstretch.training.distillation.blockwise import train_segments
from nnstretch.training.distillation.objectives import Distillation
from nnstretch.training.evaluation.accuracy import scored
from nnstretch.training.loop.run_folder import RunOptions
from nnstretch.training.loop.trainer import train
from nnstretch.training.recipe import Recipe
from nnstretch.training.tasks.detection import Detection
from nnstretch.training.weights import read_tensors
from tests.kits.kernels.shapes import SIDE, ShapesHead, detector, segmenter, write_coco, write_masks
from tests.kits.networks.deeplab import deeplab

RECIPE = Recipe(
    epochs=6, batch_size=8, opt="adamw", lr=4e-3, hflip=0.5, evaluate_every=3, threads=1, workers=0, amp_dtype="float32",
    kd_loss_weight=0.5, kd_feature_weight=1.0, blockwise_epochs=1.0,
)  # fmt: skip
COUNTS = (("train", 96), ("val", 16), ("test", 24))


def whole(source: str) -> Dataset:
    dataset = load_dataset(source, SIDE)
    return dataset.preprocessed(replace(dataset.preprocessing, crop_pct=1.0))


def branched(module: nn.Module, example: torch.Tensor) -> BranchedNetwork:
    processors = "sim:phone/cpu,sim:phone/gpu"
    (first, *_) = nns.stretch(module, example, processors, alpha=4.0, beta=2.0, even_if_slower=True)
    assert isinstance(first.module, BranchedNetwork)
    assert any(len(segment.branches) == 2 for segment in first.module.design.segments)
    return first.module


def test_a_segmenter_is_branched_and_retrained(tmp_path: Path) -> None:
    write_masks(tmp_path / "data", COUNTS)
    dataset = whole(f"masks:{tmp_path / 'data'}")
    original, example = segmenter()
    result = train(original, dataset, RECIPE, run=RunOptions(tmp_path / "run"))
    assert result.measure == "mIoU"
    assert result.history[-1].train_top1 is None
    reached = scored(original, dataset.test, dataset).percent
    assert reached > 85
    written = json.loads((tmp_path / "run" / "result.json").read_text())
    assert written["validation_miou"] == written["history"][-1]["validation_miou"] == result.validation_score
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert [line["miou"] for line in lines if "miou" in line] == [
        record.validation_score for record in result.history if record.validation_score is not None
    ]
    network = branched(original, example)
    inherited = scored(network, dataset.test, dataset).percent
    started = train_segments(network, original, dataset, RECIPE)
    assert sum(started.after) < sum(started.before)
    train(network, dataset, replace(RECIPE, epochs=2, lr=2e-3), original)
    retrained = scored(network, dataset.test, dataset).percent
    assert retrained > max(inherited, reached - 3)


def test_a_deeplab_is_branched_and_retrained_with_feature_maps(tmp_path: Path) -> None:
    """A dilated pyramid with a branch of pooled features; the network returns a dictionary."""
    write_masks(tmp_path, (("train", 40), ("val", 4), ("test", 12)))
    dataset = whole(f"masks:{tmp_path}")
    original, example = deeplab()
    train(original, dataset, replace(RECIPE, evaluate_every=0))
    reached = scored(original, dataset.test, dataset).percent
    network = branched(original, example)
    inherited = scored(network, dataset.test, dataset).percent
    train(network, dataset, replace(RECIPE, epochs=3, lr=2e-3, evaluate_every=0), original)
    retrained = scored(network, dataset.test, dataset).percent
    assert retrained > max(inherited, reached - 5) > 50
    images = torch.from_numpy(dataset.test.arrays(np.arange(8)))
    targets = torch.from_numpy(dataset.test.targets(np.arange(8)))
    features = []
    for student in (branched(original, example), network):
        objective = Distillation(student, original, images, feature_weight=1.0, task=dataset.task)
        objective.loss(images, student.eval()(images), targets)
        features.append(float(objective.parts["features"]))
        objective.close()
    assert features[1] < features[0]


def test_a_detector_is_branched_and_retrained(tmp_path: Path) -> None:
    pytest.importorskip("pycocotools")
    write_coco(tmp_path, COUNTS)
    dataset = whole(f"coco:{tmp_path}")
    dataset = replace(dataset, task=Detection(ShapesHead()))
    original, example = detector()
    result = train(original, dataset, replace(RECIPE, epochs=12, evaluate_every=0))
    assert result.measure == "mAP"
    reached = scored(original, dataset.test, dataset).measures()
    assert reached["map50"] > 75
    network = branched(original, example)
    train(network, dataset, replace(RECIPE, epochs=8, evaluate_every=0), original)
    retrained = scored(network, dataset.test, dataset).measures()
    assert retrained["map50"] > reached["map50"] - 10


def test_logits_of_pixels_are_distilled_and_boxes_are_not(tmp_path: Path) -> None:
    write_masks(tmp_path / "masks", (("train", 4), ("val", 2), ("test", 2)))
    write_coco(tmp_path / "coco", (("train", 4), ("val", 2), ("test", 2)))
    masks, boxes = whole(f"masks:{tmp_path / 'masks'}"), whole(f"coco:{tmp_path / 'coco'}")
    images = torch.randn(2, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    (student, _), (teacher, _) = segmenter(), segmenter()
    objective = Distillation(student, teacher, images, weight=1.0, task=masks.task)
    loss = objective.loss(images, student.eval()(images), torch.zeros(2, SIDE, SIDE, dtype=torch.int64))
    assert float(loss.detach()) == pytest.approx(0, abs=1e-6)
    assert set(objective.parts) == {"hard", "soft"}

    (student, _), (teacher, _) = detector(), detector()
    task = replace(Detection(), head=ShapesHead())
    targets = torch.from_numpy(boxes.train.targets(torch.arange(2).numpy()))
    alone = Distillation(student, teacher, images, task=task)
    with pytest.raises(UsageError, match="a teacher of detection teaches by feature maps; set kd_feature_weight"):
        alone.loss(images, student(images), targets)
    features = Distillation(student, teacher, images, feature_weight=1.0, task=task)
    outputs = student.eval()(images)
    loss = features.loss(images, outputs, targets)
    torch.testing.assert_close(loss.detach(), task.loss(outputs, targets).detach() + features.parts["features"])
    assert set(features.parts) == {"hard", "features"}


def test_a_network_for_another_task_is_refused(tmp_path: Path) -> None:
    write_masks(tmp_path, (("train", 8), ("val", 2), ("test", 2)))
    classifier = nn.Sequential(nn.Conv2d(3, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    with pytest.raises(ModelError, match=r"the network writes \[8, 3\] for 8 images with masks of 3 classes"):
        train(classifier, whole(f"masks:{tmp_path}"), RECIPE)


def test_what_is_for_classification_refuses_other_tasks(tmp_path: Path) -> None:
    write_masks(tmp_path, (("train", 8), ("val", 2), ("test", 2)))
    with pytest.raises(UsageError, match=r"--learn-bounds is for classification, and masks:.* for segmentation; use"):
        check_classification(whole(f"masks:{tmp_path}"), "--learn-bounds")
    check_classification(load_dataset("digits"), "this job")


NETWORKS = """
from tests.kits.kernels.shapes import detector, segmenter, shapes_head
"""


def test_commands_train_and_evaluate_a_detector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pycocotools")
    monkeypatch.chdir(tmp_path)
    Path("nets.py").write_text(NETWORKS)
    write_coco(tmp_path / "data", (("train", 16), ("val", 4), ("test", 4)))
    given = ["--data", "coco:data", "--head", "nets.py:shapes_head", "--json"]
    recipe = ["--recipe", "dense", "--epochs", "1", "--batch-size", "8", "--workers", "0", "--threads", "1"]
    assert main(["train", "nets.py:detector", *given, *recipe, "-o", "w.safetensors"]) == 0
    trained = json.loads(capsys.readouterr().out)
    assert {"map", "map50", "map75", "validation_map"} <= trained.keys()
    assert trained["history"][0]["validation_map"] == trained["validation_map"]
    _, metadata = read_tensors(Path("w.safetensors"))
    assert any("map" in json.loads(text) for text in metadata.values() if text.startswith("{"))
    for engine in ("torch", "onnxruntime"):
        arguments = ["evaluate", "nets.py:detector", "-w", "w.safetensors", "--engine", engine, "--per-class", *given]
        assert main(arguments) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["map"] == pytest.approx(trained["map"], abs=1e-3)
        assert [one["class"] for one in found["per_class"]] == ["square", "disc"]
    assert main(["evaluate", "nets.py:detector", "--data", "coco:data", "--engine", "torch"]) == 2
    assert "give --head yolo or FILE.py:FACTORY" in capsys.readouterr().err
    assert (
        main(["train", "nets.py:detector", "--data", "digits", "--head", "nets.py:shapes_head", "-o", "x.safetensors"])
        == 2
    )
    assert "--head is for detection; digits is for classification" in capsys.readouterr().err


def test_commands_compare_segmenters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("nets.py").write_text(NETWORKS)
    write_masks(tmp_path / "data", (("train", 8), ("val", 4), ("test", 4)))
    recipe = ["--recipe", "dense", "--epochs", "1", "--batch-size", "8", "--workers", "0", "--threads", "1"]
    assert main(["train", "nets.py:segmenter", "--data", "masks:data", *recipe, "-o", "w.safetensors"]) == 0
    said = capsys.readouterr().out
    assert "mIoU" in said
    assert "pixel accuracy" in said
    assert main(["evaluate", "nets.py:segmenter", "-w", "w.safetensors", "--data", "masks:data", "--engine", "torch",
                 "--per-class", "--compare", "nets.py:segmenter:w.safetensors"]) == 0  # fmt: skip
    said = capsys.readouterr().out
    assert said.count("mIoU") >= 2
    assert os.path.exists("w.run/result.json")  # noqa: PTH110
