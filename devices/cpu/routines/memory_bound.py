"""Base classes of the memory-bound routines: tensors are planes of pixels of 1 lane (plain) or a block of lanes."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from nnstretch.devices.base.routine import (
    INPUT,
    OUTPUT,
    PLAIN,
    Descriptor,
    KernelCall,
    Layout,
    Lowering,
    Operand,
    Parameters,
    Routine,
)
from nnstretch.devices.cpu.manifest import Values, activation_parameters, kernel_call
from nnstretch.devices.engine.build.instruction_sets import Isa
from nnstretch.graph.activation import NO_ACTIVATION
from nnstretch.graph.dtypes import DEFAULT_DTYPE, ELEMENT_TYPES
from nnstretch.graph.layer import Layer

BLOCK = "block"
"""The only parameter of memory-bound routines: block of the layout that they read and write; 0 is plain."""

MOVED_DTYPES = tuple(t.name for t in ELEMENT_TYPES.values() if t.code)
"""Element types that kernels can move: all that the engine knows."""


@dataclass(frozen=True)
class Planes:
    """The dimensions of a stored tensor in kernels: `planes` × `pixels` × `lanes` floats."""

    planes: int
    pixels: int
    lanes: int

    @property
    def row(self) -> int:
        """Floats of one plane."""
        return self.pixels * self.lanes

    @property
    def floats(self) -> int:
        """Floats of the whole tensor, padding lanes included."""
        return self.planes * self.row


def planes_of(shape: tuple[int, ...], block: int) -> Planes:
    """The planes of a tensor of rank 4, or of a plain one of rank 2 or more."""
    images, channels = shape[:2]
    lanes = block or 1
    return Planes(images * -(-channels // lanes), math.prod(shape[2:]), lanes)


def stored_floats(shape: tuple[int, ...], block: int) -> int:
    """Floats of a tensor in the layout of this block."""
    return math.prod(Layout(block).storage_shape(shape))


def per_channel(values: np.ndarray, block: int) -> np.ndarray:
    """One float32 per channel, with zeros in the padding lanes of the last block."""
    padding = -values.size % block if block else 0
    return np.pad(values.reshape(-1).astype(np.float32), (0, padding))


def to_blocked(array: np.ndarray, block: int) -> np.ndarray:
    """A row-major array, of rank 4 unless `block` is 0, as stored; padding lanes are zero."""
    if not block:
        return np.ascontiguousarray(array, dtype=np.float32)
    n, c, h, w = array.shape
    padded = np.pad(array.astype(np.float32), ((0, 0), (0, -c % block), (0, 0), (0, 0)))
    return np.ascontiguousarray(padded.reshape(n, -1, block, h, w).transpose(0, 1, 3, 4, 2))


def activate_in_place(layer: Layer, floats: int) -> tuple[KernelCall, ...]:
    """The call that applies the activation to the stored output, if there is one."""
    if not layer.activation.kind:
        return ()
    return (unary_call(layer, OUTPUT, floats),)


def unary_call(layer: Layer, read: Operand, floats: int, in_place: int | None = None) -> KernelCall:
    """The call that applies the layer's activation to `floats` stored elements."""
    activation = activation_parameters(layer.activation)
    return kernel_call("eltwise/unary", (read,), in_place=in_place, count=floats, activation=activation)


def one_call(
    kernel: str,
    layer: Layer,
    parameters: Mapping[str, Values],
    reads: tuple[Operand, ...] = (INPUT,),
    constants: tuple[np.ndarray, ...] = (),
    in_place: int | None = None,
) -> Lowering:
    """One call of a kernel that writes output 0 and applies the layer's activation."""
    activation = activation_parameters(layer.activation)
    call = kernel_call(kernel, reads, in_place=in_place, **parameters, activation=activation)
    return Lowering((call,), constants)


class MemoryBoundRoutine(Routine):
    """A routine with one kernel family for both layouts.

    Attributes:
        descriptor: of the class, or of the instance for another element type.
        operators: operators of the supported layers.
    """

    descriptor: Descriptor
    operators: frozenset[str]

    def __init__(self, isa: Isa, dtype: str | None = None) -> None:
        """A routine for layers whose tensors are all of one type.

        Args:
            isa: instruction set of the engine, whose block is that of the blocked layout.
            dtype: name of the element type; None for that of the class's descriptor.
        """
        self.block = isa.block
        if dtype is not None:
            self.descriptor = replace(self.descriptor, dtype=dtype)

    def supports(self, layer: Layer) -> bool:
        """Whether the operator, the element types and the kernel's limits admit `layer`."""
        types = [t for t in (*layer.inputs, *layer.outputs) if t is not None]
        return (
            layer.op in self.operators
            and all(t.dtype == self.descriptor.dtype and t.elements > 0 for t in types)
            and self.covers(layer)
        )

    @abstractmethod
    def covers(self, layer: Layer) -> bool:
        """Whether the kernel supports a layer with the right operator and element type."""

    def blockable(self, layer: Layer) -> bool:
        """Whether the blocked layout can be offered: by default, if all run-time tensors have rank 4."""
        types = [*(layer.type_of(i) for i in layer.activations), *layer.outputs]
        return all(len(t.shape) == 4 for t in types)

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        """The blocked layout first, if it can be offered, then the plain one."""
        plain = MappingProxyType({BLOCK: 0})
        return (MappingProxyType({BLOCK: self.block}), plain) if self.blockable(layer) else (plain,)

    def layouts(self, layer: Layer, parameters: Parameters) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        """The same layout for all tensors of rank 4; other inputs are plain."""
        layout = Layout(parameters[BLOCK])
        inputs = tuple(layout if len(layer.type_of(i).shape) == 4 else PLAIN for i in layer.activations)
        return inputs, tuple(layout for _ in layer.outputs)

    @abstractmethod
    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        """The calls that compute `layer`."""


class DataMovementRoutine(MemoryBoundRoutine):
    """A memory-bound routine that moves elements of any type without changing them.

    Layers of other types than float32 have no activation. They are plain, as their neighbours are, unless they stand for
    float32 numbers.
    """

    def supports(self, layer: Layer) -> bool:
        """As the base class, but the quantization of input and output must be the same."""
        if not super().supports(layer):
            return False
        quantizations = {t.quantization for t in (*map(layer.type_of, layer.activations), *layer.outputs)}
        return self._is_float32 or (layer.activation == NO_ACTIVATION and len(quantizations) == 1)

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        blocked = self._is_float32 or layer.outputs[0].quantization is not None
        return super().parameter_space(layer) if blocked else (MappingProxyType({BLOCK: 0}),)

    @property
    def _is_float32(self) -> bool:
        return self.descriptor.dtype == DEFAULT_DTYPE
