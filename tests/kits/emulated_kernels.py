"""Runs kernels for ARM in an emulator, with guards around their operands, and compares them with the reference."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from nnstretch.devices.base.routine import KernelCall, Layout, Parameters, Routine
from nnstretch.devices.engine.build import engine_library
from nnstretch.devices.engine.build.instruction_sets import parse_target
from nnstretch.devices.engine.build.toolchains import ENGINE_FOLDER, make_toolchain
from nnstretch.graph.layer import Layer
from tests.kits.convolution_parity import TOLERANCE, feeds_of, reference, variants

TARGET = parse_target("aarch64-linux-musl")
CPUS = ("cortex-a53", "cortex-a76", "max,sve=off")
"""An in-order ARMv8.0, an out-of-order ARMv8.2, and all features but SVE, as qemu names them."""
FOLDER = Path(__file__).parents[1] / "devices" / "cpu"


@dataclass(frozen=True)
class Case:
    """One setting of a routine for a layer, which is lowered to one call."""

    routine: Routine
    layer: Layer
    parameters: Parameters
    call: KernelCall


def emulator() -> str:
    """The path of qemu's emulator of 64-bit ARM; skips the test where there is none."""
    found = shutil.which("qemu-aarch64-static")
    if found is None:
        pytest.skip("qemu-aarch64-static is not there (Debian, Ubuntu: apt-get install qemu-user-static)")
    return found


def program(source: str) -> Path:
    """A static program for ARM of a C file in tests/devices/cpu, with all kernels of the engine."""
    toolchain = make_toolchain(TARGET)
    kernels = {
        *engine_library.c_files("kernels/**/*.c"),
        *(ENGINE_FOLDER / "runtime" / name for name in ("registry.c", "cpu_features.c")),
    }
    sources = [file for file in engine_library.engine_sources(TARGET) if file.path in kernels]
    sources += engine_library.source_files(toolchain, [FOLDER / source], ("include", "runtime", "kernels"))
    return engine_library.build_file(f"{TARGET}-{Path(source).stem}", "", sources, toolchain, "-static")


def cases_of(routines: Sequence[Routine], layer: Layer) -> list[Case]:
    """All settings of the routines that lower `layer` to one call of a kernel."""
    found = []
    for routine in routines:
        for parameters in variants(routine, layer) if routine.supports(layer) else ():
            calls = routine.lower(layer, parameters).calls
            if len(calls) == 1:
                found.append(Case(routine, layer, parameters, calls[0]))
    return found


def check_cases(cases: Sequence[Case], cpu: str) -> None:
    """Runs cases of one layer on an emulated CPU and compares them with ONNX Runtime."""
    feeds = feeds_of(cases[0].layer)
    wanted = reference(cases[0].layer, feeds)
    command = [emulator(), "-cpu", cpu, str(program("kernel_calls.c"))]
    request = b"".join(_packed(case, feeds) for case in cases)
    done = subprocess.run(command, input=request, capture_output=True, check=True)
    answers = BytesIO(done.stdout)
    for case in cases:
        found = _answer(answers, case)
        error = float(np.abs(found - wanted).max()) / max(float(np.abs(wanted).max()), 1e-3)
        assert error < TOLERANCE, f"{case.call.kernel} {dict(case.parameters)}: {error:.1e}"


def _packed(case: Case, feeds: Sequence[np.ndarray]) -> bytes:
    """A call as kernel_calls.c reads it."""
    layouts, (output,) = case.routine.layouts(case.layer, case.parameters)
    constants = case.routine.lower(case.layer, case.parameters).constants
    inputs = {
        index: layout.pack(feed) for index, feed, layout in zip(case.layer.activations, feeds, layouts, strict=True)
    }
    name = case.call.kernel.encode()
    numbers = case.call.parameters
    parts = [_number(len(name)), name, _number(len(numbers)), *map(_number, numbers), _number(len(case.call.reads))]
    for operand in case.call.reads:
        array = b""
        if operand is not None:
            source = inputs[operand.index] if operand.kind == "input" else constants[operand.index]
            array = np.ascontiguousarray(source).tobytes()
        parts += [_number(len(array)), array]
    return b"".join((*parts, _number(output.bytes(case.layer.outputs[0]))))


def _answer(answers: BytesIO, case: Case) -> np.ndarray:
    """The output of a call, row-major and logical; fails if its padding lanes are not finite."""
    (refused,) = struct.unpack("<q", answers.read(8))
    assert not refused, f"{case.call.kernel}: {answers.read(refused).decode()}"
    layout: Layout = case.routine.layouts(case.layer, case.parameters)[1][0]
    tensor = case.layer.outputs[0]
    stored = np.frombuffer(answers.read(layout.bytes(tensor)), layout.element(tensor).storage)
    assert np.isfinite(stored).all(), f"{case.call.kernel}: a number of the output is not finite"
    return layout.unpack(stored, tensor)


def _number(value: int) -> bytes:
    return struct.pack("<q", value)
