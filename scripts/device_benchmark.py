"""Benchmarks the processors of this machine, alone and together, or models on targets.

Measures the multiply-add peak of each core, the share of it that convolutions reach (`--layers` lists them), the
cost of a join of two
processors, the contention of two equal branches (concurrent latency / the slower one alone), and the gaps between the
steps of a run.

    .venv/bin/python scripts/device_benchmark.py [--processors cpu:0,opencl:0@1] [--model resnet50] [--json]

With `--target`, it times models on phones, boards and emulated processors instead, all targets at the same time, and writes the
columns of NN-Stretch's measurements (`cfg,latency,energy`; milliseconds and joules per run). Options after `--` are those of
`nnstretch bench`.

    .venv/bin/python scripts/device_benchmark.py --target adb --target ssh:pi@board --model resnet50 --csv found.csv
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table

from nnstretch.cli.console import exit_status, print_answer, script_parser
from nnstretch.errors import UsageError

if TYPE_CHECKING:
    import onnx_ir as ir

    from nnstretch.devices.base.processor import Processor
    from nnstretch.graph.layer import Layer
    from nnstretch.scheduler.measurement.profiler import Profiler

ROUNDS = 9
BRANCH_IMAGE = (1, 128, 28, 28)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints; returns the exit status."""
    parser = script_parser(__doc__)
    parser.add_argument(
        "--processors", default="cpu,opencl", help="those to measure; of two, also what they do together"
    )
    parser.add_argument(
        "--model",
        action="append",
        help="ONNX file or zoo name whose convolutions are measured; with --target the models, repeatable (default: resnet50)",
    )
    parser.add_argument("--layers", action="store_true", help="list every distinct convolution")
    parser.add_argument("--target", action="append", help="time models on this machine, such as adb; repeatable")
    parser.add_argument("--csv", default="device_benchmark.csv", help="with --target: the file of the times")
    parser.add_argument("more", nargs="*", help="with --target: options of `nnstretch bench`, after --")
    options = parser.parse_args(arguments)
    models = options.model or ["resnet50"]
    if options.target:
        return on_targets(models, options.target, options.csv, [*options.more, *(["--json"] if options.json else [])])

    def work() -> None:
        if len(models) > 1 or options.more:
            raise UsageError("several models, and options of `nnstretch bench`, go with --target")
        with Console(stderr=True).status(f"measuring {options.processors}; the first time takes minutes"):
            report = measure(options.processors, models[0])
        print_answer(report, lambda report: show(report, options.layers), as_json=options.json)

    return exit_status(work)


def on_targets(models: Sequence[str], targets: Sequence[str], csv: str, more: Sequence[str]) -> int:
    """Times models on targets, writes the times, and returns the exit status."""
    from nnstretch.cli.main import main as nnstretch

    named = [word for target in targets for word in ("--target", target)]
    return nnstretch(["bench", *models, *named, "-o", csv, *more])


def measure(processors: str, model: str) -> dict[str, Any]:
    """All measurements as one JSON object."""
    from nnstretch.compiler.costs import open_profiler
    from nnstretch.compiler.processors import build_processors
    from nnstretch.devices.engine.binding.library import engine
    from nnstretch.frontends.resolve import load_any

    opened = build_processors(processors)
    costs = open_profiler(opened)
    # The rate of a GPU is reported as a share of the CPU's peak.
    cores = {p.name: p.spec.cores or opened.host.spec.cores for p in opened.named}
    peaks = {name: engine().peak_gflops(mine[0]) * len(mine) for name, mine in cores.items()}
    graph = load_any(model)
    return {
        "processors": [p.name for p in opened.named],
        "peak_gflops": peaks,
        "model": model,
        "convolutions": [convolutions(graph, p, costs, peaks[p.name]) for p in opened.named],
        "overlap": overlap(processors) if len(opened.named) == 2 else None,
        "gap_us": step_gap(graph, opened.named[0].name),
    }


def convolutions(graph: ir.Model, processor: Processor, costs: Profiler, peak: float) -> dict[str, Any]:
    """The fastest routine of every distinct convolution of a network, and its share of the peak."""
    from nnstretch.graph.layers import layers
    from nnstretch.passes import optimize

    distinct = {n.layer.workload: n.layer for n in layers(optimize(graph)) if n.layer.op == "Conv"}
    rows = [row for layer in distinct.values() if (row := fastest(layer, processor, costs, peak))]
    plain = [r["share_of_peak"] for r in rows if r["stride"] == 1 and r["groups"] == 1 and r["kernel"] in (1, 3)]
    return {"processor": processor.name, "stride_1_share": summary(plain), "layers": rows}


def summary(shares: Sequence[float]) -> dict[str, float]:
    """Least, median and largest of some numbers."""
    if not shares:
        return {}
    return {"min": min(shares), "median": float(np.median(shares)), "max": max(shares)}


def fastest(layer: Layer, processor: Processor, costs: Profiler, peak: float) -> dict[str, Any] | None:
    """The fastest routine for a convolution on a processor, or None if there is none."""
    times: dict[tuple[str, str], float] = {}
    for routine in processor.routines:
        if routine.supports(layer):
            for parameters in routine.parameter_space(layer):
                seconds = costs.seconds(processor, routine, layer, parameters)
                if seconds is not None:
                    times[str(routine.descriptor), json.dumps(dict(parameters))] = seconds
    if not times:
        return None
    (routine_name, setting), seconds = min(times.items(), key=lambda item: item[1])
    weight = layer.type_of(1).shape
    return {
        "output": list(layer.outputs[0].shape[1:]),
        "channels": weight[1],
        "kernel": weight[2],
        "stride": layer.ints("strides")[0],
        "groups": int(layer.attributes["groups"]),  # type: ignore[arg-type]
        "routine": routine_name,
        "parameters": setting,
        "ms": seconds * 1e3,
        "gflops": 2 * layer.macs / seconds / 1e9,
        "share_of_peak": 2 * layer.macs / seconds / 1e9 / peak,
    }


def overlap(processors: str, convolution_count: int = 6) -> dict[str, Any]:
    """Latency of two equal branches in ms (medians): each alone, concurrent, and serial."""
    from nnstretch.compiler.compile import plan_model
    from nnstretch.compiler.processors import build_processors
    from nnstretch.scheduler.measurement.interference import convolution_chains
    from nnstretch.scheduler.plan.compiled import serial
    from nnstretch.scheduler.runtime.session import PlanSession

    def branches(*placed: int) -> ir.Model:
        return convolution_chains(placed, [(BRANCH_IMAGE[1], 1)] * convolution_count, BRANCH_IMAGE)

    opened = build_processors(processors)
    both = plan_model(branches(0, 1), opened)
    alone = [plan_model(branches(i), opened) for i in range(2)]
    sessions = [PlanSession(plan) for plan in (*alone, both, serial(both))]
    times: list[list[float]] = [[] for _ in sessions]
    for _ in range(ROUNDS):
        for session, kept in zip(sessions, times, strict=True):
            kept.append(float(np.median(session.time(warmup=2, runs=1000, budget=0.1))))
    medians = [float(np.median(kept)) * 1e3 for kept in times]
    for session in sessions:
        session.close()
    return {
        "alone_ms": dict(zip((p.name for p in opened.named), medians[:2], strict=True)),
        "together_ms": medians[2],
        "one_after_another_ms": medians[3],
        "together_over_slower": medians[2] / max(medians[:2]),
    }


def step_gap(graph: ir.Model, processor: str) -> float:
    """Median time between the end of a step and the begin of the next in a traced run, µs."""
    from nnstretch.compiler.compile import compile_model
    from nnstretch.compiler.processors import build_processors

    with compile_model(graph, build_processors(processor), tune=False) as session:
        timeline = session.profile()
        return float(np.median(timeline.gaps(0))) / 1e3


def show(report: dict[str, Any], with_layers: bool) -> None:
    """The tables of the terminal output."""
    console = Console()
    table = Table("processor", "peak GFLOP/s", "3×3 and 1×1 stride 1: share of peak (min, median, max)", box=None)
    for found in report["convolutions"]:
        share = found["stride_1_share"]
        text = ", ".join(f"{share[k]:.0%}" for k in ("min", "median", "max")) if share else "-"
        table.add_row(found["processor"], f"{report['peak_gflops'][found['processor']]:.0f}", text)
    console.print(f"convolutions of {report['model']}")
    console.print(table)
    if with_layers:
        for found in report["convolutions"]:
            console.print(layer_table(found))
    together = report["overlap"]
    if together:
        console.print("two equal branches of 3×3 convolutions:")
        for name, milliseconds in together["alone_ms"].items():
            console.print(f"  {name} alone {milliseconds:.2f} ms")
        console.print(
            f"  at once {together['together_ms']:.2f} ms ({together['together_over_slower']:.2f} × the slower alone), "
            f"one after another {together['one_after_another_ms']:.2f} ms"
        )
    console.print(f"median gap between steps {report['gap_us']:.2f} µs")


def layer_table(found: dict[str, Any]) -> Table:
    """All convolutions on one processor."""
    columns = ("output", "channels", "kernel", "stride", "groups", "routine", "parameters", "ms", "GFLOP/s", "peak")
    table = Table(*columns, title=found["processor"], box=None)
    for row in found["layers"]:
        table.add_row(
            "×".join(map(str, row["output"])),
            *(str(row[key]) for key in ("channels", "kernel", "stride", "groups", "routine", "parameters")),
            f"{row['ms']:.3f}",
            f"{row['gflops']:.0f}",
            f"{row['share_of_peak']:.0%}",
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
