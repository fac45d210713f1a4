"""Processors of branches in quantised networks."""

from __future__ import annotations

from pathlib import Path

import torch

from nnstretch.branching.transform.network import export_branched
from nnstretch.frontends.onnx_file import load
from nnstretch.graph.metadata import PLACEMENT_KEY, branch_of
from nnstretch.passes import optimize
from nnstretch.quantization import quantize
from tests.kits.networks.tiny_branching import SIDE, branched


def test_branches_stay_on_their_processors(tmp_path: Path) -> None:
    image = torch.randn(1, 1, SIDE, SIDE)
    model = export_branched(branched(0.5, 0.75), image)
    quantize(model, [{str(model.graph.inputs[0].name): image.numpy()}], tmp_path / "int8.onnx")
    quantized = load(tmp_path / "int8.onnx")
    assert {node.op_type for node in quantized.graph} >= {"QuantizeLinear", "DequantizeLinear"}
    places = [(node, node.metadata_props.get(PLACEMENT_KEY)) for node in optimize(quantized).graph]
    assert sorted(place for node, place in places if node.op_type == "Conv" and place) == ["0"] * 4 + ["1"] * 4
    for node, place in places:
        branch = branch_of(str(node.name))
        if branch is not None:
            assert place == str(branch[1])
        elif node.op_type == "Dense":
            assert place is None
