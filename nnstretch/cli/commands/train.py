"""`nnstretch train`: train a network, or retrain a branched one with a teacher."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from nnstretch.cli.accuracy_report import evaluated
from nnstretch.cli.console import Reporter, reporting, silent_reporter
from nnstretch.cli.options import (
    Data,
    DesignFile,
    HeadFactory,
    Json,
    Network,
    Weights,
    check_distinct,
    check_format,
    check_writable,
    option,
    with_options,
)
from nnstretch.cli.training import (
    about_images,
    blockwise_phase,
    event_shown,
    let_idle_threads_sleep,
    on_chosen_epoch,
    training_images,
    with_given_head,
)
from nnstretch.errors import StoppedError, UsageError
from nnstretch.support.image_size import ImageSize, size_text
from nnstretch.training.recipe import Recipe
from nnstretch.training.recipe_files import PRESETS, load_recipe

if TYPE_CHECKING:
    import torch
    from torch import nn

    from nnstretch.cli.models.networks import Network as BuiltNetwork
    from nnstretch.support.progress import Progress
    from nnstretch.training.data.split import Dataset
    from nnstretch.training.distillation.blockwise_phase import BlockwisePhase
    from nnstretch.training.loop.events import TrainingResult
    from nnstretch.training.loop.run_folder import RunOptions
    from nnstretch.training.loop.stopping import StopRequest

_RUN = "Run folder"
_AUTO, _LAST = "auto", "last.safetensors"

Output = Annotated[Path, option("--output -o FILE", "The weights (.safetensors).")]
RecipeName = Annotated[
    str,
    option("--recipe NAME", f"A preset ({', '.join(PRESETS)}) or a YAML file; the options below change it."),
]
Teacher = Annotated[
    str | None, option("--teacher MODEL[:WEIGHTS]", "A trained network to learn from; a file has its weights.")
]
Unlabelled = Annotated[
    str | None,
    option(
        "--unlabelled DATA",
        "Images for the block-wise start, without labels: a folder of image files or a data set.",
    ),
]
Device = Annotated[
    str | None, option("--device NAME", "cpu, cuda:0, mps …", shown="cuda:0 where there is one, else cpu")
]
RunDirectory = Annotated[
    Path | None,
    option(
        "--run-dir --run DIR",
        "Folder for recipe, log and checkpoints.",
        shown="FILE.run beside the weights",
        panel=_RUN,
    ),
]
Resume = Annotated[
    str | None,
    option(
        "--resume [auto|RUN]",
        "Go on from the last step of the training in the run folder, if there is one; or of that in RUN, a run folder or its "
        "last.safetensors.",
        panel=_RUN,
    ),
]
Minutes = Annotated[
    float, option("--checkpoint-minutes N", "Minutes between checkpoints within an epoch.", minimum=0, panel=_RUN)
]
Keep = Annotated[
    int, option("--keep N", "Epochs whose checkpoints are kept beside the last one.", minimum=0, panel=_RUN)
]


@with_options(Recipe, changes=True)
def train_command(
    model: Network,
    data: Data,
    output: Output,
    recipe: RecipeName = "quick",
    design: DesignFile = None,
    weights: Weights = None,
    teacher: Teacher = None,
    unlabelled: Unlabelled = None,
    head: HeadFactory = None,
    device: Device = None,
    run: RunDirectory = None,
    resume: Resume = None,
    checkpoint_minutes: Minutes = 10.0,
    keep: Keep = 2,
    *,
    options: Mapping[str, Any],
    json: Json = False,
) -> None:
    """Train a network on labelled images and write its weights.

    Example: nnstretch train resnet18 --data digits --recipe quick -o resnet18.safetensors
    """
    with reporting(as_json=json) as report:
        let_idle_threads_sleep()
        settings = _settings(recipe, model, options)
        check_format(output, "weights are", ".safetensors")
        check_distinct(output, model, weights, teacher, design)
        check_writable(output)
        folder = _run_folder(run or output.with_name(f"{output.stem}.run"), resume, is_named=run is not None)
        from nnstretch.training.loop.distributed import Ranks, joined_processes, lost_processes_named
        from nnstretch.training.loop.run_folder import RunOptions
        from nnstretch.training.loop.stopping import stopped_by_signals

        again = _how_to_resume()
        with joined_processes(device) as own, stopped_by_signals(again) as stop, lost_processes_named(again):
            job = _Job(
                model, data, output, settings, options.get("image_size"), design, weights, teacher, unlabelled, head, own,
                RunOptions(folder, resume is not None, checkpoint_minutes, keep), stop,
            )  # fmt: skip
            is_first = Ranks.current().is_first
            if is_first and resume is not None and not (folder / "checkpoints").is_dir():
                report.note(f"{folder} has no training to resume: one begins")
            try:
                job.run(report if is_first else silent_reporter())
            except StoppedError as error:
                raise error if is_first else StoppedError("", error.status) from None


@dataclass(frozen=True)
class _Job:
    """A training that the command line describes; the fields are its options."""

    model: str
    data: str
    output: Path
    recipe: Recipe
    image_size: ImageSize | None
    design: Path | None
    weights: Path | None
    teacher: str | None
    unlabelled: str | None
    head: str | None
    device: torch.device
    run_options: RunOptions
    stop: StopRequest

    def run(self, report: Reporter) -> None:
        """Trains, evaluates and writes the weights."""
        from nnstretch.training.loop.distributed import Ranks
        from nnstretch.training.loop.trainer import train as run_training

        with report.progress("Looking at images") as advance:
            dataset = training_images(
                self.data,
                self.model,
                self.recipe,
                image_size=self.image_size,
                weights=self.weights,
                design=self.design,
                teacher=_teacher_parts(self.teacher)[1] if self.teacher else None,
                progress=advance,
            )
        dataset = with_given_head(dataset, self.head)
        report.note(dataset.note)
        if cropping := dataset.preprocessing.cropping:
            report.note(f"{dataset.name}: {cropping}; --crop-pct 1 keeps the most of them")
        network, taught = self._networks(dataset)
        if self.recipe.qat:
            network = self._quantised(network, dataset, report)
        about = {**about_images(self.data, dataset), "recipe": self.recipe.name}
        options = replace(self.run_options, metadata=network.metadata(**about))
        is_finished = options.resume and options.result.exists()
        if not is_finished and self.output.exists():
            report.note(f"{self.output} is there; it is replaced when this training has ended")
        with report.progress("Training") as advance:
            start = self._blockwise(network, taught, dataset, advance)
            result = run_training(
                network.module, dataset, self.recipe, taught, event_shown(advance), options, self.stop, start
            )
        if is_finished:
            report.note(f"the training in {options.folder} is finished; this is its result")
        report.note(result.note)
        if len(result.history) < self.recipe.epochs and 0 < self.recipe.target_accuracy <= result.validation_score:
            report.note(
                f"{self.recipe.target_accuracy:g} % of the validation images are recognised, as the recipe asks "
                f"(--target-accuracy): {_epochs_text(len(result.history), self.recipe.epochs)}"
            )
        if not self.recipe.epochs:
            report.note("no epoch was trained (--epochs 0): the weights are those that the training began with")
        report.note(on_chosen_epoch(result, options.best))
        if Ranks.current().is_first:
            self._finish(report, network, dataset, result, about)

    def _finish(
        self,
        report: Reporter,
        network: BuiltNetwork,
        dataset: Dataset,
        result: TrainingResult,
        about: Mapping[str, Any],
    ) -> None:
        """Writes the weights, and shows what they reach on the test images."""
        from nnstretch.training.loop.events import result_json
        from nnstretch.training.weights import save_weights

        reached = evaluated(network.module, dataset.test, dataset, min(256, self.recipe.batch_size))
        key = dataset.task.key
        save_weights(network.module, self.output, network.metadata(**about, **{key: reached.json[key]}))
        report.show(
            f"{self.output}: {reached.text} on {len(dataset.test)} test images "
            f"({result.validation_score:.2f} % on {len(dataset.validation)} validation images) of "
            f"{size_text(dataset.image_size)}, {result.seconds:.0f} s"
        )
        values = result_json(result, key)
        report.finish(
            {
                "file": str(self.output),
                "run": str(self.run_options.folder),
                **reached.json,
                "macs": network.macs,
                "params": network.parameters,
                **{
                    name: values[name]
                    for name in (
                        f"validation_{key}",
                        f"start_{key}",
                        f"best_{key}",
                        "epoch",
                        "seconds",
                        "unreadable",
                        "blockwise",
                        "history",
                    )
                },
            }
        )

    def _networks(self, dataset: Dataset) -> tuple[BuiltNetwork, nn.Module | None]:
        """The network and its teacher, on the device.

        Raises:
            ModelError: the network is for other classes; nothing has been written then.
        """
        from nnstretch.cli.models.networks import NetworkOptions, build_network
        from nnstretch.cli.training import check_outputs

        form = NetworkOptions(dataset.num_classes, None, dataset.channels, dataset.image_size, self.recipe.seed)
        network = build_network(self.model, form, self.weights, self.design)
        check_outputs(network, dataset)
        network.module.to(self.device)
        return network, _teacher(self.teacher, dataset).to(self.device) if self.teacher else None

    def _quantised(self, network: BuiltNetwork, dataset: Dataset, report: Reporter) -> BuiltNetwork:
        """The network with the roundings of its int8 file; itself if its weights are of one already.

        Raises:
            UsageError: it has no trained weights.
        """
        from nnstretch.cli.training import quantised
        from nnstretch.frontends.resolve import is_model_file

        if self.weights is None and not is_model_file(self.model):
            raise UsageError("quantisation-aware training starts from trained weights; give them with --weights")
        with report.progress("Calibrating") as advance:
            return quantised(network, dataset, self.recipe, advance)

    def _blockwise(
        self, network: BuiltNetwork, teacher: nn.Module | None, dataset: Dataset, advance: Progress
    ) -> BlockwisePhase | None:
        """The block-wise start, if the training begins so: of a branching of the teacher's network, with inherited weights.

        Raises:
            UsageError: there is none, and it was given images.
        """
        from nnstretch.branching.transform.network import BranchedNetwork
        from nnstretch.training.data.sources.unlabelled import unlabelled_images

        of_teacher = self.teacher is not None and _teacher_parts(self.teacher)[0] == network.spec
        inherits = network.design is not None and not network.about.get("design") and not self.recipe.qat
        if teacher is None or not (of_teacher and inherits and self.recipe.blockwise_epochs > 0):
            if self.unlabelled is not None:
                raise UsageError(
                    "--unlabelled is for the block-wise start of a branched network; give --design, --weights of the "
                    "original, a --teacher of the same MODEL, and a recipe with blockwise_epochs"
                )
            return None
        assert isinstance(network.module, BranchedNetwork)
        images = unlabelled_images(self.unlabelled, dataset) if self.unlabelled else dataset
        return blockwise_phase(network.module, teacher, images, self.recipe, advance)


def completed_resume(arguments: Sequence[str]) -> list[str]:
    """The arguments of the command line, with `auto` behind a `--resume` that has no value."""
    completed: list[str] = []
    for argument, following in zip_longest(arguments, arguments[1:], fillvalue=""):
        completed.append(argument)
        named = Path(following or "-")
        is_value = following == _AUTO or following.endswith((".run", _LAST)) or named.is_dir() or _is_kept(named)
        if argument == "--resume" and not is_value:
            completed.append(_AUTO)
    return completed


def _is_kept(file: Path) -> bool:
    """Whether a name is that of a checkpoint beside the last one."""
    return file.parent.name == "checkpoints" and file.suffix == ".safetensors" and file.name != _LAST


def _run_folder(folder: Path, resume: str | None, *, is_named: bool) -> Path:
    """The run folder: that of the options, or the one that `--resume` names.

    Raises:
        UsageError: there is none of that name, or `--run-dir` names another one.
    """
    if resume is None or resume == _AUTO:
        return folder
    named = Path(resume)
    if _is_kept(named):
        run = named.parent.parent
        raise UsageError(
            f"--resume goes on from {named.with_name(_LAST)}; copy {named} there to go back to it, remove "
            f"{run / 'result.json'} if the training was finished, and give --resume {run}"
        )
    if named.name == _LAST:
        named = named.parent.parent
    if not (named / "checkpoints").is_dir():
        raise UsageError(
            f"--resume {resume} is neither auto nor a run folder nor its checkpoints/{_LAST}; leave the value out for the run "
            "folder of this command"
        )
    if is_named and named.resolve() != folder.resolve():
        raise UsageError(f"--resume names {named}, --run-dir {folder}; give one of them")
    return named


def _epochs_text(trained: int, wanted: int) -> str:
    """How many epochs a training took that ended early."""
    return f"{trained} of {wanted} epochs were trained" if trained else "the start was enough, and no epoch was needed"


def _how_to_resume() -> str:
    """What to do to resume: the command that was given, with `--resume`."""
    given = sys.argv[1:]
    if "TORCHELASTIC_RUN_ID" in os.environ:
        return "resume with the same command of torchrun and --resume"
    return f"resume with: {shlex.join(['nnstretch', *given, *([] if '--resume' in given else ['--resume'])])}"


def _settings(recipe: str, model: str, changes: Mapping[str, Any]) -> Recipe:
    """A preset or a file; options that were given replace its fields."""
    # The stages of a recipe add up to its own epochs.
    stages = {"scales": ()} if "epochs" in changes else {}
    return replace(load_recipe(recipe, model), **{**stages, **changes})


def _teacher(text: str, dataset: Dataset) -> nn.Module:
    """The trained network of MODEL:WEIGHTS, or of an ONNX or TFLite file, which has its weights."""
    from nnstretch.cli.models.networks import NetworkOptions, build_network

    spec, weights = _teacher_parts(text)
    options = NetworkOptions(dataset.num_classes, None, dataset.channels, dataset.image_size)
    return build_network(spec, options, weights).module


def _teacher_parts(text: str) -> tuple[str, Path | None]:
    """Model and weights of `--teacher`; no weights for a file that has its own.

    Raises:
        UsageError: it is neither MODEL:WEIGHTS nor such a file.
    """
    if text.lower().endswith((".onnx", ".tflite")):
        return text, None
    spec, colon, weights = text.rpartition(":")
    if not colon or not spec or not weights:
        example = f"MODEL:{text}" if text.endswith(".safetensors") else "resnet18:resnet18.safetensors"
        raise UsageError(
            f"--teacher {text!r} is not understood; write MODEL:WEIGHTS, as in {example}, or the name of an ONNX or TFLite file"
        )
    if spec.endswith(".py"):
        raise UsageError(
            f"--teacher {text} names no weights; write FILE.py:FACTORY:WEIGHTS, as in {text}:teacher.safetensors"
        )
    return spec, Path(weights)
