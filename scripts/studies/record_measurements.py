"""Measures the whole parameter spaces of networks' layers, and records them, so that searches can be compared on real times.

    python scripts/studies/record_measurements.py resnet18 mobilenetv2 squeezenet1_1 -p cpu:0 --layers 10 -o measurements.json

Layers whose routines have no larger space than their short lists are left out. Measurements are kept in the profile store, so
an interrupted recording continues. Noise of a busy machine stays in the record; every search on it meets the same noise.
`read_record` gives the tasks of `nnstretch tune --search learned` and their measurements.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nnstretch.cli.console import exit_status
from nnstretch.compiler.costs import open_profiler
from nnstretch.compiler.processors import build_processors
from nnstretch.devices.cpu.processor import cpu_model
from nnstretch.frontends.resolve import load_any
from nnstretch.passes import optimize
from nnstretch.scheduler.costmodel.features import Machine
from nnstretch.scheduler.costmodel.learned import machine_of
from nnstretch.scheduler.costmodel.trees import Point
from nnstretch.scheduler.lowering.candidates import is_native
from nnstretch.scheduler.lowering.units import unit_graph, working_set
from nnstretch.scheduler.measurement.caches import network_state
from nnstretch.scheduler.parameter_search.explorer import SearchTask
from nnstretch.scheduler.parameter_search.thoroughness import search_tasks
from nnstretch.scheduler.plan.schema import queue_pool
from nnstretch.support.settings import write_text


@dataclass(frozen=True)
class RecordedTask:
    """Interchangeable candidates of a layer, and all their measurements.

    Attributes:
        task: the candidates.
        seconds: of each candidate; None for one that failed.
    """

    task: SearchTask
    seconds: tuple[float | None, ...]


@dataclass(frozen=True)
class Record:
    """Recorded measurements: the processor's part of the features, and the tasks of every network."""

    machine: Machine
    networks: Mapping[str, Sequence[RecordedTask]]


def main() -> int:
    """Measures, and writes the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL", help="any MODEL of `nnstretch compile`")
    parser.add_argument("-p", "--processor", default="cpu:0")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the record, a .json file")
    parser.add_argument("--layers", type=int, help="of each model, those with the most MACs; all by default")
    arguments = parser.parse_args()
    return exit_status(lambda: record(arguments.models, arguments.processor, arguments.output, arguments.layers))


def record(models: Sequence[str], processor: str, output: Path, most: int | None = None) -> None:
    """Measures every candidate of the models' layers, of each model at most `most` layers, and writes them."""
    settings: dict[str, int] = {}
    networks = {model: _measured(model, processor, most, settings) for model in models}
    found = build_processors(processor)
    fields: dict[str, Any] = {
        "command": shlex.join(["scripts/studies/record_measurements.py", *sys.argv[1:]]),
        "cpu": cpu_model(),
        "machine": asdict(machine_of(found.named[0])),
        "settings": [json.loads(text) for text in settings],
    }
    parts = []
    lines = [f"{json.dumps(name)}: {_compact(value)}" for name, value in fields.items()]
    for name, tasks in networks.items():
        rows = ",\n".join(map(_compact, tasks))
        parts.append(f"{json.dumps(name)}: [\n{rows}\n]")
    head, body = ",\n".join(lines), ",\n".join(parts)
    write_text(output, f'{{\n{head},\n"networks": {{\n{body}\n}}\n}}\n')


def _measured(model: str, processor: str, most: int | None, settings: dict[str, int]) -> list[dict[str, Any]]:
    """Tasks of a model with the microseconds of every candidate.

    `settings` maps routines with their parameters, as JSON, to their numbers, and receives those that are new.
    """
    processors = build_processors(processor)
    pool = queue_pool(processors.named, processors.host)
    graph = unit_graph(optimize(load_any(model)), is_native(pool))
    state, rows = network_state(working_set(graph)), []
    with open_profiler(processors, exhaustive=True) as profiler:
        measuring = profiler.in_network(working_set(graph))
        tasks = search_tasks(graph, pool, pool.processors.index(processors.named[0]))
        tasks = sorted(tasks, key=lambda task: -task.layer.macs * task.weight)[:most]
        for number, task in enumerate(tasks):
            found = measuring.measure(processors.named[0], task.layer, task.candidates)
            points = task.searched(state).candidates
            keys = [json.dumps([p.routine, dict(p.parameters)]) for p in points]
            for key in keys:
                settings.setdefault(key, len(settings))
            microseconds = [None if m.seconds is None else float(f"{1e6 * m.seconds:.4g}") for m in found]
            rows.append(
                {
                    "workload": task.layer.workload,
                    "state": points[0].state,
                    "weight": task.weight,
                    "settings": [settings[key] for key in keys],
                    "us": microseconds,
                }
            )
            print(f"{model}: {number + 1} of {len(tasks)}, {len(keys)} candidates", file=sys.stderr)
    return rows


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def read_record(path: Path) -> Record:
    """Reads a file of `record`."""
    raw = json.loads(path.read_text(encoding="utf-8"))
    settings = [(routine, parameters) for routine, parameters in raw["settings"]]

    def task(row: Mapping[str, Any]) -> RecordedTask:
        chosen = (settings[number] for number in row["settings"])
        points = (Point(row["workload"], routine, parameters, row["state"]) for routine, parameters in chosen)
        seconds = tuple(None if us is None else us * 1e-6 for us in row["us"])
        return RecordedTask(SearchTask(tuple(points), row["weight"]), seconds)

    machine = Machine(**{**raw["machine"], "ratios": tuple(raw["machine"]["ratios"])})
    return Record(machine, {name: [task(row) for row in rows] for name, rows in raw["networks"].items()})


if __name__ == "__main__":
    sys.exit(main())
