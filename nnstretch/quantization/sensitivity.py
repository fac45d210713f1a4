"""Errors of a quantised network's outputs, and which layers they come from."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from nnstretch.errors import ModelError
from nnstretch.frontends.onnx_file import load
from nnstretch.quantization.feeds import Feeds
from nnstretch.quantization.runs import open_run
from nnstretch.support.progress import Progress, silent

EXAMPLES = 32
"""Errors are those of the first examples, at most this number; one batch at least."""
_ABSORBED = ("Relu", "Clip")
"""Activations that the range of their layer's output replaces."""


@dataclass(frozen=True)
class LayerError:
    """What one layer in int8 changes.

    Attributes:
        name: of the layer.
        operator: of ONNX.
        error: relative error of the network's outputs if only this layer is quantised.
    """

    name: str
    operator: str
    error: float

    @property
    def snr_db(self) -> float:
        """Signal-to-noise ratio of the outputs in dB; infinite without an error."""
        return signal_to_noise(self.error)


def signal_to_noise(error: float) -> float:
    """The ratio in dB that a relative error is; infinite for 0."""
    return -20 * math.log10(error) if error > 0 else math.inf


class OutputError:
    """Compares networks with the one in float32, output by output.

    The relative error of an output is the Euclidean norm of the difference over that of the output in float32, all examples
    taken together; where that is 0 everywhere, the norm of the difference. Of several outputs the worst counts, and
    integer outputs do not.

    Args:
        network: file of the network in float32.
        feeds: examples; the first are used.
    """

    def __init__(self, network: Path, feeds: Sequence[Feeds]) -> None:
        batch = max(1, *(len(array) if array.ndim else 1 for array in feeds[0].values()))
        self._feeds = feeds[: max(1, EXAMPLES // batch)]
        run = open_run(network)
        self._wanted = [run(feed) for feed in self._feeds]
        self._floats = [index for index, y in enumerate(self._wanted[0]) if y.dtype.kind == "f"]

    @property
    def is_defined(self) -> bool:
        """Whether any output holds floating-point numbers."""
        return bool(self._floats)

    def of(self, file: Path) -> float:
        """The relative error of another network with the same inputs and outputs."""
        run = open_run(file)
        differences, norms = np.zeros(len(self._wanted[0])), np.zeros(len(self._wanted[0]))
        for feed, wanted in zip(self._feeds, self._wanted, strict=True):
            for index, y in enumerate(run(feed)):
                if index in self._floats:
                    differences[index] += np.square(np.subtract(y, wanted[index], dtype=np.float64)).sum()
                    norms[index] += np.square(wanted[index], dtype=np.float64).sum()
        norms[norms == 0] = 1.0
        return float(np.sqrt(differences / norms).max())


def layer_groups(network: ir.Model, int8: Path, kept: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Layers that a quantised file computes in int8, each with the activation that its output's range replaces.

    Args:
        network: in float32.
        int8: file that was made from it.
        kept: names of nodes that stay in float32.

    Returns:
        Name of the layer -> names of its nodes, in topological order.
    """
    quantised = {
        node.name
        for node in load(int8).graph
        if any(value is not None and _dequantised(value) for value in node.inputs) and node.name not in kept
    }
    return {str(node.name): _group(node) for node in network.graph if node.name in quantised}


def layer_errors(
    network: ir.Model,
    groups: Mapping[str, Sequence[str]],
    write: Callable[[Sequence[str]], Path],
    error: OutputError,
    progress: Progress = silent,
) -> list[LayerError]:
    """The error that each layer alone causes, the largest first; layers that only pass integers on are left out.

    Args:
        network: in float32.
        groups: of `layer_groups`.
        write: makes a file in which only the nodes of these names are quantised.
        error: compares files.
        progress: called for every layer.

    Raises:
        ModelError: the network has no floating-point output.
    """
    if not error.is_defined:
        raise ModelError("the model's outputs are integers, and errors need logits; give a model that ends with these")
    operators = {str(node.name): node.op_type for node in network.graph}
    found = []
    for number, (name, nodes) in enumerate(groups.items()):
        progress(number, len(groups), name)
        file = write(nodes)
        if any(node.op_type == "QuantizeLinear" for node in onnx.load(file).graph.node):
            found.append(LayerError(name, operators[name], error.of(file)))
    return sorted(found, key=lambda layer: -layer.error)


def fewest_kept(worst: Sequence[str], error_without: Callable[[Sequence[str]], float], limit: float) -> Sequence[str]:
    """The shortest beginning of a list of layers that keeps an error within a limit, if the error falls along the list.

    Args:
        worst: layers, the most sensitive first.
        error_without: the error of the whole network if these layers stay in float32.
        limit: of the error.

    Returns:
        A beginning whose error was measured to be within the limit; all layers, if no shorter one has been found.
    """
    failing, holding = -1, len(worst)
    while holding - failing > 1:
        middle = (failing + holding) // 2
        if error_without(worst[:middle]) <= limit:
            holding = middle
        else:
            failing = middle
    return worst[:holding]


def _dequantised(value: ir.Value) -> bool:
    producer = value.producer()
    return producer is not None and producer.op_type == "DequantizeLinear"


def _group(node: ir.Node) -> tuple[str, ...]:
    readers = node.outputs[0].consumers()
    alone = len(readers) == 1 and readers[0].op_type in _ABSORBED and not node.outputs[0].is_graph_output()
    return (str(node.name), str(readers[0].name)) if alone else (str(node.name),)
