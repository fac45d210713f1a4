"""Several retrainings of a job at the same time, each in a process with a share of the cores.

A step of a small network has parts that one core computes while the others wait. A core per training leaves none idle: two
ResNet-18 on images of 64×64 take 193 ms of a core per step and network, or 142 ms of both cores, one after another. The cores
of a training that has ended go to the others.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from nnstretch.support.worker_process import WorkerError, WorkerProcess
from nnstretch.training.cores import usable_cores

if TYPE_CHECKING:
    from nnstretch.cli.console import Reporter
    from nnstretch.cli.job.transform_options import TransformOptions
    from nnstretch.support.progress import Progress
    from nnstretch.training.loop.stopping import StopRequest

WORKER: tuple[str, ...] = (sys.executable, "-P", "-m", "nnstretch.cli.job.retraining_worker")
_TICK = 0.5  # seconds between looks at whether a stop was asked for


def rounds(names: Sequence[str], at_once: int) -> list[Sequence[str]]:
    """Which networks are trained at the same time, round by round; one that would be alone is left out.

    Args:
        names: of the networks.
        at_once: the most in a round.
    """
    if at_once < 2:
        return []
    some = [names[first : first + at_once] for first in range(0, len(names), at_once)]
    return [one for one in some if len(one) > 1]


def retrain_in_rounds(
    options: TransformOptions,
    names: Sequence[str],
    threads: int,
    report: Reporter,
    advice: str,
    began: Callable[[Sequence[str]], None],
    ended: Callable[[str], None],
) -> None:
    """Retrains several networks at the same time, in processes, where this pays: on a CPU with several cores.

    Args:
        options: of the job.
        names: of networks that are not done.
        threads: that each training needs.
        report: gets progress and notes.
        advice: what the message of a training that a signal has stopped says to do.
        began: called with the names of a round.
        ended: called with the name of a network whose process has ended while others go on, for work on the idle core.

    Raises:
        StoppedError: a signal asked for it; every training has a checkpoint.
    """
    from nnstretch.training.loop.torch_settings import find_device

    if find_device(options.device).type != "cpu":
        return
    cores = usable_cores()
    for some in rounds(names, min(options.at_once, cores // threads)):
        report.note(f"retraining {' and '.join(some)} at the same time …")
        began(some)
        retrain_together(options, some, cores, report, advice, ended)


def retrain_together(
    options: TransformOptions,
    names: Sequence[str],
    cores: int,
    report: Reporter,
    advice: str,
    ended: Callable[[str], None],
) -> None:
    """Runs the stages of some networks, each in a process; a stage that fails is not done, and nothing else is said.

    Args:
        options: of the job, whose model is trained and whose designs are found.
        names: designs, or the control.
        cores: that the processes share; those of a process that has ended go to the others.
        report: gets progress and notes.
        advice: what the message of a training that a signal has stopped says to do.
        ended: called with the name of a network whose process has ended while others go on, for work on the idle core.

    Raises:
        StoppedError: a signal asked for it; every training has a checkpoint.
    """
    from nnstretch.training.loop.stopping import stopped_by_signals

    environment = {**os.environ, "OMP_NUM_THREADS": str(cores // len(names))}
    with ExitStack() as stack:
        stop = stack.enter_context(stopped_by_signals(advice))
        advance = stack.enter_context(report.progress("Training"))
        workers: dict[str, WorkerProcess] = {}
        for name in names:
            arguments = {"parent": os.getpid(), "options": options.to_json(), "name": name}
            with suppress(OSError):  # no process can be started: the stage is run in this one
                made = WorkerProcess((*WORKER, json.dumps(arguments)), environment=environment, patience=0)
                workers[name] = stack.enter_context(made)
        where = _follow(workers, cores, stop, report, advance, ended)
    if stop.is_requested:
        raise stop.error(where)


def _follow(
    workers: Mapping[str, WorkerProcess],
    cores: int,
    stop: StopRequest,
    report: Reporter,
    advance: Progress,
    ended: Callable[[str], None],
) -> str:
    """Shows what the processes report until all have ended, and passes a request to stop on; returns where they stopped."""
    running, asked, where = dict(workers), False, "stopped while networks were retrained"
    steps: dict[str, tuple[int, int]] = {}
    while running:
        if stop.is_requested and not asked:
            asked = True
            for worker in running.values():
                worker.signal(signal.SIGTERM)
        ready, _, _ = select.select(list(running.values()), [], [], _TICK)
        for name in [name for name, worker in running.items() if worker in ready]:
            try:
                message, _ = running[name].receive()
            except WorkerError:  # it has ended
                del running[name]
                if running and not stop.is_requested:
                    ended(name)
                    share_cores(cores, running.values())
                continue
            report.note(message.get("note", ""))
            where = message.get("stopped", where)
            if "what" in message:
                steps[name] = message["done"], message["total"]
                done, total = (sum(numbers) for numbers in zip(*steps.values(), strict=True))
                advance(done, total, f"{name}, {message['what']}")
    return where


def share_cores(cores: int, workers: Collection[WorkerProcess]) -> None:
    """Gives each process its threads."""
    for worker in workers:
        with suppress(WorkerError):  # it has just ended
            worker.send({"threads": cores // len(workers)})
