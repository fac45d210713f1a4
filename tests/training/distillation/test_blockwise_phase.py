"""A block-wise start in front of a training: stops, its checkpoint, and where both go on."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from nnstretch.branching.transform.network import BranchedNetwork
from nnstretch.errors import FileError, StoppedError, UsageError
from nnstretch.training.data.split import ArraySplit, Dataset
from nnstretch.training.distillation.blockwise import BlockwiseStart
from nnstretch.training.distillation.blockwise_phase import BlockwisePhase
from nnstretch.training.loop.events import TrainingResult
from nnstretch.training.loop.run_folder import RunOptions
from nnstretch.training.loop.stopping import StopRequest
from nnstretch.training.loop.trainer import train
from nnstretch.training.recipe import Recipe
from tests.kits.networks.splits import UntouchableSplit
from tests.kits.networks.tiny_branching import CLASSES, SIDE, branched, original
from tests.kits.networks.unreadable_images import made
from tests.kits.processes.forks import run_in_group

RECIPE = Recipe(
    epochs=2, batch_size=8, lr=0.01, blockwise_epochs=2.0, shift=0.1, kd_feature_weight=1.0, amp_dtype="float32",
    threads=1, workers=0,
)  # fmt: skip
STEPS = 8


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    rng = np.random.default_rng(0)
    names = tuple(map(str, range(CLASSES)))

    def split(count: int) -> ArraySplit:
        return ArraySplit(rng.standard_normal((count, 1, SIDE, SIDE)).astype(np.float32), np.arange(count) % CLASSES)

    return Dataset("noise", CLASSES, 1, SIDE, names, (0.0,), (1.0,), split(32), split(10), UntouchableSplit())


def trained(
    network: BranchedNetwork,
    dataset: Dataset,
    run: RunOptions | None = None,
    recipe: Recipe = RECIPE,
    stop_behind: int | None = None,
) -> TrainingResult:
    """A whole training, or one that is asked to stop after a step of the start."""
    teacher, request = original(), StopRequest("go on")

    def see(step: int, steps: int, loss: float) -> None:
        if step == stop_behind:
            request.signal = signal.SIGINT

    phase = BlockwisePhase(lambda: BlockwiseStart.of(network, teacher, dataset, recipe), dataset.name, see)
    return train(network, dataset, recipe, teacher, run=run, stop=request, start=phase)


@pytest.mark.parametrize("stops", [(1, 5), (4,), (STEPS,)])
def test_a_stop_in_the_start_changes_nothing(dataset: Dataset, tmp_path: Path, stops: tuple[int, ...]) -> None:
    whole = branched(0.5, 0.5)
    wanted = trained(whole, dataset)
    run = RunOptions(tmp_path)
    for number, step in enumerate(stops):
        with pytest.raises(StoppedError, match=f"step {step} of {STEPS} of the block-wise start; go on") as stopped:
            trained(branched(0.5, 0.5), dataset, replace(run, resume=number > 0), stop_behind=step)
        assert stopped.value.status == 128 + signal.SIGINT
        assert run.start.is_file()
        assert not run.last.exists()
    network = branched(0.5, 0.5)
    found = trained(network, dataset, replace(run, resume=True))
    assert all(map(torch.equal, whole.state_dict().values(), network.state_dict().values()))
    assert not run.start.exists()
    assert wanted.blockwise is not None
    assert found.blockwise is not None
    assert (found.blockwise.before, found.blockwise.after) == (wanted.blockwise.before, wanted.blockwise.after)
    assert found.blockwise.steps == STEPS
    again = trained(branched(0.5, 0.5), dataset, replace(run, resume=True))
    assert again.blockwise is None, "a training that is past its start does not repeat it"
    assert again.validation_score == wanted.validation_score


def refused(match: str, error: type[Exception], call: Callable[[], TrainingResult]) -> None:
    with pytest.raises(error, match=match):
        call()


def test_starts_of_other_trainings_are_refused(dataset: Dataset, tmp_path: Path) -> None:
    run = RunOptions(tmp_path)
    with pytest.raises(StoppedError):
        trained(branched(0.5), dataset, run, stop_behind=2)
    kept = run.start.read_bytes()
    resumed = replace(run, resume=True)
    refused("unfinished training", UsageError, lambda: trained(branched(0.5), dataset, run))
    other = replace(RECIPE, blockwise_lr=1e-4)
    refused("blockwise_lr", UsageError, lambda: trained(branched(0.5), dataset, resumed, other))
    labels = replace(dataset, train=ArraySplit(dataset.train.arrays(np.arange(32)), np.zeros(32, np.int64)))
    refused("digest of the training labels", UsageError, lambda: trained(branched(0.5), labels, resumed))
    renamed = replace(dataset, name="sound")
    refused("data set was noise and is sound", UsageError, lambda: trained(branched(0.5), renamed, resumed))
    assert run.start.read_bytes() == kept
    run.start.write_bytes(kept[:-9])
    refused("start.safetensors", FileError, lambda: trained(branched(0.5), dataset, resumed))


def test_images_of_a_start_that_cannot_be_decoded_are_told_and_kept(dataset: Dataset, tmp_path: Path) -> None:
    """Other images than the training's: nothing else would tell of them."""
    others = replace(made(44, 1, frozenset({8, 13}), SIDE), name="folder")
    network, teacher, recipe = branched(0.5), original(), replace(RECIPE, epochs=1, blockwise_epochs=1.0)

    def run(stop_behind: int | None, options: RunOptions) -> TrainingResult:
        request = StopRequest()

        def see(step: int, steps: int, loss: float) -> None:
            if step == stop_behind:
                request.signal = signal.SIGTERM

        phase = BlockwisePhase(lambda: BlockwiseStart.of(network, teacher, others, recipe), others.name, see)
        return train(network, dataset, recipe, teacher, run=options, stop=request, start=phase)

    with pytest.raises(StoppedError):
        run(1, RunOptions(tmp_path))
    result = run(None, RunOptions(tmp_path, resume=True))
    assert result.blockwise is not None
    assert dict(result.blockwise.unreadable) == {8: "8.jpg (truncated)", 13: "13.jpg (truncated)"}
    said = "block-wise start on folder: 2 of 44 training images cannot be decoded, and others"
    assert result.note.startswith(said)
    assert result.unreadable == 0
    found = json.loads((tmp_path / "result.json").read_text())
    assert found["blockwise"]["unreadable"] == 2
    again = run(None, RunOptions(tmp_path, resume=True))
    assert again.note == result.note
    assert json.loads((tmp_path / "result.json").read_text()) == found


def test_a_start_without_a_folder(dataset: Dataset) -> None:
    result = trained(branched(0.5), dataset)
    assert result.blockwise is not None
    assert result.blockwise.after[1] < result.blockwise.before[1]
    assert trained(branched(1.0), dataset).blockwise is not None


def _in_processes(rank: int, count: int, folder: str, dataset: Dataset) -> None:
    network = branched(0.5, 0.5)
    result = trained(network, dataset, RunOptions(Path(folder) / "run"))
    assert result.blockwise is not None
    torch.save([dict(network.state_dict()), result.blockwise.after], f"{folder}/{rank}")


def test_a_start_and_a_training_in_two_processes(dataset: Dataset, tmp_path: Path) -> None:
    run_in_group(_in_processes, 2, str(tmp_path), dataset)
    network = branched(0.5, 0.5)
    wanted = trained(network, dataset)
    (first, after), (second, after_too) = (torch.load(tmp_path / str(rank)) for rank in (0, 1))
    assert wanted.blockwise is not None
    assert after == after_too == wanted.blockwise.after
    assert all(map(torch.equal, first.values(), second.values()))
    for name, value in network.state_dict().items():
        torch.testing.assert_close(first[name], value, rtol=1e-2, atol=1e-3)
