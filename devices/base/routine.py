"""Routines: concrete implementations of layers, and what they tell the scheduler (SoftNeuro, section II).

A routine says which layers it supports, by which parameters it can be tuned, which layouts it reads and writes, and what it
becomes: a few kernel calls with prepared constants. It never runs anything itself; the engine does.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from types import MappingProxyType
from typing import Literal

import numpy as np

from nnstretch.devices.base.constants import Constant
from nnstretch.graph.dtypes import DEFAULT_DTYPE, ElementType, element_type
from nnstretch.graph.layer import Attribute, Layer, TensorType

Parameters = Mapping[str, int]
"""Routine parameters, e.g. {"pixels": 14, "vectors": 2}."""

NO_PARAMETERS: Parameters = MappingProxyType({})


PADDING = 1000
"""Value that `Layout.pack` gives to padding lanes: finite as promised, and large enough to show in any result."""


@dataclass(frozen=True)
class Layout:
    """Memory layout of a tensor, and the type of its elements there.

    `block == 0` is the plain row-major layout of any rank ("NCHW"). `block == b > 0` is NCHW[b]c (NeoCPU, section 3.1): a
    4-D tensor stored as N, ceil(C/b), H, W, b. The lanes that pad C to a multiple of b hold finite values of any kind:
    readers must give them weight zero or drop them, writers must keep them finite.

    `dtype` is the type that elements are stored in where that is another than the tensor's own, e.g. "float16". Only
    processors with routines for it make and read such data; they never cross to another processor.
    """

    block: int = 0
    dtype: str | None = None

    def __str__(self) -> str:
        name = f"NCHW{self.block}c" if self.block else "NCHW"
        return f"{name}:{self.dtype}" if self.dtype else name

    def storage_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the stored array for a tensor of logical `shape`."""
        if not self.block:
            return shape
        n, c, h, w = shape
        return n, -(-c // self.block), h, w, self.block

    def bytes(self, tensor: TensorType) -> int:
        """Bytes that a tensor takes in this layout."""
        return math.prod(self.storage_shape(tensor.shape)) * self.element(tensor).bytes

    def pack(self, array: np.ndarray, fill: float = PADDING) -> np.ndarray:
        """A row-major logical array as stored in this layout; lanes that pad channels hold `fill`."""
        if self.dtype:
            array = array.astype(element_type(self.dtype).storage)
        if not self.block:
            return np.ascontiguousarray(array)
        if array.dtype.kind in "iu":
            fill = min(int(fill), int(np.iinfo(array.dtype).max))
        n, c, h, w = array.shape
        blocks = -(-c // self.block)
        padded = np.full((n, blocks * self.block, h, w), fill, array.dtype)
        padded[:, :c] = array
        return np.ascontiguousarray(padded.reshape(n, blocks, self.block, h, w).transpose(0, 1, 3, 4, 2))

    def unpack(self, array: np.ndarray, tensor: TensorType) -> np.ndarray:
        """The row-major logical array of a tensor that `array` stores in this layout, in the tensor's own type.

        Where the layout has a type of its own, `array` may be of any type and have bytes behind the tensor's end.
        """
        if self.dtype:
            stored = np.ascontiguousarray(array).reshape(-1).view(np.uint8)[: self.bytes(tensor)]
            array = stored.view(self.element(tensor).storage).astype(tensor.element.storage)
        stored = array.reshape(self.storage_shape(tensor.shape))
        if not self.block:
            return stored
        n, c, h, w = tensor.shape
        return np.ascontiguousarray(stored.transpose(0, 1, 4, 2, 3).reshape(n, -1, h, w)[:, :c])

    def element(self, tensor: TensorType) -> ElementType:
        """The type that a tensor's elements are stored in."""
        return element_type(self.dtype or tensor.dtype)


PLAIN = Layout(0)


@dataclass(frozen=True)
class Descriptor:
    """Name of a routine: `processor:dtype/algorithm` (SoftNeuro), e.g. `cpu:float32/direct`."""

    processor: str
    dtype: str
    algorithm: str

    def __str__(self) -> str:
        return f"{self.processor}:{self.dtype}/{self.algorithm}"


StepKind = Literal["kernel", "opencl", "call"]
"""What a step of a plan runs: a kernel of the engine, an OpenCL kernel, or a model of an external engine."""


@dataclass(frozen=True)
class Operand:
    """What a kernel call reads or writes: the layer's input or output, a prepared constant, or workspace, by index."""

    kind: Literal["input", "output", "constant", "workspace"]
    index: int


@dataclass(frozen=True)
class Launch:
    """How OpenCL runs a kernel.

    Attributes:
        source: file in devices/opencl/kernels.
        defines: macro definitions.
        global_size: work items along each dimension.
        local_size: those of a group, or None if the driver may choose.
        item_bytes: bytes of an element of each operand, reads first, in which its offset is counted; those of float32 if empty.
    """

    source: str
    defines: tuple[tuple[str, int], ...]
    global_size: tuple[int, ...]
    local_size: tuple[int, ...] | None = None
    item_bytes: tuple[int, ...] = ()

    def offsets(self, byte_offsets: Sequence[int]) -> tuple[int, ...]:
        """The offsets of the operands as the kernel counts them.

        Raises:
            ValueError: one is not at a whole element, or there is not one per operand.
        """
        sizes = self.item_bytes or (element_type(DEFAULT_DTYPE).bytes,) * len(byte_offsets)
        if any(offset % size for offset, size in zip(byte_offsets, sizes, strict=True)):
            raise ValueError(f"offsets {list(byte_offsets)} are not multiples of {list(sizes)}")
        return tuple(offset // size for offset, size in zip(byte_offsets, sizes, strict=True))


@dataclass(frozen=True)
class KernelCall:
    """One step: a kernel of the engine (or of OpenCL, then with `launch`) on operands, with integer parameters.

    Or, with `model`, what another engine runs on plain operands: the bytes of a model whose inputs and outputs they are, in
    order; `kernel` is its name in the package then.

    `reads` holds None where the kernel's optional operand is absent. Float parameters travel as the bits of a float32
    (`nnstretch.graph.activation.float_bits`). `in_place` is the index in `reads` of an operand like the first write (same
    shape and layout) whose memory the first write may take, if there is one.
    """

    kernel: str
    reads: tuple[Operand | None, ...]
    writes: tuple[Operand, ...]
    parameters: tuple[int, ...] = ()
    launch: Launch | None = None
    in_place: int | None = None
    model: bytes | None = field(default=None, repr=False)

    @property
    def kind(self) -> StepKind:
        """The kind of the step that it becomes."""
        if self.model is not None:
            return "call"
        return "opencl" if self.launch else "kernel"


@dataclass(frozen=True)
class Lowering:
    """What a routine makes of a layer: calls in order, prepared constants, and workspaces in bytes."""

    calls: tuple[KernelCall, ...]
    constants: tuple[Constant, ...] = field(default=())
    workspaces: tuple[int, ...] = ()

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that one run reads; of another engine's model all bytes, most of which are weights."""
        return sum(a.nbytes for a in self.constants) + sum(len(call.model) for call in self.calls if call.model)


class Routine(ABC):
    """One way to compute layers on one kind of processor. Stateless and shareable."""

    descriptor: Descriptor

    @property
    def element(self) -> ElementType:
        """The type that it computes in."""
        return element_type(self.descriptor.dtype)

    @abstractmethod
    def supports(self, layer: Layer) -> bool:
        """Whether this routine computes `layer` correctly."""

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        """Parameter settings worth measuring for a supported layer, the default (used untuned) first; never empty."""
        return (NO_PARAMETERS,)

    def search_space(self, layer: Layer) -> Sequence[Parameters]:
        """All parameter settings that may be fastest somewhere, those of `parameter_space` first: for a thorough search."""
        return self.parameter_space(layer)

    @abstractmethod
    def layouts(self, layer: Layer, parameters: Parameters) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        """Layouts wanted for the inputs in `layer.activations` (in that order) and given to the outputs."""

    @abstractmethod
    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        """The calls that compute `layer`.

        Operand "input" i is `layer.inputs[i]` (a run-time input, in the layout promised by `layouts`); weights go into
        `constants`, already in the layout that the kernel reads, or as what will make them so (`Prepared`), if they are large.
        """


def has_constant_weights(layer: Layer) -> bool:
    """Whether weights and bias of a layer that has some, its inputs 1 and 2, are known when the network is compiled."""
    return all(index in layer.constants for index in (1, 2) if layer.has(index))


def distinct(*spaces: Iterable[Parameters]) -> tuple[Parameters, ...]:
    """The settings of all `spaces` in order, of equal ones the first."""
    found: dict[tuple[tuple[str, int], ...], Parameters] = {}
    for setting in chain.from_iterable(spaces):
        found.setdefault(tuple(sorted(setting.items())), setting)
    return tuple(found.values())


def shares(total: int, most: int) -> list[int]:
    """Sizes of the parts into which `total` pieces fall when they are halved again and again, into `most` parts at most."""
    counts = (1 << power for power in range(most.bit_length()))
    return list(dict.fromkeys(-(-total // count) for count in counts if count <= most))


REORDER = "Reorder"


def reorder_layer(tensor: TensorType, source: Layout, target: Layout) -> Layer:
    """The adapt layer that changes the layout of `tensor` (a copy where `source == target`).

    Operator "Reorder" with attributes `source` and `target`, the blocks of the two layouts, and `source_dtype` and
    `target_dtype` where these have types of their own. Lanes that pad the channels of a blocked target are written as zero.
    """
    attributes: dict[str, Attribute] = {"source": source.block, "target": target.block}
    dtypes = {"source_dtype": source.dtype, "target_dtype": target.dtype}
    attributes |= {name: dtype for name, dtype in dtypes.items() if dtype}
    return Layer(f"reorder_{source}_{target}", REORDER, (tensor,), (tensor,), MappingProxyType(attributes))


def reorder_layouts(layer: Layer) -> tuple[Layout, Layout]:
    """The two layouts of a `reorder_layer`."""

    def layout(name: str) -> Layout:
        block, dtype = layer.attributes[name], layer.attributes.get(f"{name}_dtype")
        assert isinstance(block, int)
        assert dtype is None or isinstance(dtype, str)
        return Layout(block, dtype)

    return layout("source"), layout("target")
