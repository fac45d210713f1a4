"""Which torch module a node came from."""

from __future__ import annotations

import ast

import onnx_ir as ir

# Written by torch's exporter: a list of module paths from the root down, then the name of the operation.
NAME_SCOPES = "pkg.torch.onnx.name_scopes"
# Written by our own export, and read first.
MODULE_PATH = "nnstretch.module"


def module_path(node: ir.Node) -> str:
    """Path of the torch module that `node` computes, such as "layer1.0.conv1"; "" for the root or if unknown.

    A fused layer has the path of the one that absorbed the others: a convolution with batch normalisation and
    activation has that of the convolution.
    """
    stated = node.metadata_props.get(MODULE_PATH)
    if stated is not None:
        return stated
    scopes = node.metadata_props.get(NAME_SCOPES)
    if scopes is None:
        return ""
    try:
        names = ast.literal_eval(scopes)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        # The text comes from a file.
        return ""
    if not isinstance(names, list) or len(names) < 2 or not all(isinstance(name, str) for name in names):
        return ""
    return str(names[-2])
