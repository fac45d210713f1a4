"""A machine that is reached by ssh: a real sshd on the loopback address, with its own keys, configuration and user."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

_NOBODY = 65534
_CONFIGURATION = """\
ListenAddress 127.0.0.1
Port {port}
HostKey {folder}/host
PidFile none
UsePAM no
StrictModes no
AuthorizedKeysFile {folder}/user.pub
PasswordAuthentication no
KbdInteractiveAuthentication no
ForceCommand {folder}/shell
"""
_SHELL = """\
#!/bin/sh
# Programs that were pushed (*.run) are of another architecture.
PATH={folder}/bin:$PATH
. {folder}/before
eval "$(printf '%s' "$SSH_ORIGINAL_COMMAND" | sed -E 's#([A-Za-z0-9_./-]+\\.run) --#{folder}/launch \\1 --#g')"
"""
DROP = "kill -9 $PPID $(cut -d' ' -f4 /proc/$PPID/stat); exit 1"
"""For `Board.before`: ends the server's process of the connection, and with it the command and all others of the connection."""
_LAUNCH = """\
#!/bin/sh
case $(head -c 4 "$1") in *ELF) exec {launcher} "$@" ;; *) exec "$@" ;; esac
"""
_CLIENT = """\
Host *
  User {user}
  IdentityFile {keys}/{key}
  IdentitiesOnly yes
  UserKnownHostsFile {keys}/known
  StrictHostKeyChecking yes
"""


def find_sshd() -> Path | None:
    """The server that `scripts/test` unpacks into the virtual environment; without it and as a usual user, an installed one.

    Root needs the library that comes with the first, to run the server as another user.
    """
    unpacked = Path(sys.prefix) / "openssh-server" / "usr" / "sbin" / "sshd"
    if unpacked.is_file():
        return unpacked
    found = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    return Path(found) if found and os.getuid() else None


@dataclass
class Board:
    """The machine.

    Attributes:
        port: of the server.
        folder: of the server's files; `home` in it is the user's.
        keys: folder of the client's files.
        process: the server.
    """

    port: int
    folder: Path
    keys: Path
    process: subprocess.Popen[bytes]

    @property
    def target(self) -> str:
        """The machine as on the command line."""
        return f"ssh:127.0.0.1:{self.port}"

    @property
    def home(self) -> Path:
        """The user's home folder."""
        return self.folder / "home"

    def before(self, script: str) -> None:
        """Has the machine run a script before every command."""
        (self.folder / "before").write_text(script)

    def replace(self, program: str, script: str) -> None:
        """Has the machine run a script instead of a program."""
        file = self.folder / "bin" / program
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)

    def restore(self) -> None:
        """Takes back what `before` and `replace` have done."""
        self.before("")
        shutil.rmtree(self.folder / "bin", ignore_errors=True)
        (self.folder / "bin").mkdir()
        self.replace("uname", "echo aarch64")

    def client(self, key: str = "user") -> Path:
        """A folder with an `ssh` that uses the client's files only."""
        folder = self.keys / f"bin-{key}"
        folder.mkdir(exist_ok=True)
        user = "board" if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name
        (folder / "config").write_text(_CLIENT.format(user=user, keys=self.keys, key=key))
        (folder / "ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/config "$@"\n')
        (folder / "ssh").chmod(0o755)
        return folder


@contextmanager
def ssh_board(sshd: Path, launcher: str) -> Iterator[Board]:
    """Runs the server until the block ends: as another user if this one is root, else as this one.

    Args:
        sshd: the program.
        launcher: command that runs the board's programs.
    """
    with TemporaryDirectory(prefix="nnstretch-board-") as name, TemporaryDirectory(prefix="nnstretch-keys-") as keys:
        folder, port = Path(name), _free_port()
        _fill(folder, Path(keys), sshd, port, launcher)
        environment = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": name}
        more: dict[str, int] = {}
        if os.getuid() == 0:
            subprocess.run(["chown", "-R", f"{_NOBODY}:{_NOBODY}", name], check=True)
            wrapper = {"LD_PRELOAD": f"{name}/libnss_wrapper.so", "NSS_WRAPPER_PASSWD": f"{name}/passwd"}
            environment |= {**wrapper, "NSS_WRAPPER_GROUP": f"{name}/group"}
            more = {"user": _NOBODY, "group": _NOBODY}
        command = [f"{name}/sshd", "-D", "-e", "-f", f"{name}/config"]
        with (Path(keys) / "log").open("wb") as log:
            process = subprocess.Popen(command, stderr=log, env=environment, **more)  # type: ignore[call-overload]
        try:
            _wait(port, process, Path(keys) / "log")
            board = Board(port, folder, Path(keys), process)
            board.restore()
            yield board
        finally:
            process.terminate()
            process.wait()


def _fill(folder: Path, keys: Path, sshd: Path, port: int, launcher: str) -> None:
    folder.chmod(0o755)
    (folder / "home").mkdir()
    for program in (sshd, *sshd.parents[1].glob("lib/*/lib*wrap*.so*")):
        shutil.copy(program, folder)
    for name in ("host", "user", "stranger"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    for name in ("user", "stranger"):
        shutil.copy(folder / name, keys)
    kind, key, *_ = (folder / "host.pub").read_text().split()
    (keys / "known").write_text(f"[127.0.0.1]:{port} {kind} {key}\n")
    (folder / "passwd").write_text(f"board:x:{_NOBODY}:{_NOBODY}::{folder}/home:/bin/sh\n")
    (folder / "group").write_text(f"board:x:{_NOBODY}:\n")
    (folder / "config").write_text(_CONFIGURATION.format(port=port, folder=folder))
    (folder / "shell").write_text(_SHELL.replace("{folder}", str(folder)))
    (folder / "launch").write_text(_LAUNCH.replace("{launcher}", launcher))
    for name in ("shell", "launch"):
        (folder / name).chmod(0o755)
    (folder / "before").write_text("")
    (folder / "before").chmod(0o644)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(200):
        assert process.poll() is None, log.read_text()
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError(log.read_text())
