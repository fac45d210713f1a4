"""Work on several targets at the same time, which a signal ends."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn, TypeVar

from nnstretch.devices.targets.device import Device
from nnstretch.errors import NNStretchError, StoppedError

_Answer = TypeVar("_Answer")


def on_all(
    devices: Mapping[str, Device], work: Callable[[str, Device], _Answer], failed: Callable[[str, str], _Answer]
) -> dict[str, _Answer]:
    """Does some work on several devices at the same time.

    An error of the only device is raised; one of several becomes an answer. Ctrl-C, SIGTERM and SIGHUP end the runners.

    Args:
        devices: by the names of their targets.
        work: called with a target and its device, one thread each.
        failed: the answer for a target, from its error.

    Raises:
        NNStretchError: the only device failed.
        StoppedError: a signal other than that of Ctrl-C arrived.
    """
    with _stopped_by_signals(), ThreadPoolExecutor(max(1, len(devices))) as pool:
        futures = {name: pool.submit(work, name, device) for name, device in devices.items()}
        try:
            while wait(futures.values(), _BETWEEN_SIGNALS).not_done:
                pass
            return {name: _answer(name, future, failed, alone=len(devices) == 1) for name, future in futures.items()}
        except (KeyboardInterrupt, StoppedError):
            # Again until all have ended: a runner may have been about to start.
            while True:
                for name, future in futures.items():
                    if not future.done():
                        with suppress(NNStretchError):
                            devices[name].interrupt()
                if not wait(futures.values(), _BETWEEN_SIGNALS).not_done:
                    raise


def alone_on(device: Device, work: Callable[[], _Answer]) -> _Answer:
    """Does some work on one device; a signal ends what runs there.

    Raises:
        NNStretchError: the device failed.
        StoppedError: a signal other than that of Ctrl-C arrived.
    """

    def failed(name: str, why: str) -> NoReturn:
        raise AssertionError(f"{name}: {why}")

    return on_all({device.name: device}, lambda _, __: work(), failed)[device.name]


_BETWEEN_SIGNALS = 0.5
"""Seconds: a wait without an end may miss a signal that arrives as it begins."""


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """Within the block, SIGTERM and SIGHUP raise StoppedError, so that what runs on targets is ended."""

    def stop(number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        raise StoppedError(f"stopped by {name}; nothing is left on the targets", _SIGNALLED + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_SIGNALLED = 128
"""Added to a signal's number in the exit status."""


def _answer(name: str, future: Future[_Answer], failed: Callable[[str, str], _Answer], *, alone: bool) -> _Answer:
    try:
        return future.result()
    except NNStretchError as error:
        if alone or isinstance(error, StoppedError):
            raise
        return failed(name, str(error))
