"""Routines: implementations of layers (SoftNeuro, section II).

A routine declares the layers that it supports, its tuning parameters and its layouts, and lowers a layer to kernel calls
with prepared constants. The engine runs the calls.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from types import MappingProxyType
from typing import ClassVar, Literal

import numpy as np

from nnstretch.devices.base.constants import Constant
from nnstretch.graph.dtypes import DEFAULT_DTYPE, ElementType, element_type
from nnstretch.graph.layer import Attribute, Layer, TensorType

Parameters = Mapping[str, int]
"""Routine parameters, e.g. {"pixels": 14, "vectors": 2}."""

NO_PARAMETERS: Parameters = MappingProxyType({})


PADDING = 1000
"""Value of padding lanes after `Layout.pack`: finite, and large enough to make wrong uses visible."""


BLOCKS = (4, 8, 16)
"""Blocks that a layout may have."""


@dataclass(frozen=True)
class Layout:
    """Memory layout of a tensor.

    Attributes:
        block: 0 for the plain row-major layout of any rank ("NCHW"); b > 0 for NCHW[b]c (NeoCPU, section 3.1), a 4-D
            tensor stored as N, ceil(C/b), H, W, b. Lanes that pad C to a multiple of b hold arbitrary finite values:
            readers must ignore them or give them weight zero, writers must keep them finite.
        dtype: storage type of the elements if it is not the tensor's own, e.g. "float16"; None for the tensor's own.
            An int8 tensor stored as floats holds the numbers that its integers stand for, unrounded.
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
        """Size of a tensor in this layout, in bytes."""
        return math.prod(self.storage_shape(tensor.shape)) * self.element(tensor).bytes

    def pack(self, array: np.ndarray, fill: float = PADDING, tensor: TensorType | None = None) -> np.ndarray:
        """Converts a row-major logical array to this layout.

        Args:
            array: the logical array.
            fill: what padding lanes hold.
            tensor: its type; needed if the array is of integers that stand for other numbers.
        """
        if self.dtype:
            if tensor is not None and tensor.quantization is not None:
                array = tensor.quantization.dequantize(array)
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
        """Converts `array`, stored in this layout, to the row-major logical array of the tensor's own type.

        If the layout has a `dtype`, `array` may be of any type and may be longer than the tensor.
        """
        if self.dtype:
            stored = np.ascontiguousarray(array).reshape(-1).view(np.uint8)[: self.bytes(tensor)]
            array = stored.view(self.element(tensor).storage)
            quantization = tensor.quantization
            array = array.astype(tensor.element.storage) if quantization is None else quantization.quantize(array)
        stored = array.reshape(self.storage_shape(tensor.shape))
        if not self.block:
            return stored
        n, c, h, w = tensor.shape
        return np.ascontiguousarray(stored.transpose(0, 1, 4, 2, 3).reshape(n, -1, h, w)[:, :c])

    def element(self, tensor: TensorType) -> ElementType:
        """Storage type of a tensor's elements."""
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
"""Kind of a step: a kernel of the engine, an OpenCL kernel, or a model of an external engine."""


@dataclass(frozen=True)
class Operand:
    """Operand of a kernel call: an input or output of the layer, a prepared constant, or a workspace, by index."""

    kind: Literal["input", "output", "constant", "workspace"]
    index: int


INPUT, OUTPUT = Operand("input", 0), Operand("output", 0)
IMAGES_MACRO = "NNS_IMAGES"
"""Of a launch: which reads of the OpenCL kernel are images (`Launch.images`)."""
PIXEL_NUMBERS = 4
"""Numbers of a pixel of such an image: the four channels of the format RGBA."""


@dataclass(frozen=True)
class Launch:
    """Launch configuration of an OpenCL kernel.

    Attributes:
        source: name of a file in a folder of devices/opencl/kernels.
        defines: macro definitions.
        global_size: work items along each dimension.
        local_size: work items of a group along each dimension; None lets the driver choose.
        item_bytes: element size of each operand in bytes, reads first; empty if all are float32.
    """

    source: str
    defines: tuple[tuple[str, int], ...]
    global_size: tuple[int, ...]
    local_size: tuple[int, ...] | None = None
    item_bytes: tuple[int, ...] = ()

    @property
    def images(self) -> int:
        """Which operands the kernel reads as images made from their buffers: bit i is read i."""
        return dict(self.defines).get(IMAGES_MACRO, 0)

    def offsets(self, byte_offsets: Sequence[int]) -> tuple[int, ...]:
        """Offsets of the operands in elements.

        Raises:
            ValueError: an offset is not a multiple of the element size, or their number is wrong.
        """
        sizes = self.item_bytes or (element_type(DEFAULT_DTYPE).bytes,) * len(byte_offsets)
        if any(offset % size for offset, size in zip(byte_offsets, sizes, strict=True)):
            raise ValueError(f"offsets {list(byte_offsets)} are not multiples of {list(sizes)}")
        return tuple(offset // size for offset, size in zip(byte_offsets, sizes, strict=True))


@dataclass(frozen=True)
class KernelCall:
    """One step of a lowered layer.

    Attributes:
        kernel: name of the kernel; with `model`, name of the model in the package.
        reads: operands; None for an absent optional one.
        writes: results.
        parameters: integers; floats are passed as the bits of a float32 (`nnstretch.graph.activation.float_bits`).
        launch: launch configuration of an OpenCL kernel; None for other steps.
        in_place: index in `reads` of an operand whose memory the first write may reuse; it has the same shape and layout.
        model: bytes of an external engine's model with plain inputs `reads` and outputs `writes`; None for kernels.
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
        """Kind of the step."""
        if self.model is not None:
            return "call"
        return "opencl" if self.launch else "kernel"


@dataclass(frozen=True)
class Lowering:
    """A lowered layer: calls in order, prepared constants, and workspace sizes in bytes."""

    calls: tuple[KernelCall, ...]
    constants: tuple[Constant, ...] = field(default=())
    workspaces: tuple[int, ...] = ()

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that one run reads. Models of external engines count in full, as weights dominate them."""
        return sum(a.nbytes for a in self.constants) + sum(len(call.model) for call in self.calls if call.model)


def pipeline(stages: Sequence[Lowering], between: Sequence[int]) -> Lowering:
    """The calls of all stages in order, for a childnet; input 0 of each stage is output 0 of the stage before it.

    Args:
        stages: lowerings of layers with one run-time input and one output.
        between: bytes of the workspace between each stage and the next.
    """
    calls: list[KernelCall] = []
    constants: list[Constant] = []
    workspaces = list(between)
    for number, stage in enumerate(stages):
        first_constant, first_workspace = len(constants), len(workspaces)
        constants += stage.constants
        workspaces += stage.workspaces

        def place(
            operand: Operand, number: int = number, constant: int = first_constant, workspace: int = first_workspace
        ) -> Operand:
            if operand.kind == "input":
                return operand if number == 0 else Operand("workspace", number - 1)
            if operand.kind == "output":
                return operand if number + 1 == len(stages) else Operand("workspace", number)
            return Operand(operand.kind, operand.index + (constant if operand.kind == "constant" else workspace))

        for call in stage.calls:
            reads = tuple(None if o is None else place(o) for o in call.reads)
            calls.append(replace(call, reads=reads, writes=tuple(map(place, call.writes)), in_place=None))
    return Lowering(tuple(calls), tuple(constants), tuple(workspaces))


USUAL_THREADS = 4
"""Number of threads among which a layer's work can be divided evenly on every processor."""


class Routine(ABC):
    """An implementation of layers on one kind of processor. Stateless and shareable.

    Attributes:
        descriptor: its name.
        threads: number of threads among which it divides a layer's work evenly, at least `USUAL_THREADS`.
        features: of the CPU beyond the engine's instruction set, as /proc/cpuinfo names them, as far as they are known.
        rounds_to: type to which it rounds numbers before it multiplies them; None: it does not.
    """

    descriptor: Descriptor
    rounds_to: ClassVar[str | None] = None
    threads: int = USUAL_THREADS
    features: frozenset[str] = frozenset()

    @property
    def element(self) -> ElementType:
        """Element type that it computes in."""
        return element_type(self.descriptor.dtype)

    def units(self, usual: int) -> int:
        """Least number of units of work of a layer, from that for `USUAL_THREADS` threads."""
        return -(-usual * self.threads // USUAL_THREADS)

    @abstractmethod
    def supports(self, layer: Layer) -> bool:
        """Whether this routine computes `layer` correctly."""

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        """Parameter settings worth measuring for a supported layer; never empty, the untuned default first."""
        return (NO_PARAMETERS,)

    def default_parameters(self, layer: Layer) -> Parameters:
        """The untuned default, the first of `parameter_space`."""
        return self.parameter_space(layer)[0]

    def search_space(self, layer: Layer) -> Sequence[Parameters]:
        """All parameter settings of a thorough search, those of `parameter_space` first."""
        return self.parameter_space(layer)

    def layouts(self, layer: Layer, parameters: Parameters) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        """Layouts of the inputs `layer.activations`, in that order, and of the outputs; plain by default."""
        return (PLAIN,) * len(layer.activations), (PLAIN,) * len(layer.outputs)

    @abstractmethod
    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        """Lowers `layer` to kernel calls.

        Operand "input" i is the run-time input `layer.inputs[i]` in the layout that `layouts` declares. `constants` holds the
        weights in the kernel's layout; large ones are `Prepared`.
        """


def has_constant_weights(layer: Layer) -> bool:
    """Whether weights and bias (inputs 1 and 2) of a layer are constants, if it has any."""
    return all(index in layer.constants for index in (1, 2) if layer.has(index))


def distinct(*spaces: Iterable[Parameters]) -> tuple[Parameters, ...]:
    """The settings of all `spaces` in order, without duplicates."""
    found: dict[tuple[tuple[str, int], ...], Parameters] = {}
    for setting in chain.from_iterable(spaces):
        found.setdefault(tuple(sorted(setting.items())), setting)
    return tuple(found.values())


def shares(total: int, most: int, least: int = 1) -> list[int]:
    """Part sizes of `total` pieces divided into 1, 2, 4, … parts, from `least` to `most` parts; distinct, descending."""
    counts = (1 << power for power in range(most.bit_length()))
    return list(dict.fromkeys(-(-total // count) for count in counts if least <= count <= most))


REORDER = "Reorder"


def reorder_layer(tensor: TensorType, source: Layout, target: Layout) -> Layer:
    """The adapt layer that changes the layout of `tensor` (a copy where `source == target`).

    The operator is "Reorder". Its attributes `source` and `target` are the blocks of the layouts, `source_dtype` and
    `target_dtype` their storage types if they have any. Padding lanes of a blocked target are zero.
    """
    attributes: dict[str, Attribute] = {"source": source.block, "target": target.block}
    dtypes = {"source_dtype": source.dtype, "target_dtype": target.dtype}
    attributes |= {name: dtype for name, dtype in dtypes.items() if dtype}
    return Layer(f"reorder_{source}_{target}", REORDER, (tensor,), (tensor,), MappingProxyType(attributes))


def reorder_layouts(layer: Layer) -> tuple[Layout, Layout]:
    """The two layouts of a `reorder_layer`."""

    def layout(name: str) -> Layout:
        dtype = layer.attributes.get(f"{name}_dtype")
        assert dtype is None or isinstance(dtype, str)
        return Layout(layer.integer(name), dtype)

    return layout("source"), layout("target")
