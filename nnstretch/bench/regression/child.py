"""The process in which one commit compiles a model and runs it.

It is run by its path. It uses nothing of the commit but `nnstretch.compile` and `run` of the session that this returns, and
nothing of the package that this file belongs to. Its argument is a JSON object with the fields of `Task`. It writes frames
(`nnstretch.support.frames`) with these messages to its standard output:

    {"prepared": seconds}       it has imported the package, built the engine and opened the processors
    {"tuned": seconds}          it has compiled the model
    {"ready": true}             the outputs of the first run are in the file
    {"seconds": [s, …]}         duration of each run, as the answer to {"seconds": number} on its standard input
    {"error": "…"}              it has failed, and ends

The end of the standard input ends the process.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import struct
import sys
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import numpy as np

_SET_PARENT_DEATH_SIGNAL = 1  # of prctl
_LENGTH = struct.Struct("<Q")  # bytes of a frame's header
_WARMUP_RUNS = 2  # at the begin of a turn, not counted: caches and clock belong to the other process before
_WARMUP_SHARE = 0.5  # of the turn's seconds, after which no further run is left out


class Task(NamedTuple):
    """What the process does.

    Attributes:
        parent: process id of the parent, with which this process ends.
        imports: folder that the package is imported from.
        model: ONNX file.
        small: ONNX file of a small model, which is compiled first without tuning.
        processors: as for `nnstretch.compile`.
        threads: as for `nnstretch.compile`.
        inputs: names of the inputs.
        feeds: .npz file with an array for each of them.
        outputs: .npz file to write, with an array for each output.
    """

    parent: int
    imports: str
    model: str
    small: str
    processors: str
    threads: int | None
    inputs: list[str]
    feeds: str
    outputs: str


def main() -> int:
    """Does the task of the command line's argument; returns the exit status."""
    task = Task(**json.loads(sys.argv[1]))
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != task.parent:
        return 1
    # The finder of an editable installation would supply modules of another checkout that this commit does not have.
    sys.meta_path[:] = [finder for finder in sys.meta_path if "__editable__" not in getattr(finder, "__module__", "")]
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print does not come between answers
    try:
        serve(task, answers)
    except BrokenPipeError:
        return 1
    except Exception as error:  # noqa: BLE001 - the parent reports it, whatever it is
        answer(answers, error=f"{type(error).__name__}: {error}")
        return 1
    return 0


def answer(answers: IO[bytes], **message: Any) -> None:
    """Sends a frame to the parent."""
    header = json.dumps({"message": message, "arrays": []}).encode()
    answers.write(_LENGTH.pack(len(header)) + header)
    answers.flush()


def requests(stream: IO[bytes]) -> Iterator[dict[str, Any]]:
    """The messages of the parent's frames until its end of the pipe is closed."""
    while len(size := stream.read(_LENGTH.size)) == _LENGTH.size:
        yield json.loads(stream.read(*_LENGTH.unpack(size)))["message"]


def serve(task: Task, answers: IO[bytes]) -> None:
    """Compiles the model, runs it once, and times runs until the standard input ends.

    Raises:
        ImportError: the package comes from another folder than that of the commit.
    """
    begin = time.perf_counter()
    import numpy as np

    import nnstretch

    if not Path(nnstretch.__file__).is_relative_to(task.imports):
        raise ImportError(f"nnstretch comes from {nnstretch.__file__}, not from {task.imports}")
    close = getattr(compiled(task.small, task, tune=False), "close", None)
    if close is not None:
        close()
    answer(answers, prepared=time.perf_counter() - begin)
    begin = time.perf_counter()
    session = compiled(task.model, task, tune=True)
    answer(answers, tuned=time.perf_counter() - begin)
    with np.load(task.feeds) as stored:
        feeds = dict(zip(task.inputs, stored.values(), strict=True))
    outputs = session.run(None, feeds)
    np.savez(task.outputs, *outputs)
    answer(answers, ready=True)
    for request in requests(sys.stdin.buffer):
        answer(answers, seconds=timed(session, feeds, float(request["seconds"])))


def compiled(model: str, task: Task, *, tune: bool) -> Any:
    """A session of the commit for a model."""
    import nnstretch

    return nnstretch.compile(model, processors=task.processors, threads=task.threads, tune=tune)


def timed(session: Any, feeds: Mapping[str, np.ndarray], budget: float) -> list[float]:
    """Seconds of each run, one at least, and of more until `budget` seconds have passed."""
    begin = time.perf_counter()
    for _ in range(_WARMUP_RUNS):
        session.run(None, feeds)
        if time.perf_counter() - begin > budget * _WARMUP_SHARE:
            break
    seconds: list[float] = []
    begin = now = time.perf_counter()
    while not seconds or now - begin < budget:
        session.run(None, feeds)
        before, now = now, time.perf_counter()
        seconds.append(now - before)
    return seconds


if __name__ == "__main__":
    sys.exit(main())
