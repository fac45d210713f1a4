"""Block-wise start of a branched network: every segment learns the original's feature maps by itself.

A segment lies between two meeting points. It reads the original's feature map at the first one and is trained towards the
original's feature map at the second one. Segments therefore do not depend on each other: one pass of the original over a
batch trains all of them, and several processes can train some each. Labels are not needed. The whole network is then tuned by
logits (`training.loop.trainer`) from a state in which every part already computes nearly what it replaces.

Example: a ResNet-18 has the stages 1 to 4, and a design branches stages 2 and 3. The original computes the feature maps
f1, f2 and f3 at the ends of stages 1, 2 and 3. The branched stage 2 reads f1 and is trained towards f2; the branched
stage 3 reads f2, not the output of the branched stage 2, and is trained towards f3. Stages 1 and 4 equal the original's
and are left alone.

A channel of a branched network stands for one channel of the original, its origin (`BranchedNetwork.origins`). Inputs and
targets are the original's feature maps, reduced to these channels, so no projection is needed. The single-branch control
has no segments with the original's channels at both ends. It starts from inherited weights alone.

Method: block-wise distillation as in Li et al., "Blockwisely Supervised Neural Architecture Search with Knowledge
Distillation" (arXiv:1911.13053), section 3.2.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, distributed, nn

from nnstretch.branching.transform.features import meeting_point_features
from nnstretch.branching.transform.network import BranchedNetwork
from nnstretch.errors import ModelError
from nnstretch.training.data.loader import Batch, TrainingBatches
from nnstretch.training.data.split import Dataset, Indices, Split, image_names, names
from nnstretch.training.data.unreadable import inputs_to_learn_from
from nnstretch.training.distillation.segments import (
    Features,
    SegmentLearner,
    SegmentStudent,
    owners_of,
    segment_losses,
    segment_students,
)
from nnstretch.training.loop.cpu_convolutions import cpu_convolutions
from nnstretch.training.loop.distributed import Ranks
from nnstretch.training.loop.finite import learned_names, non_finite
from nnstretch.training.loop.torch_settings import autocast, channels_last, threads
from nnstretch.training.randomness import seed_of
from nnstretch.training.recipe import Recipe

# Segments with a smaller loss compute what the original computes. The loss of a constant is 1.
_EXACT = 1e-4
_WARMUP_STEPS = 5
_FETCH_STEPS = 16  # steps between looks at the losses on a device, which has to finish its work first
_EXAMPLES = 32
_NAMED_IMAGES = 8


@dataclass(frozen=True)
class BlockwiseResult:
    """Result of a block-wise start.

    Attributes:
        before: loss of every segment in its first step: inherited weights, batch norms with the statistics of the
            batch. For segments that already compute their target, the loss in evaluation mode.
        after: loss of every segment in its last step; that of `before` for segments that were not trained.
        steps: number of steps.
        seconds: duration, all parts of a resumed start together.
        unreadable: index of every image that could not be decoded -> its name and the reason.
        note: what is to be said of these images; one line, or empty.
    """

    before: tuple[float, ...]
    after: tuple[float, ...]
    steps: int
    seconds: float
    unreadable: Mapping[int, str] = field(default_factory=dict)
    note: str = ""


StepProgress = Callable[[int, int, float], None]
"""Called after every step with its number, the number of all steps, and the mean loss of the segments."""


class ImageBatches(Protocol):
    """Batches of training images; `images` and `indices` of each batch are read.

    Attributes:
        unreadable: index of every image that could not be decoded so far -> its name and the reason.
    """

    unreadable: dict[int, str]

    @property
    def steps_per_epoch(self) -> int:
        """Batches in an epoch."""

    def epoch(self, epoch: int, first_step: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, from one of them on."""

    def close(self) -> None:
        """Ends what loads the images."""

    @property
    def note(self) -> str:
        """What is to be said of `unreadable`; one line, or empty."""


def train_segments(
    network: BranchedNetwork,
    original: nn.Module,
    dataset: Dataset,
    recipe: Recipe,
    progress: StepProgress | None = None,
) -> BlockwiseResult:
    """Trains the segments of a branched network in place towards the feature maps of the network it was made from.

    The training images of `dataset` are used; their labels are not read.

    Raises:
        DesignError: the branched network was made from another network.
        ModelError: a loss is not finite.
    """
    start = BlockwiseStart.of(network, original, dataset, recipe)
    start.run(progress)
    return start.result()


class BlockwiseStart:
    """A block-wise start under way: segments of a network learn a teacher's feature maps, side by side.

    The optimiser is Adam; its rate falls along half a cosine. Images have full size and the recipe's augmentation, but are not
    mixed. With several processes each trains some of the segments, on all images, and gets the others' weights at the end. The
    same seed gives the same weights, for any number of processes.

    All of it is in the students' weights and in `state`: a start that was made of these goes on where the other stood.

    Attributes:
        steps: number of steps; 0 if there is nothing to learn.
        step: number of steps taken.
        split: the images, if they are known by more than their batches: it names them in messages.
        teacher: the network that teaches, if it is known by more than its features.
    """

    def __init__(
        self,
        students: Sequence[SegmentStudent],
        features: Features,
        batches: ImageBatches,
        examples: Tensor,
        recipe: Recipe,
        split: Split | None = None,
        teacher: nn.Module | None = None,
    ) -> None:
        """Looks which segments have to learn.

        Args:
            students: the segments, on the device of `examples`. Those that already compute their target are left alone.
            features: the teacher.
            batches: the same in all processes: no part of a batch, but all of it.
            examples: some images, the same in all processes: `N,C,H,W`.
            recipe: `blockwise_epochs`, `blockwise_lr`, `amp_dtype`, `channels_last`, `seed` and `threads` are used.
            split: the images of the batches.
            teacher: the network whose feature maps `features` gives.
        """
        self.split, self.teacher = split, teacher
        self._students = list(students)
        self._features = features
        self._batches = batches
        self._recipe = recipe
        self._device = examples.device
        self._ranks = Ranks.current()
        with threads(recipe.threads):
            self._before, costs = segment_losses(self._students, features(examples))
        self._after = list(self._before)
        self._owners = owners_of(costs, self._ranks.count)
        self._learners: dict[int, SegmentLearner] = {}
        self._set_learning([number for number, loss in enumerate(self._before) if not loss <= _EXACT])
        self._pending: list[tuple[Tensor, Indices]] = []  # losses of a step, and its images
        self._seconds = 0.0
        self._started: float | None = None
        self.step = 0

    @classmethod
    def of(
        cls,
        network: BranchedNetwork,
        original: nn.Module,
        dataset: Dataset,
        recipe: Recipe,
    ) -> BlockwiseStart:
        """The start of a branched network, on its device, with a data set's training images; labels are not read.

        `unlabelled_images` makes a data set of other images.

        Raises:
            DesignError: the branched network was made from another network.
        """
        device = next(network.parameters()).device
        batches = TrainingBatches(dataset, replace(recipe, mixup=0.0, cutmix=0.0), device=device)
        first = np.arange(min(_EXAMPLES, len(dataset.train)))
        examples = torch.from_numpy(inputs_to_learn_from(dataset.train, first, batches.unreadable)).to(device)
        features = meeting_point_features(original, examples[:1], network.design)
        return cls(segment_students(network), features, batches, examples, recipe, dataset.train, original)

    @property
    def finished(self) -> bool:
        """Whether all steps are taken."""
        return self.step >= self.steps

    def run(self, progress: StepProgress | None = None, after_step: Callable[[], None] | None = None) -> None:
        """Takes the remaining steps. The students are in evaluation mode afterwards.

        Args:
            progress: called after steps whose losses are known: all steps on a CPU.
            after_step: called after every step, in all processes; it may read `state` and raise an exception to stop.

        Raises:
            ModelError: a loss is not finite.
        """
        with ExitStack() as stack:
            stack.enter_context(threads(self._recipe.threads))
            stack.enter_context(torch.random.fork_rng(_devices(self._device)))
            for learner in self._learners.values():
                stack.enter_context(channels_last(learner.student.module, wanted=self._recipe.channels_last))
                stack.enter_context(cpu_convolutions(learner.student.module))
            self._started = time.perf_counter()
            for images, indices in self._images():
                self._pending.append((self._train(images), indices))
                self.step += 1
                losses = self._fetch() if self._is_looked_at() else None
                if losses and progress is not None:
                    progress(self.step, self.steps, sum(losses) / len(losses))
                if after_step is not None:
                    after_step()
            self._batches.close()
            self._gather()
            self._seconds += self._running()
            self._started = None
        for student in self._students:
            student.module.eval()

    def result(self) -> BlockwiseResult:
        """Losses of all segments; meant for when it is finished."""
        self._fetch()
        losses = [
            [self._known(values, number) for number in range(len(values))] for values in (self._before, self._after)
        ]
        unreadable = dict(self._batches.unreadable)
        return BlockwiseResult(
            tuple(losses[0]), tuple(losses[1]), self.steps, self._seconds, unreadable, self._batches.note
        )

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """What a checkpoint keeps beside the network's weights: tensors by name, and values for JSON.

        With several processes all have to call it together. The network's weights are those of all segments afterwards.

        Raises:
            ModelError: a loss or a weight is not finite.
        """
        self._fetch()
        self._gather()
        tensors: dict[str, Tensor] = {}
        for number in self._learning:
            learner = self._learners.get(number) or self._learner(number)
            found = learner.tensors() if self._owns(number) else learner.empty_tensors()
            for name, tensor in found.items():
                tensors[f"{number}/{name}"] = self._broadcast(tensor, self._owners[number])
        values = {
            "step": self.step,
            "learning": self._learning,
            "before": [self._known(self._before, number) for number in range(len(self._before))],
            "after": [self._known(self._after, number) for number in range(len(self._after))],
            "seconds": self._seconds + self._running(),
            "unreadable": {str(index): name for index, name in self._batches.unreadable.items()},
        }
        return tensors, values

    def restore(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Goes on from what `state` returned; the network's weights are those of then.

        Raises:
            ModelError: it is of another network.
        """
        if len(values["before"]) != len(self._students):
            raise ModelError(
                f"the checkpoint is of a start with {len(values['before'])} segments, this network has "
                f"{len(self._students)}; resume with the same design"
            )
        self._set_learning(list(values["learning"]))
        self.step = int(values["step"])
        self._before, self._after = list(values["before"]), list(values["after"])
        self._seconds = float(values["seconds"])
        self._batches.unreadable |= {int(index): name for index, name in values.get("unreadable", {}).items()}
        self._pending.clear()
        for number, learner in self._learners.items():
            prefix = f"{number}/"
            learner.restore({name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)})

    def _set_learning(self, learning: Sequence[int]) -> None:
        """Says which segments learn; makes the learners of this process."""
        self._learning = list(learning)
        self.steps = round(self._recipe.blockwise_epochs * self._batches.steps_per_epoch) if learning else 0
        self._learners = {number: self._learner(number) for number in learning if self._owns(number)}

    def _learner(self, number: int) -> SegmentLearner:
        return SegmentLearner(self._students[number], self._recipe, self._device)

    def _owns(self, number: int) -> bool:
        return self._owners[number] == self._ranks.rank

    def _images(self) -> Iterator[tuple[Tensor, Indices]]:
        """The images of the remaining steps, on the device, and their numbers in the split."""
        per_epoch = self._batches.steps_per_epoch
        while not self.finished:
            epoch, first = divmod(self.step, per_epoch)
            for batch in self._batches.epoch(epoch, first):
                images = batch.images.to(self._device, memory_format=torch.channels_last, non_blocking=True)
                yield images, batch.indices.numpy()
                if self.finished:
                    return

    def _train(self, images: Tensor) -> Tensor:
        """One step of this process's segments; their losses before it."""
        with autocast(self._recipe, self._device):
            features = self._features(images)
        rate = self._recipe.blockwise_lr * _schedule(self.step, self.steps)
        losses = []
        for number, learner in self._learners.items():
            torch.manual_seed(seed_of(self._recipe.seed, self.step, number, "blockwise") % 2**63)  # of dropout
            losses.append(learner.learn(features, rate))
        return torch.stack(losses) if losses else torch.empty(0)

    def _running(self) -> float:
        """Seconds since the steps under way began; 0 between runs."""
        return 0.0 if self._started is None else time.perf_counter() - self._started

    def _is_looked_at(self) -> bool:
        """Whether this step's losses are fetched."""
        return self._device.type == "cpu" or self.finished or self.step % _FETCH_STEPS in (0, 1)

    def _fetch(self) -> list[float]:
        """Takes the losses since the last call from the device; returns those of the last step.

        Raises:
            ModelError: one is not finite.
        """
        if not self._pending:
            return []
        rows = torch.stack([losses for losses, _ in self._pending]).tolist()
        images = [indices for _, indices in self._pending]
        first = self.step - len(rows)
        self._pending.clear()
        for step, (row, indices) in enumerate(zip(rows, images, strict=True), first):
            for number, loss in zip(self._learners, row, strict=True):
                if not math.isfinite(loss):
                    raise ModelError(self._divergence(f"the loss of segment {number} is {loss} in", step, indices))
                if step == 0:
                    self._before[number] = loss
                self._after[number] = loss
        return [float(loss) for loss in rows[-1]]

    def _known(self, losses: Sequence[float], number: int) -> float:
        """A segment's loss, from the process that trains it."""
        return float(self._broadcast(torch.tensor(losses[number], dtype=torch.float64), self._owners[number]))

    def _divergence(self, what: str, step: int, indices: Indices | None = None) -> str:
        """The message for values that are not finite.

        Args:
            what: was found, up to the word before the step.
            step: from 0.
            indices: images of the step, if they are known.
        """
        text = f"{what} step {step + 1} of the block-wise start; lower blockwise_lr"
        if indices is None:
            return text
        if self.split is None:
            named = names(list(map(str, indices.tolist())))
        else:
            named = image_names(self.split, indices, _NAMED_IMAGES)
        return f"{text}, and look for values that are not finite in the images of this step, {named}"

    def _gather(self) -> None:
        """Gives all processes the weights of all segments.

        Raises:
            ModelError: a weight is not finite.
        """
        learned: dict[str, Tensor] = {}
        for number in self._learning:
            module = self._students[number].module
            state = module.state_dict()
            for tensor in state.values():
                tensor.copy_(self._broadcast(tensor, self._owners[number]))
            learned |= {f"{name} of segment {number}": state[name] for name in learned_names(module) & state.keys()}
        if bad := non_finite(learned):
            raise ModelError(self._divergence(f"{bad} after", self.step - 1))

    def _broadcast(self, tensor: Tensor, owner: int) -> Tensor:
        """The tensor of one process, in all of them."""
        if self._ranks.count == 1:
            return tensor
        sent = tensor.detach().clone(memory_format=torch.contiguous_format)
        distributed.broadcast(sent, src=owner)
        return sent


def _devices(device: torch.device) -> list[torch.device]:
    """Devices, beside the CPU, whose random numbers a start draws."""
    return [] if device.type == "cpu" else [device]


def _schedule(step: int, steps: int) -> float:
    """Share of the highest rate: a short linear warm-up, then half a cosine."""
    return min(1.0, (step + 1) / _WARMUP_STEPS) * 0.5 * (1 + math.cos(math.pi * step / steps))
