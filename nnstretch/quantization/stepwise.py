"""Networks that compute their tensors on demand, one stretch of nodes after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import onnx
from onnx import helper

from nnstretch.quantization.feeds import Feeds
from nnstretch.quantization.runs import open_run


class StepwiseNetwork:
    """A network whose tensors are computed when they are asked for, for all examples, each node once.

    Constants may change until a node that reads them is computed. Memory holds the tensors that nodes still to be
    computed read.

    Args:
        model: standard ONNX operators, in topological order; its constants are used as they are at each step.
        feeds: the examples.
    """

    def __init__(self, model: onnx.ModelProto, feeds: Sequence[Feeds]) -> None:
        self._opsets, self._ir_version = model.opset_import, model.ir_version
        self.constants = {tensor.name: tensor for tensor in model.graph.initializer}
        self._nodes = list(model.graph.node)
        self._makers = {name: index for index, node in enumerate(self._nodes) for name in node.output if name}
        self._readers = Counter(name for node in self._nodes for name in set(_reads(node)))
        self._waiting = set(range(len(self._nodes)))
        self._values = [dict(feed) for feed in feeds]

    def tensor(self, name: str) -> list[np.ndarray]:
        """A tensor, for every example; a graph input or one that a node computes whose readers have not all been computed.

        Raises:
            ModelError: ONNX Runtime cannot compute it.
        """
        if name not in self._values[0]:
            self._compute(name)
        return [values[name] for values in self._values]

    def _compute(self, name: str) -> None:
        """Computes a tensor and what it needs, and drops tensors that nobody reads any more."""
        chosen = [self._nodes[index] for index in sorted(self._needed(name))]
        self._waiting -= {self._makers[output] for node in chosen for output in node.output if output}
        for node in chosen:
            self._readers.subtract(set(_reads(node)))
        read = {source for node in chosen for source in _reads(node)}
        made = [output for node in chosen for output in node.output if output]
        wanted = [output for output in made if output == name or self._readers[output] > 0]
        sources = sorted(source for source in read if source in self._values[0])
        graph = helper.make_graph(
            chosen,
            "stretch",
            [_described(source, self._values[0][source]) for source in sources],
            [onnx.ValueInfoProto(name=output) for output in wanted],
            [self.constants[source] for source in sorted(read) if source in self.constants],
        )
        model = helper.make_model(graph, opset_imports=self._opsets, ir_version=self._ir_version)
        run = open_run(model.SerializeToString())
        for values in self._values:
            found = run({source: values[source] for source in sources})
            values.update(zip(wanted, found, strict=True))
            for source in sources:
                if self._readers[source] <= 0:
                    del values[source]

    def _needed(self, name: str) -> set[int]:
        """Nodes that have to be computed for a tensor."""
        found: set[int] = set()
        pending = [name]
        while pending:
            index = self._makers.get(pending.pop())
            if index is not None and index in self._waiting and index not in found:
                found.add(index)
                pending.extend(_reads(self._nodes[index]))
        return found


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    """Names that a node reads, also within its graphs, where some may be the graphs' own."""
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                yield from _reads(inner)
            yield from (output.name for output in graph.output)


def _described(name: str, array: np.ndarray) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
