"""Measures what int8 costs in accuracy, after calibration and after quantisation-aware training: small networks on `textures`.

    python scripts/studies/quantization_study.py -o OUT [--models resnet,mobilenetv2] [--seeds 3]

Every network and seed is trained in float32, quantised as `nnstretch quantize` does without options, and trained further by
the recipe `qat` with itself as the teacher: with the roundings of int8 and, as a control, without. Accuracies in int8 are those
of the ONNX files. What is done is not done again, and a training goes on where it was stopped: give the same command again.
OUT/tables.md has the table.
"""

from __future__ import annotations

import json
import math
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.cli.console import exit_status, reporting, script_parser
from nnstretch.cli.job.stages import Answer, Job
from nnstretch.cli.training import event_shown, let_idle_threads_sleep
from nnstretch.errors import UsageError
from nnstretch.support.settings import write_text
from nnstretch.training.evaluation.statistics import mean_interval

if TYPE_CHECKING:
    from torch import nn

    from nnstretch.cli.console import Reporter
    from nnstretch.training.data.split import Dataset
    from nnstretch.training.recipe import Recipe

FLOAT, CALIBRATED, TRAINED, FURTHER = "float32", "int8, calibrated", "int8, recipe qat", "float32, trained further"
"""Rows of the table."""
IMAGE_SIZE = 32
EPOCHS: Mapping[str, int] = {"resnet": 16, "mobilenetv2": 12}
"""Of the first training, by network."""
_WEIGHTS = "weights.safetensors"
_RECIPE: Mapping[str, Any] = {
    "batch_size": 64,
    "lr": 0.1,
    "weight_decay": 1e-4,
    "warmup_epochs": 0.5,
    "amp_dtype": "float32",
    "evaluate_every": 4,
    "threads": 1,
}
_FURTHER: Mapping[str, Any] = {"batch_size": 64, "evaluate_every": 0, "threads": 1}

Row = Mapping[str, float]
"""Accuracies of a network by row."""


def build(name: str, num_classes: int, seed: int) -> nn.Module:
    """An untrained network of the study: blocks of ResNet-18 or MobileNetV2 for images of 32 x 32."""
    import torch

    from nnstretch.zoo.weights import initialise

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = {"resnet": _resnet, "mobilenetv2": _mobilenet}[name](num_classes)
        initialise(network, 3, None)
    return network


def _resnet(num_classes: int) -> nn.Module:
    """One block of ResNet-18 per stage, with 16, 32 and 64 channels."""
    from torch import nn

    from nnstretch.zoo.blocks import Chain, classifier, conv_bn, with_shortcut

    stages: list[nn.Sequential] = []
    width = 16
    for out in (16, 32, 64):
        stride = 2 if stages else 1
        body = nn.Sequential(conv_bn(width, out, 3, stride=stride), conv_bn(out, out, 3, activation=None))
        stages.append(nn.Sequential(with_shortcut(body, width, out, stride)))
        width = out
    return Chain(nn.Sequential(*conv_bn(3, 16, 3, stride=2)), stages, nn.Sequential(*classifier(width, num_classes)))


def _mobilenet(num_classes: int) -> nn.Module:
    """Seven inverted bottlenecks with 12 to 40 channels, expanded four times."""
    from torch import nn

    from nnstretch.zoo.blocks import Chain, classifier, conv_bn
    from nnstretch.zoo.mobilenet import InvertedRow, inverted_stages

    rows = (InvertedRow(1, 12, 1, 1), InvertedRow(4, 16, 2, 1), InvertedRow(4, 24, 2, 2), InvertedRow(4, 40, 2, 2))
    return Chain(
        nn.Sequential(*conv_bn(3, 16, 3, stride=2, activation=nn.ReLU6)),
        inverted_stages(16, rows),
        nn.Sequential(conv_bn(40, 128, 1, activation=nn.ReLU6), *classifier(128, num_classes)),
    )


@dataclass(frozen=True)
class Study:
    """The trainings.

    Attributes:
        given: the command line.
        report: gets progress and notes.
    """

    given: Namespace
    report: Reporter

    @cached_property
    def dataset(self) -> Dataset:
        """The images, which are generated at their first use."""
        from nnstretch.bench.accuracy.images import stored_textures

        given = self.given
        return stored_textures(
            given.output / "images", IMAGE_SIZE, given.epoch_images, given.held_out, f"textures:{given.classes}"
        )

    def run(self) -> dict[str, list[Row]]:
        """One row of accuracies per seed, by network. Every network is written to the table as soon as it is done."""
        results: dict[str, list[Row]] = {}
        for seed in range(self.given.seeds):
            for model in self.given.models.split(","):
                results.setdefault(model, []).append(self._accuracies(model, seed))
                write_text(self.given.output / "tables.md", table(results))
        return results

    def _accuracies(self, model: str, seed: int) -> Row:
        job = Job(self.given.output / model / f"seed-{seed}")
        recipe = self._recipe("custom", seed, {**_RECIPE, "epochs": self.given.epochs or EPOCHS[model]})
        further = self._recipe("qat", seed, {**_FURTHER, "epochs": self.given.qat_epochs, "lr": self.given.qat_lr})

        def stage(name: str, recipe: Recipe, work: Callable[[Path], Answer], after: Sequence[str] = ()) -> float:
            images = [len(split) for split in (self.dataset.train, self.dataset.validation, self.dataset.test)]
            settings = {"images": images, "classes": self.given.classes, "recipe": recipe.to_json()}
            self.report.note(f"{model}, seed {seed}, {name} …")
            return float(job.run(name, settings, work, after).answer["test_top1"])

        def trained() -> nn.Module:
            from nnstretch.training.weights import load_weights

            network = build(model, self.dataset.num_classes, seed)
            load_weights(network, job.folder / "float" / _WEIGHTS)
            return network.eval()

        def first(folder: Path) -> Answer:
            return self._trained(build(model, self.dataset.num_classes, seed), recipe, None, folder)

        def through(folder: Path) -> Answer:
            from nnstretch.training.quantization import quantization_aware

            network = quantization_aware(trained(), self.dataset, further)
            return self._trained(network, further, trained(), folder)

        return {
            FLOAT: stage("float", recipe, first),
            CALIBRATED: stage("calibrated", recipe, lambda folder: self._calibrated(trained(), folder), ["float"]),
            TRAINED: stage("qat", further, through, ["float"]),
            FURTHER: stage(
                "further",
                replace(further, qat=False),
                lambda folder: self._trained(trained(), replace(further, qat=False), trained(), folder),
                ["float"],
            ),
        }

    def _recipe(self, preset: str, seed: int, changes: Mapping[str, Any]) -> Recipe:
        from nnstretch.training.recipe import Recipe
        from nnstretch.training.recipe_files import load_recipe

        found = Recipe() if preset == "custom" else load_recipe(preset)
        return replace(found, seed=seed, **changes)

    def _trained(self, network: nn.Module, recipe: Recipe, teacher: nn.Module | None, folder: Path) -> Answer:
        """Trains a network and keeps it; its accuracy, in int8 that of the file."""
        from nnstretch.quantization import write_trained
        from nnstretch.training.evaluation.accuracy import top1
        from nnstretch.training.loop.run_folder import RunOptions
        from nnstretch.training.loop.stopping import stopped_by_signals
        from nnstretch.training.loop.trainer import train
        from nnstretch.training.quantization import QuantizedNetwork
        from nnstretch.training.weights import save_weights

        options = RunOptions(folder / "run", resume=True, minutes=1.0, keep=0)
        with self.report.progress("Training") as advance, stopped_by_signals("give the same command again") as stop:
            result = train(network, self.dataset, recipe, teacher, event_shown(advance), options, stop)
        save_weights(network, folder / _WEIGHTS)
        found = {"validation_top1": result.validation_score}
        if isinstance(network, QuantizedNetwork):
            write_trained(network.int8_graph(), folder / "int8.onnx")
            return {**found, "test_top1": self._file_top1(folder / "int8.onnx")}
        return {**found, "test_top1": top1(network, self.dataset.test, self.dataset.num_classes)}

    def _calibrated(self, network: nn.Module, folder: Path) -> Answer:
        """Quantises a network as `nnstretch quantize` does."""
        import torch

        import nnstretch as nns
        from nnstretch.training.data.calibration import CalibrationImages

        image = self.dataset.train.images(torch.arange(1))
        feeds = ({"x": images} for images in CalibrationImages(self.dataset.train, 100))
        nns.quantize(network, feeds, folder / "int8.onnx", image)
        return {"test_top1": self._file_top1(folder / "int8.onnx")}

    def _file_top1(self, file: Path) -> float:
        """Top-1 of an ONNX file for one image, computed by ONNX Runtime as its nodes say."""
        from nnstretch.quantization.runs import open_run
        from nnstretch.training.evaluation.accuracy import top1

        run = open_run(file)
        return top1(lambda images: run({"x": images})[0], self.dataset.test, self.dataset.num_classes, batch=1)


def table(results: Mapping[str, Sequence[Row]]) -> str:
    """Means over the seeds with 95 % confidence intervals, as Markdown; differences are paired by seed."""
    lines = ["| network | | seeds | test top-1 in % | points from float32 |", "|---|---|--:|--:|--:|"]
    for network, seeds in results.items():
        for row in seeds[0]:
            found = _with_interval([one[row] for one in seeds], "")
            against = "" if row == FLOAT else _with_interval([one[row] - one[FLOAT] for one in seeds], "+")
            lines.append(f"| {network} | {row} | {len(seeds)} | {found} | {against} |")
    return "\n".join(lines) + "\n"


def _with_interval(values: Sequence[float], sign: str) -> str:
    mean, half = mean_interval(values)
    return f"{mean:{sign}.2f}" if math.isinf(half) else f"{mean:{sign}.2f} ± {half:.2f}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the study; returns the exit status."""
    given = make_parser().parse_args(arguments)
    return exit_status(lambda: run(given))


def make_parser() -> ArgumentParser:
    """The command line."""
    parser = script_parser(__doc__)
    add = parser.add_argument
    add("-o", "--output", type=Path, required=True, metavar="OUT", help="folder for all that is written")
    add("--models", default=",".join(EPOCHS), help="networks (default: %(default)s)")
    add("--seeds", type=int, default=3, metavar="N", help="trainings that are averaged (default: %(default)s)")
    add("--classes", type=int, default=22, metavar="N", help="classes of the data set (default: %(default)s)")
    add("--epochs", type=int, metavar="N", help=f"epochs of the first training (default: {json.dumps(dict(EPOCHS))})")
    add("--qat-epochs", type=int, default=1, metavar="N", help="of the recipe `qat` (default: %(default)s)")
    add("--qat-lr", type=float, default=1e-4, metavar="RATE", help="its learning rate (default: %(default)s)")
    add("--epoch-images", type=int, default=10_000, metavar="N", help="images per epoch (default: %(default)s)")
    add("--held-out", type=int, metavar="N", help="validation images, and test images (default: all)")
    return parser


def run(given: Namespace) -> None:
    """The study that the command line describes.

    Raises:
        NNStretchError: what was found, what was wanted and what to do.
    """
    for model in given.models.split(","):
        if model not in EPOCHS:
            raise UsageError(f"--models {model}: there are {', '.join(EPOCHS)}")
    if given.seeds < 1:
        raise UsageError(f"--seeds {given.seeds}: 1 or more is wanted")
    let_idle_threads_sleep()
    with reporting(as_json=given.json) as report:
        results = Study(given, report).run()
        report.show(table(results))
        report.finish({"results": results})


if __name__ == "__main__":
    sys.exit(main())
