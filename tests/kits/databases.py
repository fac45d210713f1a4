"""A PostgreSQL server of a test's own, on a socket in a folder."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest


def programs() -> Path | None:
    """The folder of PostgreSQL's server programs; Debian does not put them into PATH."""
    found = shutil.which("postgres")
    folders = [Path(found).resolve().parent] if found else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in folders if (folder / "initdb").exists()), None)


@contextmanager
def postgresql(folder: Path) -> Iterator[str]:
    """A running server; yields the URL of its database. The test is skipped where PostgreSQL or psycopg is not installed."""
    bin_folder = programs()
    if bin_folder is None or find_spec("psycopg") is None:
        pytest.skip("needs PostgreSQL and psycopg")
    data = Path(tempfile.mkdtemp(prefix="nns-pg-"))  # sockets have short paths
    try:
        user = _owner(data)
        switch = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if os.getuid() == 0 else []
        settings = f"-c listen_addresses='' -c unix_socket_directories={data} -c fsync=off -c max_connections=40"

        def call(program: str, *arguments: str) -> None:
            command = [*switch, str(bin_folder / program), "-D", str(data / "db"), *arguments]
            with (folder / "postgresql.log").open("ab") as log:
                subprocess.run(command, check=True, timeout=60, cwd=data, stdout=log, stderr=log)

        call("initdb", "-U", "tester", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C")
        call("pg_ctl", "-w", "-o", settings, "-l", str(data / "log"), "start")
        try:
            yield f"postgresql+psycopg://tester@/postgres?host={data}"
        finally:
            call("pg_ctl", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(data, ignore_errors=True)


def _owner(data: Path) -> str:
    """The user who runs the server, whom the folder belongs to then: PostgreSQL refuses to run as root."""
    if os.getuid() != 0:
        return pwd.getpwuid(os.getuid()).pw_name
    known = {entry.pw_name for entry in pwd.getpwall()}
    user = next(name for name in ("postgres", "nobody") if name in known)
    os.chown(data, pwd.getpwnam(user).pw_uid, pwd.getpwnam(user).pw_gid)
    return user
