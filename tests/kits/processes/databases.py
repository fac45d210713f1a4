"""A PostgreSQL server of a test's own, on a socket in a folder, and Optuna's proxy for databases."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest


def programs() -> Path | None:
    """The folder of PostgreSQL's server programs; Debian does not put them into PATH."""
    found = shutil.which("postgres")
    folders = [Path(found).resolve().parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in folders if (folder / "initdb").exists()), None)


@dataclass(frozen=True)
class PostgreSql:
    """A server whose data are in a folder.

    Attributes:
        programs: folder of the server's programs.
        data: the folder.
        switch: command that changes to the user who runs it.
        log: file of what the programs say.
    """

    programs: Path
    data: Path
    switch: tuple[str, ...]
    log: Path

    @property
    def url(self) -> str:
        """URL of its database."""
        return f"postgresql+psycopg://tester@/postgres?host={self.data}"

    def start(self) -> None:
        """Starts the server, and waits until it answers."""
        settings = f"-c listen_addresses='' -c unix_socket_directories={self.data} -c fsync=off -c max_connections=40"
        self.call("pg_ctl", "-w", "-o", settings, "-l", str(self.data / "log"), "start")

    def stop(self) -> None:
        """Ends the server and all connections."""
        self.call("pg_ctl", "-m", "immediate", "stop")

    def call(self, program: str, *arguments: str) -> None:
        """Runs one of its programs."""
        command = [*self.switch, str(self.programs / program), "-D", str(self.data / "db"), *arguments]
        with self.log.open("ab") as log:
            subprocess.run(command, check=True, timeout=60, cwd=self.data, stdout=log, stderr=log)


@contextmanager
def postgresql(folder: Path) -> Iterator[PostgreSql]:
    """A running server. The test is skipped where PostgreSQL or psycopg is not installed."""
    found = programs()
    if found is None or find_spec("psycopg") is None:
        pytest.skip("needs PostgreSQL and psycopg")
    data = Path(tempfile.mkdtemp(prefix="nns-pg-"))  # sockets have short paths
    try:
        user = _owner(data)
        switch = ("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups") if os.getuid() == 0 else ()
        server = PostgreSql(found, data, switch, folder / "postgresql.log")
        server.call("initdb", "-U", "tester", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C")
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(data, ignore_errors=True)


@contextmanager
def storage_proxy(storage: str, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Optuna's proxy for a database on a port of this machine, in a process; it is ended after the block."""
    code = (
        "import sys; from optuna.storages import RDBStorage, run_grpc_proxy_server\n"
        "run_grpc_proxy_server(RDBStorage(sys.argv[1]), host='127.0.0.1', port=int(sys.argv[2]))"
    )
    with subprocess.Popen([sys.executable, "-W", "ignore", "-c", code, storage, str(port)]) as server:
        try:
            yield server
        finally:
            server.kill()


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _owner(data: Path) -> str:
    """The user who runs the server, whom the folder belongs to then: PostgreSQL refuses to run as root."""
    if os.getuid() != 0:
        return pwd.getpwuid(os.getuid()).pw_name
    known = {entry.pw_name for entry in pwd.getpwall()}
    user = next(name for name in ("postgres", "nobody") if name in known)
    os.chown(data, pwd.getpwnam(user).pw_uid, pwd.getpwnam(user).pw_gid)
    return user
