"""The training loop: recipe, data and perhaps a teacher in, trained weights out."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice

import numpy as np
import torch
from torch import nn

from nnstretch.errors import ModelError, UsageError
from nnstretch.support.image_size import ImageSize, scaled
from nnstretch.training.data.loader import TrainingBatches, lost_workers_named
from nnstretch.training.data.split import Dataset, image_names
from nnstretch.training.distillation.blockwise import BlockwiseResult
from nnstretch.training.distillation.blockwise_phase import BlockwisePhase
from nnstretch.training.distillation.objectives import Distillation, TargetObjective
from nnstretch.training.loop.averaging import WeightAverage
from nnstretch.training.loop.checkpoint import (
    Checkpoint,
    EpochRecord,
    TrainingCounters,
    TrainingSetup,
    TrainingState,
    load_checkpoint,
)
from nnstretch.training.loop.conclusion import Conclusion
from nnstretch.training.loop.cpu_convolutions import cpu_convolutions
from nnstretch.training.loop.distributed import Ranks, parallel, synchronised_batch_norms
from nnstretch.training.loop.events import Progress, TrainingEvent, TrainingResult, log_entry, result_json
from nnstretch.training.loop.finite import learned_names, non_finite
from nnstretch.training.loop.optimisers import make_optimiser
from nnstretch.training.loop.run_folder import RunFolder, RunOptions
from nnstretch.training.loop.sharding import sharded_copy
from nnstretch.training.loop.steps import Stepper, TakenStep
from nnstretch.training.loop.stopping import StopRequest
from nnstretch.training.loop.torch_settings import (
    amp_dtype,
    channels_last,
    compiled,
    dropout,
    threads,
    tuned_convolutions,
)
from nnstretch.training.randomness import permutation
from nnstretch.training.recipe import Recipe
from nnstretch.training.tasks.base import CountedTask
from nnstretch.training.weights import fill, load_weights

FETCH_INTERVAL = 20
"""On accelerators, losses are fetched and reported after this many steps: fetching one waits for the device."""
_LOG_INTERVAL = 50
# Of the training images, for the objective's own preparations.
_EXAMPLES = 32
_NAMED_IMAGES = 8


def train(
    module: nn.Module,
    dataset: Dataset,
    recipe: Recipe,
    teacher: nn.Module | None = None,
    progress: Progress | None = None,
    run: RunOptions | None = None,
    stop: StopRequest | None = None,
    start: BlockwisePhase | None = None,
) -> TrainingResult:
    """Trains `module` in place, on the device that it is on, and leaves it in evaluation mode.

    The module ends with the weights of the epoch that is the best on the validation images, or of the last one if the recipe
    says so: with the averaged weights if the recipe has an average, and with batch-norm statistics taken at full image size if
    it has precise ones. The same seed, module and number of threads give the same weights on a CPU, also when the
    training was stopped after any step and resumed. A recipe with a target accuracy or a patience ends it before its last
    epoch; the history is shorter then, or empty if a student has the target accuracy at the start.

    In the process group of torch, if there is one, each process trains on its share of every batch, and all end with the
    same weights. The first process writes and reports.

    Args:
        module: from `N x C x H x W` images to the outputs of the data set's task, such as `N x classes` logits, for all image
            sizes that the recipe uses.
        dataset: images to learn from and to validate on, and the task; its test images are not read.
        recipe: the settings.
        teacher: a trained network of the same classes on the same device, whose logits and feature maps for the same images at
            full size are learnt together with the labels; it is put into evaluation mode and gets no gradients.
        progress: called for every step and every evaluation; what it raises ends the training.
        run: folder for log and checkpoints, and whether to resume.
        stop: ends the training after a step when it is requested, with a checkpoint if there is a folder.
        start: the block-wise start of a branched network, before the first step.

    Raises:
        UsageError: a resume of another training, a folder in use, or data the recipe cannot use.
        FileError: a checkpoint that is damaged or cannot be written, or an unreadable image.
        ModelError: the loss or the weights are not finite, or the checkpoint's weights are not this module's.
        StoppedError: a stop was requested.
    """
    if len(dataset.train) < 2:
        raise UsageError(f"{dataset.name} has {len(dataset.train)} training images; 2 or more are wanted")
    if not len(dataset.validation):
        raise UsageError(f"{dataset.name} has no validation images; add training images, which validate in part")
    if teacher is not None and recipe.epochs:
        dataset.task.check_teaching(recipe.kd_feature_weight)
    ranks = Ranks.current()
    with ExitStack() as stack:
        stack.enter_context(lost_workers_named())
        stack.enter_context(_settings(module, recipe))
        folder = RunFolder(run) if run is not None and ranks.is_first else None
        if folder is not None:
            stack.callback(folder.close)
        if run is not None:
            run.check()
        started = start.run(module, recipe, run, folder, stop) if start is not None else None
        for network in filter(None, (module, teacher)):
            stack.enter_context(channels_last(network, wanted=recipe.channels_last))
        trainer = Trainer(module, dataset, recipe, teacher, ranks, progress, folder, stop)
        stack.callback(trainer.close)
        stack.enter_context(compiled(module, recipe.torchcompile))
        for network in filter(None, (module, teacher)):
            stack.enter_context(cpu_convolutions(network, wanted=recipe.torchcompile is None))
        if start is not None and started is not None:
            trainer.follow(started, start.images)
        trainer.begin(run)
        return trainer.run()


@contextmanager
def _settings(module: nn.Module, recipe: Recipe) -> Iterator[None]:
    """Settings of torch during a training."""
    device = _device(module)
    generators = torch.random.fork_rng([device] if device.type == "cuda" else [])
    with threads(recipe.threads), generators, dropout(module, recipe.drop), tuned_convolutions(device):
        yield


def _device(module: nn.Module) -> torch.device:
    return next((parameter.device for parameter in module.parameters()), torch.device("cpu"))


class Trainer:
    """A training under way.

    Attributes:
        state: all that changes.
    """

    def __init__(
        self,
        module: nn.Module,
        dataset: Dataset,
        recipe: Recipe,
        teacher: nn.Module | None,
        ranks: Ranks,
        progress: Progress | None,
        folder: RunFolder | None,
        stop: StopRequest | None,
    ) -> None:
        """Prepares the first step. The arguments are those of `train`."""
        self._module, self._dataset, self._recipe, self._ranks = module, dataset, recipe, ranks
        self._progress, self._folder, self._stop = progress, folder, stop
        self._device = _device(module)
        self._setup = TrainingSetup.of(recipe, dataset.name, dataset.train, teacher, dataset.image_size)
        self._batches = TrainingBatches(dataset, recipe, rank=ranks.rank, ranks=ranks.count, device=self._device)
        self._steps_per_epoch = math.ceil(self._batches.steps_per_epoch / recipe.grad_accum_steps)
        self._conclusion = Conclusion(
            dataset, recipe, self._device, self._batches.batch, ranks, self._batches.unreadable
        )
        objective = TargetObjective(dataset.task) if teacher is None else self._distillation(module, teacher)
        sharded = sharded_copy(module, recipe, ranks, self._device)
        trained = sharded.network if sharded else module
        self.state = TrainingState(
            module,
            objective,
            make_optimiser(trained, objective, recipe),
            torch.amp.GradScaler(self._device.type, enabled=amp_dtype(recipe, self._device) == torch.float16),
            WeightAverage(trained, recipe.model_ema_decay) if recipe.model_ema else None,
            TrainingCounters(),
            sharded,
        )
        self._learned = learned_names(trained)
        self._stepper = Stepper(self.state, module, dataset, recipe, ranks, self._device)
        self._pending: list[TakenStep] = []
        self._evaluated: nn.Module | None = None  # the result if the training ended after the last epoch
        self._was_finished = False  # its log has the last evaluation
        self._blockwise: BlockwiseResult | None = None
        self._best: nn.Module | None = None  # the best result so far, if there is no folder that keeps it
        self._run: RunOptions | None = None  # of the first process, which writes, and of all others
        self._start_accuracy: float | None = None  # if it was evaluated before the first epoch
        self._started = self._fetched = time.perf_counter()
        self._images_per_second = 0.0

    def _distillation(self, module: nn.Module, teacher: nn.Module) -> Distillation:
        recipe = self._recipe
        return Distillation(
            module,
            teacher,
            self._conclusion.images(np.arange(min(_EXAMPLES, len(self._dataset.train)))),
            weight=recipe.kd_loss_weight,
            temperature=recipe.kd_temperature,
            feature_weight=recipe.kd_feature_weight,
            torchcompile=recipe.torchcompile,
            task=self._dataset.task,
        )

    def begin(self, run: RunOptions | None) -> None:
        """Resumes, if that is wanted and there is a checkpoint, and opens the run folder."""
        self._run = run
        if run is not None and run.resume and run.last.exists():
            saved = load_checkpoint(run.last)
            saved.setup.check(self._setup)
            self.state.restore(saved, str(run.last))
            self._was_finished = run.result.exists()
            self._started -= self.state.counters.seconds
        if bad := self._non_finite():
            where = f"of the checkpoint {run.last}" if run is not None and self._steps_done else "of the network"
            raise ModelError(f"{bad} among the weights {where}; train from weights that are finite")
        self.state.optimiser.zero_grad(set_to_none=True)  # what came before may have left gradients
        self._ranks.wait()
        sharded = self.state.sharded
        network = sharded.network if sharded else parallel(self._module, self._ranks, self._device)
        self._stepper = Stepper(self.state, network, self._dataset, self._recipe, self._ranks, self._device)
        self._gather_unreadable()
        checkpoint = self._checkpoint()
        if self._folder is not None and checkpoint is not None:
            self._folder.begin(checkpoint, self._steps_done)

    def follow(self, start: BlockwiseResult, images: str) -> None:
        """Takes over the result of a block-wise start, and what it has found out about the images; called before `begin`.

        Args:
            start: that came before the first step.
            images: name of its data set.
        """
        self._blockwise = start
        if images == self._dataset.name:
            self.state.counters.unreadable |= start.unreadable
        elif start.note:
            self.state.counters.start_note = f"block-wise start on {images}: {start.note}"

    def close(self) -> None:
        """Ends the processes that load images, and leaves the network without hooks."""
        self._batches.close()
        self.state.objective.close()

    def run(self) -> TrainingResult:
        """Trains to the end."""
        while not self._ended():
            self._run_epoch()
        return self._finish()

    @property
    def _steps_done(self) -> int:
        counters = self.state.counters
        return counters.epoch * self._steps_per_epoch + counters.step

    def _seconds(self) -> float:
        return time.perf_counter() - self._started

    def _ended(self) -> bool:
        """Whether all epochs are done, or an evaluation ends the training.

        A student is evaluated before its first epoch, too: with inherited weights it may have the target accuracy, and a
        training can make them worse.
        """
        counters, recipe = self.state.counters, self._recipe
        if not self._steps_done and self._setup.distilled:
            self._evaluated = self._copied()
            self._start_accuracy = self._conclusion.quick_accuracy(self._evaluated)
            return recipe.epochs == 0 or recipe.stops_after([self._start_accuracy])
        return counters.has_ended(recipe)

    # -- steps ---------------------------------------------------------------------------------------------------

    def _run_epoch(self) -> None:
        """Trains for the rest of the running epoch and adds its record to the history."""
        counters, accumulated = self.state.counters, self._recipe.grad_accum_steps
        size = scaled(self._dataset.image_size, self._recipe.image_scale(counters.epoch))
        batches = self._batches.epoch(counters.epoch, counters.step * accumulated)
        self._stepper.network.train()
        self._fetched = time.perf_counter()
        with synchronised_batch_norms(self._ranks, wanted=self._recipe.sync_bn):
            while group := list(islice(batches, accumulated)):
                rate = self._recipe.rate(self._steps_done, self._steps_per_epoch)
                self._pending.append(self._stepper.take(group, size, rate))
                self._after_step()
        self._fetch()
        self._close_epoch(size)

    def _after_step(self) -> None:
        """Fetches losses, writes a checkpoint and stops, each when it is time to.

        Several processes agree at the steps where losses are fetched, which are the same in all of them.
        """
        interval = 1 if self._device.type == "cpu" else FETCH_INTERVAL
        at_interval = self.state.counters.step % interval == 0
        if at_interval:
            self._fetch()
        elif self._ranks.count > 1:
            return
        is_due = self._folder is not None and self._folder.checkpoint_is_due
        is_stopped, is_due = self._ranks.any(self._stop is not None and self._stop.is_requested, is_due)
        if is_stopped or is_due:
            self._fetch()
            self._refuse_non_finite()
            self._save()
        if is_stopped:
            raise (self._stop or StopRequest()).error(self._place())

    def _place(self) -> str:
        """Where a training was stopped, as the begin of a message."""
        counters = self.state.counters
        return f"stopped after step {counters.step} of {self._steps_per_epoch} of epoch {counters.epoch + 1}"

    def _fetch(self) -> None:
        """Fetches the losses of the last steps, and reports them.

        Raises:
            ModelError: a loss is not finite.
        """
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        counters = self.state.counters
        rows = torch.stack([torch.stack((one.loss.float(), one.right.float())) for one in pending])
        losses, right = self._ranks.sum(rows.cpu().double()).T.tolist()
        now = time.perf_counter()
        self._images_per_second = sum(p.images for p in pending) / max(now - self._fetched, 1e-9)
        self._fetched = now
        first = counters.step - len(pending)
        for number, (one, loss, recognised) in enumerate(zip(pending, losses, right, strict=True)):
            loss /= self._ranks.count
            if not math.isfinite(loss):
                raise ModelError(self._divergence(first + number, f"the loss is {loss} in", one.rate))
            counters.losses += loss
            counters.right += round(recognised)
            counters.images += one.images
            counters.rate = one.rate
            step = counters.epoch * self._steps_per_epoch + first + number + 1
            self._report(step, one.size, loss, one.rate, None)

    def _refuse_non_finite(self) -> None:
        """Ends the training before values that are not finite are written or evaluated.

        Raises:
            ModelError: a weight, an average or a statistic of a norm is not finite.
        """
        if bad := self._non_finite():
            counters = self.state.counters
            raise ModelError(self._divergence(counters.step - 1, f"{bad} after", counters.rate))

    def _non_finite(self) -> str:
        """Says which values of the state are not finite; empty if there are none."""
        state = self.state
        weights = state.trained.state_dict()
        values = {name: weights[name] for name in self._learned if name in weights}
        if state.average is not None:
            values |= {f"average of {name}": state.average.state[name] for name in values}
        values |= {f"objective's {name}": value for name, value in state.objective.state().items()}
        return non_finite(values, self._ranks)

    def _divergence(self, step: int, what: str, rate: float) -> str:
        """The message for values that are not finite, in `step` (from 0) of the running epoch.

        Args:
            step: of the epoch.
            what: was found, up to the word before the step.
            rate: learning rate of the step.
        """
        recipe, epoch = self._recipe, self.state.counters.epoch
        advice = f"lower lr (it was {rate:.3g} here) or set clip_grad"
        if amp_dtype(recipe, self._device) != torch.float32:
            advice += " or amp_dtype float32"
        if self._folder is not None:
            last = self._folder.options.last
            advice += f", and give the new settings another --run-dir; the last checkpoint is whole ({last})"
        order = permutation(recipe.seed, epoch, len(self._dataset.train))
        count = self._batches.batch * recipe.grad_accum_steps
        images = image_names(self._dataset.train, order[step * count : (step + 1) * count], _NAMED_IMAGES)
        return (
            f"the training diverged: {what} epoch {epoch + 1}, step {step + 1} of {self._steps_per_epoch}; {advice}, and look "
            f"for values that are not finite in weights and in the training images of this step, {images}"
        )

    def _report(self, step: int, size: ImageSize, loss: float, rate: float, accuracy: float | None) -> None:
        if not self._ranks.is_first:
            return
        steps = self._recipe.epochs * self._steps_per_epoch
        epoch = (step - 1) // self._steps_per_epoch + 1
        event = TrainingEvent(
            epoch,
            self._recipe.epochs,
            step,
            steps,
            size,
            loss,
            rate,
            accuracy,
            self._seconds(),
            self._images_per_second,
            self._dataset.task.measure,
        )
        if self._folder is not None and (accuracy is not None or step % _LOG_INTERVAL == 0):
            self._folder.log(log_entry(event, self._dataset.task.key))
        if self._progress is not None:
            self._progress(event)

    def _save(self) -> None:
        self.state.counters.seconds = self._seconds()
        self._gather_unreadable()
        checkpoint = self._checkpoint()
        if self._folder is not None and checkpoint is not None:
            self._folder.save(checkpoint)

    def _gather_unreadable(self) -> None:
        """Brings together the images that the processes could not decode; all have to call it together."""
        for found in self._ranks.gathered(self._batches.unreadable):
            self.state.counters.unreadable |= found
        self._batches.unreadable |= self.state.counters.unreadable

    def _checkpoint(self) -> Checkpoint | None:
        """The state, where it is written or where all processes have to put it together."""
        if self._folder is None and self.state.sharded is None:
            return None
        return self.state.checkpoint(self._setup)

    # -- epochs and evaluations ----------------------------------------------------------------------------------

    def _close_epoch(self, size: ImageSize) -> None:
        """Evaluates if the recipe does so here, and writes the checkpoint after the epoch.

        Raises:
            ModelError: the weights are not finite; neither they nor their evaluation are kept.
        """
        self._refuse_non_finite()
        counters = self.state.counters
        epoch = counters.epoch
        mean_loss = counters.losses / max(1, counters.step)
        accuracy = self._evaluate_between(epoch)
        if accuracy is not None:
            self._report(self._steps_done, size, mean_loss, counters.rate, accuracy)
        counted = isinstance(self._dataset.task, CountedTask)
        train_top1 = 100.0 * counters.right / max(1, counters.images) if counted else None
        counters.close_epoch(
            EpochRecord(epoch + 1, size, mean_loss, train_top1, counters.rate, accuracy, self._seconds())
        )
        self._save()
        if self._folder is not None:
            self._folder.keep_epoch(epoch + 1)

    def _evaluate_between(self, epoch: int) -> float | None:
        """Accuracy of the result if the training ended after `epoch`; None if the recipe does not evaluate there."""
        self._evaluated = None
        if not self._recipe.evaluates(epoch):
            return None
        self._evaluated = self._copied()
        accuracy = self._conclusion.quick_accuracy(self._evaluated)
        self._keep_best(self._evaluated, accuracy)
        return accuracy

    def _copied(self) -> nn.Module:
        """A copy of the network as a result."""
        self.state.collect()
        return self._conclusion.copy(self._module, self.state.average)

    def _keep_best(self, result: nn.Module, accuracy: float) -> None:
        """Keeps the weights of a result if none before was more accurate.

        Args:
            result: the network as the training would return it.
            accuracy: its `quick_accuracy`.

        Raises:
            ModelError: the result is not finite, as batch-norm statistics may be that were taken for it.
        """
        state = result.state_dict()
        if bad := non_finite({name: state[name] for name in self._learned if name in state}, self._ranks):
            raise ModelError(
                f"{bad} in the trained network, after its averages were taken; take precise_bn_samples 0 or amp_dtype float32"
            )
        best = self.state.counters.best
        if best is None or accuracy > best:
            self.state.counters.best = accuracy
            if self._folder is not None:
                self._folder.keep_best(result)
            elif self._run is None and self._recipe.checkpoint == "best":
                self._best = result

    def _finish(self) -> TrainingResult:
        """Leaves the result in the module, evaluates it and the last epoch, and puts that into the last epoch's record."""
        counters = self.state.counters
        measured = counters.history[-1].validation_score if counters.history else self._start_accuracy
        if self._evaluated is not None and measured is not None:
            fill(self._module, self._evaluated.state_dict(), "the evaluated network")
            accuracy = measured if self._conclusion.is_exact else self._conclusion.accuracy(self._module)
            quick = measured
        else:
            self.state.collect()
            self._conclusion.conclude(self._module, self.state.average)
            accuracy = self._conclusion.accuracy(self._module)
            quick = accuracy
            if self._may_choose and counters.best is not None and not self._conclusion.is_exact:
                # Scores of earlier epochs are in the recipe's precision, so this one is compared in it.
                quick = self._conclusion.quick_accuracy(self._module)
        self._keep_best(self._module, quick)
        history = list(counters.history)
        if history:
            last = history[-1]
            if last.validation_score is None and not self._was_finished:
                step = last.epoch * self._steps_per_epoch
                self._report(step, last.image_size, last.loss, last.learning_rate, accuracy)
            history[-1] = dataclasses.replace(last, validation_score=accuracy, seconds=self._seconds())
        epoch = self._chosen_epoch(quick)
        if epoch < counters.epoch:
            accuracy = self._return_to(epoch)
        self._module.eval()
        measure = self._dataset.task.measure
        self._gather_unreadable()
        note = "; ".join(filter(None, (counters.start_note, self._batches.note)))
        result = TrainingResult(
            tuple(history),
            accuracy,
            self._seconds(),
            note,
            self._blockwise,
            measure,
            len(counters.unreadable),
            self._start_accuracy,
            counters.best,
            epoch,
        )
        if self._folder is not None and not self._was_finished:
            self._folder.finish(result_json(result, self._dataset.task.key))
        return result

    @property
    def _may_choose(self) -> bool:
        """Whether the last epoch is compared with others: to choose the result, or in the folder, which keeps the best."""
        return self._run is not None or self._recipe.checkpoint == "best"

    def _chosen_epoch(self, last: float) -> int:
        """The epoch whose weights are the result, from 1; 0 if there was none.

        Args:
            last: score of the last one, as `Conclusion.quick_accuracy` measures it.
        """
        history = self.state.counters.history
        if not history or self._recipe.checkpoint == "last":
            return len(history)
        scores = [-math.inf if one.validation_score is None else one.validation_score for one in history[:-1]]
        return 1 + max(range(len(history)), key=[*scores, last].__getitem__)

    def _return_to(self, epoch: int) -> float:
        """Leaves the weights of the best evaluation, which was after `epoch`, in the module; returns their accuracy.

        Raises:
            FileError: they were in the run folder, and cannot be read.
        """
        if self._best is not None:
            fill(self._module, self._best.state_dict(), "the best epoch")
        elif self._run is not None:
            self._ranks.wait()  # the first process writes them
            load_weights(self._module, self._run.best)
        measured = self.state.counters.history[epoch - 1].validation_score
        if measured is not None and self._conclusion.is_exact:
            return measured
        return self._conclusion.accuracy(self._module)
