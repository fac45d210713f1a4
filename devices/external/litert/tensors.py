"""Tensors of a TFLite file in up to two forms: the graph's axis order, and channels last."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal

import numpy as np

from nnstretch.devices.external.litert.flatbuffer import FlatModel
from nnstretch.graph.layer import TensorType
from nnstretch.graph.layers import GraphNode

Form = Literal["plain", "last"]
TO_LAST = (0, 2, 3, 1)
TO_PLAIN = (0, 3, 1, 2)


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
        """Adds the tensor of `name` in a form; `kind` is its type in the graph."""
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
        if [axis for axis in order if shape[axis] != 1] == [axis for axis in range(len(shape)) if shape[axis] != 1]:
            self.reshaped(source, result)
        else:
            axes = self._file.constant(np.array(order, np.int32), f"{name}:order")
            self._file.operator("TRANSPOSE", [source, axes], [result], table="TransposeOptions")
        return result

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
        """The form for a layer that works in both: an existing form of its first input."""
        forms = self._forms[str(node.inputs[0])]
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
