"""What a compiler for GPUs makes of the kernels: clang's target of AMD GPUs, from the `ziglang` package.

It shows how many registers a kernel takes where it has enough, and whether its inner loops keep numbers in memory where it has
as few as a phone's GPU. `python -m tests.kits.opencl.amdgpu` prints that beside the estimates, for all settings that phones
are offered.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from nnstretch.devices.base.routine import KernelCall
from nnstretch.devices.opencl.routines import OpenCLRoutine, Traits, routines
from nnstretch.devices.opencl.sources import kernel_source
from tests.kits.opencl.phones import LAYERS, PHONES

_PRELUDE = Path(__file__).with_name("amdgpu_prelude.cl")
_COMPILER = (sys.executable, "-m", "ziglang", "clang")
_OPTIONS = (
    *("--target=amdgcn-amd-amdhsa", "-mcpu=gfx1030", "-nogpulib", "-x", "cl", "-cl-std=CL1.2", "-cl-no-stdinc"),
    *("-include", str(_PRELUDE), "-O2", "-w", "-S", "-o", "-", "-"),
    *("-mllvm", "-disable-promote-alloca-to-lds"),  # arrays of an item stay its own
)
WAVES = {96: 10, 64: 16}
"""Registers of a work item -> waves that RDNA 2 keeps resident with them, from which its compiler derives its limit."""
_ENTRY = re.compile(r"- \.args:.*?(?=\n  - \.args|\namdhsa)", re.DOTALL)
_FIELD = re.compile(
    r"^\s+\.(name|vgpr_count|private_segment_fixed_size|group_segment_fixed_size):\s+(\S+)\s*$", re.MULTILINE
)
_FUNCTION = re.compile(r"^(\w+):\s+; @")
_BLOCK = re.compile(r"^(?:\.L(BB\w+):|; %bb\.)")


@dataclass(frozen=True)
class Compiled:
    """A kernel as the compiler made it.

    Attributes:
        registers: vector registers, each of 32 bits per work item.
        local_bytes: local memory of a group.
        private_bytes: memory of a work item: arrays, and registers that do not fit.
        inner_spills: instructions of innermost loops that keep registers in memory.
    """

    registers: int
    local_bytes: int
    private_bytes: int
    inner_spills: int


def compiled(source: str, defines: Sequence[tuple[str, int]], waves: int | None = None) -> Mapping[str, Compiled]:
    """The kernels of a file by name.

    Args:
        source: a file of devices/opencl/kernels.
        defines: macros.
        waves: that the GPU must be able to keep resident, which limits registers; None: no limit.
    """
    text = kernel_source(source)
    if waves:
        text = text.replace("\nkernel void", f"\n__attribute__((amdgpu_waves_per_eu({waves}))) kernel void")
    command = [*_COMPILER, *_OPTIONS, *(f"-D{name}={value}" for name, value in defines)]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    spills = _inner_spills(done.stdout)
    found = {}
    for entry in _ENTRY.finditer(done.stdout):
        said = dict(_FIELD.findall(entry.group(0)))
        found[said["name"]] = Compiled(
            int(said["vgpr_count"]),
            int(said["group_segment_fixed_size"]),
            int(said["private_segment_fixed_size"]),
            spills[said["name"]],
        )
    return found


def _inner_spills(assembly: str) -> Mapping[str, int]:
    """Spills and reloads in innermost loops per function, by the comments of the compiler."""
    lines = assembly.splitlines()
    found: dict[str, int] = {}
    name, label, inside = "", "", False
    for number, line in enumerate(lines):
        if start := _FUNCTION.match(line):
            name, inside = start.group(1), False
            found[name] = 0
        elif block := _BLOCK.match(line):
            about = " ".join((line, *_comments(lines, number + 1)))
            if "Inner Loop Header" in about:
                label, inside = block.group(1), True
            else:
                inside = inside and f"in Loop: Header={label} " in about
        elif inside and "Folded" in line:
            found[name] += 1
    return found


def _comments(lines: Sequence[str], first: int) -> Iterator[str]:
    """The lines from `first` on that are comments only."""
    for line in lines[first:]:
        if not line.lstrip().startswith(";"):
            return
        yield line


def settings(
    traits: Traits, dtype: str = "float32"
) -> Iterator[tuple[str, OpenCLRoutine, Mapping[str, int], KernelCall]]:
    """Every kernel call of all settings that a device is offered: layer, routine, parameters, call."""
    for layer_name, layer in LAYERS.items():
        for routine in routines(traits, (dtype,)):
            if routine.supports(layer):
                for parameters in routine.parameter_space(layer):
                    for call in routine.lower(layer, parameters).calls:
                        yield layer_name, routine, parameters, call


_Case = tuple[str, str, OpenCLRoutine, Mapping[str, int], KernelCall]
"""Device, layer, routine, parameters, call."""


def _row(case: _Case) -> str:
    device, layer, routine, parameters, call = case
    assert call.launch is not None
    limit = routine.traits.item_registers
    plain = compiled(call.launch.source, call.launch.defines)[call.kernel]
    limited = compiled(call.launch.source, call.launch.defines, WAVES[limit])[call.kernel]
    estimate = routine.demand(LAYERS[layer], parameters)
    sizes = " ".join(f"{name}={value}" for name, value in parameters.items())
    return (
        f"| {device} | {layer} | {routine.algorithm} {sizes} | {call.kernel} | {estimate.registers} of {limit} | "
        f"{plain.registers} | {limited.inner_spills} | {estimate.local_bytes} | {plain.local_bytes} | {plain.private_bytes} |\n"
    )


def main() -> int:
    """Prints a row of a table for every different program that phones are offered."""
    sys.stdout.write(
        "| device | layer | setting | kernel | registers, estimated | compiled without limit | spills in inner loops with the "
        "limit | local bytes, estimated | compiled | private bytes |\n|---|---|---|---|---|---|---|---|---|---|\n"
    )
    cases: dict[tuple[object, ...], _Case] = {}
    for device in ("adreno", "mali"):
        for layer, routine, parameters, call in settings(PHONES[device]):
            assert call.launch is not None
            cases.setdefault((device, call.kernel, call.launch.defines), (device, layer, routine, parameters, call))
    with ThreadPoolExecutor() as pool:
        for row in pool.map(_row, cases.values()):
            sys.stdout.write(row)
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
