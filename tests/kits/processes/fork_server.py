"""Runs `nnstretch` and `python` in forks of a process that has imported torch, which takes longer than most commands.

`Forks` starts the server and writes the two programs to a folder. They send their arguments, environment, working folder and
standard streams to the server, wait, and end with the status of the fork. SIGTERM is passed on to it.
"""

from __future__ import annotations

import array
import atexit
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import threading
import traceback
import types
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

PRELOADED = (
    *("jinja2", "pydantic", "typer._adapters", "xgboost"),
    "nnstretch.api.compile",
    "nnstretch.branching.stretch",
    "nnstretch.cli.application",
    "nnstretch.cli.models.networks",
    "nnstretch.cli.stretching.search",
    "nnstretch.training.loop.trainer",
    "optuna",
    "sklearn.datasets",
    "warmed",
)
"""What commands import that train, branch, tune and export. As onnxruntime starts a thread, it is left to them, and so is
pyopencl, whose drivers crash in forks."""

CLIENT = """#!{python} -IS
import array, json, os, signal, socket, sys
request = [os.path.basename(sys.argv[0]), sys.argv[1:], os.getcwd(), dict(os.environ)]
with socket.socket(socket.AF_UNIX) as server:
    server.connect({path!r})
    server.sendmsg([b"!"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))])
    server.sendall(json.dumps(request).encode() + b"\\n")
    signal.signal(signal.SIGTERM, lambda number, _: server.sendall(bytes([number])))
    status = int(server.makefile().readline() or 255)
if status < 0:
    os.kill(os.getpid(), -status)
sys.exit(status)
"""


class Forks:
    """The server, and a folder of its programs to be put first into PATH.

    Args:
        folder: gets the programs.
        environment: of the server; a fork has that of its program.
        python: the server's; of an environment with nnstretch.
        modules: that the server imports, which start no thread: forks lack it, and wait for it when they end.
    """

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str],
        python: str = sys.executable,
        modules: Sequence[str] = PRELOADED,
    ) -> None:
        path = str(folder / "server")
        for name in ("nnstretch", "python"):
            program = folder / name
            program.write_text(CLIENT.format(python=sys.executable, path=path))
            program.chmod(0o755)
        command = [python, __file__, path, *modules]
        self._server = subprocess.Popen(
            command, env=dict(environment), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._server.stdout is not None
        assert self._server.stdout.readline() == "ready\n"

    def close(self) -> None:
        """Ends the server."""
        self._server.communicate()


class _Server:
    """Accepts programs, forks for each, and sends them the status of their fork."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(path)
        self._socket.listen()
        self._selector = selectors.DefaultSelector()
        self._ended, wake = socket.socketpair()
        self._ended.setblocking(False)
        wake.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake.fileno())
        for file in (self._socket, self._ended, sys.stdin):
            self._selector.register(file, selectors.EVENT_READ)
        self._wake, self._programs = wake, dict[int, socket.socket]()

    def serve(self) -> list[Any] | None:
        """Serves until the standard input ends; in a fork, returns its request at once."""
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is sys.stdin:
                    return None
                if key.fileobj is self._socket:
                    program, _ = self._socket.accept()
                    request, streams = _received(program)
                    pid = os.fork()
                    if not pid:
                        self._leave(program, streams)
                        return request
                    self._programs[pid] = program
                    self._selector.register(program, selectors.EVENT_READ, pid)
                    for stream in streams:
                        os.close(stream)
                elif key.fileobj is self._ended:
                    self._ended.recv(1000)
                    self._reap()
                elif key.data in self._programs:
                    signals = self._programs[key.data].recv(1000)
                    if not signals:  # a program that sends nothing more was killed
                        self._selector.unregister(key.fileobj)
                    for number in signals or [signal.SIGKILL]:
                        os.kill(key.data, number)

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                program = self._programs.pop(ended[0])
                with suppress(KeyError):
                    self._selector.unregister(program)
                with program, suppress(OSError):
                    program.sendall(f"{os.waitstatus_to_exitcode(ended[1])}\n".encode())

    def _leave(self, program: socket.socket, streams: list[int]) -> None:
        """Gives a fork the streams of its program, and none of the server's."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        for file in (self._socket, self._ended, self._wake, program, *self._programs.values()):
            file.close()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)


def _received(program: socket.socket) -> tuple[list[Any], list[int]]:
    """A program's request and its standard streams."""
    streams = array.array("i")
    _, ancillary, _, _ = program.recvmsg(1, socket.CMSG_SPACE(3 * streams.itemsize))
    streams.frombytes(ancillary[0][2])
    return json.loads(program.makefile().readline()), list(streams)


def _run(name: str, arguments: list[str], folder: str, environment: Mapping[str, str]) -> None:
    """Does what the program would do in a process of its own."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.modules["__main__"] = main = types.ModuleType("__main__")
    if name == "nnstretch":
        from nnstretch.cli.main import main as nnstretch

        sys.argv = [name, *arguments]
        sys.exit(nnstretch())
    if arguments[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *arguments[2:]], ""
        exec(compile(arguments[1], "<string>", "exec"), main.__dict__)  # noqa: S102
    elif arguments[0] == "-m":
        sys.argv, sys.path[0] = arguments[1:], folder
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = arguments, str(Path(arguments[0]).resolve().parent)
        runpy.run_path(arguments[0], run_name="__main__")


def _ended(request: list[Any]) -> int:
    """Runs a request; returns the status, after what Python does when it ends, except that it takes no module apart."""
    try:
        _run(*request)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if not stream.closed:
            stream.flush()
    return status


if __name__ == "__main__":
    for module in sys.argv[2:]:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # else the collector touches every page in every fork
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "an imported module has started a thread"
    asked = _Server(sys.argv[1]).serve()
    if asked is not None:
        os._exit(_ended(asked))
