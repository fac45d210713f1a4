"""The process of one engine: `python -m nnstretch.bench.worker`, spoken to over its standard input and output.

The first frame names the engine and holds its job and the feeds; after that every request is one of
    {"do": "time", "budget_s": seconds, "runs": at least}     -> arrays: seconds
    {"do": "outputs"}                                         -> arrays: the outputs of the last run
and the end of the input ends the process. The process pins itself before it imports anything heavy, so that thread pools
see only the cores that they may use.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nnstretch.bench.engines import Engine

_SETTLE = 2  # runs that do not count at the begin of a slice: caches and clocks are still another engine's


def main() -> int:
    """Serves requests until the input ends."""
    arguments = json.loads(sys.argv[1])
    cores = arguments["cores"]
    os.sched_setaffinity(0, cores)
    frames = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not come between frames
    from nnstretch.errors import NNStretchError

    try:
        _serve(arguments, sys.stdin.buffer, frames)
    except NNStretchError as error:
        print(error, file=sys.stderr)  # noqa: T201 - the other side reads the last line as the reason
        return 2
    except BrokenPipeError:
        return 1
    return 0


def _serve(arguments: dict[str, Any], requests: IO[bytes], answers: IO[bytes]) -> None:
    from nnstretch.bench.engines import Job
    from nnstretch.bench.frames import read_frame, write_frame

    _, feeds = read_frame(requests)
    job = Job(arguments["model"], arguments["onnx"], tuple(arguments["cores"]), arguments["options"])
    load = importlib.import_module(arguments["module"]).load

    def report(done: int, total: int, what: str) -> None:
        write_frame(answers, {"progress": [done, total, what]})

    engine: Engine = load(job, feeds, report)
    engine.run()
    write_frame(answers, {"ready": engine.facts()})
    while True:
        try:
            request, _ = read_frame(requests)
        except EOFError:
            return
        if request["do"] == "time":
            write_frame(answers, {}, {"seconds": _time(engine, request["budget_s"], request["runs"])})
        else:
            write_frame(answers, {}, engine.outputs())


def _time(engine: Engine, budget: float, runs: int) -> Any:
    """Seconds of at least `runs` runs, and of more until `budget` seconds have passed."""
    import numpy as np

    for _ in range(_SETTLE):
        engine.run()
    seconds: list[float] = []
    begin = now = time.perf_counter()
    while len(seconds) < runs or now - begin < budget:
        engine.run()
        before, now = now, time.perf_counter()
        seconds.append(now - before)
    return np.array(seconds)


if __name__ == "__main__":
    sys.exit(main())
