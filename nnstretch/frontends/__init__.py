"""How models come in: ONNX files, torch modules, and names of either."""

from nnstretch.frontends.input_shapes import parse_shapes
from nnstretch.frontends.onnx_file import ModelWarning, load, save
from nnstretch.frontends.resolve import load_model, load_module
from nnstretch.graph.module_path import module_path

__all__ = ["ModelWarning", "load", "load_model", "load_module", "module_path", "parse_shapes", "save"]
