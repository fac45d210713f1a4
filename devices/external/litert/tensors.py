"""Tensors of a TFLite file in up to two forms: the graph's axis order, and channels last."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import Literal

import numpy as np

from nnstretch.devices.external.litert.flatbuffer import FlatModel
from nnstretch.errors import ModelError
from nnstretch.graph.layer import TensorType
from nnstretch.graph.layers import GraphNode

Form = Literal["plain", "last"]
TO_LAST = (0, 2, 3, 1)
TO_PLAIN = (0, 3, 1, 2)
_MOST_AXES = 6
"""Axes that TRANSPOSE takes everywhere; tensors with more are reshaped first."""


class FormedTensors:
    """Tensors of a file by their names in the graph; transposes create missing forms on demand."""

    def __init__(self, file: FlatModel) -> None:
        self._file = file
        self._forms: dict[str, dict[Form, int]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._forms

    def forms(self, name: str) -> Mapping[Form, int]:
        """Existing forms of a tensor: form -> tensor number."""
        return self._forms[name]

    def put(self, name: str, form: Form, tensor: int) -> None:
        """Registers an existing tensor as `name` in a form."""
        self._forms[name] = {form: tensor}

    def new(self, name: str, kind: TensorType, form: Form) -> int:
        """Adds the tensor of `name` in a form; `kind` is its type in the graph.

        Raises:
            ModelError: the type has no place in these files.
        """
        if kind.dtype != "float32" and kind.quantization is None:
            raise ModelError(
                f"tensor {name!r} is {kind.dtype}; TFLite files are written for float32 and quantised int8"
            )
        made = self._file.tensor(formed(kind.shape, form), name, kind.quantization)
        self._forms.setdefault(name, {})[form] = made
        return made

    def result(self, node: GraphNode, form: Form | None = None) -> int:
        """Adds the tensor of a layer's output, in its natural form by default."""
        kind = node.layer.outputs[0]
        return self.new(node.outputs[0], kind, form or natural_form(kind.shape))

    def get(self, name: str, form: Form) -> int:
        """The tensor of `name` in a form, transposed from the other form if it does not exist."""
        forms = self._forms[name]
        if form not in forms:
            other: Form = "last" if form == "plain" else "plain"
            forms[form] = self.transposed(forms[other], TO_LAST if form == "last" else TO_PLAIN, f"{name}:{form}")
        return forms[form]

    def transposed(self, source: int, order: Sequence[int], name: str) -> int:
        """Writes a transpose, as a reshape if it moves no values."""
        shape = self._file.shape(source)
        result = self._file.like(source, name, [shape[axis] for axis in order])
        extents, simple = _simplified(shape, order)
        if len(simple) < 2:
            self.reshaped(source, result)
        elif len(shape) <= _MOST_AXES:
            self._write_transpose(source, order, result)
        else:
            merged = self._file.like(source, f"{name}:merged", extents)
            moved = self._file.like(source, f"{name}:moved", [extents[axis] for axis in simple])
            self.reshaped(source, merged)
            self._write_transpose(merged, simple, moved)
            self.reshaped(moved, result)
        return result

    def _write_transpose(self, source: int, order: Sequence[int], result: int) -> None:
        axes = self._file.constant(np.array(order, np.int32), f"order:{result}")
        self._file.operator("TRANSPOSE", [source, axes], [result], table="TransposeOptions")

    def reshaped(self, source: int, result: int) -> None:
        """Writes a reshape."""
        shape = self._file.shape(result)
        wanted = self._file.constant(np.array(shape, np.int32), f"shape:{result}")
        self._file.operator("RESHAPE", [source, wanted], [result], {"newShape": list(shape)}, table="ReshapeOptions")

    def read(self, node: GraphNode, index: int, form: Form) -> int:
        """Input `index` of a layer in a form; a constant becomes a tensor, padded in front with axes of size 1."""
        value = node.layer.constants.get(index)
        name = node.inputs[index]
        assert name is not None
        if value is None:
            return self.get(name, form)
        if form == "last":
            value = value.reshape((1,) * (4 - value.ndim) + value.shape).transpose(TO_LAST)
        return self._file.constant(value, name)

    def form_of(self, node: GraphNode) -> Form:
        """The form for a layer that works in both: an existing form of its first input, "plain" for a constant."""
        forms = self._forms.get(str(node.inputs[0]), {})
        return "last" if "last" in forms else "plain"

    @contextmanager
    def keeping_quantization(self, source: int, result: int) -> Iterator[int]:
        """Yields the output of an operator that keeps the parameters of `source`; then requantizes it to `result`."""
        same = self._file.quantization(source) == self._file.quantization(result)
        made = result if same else self._file.like(source, f"made:{result}", self._file.shape(result))
        yield made
        if made != result:
            self._file.quantize(made, result)


def natural_form(shape: Sequence[int]) -> Form:
    """Default form of tensors: channels last for images."""
    return "last" if len(shape) == 4 else "plain"


def formed(shape: Sequence[int], form: Form) -> tuple[int, ...]:
    """Converts one value per axis from the graph's order to that of a form."""
    return tuple(shape[axis] for axis in TO_LAST) if form == "last" else tuple(shape)


def _simplified(shape: Sequence[int], order: Sequence[int]) -> tuple[list[int], list[int]]:
    """Extents and order of a transposition without axes of size 1, with axes that stay neighbours as one."""
    runs: list[list[int]] = []
    for axis in (axis for axis in order if shape[axis] != 1):
        if runs and all(shape[between] == 1 for between in range(runs[-1][-1] + 1, axis)) and axis > runs[-1][-1]:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    ordered = sorted(runs)
    return [prod(shape[axis] for axis in run) for run in ordered], [ordered.index(run) for run in runs]
