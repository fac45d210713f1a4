"""Base class of the operators of TFLite files by family."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from nnstretch.devices.external.litert.flatbuffer import FlatModel
from nnstretch.devices.external.litert.operators.activation import Activations
from nnstretch.devices.external.litert.ranges import Ranges
from nnstretch.devices.external.litert.tensors import Form, FormedTensors, natural_form
from nnstretch.graph.activation import NO_ACTIVATION
from nnstretch.graph.layers import GraphNode

Lowering = Callable[[GraphNode], None]


class OperatorFamily(ABC):
    """Writes the layers of some operators.

    Args:
        file: receives tensors and operators.
        tensors: of the file, by their names in the graph.
        ranges: of the tensors.
    """

    def __init__(self, file: FlatModel, tensors: FormedTensors, ranges: Ranges) -> None:
        self._file, self._tensors, self._ranges = file, tensors, ranges
        self._activations = Activations(file)

    @property
    @abstractmethod
    def lowerings(self) -> Mapping[str, Lowering]:
        """Operator of a layer -> the method that writes it, which raises ModelError if TFLite has no counterpart."""

    def _computed(
        self,
        name: str,
        operands: Sequence[int],
        shape: Sequence[int],
        options: Mapping[str, object] | None = None,
        *,
        table: str = "",
        version: int = 1,
    ) -> int:
        """Writes an operator on float32 and returns the tensor of its result, which has `shape`."""
        result = self._file.tensor(shape, f"{name.lower()}:{operands[0]}")
        self._file.operator(name, operands, [result], options, table=table, version=version)
        return result

    def _reshaped(self, source: int, shape: Sequence[int]) -> int:
        """A tensor in another shape; itself if it has that shape."""
        if self._file.shape(source) == tuple(shape):
            return source
        result = self._file.like(source, f"reshaped:{source}", shape)
        self._tensors.reshaped(source, result)
        return result

    def _transposed(self, source: int, order: Sequence[int]) -> int:
        return self._tensors.transposed(source, order, f"transposed:{source}")

    def _integers(self, values: object, name: str) -> int:
        """Adds a constant of int32."""
        return self._file.constant(np.array(values, np.int32), name)

    def _stored_form(self, node: GraphNode) -> Form:
        """The form for a layer that works in both: "last" if a 4-D run-time input exists in it, else "plain"."""
        names = [str(node.inputs[i]) for i in node.layer.activations if len(node.layer.type_of(i).shape) == 4]
        return "last" if any("last" in self._tensors.forms(name) for name in names) else "plain"

    @contextmanager
    def _before_activation(self, node: GraphNode, form: Form | None = None) -> Iterator[int]:
        """Yields the tensor that a layer without its activation computes; then applies the activation.

        Args:
            node: the layer.
            form: of its result, its natural one by default.
        """
        shape = node.layer.outputs[0].shape
        result = self._tensors.result(node, form or natural_form(shape))
        if node.layer.activation == NO_ACTIVATION:
            yield result
            return
        before = self._file.like(result, f"{node.layer.name}:before")
        yield before
        self._activations.apply(before, result, node.layer.activation)
