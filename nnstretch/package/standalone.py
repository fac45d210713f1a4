"""Standalone models: a folder that runs without Python or any framework (`nnstretch compile --standalone`).

| file | contents |
|---|---|
| `NAME.nnm` | the model file: a plan for CPU, OpenCL and LiteRT queues and its weights |
| `NAME` | an executable that runs it |
| `libnnstretch.so` | a library that runs it in other programs |
| `nnstretch.h` | the library's interface |
| `example.c` | a program that uses the library |
| `nns-bench` | the runner, if asked for: times model files |
| `aar` | for Android: the contents of an archive (AAR): `jni/ABI/libnnstretch.so`, the header, the manifest |

docs/formats.md describes the model file; devices/engine/standalone/model_file.h defines its numbers.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path

import numpy as np

from nnstretch.devices.engine.build.instruction_sets import BuildTarget, Isa
from nnstretch.devices.engine.build.standalone import (
    EXAMPLE,
    HEADER,
    LIBRARY,
    RUNNER,
    android_files,
    build_binaries,
    build_runner,
    header,
)
from nnstretch.errors import FileError, PackageError, UsageError
from nnstretch.graph.dtypes import DEFAULT_DTYPE
from nnstretch.package.standalone_calls import PlanCalls
from nnstretch.package.standalone_devices import DeviceName, PlanDevices
from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.scheduler.plan.schema import Plan, PlanStep
from nnstretch.support.settings import atomic_write

SUFFIX = ".nnm"
ARCHIVE = "aar"
"""The folder with the contents of an Android archive."""


def standalone_files(name: str, folder: Path) -> Mapping[str, Path]:
    """The files of a standalone folder: `model`, `executable`, `library`, `header`, `example`.

    Raises:
        UsageError: the name is not valid as a file name.
    """
    if not re.fullmatch(r"\w[\w.+-]*", name) or name in (LIBRARY, HEADER, EXAMPLE.name, RUNNER):
        raise UsageError(f"a standalone model cannot be called {name!r}; name the folder or the model otherwise")
    return {
        "model": folder / f"{name}{SUFFIX}",
        "executable": folder / name,
        "library": folder / LIBRARY,
        "header": folder / HEADER,
        "example": folder / EXAMPLE.name,
    }


def write_standalone(
    compiled: Compiled,
    name: str,
    target: BuildTarget,
    folder: Path,
    *,
    runner: bool = False,
    devices: Sequence[DeviceName] | None = None,
) -> Mapping[str, Path]:
    """Writes a model and its binaries to an existing folder. Each file appears complete or not at all.

    Args:
        compiled: a plan made for `target.isa` whose queues are CPU cores, OpenCL devices and LiteRT.
        name: of the model and of the executable.
        target: of the binaries.
        folder: the destination; existing files of the same names are replaced.
        runner: whether the runner is written, too.
        devices: as for `write_model_file`.

    Returns:
        The files, with the keys of `standalone_files`, and `runner`; those of `aar` by their paths in it.

    Raises:
        UsageError: the plan needs ONNX Runtime, needs OpenCL or LiteRT in a static executable, or the name is not valid as
            a file name.
        BuildError: the engine cannot be built for the target.
        FileError: the folder is not writable or the disk is full.
    """
    files = dict(standalone_files(name, folder))
    check_standalone(compiled.plan)
    if target.system == "linux-musl" and (library := _opened_library(compiled.plan)):
        raise UsageError(
            f"an executable for {target} is linked statically and cannot open {library}; compile for "
            f"{target.isa.name}-linux-gnu, or for processors of kind cpu alone"
        )
    binaries = build_binaries(target)
    write_model_file(compiled, name, target.isa, files["model"], devices)
    contents = {
        "executable": binaries.executable.read_bytes(),
        "library": binaries.library.read_bytes(),
        "header": header().encode(),
        "example": EXAMPLE.read_bytes(),
    }
    if runner:
        files["runner"] = folder / RUNNER
        contents["runner"] = build_runner(target).read_bytes()
    if target.system == "android":
        for place, content in android_files(target).items():
            files[place] = folder / ARCHIVE / place
            contents[place] = content
            try:
                files[place].parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise FileError(f"cannot make {files[place].parent}: {error.strerror}") from error
    for what, content in contents.items():
        with atomic_write(files[what]) as file:
            file.write(content)
    for what in files.keys() & {"executable", "runner"}:
        try:
            files[what].chmod(0o755)
        except OSError as error:
            raise FileError(f"cannot make {files[what]} executable: {error.strerror}") from error
    return files


def _opened_library(plan: Plan) -> str:
    """A library that executables open to run a plan; empty if there is none."""
    if PlanDevices(plan).queues:
        return "OpenCL"
    return "LiteRT" if PlanCalls(plan, {}).queues else ""


MAGIC = struct.unpack("<q", b"NNSMODEL")[0]
FIRST_FORMAT, LAST_FORMAT = 2, 17
HAS_DEVICES, HAS_TYPES, HAS_CALLS, HAS_IMAGES = 1, 2, 4, 8
"""What a format has beyond the first one, whose number these are added to: OpenCL queues; types of inputs and outputs, all
float32 otherwise; LiteRT queues; OpenCL kernels that read images. Files have no more than they need, so that older libraries
read them, too."""
_PAGE = 4096
_HEADER_WORDS = 8
_CHECK_AT = 56
_SUMS = 512
_CHECK_TURN, _CHECK_FACTOR, _WORD_MASK = 27, 0x9E3779B97F4A7C15, (1 << 64) - 1
_KERNEL_STEP, _LAUNCH_STEP, _CALL_STEP = 0, 1, 2
_ABSENT = -1


def write_model_file(
    compiled: Compiled, name: str, isa: Isa, path: Path, devices: Sequence[DeviceName] | None = None
) -> None:
    """Writes a compiled model to `path`. The file appears complete or not at all.

    Args:
        compiled: a plan for the block of `isa` whose queues are CPU cores, OpenCL devices and LiteRT.
        name: the model's name, which the executable prints.
        isa: the instruction set of the plan.
        path: the file.
        devices: OpenCL devices of the machine that runs the plan, in the order in which `opencl:INDEX` counts; None: those of
            this machine.

    Raises:
        UsageError: the plan has calls that a model file cannot hold, or no kernel has the type of an input or output; names
            these.
        PackageError: the plan is for another vector width, or lacks a model.
        FileError: the place is not writable or the disk is full.
    """
    check_standalone(compiled.plan)
    constants = _file_constants(compiled)
    head = bytearray(encode_head(compiled, name, isa, constants.nbytes, devices))
    struct.pack_into("<Q", head, _CHECK_AT, check(head, constants.data))
    with atomic_write(path) as file:
        file.write(head)
        file.write(constants.data)


def format_has(number: int, what: int) -> bool:
    """Whether a format of model files has `HAS_DEVICES`, `HAS_TYPES`, `HAS_CALLS` or `HAS_IMAGES`."""
    return FIRST_FORMAT <= number <= LAST_FORMAT and bool(number - FIRST_FORMAT & what)


def step_order(plan: Plan) -> list[int]:
    """The numbers of a plan's steps in the order of its model file: that of the sub-graphs."""
    return [step for part in plan.subgraphs for step in range(part.first, part.first + part.count)]


def _file_constants(compiled: Compiled) -> np.ndarray:
    """The constants of host queues, then those of every device, then the TFLite files."""
    devices, calls = PlanDevices(compiled.plan), PlanCalls(compiled.plan, compiled.models)
    offset, size = compiled.plan.constant_ranges.get(0, (0, 0))
    host = np.ascontiguousarray(compiled.constants[offset : offset + size])
    if not devices.queues and not calls.queues:
        return host
    places = devices.constant_places(size)
    *call_places, end = calls.places(places.pop())
    constants = np.zeros(end, np.uint8)
    constants[:size] = host
    for place, (start, size_here) in zip(places, devices.constant_ranges, strict=True):
        constants[place : place + size_here] = compiled.constants[start : start + size_here]
    for place, content in zip(call_places, calls.contents, strict=True):
        constants[place : place + len(content)] = np.frombuffer(content, np.uint8)
    return constants


def encode_head(
    compiled: Compiled, name: str, isa: Isa, constant_bytes: int, there: Sequence[DeviceName] | None = None
) -> bytes:
    """The file up to the constants: header with a check of 0, 64-bit words, text and padding.

    Args:
        compiled: has passed `check_standalone`.
        name: of the model.
        isa: the instruction set of the plan.
        constant_bytes: size of the constants.
        there: as `devices` of `write_model_file`.

    Raises:
        PackageError: the plan is for another vector width.
    """
    plan = compiled.plan
    if plan.block != isa.block:
        raise PackageError(f"the plan is made for vectors of {plan.block} floats, {isa.name} has {isa.block}")
    devices, calls = PlanDevices(plan, there), PlanCalls(plan, compiled.models)
    host_bytes = plan.constant_ranges.get(0, (0, 0))[1]
    kernels = sorted({step.kernel for step in plan.steps if step.kind == "kernel"})
    texts = [isa.name, name, *(t.name for t in (*plan.inputs, *plan.outputs)), *kernels]
    more_words: list[int] = []
    if devices.queues:
        more_words += devices.words(host_bytes)
        texts += devices.texts()
    if calls.queues:
        more_words += calls.words(devices.constant_places(host_bytes)[-1])
        texts += calls.texts()
    text = b"".join(t.replace("\0", "").encode() + b"\0" for t in texts)
    text += bytes(-len(text) % 8)
    number = _format_of(plan, devices, calls)
    description = _description(plan, number, host_bytes, len(kernels))
    words = np.array([*description, *more_words, *_program(plan, devices, kernels)], "<i8")
    body = words.tobytes() + text
    start = -(-(8 * _HEADER_WORDS + len(body)) // _PAGE) * _PAGE
    numbers = (MAGIC, number, start + constant_bytes, words.size, len(text), start, constant_bytes)
    head = struct.pack("<8q", *numbers, 0) + body
    return head + bytes(start - len(head))


def check(head: bytes | bytearray, constants: bytes | memoryview) -> int:
    """The check of a model file: devices/engine/standalone/checksum.h.

    Args:
        head: the file up to the constants, whole pages; the check in it must be 0.
        constants: the rest of the file.
    """
    sums = np.arange(1, _SUMS + 1, dtype=np.uint64) * np.uint64(_CHECK_FACTOR)
    last = len(constants) // _PAGE * _PAGE
    for part in (head, constants[:last], bytes(constants[last:]).ljust(_PAGE, b"\0") if last < len(constants) else b""):
        for page in np.frombuffer(part, "<u8").reshape(-1, _SUMS):
            sums ^= page
            sums = (sums << np.uint64(_CHECK_TURN) | sums >> np.uint64(64 - _CHECK_TURN)) * np.uint64(_CHECK_FACTOR)
    value = len(head) + len(constants)
    for one in sums.tolist():
        value ^= one
        value = ((value << _CHECK_TURN | value >> (64 - _CHECK_TURN)) & _WORD_MASK) * _CHECK_FACTOR & _WORD_MASK
    return value


def check_standalone(plan: Plan) -> None:
    """Checks that the engine can run a plan without other libraries than OpenCL and LiteRT.

    Raises:
        UsageError: it cannot; names the layers, or an input or output with its type.
    """
    refused = PlanCalls(plan, {}).refused()
    if refused:
        layers = list(dict.fromkeys(step.layer for step in refused))
        raise UsageError(
            f"a standalone model runs native kernels, and calls of LiteRT processors without a delegate's library; "
            f"{refused[0].routine} computes {', '.join(layers)}; leave --standalone out, or compile for other processors"
        )
    for tensor in (*plan.inputs, *plan.outputs):
        if not tensor.type.element.code:
            raise UsageError(
                f"{tensor.name} is {tensor.type.dtype}, which native kernels do not have; leave --standalone out, or give the "
                "network inputs and outputs of another type"
            )


def _format_of(plan: Plan, devices: PlanDevices, calls: PlanCalls) -> int:
    """The lowest format that can hold a plan."""
    has_types = any(tensor.type.dtype != DEFAULT_DTYPE for tensor in (*plan.inputs, *plan.outputs))
    has = HAS_DEVICES * bool(devices.queues) + HAS_TYPES * has_types + HAS_CALLS * bool(calls.queues)
    return FIRST_FORMAT + has + HAS_IMAGES * devices.reads_images


def _description(plan: Plan, number: int, host_bytes: int, n_kernels: int) -> Iterable[int]:
    yield from (plan.block, plan.host_bytes, host_bytes, len(plan.inputs), len(plan.outputs))
    has_types = format_has(number, HAS_TYPES)
    for tensor in (*plan.inputs, *plan.outputs):
        if has_types:
            yield tensor.type.element.code
        yield from (len(tensor.type.shape), *tensor.type.shape)
    yield len(plan.queues)
    for queue in plan.queues:
        cores = queue.cores or (() if format_has(number, HAS_DEVICES | HAS_CALLS) else (0,))
        yield from (len(cores), *cores, len(queue.ratios), *queue.ratios)
    yield n_kernels


def _program(plan: Plan, devices: PlanDevices, kernels: Sequence[str]) -> Iterable[int]:
    """Buffers, steps in the order of the sub-graphs, and sub-graphs, as in a program image."""
    kernel_numbers = {name: i for i, name in enumerate(kernels)}
    regions = _regions(plan, devices)
    shown = [i for i, buffer in enumerate(plan.buffers) if (buffer.memory, buffer.index) in regions]
    numbers = {buffer: i for i, buffer in enumerate(shown)}
    yield from (len(shown), len(plan.steps), len(plan.subgraphs))
    for i in shown:
        buffer = plan.buffers[i]
        yield from (regions[buffer.memory, buffer.index], buffer.offset, buffer.bytes)
    launches, calls = count(), count()
    for step in (plan.steps[number] for number in step_order(plan)):
        if step.kind == "opencl":
            yield from (_LAUNCH_STEP, next(launches), 0, 0, 0)
        elif step.kind == "call":
            yield from _step(step, _CALL_STEP, next(calls), numbers)
        else:
            yield from _step(step, _KERNEL_STEP, kernel_numbers[step.kernel], numbers)
    first = 0
    for subgraph in plan.subgraphs:
        yield from (subgraph.queue, first, subgraph.count, len(subgraph.waits), *subgraph.waits)
        for slots in (subgraph.acquires, subgraph.releases):
            yield from (len(slots), *(regions["shared", slot] for slot in slots))
        first += subgraph.count


def _regions(plan: Plan, devices: PlanDevices) -> dict[tuple[str, int], int]:
    """The numbers of the regions, by the memory and index of buffers in them. Memory of devices alone is none."""
    tensors = len(plan.inputs) + len(plan.outputs)
    inputs = {("input", i): i for i in range(len(plan.inputs))}
    outputs = {("output", i): len(plan.inputs) + i for i in range(len(plan.outputs))}
    slots = {("shared", slot): tensors + 2 + number for slot, number in devices.slots.items()}
    return {**inputs, **outputs, ("host", 0): tensors, ("constant", 0): tensors + 1, **slots}


def _step(step: PlanStep, kind: int, number: int, numbers: Mapping[int, int]) -> Iterable[int]:
    yield from (kind, number)
    reads = [_ABSENT if read is None else numbers[read] for read in step.reads]
    writes = [numbers[write] for write in step.writes]
    for words in (reads, writes, step.arguments):
        yield from (len(words), *words)
