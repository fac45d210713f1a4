"""Compiles OpenCL programs, a process: `python -m nnstretch.scheduler.measurement.programs.builder ARGUMENTS`.

The parent (`nnstretch.scheduler.measurement.programs.builds`) sends frames {"plan": JSON, "bytes": of its constants}. The
process runs the plan once with zeros, by which the driver compiles what it needs and keeps it on disk, and answers
{"done": true}, or {"done": false} where that fails. It ends with its input.
"""

from __future__ import annotations

import json
import sys

from nnstretch.errors import NNStretchError
from nnstretch.support.child_process import die_with_parent, frames_to_parent
from nnstretch.support.frames import read_frame, write_frame


def main() -> int:
    """Answers until the input ends."""
    die_with_parent(json.loads(sys.argv[1])["parent"])
    answers = frames_to_parent()
    # Only now: libraries may print, and may end the process, while they are loaded.
    from nnstretch.devices.engine.binding.program import aligned_array
    from nnstretch.scheduler.measurement.programs.plans import run_once
    from nnstretch.scheduler.plan.compiled import Compiled
    from nnstretch.scheduler.plan.schema import Plan

    while True:
        try:
            request, _ = read_frame(sys.stdin.buffer)
        except EOFError:
            return 0
        try:
            run_once(Compiled(Plan.from_json(request["plan"]), aligned_array(request["bytes"])))
        except (NNStretchError, MemoryError):  # fails again, with a message, where it is measured
            write_frame(answers, {"done": False})
        else:
            write_frame(answers, {"done": True})


if __name__ == "__main__":
    sys.exit(main())
