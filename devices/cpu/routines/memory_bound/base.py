"""What the memory-bound routines share: they see planes of pixels of 1 lane (plain) or a block of lanes."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from nnstretch.devices.base.routine import PLAIN, Descriptor, KernelCall, Layout, Lowering, Operand, Parameters, Routine
from nnstretch.devices.cpu.manifest import activation_parameters, kernel_call
from nnstretch.devices.engine.build.instruction_sets import local_isa
from nnstretch.graph.activation import NO_ACTIVATION
from nnstretch.graph.dtypes import DEFAULT_DTYPE, ELEMENT_TYPES
from nnstretch.graph.layer import Layer

BLOCK = "block"
"""The one parameter of memory-bound routines: block of the layout that they read and write, 0 for plain."""

MOVED_DTYPES = tuple(t.name for t in ELEMENT_TYPES.values() if t.code)
"""Types whose elements kernels can move: all that the engine knows."""

INPUT = Operand("input", 0)
OUTPUT = Operand("output", 0)


@dataclass(frozen=True)
class Planes:
    """How kernels see a stored tensor: `planes` × `pixels` × `lanes` floats."""

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
    """Floats that a tensor takes in the layout of that block."""
    return math.prod(Layout(block).storage_shape(shape))


def per_channel(values: np.ndarray, block: int) -> np.ndarray:
    """One float32 per channel, with zeros for the lanes that pad the last block."""
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
    """The call that applies the activation to the stored output, for kernels that do not; or no call."""
    if not layer.activation.kind:
        return ()
    return (unary_call(layer, OUTPUT, floats),)


def unary_call(layer: Layer, read: Operand, floats: int, in_place: int | None = None) -> KernelCall:
    """The call that applies the layer's activation to `floats` stored elements."""
    activation = activation_parameters(layer.activation)
    return kernel_call("eltwise/unary", (read,), (OUTPUT,), in_place=in_place, count=floats, activation=activation)


class MemoryBoundRoutine(Routine):
    """A routine with one kernel family for both layouts.

    Attributes:
        descriptor: of a class for float32; of an instance for its element type.
        operators: of the layers that it computes.
    """

    descriptor: Descriptor
    operators: frozenset[str]

    def __init__(self, block: int | None = None, dtype: str = DEFAULT_DTYPE) -> None:
        """A routine for layers whose tensors are all of one type.

        Args:
            block: block of the blocked layout, 4, 8 or 16; None for that of this machine's vectors.
            dtype: name of the element type; other ones than float32 are for `DataMovementRoutine`s.
        """
        self._block = block
        self.descriptor = replace(self.descriptor, dtype=dtype)

    @property
    def block(self) -> int:
        """Block of the blocked layout that this routine offers."""
        return self._block or local_isa().block

    def supports(self, layer: Layer) -> bool:
        """Whether `layer` is one of the operators, all of the routine's type, and within what the kernel can do."""
        types = [t for t in (*layer.inputs, *layer.outputs) if t is not None]
        return (
            layer.op in self.operators
            and all(t.dtype == self.descriptor.dtype and t.elements > 0 for t in types)
            and self.covers(layer)
        )

    @abstractmethod
    def covers(self, layer: Layer) -> bool:
        """Whether the kernel can do a layer of the right operator and element type."""

    def blockable(self, layer: Layer) -> bool:
        """Whether the blocked layout can be offered: by default, if all run-time tensors have rank 4."""
        types = [*(layer.type_of(i) for i in layer.activations), *layer.outputs]
        return all(len(t.shape) == 4 for t in types)

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        """The blocked layout first, where it can be."""
        plain = MappingProxyType({BLOCK: 0})
        return (MappingProxyType({BLOCK: self.block}), plain) if self.blockable(layer) else (plain,)

    def layouts(self, layer: Layer, parameters: Parameters) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        """The same layout for everything that has rank 4 or is plain anyway."""
        layout = Layout(parameters[BLOCK])
        inputs = tuple(layout if len(layer.type_of(i).shape) == 4 else PLAIN for i in layer.activations)
        return inputs, tuple(layout for _ in layer.outputs)

    @abstractmethod
    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        """The calls that compute `layer`."""


class DataMovementRoutine(MemoryBoundRoutine):
    """A memory-bound routine that moves elements and changes none, so that they may be of any type.

    Layers of other types than float32 have no activation. They read and write plain data: no native routine computes in these
    types, so nobody near them wants blocks.
    """

    def supports(self, layer: Layer) -> bool:
        """Not where integers stand for other numbers after the layer than before it."""
        if not super().supports(layer):
            return False
        quantizations = {t.quantization for t in (*map(layer.type_of, layer.activations), *layer.outputs)}
        return self._is_float32 or (layer.activation == NO_ACTIVATION and len(quantizations) == 1)

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        return super().parameter_space(layer) if self._is_float32 else (MappingProxyType({BLOCK: 0}),)

    @property
    def _is_float32(self) -> bool:
        return self.descriptor.dtype == DEFAULT_DTYPE
