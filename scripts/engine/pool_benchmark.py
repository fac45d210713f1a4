"""Compares the engine's thread pool with OpenMP (NeoCPU, figure 4): the same kernels and steps, different threads.

Two processes run in turns: the engine, and the engine built on OpenMP's parallel regions (gcc, static schedule, bound threads).
The script measures the time between empty steps and the latency of a network, on one and on several cores.

    .venv/bin/python scripts/engine/pool_benchmark.py [--model resnet50] [--cores 0-1] [--rounds 9] [--json]
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from nnstretch.cli.console import exit_status, print_answer, script_parser
from nnstretch.devices.base.spec import parse_processors
from nnstretch.devices.engine.binding.library import Engine
from nnstretch.devices.engine.build.engine_library import build_file, engine_sources, source_files
from nnstretch.devices.engine.build.instruction_sets import BuildTarget, local_isa
from nnstretch.devices.engine.build.toolchains import (
    ENGINE_FOLDER,
    GCC_FLAGS,
    LINK_FLAGS,
    Toolchain,
    described,
    make_toolchain,
    output,
)
from nnstretch.errors import BuildError, DeviceError

POOLS = ("nnstretch", "openmp")
JOIN_STEPS = 200


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints; returns the exit status."""
    parser = script_parser(__doc__)
    parser.add_argument("--model", default="resnet50", help="ONNX file, package or zoo name")
    parser.add_argument("--cores", default="", help="such as 0-1 (default: all that this process may use)")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--no-tune", dest="tune", action="store_false", help="take routines by rule, not by measuring")
    parser.add_argument("--serve", nargs=2, metavar=("POOL", "PACKAGE"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    return exit_status(lambda: run(options))


def run(options: argparse.Namespace) -> None:
    """Runs the process of one pool, or the whole comparison."""
    if options.serve:
        serve(*options.serve)
        return
    report = measure(options.model, options.cores, options.rounds, options.tune)
    print_answer(report, show, as_json=options.json)


# ---- the process of one pool


def serve(pool: str, package: str) -> None:
    """Answers lines of JSON on standard input: cores -> nanoseconds of a join and of runs of the network."""
    from nnstretch.bench.comparison.subject import plan_feeds
    from nnstretch.package import read_package
    from nnstretch.scheduler.plan.compiled import Compiled
    from nnstretch.scheduler.plan.schema import Plan
    from nnstretch.scheduler.runtime.loading import load_program

    allowed = os.sched_getaffinity(0)
    native = Engine(build_pool_engine(pool))
    os.sched_setaffinity(0, allowed)  # OpenMP binds the thread that loads it
    content = read_package(Path(package))
    plan = Plan.from_json(content.first.plan)
    inputs = list(plan_feeds(plan, 0, content.first.models).values())
    outputs = [np.zeros(t.type.shape, t.type.dtype) for t in plan.outputs]
    programs: dict[tuple[int, ...], Any] = {}
    for line in sys.stdin:
        cores = tuple(json.loads(line))
        if cores not in programs:
            queues = (replace(plan.queues[0], cores=cores),)
            compiled = Compiled(replace(plan, queues=queues), content.constants, dict(content.first.models))
            programs[cores] = load_program(compiled, content.sources, native).program
        times = programs[cores].time(inputs, outputs, warmup=2, runs=100, budget_ms=400)
        answer = {
            "join_ns": join_ns(native.library, cores, JOIN_STEPS),
            "run_ns": times,
            "outputs": [float(np.abs(output).sum()) for output in outputs],
        }
        print(json.dumps(answer), flush=True)


def join_ns(library: ctypes.CDLL, cores: Sequence[int], steps: int) -> float:
    """Nanoseconds between two empty steps on a pool with one thread per core.

    Args:
        library: has `pool_join.c`.
        cores: of the pool.
        steps: per list; 1 measures the whole cost of waking the workers and waiting for them.

    Raises:
        DeviceError: this process may not run on these cores.
    """
    library.nns_join_ns.restype = ctypes.c_double
    ns = float(library.nns_join_ns((ctypes.c_int32 * len(cores))(*cores), len(cores), steps))
    if ns < 0:
        raise DeviceError(f"no thread pool on cores {list(cores)}; this process may not use them all")
    return ns


def build_pool_engine(pool: str) -> Path:
    """The engine's library with `pool_join.c`, and for "openmp" with `openmp_pool.c` in place of the engine's pool.

    Raises:
        BuildError: there is no gcc that has OpenMP, or a source does not compile.
    """
    target = BuildTarget(local_isa())
    sources, toolchain, added = engine_sources(target), make_toolchain(target), ["pool_join.c"]
    if pool == "openmp":
        own = ENGINE_FOLDER / "runtime" / "threads" / "pool.c"
        sources = [source for source in sources if source.path != own]
        toolchain, added = openmp_toolchain(), ["openmp_pool.c", "pool_join.c"]
    paths = [Path(__file__).with_name(name) for name in added]
    sources += source_files(toolchain, paths, ("include", "runtime"))
    return build_file(f"{target.isa.name}-{pool}-pool", ".so", sources, toolchain, "-shared")


def openmp_toolchain() -> Toolchain:
    """gcc, which compiles the file that uses OpenMP and links the library.

    Raises:
        BuildError: there is no gcc that has OpenMP.
    """
    command = ("gcc", "-fopenmp")
    try:
        library = Path(output([*command, "-print-file-name=libgomp.so"]))
    except BuildError as error:
        raise BuildError(f"no compiler with OpenMP: {error}") from error
    if not library.is_absolute():
        raise BuildError("no compiler with OpenMP: gcc has no libgomp; install it")
    isa = local_isa()
    flags = GCC_FLAGS + isa.flags
    defines = (
        "-D_GNU_SOURCE",
        f"-DNNS_BLOCK={isa.block}",
        f"-I{ENGINE_FOLDER / 'include'}",
        f"-I{ENGINE_FOLDER / 'runtime'}",
    )
    return described(command, (*flags, *defines), LINK_FLAGS, output([*command, "--version"]))


@contextmanager
def server(pool: str, package: Path, cores: Sequence[int]) -> Iterator[subprocess.Popen[str]]:
    """Starts the process of one pool. OpenMP threads are bound to cores; their spin time is the default."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_"))}
    environment |= {"OMP_PLACES": ",".join(f"{{{core}}}" for core in cores), "OMP_PROC_BIND": "close"}
    command = [sys.executable, str(Path(__file__).resolve()), "--serve", pool, str(package)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def ask(process: subprocess.Popen[str], cores: Sequence[int]) -> dict[str, Any]:
    """One round of one pool.

    Raises:
        DeviceError: the process ended.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        print(json.dumps(cores), file=process.stdin, flush=True)
        answer: dict[str, Any] = json.loads(process.stdout.readline())
    except (OSError, ValueError) as error:
        raise DeviceError(f"a measuring process ended ({process.poll()}); its message is above") from error
    return answer


# ---- all rounds


def measure(model: str, cores_text: str, rounds: int, tune: bool) -> dict[str, Any]:
    """All measurements as one JSON object.

    Raises:
        BuildError: no compiler with OpenMP was found.
        NNStretchError: the model or the cores are refused.
    """
    (spec,) = parse_processors(f"cpu:{cores_text}" if cores_text else "cpu")
    counts = sorted({1, len(spec.cores)})
    build_pool_engine("openmp")
    found: dict[str, dict[int, list[dict[str, Any]]]] = {pool: {n: [] for n in counts} for pool in POOLS}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        package = Path(folder) / "model.nns"
        write(model, str(spec), package, tune)
        servers = {pool: stack.enter_context(server(pool, package, spec.cores)) for pool in POOLS}
        for _ in range(max(rounds, 1)):
            for n in counts:
                for pool in POOLS:
                    found[pool][n].append(ask(servers[pool], spec.cores[:n]))
    check_outputs(found)
    pools = {pool: summary(answers) for pool, answers in found.items()}
    ratios = {
        key: {n: pools["openmp"][key][n] / pools["nnstretch"][key][n] for n in counts}
        for key in ("join_ns", "min_ms", "p50_ms")
    }
    return {
        "model": model,
        "cores": list(spec.cores),
        "rounds": rounds,
        "pools": pools,
        "openmp_over_nnstretch": ratios,
    }


def write(model: str, processor: str, package: Path, tune: bool) -> None:
    """Compiles a model for the cores; both pools run the same package."""
    from nnstretch.compiler.compile import compile_model
    from nnstretch.compiler.processors import build_processors
    from nnstretch.frontends.resolve import load_any

    with compile_model(load_any(model), build_processors(processor), tune=tune) as session:
        session.save(package)


def check_outputs(found: dict[str, dict[int, list[dict[str, Any]]]]) -> None:
    """Checks that all pools and numbers of threads compute the same bits.

    Raises:
        DeviceError: they do not.
    """
    outputs = {tuple(a["outputs"]) for answers in found.values() for rounds in answers.values() for a in rounds}
    if len(outputs) != 1:
        raise DeviceError(f"the pools' outputs differ: sums {sorted(outputs)}; this is a fault of the engine")


def summary(answers: dict[int, list[dict[str, Any]]]) -> dict[str, dict[int, float]]:
    """Number of threads -> least join, least run and median of the rounds' medians; speed-ups over one thread."""
    least = {n: min(min(a["run_ns"]) for a in rounds) * 1e-6 for n, rounds in answers.items()}
    medians = {n: float(np.median([np.median(a["run_ns"]) for a in rounds])) * 1e-6 for n, rounds in answers.items()}
    return {
        "join_ns": {n: min(a["join_ns"] for a in rounds) for n, rounds in answers.items()},
        "min_ms": least,
        "p50_ms": medians,
        "speedup": {n: least[1] / least[n] for n in answers},
    }


def show(report: dict[str, Any]) -> None:
    """The table of the terminal output."""
    name = Path(report["model"]).stem
    console = Console()
    console.print(
        f"{name}: least and median run, ms; join: ns from step to step; OpenMP's figure over ours in brackets"
    )
    table = Table("threads", "pool", "join", "least", "median", "speed-up", box=None)
    for n in report["pools"]["nnstretch"]["min_ms"]:
        for pool in POOLS:
            row = {key: values[n] for key, values in report["pools"][pool].items()}
            ratios = {key: f" ({values[n]:.2f})" for key, values in report["openmp_over_nnstretch"].items()}
            other = ratios if pool == "openmp" else dict.fromkeys(ratios, "")
            table.add_row(
                str(n),
                pool,
                f"{row['join_ns']:.0f}{other['join_ns']}",
                f"{row['min_ms']:.2f}{other['min_ms']}",
                f"{row['p50_ms']:.2f}{other['p50_ms']}",
                f"{row['speedup']:.2f}",
            )
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
