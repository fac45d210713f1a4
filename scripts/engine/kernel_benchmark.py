"""Times the engine's kernels on typical layers, one thread each: GFLOP/s or GB/s, and the share of the measured peak.

The kernels come from `devices/engine/kernels/manifest.h`. A kernel is timed on the first of the typical layers that a
routine lowers to one call of it. GFLOP/s count the multiply-adds of a direct computation, also for algorithms that need
fewer. GB/s count every operand once; their peak is a copy of one megabyte. The peak of int8 is four times that of float32, and
those of bfloat16 and float16 twice: instructions have four or two products in the place of one on every CPU that has them.

    .venv/bin/python scripts/engine/kernel_benchmark.py [KERNEL…] [--core 0] [--milliseconds 50] [--json]
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from nnstretch.cli.console import exit_status, print_answer, script_parser
from nnstretch.devices.base.routine import REORDER, KernelCall, Layout, Lowering, Operand, reorder_layer
from nnstretch.devices.cpu.manifest import kernels
from nnstretch.devices.cpu.routines import REORDER_ROUTINE, native_routines
from nnstretch.devices.engine.binding.image import (
    Buffer,
    Queue,
    QueueKind,
    Region,
    RegionKind,
    Step,
    StepKind,
    SubGraph,
)
from nnstretch.devices.engine.binding.library import engine
from nnstretch.devices.engine.binding.program import Program, aligned_array
from nnstretch.devices.engine.build.instruction_sets import cpu_features, local_isa
from nnstretch.errors import UsageError
from nnstretch.graph.dtypes import BFLOAT16, FLOAT16, QuantizationParameters
from nnstretch.graph.layer import NARROW_WEIGHTS, Attribute, Layer, TensorType, fused_layer, fused_pair

Shape = tuple[int, ...]
_COPY_BYTES = 1 << 20
_WIDE = 100
"""A weight of layers that kernels for narrow weights do not compute."""
_INT8_PRODUCTS, _HALF_PRODUCTS = 4, 2
"""Products of int8, and of bfloat16 or float16, that an instruction has where one of float32 has one."""


def convolution(channels: int, outputs: int, size: int, kernel: Shape, groups: int = 1, stride: int = 1) -> Layer:
    """A convolution whose padding keeps the extents, or halves them with stride 2."""
    weights = np.full((outputs, channels // groups, *kernel), 0.01, np.float32)
    shapes = ((1, channels, size, size), weights.shape, (outputs,), (1, outputs, size // stride, size // stride))
    x, w, bias, y = map(TensorType, shapes)
    pads = tuple(extent // 2 for extent in kernel) * 2
    attributes: dict[str, Attribute] = {
        "strides": (stride, stride),
        "pads": pads,
        "dilations": (1, 1),
        "groups": groups,
    }
    constants = {1: weights, 2: np.zeros(outputs, np.float32)}
    return _layer("Conv", (x, w, bias), y, attributes, constants)


def _layer(
    op: str,
    inputs: Sequence[TensorType],
    output: TensorType,
    attributes: Mapping[str, Attribute] = MappingProxyType({}),
    constants: Mapping[int, np.ndarray] = MappingProxyType({}),
) -> Layer:
    frozen = MappingProxyType(dict(attributes)), MappingProxyType(dict(constants))
    return Layer(op.lower(), op, tuple(inputs), (output,), frozen[0], constants=frozen[1])


def typical_layers() -> Iterator[Layer]:
    """Layers of the sizes that networks for images have; together they use every kernel."""
    for channels, size in ((64, 56), (256, 14), (72, 28), (40, 28), (24, 28), (56, 28), (8, 56)):
        yield convolution(channels, channels, size, (3, 3))
        yield convolution(channels, channels, size, (1, 1))
    yield convolution(96, 96, 28, (1, 1))
    yield convolution(3, 64, 224, (7, 7), stride=2)
    yield convolution(3, 16, 224, (3, 3), stride=2)
    for channels, extent in ((64, 5), (64, 7), (24, 5), (24, 7)):
        yield convolution(channels, channels, 28, (extent, extent))
    for group in (1, 2, 4, 8):
        yield convolution(128, 128, 28, (3, 3), groups=128 // group)
    yield convolution(64, 128, 28, (3, 3), groups=64)
    for channels in (16, 48, 64, 72, 96):
        depthwise = convolution(4 * channels, 4 * channels, 28, (3, 3), groups=4 * channels)
        expand, project = (
            convolution(channels, 4 * channels, 28, (1, 1)),
            convolution(4 * channels, channels, 28, (1, 1)),
        )
        yield fused_pair(expand, depthwise)
        yield fused_pair(depthwise, project)
        yield fused_layer((expand, depthwise, project), ((0,), (-1,), (-2,)))
    weights = {1: np.full((1000, 2048), 0.01, np.float32), 2: np.zeros(1000, np.float32)}
    yield _layer(
        "Dense", [TensorType(s) for s in ((1, 2048), (1000, 2048), (1000,))], TensorType((1, 1000)), {}, weights
    )
    of_tokens = {1: np.full((768, 192), 0.01, np.float32), 2: np.zeros(768, np.float32)}
    yield _layer(
        "Dense", [TensorType(s) for s in ((197, 192), (768, 192), (768,))], TensorType((197, 768)), {}, of_tokens
    )
    tokens = TensorType((1, 192, 1, 197))
    yield _layer("Attention", (tokens,) * 3, tokens, {"heads": 3, "groups": 3, "scale": 0.125})
    left, right = TensorType((8, 196, 64)), TensorType((8, 64, 196))
    yield _layer("MatMul", (left, right), TensorType((8, 196, 196)), {"transpose_x": 0, "transpose_y": 0})
    yield from _recurrent_layers()
    yield from _int8_layers(_WIDE)
    yield from _int8_layers(NARROW_WEIGHTS)
    yield from _memory_bound_layers()


def _recurrent_layers() -> Iterator[Layer]:
    """A recogniser of text, and a block of Sequencer2D."""
    for cell, gates, height, width, hidden in (
        ("lstm", 4, 32, 1, 256),
        ("lstm", 4, 16, 16, 96),
        ("gru", 3, 16, 16, 96),
        ("gru_reset_after", 3, 16, 16, 96),
    ):
        weights = {1: np.full((2, gates * hidden, hidden), 0.01, np.float32)}
        x, result = TensorType((1, 2 * gates * hidden, height, width)), TensorType((1, 2 * hidden, height, width))
        attributes: dict[str, Attribute] = {"cell": cell, "axis": 2, "direction": "bidirectional"}
        yield _layer("Recurrence", (x, TensorType(weights[1].shape)), result, attributes, weights)


def _int8_layers(weight: int) -> Iterator[Layer]:
    """Layers of int8 whose weights are all this one."""
    for channels, size in ((64, 56), (256, 14), (48, 28), (24, 28), (16, 56)):
        yield _quantized(convolution(channels, channels, size, (3, 3)), weight)
        yield _quantized(convolution(channels, channels, size, (1, 1)), weight)
    for outputs, extent in ((64, 7), (32, 3), (16, 3)):
        yield _quantized(convolution(3, outputs, 224, (extent, extent), stride=2), weight)
    yield _quantized(convolution(120, 120, 28, (3, 3), groups=5), weight)
    yield _quantized(convolution(128, 128, 28, (3, 3), groups=128), weight)
    types = [TensorType(shape) for shape in ((1, 2048), (1000, 2048), (1000,))]
    weights = {1: np.zeros((1000, 2048), np.float32), 2: np.zeros(1000, np.float32)}
    yield _quantized(_layer("Dense", types, TensorType((1, 1000)), {}, weights), weight)


def _quantized(layer: Layer, number: int) -> Layer:
    """A layer with weights and bias as one of int8, with this number as all weights."""
    x, weight, bias = map(layer.type_of, range(3))
    scales = TensorType(bias.shape)
    inputs = (_int8(x), replace(weight, dtype="int8"), replace(bias, dtype="int32"), None, scales)
    equal, zeros = np.full(weight.shape, number, np.int8), np.zeros(bias.shape, np.int32)
    constants: dict[int, np.ndarray] = {1: equal, 2: zeros, 4: np.ones(scales.shape, np.float32)}
    return replace(layer, inputs=inputs, outputs=(_int8(layer.outputs[0]),), constants=MappingProxyType(constants))


def _int8(tensor: TensorType) -> TensorType:
    return TensorType(tensor.shape, "int8", QuantizationParameters(1.0))


def _memory_bound_layers() -> Iterator[Layer]:
    x, half = TensorType((1, 64, 56, 56)), TensorType((1, 64, 28, 28))
    window: dict[str, Attribute] = {"kernel": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}
    yield _layer("MaxPool", (x,), half, window)
    yield _layer("GlobalPool", (x,), TensorType((1, 64, 1, 1)), {"mode": "average"})
    yield _layer("Activation", (x,), x)
    yield _layer("Add", (x, x), x)
    per_channel = np.ones(64, np.float32)
    yield _layer("Affine", (x, *[TensorType((64,))] * 2), x, {}, {1: per_channel, 2: per_channel})
    yield _layer("PRelu", (x, TensorType((64,))), x, {}, {1: per_channel})
    yield _layer("Concat", (x, x), TensorType((1, 128, 56, 56)), {"axis": 1})
    narrow = TensorType((1, 44, 56, 56))
    yield _layer("Concat", (narrow, narrow), TensorType((1, 88, 56, 56)), {"axis": 1})
    yield _layer("Softmax", (TensorType((64, 1000)),), TensorType((64, 1000)), {"axis": 1})
    yield _layer("Reduce", (x,), TensorType((1, 1, 56, 56)), {"axes": (1,), "mode": "mean"})
    padded = TensorType((1, 64, 58, 58))
    yield _layer("Pad", (x,), padded, {"pads": (0, 0, 1, 1, 0, 0, 1, 1), "mode": "constant", "value": 0.0})
    yield _layer("LayerNorm", (x,), x, {"axis": 1, "epsilon": 1e-6})
    yield _layer("GroupNorm", (x,), x, {"groups": 8, "epsilon": 1e-5})
    resize: dict[str, Attribute] = {"coordinates": "asymmetric", "nearest": "floor", "scales": (2.0, 2.0)}
    for mode in ("nearest", "linear"):
        yield _layer("Resize", (half,), x, {**resize, "mode": mode})
    yield _layer("Resize", (half,), x, {**resize, "mode": "cubic", "cubic_coefficient": -0.75, "exclude_outside": 0})
    yield _layer("Transpose", (x,), TensorType((1, 56, 56, 64)), {"perm": (0, 2, 3, 1)})
    yield _layer("Transpose", (x,), TensorType((1, 56, 64, 56)), {"perm": (0, 2, 1, 3)})
    for source in (Layout(0), Layout(local_isa().block)):
        yield reorder_layer(x, source, Layout(0))
    for name in ("float16", "bfloat16", "uint8", "int32", "int64"):
        yield _layer("Cast", (TensorType(x.shape, name),), x)
    for name in ("float16", "bfloat16", "uint8"):
        yield _layer("Cast", (x,), TensorType(x.shape, name))
    yield from _int8_memory_bound_layers()


def _int8_memory_bound_layers() -> Iterator[Layer]:
    near, far = QuantizationParameters(0.05, 3), QuantizationParameters(0.04, -2)
    x, half = (TensorType((1, 64, size, size), "int8", near) for size in (56, 28))
    other, wide = (TensorType((1, channels, 56, 56), "int8", far) for channels in (64, 128))
    window: dict[str, Attribute] = {"kernel": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}
    yield _layer("Quantize", (TensorType(x.shape),), x)
    image = (1, 3, 224, 224)
    yield _layer("Quantize", (TensorType(image),), TensorType(image, "int8", near))
    yield _layer("Dequantize", (x,), TensorType(x.shape))
    yield _layer("Quantize", (x,), other)
    yield _layer("Activation", (x,), other)
    yield _layer("Add", (x, other), other)
    yield _layer("MaxPool", (x,), half, window)
    yield _layer("GlobalPool", (x,), TensorType((1, 64, 1, 1), "int8", far), {"mode": "average"})
    yield _layer("Concat", (x, other), wide, {"axis": 1})
    narrow = TensorType((1, 44, 56, 56), "int8", near)
    yield _layer("Concat", (narrow, narrow), TensorType((1, 88, 56, 56), "int8", near), {"axis": 1})
    resize: dict[str, Attribute] = {"coordinates": "asymmetric", "nearest": "floor", "scales": (2.0, 2.0)}
    yield _layer("Resize", (half,), x, {**resize, "mode": "nearest"})
    yield reorder_layer(x, Layout(local_isa().block), Layout(0))


@dataclass(frozen=True)
class KernelUse:
    """A layer that one call of a kernel computes, or a part of it that passes results on in a workspace.

    Attributes:
        layer: the layer.
        lowering: the calls of the layer, and their constants.
        call: one of them.
        sizes: bytes of the layer's run-time inputs by index, and of its output.
    """

    layer: Layer
    lowering: Lowering
    call: KernelCall
    sizes: tuple[Mapping[int, int], int]

    def bytes_of(self, operand: Operand) -> int:
        """Bytes of an operand of the call."""
        if operand.kind == "constant":
            return self.lowering.constants[operand.index].nbytes
        if operand.kind == "workspace":
            return self.lowering.workspaces[operand.index]
        return self.sizes[0][operand.index] if operand.kind == "input" else self.sizes[1]


def typical_uses(wanted: set[str]) -> dict[str, KernelUse]:
    """For each of the kernels the first typical layer that it computes by itself."""
    found: dict[str, KernelUse] = {}
    every = native_routines(local_isa(), features=cpu_features(), products=(BFLOAT16, FLOAT16))
    for layer in typical_layers():
        routines = (REORDER_ROUTINE,) if layer.op == REORDER else every
        for routine in routines:
            if not routine.supports(layer):
                continue
            for parameters in (
                *routine.parameter_space(layer),
                *routine.search_space(layer)[:: 1 if layer.macs else 9],
            ):
                if wanted <= found.keys():
                    return found
                lowering = routine.lower(layer, parameters)
                new = [c for c in lowering.calls if c.kernel in wanted - found.keys()]
                if not new or (len(lowering.calls) > 1 and not lowering.workspaces):
                    continue
                inputs, outputs = routine.layouts(layer, parameters)
                sizes = {i: layout.bytes(layer.type_of(i)) for i, layout in zip(layer.activations, inputs, strict=True)}
                for call in new:
                    found[call.kernel] = KernelUse(layer, lowering, call, (sizes, outputs[0].bytes(layer.outputs[0])))
    return found


def nanoseconds(use: KernelUse, core: int, milliseconds: float) -> int:
    """Shortest time of a kernel on a layer with one thread."""
    operands = list(dict.fromkeys([*filter(None, use.call.reads), *use.call.writes]))
    memory = [aligned_array(use.bytes_of(operand)) for operand in operands]
    for operand, array in zip(operands, memory, strict=True):
        if operand.kind == "constant":
            array[:] = np.ascontiguousarray(use.lowering.constants[operand.index]).reshape(-1).view(np.uint8)
    step = Step(
        StepKind.KERNEL,
        engine().find(use.call.kernel),
        tuple(-1 if read is None else operands.index(read) for read in use.call.reads),
        tuple(map(operands.index, use.call.writes)),
        use.call.parameters,
    )
    program = Program(
        queues=[Queue(QueueKind.HOST, (core,))],
        regions=[Region(RegionKind.FIXED, array.nbytes, memory=array) for array in memory],
        buffers=[Buffer(i, 0, array.nbytes) for i, array in enumerate(memory)],
        steps=[step],
        subgraphs=[SubGraph(0, 1)],
    )
    with program:
        return min(program.time(runs=1000, budget_ms=milliseconds))


def measure(names: Sequence[str], core: int, milliseconds: float) -> dict[str, Any]:
    """Times kernels, all of this instruction set's if `names` is empty.

    Raises:
        UsageError: the engine has no such kernel.
    """
    found = set(engine().kernel_names())
    present = [name for name in kernels() if name in found]
    if unknown := [name for name in names if name not in present]:
        raise UsageError(f"the engine has no kernel {', '.join(unknown)}; it has {', '.join(present)}")
    uses = typical_uses(set(names or present))
    peak, source, target = engine().peak_gflops(core), aligned_array(_COPY_BYTES), aligned_array(_COPY_BYTES)
    gigabytes = max(_copy_rate(source, target) for _ in range(50))
    rows: list[dict[str, Any]] = []
    for name in names or present:
        if name not in uses:
            rows.append({"kernel": name, "error": "no typical layer becomes one call of it"})
            continue
        use = uses[name]
        ns = nanoseconds(use, core, milliseconds)
        moved = sum(map(use.bytes_of, [*filter(None, use.call.reads), *use.call.writes]))
        row = {"kernel": name, "layer": str(use.layer.type_of(0).shape), "us": ns / 1e3, "gb_per_s": moved / ns}
        if use.layer.macs:
            most = peak * _products(use)
            row |= {"gflops": 2 * use.layer.macs / ns, "peak_share": 2 * use.layer.macs / ns / most}
        else:
            row |= {"peak_share": moved / ns / gigabytes}
        rows.append(row)
    return {"peak_gflops": peak, "copy_gb_per_s": gigabytes, "kernels": rows}


def _products(use: KernelUse) -> int:
    """Products that an instruction of a kernel has where one of float32 has one."""
    if use.layer.is_int8:
        return _INT8_PRODUCTS
    return _HALF_PRODUCTS if FLOAT16 in kernels()[use.call.kernel].family else 1  # bfloat16, too


def _copy_rate(source: np.ndarray, target: np.ndarray) -> float:
    """GB/s that are read and written when numpy copies memory."""
    before = time.perf_counter_ns()
    np.copyto(target, source)
    return 2 * source.nbytes / (time.perf_counter_ns() - before)


def show(report: dict[str, Any]) -> None:
    """Prints a table."""
    peaks = f"peak {report['peak_gflops']:.0f} GFLOP/s, copies {report['copy_gb_per_s']:.1f} GB/s"
    table = Table("kernel", "input", "µs", "GFLOP/s", "GB/s", "of the peak", title=peaks)
    for row in report["kernels"]:
        if "error" in row:
            table.add_row(row["kernel"], row["error"])
            continue
        gflops = f"{row['gflops']:.1f}" if "gflops" in row else ""
        share = f"{row['peak_share']:.0%}"
        table.add_row(row["kernel"], row["layer"], f"{row['us']:.1f}", gflops, f"{row['gb_per_s']:.1f}", share)
    Console().print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints; returns the exit status."""
    parser: argparse.ArgumentParser = script_parser(__doc__)
    parser.add_argument("kernels", nargs="*", metavar="KERNEL", help="names (default: all)")
    parser.add_argument("--core", type=int, default=min(os.sched_getaffinity(0)))
    parser.add_argument("--milliseconds", type=float, default=50, help="per kernel")
    options = parser.parse_args(arguments)

    def work() -> None:
        print_answer(measure(options.kernels, options.core, options.milliseconds), show, as_json=options.json)

    return exit_status(work)


if __name__ == "__main__":
    raise SystemExit(main())
