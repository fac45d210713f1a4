"""Processes that are forks of one with everything imported: a new one imports torch and the trainer for seconds."""

from __future__ import annotations

import multiprocessing
import os
import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import distributed
from torch.multiprocessing.spawn import start_processes

from nnstretch.cli.main import main
from nnstretch.training.loop.distributed import end_group

FORKS = multiprocessing.get_context("forkserver")
"""Its server is started by the first process of a session, and imports these modules."""
FORKS.set_forkserver_preload(
    [
        *(
            "tests.kits.processes.killable_commands",
            "nnstretch.cli.models.networks",
            "nnstretch.cli.stretching.search",
            "pytest",
        ),
        *("nnstretch.branching.stretch", "nnstretch.training.loop.trainer", "onnxruntime"),
        *("sklearn.datasets", "tests.kits.processes.warmed"),
    ]
)


@dataclass(frozen=True)
class Command:
    """`nnstretch` with some arguments, which runs in a fork in a folder.

    Attributes:
        process: the fork.
        streams: files of its standard output and standard error.
    """

    process: ForkServerProcess
    streams: tuple[Path, Path]

    @classmethod
    def start(cls, *arguments: str, folder: Path, streams: Path, most_bytes: int | None = None) -> Command:
        """Starts one.

        Args:
            arguments: of `nnstretch`.
            folder: its working folder.
            streams: folder for its streams.
            most_bytes: the largest size of a file that it can write.
        """
        files = streams / "stdout", streams / "stderr"
        process = FORKS.Process(target=_command, args=(arguments, str(folder), list(map(str, files)), most_bytes))
        process.start()
        return cls(process, files)

    def ended(self) -> tuple[int | None, str, str]:
        """Waits for it; returns exit status, standard output and standard error."""
        self.process.join(120)
        out, err = (file.read_text() for file in self.streams)
        return self.process.exitcode, out, err


def _command(arguments: tuple[str, ...], folder: str, streams: list[str], most_bytes: int | None) -> None:
    for number, file in enumerate(streams, 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.chdir(folder)
    if most_bytes is not None:
        sys.dont_write_bytecode = True  # Python takes a module's file that was cut off for a whole one
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
    sys.argv = ["nnstretch", *arguments]
    sys.exit(main(list(arguments)))


def run_side_by_side(function: Callable[..., None], count: int, *arguments: object) -> None:
    """Calls `function(rank, count, *arguments)` in `count` processes; the first failure ends all of them.

    Raises:
        ProcessRaisedException: a process failed; has its traceback.
        ProcessExitedException: a process was killed.
    """
    everything: tuple[Any, ...] = (count, *arguments)
    start_processes(function, everything, count, start_method="forkserver")  # type: ignore[no-untyped-call]


def run_in_group(function: Callable[..., None], count: int, *arguments: object) -> None:
    """Calls `function(rank, count, *arguments)` in `count` processes of one gloo group, on one thread each.

    Raises:
        ProcessRaisedException: a process failed, or threads of its group outlived it; has its traceback.
        ProcessExitedException: a process was killed.
    """
    with TemporaryDirectory() as folder:
        run_side_by_side(_in_group, count, function, f"{folder}/meet", *arguments)


def join_group(rank: int, count: int, file: str) -> None:
    """Joins a gloo group whose processes meet in a file."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=count)


def assert_no_threads_of_a_group() -> None:
    """Threads that outlive their group may abort the process as it ends."""
    assert not [name for name in Path("/proc/self/task").glob("*/comm") if "gloo" in name.read_text()]


def _in_group(rank: int, count: int, function: Callable[..., None], file: str, *arguments: object) -> None:
    join_group(rank, count, file)
    try:
        function(rank, count, *arguments)
    finally:
        end_group()
    assert_no_threads_of_a_group()
