"""The processors of a target: threads limit the cores of its first CPU."""

from __future__ import annotations

import pytest

from nnstretch.compiler.targets.processors import processors_of_target
from nnstretch.devices.targets.probe import Probe
from nnstretch.errors import UsageError

PHONE = Probe.from_json(
    {
        "machine": "aarch64",
        "cpus": [{"number": number, "online": True, "allowed": True, "max_khz": 2_000_000} for number in range(4)],
    }
)


@pytest.mark.parametrize(
    ("text", "threads", "wanted"),
    [("cpu", 2, "cpu:0-1"), ("cpu:1-3", 2, "cpu:1-2"), ("cpu:1-3", None, "cpu:1-3"), ("cpu", 4, "cpu:0-3")],
)
def test_threads_limit_the_cores(text: str, threads: int | None, wanted: str, caplog: pytest.LogCaptureFixture) -> None:
    assert processors_of_target(PHONE, text, threads, "phone") == wanted
    assert not caplog.records


@pytest.mark.parametrize(("text", "used", "cores"), [("cpu", "cpu:0-3", "4 cores"), ("cpu:2", "cpu:2", "1 core")])
def test_more_threads_than_cores_are_named(text: str, used: str, cores: str, caplog: pytest.LogCaptureFixture) -> None:
    assert processors_of_target(PHONE, text, 9, "phone") == used
    assert [one.getMessage() for one in caplog.records] == [f"threads is 9; {used} has {cores}, and no more are used"]


def test_threads_are_those_of_the_first_cpu() -> None:
    assert processors_of_target(PHONE, "opencl:0,cpu:0-3", 2, "phone").endswith("cpu:0-1")
    with pytest.raises(UsageError, match="no CPU is among the processors"):
        processors_of_target(PHONE, "opencl:0", 2, "phone")
