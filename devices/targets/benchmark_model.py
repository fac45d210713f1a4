"""TFLite's own benchmark tool (`benchmark_model`): its command line, and the latencies in what it prints."""

from __future__ import annotations

import re
from collections.abc import Sequence

from nnstretch.devices.targets.base import TargetError
from nnstretch.devices.targets.results import BenchOptions, ModelResult

NAME = "benchmark_model"
_LEAST_LIMIT, _LIMIT = 10.0, 3.0
"""The tool ends after this multiple of the measuring time, or after these seconds."""
_STATISTICS = re.compile(r"\bcount=(\d+)\b(.*)")
_NUMBER = re.compile(r"\b(\w+)=([\d.e+-]+)")
_TIMINGS = re.compile(r"Inference timings in us: (.*)")
_TIMING = re.compile(r"(Init|First inference|Warmup \(avg\)|Inference \(avg\)): ([\d.e+]+)")


def benchmark_arguments(model: str, options: BenchOptions, threads: int) -> Sequence[str]:
    """The options of the tool's command line.

    Args:
        model: path of the TFLite file.
        options: how long it measures.
        threads: of the interpreter.
    """
    return (
        f"--graph={model}",
        f"--num_threads={threads}",
        "--num_runs=1",
        f"--min_secs={options.seconds:g}",
        f"--max_secs={max(_LEAST_LIMIT, _LIMIT * options.seconds):g}",
        "--warmup_runs=1",
        f"--warmup_min_secs={options.warmup:g}",
    )


def parse_benchmark(output: str, file: str, name: str, target: str) -> ModelResult:
    """The latencies of the runs after the warm-up. The median is the average where the tool prints no median.

    Args:
        output: what the tool wrote to its standard output and standard error.
        file: path of the model there.
        name: of the model.
        target: for messages.

    Raises:
        TargetError: there are no latencies in it.
    """
    statistics = _STATISTICS.findall(output)
    timings = _TIMINGS.search(output)
    if not statistics or timings is None:
        raise TargetError(f"{target}: {NAME} printed no latencies: {_last_line(output)}")
    count, rest = statistics[-1]
    us = {key: float(value) for key, value in _NUMBER.findall(rest)}
    summary = {key: float(value) for key, value in _TIMING.findall(timings[1])}
    average = us.get("avg", summary.get("Inference (avg)"))
    if average is None:
        raise TargetError(f"{target}: {NAME} printed no average: {_last_line(timings[0])}")
    found = {
        "file": file,
        "name": name,
        "engine": NAME,
        "runs": int(count),
        "load_ms": _ms(summary.get("Init")),
        "first_ms": _ms(summary.get("First inference")),
        "p50_ms": _ms(us.get("median", average)),
        "min_ms": _ms(us.get("min")),
        "mean_ms": _ms(average),
    }
    return ModelResult.from_json(found)


def _ms(us: float | None) -> float | None:
    return None if us is None else us * 1e-3


def _last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else "nothing"
