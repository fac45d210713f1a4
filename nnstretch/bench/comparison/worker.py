"""The process of one engine: `python -m nnstretch.bench.comparison.worker`, spoken to over its standard input and output.

Its argument names the engine, its job and what to do. To "prepare" it lets the engine make a file for itself in a folder,
answers {"file": path} and ends. To "serve" it receives the feeds in the first frame, loads the model and runs it once; after
that every request is one of
    {"do": "time", "budget_s": seconds, "runs": at least}     -> arrays: seconds
    {"do": "rate", "budget_s": seconds}                       -> {"rate": [inputs, seconds]}
    {"do": "outputs"}                                         -> arrays: the outputs of the last run
and the end of the input ends the process. The process pins itself before it imports anything heavy, so that thread pools
see only the cores that they may use.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import sys
import time
from typing import IO, TYPE_CHECKING, Any

from nnstretch.support.child_process import die_with_parent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np

    from nnstretch.bench.engines import Engine, Job, Report, Start

_SETTLE = 2  # runs that do not count at the begin of a slice: caches and clocks are still another engine's
_SETTLED = 0.5  # or one, if it takes more than this share of the slice


def main() -> int:
    """Does what the argument says."""
    arguments = json.loads(sys.argv[1])
    die_with_parent(arguments["parent"])
    os.sched_setaffinity(0, arguments["job"]["cores"])
    frames = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not come between frames
    from nnstretch.errors import NNStretchError

    try:
        work = _prepare if arguments["do"] == "prepare" else _serve
        work(arguments, sys.stdin.buffer, frames)
    except NNStretchError as error:
        print(error, file=sys.stderr)  # noqa: T201 - the other side reads the last line as the reason
        return 2
    except BrokenPipeError:
        return 1
    return 0


def _job(arguments: dict[str, Any]) -> Job:
    from nnstretch.bench.engines import Job

    job = dict(arguments["job"])
    return Job(**{**job, "cores": tuple(job["cores"])})


def _reporter(answers: IO[bytes]) -> Report:
    from nnstretch.support.frames import write_frame

    def report(done: int, total: int, what: str) -> None:
        write_frame(answers, {"progress": [done, total, what]})

    return report


def _prepare(arguments: dict[str, Any], requests: IO[bytes], answers: IO[bytes]) -> None:
    from pathlib import Path

    from nnstretch.support.frames import write_frame

    prepare = importlib.import_module(arguments["module"]).prepare
    path = prepare(_job(arguments), Path(arguments["folder"]), _reporter(answers))
    write_frame(answers, {"file": str(path)})


def _serve(arguments: dict[str, Any], requests: IO[bytes], answers: IO[bytes]) -> None:
    from nnstretch.support.frames import read_frame, write_frame

    _, feeds = read_frame(requests)
    load = importlib.import_module(arguments["module"]).load
    engine, start = _started(load, _job(arguments), feeds, _reporter(answers))
    write_frame(answers, {"ready": engine.facts(), "start": dataclasses.asdict(start)})
    while True:
        try:
            request, _ = read_frame(requests)
        except EOFError:
            return
        if request["do"] == "time":
            write_frame(answers, {}, {"seconds": _time(engine, request["budget_s"], request["runs"])})
        elif request["do"] == "rate":
            write_frame(answers, {"rate": engine.rate(request["budget_s"])})
        else:
            write_frame(answers, {}, engine.outputs())


def _started(
    load: Callable[..., Engine], job: Job, feeds: Mapping[str, np.ndarray], report: Report
) -> tuple[Engine, Start]:
    """The engine after its first run, and what it took to get there."""
    from nnstretch.bench.engines import Start
    from nnstretch.bench.timing.memory import peak, reset_peak

    before = reset_peak()
    begin = time.perf_counter()
    engine = load(job, feeds, report)
    created = time.perf_counter()
    engine.run()
    ready = time.perf_counter()
    most = peak()
    return engine, Start((created - begin) * 1e3, (ready - begin) * 1e3, max(0, most - before) / 1e6, most / 1e6)


def _time(engine: Engine, budget: float, runs: int) -> Any:
    """Seconds of at least `runs` runs, and of more until `budget` seconds have passed."""
    import numpy as np

    begin = time.perf_counter()
    for _ in range(_SETTLE):
        engine.run()
        if time.perf_counter() - begin > budget * _SETTLED:
            break
    seconds: list[float] = []
    begin = now = time.perf_counter()
    while len(seconds) < runs or now - begin < budget:
        engine.run()
        before, now = now, time.perf_counter()
        seconds.append(now - before)
    return np.array(seconds)


if __name__ == "__main__":
    sys.exit(main())
