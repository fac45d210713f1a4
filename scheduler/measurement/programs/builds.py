"""Compilation of OpenCL programs on all cores, before the layers that need them are measured.

A measurement compiles what it needs, one program after another, while the other cores wait. A search of designs needs some
fifty programs, each of which takes PoCL half a second. Nothing is measured in the meantime, so nothing is disturbed.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.spec import usable_cores
from nnstretch.devices.opencl.processor import OpenCLProcessor
from nnstretch.graph.layer import Layer
from nnstretch.scheduler.measurement.programs.plans import ProgramPlan, program_plans
from nnstretch.support.interrupts import check_interrupted
from nnstretch.support.progress import Progress, silent
from nnstretch.support.settings import cache_dir, write_text
from nnstretch.support.worker_process import WorkerError, WorkerProcess

BUILDER = (sys.executable, "-P", "-m", "nnstretch.scheduler.measurement.programs.builder")
"""Command of a process that compiles programs, without its argument."""
_WORTH = 4
"""Fewest programs for which processes are started: each takes about as long to start as two programs to compile."""
_MOST_PROCESSES = 8
_FAILURE_COUNTS = 24 * 3600.0
"""Seconds after which a program that failed is tried again."""
_PATIENCE = 60.0
"""Seconds without an answer of any process after which the rest is left to the measurements."""


def build_programs(
    layers: Sequence[Layer],
    device: OpenCLProcessor,
    host: Processor,
    progress: Progress = silent,
    command: Sequence[str] = BUILDER,
    *,
    branched: bool = False,
) -> int:
    """Compiles what the candidates of layers need on an OpenCL device and was not compiled before.

    What fails is left to the measurement, which says why, and for a day to later ones as well.

    Args:
        layers: of a network.
        device: the device, of this machine.
        host: the CPU that drives it.
        progress: called after every program.
        command: of the processes, without its argument.
        branched: as in `program_plans`. Of the layers themselves only the settings that predictions measure are compiled then:
            those of the designs that a search runs follow when they are tuned.

    Returns:
        Number of plans whose programs were compiled.

    Raises:
        FileError: the cache cannot be written.
    """
    known, most = known_programs() | failed_programs(), 1 if branched else None
    plans = list(program_plans(layers, device, host, known, branched=branched, most=most))
    count = min(_MOST_PROCESSES, len(usable_cores()), len(plans) // _WORTH)
    if not count:
        return 0
    what = f"compiling OpenCL programs for {device.name}"
    progress(0, len(plans), what)
    compiled = 0
    for done, (plan, works) in enumerate(_built(plans, count, command), 1):
        if works:
            remember(plan)
            compiled += 1
        elif works is False:
            _remember_failure(plan)
        progress(done, len(plans), what)
    return compiled


def known_programs() -> set[str]:
    """Names of the programs that were compiled before (`remember`)."""
    try:
        names = json.loads(_record().read_text())
    except (OSError, ValueError):  # missing or damaged
        return set()
    return {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()


def remember(plan: ProgramPlan) -> None:
    """Adds the programs of a plan to those that were compiled.

    Raises:
        FileError: the cache cannot be written.
    """
    write_text(_record(), json.dumps(sorted(known_programs() | plan.programs)))


def failed_programs() -> set[str]:
    """Names of the programs that failed lately; a driver may have failed for want of memory."""
    return set(_failures())


def _remember_failure(plan: ProgramPlan) -> None:
    """Adds the programs of a plan to those that failed.

    Raises:
        FileError: the cache cannot be written.
    """
    now = dict.fromkeys(plan.programs - known_programs(), time.time())
    write_text(_failure_record(), json.dumps(_failures() | now, sort_keys=True))


def _failures() -> dict[str, float]:
    """Name of a program -> when it failed, in seconds since the epoch."""
    try:
        found = dict(json.loads(_failure_record().read_text()))
        return {str(name): when for name, when in found.items() if time.time() - when < _FAILURE_COUNTS}
    except (OSError, ValueError, TypeError):  # missing or damaged
        return {}


def _record() -> Path:
    return cache_dir("opencl") / "programs.json"


def _failure_record() -> Path:
    return cache_dir("opencl") / "failed_programs.json"


def _built(
    plans: Sequence[ProgramPlan], count: int, command: Sequence[str]
) -> Iterator[tuple[ProgramPlan, bool | None]]:
    """The plans that `count` processes have finished with, and whether they have compiled the programs.

    None where a process ended with a status of its own, which says nothing of the program; a driver's crash is a signal.
    """
    left = list(reversed(plans))
    arguments = json.dumps({"parent": os.getpid()})
    with ExitStack() as stack:
        busy: dict[WorkerProcess, ProgramPlan] = {}
        cores = usable_cores()
        own = {}
        for number in range(count):
            with suppress(OSError, WorkerError):
                process = stack.enter_context(WorkerProcess((*command, arguments), patience=0))
                own[process] = cores[number % len(cores)]
                busy[process] = _hand_out(left.pop(), process, own[process])
        while busy:
            ready, _, _ = select.select(list(busy), [], [], _PATIENCE)
            check_interrupted()
            if not ready:
                return
            for process in ready:
                plan = busy.pop(process)
                try:
                    works = bool(process.receive()[0]["done"])
                except WorkerError:  # the driver has ended the process, and the next program is not its fault
                    yield plan, False if (process.status or 0) < 0 else None
                    continue
                yield plan, works
                if left:
                    with suppress(WorkerError):
                        busy[process] = _hand_out(left.pop(), process, own[process])


def _hand_out(plan: ProgramPlan, process: WorkerProcess, core: int) -> ProgramPlan:
    """Sends a plan to a process, for a thread of a driver on the CPU on a core of its own.

    Raises:
        WorkerError: the process has ended.
    """
    process.send({"plan": plan.on_core(core).to_json(indent=None), "bytes": plan.single.base_bytes})
    return plan
