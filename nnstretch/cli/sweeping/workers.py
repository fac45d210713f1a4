"""The worker processes of a sweep."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

from nnstretch.cli.console import Reporter
from nnstretch.errors import UsageError
from nnstretch.sweeps.samplers import OPENMP_THREADS


def run_workers(report: Reporter, names: Sequence[str], *, one_openmp_thread: bool) -> set[int]:
    """Runs this command in several processes; those of a study take over the trials of one that dies.

    Args:
        report: notes workers that failed.
        names: of the workers, for the notes.
        one_openmp_thread: whether workers get one thread of OpenMP, unless the environment says otherwise.

    Returns:
        Numbers of the workers that failed.

    Raises:
        UsageError: all of them did.
    """
    environment = dict(os.environ)
    if one_openmp_thread:
        environment.setdefault(OPENMP_THREADS, "1")  # before torch is loaded there
    children = [start_worker(number, environment) for number in range(len(names))]
    try:
        statuses = [child.wait() for child in children]
    except BaseException:
        for child in children:
            child.terminate()
        raise
    if all(statuses):
        raise UsageError(f"all {len(names)} workers failed; what they wrote says why: mend that and use --resume")
    for name, status in zip(names, statuses, strict=True):
        if status:
            how = f"was ended by signal {-status}" if status < 0 else f"failed with status {status}"
            report.note(f"{name} {how}; the others took over its trial")
    return {number for number, status in enumerate(statuses) if status}


def start_worker(number: int, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Starts a worker with the arguments of this command."""
    given = [argument for argument in sys.argv[1:] if argument not in {"--json", "--resume"}]
    command = [sys.executable, "-P", "-m", "nnstretch", *given, "--resume", "--worker", str(number)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
