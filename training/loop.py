"""The training loop: recipe, data and perhaps a teacher in, trained weights out."""

from __future__ import annotations

import copy
import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from nnstretch.errors import ModelError, UsageError
from nnstretch.training.averaging import WeightAverage, recompute_batch_norms
from nnstretch.training.checkpoint import Checkpoint, EpochRecord, load_checkpoint
from nnstretch.training.data.split import Dataset
from nnstretch.training.distillation import distillation_loss, hard_loss
from nnstretch.training.evaluation import top1
from nnstretch.training.recipe import Recipe
from nnstretch.training.weights import fill

# Processor features with which products in bfloat16 are faster than in float32.
_BFLOAT16_FEATURES = ("avx512_bf16", "amx_bf16", "bf16", "arm_bf16")
# Seeds of the random streams of one epoch lie this far from those of the next recipe seed.
_EPOCHS_PER_SEED = 1_000_003


@dataclass(frozen=True)
class TrainingEvent:
    """State of a training; sent after every step and after every evaluation.

    Attributes:
        epoch, epochs: the epoch, counted from 1, and how many there are.
        step, steps: steps taken in all epochs so far, and in all.
        image_size: side of the images in pixels.
        loss: of this step; in an evaluation's event, the epoch's mean.
        learning_rate: of this step.
        top1: on the test images, in percent, in an evaluation's event; else None.
        seconds: since the training started, all its parts together if it was resumed.
    """

    epoch: int
    epochs: int
    step: int
    steps: int
    image_size: int
    loss: float
    learning_rate: float
    top1: float | None
    seconds: float


@dataclass(frozen=True)
class TrainingResult:
    """Result of a training.

    Attributes:
        history: one record per epoch.
        top1: of the resulting weights on the test images, in percent.
        seconds: duration, all parts of a resumed training together.
    """

    history: tuple[EpochRecord, ...]
    top1: float
    seconds: float


Progress = Callable[[TrainingEvent], None]


def train(
    module: nn.Module,
    dataset: Dataset,
    recipe: Recipe,
    teacher: nn.Module | None = None,
    progress: Progress | None = None,
    checkpoint: Path | None = None,
    resume: bool = False,
) -> TrainingResult:
    """Train ``module`` in place, on the device that it is on, and leave it in evaluation mode.

    The module ends with the averaged weights if the recipe has an average, and with batch-norm statistics taken at
    full image size if it has precise ones. The same seed, module and number of threads give the same weights on a
    CPU, also when the training was stopped and resumed between.

    Args:
        module: from ``N x C x S x S`` images to ``N x classes`` logits, for all image sizes that the recipe uses.
        dataset: images to learn from and to be tested on.
        recipe: the settings.
        teacher: a trained network of the same classes, whose logits on the same images at full size are learnt
            together with the labels; it is put into evaluation mode and gets no gradients.
        progress: called after every step and every evaluation; what it raises ends the training.
        checkpoint: file that is written after every epoch.
        resume: go on from ``checkpoint`` if that file exists.

    Raises:
        UsageError: a resume without a checkpoint or of another training, or data the recipe cannot use.
        FileError: a checkpoint that is damaged or cannot be written, or an unreadable image.
        ModelError: the loss is not finite, or the checkpoint's weights are not this module's.
    """
    if resume and checkpoint is None:
        raise UsageError("a training was to be resumed, but no checkpoint file was given; give one")
    if len(dataset.train) < 2:
        raise UsageError(f"{dataset.name} has {len(dataset.train)} training images; 2 or more are wanted")
    with ExitStack() as stack:
        stack.enter_context(_threads(recipe.threads))
        stack.enter_context(torch.random.fork_rng())
        for network in (module, teacher):
            if network is not None:
                stack.enter_context(_channels_last(network))
        if teacher is not None:
            teacher.eval()
        training = _Training(module, dataset, recipe, teacher, progress)
        if resume and checkpoint is not None and checkpoint.exists():
            training.restore(load_checkpoint(checkpoint), checkpoint)
        while len(training.history) < recipe.epochs:
            training.run_epoch()
            if checkpoint is not None:
                training.snapshot().save(checkpoint)
        return training.finish()


def uses_bfloat16(recipe: Recipe, device: torch.device) -> bool:
    """Whether a training with ``recipe`` computes matrix products in bfloat16 on ``device``."""
    if recipe.precision == "auto":
        if device.type == "cuda":
            return bool(torch.cuda.is_bf16_supported(including_emulation=False))
        features = torch.cpu.get_capabilities()
        return any(features.get(feature, False) for feature in _BFLOAT16_FEATURES)
    return recipe.precision == "bfloat16"


class _Training:
    """A training under way; between two epochs its whole state is in what :meth:`snapshot` returns."""

    def __init__(
        self,
        module: nn.Module,
        dataset: Dataset,
        recipe: Recipe,
        teacher: nn.Module | None,
        progress: Progress | None,
    ) -> None:
        self.module = module
        self.dataset = dataset
        self.recipe = recipe
        self.teacher = teacher
        self.progress = progress
        self.history: list[EpochRecord] = []
        self.device = next(module.parameters()).device
        self.batch = min(recipe.batch, len(dataset.train))
        # An incomplete last batch is dropped.
        self.steps_per_epoch = len(dataset.train) // self.batch
        self.optimiser = _optimiser(module, recipe)
        self.average = WeightAverage(module, recipe.ema_decay) if recipe.ema_decay > 0 else None
        self.started = time.perf_counter()

    def seconds(self) -> float:
        return time.perf_counter() - self.started

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=uses_bfloat16(self.recipe, self.device))

    def generator(self, epoch: int) -> torch.Generator:
        """The random numbers of one epoch, so that it needs none of those before it."""
        return torch.Generator().manual_seed((self.recipe.seed * _EPOCHS_PER_SEED + epoch) % 2**63)

    def run_epoch(self) -> None:
        """Train for the next epoch and add its record to the history."""
        epoch = len(self.history)
        generator = self.generator(epoch)
        torch.manual_seed(generator.initial_seed())  # dropout draws from torch's global generator
        size = max(1, round(self.dataset.image_size * self.recipe.scale(epoch)))
        order = torch.randperm(len(self.dataset.train), generator=generator)
        self.module.train()
        losses: list[float] = []
        right = 0
        rate = 0.0
        for index in range(self.steps_per_epoch):
            step = epoch * self.steps_per_epoch + index
            rate = self.recipe.rate(step, self.steps_per_epoch)
            chosen = order[index * self.batch : (index + 1) * self.batch]
            loss, right_here = self.step(chosen, size, rate, generator)
            if not math.isfinite(loss):
                raise ModelError(self.divergence(epoch, index, loss, rate))
            losses.append(loss)
            right += right_here
            self.report(step + 1, size, loss, rate, None)
        mean_loss = sum(losses) / len(losses)
        accuracy = self.evaluate_between(epoch)
        if accuracy is not None:
            self.report((epoch + 1) * self.steps_per_epoch, size, mean_loss, rate, accuracy)
        train_accuracy = 100.0 * right / (self.steps_per_epoch * self.batch)
        self.history.append(EpochRecord(epoch + 1, size, mean_loss, train_accuracy, rate, accuracy, self.seconds()))

    def step(self, chosen: Tensor, size: int, rate: float, generator: torch.Generator) -> tuple[float, int]:
        """One step on the images at ``chosen``; their loss, and how many of them were recognised before it."""
        full = self.images(self.recipe.augmentation.apply(self.dataset.train.images(chosen), generator))
        labels = self.dataset.train.labels[chosen].to(self.device)
        with self.autocast():
            logits = self.module(_resized(full, size)).float()
        loss = self.loss(logits, labels, full)
        self.optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward([loss])
        if self.recipe.gradient_clip > 0:
            nn.utils.clip_grad_norm_(self.module.parameters(), self.recipe.gradient_clip)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        self.optimiser.step()
        if self.average is not None:
            self.average.update(self.module)
        return float(loss.detach()), int((logits.detach().argmax(dim=1) == labels).sum())

    def images(self, images: Tensor) -> Tensor:
        return images.to(self.device, memory_format=torch.channels_last)

    def loss(self, logits: Tensor, labels: Tensor, full: Tensor) -> Tensor:
        """Loss of ``logits``; the teacher, if there is one, sees the images ``full`` at full size."""
        if logits.ndim != 2 or logits.shape[1] != self.dataset.num_classes:
            raise ModelError(
                f"the network writes {list(logits.shape)}; {[len(labels), self.dataset.num_classes]} is wanted "
                f"for {self.dataset.name}: build it with num_classes={self.dataset.num_classes}"
            )
        if self.teacher is None:
            return hard_loss(logits, labels, self.recipe.label_smoothing)
        with torch.no_grad(), self.autocast():
            taught = self.teacher(full).float()
        if taught.shape != logits.shape:
            raise ModelError(
                f"the teacher writes {list(taught.shape)}, the network {list(logits.shape)}; "
                "take a teacher of the same classes"
            )
        return distillation_loss(
            logits,
            labels,
            taught,
            weight=self.recipe.distillation_weight,
            temperature=self.recipe.temperature,
            label_smoothing=self.recipe.label_smoothing,
        )

    def divergence(self, epoch: int, index: int, loss: float, rate: float) -> str:
        advice = f"lower learning_rate (it was {rate:.3g} here) or set gradient_clip"
        if uses_bfloat16(self.recipe, self.device):
            advice += ' or precision "float32"'
        return (
            f"the training diverged: the loss is {loss} in epoch {epoch + 1}, step {index + 1} of "
            f"{self.steps_per_epoch}; {advice}, and look for values that are not finite in weights and images"
        )

    def report(self, step: int, size: int, loss: float, rate: float, accuracy: float | None) -> None:
        if self.progress is None:
            return
        steps = self.recipe.epochs * self.steps_per_epoch
        epoch = (step - 1) // self.steps_per_epoch + 1
        self.progress(TrainingEvent(epoch, self.recipe.epochs, step, steps, size, loss, rate, accuracy, self.seconds()))

    def evaluate_between(self, epoch: int) -> float | None:
        """Accuracy of the result if the training ended after ``epoch``; None if the recipe does not evaluate there."""
        every = self.recipe.evaluate_every
        if every == 0 or (epoch + 1) % every != 0 or epoch + 1 == self.recipe.epochs:
            return None
        candidate = copy.deepcopy(self.module)
        self.conclude(candidate)
        return top1(candidate, self.dataset, self.batch)

    def conclude(self, module: nn.Module) -> None:
        """Turn ``module``, which has the weights in training, into a result: averages, statistics."""
        if self.average is not None:
            fill(module, self.average.state, "the average")
        samples = min(self.recipe.precise_bn_samples, len(self.dataset.train))
        if samples > 0:
            with self.autocast():
                recompute_batch_norms(module, self.statistics_batches(samples))

    def statistics_batches(self, samples: int) -> Iterator[Tensor]:
        """``samples`` unchanged training images at full size, in batches of equal size."""
        batch = min(self.batch, samples)
        order = torch.randperm(len(self.dataset.train), generator=self.generator(self.recipe.epochs))
        for index in range(samples // batch):
            yield self.images(self.dataset.train.images(order[index * batch : (index + 1) * batch]))

    def finish(self) -> TrainingResult:
        """Leave the result in the module, evaluate it, and put that into the last epoch's record."""
        self.conclude(self.module)
        self.module.eval()
        accuracy = top1(self.module, self.dataset, self.batch)
        if self.history:
            last = self.history[-1]
            steps = self.recipe.epochs * self.steps_per_epoch
            self.report(steps, last.image_size, last.loss, last.learning_rate, accuracy)
            self.history[-1] = dataclasses.replace(last, top1=accuracy, seconds=self.seconds())
        return TrainingResult(tuple(self.history), accuracy, self.seconds())

    def snapshot(self) -> Checkpoint:
        names: dict[Tensor, str] = {parameter: name for name, parameter in self.module.named_parameters()}
        momentum = {
            names[parameter]: state["momentum_buffer"]
            for parameter, state in self.optimiser.state.items()
            if state.get("momentum_buffer") is not None
        }
        return Checkpoint(
            recipe=self.recipe,
            dataset=self.dataset.name,
            distilled=self.teacher is not None,
            history=tuple(self.history),
            updates=0 if self.average is None else self.average.updates,
            weights=self.module.state_dict(),
            average={} if self.average is None else self.average.state,
            momentum=momentum,
        )

    def restore(self, saved: Checkpoint, source: Path) -> None:
        """Become the training that ``saved`` was taken from.

        Raises:
            UsageError: it was another training.
            ModelError: it was of another network.
        """
        saved.check_same_training(self.recipe, self.dataset.name, distilled=self.teacher is not None)
        fill(self.module, saved.weights, str(source))
        if self.average is not None:
            self.average.restore(saved.average, saved.updates)
        for name, parameter in self.module.named_parameters():
            if name in saved.momentum:
                buffer = torch.empty_like(parameter).copy_(saved.momentum[name])
                self.optimiser.state[parameter]["momentum_buffer"] = buffer.detach()
        self.history = list(saved.history)
        if self.history:
            self.started -= self.history[-1].seconds


def _optimiser(module: nn.Module, recipe: Recipe) -> torch.optim.SGD:
    """SGD whose weight decay spares vectors: scales and shifts of norms, and biases."""
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if not parameters:
        raise ModelError("the network has no weights that can be trained; set requires_grad on some")
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": recipe.weight_decay},
        {"params": [p for p in parameters if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.SGD(
        [group for group in groups if group["params"]],
        lr=recipe.learning_rate,
        momentum=recipe.momentum,
        nesterov=recipe.nesterov,
        fused=True,
    )


def _resized(images: Tensor, size: int) -> Tensor:
    if images.shape[-1] == size:
        return images
    return functional.interpolate(images, size=(size, size), mode="bilinear", antialias=True, align_corners=False)


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _channels_last(module: nn.Module) -> Iterator[None]:
    """Hold the weights of ``module`` in the layout in which CPUs train fastest."""
    module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    try:
        yield
    finally:
        module.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
