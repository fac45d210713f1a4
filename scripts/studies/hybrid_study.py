"""Compares plans in float32, in int8 and hybrid ones of the same int8 files, interleaved, as a Markdown table.

    python scripts/studies/hybrid_study.py mobilenetv2 resnet18 net-int8.onnx --masks "" "-avx512f" --threads 1,2 -o table.md
    python scripts/studies/hybrid_study.py resnet18 --processors cpu:0,cpu:1 --processors cpu:0,opencl:0@1 --tolerance 1e-3

NET is an ONNX file with QuantizeLinear and DequantizeLinear nodes, or a zoo name, which is quantised first. Every network,
mask of CPU features (`NNSTRETCH_CPU_FEATURES`) and number of threads, or list of processors in their place, is measured in a
process of its own, which tunes the three plans and then times them in turns. A hybrid is to be as fast as the faster of the
other two: the last columns have the ratio of its median to that of the faster one, the ratio's 95 % interval, and whether that
holds. The exit status is 1 where an interval lies above 1.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nnstretch.bench.kept_answers import CommandError, kept_answer
from nnstretch.cli.console import exit_status
from nnstretch.devices.cpu.processor import cpu_model
from nnstretch.errors import UsageError
from nnstretch.report.tables.text import interval_text, ms_text
from nnstretch.support.settings import write_text

TYPES = ("float32", "int8", "hybrid")
SLOWER = 1
"""Exit status if a hybrid is slower than one of the other plans."""
MASKS = "NNSTRETCH_CPU_FEATURES"
COLUMNS = (
    "network",
    "hidden features",
    "threads or processors",
    *(f"{one} ms" for one in TYPES),
    "hybrid over faster",
    "interval",
    "holds",
)


@dataclass(frozen=True)
class Row:
    """Times of one network.

    Attributes:
        network: its name.
        mask: CPU features that are hidden.
        place: number of threads, or processors.
        medians: milliseconds by type.
        ratio: median of the hybrid over the smaller one of the others.
        interval: of the ratio; None with fewer than three rounds.
    """

    network: str
    mask: str
    place: str
    medians: Mapping[str, float]
    ratio: float
    interval: tuple[float, float] | None

    @property
    def verdict(self) -> str:
        """Whether the hybrid is as fast as the faster one of the others."""
        if self.ratio <= 1:
            return "yes"
        return "no" if self.interval is not None and self.interval[0] > 1 else "within the interval"

    def cells(self) -> list[str]:
        """Of the table."""
        times = [ms_text(self.medians[one]) for one in TYPES]
        ends = interval_text(self.interval, ".3f")
        return [self.network, self.mask or "none", self.place, *times, f"{self.ratio:.3f}", ends, self.verdict]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints and writes; returns the exit status."""
    masks, rest = split_masks(sys.argv[1:] if arguments is None else arguments)
    given = _parser().parse_args(rest)
    if given.measure:
        return exit_status(lambda: print(json.dumps(measured(given))))
    return exit_status(lambda: study(given, masks or [""]))


_MASK = re.compile(r"(-\w{3,}(,|$))*")
"""CPU features to hide, such as "-avx512f,-avx2"; empty for none."""


def split_masks(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The masks, which begin like options, and all other arguments."""
    masks: list[str] = []
    rest: list[str] = []
    collects = False
    for argument in arguments:
        collects = argument == "--masks" or (collects and _MASK.fullmatch(argument) is not None)
        if argument != "--masks":
            (masks if collects else rest).append(argument)
    return masks, rest


def _parser() -> ArgumentParser:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="+", metavar="NET", help="int8 ONNX file or zoo name")
    parser.add_argument(
        "--masks", metavar="MASK", help='one or more, such as "" and "-avx512f,-avx512_vnni" (default: "")'
    )
    parser.add_argument("--threads", default="1,2", metavar="LIST", help="numbers of threads (default: %(default)s)")
    parser.add_argument(
        "--processors",
        action="append",
        metavar="LIST",
        help="such as cpu:0,opencl:0@1, in place of threads; repeatable",
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        metavar="E",
        help="largest error of a routine; from 1e-3 on with float16 (default: 1e-4)",
    )
    parser.add_argument(
        "--image-size", type=int, default=224, metavar="N", help="of zoo networks (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=10, metavar="N", help="turns of each plan (default: %(default)s)")
    parser.add_argument(
        "--turn", type=float, default=0.15, metavar="S", help="seconds of a turn (default: %(default)s)"
    )
    parser.add_argument("--quick", action="store_true", help="short lists of parameters, to see that all works")
    parser.add_argument(
        "--work", type=Path, default=Path("out/hybrid"), metavar="DIR", help="int8 files of zoo networks"
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="the table; always printed, too")
    parser.add_argument("--measure", action="store_true", help="measure one network here and print JSON")
    return parser


def study(given: Namespace, masks: Sequence[str]) -> int:
    """Measures every network and shows the table, which is written after each row.

    Raises:
        UsageError: the numbers of threads are not understood.
        CommandError: a network cannot be quantised or measured.
    """
    if re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", given.threads) is None:
        raise UsageError(f"--threads {given.threads!r} is not understood; write numbers such as 1,2")
    rows: list[Row] = []
    for network in given.networks:
        file = int8_file(network, given)
        for mask in masks:
            for place in given.processors or given.threads.split(","):
                print(f"{network}, features hidden: {mask or 'none'}, on: {place} …", file=sys.stderr)
                answer = _in_a_process(file, mask, place, given)
                ends = answer["interval"]
                name = Path(network).name
                interval = None if ends is None else (ends[0], ends[1])
                rows.append(Row(name, mask, place, answer["medians"], answer["ratio"], interval))
                if given.output is not None:
                    write_text(given.output, table(rows))
    print(table(rows), end="")
    return SLOWER if any(row.verdict == "no" for row in rows) else 0


def int8_file(network: str, given: Namespace) -> Path:
    """The file of a network, which is made for a zoo name, once."""
    if network.endswith(".onnx"):
        return Path(network)
    size = given.image_size
    file: Path = given.work / f"{network}-{size}.onnx"
    file.parent.mkdir(parents=True, exist_ok=True)
    data = ["--data", "textures", "--images", "20", "--image-size", str(size)]
    command = ["quantize", network, *data, "-o", str(file), "--json"]
    answer = file.with_suffix(".json")
    if not file.exists():
        answer.unlink(missing_ok=True)
    kept_answer(answer, command, lambda text: print(text, file=sys.stderr))
    return file


def _in_a_process(file: Path, mask: str, place: str, given: Namespace) -> dict[str, Any]:
    """The answer of `measured` in a process that sees only some of the CPU's features."""
    timing = ["--rounds", str(given.rounds), "--turn", str(given.turn), *(["--quick"] if given.quick else [])]
    timing += [] if given.tolerance is None else ["--tolerance", str(given.tolerance)]
    command = [sys.executable, "-m", "scripts.studies.hybrid_study", str(file.resolve()), "--measure"]
    done = subprocess.run(
        [*command, "--processors" if given.processors else "--threads", place, *timing],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        env={**os.environ, MASKS: mask},
        cwd=Path(__file__).parents[2],
    )
    if done.returncode:
        raise CommandError(f"{file} could not be measured with hidden features {mask or 'none'}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def measured(given: Namespace) -> dict[str, Any]:
    """Times the three plans of one file in turns.

    Returns:
        `medians` in milliseconds by type, `ratio` of the hybrid to the faster of the others, and its `interval`.
    """
    from nnstretch.api.options import CompileOptions
    from nnstretch.bench.comparison.subject import random_feeds
    from nnstretch.bench.timing import (
        MIN_ROUNDS,
        MeasurementOptions,
        TimingOptions,
        interleave,
        interval,
        latency,
        resampled,
        timed,
    )
    from nnstretch.frontends.onnx_file import load
    from nnstretch.support.progress import silent

    graph = load(given.networks[0])
    feeds = random_feeds(graph, 0)
    with ExitStack() as stack:
        plans = []
        for one in TYPES:
            threads = None if given.processors else int(given.threads)
            compiling = CompileOptions(dtype=one, threads=threads, tolerance=given.tolerance)
            options = MeasurementOptions(compiling=compiling, coordinate_descent=not given.quick)
            (processors,) = given.processors or ["cpu"]
            plans.append(timed(stack.enter_context(options.session(graph, processors, silent)), feeds))
        slices = interleave(plans, TimingOptions(given.rounds, given.turn), silent)
    medians = {one: latency(rounds).p50_ms for one, rounds in zip(TYPES, slices, strict=True)}
    drawn = resampled(slices)
    ratios = drawn[2] / np.minimum(drawn[0], drawn[1])
    return {
        "medians": medians,
        "ratio": medians["hybrid"] / min(medians["float32"], medians["int8"]),
        "interval": interval(ratios) if given.rounds >= MIN_ROUNDS else None,
    }


def table(rows: Sequence[Row]) -> str:
    """The rows as Markdown."""
    lines = [COLUMNS, ["---"] * len(COLUMNS), *(row.cells() for row in rows)]
    return f"{cpu_model()}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
