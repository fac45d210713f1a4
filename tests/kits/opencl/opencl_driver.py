"""Runs a lowering through pyopencl alone, without the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nnstretch.devices.base.routine import Layout, Lowering, Operand
from nnstretch.devices.base.spec import ProcessorSpec
from nnstretch.devices.opencl.runtime import OpenCLRuntime
from nnstretch.graph.dtypes import DEFAULT_DTYPE
from nnstretch.graph.layer import Layer

if TYPE_CHECKING:
    import pyopencl

    from nnstretch.devices.opencl.processor import OpenCLProcessor

GUARD = 4096  # bytes before and after every tensor; 0 where the device itself reports invalid accesses
_GUARD_BITS = 0x7FC07FC1  # NaNs as one float and as two halves: what is read from a guard shows in the result


def quickly_compiling(spec: ProcessorSpec, dtypes: Sequence[str] = (DEFAULT_DTYPE,)) -> OpenCLProcessor:
    """A processor whose kernels are compiled without optimisation, which takes a quarter of the time."""
    from nnstretch.devices.opencl.processor import OpenCLProcessor

    made = OpenCLProcessor(spec, tuple(dtypes))
    build = made.runtime.programs._build

    def unoptimised(source: str, text: str, options: list[str]) -> pyopencl.Program:
        return build(source, text, [*options, "-cl-opt-disable"])

    vars(made.runtime.programs)["_build"] = unoptimised
    return made


@dataclass(frozen=True)
class _Guarded:
    """A tensor of `size` bytes in a buffer between two guards, rounded up to 4-byte words."""

    buffer: pyopencl.Buffer
    size: int
    dtype: np.dtype[Any]

    def contents(self, queue: pyopencl.CommandQueue) -> np.ndarray:
        """The tensor's numbers, flat; the guards must be untouched."""
        import pyopencl as cl

        untouched = _nothing(self.size)
        whole = np.empty_like(untouched)
        cl.enqueue_copy(queue, whole, self.buffer)
        end = GUARD + self.size
        assert np.array_equal(whole[:GUARD], untouched[:GUARD]), "a kernel wrote before its tensor"
        assert np.array_equal(whole[end:], untouched[end:]), "a kernel wrote after its tensor"
        return whole[GUARD:end].view(self.dtype)


def _nothing(size: int) -> np.ndarray:
    """An unwritten tensor of `size` bytes with its guards."""
    return np.full(-(-size // 4) + 2 * GUARD // 4, _GUARD_BITS, np.uint32).view(np.uint8)


def _guarded(runtime: OpenCLRuntime, values: np.ndarray | None, size: int, dtype: str = "float32") -> _Guarded:
    """`values`, or `size` bytes of NaN of `dtype`."""
    import pyopencl as cl

    whole = _nothing(size if values is None else values.nbytes)
    if values is not None:
        size, dtype = values.nbytes, str(values.dtype)
        whole[GUARD : GUARD + size] = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    return _Guarded(cl.Buffer(runtime.context, flags, hostbuf=whole), size, np.dtype(dtype))


@dataclass(frozen=True)
class _Prepared:
    """A lowering with memory for all its operands and kernels ready to be enqueued."""

    operands: dict[Operand, _Guarded]
    sources: dict[Operand, np.ndarray]
    launches: list[tuple[pyopencl.Kernel, tuple[int, ...], tuple[int, ...] | None]]
    images: list[object]  # which kernels do not keep

    def enqueue(self, queue: pyopencl.CommandQueue) -> None:
        import pyopencl as cl

        for kernel, global_size, local_size in self.launches:
            cl.enqueue_nd_range_kernel(queue, kernel, global_size, local_size)


def _prepare(
    runtime: OpenCLRuntime,
    lowering: Lowering,
    layer: Layer,
    inputs: Sequence[np.ndarray],
    layouts_in: Sequence[Layout],
    layouts_out: Sequence[Layout],
) -> _Prepared:
    sources: dict[Operand, np.ndarray] = {}
    for index, values, layout in zip(layer.activations, inputs, layouts_in, strict=True):
        sources[Operand("input", index)] = layout.pack(
            np.asarray(values, layer.type_of(index).element.storage), tensor=layer.type_of(index)
        )
    for index, constant in enumerate(lowering.constants):
        sources[Operand("constant", index)] = np.asarray(constant)
    operands = {operand: _guarded(runtime, values, values.nbytes) for operand, values in sources.items()}
    for index, (kind, layout) in enumerate(zip(layer.outputs, layouts_out, strict=True)):
        operands[Operand("output", index)] = _guarded(runtime, None, layout.bytes(kind), layout.dtype or kind.dtype)
    for index, size in enumerate(lowering.workspaces):
        operands[Operand("workspace", index)] = _guarded(runtime, None, -(-size // 4) * 4)

    launches: list[tuple[pyopencl.Kernel, tuple[int, ...], tuple[int, ...] | None]] = []
    images: list[object] = []
    for call in lowering.calls:
        assert call.launch is not None
        kernel = runtime.kernel(call.launch, call.kernel)
        used = [operands[operand] if operand is not None else None for operand in (*call.reads, *call.writes)]
        memory = runtime.memory_arguments(
            call.launch, [(guarded.buffer, GUARD, guarded.size) if guarded else None for guarded in used], images
        )
        runtime.set_arguments(kernel, memory, call.parameters)
        launches.append((kernel, call.launch.global_size, call.launch.local_size))
    return _Prepared(operands, sources, launches, images)


def run_lowering(
    runtime: OpenCLRuntime,
    lowering: Lowering,
    layer: Layer,
    inputs: Sequence[np.ndarray],
    layouts_in: Sequence[Layout],
    layouts_out: Sequence[Layout],
) -> list[np.ndarray]:
    """Outputs of `layer`, row-major and logical, as the lowering's kernels compute them.

    Lanes that pad the channels of inputs have large values, and guards around every tensor are NaN; neither may affect the
    outputs. Lanes that pad the channels of outputs must be finite.

    Args:
        runtime: the device.
        lowering: the layer as a routine lowers it.
        layer: the layer, for shapes.
        inputs: logical arrays in the order of `layer.activations`.
        layouts_in: layouts of the inputs.
        layouts_out: layouts of the outputs.

    Raises:
        AssertionError: a kernel wrote outside its outputs or left a number of them unwritten.
        BuildError: a kernel does not compile.
    """
    runtime.activate()
    prepared = _prepare(runtime, lowering, layer, inputs, layouts_in, layouts_out)
    prepared.enqueue(runtime.queue)
    runtime.queue.finish()
    for operand, values in prepared.sources.items():
        found = prepared.operands[operand].contents(runtime.queue)
        same = np.array_equal(found.view(np.uint8), np.ascontiguousarray(values).reshape(-1).view(np.uint8))
        assert same, f"a kernel changed {operand}, which it may only read"
    outputs: list[np.ndarray] = []
    for index, (kind, layout) in enumerate(zip(layer.outputs, layouts_out, strict=True)):
        stored = prepared.operands[Operand("output", index)].contents(runtime.queue)
        assert np.isfinite(stored).all(), f"output {index} holds a number that is not finite"
        outputs.append(layout.unpack(stored, kind))
    return outputs
