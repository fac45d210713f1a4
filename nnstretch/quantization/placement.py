"""The processors of branches, which a quantised network keeps."""

from __future__ import annotations

import onnx_ir as ir

from nnstretch.graph.metadata import PLACEMENT_KEY


def carry_placement(network: ir.Model, quantized: ir.Model) -> None:
    """Gives the nodes of a quantised network the processors that a design gave to those of the network in float32.

    ONNX Runtime's tools drop metadata of nodes, but keep the names of nodes and of what they make. A QuantizeLinear goes where
    its input is made, a DequantizeLinear where its output is read.
    """
    placed = [(node, node.metadata_props[PLACEMENT_KEY]) for node in network.graph if _is_placed(node)]
    if not placed:
        return
    by_name = {node.name: place for node, place in placed}
    by_value = {value.name: place for node, place in placed for value in node.outputs}
    for node in quantized.graph:
        place = by_name.get(node.name) or by_value.get(node.outputs[0].name)
        if place is not None and "QuantizeLinear" not in node.op_type:
            node.metadata_props[PLACEMENT_KEY] = place
    for node in quantized.graph:
        source = node.inputs[0]
        producer = None if source is None else source.producer()
        if node.op_type == "QuantizeLinear" and producer is not None and _is_placed(producer):
            node.metadata_props[PLACEMENT_KEY] = producer.metadata_props[PLACEMENT_KEY]
        elif node.op_type == "DequantizeLinear":
            places = {reader.metadata_props.get(PLACEMENT_KEY) for reader in node.outputs[0].consumers()}
            place = places.pop() if len(places) == 1 else None
            if place is not None:
                node.metadata_props[PLACEMENT_KEY] = place


def _is_placed(node: ir.Node) -> bool:
    return PLACEMENT_KEY in node.metadata_props
