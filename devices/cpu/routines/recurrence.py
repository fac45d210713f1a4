"""Recurrent layers: LSTM and GRU whose inputs a dense layer has multiplied by the input weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnstretch.devices.base.constants import Constant, Source, padded_rows, whole
from nnstretch.devices.base.routine import (
    PLAIN,
    USUAL_THREADS,
    Descriptor,
    Layout,
    Lowering,
    Operand,
    Parameters,
    Routine,
    shares,
)
from nnstretch.devices.cpu.manifest import family, kernel_call
from nnstretch.devices.engine.build.instruction_sets import Isa
from nnstretch.graph.activation import NO_ACTIVATION
from nnstretch.graph.dtypes import DEFAULT_DTYPE
from nnstretch.graph.layer import Layer

_FAMILY = "recurrence"
_CELLS = {"lstm": "LSTM", "gru": "GRU_RESET_BEFORE", "gru_reset_after": "GRU_RESET_AFTER"}
"""Cell of a layer -> the value of the kernels' column `cell`."""
_TOGETHER = {"LSTM": (4,), "GRU_RESET_BEFORE": (2, 1), "GRU_RESET_AFTER": (3,)}
"""Gates whose products are computed together."""
_CHUNK = "chunk"


def _extents(layer: Layer) -> dict[str, int]:
    """Images, steps, and sequences of an image, and whether the steps of a sequence are neighbours in memory."""
    shape, axis = layer.type_of(0).shape, layer.integer("axis")
    pixels = shape[:2] if len(shape) == 3 else shape[2:]
    steps, sequences = pixels if axis in (0, 2) else reversed(pixels)
    images = shape[0] if len(shape) == 4 else 1
    return {"images": images, "steps": steps, "sequences": sequences, "steps_inner": axis % 2}


class Recurrence(Routine):
    """All steps of an LSTM or GRU; directions, images and chunks of sequences are computed independently.

    Routine parameters:
        chunk: sequences that are computed together, at most.
    """

    descriptor = Descriptor("cpu", "float32", "recurrence")

    def __init__(self, isa: Isa) -> None:
        self.block = isa.block
        self.kernels = {str(kernel.tile["cell"]): kernel.name for kernel in family(_FAMILY).on(isa)}

    def supports(self, layer: Layer) -> bool:
        """Recurrent weights and bias are constants; only first states are computed at run time, beside the gates' input."""
        if layer.op != "Recurrence" or layer.activation != NO_ACTIVATION or 0 in layer.constants:
            return False
        types = [t for t in (*layer.inputs, *layer.outputs) if t is not None]
        if any(t.dtype != DEFAULT_DTYPE or not t.elements for t in types):
            return False
        if any(index not in layer.constants for index in (1, 2) if layer.has(index)):
            return False
        return family(_FAMILY).takes({"hidden": layer.type_of(1).shape[-1], **_extents(layer)})

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        extents, (_, most) = _extents(layer), family(_FAMILY).limits(_CHUNK)
        sequences, independent = extents["sequences"], extents["images"] * layer.type_of(1).shape[0]
        enough = -(-sequences // -(-self.units(USUAL_THREADS) // independent))
        sizes = [enough, *shares(sequences, USUAL_THREADS)]
        return tuple({_CHUNK: chunk} for chunk in dict.fromkeys(min(size, most) for size in sizes))

    def layouts(self, layer: Layer, parameters: Parameters) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        """Tensors of rank 4 are blocked; rows of channels and first states are plain."""
        layout = Layout(self.block) if len(layer.outputs[0].shape) == 4 else PLAIN
        return tuple(PLAIN if index else layout for index in layer.activations), (layout,)

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        directions, _, hidden = layer.type_of(1).shape
        cell = _CELLS[str(layer.attributes["cell"])]
        constants: list[Constant] = [self._packed_weights(layer.constants[1], _TOGETHER[cell])]
        reads: list[Operand | None] = [Operand("input", 0), Operand("constant", 0)]
        for index in (2, 3, 4):
            if index in layer.constants:
                reads.append(Operand("constant", len(constants)))
                values = layer.constants[index].astype(np.float32)
                constants.append(self._whole_blocks(values) if index == 2 else values)
            else:
                reads.append(Operand("input", index) if layer.has(index) else None)
        call = kernel_call(
            self.kernels[cell],
            tuple(reads),
            **_extents(layer),
            hidden=hidden,
            directions=directions,
            reverse=int(layer.attributes["direction"] == "reverse"),
            block=self.block if len(layer.outputs[0].shape) == 4 else 0,
            chunk=parameters[_CHUNK],
        )
        return Lowering((call,), tuple(constants))

    def _whole_blocks(self, values: np.ndarray) -> np.ndarray:
        """D,H with zeros up to whole blocks of H."""
        return padded_rows(values.T, -(-values.shape[1] // self.block) * self.block).T

    def _packed_weights(self, weights: np.ndarray, together: Sequence[int]) -> Constant:
        """D,G·H,H as the kernels read them: per direction and block of outputs all inputs of some gates, then of others."""
        directions, _, hidden = weights.shape
        blocks, gates = -(-hidden // self.block), sum(together)

        def pack() -> np.ndarray:
            padded = np.zeros((directions, gates, blocks * self.block, hidden), np.float32)
            padded[:, :, :hidden] = weights.reshape(directions, gates, hidden, hidden)
            blocked = padded.reshape(directions, gates, blocks, self.block, hidden).transpose(0, 2, 4, 1, 3)
            ends = np.cumsum(together)
            parts = [blocked[..., end - count : end, :] for count, end in zip(together, ends, strict=True)]
            return np.concatenate([part.reshape(directions, blocks, -1) for part in parts], axis=2)

        size = directions * gates * blocks * self.block * hidden
        return whole(size, pack, recipe=(_FAMILY, Source(weights), self.block, tuple(together)))


ROUTINES = (Recurrence,)
