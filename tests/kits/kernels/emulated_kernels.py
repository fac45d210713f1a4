"""Runs kernels for ARM in an emulator, with guards around their operands, and compares them with the reference."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from nnstretch.devices.base.routine import KernelCall, Layout, Lowering, Parameters, Routine
from nnstretch.devices.engine.build import engine_library
from nnstretch.devices.engine.build.instruction_sets import parse_target
from nnstretch.devices.engine.build.toolchains import make_toolchain
from nnstretch.graph.layer import Layer
from nnstretch.graph.reference import run_layer
from nnstretch.scheduler.measurement.runner.single_layer import random_inputs
from tests.kits.kernels.convolution_parity import feeds_of, reference, tolerance_of, variants
from tests.kits.kernels.int8_layers import SLACK, exact_range, int8_feeds, steps_beyond

TARGET = parse_target("aarch64-linux-musl")
CPUS = {
    "cortex-a53": frozenset[str](),
    "cortex-a76": frozenset({"asimdhp", "asimddp"}),
    "max,sve=off": frozenset({"asimdhp", "asimddp", "i8mm", "bf16"}),
}
"""An in-order ARMv8.0, an out-of-order ARMv8.2, and all features but SVE, as qemu names them -> features of variants."""
FOLDER = Path(__file__).parents[2] / "devices" / "cpu"


@dataclass(frozen=True)
class Case:
    """One setting of a routine for a layer, lowered to one call, or to calls that each read the result of the one before."""

    routine: Routine
    layer: Layer
    parameters: Parameters

    @cached_property
    def lowering(self) -> Lowering:
        """What the routine makes of the layer."""
        return self.routine.lower(self.layer, self.parameters)

    @cached_property
    def layouts(self) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        """Layouts of the inputs and of the outputs."""
        return self.routine.layouts(self.layer, self.parameters)

    @property
    def calls(self) -> tuple[KernelCall, ...]:
        """The calls."""
        return self.lowering.calls

    @property
    def call(self) -> KernelCall:
        """The last call, which writes the output."""
        return self.calls[-1]


def emulator() -> str:
    """The path of qemu's emulator of 64-bit ARM; skips the test where there is none."""
    found = shutil.which("qemu-aarch64-static")
    if found is None:
        pytest.skip("qemu-aarch64-static is not there (Debian, Ubuntu: apt-get install qemu-user-static)")
    return found


@cache
def program(source: str) -> Path:
    """A static program for ARM of a C file in tests/devices/cpu, with all kernels of the engine."""
    toolchain = make_toolchain(TARGET)
    kernels = {
        *engine_library.c_files("kernels/**/*.c"),
        *engine_library.c_files("runtime/program/registry.c", "runtime/cpu/cpu_features.c"),
    }
    sources = [file for file in engine_library.engine_sources(TARGET) if file.path in kernels]
    sources += engine_library.engine_files(toolchain, [FOLDER / source])
    # Linked as the runner is: for a program that is not stripped, zig would compile its C library again.
    return engine_library.build_file(f"{TARGET}-{Path(source).stem}", "", sources, toolchain, "-static", "-s")


def cpus_of(*folders: str) -> list[str]:
    """The CPUs for which the engine chooses different variants of the kernels in some folders: of several, the first."""
    paths = engine_library.c_files(*(f"kernels/{folder}/**/*.c" for folder in folders))
    families = [family for path in paths for family in engine_library.families_of(path)]
    listed = engine_library.variants(families, engine_library.listed_variants())
    chosen: dict[frozenset[tuple[str, ...]], str] = {}
    for cpu, found in CPUS.items():
        chosen.setdefault(frozenset(features for features in listed if found.issuperset(features)), cpu)
    return list(chosen.values())


Settings = Callable[[Routine, Layer], Sequence[Parameters]]


def cases_of(routines: Sequence[Routine], layer: Layer, settings: Settings = variants) -> list[Case]:
    """All settings of the routines that lower `layer` to one call, or to calls that each read the result of the one before."""
    supporting = [routine for routine in routines if routine.supports(layer)]
    found = [Case(routine, layer, parameters) for routine in supporting for parameters in settings(routine, layer)]
    return [case for case in found if _is_chain(case.calls)]


def _is_chain(calls: Sequence[KernelCall]) -> bool:
    """Whether every call writes one operand, and reads no result but that of the call before."""
    made = [call.writes for call in calls]
    read = [{o for o in call.reads if o is not None and o.kind in ("workspace", "output")} for call in calls]
    return all(len(one) == 1 for one in made) and all(
        one <= set(made[index - 1] if index else ()) for index, one in enumerate(read)
    )


@dataclass(frozen=True)
class Request:
    """Cases of one layer as the program reads them, and the least and the largest output that is right."""

    cases: Sequence[Case]
    wanted: tuple[np.ndarray, np.ndarray]
    content: bytes


def request_of(
    cases: Sequence[Case], wanted: np.ndarray | None = None, feeds: Sequence[np.ndarray] | None = None
) -> Request:
    """Cases of one layer with random inputs, and ONNX Runtime's output for them; the exact one of int8 layers with weights.

    Args:
        cases: of the layer.
        wanted: the output for `feeds` if it is another one.
        feeds: inputs, with `wanted`; None: `feeds_of(layer)`.
    """
    layer = cases[0].layer
    if wanted is not None:
        feeds, bounds = feeds or feeds_of(layer), (wanted, wanted)
    elif layer.is_int8 and layer.macs:
        feeds = int8_feeds(layer)
        bounds = exact_range(layer, feeds)
    elif layer.is_int8:
        feeds = random_inputs(layer)
        bounds = (run_layer(layer, *feeds)[0],) * 2
    else:
        feeds = feeds_of(layer)
        bounds = (reference(layer, feeds),) * 2
    return Request(cases, bounds, b"".join(_packed(case, feeds) for case in cases))


def units_of(case: Case) -> int:
    """Units of work of a case's last call, which threads compute in any order."""
    call = case.calls[-1]
    feeds = [np.zeros(case.layer.type_of(index).shape, np.float32) for index in case.layer.activations]
    content = _packed_call(case, call, feeds)
    content = content[:-8] + _number(-_written_bytes(case, call))
    command = [emulator(), str(program("kernel_calls.c"))]
    answers = BytesIO(subprocess.run(command, input=content, capture_output=True, check=True).stdout)
    (refused,) = struct.unpack("<q", answers.read(8))
    assert not refused, f"{call.kernel}: {answers.read(refused).decode()}"
    (units,) = struct.unpack("<q", answers.read(8))
    return int(units)


def answers_to(requests: Sequence[Request], cpu: str) -> BytesIO:
    """What the program says on an emulated CPU."""
    command = [emulator(), "-cpu", cpu, str(program("kernel_calls.c"))]
    content = b"".join(request.content for request in requests)
    return BytesIO(subprocess.run(command, input=content, capture_output=True, check=True).stdout)


def errors_of(request: Request, cpu: str) -> list[float]:
    """The largest error of each case of a float32 layer, relative to the largest output."""
    answers, wanted = answers_to([request], cpu), request.wanted[0].astype(np.float64)
    return [float(np.abs(_answer(answers, case) - wanted).max() / np.abs(wanted).max()) for case in request.cases]


def check_requests(requests: Sequence[Request], cpu: str) -> None:
    """Runs cases of layers on an emulated CPU and compares them with ONNX Runtime."""
    answers = answers_to(requests, cpu)
    for request in requests:
        layer, low, high = request.cases[0].layer, *(bound.astype(np.float64) for bound in request.wanted)
        rounds = layer.is_int8 and layer.outputs[0].dtype == "int8"
        least = 1.0 if rounds else max(float(np.abs(high).max()), 1e-3)
        rounded = 0.5 + SLACK if layer.macs else 1.0 + SLACK  # numbers between two steps become either
        for case in request.cases:
            allowed = rounded if rounds else tolerance_of(case.routine)
            error = steps_beyond(_answer(answers, case), low, high) / least
            assert error < allowed, f"{case.layer.op} {case.call.kernel} {dict(case.parameters)}: {error:.1e}"


def check_cases(cases: Sequence[Case], cpu: str) -> None:
    """Runs cases of one layer on an emulated CPU and compares them with ONNX Runtime."""
    check_requests([request_of(cases)], cpu)


def _packed(case: Case, feeds: Sequence[np.ndarray]) -> bytes:
    """The calls of a case as kernel_calls.c reads them."""
    return b"".join(_packed_call(case, call, feeds) for call in case.calls)


def _written_bytes(case: Case, call: KernelCall) -> int:
    """Bytes of what a call writes."""
    (operand,) = call.writes
    if operand.kind == "workspace":
        return case.lowering.workspaces[operand.index]
    return case.layouts[1][0].bytes(case.layer.outputs[0])


def _packed_call(case: Case, call: KernelCall, feeds: Sequence[np.ndarray]) -> bytes:
    layouts, constants = case.layouts[0], case.lowering.constants
    inputs = {
        index: layout.pack(feed) for index, feed, layout in zip(case.layer.activations, feeds, layouts, strict=True)
    }
    name = call.kernel.encode()
    numbers = call.parameters
    parts = [_number(len(name)), name, _number(len(numbers)), *map(_number, numbers), _number(len(call.reads))]
    for operand in call.reads:
        array = b""
        if operand is not None and operand.kind in ("workspace", "output"):
            parts.append(_number(-1))
            continue
        if operand is not None:
            source = inputs[operand.index] if operand.kind == "input" else constants[operand.index]
            array = np.ascontiguousarray(source).tobytes()
        parts += [_number(len(array)), array]
    return b"".join((*parts, _number(_written_bytes(case, call))))


def _answer(answers: BytesIO, case: Case) -> np.ndarray:
    """The output of a case, row-major and logical; fails if its padding lanes are not finite."""
    layout, tensor = case.layouts[1][0], case.layer.outputs[0]
    content = b""
    for call in case.calls:
        (refused,) = struct.unpack("<q", answers.read(8))
        assert not refused, f"{call.kernel}: {answers.read(refused).decode()}"
        content = answers.read(_written_bytes(case, call))
    stored = np.frombuffer(content, layout.element(tensor).storage)
    assert np.isfinite(stored).all(), f"{case.call.kernel}: a number of the output is not finite"
    return layout.unpack(stored, tensor)


def _number(value: int) -> bytes:
    return struct.pack("<q", value)
