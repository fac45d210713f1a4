"""The training loop: it learns, goes on exactly where it stopped, and says what went wrong."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from nnstretch.errors import FileError, ModelError, UsageError
from nnstretch.training.augmentation import Augmentation
from nnstretch.training.checkpoint import load_checkpoint
from nnstretch.training.data import load_dataset
from nnstretch.training.data.split import Dataset, TensorSplit
from nnstretch.training.loop import TrainingEvent, train
from nnstretch.training.recipe import Recipe
from nnstretch.training.weights import save_weights

RECIPE = Recipe(
    epochs=3,
    batch=16,
    learning_rate=0.1,
    warmup_epochs=0.5,
    ema_decay=0.9,
    scales=((2, 0.5), (1, 1.0)),
    precise_bn_samples=32,
    augmentation=Augmentation(shift=0.05, rotation=5),
    precision="float32",
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
    """The first of the digits, for what need not learn."""
    return replace(
        digits,
        train=TensorSplit(digits.train.images(torch.arange(70)), digits.train.labels[:70]),
        test=TensorSplit(digits.test.images(torch.arange(20)), digits.test.labels[:20]),
    )


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def test_a_small_network_learns_the_digits(digits: Dataset) -> None:
    module = network()
    result = train(module, digits, replace(RECIPE, epochs=6, scales=((4, 0.5), (2, 1.0))))
    assert result.top1 > 93
    assert not module.training
    assert [record.image_size for record in result.history] == [8] * 4 + [16] * 2
    assert result.history[-1].loss < 0.3 * result.history[0].loss
    assert result.history[-1].top1 == result.top1
    assert all(record.top1 is not None for record in result.history)


def test_bfloat16_learns_too(digits: Dataset) -> None:
    recipe = replace(RECIPE, precision="bfloat16", evaluate_every=0)
    result = train(network(), digits, recipe)
    assert result.top1 > 85
    assert [record.top1 for record in result.history[:-1]] == [None, None]


def test_a_student_learns_what_the_labels_do_not_say(few: Dataset) -> None:
    class Swapping(nn.Module):
        """Calls every image by the next class, with certainty."""

        def forward(self, x: Tensor) -> Tensor:
            index = (x.flatten(1)[:, None] - few_images(few)[None]).abs().sum(dim=2).argmin(dim=1)
            return nn.functional.one_hot((few.train.labels[index] + 1) % 10, 10) * 20.0

    def few_images(dataset: Dataset) -> Tensor:
        return dataset.train.images(torch.arange(len(dataset.train))).flatten(1)

    recipe = Recipe(epochs=25, batch=14, learning_rate=0.05, distillation_weight=1.0, temperature=2.0, evaluate_every=0)
    module = network()
    train(module, few, replace(recipe, precision="float32"), teacher=Swapping())
    with torch.no_grad():
        learnt = module(few.train.images(torch.arange(70))).argmax(dim=1)
    assert float((learnt == (few.train.labels + 1) % 10).float().mean()) > 0.9


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
        if event.step == step and event.top1 is None:
            raise error

    return stop


@pytest.mark.parametrize("step", [6, 9, 12])
def test_a_stopped_training_goes_on_exactly(few: Dataset, tmp_path: Path, step: int) -> None:
    path = tmp_path / "training.safetensors"
    teacher = network(5)
    whole, stopped, resumed = network(), network(), network(9)
    expected = train(whole, few, RECIPE, teacher)
    with pytest.raises(KeyboardInterrupt):
        train(stopped, few, RECIPE, teacher, progress=stop_at(step, KeyboardInterrupt), checkpoint=path)
    assert len(load_checkpoint(path).history) == (step - 1) // 4
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    result = train(resumed, few, RECIPE, teacher, checkpoint=path, resume=True)
    assert same_weights(whole, resumed)
    assert result.top1 == expected.top1
    assert [record.loss for record in result.history] == [record.loss for record in expected.history]


def test_a_finished_training_and_one_not_begun_can_be_resumed(few: Dataset, tmp_path: Path) -> None:
    path = tmp_path / "training.safetensors"
    first, second = network(), network(3)
    train(first, few, RECIPE, checkpoint=path, resume=True)
    train(second, few, RECIPE, checkpoint=path, resume=True)
    assert same_weights(first, second)


def test_what_cannot_be_resumed_is_refused(few: Dataset, tmp_path: Path) -> None:
    path = tmp_path / "training.safetensors"
    train(network(), few, RECIPE, checkpoint=path)
    with pytest.raises(UsageError, match=r"learning_rate was 0\.1 and is 0\.2"):
        train(network(), few, replace(RECIPE, learning_rate=0.2), checkpoint=path, resume=True)
    with pytest.raises(UsageError, match="a teacher is new"):
        train(network(), few, RECIPE, teacher=network(), checkpoint=path, resume=True)
    with pytest.raises(UsageError, match="data set was digits and is letters"):
        train(network(), replace(few, name="letters"), RECIPE, checkpoint=path, resume=True)
    with pytest.raises(ModelError, match=r"9\.weight"):
        train(nn.Sequential(*list(network())[:-1], nn.Linear(256, 11)), few, RECIPE, checkpoint=path, resume=True)
    with pytest.raises(UsageError, match="no checkpoint"):
        train(network(), few, RECIPE, resume=True)
    content = path.read_bytes()
    for damaged in (content[:-100], content[:-1] + bytes([content[-1] ^ 1]), b""):
        path.write_bytes(damaged)
        with pytest.raises(FileError, match=r"training\.safetensors"):
            train(network(), few, RECIPE, checkpoint=path, resume=True)
    save_weights(network(), path)
    with pytest.raises(FileError, match="no training checkpoint"):
        train(network(), few, RECIPE, checkpoint=path, resume=True)


def test_a_checkpoint_that_cannot_be_written_is_named(few: Dataset, tmp_path: Path) -> None:
    with pytest.raises(FileError, match="absent"):
        train(network(), few, RECIPE, checkpoint=tmp_path / "absent" / "training.safetensors")


def test_divergence_names_epoch_step_and_a_way_out(few: Dataset) -> None:
    images = few.train.images(torch.arange(70))
    images[:, 0, 0, 0] = torch.nan
    broken = replace(few, train=TensorSplit(images, few.train.labels))
    with pytest.raises(ModelError, match=r"loss is nan in epoch 1, step 1 of 4; lower learning_rate") as caught:
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
    steps = [event for event in events if event.top1 is None]
    assert [(event.step, event.epoch) for event in steps] == [(step + 1, step // 4 + 1) for step in range(12)]
    assert [event.learning_rate for event in steps] == [RECIPE.rate(step, 4) for step in range(12)]
    assert {event.steps for event in events} == {12}
    assert [event.top1 for event in events if event.top1 is not None] == [record.top1 for record in result.history]
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
    train(module, few, Recipe(epochs=1, batch=70, learning_rate=0.5, momentum=0, nesterov=False, weight_decay=0.1))
    torch.testing.assert_close(module.matrix.detach(), torch.full((10, 10), 0.95))
    assert torch.equal(module.vector.detach(), torch.ones(10))


def test_a_clipped_gradient_has_its_limit(few: Dataset) -> None:
    clipped, start = network(), network()
    recipe = Recipe(
        epochs=1, batch=70, learning_rate=1.0, momentum=0, nesterov=False, weight_decay=0, gradient_clip=0.01,
        precision="float32",
    )  # fmt: skip
    train(clipped, few, recipe)
    pairs = zip(clipped.parameters(), start.parameters(), strict=True)
    moved = torch.cat([(a - b).detach().flatten() for a, b in pairs]).norm()
    assert float(moved) == pytest.approx(0.01, rel=1e-3)


def test_statistics_are_those_of_full_size(few: Dataset) -> None:
    """The first batch norm's mean is that of the convolution's output on the whole of the data."""
    recipe = replace(RECIPE, epochs=1, scales=((1, 0.5),), batch=35, precise_bn_samples=70)
    module = network()
    train(module, few, recipe)
    with torch.no_grad():
        seen = module[0](few.train.images(torch.arange(70)))
    torch.testing.assert_close(module[1].running_mean, seen.mean((0, 2, 3)), atol=1e-5, rtol=1e-4)
