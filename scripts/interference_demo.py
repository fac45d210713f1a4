"""Compares an adaptive session with a fixed plan under interference, as on NN-Stretch's slides.

A model is compiled for two processors together and for each alone. The adaptive session and a session with the fixed
plan for both
run in turns while a busy loop occupies a core of the first processor, then of the second. The loop is another
process, scheduled
by the operating system.

    .venv/bin/python scripts/interference_demo.py [MODEL] [--processors cpu:0,opencl:0@1] [--seconds 3] [-o FILE.svg] [--json]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from nnstretch.bench.comparison.subject import plan_feeds
from nnstretch.cli.scripts import exit_status, print_answer, script_parser
from nnstretch.compiler.several_plans import compile_plans
from nnstretch.devices.base.spec import ProcessorSpec, parse_processors
from nnstretch.errors import UsageError
from nnstretch.frontends.resolve import load_model
from nnstretch.report.charts.interference import Phase, TimedRun, interference_svg
from nnstretch.scheduler.runtime.adaptive.session import AdaptiveSession
from nnstretch.support.settings import atomic_write

_TURN = 0.15  # seconds of a turn
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
            file.write(picture(report, options.title or Path(options.model).stem).encode())
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
    with compile_plans(load_model(model), plans, policy=policy, tune=tune) as changing:
        together = changing.plans[0]
        alone = {together: changing._compiled[together]}
        with AdaptiveSession(alone, "fixed") as fixed:
            feeds = plan_feeds(changing.plan, 0)
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


def picture(report: dict[str, Any], name: str) -> str:
    """The runs over time."""
    changing, fixed = ([TimedRun(*run) for run in report[name]] for name in ("changing", "fixed"))
    phases = [Phase(p["begin"], p["end"], p["disturbed"]) for p in report["phases"]]
    title = f"{name}: a busy loop on one processor's core, then on the other's"
    return interference_svg(title, phases, list(report["undisturbed_ms"]), changing, fixed)


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
