"""The process of one engine: `python -m nnstretch.bench.comparison.worker`, controlled through standard input and output.

The argument names the engine, its job and the mode. "prepare": the engine converts the model in a folder; the process answers
{"file": path} and ends. "serve": the first frame holds the feeds; the process loads the model and runs it once. Then every
request is one of
    {"do": "time", "budget_s": seconds, "runs": at least}     -> arrays: seconds
    {"do": "rate", "budget_s": seconds}                       -> {"rate": [inputs, seconds]}
    {"do": "outputs"}                                         -> arrays: the outputs of the last run
The end of the input ends the process. The process pins itself before it imports engines, so that thread pools see only the
cores that they may use.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from nnstretch.support.child_process import die_with_parent, frames_to_parent
from nnstretch.support.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy as np

    from nnstretch.bench.engines import Engine, Job, Start

_WARMUP_RUNS = 2  # uncounted runs at the begin of a turn: caches and clocks are in the state of another engine
_WARMUP_SHARE = 0.5  # or one, if it takes more than this share of the slice


def main() -> int:
    """Runs the mode that the argument names."""
    arguments = json.loads(sys.argv[1])
    die_with_parent(arguments["parent"])
    os.sched_setaffinity(0, arguments["job"]["cores"])
    frames = frames_to_parent()
    from nnstretch.bench.engines import Job
    from nnstretch.errors import NNStretchError

    job = Job(**{**arguments["job"], "cores": tuple(arguments["job"]["cores"])})
    try:
        work = _prepare if arguments["do"] == "prepare" else _serve
        work(arguments, job, sys.stdin.buffer, frames)
    except NNStretchError as error:
        print(error, file=sys.stderr)  # noqa: T201 - the client reads the last line as the reason
        return 2
    except BrokenPipeError:
        return 1
    return 0


def _reporter(answers: IO[bytes]) -> Progress:
    from nnstretch.support.frames import write_frame

    return lambda done, total, what: write_frame(answers, {"progress": [done, total, what]})


def _prepare(arguments: dict[str, Any], job: Job, requests: IO[bytes], answers: IO[bytes]) -> None:
    from nnstretch.support.frames import write_frame

    prepare = importlib.import_module(arguments["module"]).prepare
    path = prepare(job, Path(arguments["folder"]), _reporter(answers))
    write_frame(answers, {"file": str(path)})


def _serve(arguments: dict[str, Any], job: Job, requests: IO[bytes], answers: IO[bytes]) -> None:
    from nnstretch.support.frames import read_frame, write_frame

    _, feeds = read_frame(requests)
    load = importlib.import_module(arguments["module"]).load
    engine, start = _started(load, job, feeds, _reporter(answers))
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
    load: Callable[..., Engine], job: Job, feeds: Mapping[str, np.ndarray], report: Progress
) -> tuple[Engine, Start]:
    """The engine after its first run, and the cost of the start."""
    from nnstretch.bench.engines import Start

    before = _reset_peak()
    begin = time.perf_counter()
    engine = load(job, feeds, report)
    created = time.perf_counter()
    engine.run()
    ready = time.perf_counter()
    most = _resident("VmHWM")
    return engine, Start((created - begin) * 1e3, (ready - begin) * 1e3, max(0, most - before) / 1e6, most / 1e6)


def _reset_peak() -> int:
    """Resets the peak of resident memory to the present one and returns that in bytes.

    Where the kernel does not allow a reset, the peak remains that of the whole process.
    """
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _resident("VmRSS")


def _resident(field: str) -> int:
    """Bytes of resident memory: now (VmRSS), or at most since the start or `_reset_peak` (VmHWM)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024  # what the file calls kB
    return 0


def _time(engine: Engine, budget: float, runs: int) -> Any:
    """Runs at least `runs` times and until `budget` seconds have passed; returns the seconds of every run."""
    import numpy as np

    begin = time.perf_counter()
    for _ in range(_WARMUP_RUNS):
        engine.run()
        if time.perf_counter() - begin > budget * _WARMUP_SHARE:
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
