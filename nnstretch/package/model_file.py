"""The model file (.nnm): a plan for CPU queues and its weights, which the native engine runs without Python.

devices/engine/standalone/file.h and image.h define the numbers; docs/formats.md describes the format.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from nnstretch.devices.engine.build.instruction_sets import Isa
from nnstretch.errors import PackageError, UsageError
from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.scheduler.plan.schema import Plan, PlanBuffer, PlanStep, PlanTensor
from nnstretch.support.settings import atomic_write

MAGIC = struct.unpack("<q", b"NNSMODEL")[0]
VERSION = 1
_PAGE = 4096
_HEADER_WORDS = 8
_HASH_START, _HASH_FACTOR, _HASH_MASK = 0xCBF29CE484222325, 0x100000001B3, (1 << 64) - 1
_KERNEL_STEP = 0
_ABSENT = -1


def write_model_file(compiled: Compiled, name: str, isa: Isa, path: Path) -> None:
    """Writes a compiled model to `path`. The file appears complete or not at all.

    Args:
        compiled: a plan for the block of `isa` whose queues are all CPU cores.
        name: the model's name, which the executable prints.
        isa: the instruction set of the plan.
        path: the file.

    Raises:
        UsageError: the plan needs OpenCL or ONNX Runtime; names the layers.
        PackageError: the plan is for another vector width.
        FileError: the place is not writable or the disk is full.
    """
    constants = _constants(compiled)
    head = encode_head(compiled.plan, name, isa, constants.nbytes)
    with atomic_write(path) as file:
        file.write(head)
        file.write(constants.data)


def encode_head(plan: Plan, name: str, isa: Isa, constant_bytes: int) -> bytes:
    """The file up to the constants: header, 64-bit words, text and padding. Raises as `write_model_file` does."""
    check_standalone(plan)
    if plan.block != isa.block:
        raise PackageError(f"the plan is made for vectors of {plan.block} floats, {isa.name} has {isa.block}")
    kernels = sorted({step.kernel for step in plan.steps})
    texts = [isa.name, name, *(t.name for t in (*plan.inputs, *plan.outputs)), *kernels]
    text = b"".join(t.replace("\0", "").encode() + b"\0" for t in texts)
    text += bytes(-len(text) % 8)
    words = np.array([*_description(plan, constant_bytes, len(kernels)), *_program(plan, kernels)], "<i8")
    body = words.tobytes() + text
    start = -(-(8 * _HEADER_WORDS + len(body)) // _PAGE) * _PAGE
    numbers = (MAGIC, VERSION, start + constant_bytes, words.size, len(text), start, constant_bytes)
    header = struct.pack("<7q", *numbers)
    head = header + struct.pack("<Q", check(header + body)) + body
    return head + bytes(start - len(head))


def check(content: bytes) -> int:
    """FNV-1a over the 64-bit words of `content`, whose length is a multiple of 8."""
    value = _HASH_START
    for word in np.frombuffer(content, "<u8").tolist():
        value = (value ^ word) * _HASH_FACTOR & _HASH_MASK
    return value


def check_standalone(plan: Plan) -> None:
    """Checks that the engine can run a plan without other libraries.

    Raises:
        UsageError: it cannot; names the layers and the libraries that they need.
    """
    for kind, need in (("opencl", "OpenCL"), ("call", "ONNX Runtime or LiteRT")):
        layers = list(dict.fromkeys(step.layer for step in plan.steps if step.kind == kind))
        if layers:
            raise UsageError(
                f"a standalone model runs on CPU cores and native kernels alone, and {need} computes "
                f"{', '.join(layers)}; leave --standalone out, or compile for cpu a model without such layers"
            )
    for tensor in (*plan.inputs, *plan.outputs):
        if tensor.type.dtype != "float32":
            raise UsageError(
                f"{tensor.name} is {tensor.type.dtype}; a standalone model's inputs and outputs are float32"
            )


def _constants(compiled: Compiled) -> np.ndarray:
    """The constants of the host queues."""
    offset, size = compiled.plan.constant_ranges.get(0, (0, 0))
    return np.ascontiguousarray(compiled.constants[offset : offset + size])


def _description(plan: Plan, constant_bytes: int, n_kernels: int) -> Iterable[int]:
    yield from (plan.block, plan.host_bytes, constant_bytes, len(plan.inputs), len(plan.outputs))
    for tensor in (*plan.inputs, *plan.outputs):
        yield from (len(tensor.type.shape), *tensor.type.shape)
    yield len(plan.queues)
    for queue in plan.queues:
        cores = queue.cores or (0,)
        yield from (len(cores), *cores, len(queue.ratios), *queue.ratios)
    yield n_kernels


def _program(plan: Plan, kernels: Sequence[str]) -> Iterable[int]:
    """Buffers, steps in the order of the sub-graphs, and sub-graphs, as in a program image."""
    number = {name: i for i, name in enumerate(kernels)}
    yield from (len(plan.buffers), len(plan.steps), len(plan.subgraphs))
    for buffer in plan.buffers:
        yield from (_region(buffer, plan.inputs, plan.outputs), buffer.offset, buffer.bytes)
    for subgraph in plan.subgraphs:
        for step in plan.steps[subgraph.first : subgraph.first + subgraph.count]:
            yield from _step(step, number[step.kernel])
    first = 0
    for subgraph in plan.subgraphs:
        yield from (subgraph.queue, first, subgraph.count, len(subgraph.waits), *subgraph.waits, 0, 0)
        first += subgraph.count


def _region(buffer: PlanBuffer, inputs: Sequence[PlanTensor], outputs: Sequence[PlanTensor]) -> int:
    tensors = len(inputs) + len(outputs)
    return {
        "input": buffer.index,
        "output": len(inputs) + buffer.index,
        "host": tensors,
        "constant": tensors + 1,
    }[buffer.memory]


def _step(step: PlanStep, kernel: int) -> Iterable[int]:
    yield from (_KERNEL_STEP, kernel)
    reads = [_ABSENT if read is None else read for read in step.reads]
    for numbers in (reads, step.writes, step.arguments):
        yield from (len(numbers), *numbers)
