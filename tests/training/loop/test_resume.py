"""Trainings that are stopped and go on: bit for bit, after any step, with any optimiser; what is on disk meanwhile."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from nnstretch.branching.transform.network import BranchedNetwork
from nnstretch.errors import FileError, ModelError, StoppedError, UsageError
from nnstretch.support.image_size import ImageSize
from nnstretch.support.settings import TEMPORARY_PREFIX, TEMPORARY_SUFFIX
from nnstretch.training.data import load_dataset
from nnstretch.training.data.split import ArraySplit, Dataset
from nnstretch.training.distillation.blockwise import BlockwiseStart
from nnstretch.training.distillation.blockwise_phase import BlockwisePhase
from nnstretch.training.evaluation.accuracy import top1
from nnstretch.training.loop.checkpoint import load_checkpoint
from nnstretch.training.loop.conclusion import Conclusion
from nnstretch.training.loop.events import TrainingEvent, TrainingResult
from nnstretch.training.loop.run_folder import RunFolder, RunOptions
from nnstretch.training.loop.stopping import StopRequest
from nnstretch.training.loop.trainer import train
from nnstretch.training.randomness import permutation
from nnstretch.training.recipe import Recipe
from nnstretch.training.recipe_files import load_recipe
from nnstretch.training.weights import read_tensors
from tests.kits.networks.small_training import digit_network, few_digits
from tests.kits.networks.splits import UntouchableSplit
from tests.kits.networks.tiny_branching import SIDE, branched, original
from tests.kits.networks.unreadable_images import made

RECIPE = Recipe(
    epochs=3, batch_size=8, lr=0.05, warmup_epochs=0.5, model_ema=True, model_ema_decay=0.9, precise_bn_samples=32,
    shift=0.05, rotation=5.0, grad_accum_steps=3, clip_grad=1.0, amp_dtype="float32", threads=1, workers=0,
)  # fmt: skip


@pytest.fixture(scope="module")
def few() -> Dataset:
    """80 digits: an epoch has 10 batches, and 4 steps of up to 3 batches."""
    return replace(few_digits(80, 20), test=UntouchableSplit())


def stop_behind(step: int, request: StopRequest) -> Callable[[TrainingEvent], None]:
    """Asks for a stop in the given step."""

    def see(event: TrainingEvent) -> None:
        if event.step == step:
            request.signal = signal.SIGTERM

    return see


def fail_at(step: int) -> Callable[[TrainingEvent], None]:
    """Ends the training without a word, like a kill."""

    def see(event: TrainingEvent) -> None:
        if event.step == step:
            raise KeyboardInterrupt

    return see


def tensors_of(folder: Path) -> dict[str, Tensor]:
    return read_tensors(RunOptions(folder).last)[0]


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize("opt", ["sgd", "momentum", "adamw", "lamb", "rmsproptf"])
def test_every_state_of_an_optimiser_goes_on_bit_for_bit(few: Dataset, tmp_path: Path, opt: str) -> None:
    recipe = replace(RECIPE, opt=opt, lr=0.01)
    whole, stopped = digit_network(), digit_network()
    train(whole, few, recipe, run=RunOptions(tmp_path / "whole"))
    chosen = sorted(random.Random(opt).sample(range(1, 12), 3))
    for number, step in enumerate(chosen):
        request = StopRequest("go on")
        with pytest.raises(StoppedError, match=f"step {step % 4 or 4} of 4 of epoch {(step + 3) // 4}; go on"):
            train(
                stopped, few, recipe, progress=stop_behind(step, request), stop=request,
                run=RunOptions(tmp_path / "parts", resume=number > 0),
            )  # fmt: skip
        stopped = digit_network(seed=step)  # everything comes from the checkpoint
    train(stopped, few, recipe, run=RunOptions(tmp_path / "parts", resume=True))
    assert same(whole.state_dict(), stopped.state_dict())
    one, other = tensors_of(tmp_path / "whole"), tensors_of(tmp_path / "parts")
    assert same(one, other)
    assert any(name.startswith("optimiser/") for name in one)
    assert any(name.startswith("average/") for name in one)


def test_a_stop_within_accumulated_gradients_ends_behind_the_step(few: Dataset, tmp_path: Path) -> None:
    """Batches within a step leave nothing behind: a training that dies there goes on from the step before."""
    whole, died = digit_network(), digit_network()
    train(whole, few, RECIPE, run=RunOptions(tmp_path / "whole"))
    calls = 0

    def die(module: nn.Module, inputs: Any) -> None:
        nonlocal calls
        calls += module.training
        if calls == 14:  # in the middle of the second step of the second epoch
            raise KeyboardInterrupt

    hook = died.register_forward_pre_hook(die)
    with pytest.raises(KeyboardInterrupt):
        train(died, few, RECIPE, run=RunOptions(tmp_path / "parts", minutes=0))
    hook.remove()
    assert load_checkpoint(RunOptions(tmp_path / "parts").last).counters.step == 1
    train(died, few, RECIPE, run=RunOptions(tmp_path / "parts", resume=True))
    assert same(tensors_of(tmp_path / "whole"), tensors_of(tmp_path / "parts"))


def test_checkpoints_within_an_epoch_come_by_the_clock(few: Dataset, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(digit_network(), few, RECIPE, progress=fail_at(7), run=RunOptions(tmp_path, minutes=0))
    saved = load_checkpoint(RunOptions(tmp_path).last).counters
    assert (saved.epoch, saved.step) == (1, 2)
    resumed = RunOptions(tmp_path, resume=True, minutes=60)
    with pytest.raises(KeyboardInterrupt):
        train(digit_network(), few, RECIPE, progress=fail_at(8), run=resumed)
    saved = load_checkpoint(resumed.last).counters
    assert (saved.epoch, saved.step) == (1, 2)


def test_the_last_epochs_and_the_best_weights_are_kept(few: Dataset, tmp_path: Path) -> None:
    options = RunOptions(tmp_path, keep=2, metadata={"net": "small"})
    result = train(digit_network(), few, replace(RECIPE, epochs=4), run=options)
    names = {path.name for path in options.last.parent.iterdir()}
    assert names == {"last.safetensors", "best.safetensors", "epoch-3.safetensors", "epoch-4.safetensors"}
    assert len(load_checkpoint(options.last.with_name("epoch-3.safetensors")).history) == 3
    tensors, metadata = read_tensors(options.best)
    assert metadata == {"net": "small"}
    best = digit_network()
    best.load_state_dict(tensors)
    scores = [record.validation_score or 0.0 for record in result.history]
    assert top1(best, few.validation, 10) == max(scores)
    assert json.loads(options.result.read_text())["validation_top1"] == result.validation_score
    none = RunOptions(tmp_path / "none", keep=0)
    train(digit_network(), few, RECIPE, run=none)
    assert {path.name for path in none.last.parent.iterdir()} == {"last.safetensors", "best.safetensors"}


@pytest.mark.parametrize(
    ("amp_dtype", "scores", "best"),
    [("float32", (50.0, 70.0, 60.0), 2), ("float32", (50.0, 70.0, 80.0), 3), ("bfloat16", (50.0, 70.0, 60.0), 2)],
)
def test_the_best_weights_may_be_those_of_any_epoch(
    few: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, amp_dtype: str, scores: tuple[float, ...], best: int
) -> None:
    """The last epoch is compared in the precision of the others, where the float32 score of the result is higher.

    The result has the best weights, with a run folder and without, or those of the last epoch if the recipe says so.
    """
    left = list(scores)

    def accuracy(conclusion: Conclusion, module: nn.Module) -> float:
        return left.pop(0) if torch.is_autocast_enabled("cpu") or conclusion.is_exact else 99.0

    monkeypatch.setattr(Conclusion, "accuracy", accuracy)
    options = RunOptions(tmp_path, keep=3)
    recipe = replace(RECIPE, model_ema=False, precise_bn_samples=0, amp_dtype=amp_dtype)
    module = digit_network()
    result = train(module, few, recipe, run=options)
    kept = load_checkpoint(options.last.with_name(f"epoch-{best}.safetensors"))
    assert same(read_tensors(options.best)[0], kept.group("weights"))
    assert same(module.state_dict(), kept.group("weights"))
    reached = scores[best - 1] if amp_dtype == "float32" else 99.0
    assert (result.epoch, result.validation_score) == (best, reached)
    before = options.best.read_bytes()
    for other, run in ((digit_network(4), replace(options, resume=True)), (digit_network(), None)):
        left = [scores[-1]] if run else list(scores)  # a finished training gives its result again
        again = train(other, few, recipe, run=run)
        assert same(other.state_dict(), kept.group("weights"))
        assert (again.epoch, again.validation_score) == (best, reached)
    assert options.best.read_bytes() == before
    for run in (replace(options, resume=True), None):
        left = [scores[-1]] if run else list(scores)
        again = train(module := digit_network(), few, replace(recipe, checkpoint="last"), run=run)
        assert same(module.state_dict(), load_checkpoint(options.last).group("weights"))
        assert (again.epoch, again.validation_score) == (3, scores[-1] if amp_dtype == "float32" else 99.0)


@pytest.mark.parametrize("changes", [{"epochs": 1}, {"epochs": 2, "evaluate_every": 0}, {"epochs": 0}])
def test_the_only_evaluation_gives_the_best_weights(few: Dataset, tmp_path: Path, changes: dict[str, Any]) -> None:
    module, options = digit_network(), RunOptions(tmp_path)
    train(module, few, replace(RECIPE, warmup_epochs=0.0, **changes), run=options)
    assert same(read_tensors(options.best)[0], module.state_dict())


def test_the_log_has_every_step_once(few: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nnstretch.training.loop.trainer._LOG_INTERVAL", 1)
    request = StopRequest()
    with pytest.raises(StoppedError):
        train(digit_network(), few, RECIPE, progress=stop_behind(6, request), stop=request, run=RunOptions(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        train(digit_network(), few, RECIPE, progress=fail_at(9), run=RunOptions(tmp_path, resume=True))
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"step": 9')  # a line that was cut off
    train(digit_network(), few, RECIPE, run=RunOptions(tmp_path, resume=True))
    entries = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in entries if "top1" not in entry] == list(range(1, 13))
    assert [entry["step"] for entry in entries if "top1" in entry] == [4, 8, 12]
    assert all({"epoch", "loss", "lr", "images_per_second"} <= entry.keys() for entry in entries)
    assert load_recipe(str(tmp_path / "recipe.yaml")) == replace(RECIPE)


@pytest.mark.parametrize("target", [0.0, 1.0])
def test_the_last_evaluation_is_logged_once(few: Dataset, tmp_path: Path, target: float) -> None:
    """Also that which ends a training early, and when a finished training returns its result again."""
    recipe = replace(RECIPE, epochs=2, target_accuracy=target)
    events: list[TrainingEvent] = []
    for resume in (False, True):
        train(digit_network(), few, recipe, progress=events.append, run=RunOptions(tmp_path, resume=resume))
    entries = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in entries if "top1" in entry] == ([4] if target else [4, 8])
    assert [event.step for event in events if event.validation_score is not None] == ([4] if target else [4, 8])


def test_the_files_of_tensorboard_have_every_curve_once(
    few: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losses of steps and of epochs are two curves, and a training that goes on hides what it repeats."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    monkeypatch.setattr("nnstretch.training.loop.trainer._LOG_INTERVAL", 2)
    # Files of one second are read in the order of their numbers as texts: the 10th of a process before the 9th.
    writers = pytest.importorskip("tensorboard.summary.writer.event_file_writer")
    monkeypatch.setattr(writers, "_global_uid", type(writers._global_uid)(0))
    with pytest.raises(KeyboardInterrupt):
        train(digit_network(), few, RECIPE, progress=fail_at(6), run=RunOptions(tmp_path))
    result = train(digit_network(), few, RECIPE, run=RunOptions(tmp_path, resume=True))
    found = accumulator.EventAccumulator(str(tmp_path))
    found.Reload()
    curves = {name: [(event.step, event.value) for event in found.Scalars(name)] for name in ("top1", "epoch_loss")}
    assert curves["top1"] == [(4 * one.epoch, pytest.approx(one.validation_score)) for one in result.history]
    assert curves["epoch_loss"] == [(4 * one.epoch, pytest.approx(one.loss)) for one in result.history]
    assert [event.step for event in found.Scalars("loss")] == [2, 4, 6, 8, 10, 12]


def test_checkpoints_of_epochs_are_whole_where_the_file_system_has_no_links(
    few: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    options = RunOptions(tmp_path)
    train(digit_network(), few, replace(RECIPE, epochs=1), run=options)
    kept = options.last.with_name("epoch-1.safetensors")
    assert kept.read_bytes() == options.last.read_bytes()

    def fill_up(source: IO[bytes], target: IO[bytes]) -> None:
        target.write(source.read(100))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("nnstretch.training.loop.run_folder.shutil.copyfileobj", fill_up)
    with pytest.raises(FileError, match=r"epoch-1\.safetensors: No space left on device; free some space"):
        train(digit_network(), few, replace(RECIPE, epochs=1), run=options)
    assert not kept.exists()


def test_an_unfinished_training_is_not_lost(few: Dataset, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(digit_network(), few, RECIPE, progress=fail_at(6), run=RunOptions(tmp_path))
    with pytest.raises(UsageError, match=r"unfinished training; go on with it by --resume"):
        train(digit_network(), few, RECIPE, run=RunOptions(tmp_path))
    first = train(digit_network(), few, RECIPE, run=RunOptions(tmp_path, resume=True))
    again = train(digit_network(), few, RECIPE, run=RunOptions(tmp_path, resume=True))
    assert [record.loss for record in again.history] == [record.loss for record in first.history]
    begun = train(digit_network(), few, RECIPE, run=RunOptions(tmp_path))  # a finished one makes place
    assert begun.validation_score == first.validation_score == again.validation_score


def test_two_trainings_cannot_share_a_folder(few: Dataset, tmp_path: Path) -> None:
    folder = RunFolder(RunOptions(tmp_path))
    with pytest.raises(UsageError, match="another process is writing"):
        train(digit_network(), few, RECIPE, run=RunOptions(tmp_path))
    folder.close()
    train(digit_network(), few, replace(RECIPE, epochs=1), run=RunOptions(tmp_path))


def test_what_a_killed_training_was_writing_is_removed(few: Dataset, tmp_path: Path) -> None:
    options = RunOptions(tmp_path)
    part = options.last.parent / f"{TEMPORARY_PREFIX}last.safetensors.abc{TEMPORARY_SUFFIX}"
    part.parent.mkdir()
    part.write_bytes(b"half of it")
    train(digit_network(), few, replace(RECIPE, epochs=1), run=options)
    assert options.last.exists()
    assert not part.exists()


def test_a_full_disk_leaves_the_checkpoint_before(
    few: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, writes = os.fsync, 0

    def fill_up(descriptor: int) -> None:
        nonlocal writes
        writes += 1
        if writes > 6:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fill_up)
    with pytest.raises(FileError, match=r"No space left on device; free some space") as caught:
        train(digit_network(), few, RECIPE, run=RunOptions(tmp_path, minutes=0))
    assert "\n" not in str(caught.value)
    monkeypatch.undo()
    whole, resumed = digit_network(), digit_network(4)
    train(whole, few, RECIPE)
    assert load_checkpoint(RunOptions(tmp_path).last).counters.step > 0
    train(resumed, few, RECIPE, run=RunOptions(tmp_path, resume=True))
    assert same(whole.state_dict(), resumed.state_dict())


def test_a_loss_that_is_not_finite_names_its_images_and_keeps_the_checkpoint(few: Dataset, tmp_path: Path) -> None:
    images = few.train.arrays(np.arange(80))
    images[13] = np.nan
    broken = replace(few, train=ArraySplit(images, few.train.labels))
    seen: list[int] = []
    with pytest.raises(
        ModelError, match=r"loss is nan in epoch 1, step \d of 4.*another --run-dir; the last checkpoint is whole"
    ) as caught:
        train(
            digit_network(), broken, RECIPE, progress=lambda e: seen.append(e.step), run=RunOptions(tmp_path, minutes=0)
        )
    assert "13" in str(caught.value).rpartition("step, ")[2] or "…" in str(caught.value)
    kept = load_checkpoint(RunOptions(tmp_path).last)
    assert kept.counters.step == len(seen)
    assert all(torch.isfinite(value).all() for value in kept.tensors.values())


class Overflowing(nn.Module):
    """Has a weight that becomes infinite in `step` (from 1), while the loss of that step is finite."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.linear = nn.Linear(256, 10)
        self.unused = nn.Parameter(torch.zeros(3))
        self.register_buffer("mask", torch.full((2, 2), -torch.inf))  # as masks of attention
        self.step, self.calls = step, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += self.training
        found: Tensor = self.linear(x.flatten(1))
        scale = 1e38 if self.calls == self.step else 0.0
        return found + scale * self.unused.sum() * 1e30


@pytest.mark.parametrize(("step", "minutes"), [(5, 0.0), (10, 60.0)])
def test_weights_that_are_not_finite_are_never_written(few: Dataset, tmp_path: Path, step: int, minutes: float) -> None:
    """Neither when a checkpoint is due after every step nor at the end of an epoch, here the first one."""
    recipe = replace(RECIPE, grad_accum_steps=1, clip_grad=None, precise_bn_samples=0)
    options = RunOptions(tmp_path, minutes=minutes)
    said = rf"diverged: unused, average of unused are not finite after epoch 1, step {step} of 10; lower lr .* is whole"
    with pytest.raises(ModelError, match=said) as caught:
        train(Overflowing(step), few, recipe, run=options)
    order = permutation(recipe.seed, 0, 80)[8 * (step - 1) : 8 * step]
    assert str(caught.value).endswith(f"images of this step, {', '.join(map(str, order.tolist()))}")
    kept = load_checkpoint(options.last)
    assert kept.counters.step == (step - 1 if minutes == 0 else 0)
    for name, value in kept.tensors.items():
        assert torch.isfinite(value).all() or name.endswith("mask")
    assert {path.name for path in options.last.parent.iterdir()} == {"last.safetensors"}


def test_a_training_does_not_begin_with_weights_that_are_not_finite(few: Dataset, tmp_path: Path) -> None:
    module, options = digit_network(), RunOptions(tmp_path, resume=True)
    train(module, few, replace(RECIPE, epochs=1), run=options)
    saved = load_checkpoint(options.last)
    saved.tensors["weights/6.bias"][3] = torch.nan
    saved.save(options.last)
    with pytest.raises(
        ModelError, match=r"6\.bias is not finite among the weights of the checkpoint .*last\.safetensors"
    ):
        train(digit_network(), few, replace(RECIPE, epochs=1), run=options)
    with torch.no_grad():
        next(module.parameters())[0] = torch.inf
    with pytest.raises(
        ModelError, match=r"0\.weight, average of 0\.weight are not finite among the weights of the network"
    ):
        train(module, few, RECIPE)


def test_images_that_cannot_be_decoded_are_kept_over_a_stop(tmp_path: Path) -> None:
    """The first part sees one of the two in its half of the epoch, and the second part the other."""
    images = made(64, bad=frozenset({8, 12}), side=8)
    recipe = Recipe(epochs=1, batch_size=4, workers=0, threads=1, amp_dtype="float32", seed=3)
    order = permutation(3, 0, 64).tolist()
    first, second = sorted((8, 12), key=order.index)
    step = order.index(first) // 4 + 1
    assert order.index(second) // 4 >= step
    module, request = nn.Sequential(nn.Flatten(), nn.Linear(192, 4)), StopRequest()
    with pytest.raises(StoppedError):
        train(module, images, recipe, progress=stop_behind(step, request), stop=request, run=RunOptions(tmp_path))
    assert load_checkpoint(RunOptions(tmp_path).last).counters.unreadable == {first: f"{first}.jpg (truncated)"}
    result = train(module, images, recipe, run=RunOptions(tmp_path, resume=True))
    assert result.unreadable == 2
    assert result.note.startswith("2 of 64 training images cannot be decoded, and others of their classes took")
    assert json.loads((tmp_path / "result.json").read_text())["unreadable"] == 2


def test_images_that_made_a_loss_infinite_are_named_by_their_files(tmp_path: Path) -> None:
    for split in ("train", "val", "test"):
        for name in "ab":
            (tmp_path / split / name).mkdir(parents=True)
            Image.new("RGB", (8, 8), (9, 90, 200)).save(tmp_path / split / name / "1.png")

    class Broken(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.flatten(1)) / 0

    module = Broken(192, 2)
    with pytest.raises(ModelError, match="the loss is nan in epoch 1, step 1 of 1") as caught:
        train(module, load_dataset(f"folder:{tmp_path}", 8), Recipe(epochs=1, batch_size=2, workers=0))
    named = {f"{tmp_path}/train/{name}/1.png" for name in "ab"}
    assert set(str(caught.value).partition("images of this step, ")[2].split(", ")) == named


def test_checkpoints_of_other_networks_are_refused(few: Dataset, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(digit_network(), few, RECIPE, progress=fail_at(6), run=RunOptions(tmp_path))
    other = nn.Sequential(*list(digit_network())[:-1], nn.Linear(128, 10), nn.Linear(10, 10))
    with pytest.raises(ModelError, match=r"7\.weight is absent"):
        train(other, few, RECIPE, run=RunOptions(tmp_path, resume=True))


def digits_of_side(side: int) -> Dataset:
    digits = load_dataset("digits", side)
    return replace(
        digits,
        train=ArraySplit(digits.train.arrays(np.arange(80)), digits.train.labels[:80]),
        validation=ArraySplit(digits.validation.arrays(np.arange(20)), digits.validation.labels[:20]),
        test=UntouchableSplit(),
    )


@pytest.mark.parametrize("stop", [2, 5])
def test_a_start_of_segments_goes_on_and_is_not_repeated(tmp_path: Path, stop: int) -> None:
    """The start has 5 steps. What it leaves in the network, such as gradients, must not differ when it is resumed."""
    images = digits_of_side(SIDE)
    recipe = replace(RECIPE, batch_size=16, blockwise_epochs=1.0, kd_feature_weight=0.5, grad_accum_steps=1)
    teacher = original()

    def run(
        folder: str, stop: int | None = None, image_size: ImageSize = (SIDE, 2 * SIDE)
    ) -> tuple[BranchedNetwork, TrainingResult]:
        network, request = branched(0.5), StopRequest()

        def see(step: int, steps: int, loss: float) -> None:
            if step == stop:
                request.signal = signal.SIGINT

        phase = BlockwisePhase(
            lambda: BlockwiseStart.of(network, teacher, images, recipe), images.name, see, image_size
        )
        options = RunOptions(tmp_path / folder, resume=stop is None)
        return network, train(network, images, recipe, teacher, None, options, request, phase)

    whole, expected = run("whole")
    assert expected.blockwise is not None
    assert expected.blockwise.steps == 5
    with pytest.raises(StoppedError, match=f"step {stop} of 5 of the block-wise start") as caught:
        run("parts", stop)
    assert caught.value.status == 130
    with pytest.raises(UsageError, match="unfinished"):
        train(branched(0.5), images, recipe, teacher, run=RunOptions(tmp_path / "parts"))
    with pytest.raises(UsageError, match=f"size of the images was {SIDE}x{2 * SIDE} and is {SIDE};"):
        run("parts", image_size=SIDE)
    _, result = run("parts")
    assert result.blockwise is not None
    assert (result.blockwise.before, result.blockwise.after) == (expected.blockwise.before, expected.blockwise.after)
    assert same(tensors_of(tmp_path / "whole"), tensors_of(tmp_path / "parts"))
    assert not RunOptions(tmp_path / "parts").start.exists()
    again, result = run("parts")
    assert result.blockwise is None
    assert same(again.state_dict(), whole.state_dict())


def test_a_stopped_start_makes_place_in_the_folder_of_a_finished_training(tmp_path: Path) -> None:
    images = digits_of_side(SIDE)
    recipe = replace(RECIPE, epochs=1, batch_size=16, blockwise_epochs=1.0)
    options = RunOptions(tmp_path)
    train(branched(0.5), images, recipe, original(), run=options)
    network, request = branched(0.5), StopRequest()
    request.signal = signal.SIGTERM
    phase = BlockwisePhase(lambda: BlockwiseStart.of(network, original(), images, recipe), images.name)
    with pytest.raises(StoppedError) as caught:
        train(network, images, recipe, original(), None, options, request, phase)
    assert caught.value.status == 143
    assert [path.name for path in options.last.parent.iterdir()] == ["start.safetensors"]
    assert not options.result.exists()
