"""Suites: comparisons of many models, one after another."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import onnx_ir as ir

from nnstretch.bench.comparison.client import Workspace
from nnstretch.bench.comparison.compare import OURS, ComparisonOptions, compare
from nnstretch.bench.comparison.subject import check_exists, subject
from nnstretch.bench.engines import EngineEntry
from nnstretch.bench.timing import geometric_mean, significant, widest
from nnstretch.devices.base.spec import parse_counts
from nnstretch.errors import FileError, NNStretchError, UsageError
from nnstretch.support.image_size import ImageSize, json_size
from nnstretch.support.other_programs import OtherPrograms
from nnstretch.support.progress import Progress
from nnstretch.support.words import counted

Result = dict[str, Any]
"""One entry of the "results" of `bench --json`."""


@dataclass(frozen=True)
class Series:
    """Models, engines and options of a suite.

    Attributes:
        models: as users write them.
        engines: our engine first.
        threads: numbers of cores, one after another per model.
        cores: those that may be used, at least as many as the largest number of threads.
        options: cores are set for each number of threads.
        shapes: of inputs with dynamic dimensions, by name.
        seed: of the inputs.
        batch: images per run; None for the batch of the models.
        image_size: of the images, for models that take any; None for that of the models.
        load: makes the graph of a model, with this batch and images; None: models are read as they are written.
    """

    models: Sequence[str]
    engines: Sequence[EngineEntry]
    threads: Sequence[int]
    cores: tuple[int, ...]
    options: ComparisonOptions
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    seed: int = 0
    batch: int | None = None
    image_size: ImageSize | None = None
    load: Callable[[str], ir.Model] | None = None

    def __post_init__(self) -> None:
        most = max(self.threads)
        if most > len(self.cores):
            raise UsageError(
                f"--threads {most}: this process may use {counted(len(self.cores), 'core')}; give at most that many, since "
                "threads that share a core measure nothing"
            )

    @property
    def size(self) -> int:
        """The number of comparisons."""
        return len(self.models) * len(self.threads)


def parse_threads(text: str) -> tuple[int, ...]:
    """Numbers of threads as `--threads` takes them: 1 or 1,2.

    Raises:
        UsageError: no such numbers.
    """
    found = parse_counts(text)
    if not found:
        raise UsageError(f"--threads {text!r} is not understood; write numbers of at least 1, such as 1 or 1,2")
    return found


def models_of_suite(name: str) -> tuple[str, ...]:
    """The models of a suite.

    Raises:
        UsageError: there is no such suite.
    """
    from nnstretch.zoo.registry import SUITES

    if name not in SUITES:
        raise UsageError(f"there is no suite {name!r}; there are {', '.join(SUITES)}")
    return SUITES[name]


def run_series(
    series: Series, known: Sequence[Result], progress: Callable[[str], AbstractContextManager[Progress]]
) -> Iterator[Result]:
    """Compares model after model, so that one model at a time is in memory. A model that fails becomes a result with "error".

    Args:
        series: what to compare.
        known: results of an earlier run, which are returned instead of measured.
        progress: makes the progress reporter of a comparison from its title, as a context manager.

    Raises:
        NNStretchError: a model does not exist (before anything is measured), or the only one cannot be read.
    """
    for model in series.models:
        check_exists(model)
    at_hand = {(one["model"], one["threads"]): one for one in known if _is_complete(one, series)}
    for number, model in enumerate(series.models, 1):
        wanted = [count for count in series.threads if (model, count) not in at_hand]
        yield from (at_hand[model, count] for count in series.threads if count not in wanted)
        if not wanted:
            continue
        load = None if series.load is None else partial(series.load, model)
        try:
            with subject(model, series.shapes, series.seed, series.batch, load) as one, Workspace() as workspace:
                for count in wanted:
                    options = replace(series.options, cores=series.cores[:count])
                    title = f"{Path(model).name}, {counted(count, 'thread')}"
                    with progress(f"{number}/{len(series.models)} {title}") as reporter:
                        found = compare(one, series.engines, options, workspace, reporter)
                    shapes = {name: list(array.shape) for name, array in one.feeds.items()}
                    given = {"batch": series.batch, "image_size": json_size(series.image_size)}
                    yield {**found.to_json(), **given, "inputs": shapes}
        except NNStretchError as error:
            if len(series.models) == 1:
                raise
            yield from (_failed(model, count, error) for count in wanted)


def _is_complete(result: Mapping[str, Any], series: Series) -> bool:
    """Whether an earlier result has everything the options ask for."""
    has_layers = "layers" in result or not series.options.layers
    same_images = (result.get("batch"), result.get("image_size")) == (series.batch, json_size(series.image_size))
    inputs = result.get("inputs", {})
    same_shapes = all(inputs.get(name) == list(shape) for name, shape in series.shapes.items())
    return (
        "error" not in result
        and has_layers
        and same_images
        and same_shapes
        and {e.name for e in series.engines} <= set(result["engines"])
    )


def _failed(model: str, threads: int, error: NNStretchError) -> Result:
    unknown = ("macs", "best_peer", "speedup", "peak_gflops_per_core", "peak_ratio", "peak_share", "max_rel_error")
    return {
        "model": model,
        "threads": threads,
        "dtype": "float32",
        **dict.fromkeys(unknown),
        "engines": {},
        "fallback_layers": [],
        "error": str(error),
    }


def read_results(path: Path) -> list[Result]:
    """The results that an earlier run wrote; empty if there is no such file.

    Raises:
        FileError: it cannot be read, or holds something else.
    """
    try:
        answer = json.loads(path.read_text())
        return [dict(one) for one in answer["results"] if {"model", "threads", "engines"} <= one.keys()]
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"cannot read {path}: {error}; leave out --resume to start from the beginning") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FileError(
            f"{path} holds no results of a benchmark; leave out --resume to start from the beginning"
        ) from error


def summaries(results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Per number of threads: models, geometric mean and minimum of the ratios, and the number of models not slower."""
    found: list[dict[str, Any]] = []
    for threads in sorted({one["threads"] for one in results}):
        ratios = {
            one["model"]: float(one["speedup"])
            for one in results
            if one["threads"] == threads and one["speedup"] is not None
        }
        mean = geometric_mean(list(ratios.values()))
        found.append(
            {
                "threads": threads,
                "models": len(ratios),
                "geometric_mean": None if mean is None else significant(mean, 4),
                "least": min(ratios.values(), default=None),
                "least_model": min(ratios, key=ratios.__getitem__, default=None),
                "not_slower": sum(ratio >= 1 for ratio in ratios.values()),
            }
        )
    return found


def highest_peak(results: Sequence[Mapping[str, Any]]) -> float | None:
    """The highest measured multiply-add rate of one core, in GFLOP/s."""
    peaks = [float(one["peak_gflops_per_core"]) for one in results if one.get("peak_gflops_per_core")]
    return max(peaks, default=None)


def widest_interval(results: Sequence[Mapping[str, Any]]) -> float | None:
    """The largest half width of the latencies' intervals, as a share of their middles; None if no interval is known."""
    return widest(about.get("interval_ms") for one in results for about in one["engines"].values())


def other_programs(results: Sequence[Mapping[str, Any]]) -> OtherPrograms | None:
    """The most that other programs used during a comparison; None if that is not known of any."""
    known = filter(None, (OtherPrograms.from_json(one.get("other_programs")) for one in results))
    return max(known, key=lambda others: others.used, default=None)


def is_failure(result: Mapping[str, Any]) -> bool:
    """Whether our engine has no latency in a result."""
    return "error" in result or "p50_ms" not in result["engines"].get(OURS, {})


def outcome(result: Mapping[str, Any]) -> str:
    """One line on a result, for logs."""
    head = f"{Path(result['model']).name}, {counted(result['threads'], 'thread')}"
    ours = result["engines"].get(OURS, {})
    if is_failure(result):
        return f"{head}: failed: {result.get('error') or ours.get('error')}"
    ratio = result["speedup"]
    versus = "" if ratio is None or math.isnan(ratio) else f", {ratio:.2f}× {result['best_peer']}"
    return f"{head}: {ours['p50_ms']:.2f} ms{versus}"
