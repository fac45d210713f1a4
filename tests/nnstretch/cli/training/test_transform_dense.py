"""The job from a model and images to branched networks, for masks and boxes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from nnstretch.branching.design.design import save_design
from nnstretch.cli.console import silent_reporter
from nnstretch.cli.job.summary import summary
from nnstretch.cli.job.trainings import Trainings
from nnstretch.cli.job.transform_and_train import TransformAndTrain
from nnstretch.cli.job.transform_options import TransformOptions
from nnstretch.errors import UsageError
from nnstretch.report.documents.readers import read_document
from nnstretch.support.measures import MEAN_AP, MEAN_IOU, Measure
from nnstretch.training.weights import read_tensors
from tests.kits.kernels.shapes import SIDE, write_coco, write_masks
from tests.kits.networks import anchor_free

COUNTS = (("train", 16), ("val", 4), ("test", 4))
NETWORKS = """
from tests.kits.kernels.shapes import segmenter
from tests.kits.networks.anchor_free import anchor_free
"""


def options(folder: Path, network: str, data: str, size: int, **changes: Any) -> TransformOptions:
    (folder / "nets.py").write_text(NETWORKS)
    recipe = {"epochs": 1, "batch_size": 8, "threads": 1, "workers": 0, "crop_pct": 1.0, "blockwise_epochs": 0.0}
    values: dict[str, Any] = {
        "model": f"{folder / 'nets.py'}:{network}",
        "data": data,
        "processors": "sim:phone/cpu,sim:phone/gpu",
        "folder": folder / "job",
        "recipe": "dense",
        "retrain_recipe": "dense",
        "changes": recipe,
        "search": {"designs": 1, "alpha": 4, "beta": 2, "even_if_slower": True},
        "image_size": size,
        "skip": frozenset({"measure"}),
        "device": "cpu",
        "int8": True,
        "at_once": 1,
    }
    return TransformOptions(**{**values, **changes})


def run(of: TransformOptions) -> dict[str, Any]:
    return TransformAndTrain(of, silent_reporter(), "go on").run()


def check(answer: dict[str, Any], folder: Path, measure: Measure, others: Sequence[str]) -> None:
    """All stages have the task's measure, and the report shows it."""
    assert answer["measure"] == measure._asdict()
    networks = [answer["original"], *answer["candidates"]]
    assert [one["name"] for one in networks][0::2] == ["original", "control"]
    for one in networks:
        assert all(0 <= one[f"{split}_{measure.key}"] <= 100 for split in ("validation", "test"))
        about = json.loads(read_tensors(Path(one["weights"]))[1]["nnstretch.network"])
        assert about[measure.key] == one[f"test_{measure.key}"]
    assert [one["name"] for one in answer["int8"]] == [one["name"] for one in networks]
    assert all(one["int8_layers"] > 5 and 0 <= one[measure.key] <= 100 for one in answer["int8"])
    said = summary(answer, folder)
    assert f"original: {measure.name} {answer['original'][f'test_{measure.key}']:.2f} % on the test images" in said
    assert f"control in int8: {measure.name} " in said
    figures = read_document(str(folder)).figures
    assert figures[f"{measure.name} (%), original"] == answer["original"][f"test_{measure.key}"]
    text = json.dumps(answer) + said
    assert not any(other in text for other in others)


def test_a_segmenter_goes_through_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_masks(tmp_path / "data", COUNTS)
    (tmp_path / "data" / "classes.txt").write_text("nothing\nsquare\ndisc\n")
    given = options(tmp_path, "segmenter", f"masks:{tmp_path / 'data'}", SIDE)
    answer = run(given)
    check(answer, given.folder, MEAN_IOU, ("top1", "top-1", "map"))
    monkeypatch.setattr(Trainings, "train", None)  # what is done is not done again
    again = run(given)
    assert {**again, "seconds": None} == {**answer, "seconds": None}


def test_a_detector_goes_through_the_job(tmp_path: Path) -> None:
    pytest.importorskip("pycocotools")
    write_coco(tmp_path / "data", COUNTS)
    design = tmp_path / "design.json"
    save_design(anchor_free.branched_design(), design)
    given = options(tmp_path, "anchor_free", f"coco:{tmp_path / 'data'}", anchor_free.SIDE, head="yolo", design=design)
    answer = run(given)
    check(answer, given.folder, MEAN_AP, ("top1", "top-1", "miou"))
    assert all(one["kept"] >= 6 for one in answer["int8"]), "the last layers of the heads stay in float32"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"retrain_recipe": "finetune"}, r"smoothing is 0\.1, which is for classification; .* take the recipe dense"),
        ({"recipe": "finetune"}, r"smoothing is 0\.1, which is for classification"),
        (
            {"changes": {"kd_feature_weight": 0.0}},
            "a teacher of detection teaches by feature maps; set kd_feature_weight",
        ),
        ({"head": None}, r"give --head yolo or FILE\.py:FACTORY"),
    ],
)
def test_what_the_task_cannot_follow_is_refused_before_the_first_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], said: str
) -> None:
    write_coco(tmp_path / "data", COUNTS)
    monkeypatch.setattr(Trainings, "train", None)
    data = f"coco:{tmp_path / 'data'}"
    with pytest.raises(UsageError, match=said):
        run(options(tmp_path, "anchor_free", data, anchor_free.SIDE, **{"head": "yolo", **changes}))
