"""Runs a program of this machine: what all transports are made of."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO

from nnstretch.devices.targets.base import Finished, OnLine, TargetTimeoutError
from nnstretch.errors import FileError

_PATIENCE = 5.0
"""Seconds that the pipes of an ended program may stay open."""


def run_process(
    command: Sequence[str],
    *,
    timeout: float,
    content: bytes | Path = b"",
    on_stderr: OnLine | None = None,
    environment: Mapping[str, str] | None = None,
) -> Finished:
    """Runs a program in a session of its own, which is killed if it takes too long or the caller is interrupted.

    Args:
        command: the program and its arguments.
        timeout: seconds after which it is killed.
        content: its standard input, or the file that holds it.
        on_stderr: called with each line of its standard error.
        environment: environment variables; None for those of this process.

    Raises:
        OSError: it cannot be started.
        FileError: the file with its input cannot be read.
        TargetTimeoutError: it did not end in time.
    """
    with ExitStack() as stack:
        process = subprocess.Popen(
            command,
            stdin=stack.enter_context(_opened(content)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        assert process.stdout is not None
        assert process.stderr is not None
        out, errors = _Reader(process.stdout), _Reader(process.stderr, on_stderr)
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired as error:
            raise TargetTimeoutError(f"{Path(command[0]).name} did not end within {timeout:.0f} s") from error
        finally:
            _kill_group(process)
        out.join(_PATIENCE)
        errors.join(_PATIENCE)
        return Finished(process.returncode, bytes(out.content), bytes(errors.content))


def _opened(content: bytes | Path) -> IO[bytes]:
    if isinstance(content, Path):
        try:
            return content.open("rb")
        except OSError as error:
            raise FileError(f"cannot read {content}: {error.strerror}") from error
    file = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    file.write(content)
    file.seek(0)
    return file


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kills what is left of a program and the programs that it started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class _Reader(threading.Thread):
    """Reads a pipe to its end."""

    def __init__(self, pipe: IO[bytes], on_line: OnLine | None = None) -> None:
        super().__init__(daemon=True)
        self.content = bytearray()
        self._pipe = pipe
        self._on_line = on_line
        self.start()

    def run(self) -> None:
        with self._pipe as pipe:
            for line in pipe:
                self.content += line
                if self._on_line is not None and line.strip():
                    self._on_line(line.decode(errors="replace").rstrip())
