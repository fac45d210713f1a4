"""The runner with OpenCL: its list of devices, and models with OpenCL queues."""

from __future__ import annotations

import os
import zlib
from dataclasses import fields
from pathlib import Path

import pytest

from nnstretch.compiler.compile import plan_model
from nnstretch.compiler.processors import build_processors
from nnstretch.devices.engine.build.instruction_sets import local_isa
from nnstretch.devices.opencl.drivers import device_info
from nnstretch.devices.targets.probe import OpenCLDevice, Probe
from nnstretch.package.standalone import write_model_file
from nnstretch.scheduler.runtime.session import PlanSession
from nnstretch.support.settings import cache_dir
from tests.kits.boards.runner import QUICK, bench, seeded_input
from tests.kits.c_libraries import c_library
from tests.kits.graphs.graphs import RandomNetwork

KITS = Path(__file__).parents[3] / "kits" / "opencl"


def environment(**more: str) -> dict[str, str]:
    """That of a program without Python whose OpenCL loader finds the drivers of these tests."""
    kept = ("OCL_", "OPENCL_", "POCL_", "RUSTICL_", "OCLGRIND_", "HOME", "PATH", "XDG_CACHE_HOME")
    return {name: value for name, value in os.environ.items() if name.startswith(kept)} | more


@pytest.mark.opencl
def test_devices_are_listed_as_python_numbers_them(runner: Path) -> None:
    device = bench(runner, "--probe", environment=environment())
    assert device["opencl_error"] is None
    first = device_info(0)
    assert device["opencl"][0]["name"] == first.name
    assert device["opencl"][0]["on_cpu"] is first.on_cpu
    probe = Probe.from_json(device)
    said = {field.name: getattr(probe.opencl[0], field.name) for field in fields(OpenCLDevice)}
    assert (said.pop("image_width"), said.pop("image_height")) == first.image
    assert {"vendor", "version"} <= said.keys()
    # A driver that was loaded here for fewer cores states fewer.
    same = said.keys() - {"vendor", "version", "compute_units"}
    assert {name: said[name] for name in same} == {name: getattr(first, name) for name in same}


@pytest.mark.opencl
def test_a_model_on_a_device_computes_what_the_session_does(runner: Path, tmp_path: Path) -> None:
    model = RandomNetwork(1, 2, size=5).graph()
    compiled = plan_model(model, build_processors("cpu:0,opencl:0@1"), tune=False)
    write_model_file(compiled, "model", local_isa(), tmp_path / "model.nnm")
    with PlanSession(compiled) as session:
        (x,) = session.get_inputs()
        outputs = session.run(None, {x.name: seeded_input(x.shape)})
    options = (*QUICK, "--timeline", "--cache", cache_dir("opencl"))
    for entry in bench(runner, *options, *[tmp_path / "model.nnm"] * 2, environment=environment())["models"]:
        assert [one["crc32"] for one in entry["outputs"]] == [zlib.crc32(one.tobytes()) for one in outputs]
        assert [queue["kind"] for queue in entry["queues"]] == ["cpu", "opencl"]
        assert entry["queues"][1]["device"] == device_info(0).name
        assert {step["queue"] for step in entry["timeline"]} == {0, 1}
        assert entry["repeatable"]
    (entry,) = bench(runner, *QUICK, "--device", "none", tmp_path / "model.nnm", status=1, environment=environment())[
        "models"
    ]
    assert "none" in entry["error"]


@pytest.mark.opencl
def test_a_driver_without_profiling_has_timelines_by_the_host(runner: Path, tmp_path: Path) -> None:
    """`clGetEventProfilingInfo` of the stub fails, and its process ends with another status if anything is left."""
    compiled = plan_model(RandomNetwork(1, 2, size=5).graph(), build_processors("cpu:0,opencl:0@1"), tune=False)
    write_model_file(compiled, "model", local_isa(), tmp_path / "model.nnm")
    stub = c_library(KITS / "opencl_stub.c", includes=(KITS / "opencl_double.c",))
    (entry,) = bench(runner, *QUICK, "--timeline", "--opencl", stub, tmp_path / "model.nnm", environment=environment())[
        "models"
    ]
    assert entry["queues"][1]["device"] == "stub"
    assert {step["queue"] for step in entry["timeline"]} == {0, 1}
    assert all(0 <= step["begin"] <= step["end"] for step in entry["timeline"])


def test_a_machine_without_opencl_says_why(runner: Path, tmp_path: Path) -> None:
    device = bench(runner, "--probe", "--opencl", tmp_path / "none.so")
    assert device["opencl"] == []
    assert "none.so" in device["opencl_error"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("__builtin_trap();", "ended the process that listed devices (signal"),
        ("_exit(3);", "ended the process that listed devices (status 3)"),
        ("for (int i = 3; i < 64; i++) close(i); usleep(300000); _exit(3);", "(status 3)"),  # the pipe ends before it
    ],
)
def test_a_driver_that_crashes_is_reported(runner: Path, tmp_path: Path, body: str, words: str) -> None:
    source = tmp_path / "crash.c"
    source.write_text(f"#include <unistd.h>\n__attribute__((constructor)) static void crash(void) {{ {body} }}\n")
    device = bench(runner, "--probe", "--opencl", c_library(source))
    assert words in device["opencl_error"]
    assert device["cpus"]
