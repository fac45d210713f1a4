"""The main job, end to end: train a network, branch it, retrain it, compile it, and measure the gain.

A ResNet-18 learns the handwritten digits of scikit-learn (40×40), is branched for the processors of this machine,
retrained with distillation, and measured beside the original, ONNX Runtime and the equal-MACs control. The steps are those of
`scripts/transform_and_train.py`, which takes a network and images of yours.

Networks are trained until they recognise 99 % of the validation images; the table has the accuracy on test images.

    scripts/quickstart [--out out/quickstart] [--processors cpu:0,opencl:0@1] [--seed 0] [--quick] [--resume]
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from nnstretch.cli.console import exit_status, reporting
from nnstretch.cli.job.summary import summary
from nnstretch.cli.job.transform_and_train import TransformAndTrain
from nnstretch.cli.job.transform_options import BASELINE, DESIGNS, TransformOptions
from nnstretch.cli.training import let_idle_threads_sleep
from nnstretch.errors import DeviceError

if TYPE_CHECKING:
    import torch

    from nnstretch.cli.console import Reporter
    from nnstretch.devices.opencl.properties import DeviceInfo

IMAGE_SIZE = 40
TARGET_ACCURACY = 99.0
"""Trainings end at this top-1 accuracy on the validation images; the recipes' own target takes an epoch more."""
SEARCH_SECONDS = 30.0
"""No design is run after this many seconds of the search."""
QUICK: Mapping[str, Any] = {"epochs": 1, "scales": [[1, 0.5]], "blockwise_epochs": 0.1}
"""Changes of the recipes with `--quick`."""
console = Console(width=None if sys.stdout.isatty() else 110)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the job; returns the exit status."""
    parser = argparse.ArgumentParser(prog="scripts/quickstart", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out/quickstart"), help="folder for what it writes")
    parser.add_argument("--processors", help="such as cpu:0,opencl:0@1; chosen if left out")
    parser.add_argument("--seed", type=int, default=0, help="of the training")
    parser.add_argument("--quick", action="store_true", help="train for one epoch only, to see that everything works")
    parser.add_argument("--resume", action="store_true", help="go on with a job that was stopped")
    options = parser.parse_args(arguments)
    let_idle_threads_sleep()
    return exit_status(lambda: run(options))


def choose_processors(devices: Sequence[DeviceInfo]) -> str:
    """Half of the cores for the CPU and half for OpenCL if a device is usable; otherwise two groups of CPU cores.

    With a GPU, the CPU gets all cores. On a single core two processors share it.
    """
    from nnstretch.devices.base.spec import default_cores, format_cores

    cores = default_cores()
    half = len(cores) // 2
    mine, other = format_cores(cores[:half]), format_cores(cores[half:])
    for device in sorted((d for d in devices if d.usable), key=lambda device: device.on_cpu):
        if not device.on_cpu:
            return f"cpu:{format_cores(cores)},opencl:{device.index}"
        opencl = f"opencl:{device.index}"
        return f"cpu:{mine},{opencl}@{other}" if half else _on_one_core(cores[0], opencl)
    console.print(
        "no OpenCL device works: two groups of CPU cores are used instead (`apt-get install pocl-opencl-icd`)"
    )
    return f"cpu:{mine},cpu:{other}" if half else _on_one_core(cores[0], "cpu")


def _on_one_core(core: int, other: str) -> str:
    """Two processors on the only core; prints a note."""
    console.print(
        f"[bold]this process has the time of one core only (core {core}): both processors share it and take turns; "
        "every step of the job can be seen, but running the branches at the same time saves nothing[/]",
        highlight=False,
    )
    return f"cpu:{core},{other}"


def run(given: argparse.Namespace) -> None:
    """The job. OpenCL devices are tested while the network is trained; if the chosen one fails, others are chosen.

    Raises:
        NNStretchError: what was found, what was wanted and what to do.
    """
    from nnstretch.devices.opencl.drivers import listed_devices, probe

    started = time.perf_counter()
    processors = given.processors or choose_processors(listed_devices())
    with reporting(as_json=False) as report:
        try:
            answer = run_job(given, processors, None if given.resume else BASELINE, report)
        except DeviceError as error:
            if given.processors or "opencl" not in processors:
                raise
            report.note(str(error))
            others = choose_processors(probe())
            if others == processors:
                raise
            answer = run_job(given, others, DESIGNS, report)
        report.show(summary(answer, given.out))
    show_breakdown(answer["seconds"], time.perf_counter() - started)


def run_job(given: argparse.Namespace, processors: str, redo: str | None, report: Reporter) -> dict[str, Any]:
    """The job on these processors; returns its answer. `redo` is as in `TransformOptions`."""
    options = TransformOptions(
        f"{Path(__file__)}:network",
        "digits",
        processors,
        given.out,
        recipe="quick",
        retrain_recipe="quick-retrain",
        changes={"seed": given.seed, "target_accuracy": TARGET_ACCURACY, **(QUICK if given.quick else {})},
        search={"time_limit": SEARCH_SECONDS, "best_effort": True, "even_if_slower": True},
        image_size=IMAGE_SIZE,
        redo=redo,
        coordinate_descent=False,  # more than half of the tuning's time, and nothing is gained on this network
    )
    report.note(f"processors: {processors}")
    return TransformAndTrain(options, report, "go on with --resume").run()


def network(num_classes: int = 10) -> tuple[torch.nn.Module, torch.Tensor]:
    """A ResNet-18 for small images with one channel, not trained, and an image for it."""
    import torch

    from nnstretch.zoo import build

    module = build("resnet18", num_classes=num_classes, small_images=True, pretrained_seed=None, in_channels=1)
    return module, torch.zeros(1, 1, IMAGE_SIZE, IMAGE_SIZE)


def show_breakdown(stages: Mapping[str, float], seconds: float) -> None:
    """Where the time went; `seconds` is the duration of the job without the set-up."""
    parts = {"set-up": float(os.environ.get("NNSTRETCH_SETUP_SECONDS", "0")), **stages}
    parts["other"] = max(0.0, seconds - sum(stages.values()))
    shown = ", ".join(f"{part} {spent:.0f} s" for part, spent in parts.items())
    console.print(f"{shown}; {seconds / 60:.1f} min without the set-up", highlight=False)


if __name__ == "__main__":
    sys.exit(main())
