"""Machines that are reached by OpenSSH's client (`ssh:[USER@]HOST[:PORT]`).

The client, and no library: it reads the user's configuration, agent, known hosts and jump hosts, and is there where people use
ssh. It never asks (batch mode). All commands share one connection, which ends with this process.
"""

from __future__ import annotations

import re
import select
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from nnstretch.devices.targets.base import Finished, OnLine, TargetError, TransientTargetError
from nnstretch.devices.targets.processes import run_process
from nnstretch.devices.targets.shell import ShellTransport, lost, part_of
from nnstretch.errors import UsageError
from nnstretch.support.closing import closed_on_failure

_FORM = re.compile(
    r"(?P<host>(?:[^@\s:-][^@\s:]*@)?(?:\[[0-9A-Fa-f:.%\w]+\]|[^@\s:\[\]-][^@\s:\[\]]*))(?::(?P<port>\d+))?"
)
_READY = b"nnstretch-ready"
_CONNECT = 15
"""Seconds that the host may take to accept a connection."""
_LONGEST_SOCKET = 90
"""Characters of a socket's path; ssh adds some, and the system's limit is 108."""

_FINAL = (
    (
        "Host key verification failed",
        "the host's key is not known or has changed; log in once by `ssh {host}` and compare it",
    ),
    (
        "Permission denied",
        "the host accepts no key of this user; copy one by `ssh-copy-id {host}`, or add it to the agent",
    ),
    ("Could not resolve hostname", "there is no host of this name; check its spelling"),
    ("Name or service not known", "there is no host of this name; check its spelling"),
    ("Bad configuration option", "ssh's configuration has an error"),
    ("no matching", "client and host have no algorithm in common"),
)
"""Messages of the client that another attempt does not change, and what to do."""


class SshTransport(ShellTransport):
    """One machine, over one connection."""

    folders = (".cache", "/var/tmp", "/tmp")  # noqa: S108 - private folders are made in them

    def __init__(self, argument: str) -> None:
        """Connects.

        Args:
            argument: [USER@]HOST[:PORT]; HOST may be a name of ssh's configuration.

        Raises:
            UsageError: it is not understood.
            TransientTargetError: the host does not answer.
            TargetError: it refuses this user, its key is not known, or there is no ssh here.
        """
        form = _FORM.fullmatch(argument)
        if form is None:
            raise UsageError(f"target ssh:{argument} is not understood; write ssh:[USER@]HOST[:PORT]")
        if shutil.which("ssh") is None:
            raise TargetError(
                f"ssh:{argument} needs ssh, which is not installed (Debian, Ubuntu: apt-get install openssh-client)"
            )
        self.name = f"ssh:{argument}"
        self._host = form["host"].replace("[", "").replace("]", "")
        self._port = ("-p", form["port"]) if form["port"] else ()
        self._folder = Path(tempfile.mkdtemp(prefix="nnstretch-ssh-"))
        self._master: subprocess.Popen[bytes] | None = None
        with closed_on_failure(self.close):
            self._connect()

    def write(self, path: str, content: bytes | Path, executable: bool = False) -> None:
        size = len(content) if isinstance(content, bytes) else content.stat().st_size
        temporary = part_of(path)
        self._move(temporary, path, "755" if executable else "644", size, f"cat >{shlex.quote(temporary)}", content)

    def reconnect(self) -> None:
        self._disconnect()
        self._connect()

    def close(self) -> None:
        self._disconnect()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _call(self, script: str, content: bytes | Path, timeout: float, on_stderr: OnLine | None) -> Finished:
        if self._master is None or self._master.poll() is not None:
            raise lost(self.name, "the connection has ended")
        # The user's shell may be none of POSIX.
        return run_process(
            self._command(f"exec sh -c {shlex.quote(script)}"), timeout=timeout, content=content, on_stderr=on_stderr
        )

    def _lost(self, reason: str) -> TargetError:
        return lost(self.name, reason)

    def _command(self, script: str, *options: str) -> Sequence[str]:
        settings = (
            "BatchMode=yes",
            f"ConnectTimeout={_CONNECT}",
            "ServerAliveInterval=5",
            "ServerAliveCountMax=3",
            "LogLevel=ERROR",
            "ControlPersist=no",  # the user's settings may let connections outlive their programs
        )
        socket = self._folder / "s"
        shared = ("-S", str(socket) if len(str(socket)) < _LONGEST_SOCKET else "none")
        given = [word for setting in settings for word in ("-o", setting)]
        return ["ssh", *given, *shared, *options, "-T", *self._port, "--", self._host, script]

    def _connect(self) -> None:
        """Opens the shared connection. It ends when its standard input does, so it cannot outlive this process."""
        errors: IO[bytes]
        with tempfile.TemporaryFile() as errors:
            self._master = subprocess.Popen(
                self._command(f"echo {_READY.decode()}; exec cat", "-M"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                bufsize=0,
            )
            if self._is_ready(self._master):
                return
            self._disconnect()
            errors.seek(0)
            said = Finished(255, b"", errors.read()).reason
        raise self._unreachable(said)

    @staticmethod
    def _is_ready(master: subprocess.Popen[bytes]) -> bool:
        assert master.stdout is not None
        seen, end = b"", time.monotonic() + 2 * _CONNECT
        while _READY not in seen:
            left = end - time.monotonic()
            if left <= 0 or not select.select([master.stdout], [], [], left)[0]:
                return False
            piece = master.stdout.read(1 << 12)
            if not piece:
                return False
            seen += piece
        return True

    def _unreachable(self, said: str) -> TargetError:
        for text, advice in _FINAL:
            if text in said:
                return TargetError(f"{self.name}: {advice.format(host=self._host)} ({said})")
        return TransientTargetError(f"{self.name} does not answer ({said}); check that it is on and reachable")

    def _disconnect(self) -> None:
        master, self._master = self._master, None
        if master is None:
            return
        for pipe in (master.stdin, master.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        try:
            master.wait(2.0)
        except subprocess.TimeoutExpired:
            master.kill()
            master.wait()
