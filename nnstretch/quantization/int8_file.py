"""ONNX Runtime's quantiser: a folded float network, and QDQ files made from it."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from nnstretch.frontends.onnx_file import load, save
from nnstretch.graph.metadata import unused_name
from nnstretch.quantization.placement import carry_placement
from nnstretch.quantization.runs import refused_as_errors


def folded(model: ir.Model, folder: Path) -> ir.Model:
    """A network as it is quantised: constants and batch norms folded, and every node with a name of its own.

    Args:
        model: float32, not fused; it stays as it is.
        folder: for temporary files.

    Raises:
        ModelError: ONNX Runtime cannot read the model.
    """
    from onnxruntime.quantization import quant_pre_process

    before, after = folder / "float.onnx", folder / "folded.onnx"
    save(model, before)
    with refused_as_errors("quantise"):
        quant_pre_process(before, after, skip_symbolic_shape=True)
    result = load(after)
    carry_placement(model, result)
    names: set[str] = set()
    for node in result.graph:
        node.name = unused_name(node.name or f"{node.op_type}_{node.outputs[0].name}", names, "#")
        names.add(node.name)
    return result


def write_int8(
    network: Path,
    ranges: Path,
    file: Path,
    *,
    keep: Collection[str] = (),
    only: Collection[str] = (),
    parameters: Mapping[str, tuple[float, int]] | None = None,
    reduce_range: bool = False,
) -> None:
    """Writes a network with QuantizeLinear and DequantizeLinear nodes.

    Weights have a scale per channel, activations, as uint8, one per tensor.

    Args:
        network: of `folded`.
        ranges: of the activations, as `ranges.write` stored them.
        file: what is written.
        keep: names of nodes that stay in float32.
        only: names of the nodes that are quantised; of all, if there are none.
        parameters: scale and zero point of activations, which come before their ranges.
        reduce_range: weights are from -64 to 64, instead of from -127 to 127.

    Raises:
        ModelError: ONNX Runtime cannot quantise the model.
    """
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    overrides = {
        name: [{"scale": np.array(scale, np.float32), "zero_point": np.array(zero_point, np.uint8)}]
        for name, (scale, zero_point) in (parameters or {}).items()
    }
    with refused_as_errors("quantise"), _without_notes_on_axes():
        quantize_static(
            network,
            file,
            None,
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            reduce_range=reduce_range,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            nodes_to_quantize=list(only),
            nodes_to_exclude=list(keep),
            calibration_cache_path=ranges,
            extra_options={"TensorQuantOverrides": overrides} if overrides else None,
        )
    _sort(file)


@contextmanager
def _without_notes_on_axes() -> Iterator[None]:
    """Drops a warning of ONNX Runtime's tools per vector of weights, such as a batch norm's: it has one scale, as it should."""

    def is_wanted(record: logging.LogRecord) -> bool:
        return "is out-of-range for weight" not in record.getMessage()

    root = logging.getLogger()
    root.addFilter(is_wanted)
    try:
        yield
    finally:
        root.removeFilter(is_wanted)


def _sort(file: Path) -> None:
    """Sorts the nodes of a file that has graphs within nodes: ONNX Runtime's tools overlook the tensors that these read."""
    attributes = [attribute for node in onnx.load(file).graph.node for attribute in node.attribute]
    if any(attribute.type == onnx.AttributeProto.GRAPH for attribute in attributes):
        model = ir.load(file)
        model.graph.sort()
        ir.save(model, file)
