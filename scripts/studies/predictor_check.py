"""Checks predicted latencies of branches: random designs, each branch predicted and then measured.

    python scripts/studies/predictor_check.py --processors cpu:0,opencl:0@1 --models resnet18,resnet50 -n 50 -o check.json

Every design is a random branching within the bounds of its network's family. `guess` is the cost model's prediction
before any layer is
measured for this design; `predicted` is the prediction with every layer measured alone, as the search reports it.
Then the network is compiled
and run: `measured` is the busy time of each branch beside the others, normalised to the reference frequency of its
core, and `taken`
is the busy time as measured. Layers in the profile store are not measured again.

With -o, the results are saved after every design, and an interrupted check continues. An SVG chart of the same name lies beside
the JSON file.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

from nnstretch.branching.channels.scaling import TensorChannels
from nnstretch.branching.design.blueprint import Blueprint, BranchChoice, SegmentChoice, blueprint
from nnstretch.branching.design.design import Design
from nnstretch.branching.design.from_choices import choices_of, make_design, segment_cost
from nnstretch.branching.latency.split_layers import processor_groups
from nnstretch.branching.search.limits import SearchLimits, family_of
from nnstretch.branching.tracing.operators import channels_of
from nnstretch.branching.tracing.trace import Segment
from nnstretch.cli.console import exit_status, print_answer
from nnstretch.errors import DesignError, FileError, UsageError
from nnstretch.report.charts.svg import box, dot, label, line, picture, tick_text
from nnstretch.support.image_size import ImageSize, parse_image_size
from nnstretch.support.settings import write_text

if TYPE_CHECKING:
    from nnstretch.branching.latency.prediction import DesignRunner
    from nnstretch.scheduler.costmodel.predictor import ProfilePredictor
    from nnstretch.scheduler.simulation.costs import SimulatedPredictor

_WIDTHS = 32  # width ratios are k / 32
_LONGEST = 6  # maximum number of blocks in a segment
_WHOLE = 0.15  # probability that a segment is not branched
_MOST_MACS = 1.25  # maximum MACs of branches, over the original segment's
_TRIES = 50

TOLERANCE = 0.1
"""Relative error of a good prediction."""

COMPARED = {
    "predicted": ("predicted_ms", "measured_ms", "layers measured one by one"),
    "guess": ("guess_ms", "measured_ms", "before any was measured for the design"),
    "taken": ("predicted_ms", "taken_ms", "layers measured one by one, whatever the clock was when branches ran"),
}
"""The compared pairs: fields of a prediction and of a measurement, and a title."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Checks, prints and writes; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processors", default="cpu,opencl", help="two or more, such as cpu:0,opencl:0@1")
    parser.add_argument("--models", default="resnet18,resnet50,mobilenetv2", help="zoo names or module.py:factory")
    parser.add_argument("-n", "--designs", type=int, default=50, help="how many, shared out among the models")
    parser.add_argument("--image-size", help="of the input, such as 224 or 48x160")
    parser.add_argument(
        "--measure-all", action="store_true", help="do without the cost model: `guess` is measured, too"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, help="a JSON file")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    return exit_status(
        lambda: print_answer(check(options), lambda answer: print(summary_text(answer)), as_json=options.json)
    )


def check(options: argparse.Namespace) -> dict[str, Any]:
    """All designs and their summary."""
    models = [name.strip() for name in options.models.split(",")]
    if options.designs < len(models):
        raise UsageError(
            f"{options.designs} designs were asked for; give one for each of {len(models)} models, or more"
        )
    about = {
        "processors": options.processors,
        "models": models,
        "image_size": options.image_size,
        "seed": options.seed,
        "learned": not options.measure_all,
    }
    designs = kept(options.output, about)
    checking = Checking.of(options.processors, learned=not options.measure_all)
    for turn, model in enumerate(models):
        count = len(range(turn, options.designs, len(models)))
        missing = [number for number in range(count) if (model, number) not in designs]
        subject = checking.subject(model, parse_image_size(options.image_size)) if missing else None
        for number in missing:
            assert subject is not None
            designs[model, number] = checking.design(subject, number, options.seed)
            print(progress(designs[model, number], len(designs), options.designs), file=sys.stderr)
            if options.output is not None:
                write(options.output, {**about, **summary(designs), "designs": list(designs.values())})
    answer = {**about, **summary(designs), "designs": list(designs.values())}
    if options.output is not None:
        write(options.output, answer)
        write_picture(options.output.with_suffix(".svg"), answer)
    return answer


Key = tuple[str, int]


def kept(path: Path | None, about: Mapping[str, Any]) -> dict[Key, dict[str, Any]]:
    """The designs of an earlier check of the same kind.

    Raises:
        FileError: the file cannot be read, or is of another check.
    """
    if path is None or not path.exists():
        return {}
    try:
        raw = json.loads(path.read_bytes())
        designs = {(str(one["model"]), int(one["number"])): dict(one) for one in raw["designs"]}
        same = all(raw[name] == value for name, value in about.items() if name != "models")
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise FileError(f"{path} is no check of predictions ({error!r}); give another file with -o") from error
    if not same:
        raise FileError(f"{path} is of a check with other options; give another file with -o")
    return designs


@dataclass(frozen=True, eq=False)
class Subject:
    """A network and the predictor of its layers."""

    model: str
    plan: Blueprint
    predictor: ProfilePredictor | SimulatedPredictor


@dataclass(frozen=True, eq=False)
class Checking:
    """Predicts and runs designs."""

    names: tuple[str, ...]
    block: int
    processors: Any
    learned: bool

    @staticmethod
    def of(text: str, *, learned: bool) -> Checking:
        """Opens the processors."""
        from nnstretch.compiler.processors import build_processors
        from nnstretch.scheduler.simulation.costs import one_soc

        opened = build_processors(text)
        if one_soc(opened.named) is not None or len(opened.named) < 2:
            raise UsageError(f"--processors {text}: give two or more that are here, such as cpu:0,opencl:0@1")
        names = tuple(processor.name for processor in opened.named)
        return Checking(names, opened.host.blocked.block, opened, learned)

    def subject(self, model: str, image_size: ImageSize | None) -> Subject:
        """A network prepared for branching, and the predictor of its layers."""
        from nnstretch.branching.design.accounting import working_set
        from nnstretch.cli.models.networks import NetworkOptions, build_network
        from nnstretch.compiler.costs import latency_predictor

        network = build_network(model, NetworkOptions(image_size=image_size))
        size = working_set(network.module, network.example_input)
        return Subject(
            model,
            blueprint(network.module, network.example_input, self.block),
            latency_predictor(self.processors, learned=None if self.learned else False, working_set=size),
        )

    def design(self, subject: Subject, number: int, seed: int) -> dict[str, Any]:
        """A random design, predicted and measured."""
        from nnstretch.compiler.design_runs import design_runner

        generator = Random(f"{seed} {subject.model} {number}")
        design = random_design(subject.plan, generator, SearchLimits(), len(self.names))
        begin = time.perf_counter()
        run_design = design_runner(self.processors, subject.plan.traced.example_input, subject.predictor)
        assert run_design is not None, "processors are here"
        branches = self.branches(subject, design, run_design)
        return {
            "model": subject.model,
            "number": number,
            "id": design.id,
            "macs": design.macs / design.original_macs,
            "seconds": time.perf_counter() - begin,
            "branches": branches,
        }

    def branches(self, subject: Subject, design: Design, run_design: DesignRunner) -> list[dict[str, Any]]:
        """All branches that run beside others, in milliseconds."""
        from nnstretch.branching.latency.table import LatencyTable
        from nnstretch.branching.search.network_latency import confirm
        from nnstretch.branching.transform.build import build

        plan = subject.plan
        latencies = LatencyTable(plan, subject.predictor, len(self.names))
        guesses = beside(latencies, design)
        confirm(latencies, choices_of(design))
        latencies.forget()
        predictions = beside(latencies, design)
        measured = run_design(build(plan, design), tuned=False)
        return [
            {
                "segment": number,
                "name": plan.traced.name_of(choice.segment),
                "processor": self.names[branch.processor],
                "depth": segment.branches[i].depth,
                "width": branch.width,
                "guess_ms": 1e3 * guesses[number][i],
                "predicted_ms": 1e3 * predictions[number][i],
                "measured_ms": 1e3 * measured.branches[number][i],
                "taken_ms": 1e3 * measured.branches[number][i] / measured.relative_speeds[branch.processor],
            }
            for number, (segment, choice) in enumerate(zip(design.segments, choices_of(design), strict=True))
            for i, branch in enumerate(choice.branches)
            if len(choice.branches) > 1
        ]


def beside(latencies: Any, design: Design) -> list[list[float]]:
    """Predicted seconds of all branches of a design, beside the others of their segments."""
    from nnstretch.branching.search.network_latency import branch_seconds, network_prediction

    choices = choices_of(design)
    prediction = network_prediction(latencies, choices, branch_seconds(latencies, choices))
    return [[branch.contended for branch in part.branches] for part in prediction.segments]


# -- summary --------------------------------------------------------------------------------------------------


def summary(designs: Mapping[Key, Mapping[str, Any]]) -> dict[str, Any]:
    """Errors of all branches: in all, by model, and by processor."""
    branches = [(one["model"], branch) for one in designs.values() for branch in one["branches"]]
    groups: dict[str, list[Mapping[str, Any]]] = {"all": [branch for _, branch in branches]}
    for model, branch in branches:
        groups.setdefault(f"{model} on {branch['processor']}", []).append(branch)
    return {
        kind: {name: spread(some, predicted, measured) for name, some in groups.items() if some}
        for kind, (predicted, measured, _) in COMPARED.items()
    }


def spread(branches: Sequence[Mapping[str, Any]], predicted: str, measured: str) -> dict[str, Any]:
    """How far predictions are off, |predicted / measured - 1|."""
    ratios = np.array([branch[predicted] / branch[measured] for branch in branches])
    errors = np.abs(ratios - 1)
    return {
        "branches": len(branches),
        "within": float(np.mean(errors <= TOLERANCE)),
        "median": float(np.median(errors)),
        "p90": float(np.quantile(errors, 0.9)),
        "worst": float(errors.max()),
        "ratio": float(np.median(ratios)),
    }


def summary_text(answer: Mapping[str, Any]) -> str:
    """The summary of the terminal output."""
    lines = [f"{len(answer['designs'])} designs on {answer['processors']}; errors are |predicted / measured - 1|"]
    for kind, (_, _, text) in COMPARED.items():
        lines.append(f"{text}:")
        lines += [
            f"  {name:32} {one['branches']:4} branches, {one['within']:4.0%} within {TOLERANCE:.0%}, median "
            f"{one['median']:5.1%}, nine of ten {one['p90']:5.1%}, worst {one['worst']:5.1%}, median ratio {one['ratio']:.3f}"
            for name, one in answer[kind].items()
        ]
    return "\n".join(lines)


def progress(design: Mapping[str, Any], done: int, total: int) -> str:
    """A line for a finished design."""
    found = spread(design["branches"], *COMPARED["predicted"][:2])
    return (
        f"{done}/{total} {design['model']} {design['id']}: {found['branches']} branches, {found['within']:.0%} within "
        f"{TOLERANCE:.0%}, median ratio {found['ratio']:.2f}, {design['seconds']:.0f} s"
    )


def write(path: Path, answer: Mapping[str, Any]) -> None:
    """Writes the answer as JSON."""
    write_text(path, json.dumps(answer, indent=1) + "\n")


def write_picture(path: Path, answer: Mapping[str, Any]) -> None:
    """Writes predictions against measurements as SVG."""
    series: dict[str, list[Agreement]] = {}
    for one in answer["designs"]:
        for branch in one["branches"]:
            tip = f"{one['model']} {one['id']}, {branch['name']}, {branch['depth']:.2f} × {branch['width']:.2f}"
            dot = Agreement(branch["predicted_ms"], branch["measured_ms"], tip)
            series.setdefault(branch["processor"], []).append(dot)
    write_text(path, agreement_svg(series, TOLERANCE))


SIDE, LEFT, TOP, MARGIN = 520.0, 70.0, 40.0, 16.0  # of the picture, in pixels


@dataclass(frozen=True)
class Agreement:
    """One predicted and measured value in milliseconds (above 0), and its tooltip."""

    predicted_ms: float
    measured_ms: float
    tip: str


def agreement_svg(series: Mapping[str, Sequence[Agreement]], tolerance: float) -> str:
    """A stand-alone SVG: logarithmic axes, one colour per series, lines at the tolerance."""
    values = [ms for some in series.values() for one in some for ms in (one.predicted_ms, one.measured_ms)]
    low, high = min(values) / 1.1, max(values) * 1.1

    def at(predicted: float, measured: float) -> tuple[float, float]:
        across, up = (math.log(ms / low) / math.log(high / low) for ms in (predicted, measured))
        return LEFT + across * SIDE, TOP + (1 - up) * SIDE

    bottom, right = TOP + SIDE, LEFT + SIDE
    parts: list[str] = []
    for tick in round_numbers(low, high):
        x, y = at(tick, tick)
        parts += [line(x, TOP, x, bottom, "grid"), line(LEFT, y, right, y, "grid")]
        parts += [
            label(x, bottom + 18, tick_text(tick), "small", "middle"),
            label(LEFT - 8, y + 4, tick_text(tick), "small", "end"),
        ]
    parts.append(line(*at(low, low), *at(high, high), "axis"))
    for factor in (1 - tolerance, 1 + tolerance):
        # Measured is predicted over 1 + error; the ends are cut off where the picture ends.
        begin, end = max(low, low * factor), min(high, high * factor)
        parts.append(line(*at(begin, begin / factor), *at(end, end / factor), "bound"))
    for number, (name, some) in enumerate(series.items()):
        for one in some:
            x, y = at(one.predicted_ms, one.measured_ms)
            parts.append(dot(x, y, 3.2, f"dot series-{number % 4}", one.tip))
        y = TOP + 14 + 18 * number
        parts += [box(right + 16, y - 6, 12, 4, f"series-fill-{number % 4}"), label(right + 34, y, name, "small")]
    parts += [
        label(right, bottom + 36, "predicted ms", "small", "end"),
        label(LEFT, TOP - 10, f"measured ms; dashed: off by {tolerance:.0%}", "small"),
    ]
    title = "Predicted and measured latencies of branches"
    return picture(right + 200, bottom + 44, *parts, name=title, margin=MARGIN, alone=True)


def round_numbers(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [tick for power in powers for step in (1, 2, 5) if low <= (tick := step * 10.0**power) <= high]


def random_design(blueprint: Blueprint, generator: Random, limits: SearchLimits, processors: int = 2) -> Design:
    """A design with random segments, processors, depths and widths.

    Args:
        blueprint: the network.
        generator: of random numbers; equal states give equal designs.
        limits: its bounds of depth, width, MACs and segments apply; latencies are ignored.
        processors: number of processors, at least two.

    Raises:
        DesignError: no branched design within the limits was found.
    """
    sampler = _Sampler(blueprint, generator, limits.for_family(family_of(blueprint.traced)), processors)
    for _ in range(_TRIES):
        choices = sampler.network()
        if any(len(choice.branches) > 1 for choice in choices):
            return make_design(blueprint, choices)
    raise DesignError(
        f"{_TRIES} random designs have no branch; lower min_macs, min_depth or min_width, or raise max_segment"
    )


class _Sampler:
    def __init__(self, blueprint: Blueprint, generator: Random, limits: SearchLimits, processors: int) -> None:
        self.blueprint, self.generator, self.limits = blueprint, generator, limits
        self.groups = list(processor_groups(range(processors)))
        self.processors = processors
        count = len(blueprint.traced.blocks)
        self.macs = [segment_cost(blueprint, Segment(i, i + 1)).macs for i in range(count)]

    def network(self) -> list[SegmentChoice]:
        """Segments that cover the network."""
        choices: list[SegmentChoice] = []
        first, count = 0, len(self.macs)
        while first < count:
            stop = self.generator.randint(first + 1, min(first + _LONGEST, count))
            segment = Segment(first, stop)
            branches = self.branches(segment) if self.generator.random() >= _WHOLE else None
            if branches is None:
                segment = Segment(first, first + 1)
                branches = (BranchChoice(self.generator.randrange(self.processors), (first,), 1.0),)
            choices.append(SegmentChoice(segment, branches))
            first = segment.stop
        return choices

    def branches(self, segment: Segment) -> tuple[BranchChoice, ...] | None:
        """Branches of a segment; None if it cannot be branched, or no attempt was within the limits."""
        if not self.blueprint.branchable(segment) or not self.is_short(segment):
            return None
        assert self.limits.min_depth is not None
        depths = self.blueprint.depth_candidates(segment, self.limits.min_depth)
        source, original = self.blueprint.boundary(segment.first), self.original(segment)
        scaled = {source: TensorChannels(channels_of(source), exact=False)}
        for _ in range(_TRIES if depths else 0):
            group = self.generator.choice(self.groups)
            drawn = [BranchChoice(p, self.generator.choice(depths), self.width()) for p in group]
            met = self.blueprint.meeting(segment, drawn)
            macs = sum(self.blueprint.cost(segment, one, scaled).macs for one in met)
            if self.limits.min_macs * original <= macs <= max(_MOST_MACS, self.limits.min_macs) * original:
                return met
        return None

    def is_short(self, segment: Segment) -> bool:
        """Whether the segment's MACs are within `max_segment`."""
        alone = segment.stop - segment.first == 1
        return alone or self.original(segment) <= self.limits.max_segment * sum(self.macs)

    def original(self, segment: Segment) -> int:
        """MACs of the original segment."""
        return sum(self.macs[segment.first : segment.stop])

    def width(self) -> float:
        """A width ratio within the limits."""
        assert self.limits.min_width is not None
        return max(self.generator.randint(1, _WIDTHS) / _WIDTHS, self.limits.min_width)


if __name__ == "__main__":
    sys.exit(main())
