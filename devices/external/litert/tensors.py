"""Tensors of a TFLite file in up to two forms, as the graph has them and channels last."""

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
    """The tensors of a file by the graph's names; forms that are not there yet are made by transpositions."""

    def __init__(self, file: FlatModel) -> None:
        self._file = file
        self._forms: dict[str, dict[Form, int]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._forms

    def forms(self, name: str) -> Mapping[Form, int]:
        """The forms in which a tensor is there."""
        return self._forms[name]

    def put(self, name: str, form: Form, tensor: int) -> None:
        """Says which tensor, one that is there already, holds `name` in a form."""
        self._forms[name] = {form: tensor}

    def new(self, name: str, kind: TensorType, form: Form) -> int:
        """Makes the tensor that holds `name` in a form; the type is the graph's."""
        made = self._file.tensor(formed(kind.shape, form), name, kind.quantization)
        self._forms.setdefault(name, {})[form] = made
        return made

    def result(self, node: GraphNode, form: Form | None = None) -> int:
        """Makes the tensor of a layer's output, in its natural form if no other is wanted."""
        kind = node.layer.outputs[0]
        return self.new(node.outputs[0], kind, form or natural_form(kind.shape))

    def get(self, name: str, form: Form) -> int:
        """The tensor that holds `name` in a form, transposed from the other form if there is no such tensor yet."""
        forms = self._forms[name]
        if form not in forms:
            other: Form = "last" if form == "plain" else "plain"
            forms[form] = self.transposed(forms[other], TO_LAST if form == "last" else TO_PLAIN, f"{name}:{form}")
        return forms[form]

    def transposed(self, source: int, order: Sequence[int], name: str) -> int:
        """A transposition; where it moves no value it is written as a change of shape."""
        shape = self._file.shape(source)
        result = self._file.like(source, name, [shape[axis] for axis in order])
        if [axis for axis in order if shape[axis] != 1] == [axis for axis in range(len(shape)) if shape[axis] != 1]:
            self.reshaped(source, result)
        else:
            axes = self._file.constant(np.array(order, np.int32), f"{name}:order")
            self._file.operator("TRANSPOSE", [source, axes], [result], table="TransposeOptions")
        return result

    def reshaped(self, source: int, result: int) -> None:
        """Writes a change of shape."""
        shape = self._file.shape(result)
        wanted = self._file.constant(np.array(shape, np.int32), f"shape:{result}")
        self._file.operator("RESHAPE", [source, wanted], [result], {"newShape": list(shape)}, table="ReshapeOptions")

    def read(self, node: GraphNode, index: int, form: Form) -> int:
        """Input `index` of a layer in a form; a constant becomes a tensor, with axes of size 1 before its own if they lack."""
        value = node.layer.constants.get(index)
        name = node.inputs[index]
        assert name is not None
        if value is None:
            return self.get(name, form)
        if form == "last":
            value = value.reshape((1,) * (4 - value.ndim) + value.shape).transpose(TO_LAST)
        return self._file.constant(value, name)

    def form_of(self, node: GraphNode) -> Form:
        """The form that a layer which works in any is computed in: one that its first input is there in."""
        forms = self._forms[str(node.inputs[0])]
        return "last" if "last" in forms else "plain"

    @contextmanager
    def keeping_quantization(self, source: int, result: int) -> Iterator[int]:
        """The output of an operator that keeps the parameters of `source`; requantized to those of `result`."""
        same = self._file.quantization(source) == self._file.quantization(result)
        made = result if same else self._file.like(source, f"made:{result}", self._file.shape(result))
        yield made
        if made != result:
            self._file.quantize(made, result)


def natural_form(shape: Sequence[int]) -> Form:
    """The form of inputs, outputs and what layers of images make."""
    return "last" if len(shape) == 4 else "plain"


def formed(shape: Sequence[int], form: Form) -> tuple[int, ...]:
    """What the graph says of each axis, in the order of a form."""
    return tuple(shape[axis] for axis in TO_LAST) if form == "last" else tuple(shape)
