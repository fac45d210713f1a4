"""Compilation of OpenCL programs on all cores, before the layers that need them are measured.

A measurement compiles what it needs, one program after another, while the other cores wait. A search of designs needs some
fifty programs, each of which takes PoCL half a second. Nothing is measured in the meantime, so nothing is disturbed.
"""

from __future__ import annotations

import json
import os
import select
import sys
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

    What fails is left to the measurement, which says why.

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
    most = 1 if branched else None
    plans = list(program_plans(layers, device, host, known_programs(), branched=branched, most=most))
    count = min(_MOST_PROCESSES, len(usable_cores()), len(plans) // _WORTH)
    if not count:
        return 0
    what = f"compiling OpenCL programs for {device.name}"
    progress(0, len(plans), what)
    done = 0
    for done, plan in enumerate(_built(plans, count, command), 1):
        remember(plan)
        progress(done, len(plans), what)
    return done


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


def _record() -> Path:
    return cache_dir("opencl") / "programs.json"


def _built(plans: Sequence[ProgramPlan], count: int, command: Sequence[str]) -> Iterator[ProgramPlan]:
    """The plans whose programs `count` processes have compiled, in the order in which they end."""
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
                with suppress(WorkerError):  # the driver has ended the process, and the next program is not its fault
                    if process.receive()[0]["done"]:
                        yield plan
                    if left:
                        busy[process] = _hand_out(left.pop(), process, own[process])


def _hand_out(plan: ProgramPlan, process: WorkerProcess, core: int) -> ProgramPlan:
    """Sends a plan to a process, for a thread of a driver on the CPU on a core of its own.

    Raises:
        WorkerError: the process has ended.
    """
    process.send({"plan": plan.on_core(core).to_json(indent=None), "bytes": plan.single.base_bytes})
    return plan
