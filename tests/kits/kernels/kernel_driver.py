"""Runs a lowering by itself through the engine.

`run_lowering` surrounds every buffer with guard bytes and fills the lanes that pad channels with large values, so that a kernel
that writes outside its buffers or trusts padding is caught.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from nnstretch.devices.base.routine import Layout, Lowering, Operand
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
from nnstretch.graph.layer import Layer

GUARD = 256
GUARD_BYTE = 0xA5
UNWRITTEN_BYTE = 0xFF  # four make a NaN: a lane that no kernel has written shows


@dataclass(frozen=True)
class _Guarded:
    """A buffer between two stretches of guard bytes."""

    whole: np.ndarray
    size: int

    @classmethod
    def of(cls, size: int) -> _Guarded:
        whole = aligned_array(size + 2 * GUARD)
        whole[:] = GUARD_BYTE
        whole[GUARD : GUARD + size] = UNWRITTEN_BYTE
        return cls(whole, size)

    @property
    def bytes(self) -> np.ndarray:
        return self.whole[GUARD : GUARD + self.size]

    def check(self, name: str) -> None:
        """Fails if a byte outside the buffer changed."""
        for side, guard in (("before", self.whole[:GUARD]), ("behind", self.whole[GUARD + self.size :])):
            touched = np.flatnonzero(guard != GUARD_BYTE)
            assert not touched.size, f"a kernel wrote {side} {name} ({self.size} bytes), at guard byte {touched[0]}"


@dataclass(frozen=True)
class _Prepared:
    program: Program
    guarded: dict[str, _Guarded]
    sources: dict[str, np.ndarray]

    def check(self) -> None:
        for name, guarded in self.guarded.items():
            guarded.check(name)
        for name, source in self.sources.items():
            unchanged = np.array_equal(self.guarded[name].bytes, source.reshape(-1).view(np.uint8))
            assert unchanged, f"a kernel changed {name}, which it may only read"


@contextmanager
def _prepared(
    lowering: Lowering,
    layer: Layer,
    inputs: Sequence[np.ndarray],
    layouts_in: Sequence[Layout],
    layouts_out: Sequence[Layout],
    cores: tuple[int, ...],
    *,
    in_place: bool = False,
) -> Iterator[_Prepared]:
    """A program of one queue of the lowering's calls, with every operand in a region of its own.

    With `in_place`, the output shares memory with the input that the only call may overwrite.
    """
    assert len(inputs) == len(layouts_in) == len(layer.activations)
    assert len(layouts_out) == len(layer.outputs)
    sources = {
        f"input {index}": layout.pack(array, tensor=layer.type_of(index))
        for index, array, layout in zip(layer.activations, inputs, layouts_in, strict=True)
    }
    sources |= {f"constant {i}": np.ascontiguousarray(array) for i, array in enumerate(lowering.constants)}
    sizes = {name: array.nbytes for name, array in sources.items()}
    sizes |= {
        f"output {i}": layout.bytes(tensor)
        for i, (layout, tensor) in enumerate(zip(layouts_out, layer.outputs, strict=True))
    }
    sizes |= {f"workspace {i}": size for i, size in enumerate(lowering.workspaces)}
    home, external_engine = _in_place_names(lowering) if in_place else ("", "")
    if in_place:
        assert sizes.pop(external_engine) == sizes[home]
    guarded = {name: _Guarded.of(size) for name, size in sizes.items()}
    for name, source in sources.items():
        guarded[name].bytes[:] = source.reshape(-1).view(np.uint8)
    numbers = {name: i for i, name in enumerate(guarded)}
    if in_place:
        guarded[external_engine], numbers[external_engine] = guarded[home], numbers[home]
        del sources[home]

    def number(operand: Operand | None) -> int:
        return -1 if operand is None else numbers[f"{operand.kind} {operand.index}"]

    steps = [
        Step(
            StepKind.KERNEL,
            engine().find(call.kernel),
            tuple(map(number, call.reads)),
            tuple(map(number, call.writes)),
            call.parameters,
        )
        for call in lowering.calls
    ]
    program = Program(
        queues=[Queue(QueueKind.HOST, cores)],
        regions=[Region(RegionKind.FIXED, size, memory=guarded[name].bytes) for name, size in sizes.items()],
        buffers=[Buffer(i, 0, size) for i, size in enumerate(sizes.values())],
        steps=steps,
        subgraphs=[SubGraph(0, len(steps))],
    )
    with program:
        yield _Prepared(program, guarded, sources)


def _in_place_names(lowering: Lowering) -> tuple[str, str]:
    """The operand that the first write of the only call may overwrite, and that write."""
    (call,) = lowering.calls
    assert call.in_place is not None, f"kernel {call.kernel} does not say that it works in place"
    read, written = call.reads[call.in_place], call.writes[0]
    assert read is not None
    return f"{read.kind} {read.index}", f"{written.kind} {written.index}"


def run_lowering(
    lowering: Lowering,
    layer: Layer,
    inputs: Sequence[np.ndarray],
    layouts_in: Sequence[Layout],
    layouts_out: Sequence[Layout],
    cores: tuple[int, ...] = (0,),
    *,
    in_place: bool = False,
) -> list[np.ndarray]:
    """Outputs of `layer`, row-major and logical, as the lowering's kernels compute them.

    Args:
        lowering: the layer as a routine lowers it.
        layer: the layer, for shapes.
        inputs: row-major logical arrays for `layer.activations`, in that order.
        layouts_in: layouts of the inputs.
        layouts_out: layouts of the outputs.
        cores: one thread per entry.
        in_place: whether the output takes the memory that the call's `in_place` allows (there is one call then).

    Raises:
        PackageError: a kernel refuses its operands; has the kernel's message.
        AssertionError: a kernel wrote outside its buffers, changed an input, or left padding lanes that are not finite.
    """
    with _prepared(lowering, layer, inputs, layouts_in, layouts_out, cores, in_place=in_place) as prepared:
        prepared.program.run()
        prepared.check()
        outputs = []
        for i, (layout, tensor) in enumerate(zip(layouts_out, layer.outputs, strict=True)):
            stored = prepared.guarded[f"output {i}"].bytes.view(layout.element(tensor).storage)
            logical = layout.unpack(stored, tensor).copy()
            if stored.dtype.kind == "f" and np.isfinite(logical).all():
                assert np.isfinite(stored).all(), f"padding lanes of output {i} are not finite"
            outputs.append(logical)
        return outputs
