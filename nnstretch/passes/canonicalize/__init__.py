"""Operators of ONNX, and the patterns that exporters write for them, as canonical operators."""
