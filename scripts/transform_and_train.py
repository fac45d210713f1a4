"""Trains a model on labelled images, branches it for processors, retrains the branched networks, and measures the gain.

The job has the stages baseline, designs, retrain, int8 and measure, each with a folder in OUT. A stage that is done is not done
again, and a training goes on where it was stopped: give the same command again.

Segmentation and detection have mIoU and mAP in the place of top-1 (docs/how-to/networks/dense.md).

    python scripts/transform_and_train.py MODEL DATA -p PROCESSORS -o OUT [--weights FILE] [--head NAME] [--design FILE]
        [--int8] [--int8-recipe RECIPE] [--skip STAGE] [--redo STAGE]
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nnstretch.cli.console import exit_status, reporting, script_parser
from nnstretch.cli.job.summary import summary
from nnstretch.cli.job.transform_and_train import TransformAndTrain
from nnstretch.cli.job.transform_options import SKIPPABLE, STAGES, TransformOptions
from nnstretch.cli.training import let_idle_threads_sleep
from nnstretch.errors import UsageError
from nnstretch.support.image_size import parse_image_size
from nnstretch.training.data import names_dense_data, usage
from nnstretch.training.recipe_files import DENSE, PRESETS


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the job; returns the exit status."""
    given = make_parser().parse_args(arguments)
    return exit_status(lambda: run(given))


def make_parser() -> ArgumentParser:
    """The command line."""
    recipes = f"{', '.join(PRESETS)}, or a YAML file"
    parser = script_parser(__doc__)
    add = parser.add_argument
    add("model", metavar="MODEL", help="an ONNX or TFLite file, a zoo name or FILE.py:FACTORY")
    add("data", metavar="DATA", help=f"labelled images: {usage()}")
    add("-p", "--processors", required=True, help="one branch for each, such as cpu:0,opencl:0@1")
    add("-o", "--output", type=Path, required=True, metavar="OUT", help="folder for all products")
    add(
        "-w",
        "--weights",
        type=Path,
        metavar="FILE",
        help="of the trained model; without, it is trained, or has a file's weights",
    )
    add("--head", metavar="NAME", help="of a detector, for boxes: yolo, or FILE.py:FACTORY")
    add("--recipe", help=f"of the first training: {recipes} (default: nnstretch; dense for masks and boxes)")
    add(
        "--retrain-recipe",
        metavar="RECIPE",
        help="of the retraining (default: finetune; dense for masks and boxes)",
    )
    add(
        "--set",
        dest="changes",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="change a field of all recipes, such as epochs=5; given again, another one",
    )
    add("--image-size", metavar="SIZE", help="side of the images in pixels, or height and width, as in 48x160")
    add("--device", metavar="NAME", help="that trains: cpu, cuda:0 … (default: cuda:0 where there is one)")
    add(
        "--at-once",
        type=int,
        default=2,
        metavar="N",
        help="networks that are retrained at the same time on a CPU, each on its share of the cores and with memory of its "
        "own (default: 2)",
    )
    add("--designs", type=int, default=1, metavar="N", help="designs that are retrained (default: 1)")
    add(
        "--search",
        action="append",
        default=[],
        metavar="OPTION=VALUE",
        help="an option of `nnstretch stretch`, such as time_limit=60 or alpha=1; given again, another one",
    )
    add(
        "--max-drop",
        type=float,
        default=0.2,
        metavar="POINTS",
        help="of the measure on validation images, up to which the fastest design is chosen (default: 0.2)",
    )
    add("--design", type=Path, metavar="FILE", help="retrain this design of `nnstretch stretch`; none is searched")
    add("--int8", action="store_true", help="also quantise the networks")
    add(
        "--int8-recipe",
        metavar="RECIPE",
        help="with --int8: train them through quantisation first, by a recipe such as qat, with the original as the teacher",
    )
    add("--skip", action="append", default=[], choices=SKIPPABLE, help="leave a stage out; may be repeated")
    add("--redo", choices=STAGES, help="run this stage and those after it again; their products are replaced")
    return parser


def run(given: Namespace) -> None:
    """The job that the command line describes.

    Raises:
        NNStretchError: what was found, what was wanted and what to do.
    """
    let_idle_threads_sleep()
    search = {"designs": given.designs, **parse_changes("--search", given.search)}
    dense = DENSE if names_dense_data(given.data) else None
    recipe, retrain_recipe = given.recipe or dense or "nnstretch", given.retrain_recipe or dense or "finetune"
    options = TransformOptions(
        given.model, given.data, given.processors, given.output, given.weights, recipe, retrain_recipe,
        parse_changes("--set", given.changes), given.device, search, given.max_drop, given.int8,
        parse_image_size(given.image_size), frozenset(given.skip), given.redo, given.design, given.int8_recipe,
        at_once=given.at_once, head=given.head,
    )  # fmt: skip
    with reporting(as_json=given.json) as report:
        answer = TransformAndTrain(options, report, "go on with the same command, without --redo").run()
        report.show(summary(answer, options.folder))
        report.finish(answer)


def parse_changes(option: str, texts: Sequence[str]) -> dict[str, Any]:
    """`NAME=VALUE` as a mapping; values are YAML.

    Raises:
        UsageError: a text without `=`, or a value that is no YAML.
    """
    import yaml

    changes: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        try:
            changes[name.replace("-", "_")] = yaml.safe_load(value)
        except yaml.YAMLError:
            equals = ""
        if not equals:
            raise UsageError(f"{option} {text} is not understood; write NAME=VALUE, as in epochs=5")
    return changes


if __name__ == "__main__":
    sys.exit(main())
