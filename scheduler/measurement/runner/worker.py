"""The measurement worker, a process: `python -m nnstretch.scheduler.measurement.runner.worker`.

A candidate that crashes ends this process and not the one that measures (`nnstretch.scheduler.measurement.runner.runner`). The
two exchange frames over the worker's standard input and output, and share a file that both map: its first page holds the number
of the running layer, which identifies the layer that ended it; constants and outputs of layers follow. Requests and answers:

    {"do": "open", "layer": number, "plan": JSON, "inputs": [[offset, bytes], ...], "base": [offset, bytes],
     "weights": [begin, bytes], "repeats": copies, "outputs": [offset, bytes] or null, "models": {name: [offset, bytes]}}
        -> {}; the plan is bound and has run once, and its outputs are in the shared file
    {"do": "time", "layers": [numbers], "state": cache state}
        -> {"seconds": [one run of each], "clocks": [GFLOP/s of the core just before the run, or null]}
    {"do": "clear"} -> {}; all layers are closed

The answer to a request that fails without harm to the process is {"error": text, "layer": the running one, "processor": the one
that failed in a run, or ""}. The process ends with its input.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path

from nnstretch.errors import DeviceError, NNStretchError
from nnstretch.support.child_process import die_with_parent, frames_to_parent
from nnstretch.support.frames import read_frame, write_frame

_FIRST_TO_END = "1000"  # oom_score_adj: the system ends this process before all others if memory runs out


def main() -> int:
    """Answers requests until the input ends."""
    arguments = json.loads(sys.argv[1])
    die_with_parent(arguments["parent"])
    with suppress(OSError):  # some systems do not let a process set it
        Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_END)
    answers = frames_to_parent()
    # Only now: libraries may print, and may end the process, while they are loaded.
    from nnstretch.scheduler.measurement.runner.executor import Executor

    executor = Executor(arguments["memory"], arguments["own_cache"])
    write_frame(answers, {"ready": os.getpid()})
    while True:
        try:
            request, _ = read_frame(sys.stdin.buffer)
        except EOFError:
            return 0
        try:
            answer = executor.answer(request)
        except (NNStretchError, MemoryError) as error:
            processor = error.processor if isinstance(error, DeviceError) else ""
            reason = str(error) or "out of memory"
            answer = {"error": reason, "layer": executor.set_running(-1), "processor": processor}
        executor.set_running(-1)
        write_frame(answers, answer)


if __name__ == "__main__":
    sys.exit(main())
