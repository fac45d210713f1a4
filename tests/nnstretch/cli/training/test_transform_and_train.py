"""The job from a model and images to branched networks: what it keeps, repeats and leaves out, and which images decide."""

from __future__ import annotations

import io
import json
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nnstretch.cli.console import Reporter, silent_reporter
from nnstretch.cli.job import int8_networks, networks, retraining
from nnstretch.cli.job import trainings as job_trainings
from nnstretch.cli.job.networks import Candidate
from nnstretch.cli.job.retraining import rounds
from nnstretch.cli.job.summary import summary
from nnstretch.cli.job.trainings import Trainings
from nnstretch.cli.job.transform_and_train import TransformAndTrain
from nnstretch.cli.job.transform_options import TransformOptions
from nnstretch.cli.training import event_shown, training_images
from nnstretch.errors import DesignError, FileError, StoppedError, UsageError
from nnstretch.report.documents.readers import read_document
from nnstretch.support.progress import Progress
from nnstretch.training.data.preprocessing import Images
from nnstretch.training.data.split import ArraySplit, Dataset, Indices
from nnstretch.training.loop.events import TrainingEvent
from nnstretch.training.weights import read_tensors
from tests.kits.networks.small_training import few_digits

NETWORK = """
import torch
from torch import nn


def block(before, after, stride):
    return nn.Sequential(nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU())


def make(num_classes=10, n=32):
    widths = (1, n), (n, n), (n, 2 * n), (2 * n, 2 * n), (2 * n, 2 * n), (2 * n, 2 * n)
    blocks = [block(a, b, 2 if n == a < b else 1) for a, b in widths]
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * n, num_classes)
    return nn.Sequential(*blocks, *head), torch.zeros(1, 1, 16, 16)


def narrow(num_classes=10):
    return make(num_classes, 16)
"""
SETTINGS: dict[str, Any] = {
    "processors": "sim:phone/cpu,sim:phone/gpu",
    "recipe": "quick",
    "retrain_recipe": "quick-retrain",
    "changes": {
        "epochs": 2,
        "batch_size": 16,
        "threads": 1,
        "target_accuracy": 0.0,
        "precise_bn_samples": 0,
        "amp_dtype": "float32",
    },
    "search": {"designs": 2, "alpha": 100, "beta": 100, "even_if_slower": True},
    "image_size": 16,
    "skip": frozenset({"measure"}),
    "device": "cpu",
    "at_once": 1,  # in this process, where tests look at them
}


class WatchedSplit(ArraySplit):
    """Test images that may be read while `open_for_reports` is true only."""

    open_for_reports = False

    def arrays(self, indices: Indices) -> Images:
        assert WatchedSplit.open_for_reports, "test images were read for something else than a report"
        return super().arrays(indices)


def few() -> Dataset:
    digits = few_digits(48, 24)
    test = digits.test.arrays(np.arange(24)), digits.test.labels[:24]
    return replace(digits, test=WatchedSplit(*test, preprocessing=digits.preprocessing))


@pytest.fixture(autouse=True)
def images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few digits for every job. Whatever reads test images must be one of the two functions that report accuracies."""
    dataset = few()
    monkeypatch.setattr(networks, "training_images", lambda *_, **__: dataset)
    for place, name in ((Trainings, "save"), (int8_networks, "onnx_score")):
        monkeypatch.setattr(place, name, reporting(getattr(place, name)))


def reporting(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method, which may read test images."""

    def report(*arguments: Any) -> Any:
        WatchedSplit.open_for_reports = True
        try:
            return method(*arguments)
        finally:
            WatchedSplit.open_for_reports = False

    return report


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("model") / "net.py"
    path.write_text(NETWORK)
    return f"{path}:make"


def run(model: str, folder: Path, **changes: Any) -> dict[str, Any]:
    """The answer of a job."""
    options = TransformOptions(model=model, data="digits", folder=folder, **{**SETTINGS, **changes})
    return TransformAndTrain(options, silent_reporter(), "go on").run()


@pytest.fixture(scope="module")
def finished(model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The folder of a finished job, which tests copy, and its answer."""
    folder = tmp_path_factory.mktemp("job")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(networks, "training_images", lambda *_, **__: few_digits(48, 24))
        yield folder, run(model, folder)


def stages(folder: Path) -> dict[str, float]:
    """When each stage was first started."""
    return {path.parent.name: json.loads(path.read_text())["run"] for path in folder.glob("*/stage.json")}


@contextmanager
def trainings(at: Callable[[int, TrainingEvent], None]) -> Iterator[list[int]]:
    """Calls `at` with the number of the training (from 1) and every event; yields a list with the number of trainings."""
    count = [0]

    def watched(advance: Any) -> Callable[[TrainingEvent], None]:
        count[0] += 1
        shown = event_shown(advance)

        def show(event: TrainingEvent) -> None:
            shown(event)
            at(count[0], event)

        return show

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job_trainings, "event_shown", watched)
        yield count


def weights(folder: Path) -> dict[str, bytes]:
    """The weights of all networks of a job."""
    return {
        path.parent.name: b"".join(t.numpy().tobytes() for _, t in sorted(read_tensors(path)[0].items()))
        for path in folder.glob("*/weights.safetensors")
    }


def test_a_job_has_a_stage_per_network_and_its_answer(finished: tuple[Path, dict[str, Any]]) -> None:
    folder, answer = finished
    names = [one["name"] for one in answer["candidates"]]
    assert names[-1] == "control"
    assert len(names) == 3
    assert set(stages(folder)) == {"baseline", "designs", *(f"retrain-{name}" for name in names)}
    assert json.loads((folder / "answer.json").read_text()) == answer
    assert answer["comparison"] is None
    assert read_document(str(folder)).figures["top-1 (%), original"] == answer["original"]["test_top1"]
    runs = [read_document(str(folder / name / "run")).title for name in ("baseline", f"retrain-{names[0]}")]
    assert runs == ["Training baseline/run", f"Training retrain-{names[0]}/run"]
    assert f"{answer['chosen']}: top-1 " in summary(answer, folder)
    for one in [answer["original"], *answer["candidates"]]:
        assert Path(one["weights"]).is_file()
        assert 0 <= one["validation_top1"] <= 100


def test_a_job_that_stops_in_a_retraining_goes_on_there(
    model: str, tmp_path: Path, finished: tuple[Path, dict[str, Any]]
) -> None:
    """By SIGTERM in the second design's training, within an epoch."""
    stopped = 3

    def stop(number: int, event: TrainingEvent) -> None:
        if number == stopped and event.step == 2:
            signal.raise_signal(signal.SIGTERM)

    with trainings(stop), pytest.raises(StoppedError, match="stopped after step 2 of 3 of epoch 1; go on") as caught:
        run(model, tmp_path)
    assert caught.value.status == 128 + signal.SIGTERM
    before = stages(tmp_path)
    with trainings(lambda *_: None) as count:
        answer = run(model, tmp_path)
    assert count == [5 - stopped], "trainings that were done are not begun again"
    assert {name: stages(tmp_path)[name] for name in before} == before
    assert weights(tmp_path) == weights(finished[0])
    assert answer["chosen"] == finished[1]["chosen"]


def test_a_job_with_weights_trains_no_baseline(
    model: str, tmp_path: Path, finished: tuple[Path, dict[str, Any]]
) -> None:
    given = tmp_path / "given.safetensors"
    shutil.copy(finished[0] / "baseline" / "weights.safetensors", given)
    with trainings(lambda *_: None) as count:
        answer = run(model, tmp_path / "job", weights=given)
    assert count == [3]
    assert weights(tmp_path / "job") == weights(finished[0])
    assert not (tmp_path / "job" / "baseline" / "run").exists()
    assert answer["original"]["validation_top1"] == finished[1]["original"]["validation_top1"]
    shutil.copy(Path(answer["candidates"][-1]["weights"]).with_name("run") / "checkpoints" / "last.safetensors", given)
    with pytest.raises(UsageError, match="baseline holds products of other settings: weights was"):
        run(model, tmp_path / "job", weights=given)


def test_stages_are_done_again_on_request(model: str, tmp_path: Path, finished: tuple[Path, dict[str, Any]]) -> None:
    folder = tmp_path / "job"
    shutil.copytree(finished[0], folder)
    before = stages(folder)
    with trainings(lambda *_: None) as count:
        run(model, folder, redo="retrain")
    assert count == [3]
    kept = {name for name, started in stages(folder).items() if started == before[name]}
    assert kept == {"baseline", "designs"}
    assert weights(folder) == weights(finished[0])
    with trainings(lambda *_: None) as count:
        run(model, folder)
    assert count == [0]


def test_designs_keep_inherited_weights_where_retraining_is_left_out(
    model: str, tmp_path: Path, finished: tuple[Path, dict[str, Any]]
) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    for name in ("baseline", "designs"):
        shutil.copytree(finished[0] / name, folder / name)
    with trainings(lambda *_: None) as count:
        answer = run(model, folder, skip=frozenset({"retrain", "measure"}))
    assert count == [0]
    for one in answer["candidates"][:-1]:
        inherited = read_tensors(folder / "designs" / f"{one['name']}.safetensors")[0]
        kept = read_tensors(Path(one["weights"]))[0]
        assert all(torch.equal(value, kept[name]) for name, value in inherited.items())
    with pytest.raises(UsageError, match=r"--skip designs: the stages that can be left out are retrain, int8, measure"):
        replace(TransformOptions(model, "digits", "cpu:0,cpu:1", folder), skip=frozenset({"designs"}))


def test_a_network_that_is_not_branched_is_not_retrained(
    model: str, tmp_path: Path, finished: tuple[Path, dict[str, Any]]
) -> None:
    """The design is the original, and so is its control; both keep its weights, and the first line says why."""
    shutil.copytree(finished[0] / "baseline", tmp_path / "baseline")
    with trainings(lambda *_: None) as count:
        answer = run(model, tmp_path, search={"top": 1})
    assert count == [0]
    design, control = answer["candidates"]
    assert design["name"] == answer["chosen"]
    assert design["validation_top1"] == control["validation_top1"] == answer["original"]["validation_top1"]
    assert design["test_top1"] == control["test_top1"]
    first, *others = summary(answer, tmp_path).splitlines()
    assert first.startswith("the network was not branched, and nothing was retrained: branching does not pay here: ")
    assert not any("(chosen)" in line for line in others)
    given = tmp_path / "whole.json"
    shutil.copy(design["design"], given)
    assert run(model, tmp_path, redo="designs", design=given)["unbranched"] == f"{given} has no branches"


def test_a_design_that_is_given_is_not_searched(
    model: str, tmp_path: Path, finished: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = finished[1]["candidates"][0]
    given = tmp_path / "mine.json"
    shutil.copy(finished[0] / "designs" / f"{first['name']}.json", given)
    folder = tmp_path / "job"
    folder.mkdir()
    shutil.copytree(finished[0] / "baseline", folder / "baseline")
    monkeypatch.setattr("nnstretch.cli.stretching.search.find", None)
    answer = run(model, folder, design=given)
    found, control = answer["candidates"]
    assert control["name"] == "control"
    assert first["name"].endswith(found["name"])
    assert weights(folder)[f"retrain-{found['name']}"] == weights(finished[0])[f"retrain-{first['name']}"]
    with pytest.raises(UsageError, match="designs holds products of other settings"):
        run(model, folder)
    other = json.loads(given.read_text())
    for segment in other["segments"]:
        for branch in segment["branches"]:
            branch["processor"] += 1
    given.write_text(json.dumps(other))
    with pytest.raises(UsageError, match=r"mine\.json has branches for 3 processors, -p names 2 \(sim:phone/cpu, sim:"):
        run(model, folder, design=given)
    given.write_text("{}")
    with pytest.raises(DesignError, match=r"mine\.json"):
        run(model, tmp_path / "new", design=given)
    assert not (tmp_path / "new").exists(), "refused before the baseline is trained"


class Watched(Reporter):
    """Keeps notes, and calls `at` with everything that is being done."""

    def __init__(self, at: Callable[[str], None]) -> None:
        super().__init__(io.StringIO(), as_json=False)
        self.notes: list[str] = []
        self.at = at

    def note(self, text: str) -> None:
        self.notes += filter(None, [text])

    @contextmanager
    def progress(self, title: str) -> Iterator[Progress]:
        def advance(done: int, total: int, what: str) -> None:
            assert 0 <= done <= total
            self.at(what)

        yield advance


def pass_by(what: str) -> None:
    """Nothing is to be done at this point."""


def run_whole(
    model: str, folder: Path, at_once: int, at: Callable[[str], None] = pass_by
) -> tuple[dict[str, Any], list[str]]:
    """A job with images that other processes load, as on two cores; its answer and notes."""
    changes = {"changes": {**SETTINGS["changes"], "epochs": 1, "workers": 1}, "at_once": at_once}
    options = TransformOptions(
        model=model.replace(":make", ":narrow"), data="digits", folder=folder, **{**SETTINGS, **changes}
    )
    report = Watched(at)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(networks, "training_images", training_images)
        patch.setattr(retraining, "usable_cores", lambda: 2)
        return TransformAndTrain(options, report, "go on").run(), report.notes


@pytest.fixture(scope="module")
def one_by_one(model: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The folder of a job whose networks were trained one after another, which tests copy, and their names."""
    folder = tmp_path_factory.mktemp("one-by-one")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WatchedSplit, "open_for_reports", True)
        answer, _ = run_whole(model, folder, 1)
    return folder, [one["name"] for one in answer["candidates"]]


def test_networks_that_are_retrained_at_the_same_time(
    model: str, tmp_path: Path, one_by_one: tuple[Path, list[str]]
) -> None:
    """Two of three in processes: the weights of one after another, also where a signal stops them."""
    expected, (first, second, control) = one_by_one
    for name in ("baseline", "designs"):
        shutil.copytree(expected / name, tmp_path / name)
    stops: list[str] = []

    def stop(what: str) -> None:
        if not stops and what.startswith(second) and "1/1, loss" in what:
            stops.append(what)
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(StoppedError, match=r"stopped after step \d+ of \d+ of epoch 1; go on") as caught:
        run_whole(model, tmp_path, 2, stop)
    assert caught.value.status == 128 + signal.SIGTERM
    assert (tmp_path / f"retrain-{second}" / "run" / "checkpoints" / "last.safetensors").is_file()
    assert not (tmp_path / f"retrain-{control}").exists()
    answer, notes = run_whole(model, tmp_path, 2)
    assert weights(tmp_path) == weights(expected)
    before = json.loads((expected / "answer.json").read_text())
    scores = [[(one["name"], one["test_top1"]) for one in found["candidates"]] for found in (answer, before)]
    assert scores[0] == scores[1]
    for name in (first, second, control):
        assert [note.startswith(f"retrain-{name}: ") for note in notes].count(True) == 1, notes


def test_what_fails_in_a_process_fails_here_with_its_message(
    model: str, tmp_path: Path, one_by_one: tuple[Path, list[str]]
) -> None:
    folder, (name, _, control) = tmp_path / "job", one_by_one[1]
    shutil.copytree(one_by_one[0], folder)
    shutil.rmtree(folder / f"retrain-{control}")
    record = folder / f"retrain-{name}" / "stage.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "done": False}))
    (folder / f"retrain-{name}" / "run" / "checkpoints" / "last.safetensors").write_bytes(b"damaged")
    with pytest.raises(FileError, match=r"last\.safetensors"):
        run_whole(model, folder, 2)
    assert json.loads((folder / f"retrain-{control}" / "stage.json").read_text())["done"], "the other was trained"


def test_networks_that_are_measured_are_exported_on_an_idle_core(
    model: str, tmp_path: Path, finished: tuple[Path, dict[str, Any]]
) -> None:
    """The original when any retraining has ended, and the control when its own has; none if nothing is measured."""
    shutil.copytree(finished[0], tmp_path, dirs_exist_ok=True)
    first = finished[1]["candidates"][0]["name"]
    exported: dict[str, list[str]] = {}
    for skip in (frozenset[str](), frozenset({"measure"})):
        options = TransformOptions(model=model, data="digits", folder=tmp_path, **{**SETTINGS, "skip": skip})
        work = TransformAndTrain(options, silent_reporter(), "go on")
        original, (design, *_) = work.begun()
        for name in (first, "control"):
            work._export_early(original, name, design)
            exported[f"{name} {sorted(skip)}"] = sorted(work.networks.graphs)
    assert list(exported.values()) == [["original"], ["control", "original"], [], []]


@pytest.mark.parametrize(
    ("at_once", "expected"), [(0, []), (1, []), (2, ["ab", "cd"]), (3, ["abc", "de"]), (4, ["abcd"]), (8, ["abcde"])]
)
def test_a_network_that_would_be_alone_in_its_round_is_left_to_the_job(at_once: int, expected: list[str]) -> None:
    assert ["".join(some) for some in rounds("abcde", at_once)] == expected


def candidate(name: str, validation: float, test: float) -> Candidate:
    design = None if name in ("original", "control") else Path(f"{name}.json")
    return Candidate(name, Path("w"), validation, test, design)


@pytest.mark.parametrize(
    ("validation", "chosen"),
    [((79.9, 80.5), "fastest"), ((79.7, 79.8), "slower"), ((70.0, 75.0), "slower"), ((75.0, 70.0), "fastest")],
)
def test_validation_images_choose_the_design(
    model: str, tmp_path: Path, validation: tuple[float, float], chosen: str
) -> None:
    """The first one of the search within 0.2 points of the original, else the most accurate one; tests say otherwise."""
    tests = (10.0, 90.0) if chosen == "fastest" else (90.0, 10.0)
    made = [candidate(name, *scores) for name, *scores in zip(("fastest", "slower"), validation, tests, strict=True)]
    options = TransformOptions(model=model, data="digits", folder=tmp_path, **SETTINGS)
    work = TransformAndTrain(options, silent_reporter())
    found = work.chosen(candidate("original", 80.0, 50.0), [*made, candidate("control", 99.0, 99.0)])
    assert found.name == chosen


def test_networks_are_trained_through_quantisation_on_request(
    model: str, tmp_path: Path, finished: tuple[Path, dict[str, Any]]
) -> None:
    """The original and a design, with the original as the teacher; done once."""
    given = {"int8": True, "int8_recipe": "qat"}
    options = TransformOptions(model=model, data="digits", folder=tmp_path, **{**SETTINGS, **given})
    chosen = [finished[1]["original"], finished[1]["candidates"][0]]
    networks = [
        Candidate(
            one["name"],
            Path(one["weights"]),
            one["validation_top1"],
            one["test_top1"],
            one["design"] and Path(one["design"]),
        )
        for one in chosen
    ]
    with trainings(lambda *_: None) as count:
        found, again = (TransformAndTrain(options, silent_reporter(), "go on").int8(networks) for _ in range(2))
    assert count == [2]
    assert again == found
    assert [one["name"] for one in found] == [one.name for one in networks]
    for one in found:
        tensors, metadata = read_tensors(tmp_path / "int8" / f"{one['name']}.safetensors")
        about = json.loads(metadata["nnstretch.network"])
        assert about["quantization"]["ranges"] == "learned"
        assert bool(about["design"]) == (one["name"] != "original")
        assert any(name.endswith(".growth") for name in tensors)
        assert one["int8_layers"] > 6
        assert (tmp_path / "int8" / one["file"]).is_file()
    with pytest.raises(UsageError, match="--int8-recipe quick has no `qat: true`"):
        run(model, tmp_path / "other", int8=True, int8_recipe="quick")
    with pytest.raises(UsageError, match="give --int8, too"):
        replace(options, int8=False)
