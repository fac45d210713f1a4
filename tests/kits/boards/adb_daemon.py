"""A stand-in for the daemon of an Android device: connections of the real adb, shell protocol v2, pushes.

Commands run in this machine's shell. `/data/local/tmp` is a folder of the test, and programs that were pushed there (`*.run`)
run under an emulator.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

_HEADER = struct.Struct("<6I")
_VERSION, _MOST = 0x01000001, 1 << 18
_FEATURES = "shell_v2,cmd,stat_v2"
_STDIN, _STDOUT, _STDERR, _EXIT, _END_OF_STDIN = range(5)


@dataclass
class Phone:
    """How a device behaves.

    Attributes:
        folder: of its files.
        launcher: emulator of its programs; empty to run them directly.
        abi: what `getprop ro.product.cpu.abi` says.
        state: "device", "offline" or "unauthorized".
        capacity: bytes that pushes may write; more are refused as a full disk does.
        refuses: message with which every push is refused; empty for none.
        noexec: whether programs do not run.
        unplugged_after: bytes of pushes after which the connection breaks, once; None: it holds.
        commands: the scripts that were run.
        rewrite: changes scripts before they run.
    """

    folder: Path
    launcher: str = ""
    abi: str = "arm64-v8a"
    state: str = "device"
    capacity: float = float("inf")
    refuses: str = ""
    noexec: bool = False
    unplugged_after: int | None = None
    commands: list[str] = field(default_factory=list)
    rewrite: Callable[[str], str] = str

    def local(self, text: str) -> str:
        """A path or script of the device as one of this machine."""
        return text.replace("/data/local/tmp", str(self.folder))

    def script(self, text: str) -> str:
        """What this machine's shell runs for a script."""
        self.commands.append(text)
        text = self.local(self.rewrite(text)).replace("getprop ro.product.cpu.abi", f"echo {self.abi}")
        if self.noexec:
            refusal = "sh -c 'echo \"$0: Permission denied\" >&2; exit 126'"
            return re.sub(r"[\w./-]+\.run(?= --)", lambda _: refusal, text)
        return re.sub(r"([\w./-]+\.run)(?= --)", rf"{self.launcher} \1", text)


class AdbDaemon:
    """Serves one device on a port of the loopback address until it is closed."""

    def __init__(self, phone: Phone) -> None:
        self.phone = phone
        self.port = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        self._ready.wait()

    @property
    def serial(self) -> str:
        """The device's serial for adb."""
        return f"127.0.0.1:{self.port}"

    def unplug(self) -> None:
        """Breaks all connections; the device can be connected to again."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._drop)

    def close(self) -> None:
        """Ends the daemon."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _drop(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        self._drop()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            await _Connection(self.phone, reader, writer, self._drop).serve()
        self._writers.discard(writer)
        writer.close()


class _Connection:
    """A connection of an adb server, with its streams."""

    def __init__(
        self, phone: Phone, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, drop: Callable[[], None]
    ) -> None:
        self.phone = phone
        self.drop = drop
        self._reader = reader
        self._writer = writer
        self._streams: dict[int, _Stream] = {}

    async def serve(self) -> None:
        """Answers until the connection breaks."""
        try:
            await self._serve()
        finally:
            for stream in self._streams.values():
                stream.cancel()

    async def _serve(self) -> None:
        while True:
            command, first, second, length, _, _ = _HEADER.unpack(await self._reader.readexactly(_HEADER.size))
            data = await self._reader.readexactly(length)
            name = struct.pack("<I", command)
            if name == b"CNXN" and self.phone.state == "unauthorized":
                self.send(b"AUTH", 1, 0, bytes(20))
            elif name == b"CNXN" and self.phone.state == "device":
                self.send(b"CNXN", _VERSION, _MOST, f"device::features={_FEATURES}".encode())
            elif name == b"OPEN":
                stream = self._streams[first] = _Stream(self, first)
                stream.start(data.rstrip(b"\0").decode())
            elif name == b"WRTE" and first in self._streams:
                self._streams[first].received.feed_data(data)
                self.send(b"OKAY", first, first)
            elif name == b"OKAY" and first in self._streams:
                self._streams[first].ready.set()
            elif name == b"CLSE" and second in self._streams:
                self._streams.pop(second).end()

    def send(self, name: bytes, first: int, second: int, data: bytes = b"") -> None:
        command = struct.unpack("<I", name)[0]
        self._writer.write(_HEADER.pack(command, first, second, len(data), sum(data), command ^ 0xFFFFFFFF) + data)


class _Stream:
    """A service that the host has opened. Both sides use the host's number."""

    def __init__(self, connection: _Connection, number: int) -> None:
        self.received = asyncio.StreamReader()
        self.ready = asyncio.Event()
        self._connection = connection
        self._number = number
        self._task: asyncio.Task[None] | None = None

    def start(self, service: str) -> None:
        self._connection.send(b"OKAY", self._number, self._number)
        self._task = asyncio.ensure_future(self._served(service))

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def end(self) -> None:
        self.received.feed_eof()
        self.ready.set()

    async def _served(self, service: str) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            if service.startswith("shell,"):
                await self._shell(service.partition(":")[2])
            elif service == "sync:":
                await self._sync()
        self._connection.send(b"CLSE", self._number, self._number)

    async def _write(self, data: bytes) -> None:
        for start in range(0, len(data), _MOST):
            self.ready.clear()
            self._connection.send(b"WRTE", self._number, self._number, data[start : start + _MOST])
            await self.ready.wait()

    async def _shell(self, script: str) -> None:
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            "sh",
            "-c",
            self._connection.phone.script(script),
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            start_new_session=True,
        )
        assert process.stdin is not None
        lock = asyncio.Lock()

        async def copy(kind: int, source: asyncio.StreamReader | None) -> None:
            while source is not None and (data := await source.read(_MOST - 5)):
                async with lock:
                    await self._write(struct.pack("<BI", kind, len(data)) + data)

        async def feed(stdin: asyncio.StreamWriter) -> None:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    kind, length = struct.unpack("<BI", await self.received.readexactly(5))
                    data = await self.received.readexactly(length)
                    if kind == _STDIN:
                        stdin.write(data)
                    elif kind == _END_OF_STDIN:
                        stdin.close()

        feeding = asyncio.ensure_future(feed(process.stdin))
        try:
            await asyncio.gather(copy(_STDOUT, process.stdout), copy(_STDERR, process.stderr))
            await self._write(struct.pack("<BIB", _EXIT, 1, await process.wait() & 0xFF))
        finally:
            feeding.cancel()
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()

    async def _sync(self) -> None:
        while True:
            name, length = struct.unpack("<4sI", await self.received.readexactly(8))
            if name == b"QUIT":
                return
            text = (await self.received.readexactly(length)).decode()
            if name == b"SEND":
                await self._store(*text.rsplit(",", 1))
            elif name in (b"STA2", b"LST2"):
                await self._write(_stat(name, Path(self._connection.phone.local(text))))
            else:
                raise AssertionError(name)

    async def _store(self, path: str, mode: str) -> None:
        phone, content, refused = self._connection.phone, bytearray(), self._connection.phone.refuses
        while True:
            name, length = struct.unpack("<4sI", await self.received.readexactly(8))
            if name == b"DONE":
                break
            content += await self.received.readexactly(length)
            if phone.unplugged_after is not None and len(content) > phone.unplugged_after:
                phone.unplugged_after = None
                self._connection.drop()
            if len(content) > phone.capacity:
                refused = "write failed: No space left on device"
        if refused:
            await self._write(struct.pack("<4sI", b"FAIL", len(refused)) + refused.encode())
            return
        _make_file(Path(phone.local(path)), content, int(mode))
        await self._write(struct.pack("<4sI", b"OKAY", 0))


def _make_file(path: Path, content: bytes | bytearray, mode: int) -> None:
    path.write_bytes(content)
    path.chmod(mode & 0o777)


def _stat(name: bytes, path: Path) -> bytes:
    """The answer to a question for a file: error, device, inode, mode, links, user, group, size and three times."""
    if not path.exists():
        return struct.pack("<4sI64x", name, 2)
    found = path.stat()
    return struct.pack("<4sI2Q4I4Q", name, 0, 0, found.st_ino, found.st_mode, 1, 0, 0, found.st_size, 0, 0, 0)
