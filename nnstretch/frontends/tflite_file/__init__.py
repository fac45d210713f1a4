"""TFLite files as ONNX graphs."""

from nnstretch.frontends.tflite_file.load import load_tflite

__all__ = ["load_tflite"]
