"""Compares an adaptive session with a fixed plan under interference, as on NN-Stretch's slides.

A model is compiled for two processors together and for each alone. The adaptive session and a session with the fixed
plan for both
run in turns while a busy loop occupies a core of the first processor, then of the second. The loop is another
process, scheduled
by the operating system.

    python scripts/studies/interference_demo.py [MODEL] [--processors cpu:0,opencl:0@1] [--seconds 3] [-o FILE.svg] [--json]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from nnstretch.api.options import CompileOptions
from nnstretch.bench.comparison.subject import plan_feeds
from nnstretch.cli.console import exit_status, print_answer, script_parser
from nnstretch.compiler.several_plans import compile_plans
from nnstretch.devices.base.spec import ProcessorSpec, parse_processors
from nnstretch.errors import UsageError
from nnstretch.frontends.resolve import load_model
from nnstretch.report.charts.svg import BOTTOM, LEFT, TOP, WIDTH, Axes, box, dot, element, label, picture, polyline
from nnstretch.scheduler.runtime.adaptive.session import AdaptiveSession
from nnstretch.support.settings import atomic_write

_TURN = 0.15  # seconds of a turn
_MARGIN = 16
_DOWN = 30  # of everything below the title
_STRIP = BOTTOM + 44
_LEGEND = _STRIP + 50
_ROW = 18
_GLYPH = 6.6  # width of a small letter, generously
_HEADROOM = 0.985  # quantile of the latencies that the picture shows whole
_SMOOTHED = 21  # runs per mean of the lines
_LOOP = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
while os.getppid() == int(sys.argv[2]):
    for _ in range(1 << 18):
        pass
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, prints and draws; returns the exit status."""
    parser = script_parser(__doc__)
    parser.add_argument("model", nargs="?", default="googlenet", help="ONNX file (branched or not) or zoo name")
    parser.add_argument("--processors", default="cpu:0,opencl:0@1", help="two, with a core each")
    parser.add_argument("--policy", default="adaptive", help="adaptive or deadline=12ms")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each of the five phases")
    parser.add_argument("--no-tune", dest="tune", action="store_false", help="take routines by rule, not by measuring")
    parser.add_argument("-o", "--output", type=Path, help="picture (.svg)")
    parser.add_argument("--title", help="what the picture calls the model")
    options = parser.parse_args(arguments)
    return exit_status(lambda: run(options))


def run(options: argparse.Namespace) -> None:
    """Measures, draws and prints."""
    report = measure(options.model, options.processors, options.policy, options.seconds, options.tune)
    if options.output:
        with atomic_write(options.output) as file:
            file.write(drawn(report, options.title or Path(options.model).stem).encode())
    print_answer(report, show, as_json=options.json)


@contextmanager
def busy_loop(core: int | None) -> Iterator[None]:
    """Keeps a core busy during the block; the child process also ends with this process."""
    if core is None:
        yield
        return
    loop = subprocess.Popen([sys.executable, "-c", _LOOP, str(core), str(os.getpid())])
    try:
        yield
    finally:
        loop.kill()
        loop.wait()


def measure(model: str, processors: str, policy: str, seconds: float, tune: bool) -> dict[str, Any]:
    """All runs as one JSON object.

    Raises:
        UsageError: not two processors, or one without cores.
        NNStretchError: the model or a processor is refused.
    """
    specs = parse_processors(processors)
    if len(specs) != 2 or not all(spec.cores for spec in specs):
        raise UsageError(
            f"--processors {processors} are not two processors with cores to disturb, as cpu:0,opencl:0@1 are"
        )
    plans = [processors, *map(str, specs)]
    with compile_plans(load_model(model), plans, policy, CompileOptions(tune=tune)) as changing:
        together = changing.plans[0]
        alone = {together: changing._compiled[together]}
        with AdaptiveSession(alone, "fixed") as fixed:
            feeds = plan_feeds(changing.plan, 0, changing.compiled.models)
            check(changing, fixed, feeds)
            phases, runs = through({"changing": changing, "fixed": fixed}, feeds, specs, seconds)
        facts = {plan.name: plan.seconds * 1e3 for plan in changing.facts}
    report = {"model": model, "policy": policy, "undisturbed_ms": facts, "phases": phases, **runs}
    return {**report, "summary": summary(report)}


def check(changing: AdaptiveSession, fixed: AdaptiveSession, feeds: dict[str, np.ndarray]) -> None:
    """Checks that both sessions give the same outputs within rounding."""
    for a, b in zip(changing.run(None, feeds), fixed.run(None, feeds), strict=True):
        if not np.allclose(a, b, rtol=0, atol=1e-3 * float(np.ptp(b) or 1.0)):
            raise UsageError("the plans' outputs differ; this is a fault of nnstretch")


def through(
    sessions: Mapping[str, AdaptiveSession],
    feeds: dict[str, np.ndarray],
    specs: Sequence[ProcessorSpec],
    seconds: float,
) -> tuple[list[dict[str, Any]], dict[str, list[tuple[float, float, str, bool]]]]:
    """Runs sessions in turns through the phases: quiet, the first processor's core busy, quiet, the second one's, quiet.

    Returns:
        The phases, and per run of each session: end in seconds, milliseconds, plan, and whether it was a probe.
    """
    phases: list[dict[str, Any]] = []
    runs: dict[str, list[tuple[float, float, str, bool]]] = {name: [] for name in sessions}
    begin = perf_counter()
    for spec in (None, specs[0], None, specs[1], None):
        with busy_loop(None if spec is None else spec.cores[0]):
            start = perf_counter()
            while perf_counter() < start + seconds:
                for name, session in sessions.items():
                    until = perf_counter() + _TURN
                    while perf_counter() < until:
                        session.run(None, feeds)
                        ran = session.history[-1]
                        runs[name].append((perf_counter() - begin, ran.seconds * 1e3, ran.plan, ran.probing))
        phases.append(
            {"begin": start - begin, "end": perf_counter() - begin, "disturbed": "" if spec is None else str(spec)}
        )
    return phases, runs


def summary(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Per phase: mean and median of both sessions, the most frequent plan, and the number of runs before its first use."""
    rows = []
    for phase in report["phases"]:
        row: dict[str, Any] = {"disturbed": phase["disturbed"]}
        for name in ("changing", "fixed"):
            mine = [run for run in report[name] if phase["begin"] < run[0] <= phase["end"]]
            times = [ms for _, ms, _, _ in mine]
            row[name] = {"mean_ms": float(np.mean(times)), "p50_ms": float(np.median(times)), "runs": len(times)}
            if name == "changing":
                taken = [plan for _, _, plan, probing in mine if not probing]
                row["plan"] = max(set(taken), key=taken.count)
                row["runs_until_taken"] = taken.index(row["plan"])
        rows.append(row)
    return rows


def drawn(report: dict[str, Any], name: str) -> str:
    """The runs over time."""
    changing, fixed = ([TimedRun(*run) for run in report[name]] for name in ("changing", "fixed"))
    phases = [Phase(p["begin"], p["end"], p["disturbed"]) for p in report["phases"]]
    title = f"{name}: a busy loop on one processor's core, then on the other's"
    return interference_svg(title, phases, list(report["undisturbed_ms"]), changing, fixed)


@dataclass(frozen=True)
class TimedRun:
    """A run: end in seconds from the beginning, duration, plan, and whether it was a probe of that plan."""

    at: float
    ms: float
    plan: str
    probing: bool = False


@dataclass(frozen=True)
class Phase:
    """A span in seconds, and the processor that another program keeps busy meanwhile; "" if none."""

    begin: float
    end: float
    disturbed: str

    def of(self, runs: Sequence[TimedRun]) -> list[TimedRun]:
        """The runs that ended in the phase."""
        return [run for run in runs if self.begin < run.at <= self.end]


def interference_svg(
    title: str, phases: Sequence[Phase], plans: Sequence[str], changing: Sequence[TimedRun], fixed: Sequence[TimedRun]
) -> str:
    """An SVG picture of latency over time.

    Plans differ in the shape of their marks and in colours that also differ in greyscale.

    Args:
        title: over the picture.
        phases: in order, covering the time.
        plans: all plans, in the order of their colours; three at most.
        changing: runs that changed between plans.
        fixed: runs of one plan through the same phases.
    """
    everything = sorted(run.ms for run in (*changing, *fixed))
    highest = everything[int((len(everything) - 1) * _HEADROOM)]
    axes = Axes([phases[0].begin, phases[-1].end], [0.0, highest])
    parts = [part for phase in phases for part in _heading(axes, phase, changing, fixed)]
    parts += axes.frame("seconds", "")
    parts += [_mark(dot, axes, run, highest, "quiet", 1.4) for run in fixed]
    for run in changing:
        number = plans.index(run.plan)
        parts.append(_mark(_SHAPES[number], axes, run, highest, f"plan-{number}", 3.2 if run.probing else 2.0))
    for runs, class_ in ((fixed, "trend beside-trend"), (changing, "trend")):
        parts += [polyline(points, class_) for phase in phases if (points := _smoothed(axes, phase.of(runs), highest))]
    parts += _strip(axes, plans, changing)
    legend, rows = _legend(plans, fixed[0].plan)
    height = _DOWN + _LEGEND + rows * _ROW
    return picture(
        WIDTH,
        height,
        label(LEFT, 18, title, "strong"),
        label(WIDTH - _MARGIN, 18, "milliseconds of every run; above, the mean", "small", "end"),
        element("g", *parts, *legend, transform=f"translate(0,{_DOWN})"),
        name=title,
        margin=_MARGIN,
        alone=True,
    )


def _heading(axes: Axes, phase: Phase, changing: Sequence[TimedRun], fixed: Sequence[TimedRun]) -> Iterator[str]:
    """The name of a phase and the mean latency in it."""
    (left, _), (right, _) = axes.at(phase.begin, 0.0), axes.at(phase.end, 0.0)
    if phase.disturbed:
        yield box(left, TOP, right - left, BOTTOM - TOP, "faint")
    middle = (left + right) / 2
    yield label(
        middle, TOP - 22, f"{phase.disturbed} disturbed" if phase.disturbed else "undisturbed", "small", "middle"
    )
    means = [fmean(run.ms for run in phase.of(runs)) for runs in (changing, fixed) if phase.of(runs)]
    if len(means) == 2:
        yield label(middle, TOP - 7, f"{means[0]:.3g} ms, always {means[1]:.3g}", "label", "middle")


def _square(x: float, y: float, size: float, class_: str) -> str:
    return box(x - 0.9 * size, y - 0.9 * size, 1.8 * size, 1.8 * size, class_)


def _triangle(x: float, y: float, size: float, class_: str) -> str:
    corners = ((x - 1.2 * size, y + size), (x + 1.2 * size, y + size), (x, y - 1.2 * size))
    return element("polygon", points=" ".join(f"{a:.2f},{b:.2f}" for a, b in corners), class_=class_)


_Shape = Callable[[float, float, float, str], str]
_SHAPES: tuple[_Shape, ...] = (dot, _triangle, _square)


def _mark(shape: _Shape, axes: Axes, run: TimedRun, highest: float, class_: str, size: float) -> str:
    """The mark of a run; runs beyond the range lie at the upper edge."""
    x, y = axes.at(run.at, run.ms)
    return shape(x, y if run.ms <= highest else TOP, size, f"run {class_}")


def _smoothed(axes: Axes, runs: Sequence[TimedRun], highest: float) -> list[tuple[float, float]]:
    half = _SMOOTHED // 2
    means = [fmean(run.ms for run in runs[max(0, i - half) : i + half + 1]) for i in range(len(runs))]
    return [axes.at(run.at, min(ms, highest)) for run, ms in zip(runs, means, strict=True)]


def _strip(axes: Axes, plans: Sequence[str], changing: Sequence[TimedRun]) -> Iterator[str]:
    """The plan in use over time."""
    yield label(LEFT - 8, _STRIP + 10, "plan", "small", "end")
    left, _ = axes.at(0.0, 0.0)
    for plan, runs in groupby((run for run in changing if not run.probing), key=lambda run: run.plan):
        right, _ = axes.at(list(runs)[-1].at, 0.0)
        yield box(left, _STRIP, right - left, 12, f"plan-{plans.index(plan)}", plan)
        if right - left > _GLYPH * len(plan):
            yield label((left + right) / 2, _STRIP + 25, plan, "small", "middle")
        left = right


def _legend(plans: Sequence[str], fixed: str) -> tuple[list[str], int]:
    """What the marks, lines and numbers mean, and how many rows that takes."""
    entries = [(name, _SHAPES[i](5, -4, 3.5, f"plan-{i}")) for i, name in enumerate(plans)]
    entries.append((f"always {fixed}", dot(5, -4, 3.5, "quiet")))
    for class_, text in (("trend", "changing plans"), ("trend beside-trend", f"always {fixed}")):
        entries.append((f"{text}, mean of {_SMOOTHED} runs", polyline([(-4, -4), (11, -4)], class_)))
    parts: list[str] = []
    x, row = float(LEFT), 0
    for text, sign in entries:
        width = 40 + _GLYPH * len(text)
        if x + width > WIDTH and x > LEFT:
            x, row = float(LEFT), row + 1
        parts.append(
            element("g", sign, label(17, 0, text, "small"), transform=f"translate({x:g},{_LEGEND + row * _ROW:g})")
        )
        x += width
    return parts, row + 1


def show(report: dict[str, Any]) -> None:
    """The table of the terminal output."""
    console = Console()
    times = ", ".join(f"{name} {ms:.2f} ms" for name, ms in report["undisturbed_ms"].items())
    console.print(f"{Path(report['model']).stem}, undisturbed: {times}")
    first = report["fixed"][0][2]
    table = Table("disturbed", "plan", "after runs", "mean ms", f"always {first}", "gain", box=None)
    for row in report["summary"]:
        mean, fixed = row["changing"]["mean_ms"], row["fixed"]["mean_ms"]
        table.add_row(
            row["disturbed"] or "nothing",
            row["plan"],
            str(row["runs_until_taken"]),
            f"{mean:.2f}",
            f"{fixed:.2f}",
            f"{fixed / mean:.2f}×",
        )
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
