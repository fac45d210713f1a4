"""Ctrl-C in a library that makes another error of it."""

from __future__ import annotations

import signal
from contextlib import suppress

import pytest

from nnstretch.api import devices
from nnstretch.cli.main import main
from nnstretch.support.interrupts import check_interrupted


def test_an_interrupted_import_is_no_failure_of_a_device(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(name: str) -> devices.DeviceInfo:
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        return devices.DeviceInfo(name, name, name, 1, ("float32",), usable=False, why_not="it is not installed")

    monkeypatch.setattr(devices, "_opencl", list)
    monkeypatch.setattr(devices, "_external", interrupted)
    assert main(["devices"]) == 130
    said = capsys.readouterr()
    assert said.err.splitlines()[-1] == "interrupted"
    assert said.out == ""
    check_interrupted()  # the next command begins without the interrupt
