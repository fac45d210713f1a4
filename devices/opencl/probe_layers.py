"""Layers with exact results, by which a device's kernels are tested (`probe_worker`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import numpy as np

from nnstretch.devices.base.routine import Operand
from nnstretch.devices.engine.binding.image import KernelLaunch
from nnstretch.devices.opencl.routines.base import OpenCLRoutine
from nnstretch.devices.opencl.routines.direct import Direct
from nnstretch.devices.opencl.routines.elementwise import Map
from nnstretch.devices.opencl.runtime import OpenCLRuntime
from nnstretch.errors import DeviceError
from nnstretch.graph.activation import Activation, ActivationKind
from nnstretch.graph.dtypes import DEFAULT_DTYPE
from nnstretch.graph.layer import Attribute, Layer, TensorType

if TYPE_CHECKING:
    import pyopencl

_SHAPE, _OUTPUTS, _KERNEL, _PAD = (2, 20, 11, 19), 33, 5, 2  # batch, odd numbers of channels and pixels, several tiles
_BEFORE = 4096  # bytes before a tensor in its buffer


@dataclass(frozen=True)
class ExactLayer:
    """A layer with one input, a routine of one kernel for it, and the exact result."""

    routine: OpenCLRoutine
    layer: Layer
    x: np.ndarray
    wanted: np.ndarray


def exact_layers(runtime: OpenCLRuntime) -> tuple[ExactLayer, ...]:
    """A convolution and an activation of small integers, whose kernels read buffers alone."""
    traits = replace(runtime.traits, image_buffer=0)
    convolution = exact_convolution(Direct(traits))
    (output,), x = convolution.layer.outputs, convolution.wanted
    relu = Layer("activation", "Activation", (output,), (output,), activation=Activation(ActivationKind.RELU))
    return convolution, ExactLayer(Map(traits), relu, x, np.maximum(x, 0))


def exact_convolution(routine: OpenCLRoutine) -> ExactLayer:
    """A convolution of small integers."""
    random = np.random.default_rng(0)
    x = random.integers(-3, 4, _SHAPE).astype(np.float32)
    weight = random.integers(-1, 2, (_OUTPUTS, _SHAPE[1], _KERNEL, _KERNEL)).astype(np.float32)
    wanted = _convolution(x, weight)
    types = TensorType(x.shape), TensorType(weight.shape), None, None
    attributes: dict[str, Attribute] = {"strides": (1, 1), "pads": (_PAD,) * 4, "dilations": (1, 1), "groups": 1}
    layer = Layer("convolution", "Conv", types, (TensorType(wanted.shape),), attributes, constants={1: weight})
    return ExactLayer(routine, layer, x, wanted)


def _convolution(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    padded = np.pad(x, ((0, 0), (0, 0), (_PAD, _PAD), (_PAD, _PAD)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, weight.shape[2:], (2, 3))
    return np.asarray(np.einsum("ncyxij,ocij->noyx", windows, weight, optimize=True))


class PreparedLayer:
    """An exact layer with its kernel's arguments set.

    Attributes:
        launch: of the kernel.
    """

    def __init__(self, runtime: OpenCLRuntime, exact: ExactLayer) -> None:
        """Makes the memory of the layer and its kernel.

        Raises:
            BuildError: the kernel does not compile.
            DeviceError: the driver reports an error.
        """
        routine, layer = exact.routine, exact.layer
        parameters = routine.parameter_space(layer)[
            -1
        ]  # the smallest tile, which compiles fastest; images if it reads some
        (given,), (self._made,) = routine.layouts(layer, parameters)
        lowering = routine.lower(layer, parameters)
        (call,) = lowering.calls
        assert call.launch is not None
        storage = np.float32 if routine.dtype == DEFAULT_DTYPE else np.float16
        made_bytes = self._made.bytes(layer.outputs[0])
        self._result = np.full(made_bytes // np.dtype(storage).itemsize, np.nan, storage)
        self._queue, self._exact = runtime.queue, exact
        values = {Operand("input", 0): given.pack(exact.x), Operand("output", 0): self._result}
        values |= {Operand("constant", index): np.asarray(one) for index, one in enumerate(lowering.constants)}
        self._memory = {operand: buffer_of(runtime, _behind(one)) for operand, one in values.items()}
        kernel = runtime.kernel(call.launch, call.kernel)
        operands = [
            None if operand is None else (self._memory[operand], _BEFORE, values[operand].nbytes)
            for operand in (*call.reads, *call.writes)
        ]
        self._kept: list[object] = []  # images, which kernels do not keep
        runtime.set_arguments(kernel, runtime.memory_arguments(call.launch, operands, self._kept), call.parameters)
        self.launch = KernelLaunch(kernel, call.launch.global_size, call.launch.local_size)

    def run(self) -> None:
        """Runs the kernel.

        Raises:
            DeviceError: the result is wrong, or the driver reports an error.
        """
        import pyopencl as cl

        launch = self.launch
        cl.enqueue_nd_range_kernel(
            self._queue, cast("pyopencl.Kernel", launch.kernel), launch.global_size, launch.local_size
        )
        if share := self.wrong():
            source = self._exact.routine.source
            raise DeviceError(f"kernel {source} computed {share:.1%} of a test layer's numbers wrongly")

    def wrong(self) -> float:
        """The share of wrong numbers in what the kernel wrote."""
        import pyopencl as cl

        cl.enqueue_copy(self._queue, self._result, self._memory[Operand("output", 0)], src_offset=_BEFORE)
        found = self._made.unpack(self._result, self._exact.layer.outputs[0])
        return float(np.mean(found != self._exact.wanted))


def _behind(values: np.ndarray) -> np.ndarray:
    """The bytes of an array behind others, as in memory that it shares."""
    return np.concatenate([np.zeros(_BEFORE, np.uint8), np.ascontiguousarray(values).reshape(-1).view(np.uint8)])


def buffer_of(runtime: OpenCLRuntime, values: np.ndarray) -> pyopencl.Buffer:
    """A buffer of a device with these values."""
    import pyopencl as cl

    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    return cl.Buffer(runtime.context, flags, hostbuf=np.ascontiguousarray(values))
