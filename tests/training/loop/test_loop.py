"""The training loop: it learns, goes on exactly where it stopped, and says what went wrong."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from nnstretch.errors import FileError, ModelError, UsageError
from nnstretch.training.data import load_dataset
from nnstretch.training.data.split import ArraySplit, Dataset
from nnstretch.training.loop.checkpoint import load_checkpoint
from nnstretch.training.loop.events import TrainingEvent
from nnstretch.training.loop.run_folder import RunOptions
from nnstretch.training.loop.trainer import train
from nnstretch.training.recipe import Recipe
from nnstretch.training.weights import read_tensors, save_weights, write_tensors
from tests.kits.networks.splits import UntouchableSplit

RECIPE = Recipe(
    epochs=3,
    batch_size=16,
    lr=0.1,
    warmup_epochs=0.5,
    model_ema=True,
    model_ema_decay=0.9,
    scales=((2, 0.5), (1, 1.0)),
    precise_bn_samples=32,
    shift=0.05,
    rotation=5.0,
    amp_dtype="float32",
    threads=1,
)


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(256, 10),
    )


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return load_dataset("digits", 16)


@pytest.fixture(scope="module")
def few(digits: Dataset) -> Dataset:
    """The first of the digits, for what need not learn. A training must not read the test images."""
    return replace(
        digits,
        train=ArraySplit(digits.train.arrays(np.arange(70)), digits.train.labels[:70]),
        validation=ArraySplit(digits.validation.arrays(np.arange(20)), digits.validation.labels[:20]),
        test=UntouchableSplit(),
    )


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def test_a_small_network_learns_the_digits(digits: Dataset) -> None:
    module = network()
    result = train(module, digits, replace(RECIPE, epochs=6, scales=((4, 0.5), (2, 1.0))))
    assert result.validation_score > 93
    assert not module.training
    assert [record.image_size for record in result.history] == [8] * 4 + [16] * 2
    assert result.history[-1].loss < 0.3 * result.history[0].loss
    assert result.history[-1].validation_score == result.validation_score
    assert all(record.validation_score is not None for record in result.history)


def test_a_training_stops_at_its_target_accuracy(digits: Dataset) -> None:
    recipe = replace(RECIPE, epochs=20, scales=(), target_accuracy=60.0)
    result = train(network(), digits, recipe)
    accuracies = [record.validation_score or 0.0 for record in result.history]
    assert len(accuracies) < 20
    assert accuracies[-1] == result.validation_score >= 60.0
    assert all(accuracy < 60.0 for accuracy in accuracies[:-1])


def test_a_student_that_has_the_target_accuracy_is_not_trained(digits: Dataset) -> None:
    teacher = network()
    reached = train(teacher, digits, replace(RECIPE, evaluate_every=0)).validation_score
    recipe = replace(RECIPE, target_accuracy=reached - 5)
    student = network()
    student.load_state_dict(teacher.state_dict())
    result = train(student, digits, recipe, teacher=teacher)
    assert result.history == ()
    assert result.validation_score >= reached - 5
    assert not student.training
    assert len(train(network(), digits, recipe, teacher=teacher).history) > 0


def test_a_student_is_compared_with_its_start(digits: Dataset) -> None:
    teacher, student = network(), network()
    reached = train(teacher, digits, replace(RECIPE, evaluate_every=0))
    assert reached.start_score is None
    student.load_state_dict(teacher.state_dict())
    result = train(student, digits, replace(RECIPE, lr=5.0, epochs=2, scales=(), precise_bn_samples=0), teacher=teacher)
    assert result.start_score == reached.validation_score > result.validation_score
    assert result.best_score == max(record.validation_score or 0.0 for record in result.history)


def test_a_training_without_progress_stops_after_its_patience(few: Dataset, tmp_path: Path) -> None:
    idle = replace(RECIPE, lr=0.0, scales=(), epochs=9, patience=2, model_ema=False, precise_bn_samples=70)
    idle = replace(idle, shift=0.0, rotation=0.0)
    options = RunOptions(tmp_path, resume=True)
    result = train(network(), few, idle, run=options)
    assert len(result.history) == 3
    resumed = train(network(), few, idle, run=options)
    assert resumed.history[:2] == result.history[:2]
    assert len(resumed.history) == 3
    with pytest.raises(UsageError, match="evaluate_every was 1 and is 2"):
        train(network(), few, replace(idle, evaluate_every=2), run=options)


def test_bfloat16_learns_too(digits: Dataset) -> None:
    recipe = replace(RECIPE, amp_dtype="bfloat16", evaluate_every=0)
    result = train(network(), digits, recipe)
    assert result.validation_score > 85
    assert [record.validation_score for record in result.history[:-1]] == [None, None]


def test_a_student_learns_what_the_labels_do_not_say(few: Dataset) -> None:
    class Swapping(nn.Module):
        """Calls every image by the next class, with certainty."""

        def forward(self, x: Tensor) -> Tensor:
            index = (x.flatten(1)[:, None] - few_images(few)[None]).abs().sum(dim=2).argmin(dim=1)
            return nn.functional.one_hot((torch.from_numpy(few.train.labels)[index] + 1) % 10, 10) * 20.0

    def few_images(dataset: Dataset) -> Tensor:
        return dataset.train.images(torch.arange(len(dataset.train))).flatten(1)

    recipe = Recipe(epochs=25, batch_size=14, lr=0.05, kd_loss_weight=1.0, kd_temperature=2.0, evaluate_every=0)
    module = network()
    train(module, few, replace(recipe, amp_dtype="float32"), teacher=Swapping())
    with torch.no_grad():
        learnt = module(few.train.images(torch.arange(70))).argmax(dim=1).numpy()
    assert float((learnt == (few.train.labels + 1) % 10).mean()) > 0.9


def test_the_teacher_is_not_changed_and_sees_full_size(few: Dataset) -> None:
    teacher = network(1)
    before = network(1)
    sizes = set()
    teacher.register_forward_hook(lambda _, inputs, __: sizes.add(inputs[0].shape[-1]))
    train(network(), few, RECIPE, teacher=teacher)
    assert same_weights(teacher, before)
    assert sizes == {16}
    assert all(parameter.grad is None for parameter in teacher.parameters())


def test_the_same_seed_gives_the_same_weights_and_leaves_torch_alone(few: Dataset) -> None:
    first, second, third = network(), network(), network()
    torch.manual_seed(1)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    train(first, few, RECIPE)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.get_num_threads() == threads
    torch.manual_seed(2)
    train(second, few, replace(RECIPE, evaluate_every=0))
    train(third, few, replace(RECIPE, seed=1))
    assert same_weights(first, second)
    assert not same_weights(first, third)
    assert all(value.is_contiguous() for value in first.state_dict().values())


def stop_at(step: int, error: type[BaseException]) -> Callable[[TrainingEvent], None]:
    def stop(event: TrainingEvent) -> None:
        if event.step == step and event.validation_score is None:
            raise error

    return stop


@pytest.mark.parametrize("step", [6, 9, 12])
def test_a_training_that_died_goes_on_exactly(few: Dataset, tmp_path: Path, step: int) -> None:
    options = RunOptions(tmp_path / "run")
    teacher = network(5)
    whole, stopped, resumed = network(), network(), network(9)
    expected = train(whole, few, RECIPE, teacher)
    with pytest.raises(KeyboardInterrupt):
        train(stopped, few, RECIPE, teacher, progress=stop_at(step, KeyboardInterrupt), run=options)
    assert len(load_checkpoint(options.last).history) == (step - 1) // 4
    result = train(resumed, few, RECIPE, teacher, run=replace(options, resume=True))
    assert same_weights(whole, resumed)
    assert result.validation_score == expected.validation_score
    assert [record.loss for record in result.history] == [record.loss for record in expected.history]


def test_a_finished_training_and_one_not_begun_can_be_resumed(few: Dataset, tmp_path: Path) -> None:
    options = RunOptions(tmp_path / "run", resume=True)
    first, second = network(), network(3)
    train(first, few, RECIPE, run=options)
    train(second, few, RECIPE, run=options)
    assert same_weights(first, second)


def test_what_cannot_be_resumed_is_refused(few: Dataset, tmp_path: Path) -> None:
    options = RunOptions(tmp_path, resume=True)
    train(network(), few, RECIPE, run=options)
    with pytest.raises(UsageError, match=r"lr was 0\.1 and is 0\.2"):
        train(network(), few, replace(RECIPE, lr=0.2), run=options)
    with pytest.raises(UsageError, match="a teacher is new"):
        train(network(), few, RECIPE, teacher=network(), run=options)
    train(network(), few, RECIPE, teacher=network(), run=replace(options, folder=tmp_path / "taught"))
    with pytest.raises(UsageError, match=r"digest of the teacher's weights was \w{16} and is \w{16}; use the same"):
        train(network(), few, RECIPE, teacher=network(1), run=replace(options, folder=tmp_path / "taught"))
    fewer = replace(few, train=ArraySplit(few.train.arrays(np.arange(69)), few.train.labels[:69]))
    with pytest.raises(
        UsageError, match="number of training images was 70 and is 69; digest of the training labels was"
    ):
        train(network(), fewer, RECIPE, run=options)
    with pytest.raises(UsageError, match="data set was digits and is letters"):
        train(network(), replace(few, name="letters"), RECIPE, run=options)
    with pytest.raises(ModelError, match=r"9\.weight"):
        train(nn.Sequential(*list(network())[:-1], nn.Linear(256, 11)), few, RECIPE, run=options)
    content = options.last.read_bytes()
    for damaged in (content[:-100], content[:-1] + bytes([content[-1] ^ 1]), b""):
        options.last.write_bytes(damaged)
        with pytest.raises(FileError, match=r"last\.safetensors"):
            train(network(), few, RECIPE, run=options)
    save_weights(network(), options.last)
    with pytest.raises(FileError, match="no training checkpoint"):
        train(network(), few, RECIPE, run=options)


def test_checkpoints_of_the_version_before_are_resumed(few: Dataset, tmp_path: Path) -> None:
    """They know neither the teacher's weights nor the labels."""
    options = RunOptions(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        train(network(), few, RECIPE, network(5), progress=stop_at(6, KeyboardInterrupt), run=options)
    tensors, metadata = read_tensors(options.last)
    header = json.loads(metadata["nnstretch.checkpoint"])
    header["version"] = 3
    for name in ("teacher", "images", "labels"):
        del header["setup"][name]
    for name in ("unreadable", "start_note"):
        del header["counters"][name]
    write_tensors(options.last, tensors, {"nnstretch.checkpoint": json.dumps(header)})
    whole, resumed = network(), network(9)
    train(whole, few, RECIPE, network(5))
    train(resumed, few, RECIPE, network(5), run=replace(options, resume=True))
    assert same_weights(whole, resumed)
    header["version"] = 99
    write_tensors(options.last, tensors, {"nnstretch.checkpoint": json.dumps(header)})
    with pytest.raises(FileError, match="of version 99; this nnstretch reads 3 and 4: update it"):
        train(network(), few, RECIPE, network(5), run=replace(options, resume=True))


def test_a_run_folder_that_cannot_be_written_is_named(few: Dataset, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match="file"):
        train(network(), few, RECIPE, run=RunOptions(tmp_path / "file" / "run"))


def test_divergence_names_epoch_step_and_a_way_out(few: Dataset) -> None:
    images = few.train.arrays(np.arange(70))
    images[:, 0, 0, 0] = np.nan
    broken = replace(few, train=ArraySplit(images, few.train.labels))
    with pytest.raises(ModelError, match=r"loss is nan in epoch 1, step 1 of 4; lower lr") as caught:
        train(network(), broken, RECIPE)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("with_teacher", [False, True])
def test_networks_of_other_classes_are_refused(few: Dataset, with_teacher: bool) -> None:
    other = nn.Sequential(*list(network())[:-1], nn.Linear(256, 7))
    module, teacher = (network(), other) if with_teacher else (other, None)
    with pytest.raises(ModelError, match=r"\[16, 7\]"):
        train(module, few, RECIPE, teacher=teacher)


def test_every_step_and_every_evaluation_is_reported(few: Dataset) -> None:
    events: list[TrainingEvent] = []
    result = train(network(), few, RECIPE, progress=events.append)
    steps = [event for event in events if event.validation_score is None]
    assert [(event.step, event.epoch) for event in steps] == [(step + 1, step // 4 + 1) for step in range(12)]
    assert [event.learning_rate for event in steps] == [RECIPE.rate(step, 4) for step in range(12)]
    assert {event.steps for event in events} == {12}
    assert [event.validation_score for event in events if event.validation_score is not None] == [
        record.validation_score for record in result.history
    ]
    assert events[-1].seconds <= result.seconds


def test_vectors_do_not_decay_and_matrices_do(few: Dataset) -> None:
    class Idle(nn.Module):
        """A network whose weights get gradients of zero alone."""

        def __init__(self) -> None:
            super().__init__()
            self.matrix = nn.Parameter(torch.ones(10, 10))
            self.vector = nn.Parameter(torch.ones(10))

        def forward(self, x: Tensor) -> Tensor:
            return torch.zeros(len(x), 10) + 0 * self.matrix.sum() + 0 * self.vector

    module = Idle()
    train(module, few, Recipe(epochs=1, batch_size=70, lr=0.5, momentum=0.0, opt="momentum", weight_decay=0.1))
    torch.testing.assert_close(module.matrix.detach(), torch.full((10, 10), 0.95))
    assert torch.equal(module.vector.detach(), torch.ones(10))


def test_a_clipped_gradient_has_its_limit(few: Dataset) -> None:
    clipped, start = network(), network()
    recipe = Recipe(
        epochs=1, batch_size=70, lr=1.0, momentum=0.0, opt="momentum", weight_decay=0, clip_grad=0.01,
        amp_dtype="float32",
    )  # fmt: skip
    train(clipped, few, recipe)
    pairs = zip(clipped.parameters(), start.parameters(), strict=True)
    moved = torch.cat([(a - b).detach().flatten() for a, b in pairs]).norm()
    assert float(moved) == pytest.approx(0.01, rel=1e-3)


def test_statistics_are_those_of_full_size(few: Dataset) -> None:
    """The first batch norm's mean is that of the convolution's output on the whole of the data."""
    recipe = replace(RECIPE, epochs=1, scales=((1, 0.5),), batch_size=35, precise_bn_samples=70)
    module = network()
    train(module, few, recipe)
    with torch.no_grad():
        seen = module[0](few.train.images(torch.arange(70)))
    torch.testing.assert_close(module[1].running_mean, seen.mean((0, 2, 3)), atol=1e-5, rtol=1e-4)
