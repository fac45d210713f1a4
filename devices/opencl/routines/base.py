"""Base classes of OpenCL routines."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from nnstretch.devices.base.constants import Prepared, padded_rows, whole
from nnstretch.devices.base.routine import (
    INPUT,
    OUTPUT,
    Descriptor,
    KernelCall,
    Launch,
    Layout,
    Lowering,
    Operand,
    Parameters,
    Routine,
)
from nnstretch.devices.opencl.routines.demand import ADDRESS_REGISTERS, Demand
from nnstretch.graph.dtypes import element_type
from nnstretch.graph.layer import Layer, TensorType

DTYPE = "float32"
SUM_BYTES = element_type(DTYPE).bytes
"""Bytes of an element of sums and workspaces, whatever the storage type of tensors."""
HALF = "float16"
INT8 = "int8"
_HALF_MAX = float(np.finfo(np.float16).max)
_LEAST_LOCAL_MEMORY = 8 << 10  # of the smallest tile of a matrix product
_LEAST_GROUP_ITEMS = 64
_VECTORS = 6  # that a work item of a kernel without tiles keeps
_ITEM_FLOATS = 16384  # minimum per work item of a copying kernel, so that launch overhead is negligible


@dataclass(frozen=True)
class Traits:
    """Properties of a device that routines depend on.

    Attributes:
        block: floats per vector, the block of the blocked layout.
        on_cpu: whether CPU threads run the work groups; few and large groups are best then.
        compute_units: threads of a CPU device, multiprocessors of another.
        registers: vectors of `block` floats that a work item may keep in registers.
        local_memory: bytes of local memory for a work group; 0 if groups should have none, as on a CPU.
        group_items: maximum work items of a group with local memory.
        wave: work items that run in lockstep; 0 if groups need not be whole waves.
        item_registers: 32-bit registers that a work item may use; 0 if nothing is known that limits them.
        image_buffer: maximum pixels of an image made from a buffer; 0 if kernels should read buffers alone.
    """

    block: int
    on_cpu: bool
    compute_units: int
    registers: int
    local_memory: int = 0
    group_items: int = 0
    wave: int = 0
    item_registers: int = 0
    image_buffer: int = 0

    @property
    def works_in_groups(self) -> bool:
        """Whether work groups should share operands in local memory."""
        return not self.on_cpu and self.local_memory >= _LEAST_LOCAL_MEMORY and self.group_items >= _LEAST_GROUP_ITEMS

    def whole_waves(self, items: int) -> int:
        """`items`, rounded up to whole waves as far as a group may have them."""
        whole = ceil_div(items, self.wave) * self.wave if self.wave else items
        return whole if whole <= self.group_items else items

    def items_wanted(self) -> int:
        """Number of work items that balances the load of all compute units."""
        if not self.on_cpu:
            return 256 * self.compute_units
        return 1 if self.compute_units == 1 else 8 * self.compute_units


def ceil_div(a: int, b: int) -> int:
    """Quotient of two positive integers, rounded up."""
    return -(-a // b)


def is_float32(layer: Layer) -> bool:
    """Whether all tensors of a layer are float32 and have at least one element."""
    types = [kind for kind in (*layer.inputs, *layer.outputs) if kind is not None]
    return all(kind.dtype == DTYPE and kind.elements > 0 for kind in types)


def is_image(kind: TensorType) -> bool:
    """Whether a tensor has the four dimensions that the blocked layout needs."""
    return len(kind.shape) == 4


def constant(index: int) -> Operand:
    """The prepared constant `index` of a lowering."""
    return Operand("constant", index)


class OpenCLRoutine(Routine):
    """A routine of OpenCL kernels on float32 tensors.

    Subclasses set `algorithm`, `source` (name of a file in a folder of devices/opencl/kernels) and `ops` (operators that
    it may support), and `stores_half` if their kernels take NNS_HALF.

    Attributes:
        dtype: storage type of tensors and constants, float32 or float16; sums are float32. int8 in routines for int8 layers
            (`int8.base`).
        blocked, plain: layouts of inputs and outputs.
    """

    algorithm: str
    source: str
    ops: tuple[str, ...]
    stores_half = False

    def __init__(self, traits: Traits, dtype: str = DTYPE) -> None:
        assert dtype == DTYPE or self.stores_half
        self.traits = traits
        self.dtype = dtype
        stored = None if dtype == DTYPE else dtype
        self.blocked, self.plain = Layout(traits.block, stored), Layout(0, stored)
        self.descriptor = Descriptor("opencl", dtype, self.algorithm)

    def supports(self, layer: Layer) -> bool:
        return layer.op in self.ops and is_float32(layer) and self._supports(layer)

    def _supports(self, layer: Layer) -> bool:
        """Whether this routine computes a float32 layer of one of `ops`; true by default."""
        return True

    def demand(self, layer: Layer, parameters: Parameters) -> Demand:
        """What the layer's kernels demand of a GPU; of kernels without tiles, a few vectors."""
        return Demand(_VECTORS * self.traits.block + ADDRESS_REGISTERS)

    def layouts(self, layer: Layer, parameters: Parameters) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        """Blocked for 4-D tensors, plain for others."""
        inputs = tuple(self._layout(layer.type_of(index)) for index in layer.activations)
        return inputs, tuple(self._layout(kind) for kind in layer.outputs)

    def _layout(self, kind: TensorType) -> Layout:
        return self.blocked if is_image(kind) else self.plain

    def stored(self, values: np.ndarray) -> np.ndarray:
        """A constant in the kernels' format: flat, of the storage type."""
        flat = np.ascontiguousarray(values, np.float32).ravel()
        return flat if self.dtype == DTYPE else np.clip(flat, -_HALF_MAX, _HALF_MAX).astype(np.float16)

    def prepared(self, size: int, make: Callable[[], np.ndarray], recipe: Hashable = None) -> Prepared:
        """The `stored` form of the `size` numbers that `make` returns, made when it is written."""
        return whole(size, lambda: self.stored(make()), self.dtype, recipe)

    def bias(self, layer: Layer, size: int) -> np.ndarray:
        """The bias of a layer with weights, if it has one with zeros to `size`."""
        return self.stored(padded_rows(layer.constants[2].reshape(-1) if layer.has(2) else np.zeros(0), size))

    @staticmethod
    def reads(layer: Layer, source: Operand = INPUT) -> tuple[Operand | None, ...]:
        """Operands of a layer with weights: `source`, weights (constant 0), bias (constant 1) and residual."""
        return source, constant(0), constant(1), Operand("input", 3) if layer.has(3) else None

    @staticmethod
    def epilogue(layer: Layer) -> tuple[int, ...]:
        """Parameters of a layer with weights for what follows its sums: whether there is a residual, and the activation."""
        return int(layer.has(3)), *layer.activation.words()

    def blocks(self, channels: int) -> int:
        """Number of blocks of `channels`."""
        return ceil_div(channels, self.traits.block)

    def per_item(self, count: int, others: int, smallest: int = 1, multiple: int = 1) -> int:
        """Number of pieces of work per work item.

        Args:
            count: pieces along the split dimension.
            others: product of the global sizes of the other dimensions.
            smallest: minimum result.
            multiple: divisor of the result.
        """
        items = max(1, ceil_div(self.traits.items_wanted(), others))
        pieces = max(ceil_div(count, items), smallest if self.traits.on_cpu else 1)
        return ceil_div(min(pieces, count), multiple) * multiple

    def plane_per_item(self, plane: int, others: int) -> int:
        """`per_item` for a kernel that copies `plane` pixels of a block."""
        return self.per_item(plane, others, smallest=_ITEM_FLOATS // self.traits.block)

    def flat_per_item(self, count: int) -> int:
        """`per_item` for a kernel that copies `count` floats."""
        return self.per_item(count, 1, smallest=_ITEM_FLOATS, multiple=self.traits.block)

    def call(
        self,
        kernel: str,
        reads: Sequence[Operand | None],
        parameters: Sequence[int],
        global_size: tuple[int, ...],
        defines: Sequence[tuple[str, int]] = (),
        writes: Sequence[Operand] = (OUTPUT,),
        types: Mapping[Operand, str] = MappingProxyType({}),
        local_size: tuple[int, ...] | None = None,
    ) -> KernelCall:
        """A call that writes output 0 by default. Workspaces hold float32, and operands in `types` that type.

        Without `local_size`, groups have one item on a CPU, and other drivers choose.
        """
        local_size = (1,) * len(global_size) if self.traits.on_cpu else local_size
        macros = (("NNS_BLOCK", self.traits.block), ("NNS_CPU", int(self.traits.on_cpu)), *defines)
        usual = (DTYPE if o is None or o.kind == "workspace" else self.dtype for o in (*reads, *writes))
        held = (kind if o is None else types.get(o, kind) for o, kind in zip((*reads, *writes), usual, strict=True))
        sizes = tuple(element_type(kind).bytes for kind in held)
        if self.dtype == HALF:
            macros += (("NNS_HALF", 1),)
        launch = Launch(self.source, macros, global_size, local_size, sizes)
        return KernelCall(kernel, tuple(reads), tuple(writes), tuple(int(p) for p in parameters), launch)

    def lowering(
        self,
        kernel: str,
        layer: Layer,
        words: Sequence[int],
        global_size: tuple[int, ...],
        reads: Sequence[Operand | None] = (INPUT,),
        constants: tuple[np.ndarray, ...] = (),
    ) -> Lowering:
        """One call of a kernel with the parameters `words`, followed by those of the layer's activation."""
        return Lowering((self.call(kernel, reads, (*words, *layer.activation.words()), global_size),), constants)

    def planes(self, layer: Layer) -> tuple[int, int, int, tuple[int, int, int]]:
        """Blocks and pixels of the output, an image; pixels per work item of a copying kernel; and its global size."""
        n, c, h, w = layer.outputs[0].shape
        blocks = self.blocks(c)
        each = self.plane_per_item(h * w, blocks * n)
        return blocks, h * w, each, (ceil_div(h * w, each), blocks, n)


class PlainRoutine(OpenCLRoutine):
    """A routine on plain tensors."""

    def layouts(self, layer: Layer, parameters: Parameters) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        return (self.plain,) * len(layer.activations), (self.plain,) * len(layer.outputs)
