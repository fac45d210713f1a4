"""Prepares the processors of a job beside its first training: `python -m nnstretch.cli.job.preparation_worker ARGUMENTS`.

ARGUMENTS is a JSON object: the number of the `parent`, with which the process ends, and the `options` of the job, whose network
says which OpenCL programs are compiled.
"""

from __future__ import annotations

import json
import sys

from nnstretch.cli.console import silent_reporter
from nnstretch.cli.job.networks import JobNetworks
from nnstretch.cli.job.transform_options import TransformOptions
from nnstretch.compiler.preparation_worker import prepare
from nnstretch.support.child_process import die_with_parent


def main() -> int:
    """Prepares the processors."""
    arguments = json.loads(sys.argv[1])
    die_with_parent(arguments["parent"])
    options = TransformOptions.from_json({**arguments["options"], "redo": None})
    prepare(options.processors, lambda: JobNetworks(options, silent_reporter()).network(None).export())
    return 0


if __name__ == "__main__":
    sys.exit(main())
