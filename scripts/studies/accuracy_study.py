"""Measures what branching costs or gains in accuracy: small networks on the generated data set `textures`, with several seeds.

    python scripts/studies/accuracy_study.py -o OUT [--models resnet34,regnet_x] [--seeds 3]
        [--tables accuracy,quarter,ablation]

Every training is resumed where it was stopped and never run twice: give the same command again. The same command in another
terminal shares the work, one network and seed at a time. Designs do not depend on the machine. OUT/tables.md has the tables
and OUT/results.json their figures, from the first training that is done on.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

from nnstretch.bench.accuracy.results import MODELS, ORIGINAL, TABLES, tables
from nnstretch.cli.console import exit_status, reporting, script_parser
from nnstretch.cli.job.accuracy_study import AccuracyStudy
from nnstretch.cli.job.study_options import (
    ABLATED,
    BATCH,
    IMAGE_SIZE,
    RETRAINING,
    STAGES,
    TRAINING,
    StudyOptions,
)
from nnstretch.cli.training import let_idle_threads_sleep
from nnstretch.training.recipe import AMP_DTYPES


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the study; returns the exit status."""
    given = make_parser().parse_args(arguments)
    return exit_status(lambda: run(given))


def make_parser() -> ArgumentParser:
    """The command line."""
    parser = script_parser(__doc__)
    add = parser.add_argument
    add("-o", "--output", type=Path, required=True, metavar="OUT", help="folder for all that is written")
    names = ",".join(MODELS)
    add(
        "--models",
        metavar="NAMES",
        help=f"networks of every table (default: {names}; {ABLATED} alone after the first table)",
    )
    add("--tables", default=",".join(TABLES), help=f"tables (default: %(default)s); {ORIGINAL}: first trainings alone")
    add("--seeds", type=int, default=3, metavar="N", help="trainings that are averaged (default: %(default)s)")
    add("--epochs", type=int, default=16, metavar="N", help="epochs of the first training (default: %(default)s)")
    add("--retrain-epochs", type=int, default=8, metavar="N", help="of a retraining (default: %(default)s)")
    per_step = f"for {BATCH} images per step, in proportion for others (default: %(default)s)"
    add("--lr", type=float, default=TRAINING["lr"], metavar="RATE", help=f"highest rate {per_step}")
    add("--retrain-lr", type=float, default=RETRAINING["lr"], metavar="RATE", help=f"of a retraining, {per_step}")
    add("--blockwise-epochs", type=int, default=1, metavar="N", help="of them block by block (default: %(default)s)")
    add("--epoch-images", type=int, default=10_000, metavar="N", help="images per epoch (default: %(default)s)")
    add("--held-out", type=int, metavar="N", help="validation images, and test images (default: all)")
    add("--image-size", type=int, default=IMAGE_SIZE, metavar="N", help="side of the images (default: %(default)s)")
    add("--width", type=int, default=1, metavar="N", help="factor of the networks' widths (default: %(default)s)")
    add("--batch-size", type=int, default=BATCH, metavar="N", help="images per step (default: %(default)s)")
    add("--device", default="cpu", metavar="NAME", help="cpu, cuda:0, mps … (default: %(default)s)")
    add("--amp-dtype", choices=AMP_DTYPES, help="type of matrix products (default: float32 on a CPU, else auto)")
    add("--report", action="store_true", help="write the tables of what is done; train nothing")
    add("--redo", choices=STAGES, help="run this stage and those after it again; their products are replaced")
    return parser


def run(given: Namespace) -> None:
    """The study that the command line describes.

    Raises:
        NNStretchError: what was found, what was wanted and what to do.
    """
    let_idle_threads_sleep()
    options = StudyOptions.of(
        given,
        folder=given.output,
        models=None if given.models is None else tuple(given.models.split(",")),
        tables=tuple(given.tables.split(",")),
    )
    with reporting(as_json=given.json) as report:
        study = AccuracyStudy(options, report, "go on with the same command, without --redo")
        results = study.write() if given.report else study.run()
        report.show(tables(results))
        report.finish({"results": results, "elsewhere": study.elsewhere})


if __name__ == "__main__":
    sys.exit(main())
