"""Images per second of a training beside a plain loop of PyTorch with the same tensors, batch, threads and types.

    python scripts/studies/training_speed.py MODEL [--device NAME] [--amp-dtype TYPE] [--torchcompile BACKEND] [--json]

MODEL is a zoo name or FILE.py:FACTORY. Rounds are interleaved; the ratio is the median over the rounds. On a machine that
does other work, the figures mean nothing.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Sequence
from typing import Any

from nnstretch.cli.console import exit_status, print_answer, reporting, script_parser
from nnstretch.support.image_size import parse_image_size, size_of, size_text
from nnstretch.training.recipe import AMP_DTYPES


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints; returns the exit status."""
    given = make_parser().parse_args(arguments)
    return exit_status(lambda: run(given))


def make_parser() -> ArgumentParser:
    """The command line."""
    parser = script_parser(__doc__)
    add = parser.add_argument
    add("model", metavar="MODEL", help="zoo name or FILE.py:FACTORY")
    add("--image-size", metavar="SIZE", help="such as 224 or 48x160; the network's by default")
    add("--num-classes", type=int, default=10, metavar="N", help="default: 10")
    add("--batch-size", type=int, default=32, metavar="N", help="images per step (default: 32)")
    add("--steps", type=int, default=10, metavar="N", help="timed steps per round (default: 10)")
    add("--warmup", type=int, default=3, metavar="N", help="steps before them (default: 3)")
    add("--rounds", type=int, default=5, metavar="N", help="parts of each loop (default: 5)")
    add("--device", metavar="NAME", help="cpu, cuda:0, mps … (default: cuda:0 where there is one)")
    add("--amp-dtype", default="auto", choices=AMP_DTYPES, help="type of matrix products (default: auto)")
    add("--channels-last", action=BooleanOptionalAction, default=True, help="channels as the last axis in memory")
    add("--torchcompile", metavar="BACKEND", help="compile the network with torch.compile: inductor, eager …")
    add("-t", "--threads", type=int, metavar="N", help="CPU threads; torch's setting by default")
    add("--workers", type=int, metavar="N", help="processes that load images for the training")
    return parser


def run(given: Namespace) -> None:
    """Times both loops.

    Raises:
        NNStretchError: what was found, what was wanted and what to do.
    """
    import torch

    from nnstretch.bench.training_speed import SpeedSettings, training_speed
    from nnstretch.cli.models.networks import NetworkOptions, build_network
    from nnstretch.devices.cpu.processor import cpu_model
    from nnstretch.training.loop.torch_settings import find_device

    settings = SpeedSettings(
        given.batch_size, given.steps, given.warmup, given.rounds, given.amp_dtype, given.channels_last,
        given.torchcompile, given.threads, given.workers,
    )  # fmt: skip
    device = find_device(given.device)
    network = build_network(
        given.model, NetworkOptions(given.num_classes, None, None, parse_image_size(given.image_size))
    )
    with reporting(as_json=given.json) as report, report.progress("Timing") as advance:
        found = training_speed(network.module, network.example_input, given.num_classes, settings, device, advance)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_model()
    answer = {
        "model": given.model,
        "image_size": size_of(*network.example_input.shape[2:]),
        "device": str(device),
        "device_name": name,
        "torch": torch.__version__,
        **found.to_json(),
    }
    print_answer(answer, show, as_json=given.json)


def show(answer: dict[str, Any]) -> None:
    """Prints the medians and their ratio."""
    rates = answer["images_per_second"]
    print(
        f"{answer['model']} at {size_text(answer['image_size'])} on {answer['device']} ({answer['device_name']}): "
        f"training {rates['training']:.1f} images/s, plain loop {rates['plain']:.1f} images/s, ratio {answer['ratio']:.3f}"
    )


if __name__ == "__main__":
    sys.exit(main())
